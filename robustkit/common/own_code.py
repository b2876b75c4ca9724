"""Run Python files of the user's: each with the modules next to it, and none with those of another."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType


def run_file(path: Path, code: bytes, name: str) -> tuple[ModuleType, str]:
    """Execute a Python file under a name; return its module, and the SHA-256 (hex) of its code and of the modules next
    to it that it imported.

    Raises:
        ImportError: it is no Python file. Whatever the file raises.
    """
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None:
        raise ImportError(f"{path.name} is not Python")
    module, folder, helpers = importlib.util.module_from_spec(spec), path.resolve().parent, list[Path]()
    sys.modules[name] = module  # dataclasses look their module up while they are made
    try:
        with importing_from(folder, helpers):
            exec(compile(code, str(path), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    files = sorted(helpers)
    return module, hashlib.sha256(code + digest_of_files(files, folder).encode() * bool(files)).hexdigest()


@contextmanager
def importing_from(folder: Path, helpers: list[Path] | None = None) -> Iterator[None]:
    """Let modules in a folder be imported inside; on leaving they are forgotten, so that another folder's module of
    such a name is its own. helpers: takes their files.
    """
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name, file in _imported_from(folder, before):
            del sys.modules[name]
            if helpers is not None:
                helpers.append(file)


def digest_of_files(paths: Sequence[Path], base: Path) -> str:
    """Return the SHA-256 (hex) of files: of their names, below `base` where it is one, and their contents."""
    total = hashlib.sha256()
    for path in paths:
        name = path.relative_to(base).as_posix() if path.is_relative_to(base) and base != Path() else path.name
        content = path.read_bytes()
        total.update(f"{name}\0{len(content)}\0".encode() + content)
    return total.hexdigest()


def _imported_from(folder: Path, before: set[str]) -> list[tuple[str, Path]]:
    """Return the modules imported since `before` from files in or below a folder, apart from installed packages and
    parts of packages that were there.
    """
    found = []
    for name in sys.modules.keys() - before:
        file = getattr(sys.modules[name], "__file__", None)
        if not file or name.partition(".")[0] in before or not Path(file).is_relative_to(folder):
            continue
        if "site-packages" not in Path(file).relative_to(folder).parts:
            found.append((name, Path(file)))
    return found
