"""Plug-ins: code of other packages that takes part in an audit, found through entry points or read from a file.

A package names what it brings under an entry point group, `robustkit.attacks` for example; a file has a dictionary
`PLUGINS = {"attacks": {"spin": Spin}}`. Nothing of a package is imported before something asks for it by its name.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from dataclasses import dataclass, field
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType

from ..errors import PluginError, unknown
from .files import TEXT, bytes_of, reason
from .own_code import digest_of_files, run_file

GROUPS = {
    "attacks": "attack",
    "corruptions": "corruption",
    "explainers": "explainer",
    "formulas": "attention formula",
    "families": "family of evaluations",
    "tasks": "task",
}
"""The groups of plug-ins, and what one of each is called. The entry point group is `robustkit.` and the name."""
TABLE = "PLUGINS"
"""The name of the dictionary in a file."""
_CODE = (".py", ".pyd", ".so")
_DIGEST = "__robustkit_digest__"


@dataclass(frozen=True)
class Plugin:
    """One plug-in, loaded or not.

    distribution, version: of the package that brings it; of a file, its name and nothing. entry: where an installed one
    is. value, digest: what a file brought, and its SHA-256.
    """

    group: str
    name: str
    distribution: str
    version: str = ""
    entry: EntryPoint | None = None
    value: object = field(default=None, compare=False)
    digest: str = ""

    @property
    def origin(self) -> str:
        """Where it comes from, in words: `robustkit-spin 0.1`, `spin.py`."""
        return f"{self.distribution} {self.version}".rstrip()

    @property
    def words(self) -> str:
        """How a message names it."""
        return f"plug-in {self.name} ({GROUPS[self.group]}, {self.origin})"

    @cached_property
    def source(self) -> str:
        """SHA-256 (hex) of its code: of the file and the modules next to it that it imports, or all code files of its
        top-level package, with their names.

        Raises:
            PluginError: there are no files, as in a zip.
        """
        if self.entry is None:
            return self.digest
        top = self.entry.module.partition(".")[0]
        spec = importlib.util.find_spec(top)
        places = list(spec.submodule_search_locations or ()) if spec else []
        paths = [path for place in places for path in Path(place).rglob("*")]
        if not places and spec and spec.origin:
            paths = [Path(spec.origin)]
        paths = sorted(path for path in paths if path.suffix in _CODE and path.is_file())
        if not paths:
            raise PluginError(f"{self.words}: no file of its code is found; install it as files")
        return digest_of_files(paths, Path(places[0]) if places else Path())

    @property
    def identity(self) -> dict[str, str]:
        """What run.json and records say about it."""
        said = {"group": self.group, "name": self.name, "distribution": self.distribution, "version": self.version}
        return said | {"source": self.source}

    def load(self) -> object:
        """Return what it brings, imported on the first call.

        Raises:
            PluginError: its module cannot be imported, or lacks the name.
        """
        if self.entry is None:
            return self.value
        try:
            return self.entry.load()
        except KeyboardInterrupt:
            raise
        except BaseException as fault:  # whatever a module of someone else raises
            raise PluginError(f"{self.words} cannot be imported ({brief(fault)}); mend or uninstall it") from None


_from_files: list[Plugin] = []
_files: dict[Path, None] = {}


def plugin_files() -> list[Path]:
    """Return the files that `load_plugin` has executed."""
    return list(_files)


def declared(group: str) -> list[Plugin]:
    """Return the plug-ins of a group, installed ones and those of files, in the order of their names."""
    return sorted((*_installed(group), *(one for one in _from_files if one.group == group)), key=lambda one: one.name)


def every_plugin() -> list[Plugin]:
    """Return all plug-ins, group by group."""
    return [plugin for group in GROUPS for plugin in declared(group)]


@cache
def _installed(group: str) -> tuple[Plugin, ...]:
    found = [(entry, entry.dist) for entry in entry_points(group=f"robustkit.{group}")]
    return tuple(
        Plugin(group, entry.name, at.name if at else "", at.version if at else "", entry) for entry, at in found
    )


def load_plugin(path: str | Path) -> list[Plugin]:
    """Execute a Python file, and return the plug-ins of its `PLUGINS`, which are known from then on.

    Raises:
        PluginError: it cannot be read or raises, has no such dictionary, or names a group that does not exist.
    """
    path = Path(path)
    try:
        code = bytes_of(path, TEXT)
    except OSError as fault:
        raise PluginError(f"--plugin {path}: {reason(fault)}; give a Python file") from None
    place = hashlib.sha256(str(path.resolve()).encode() + code).hexdigest()
    name = f"robustkit_plugin_{path.stem}_{place[:12]}"
    if name not in sys.modules:
        _execute(path, code, name)
    _files[path.resolve()] = None
    digest = str(vars(sys.modules[name])[_DIGEST])
    table = getattr(sys.modules[name], TABLE, None)
    if not isinstance(table, dict) or not all(isinstance(entries, dict) for entries in table.values()):
        raise PluginError(f'--plugin {path}: expected {TABLE} = {{"attacks": {{"name": Class}}}} in it')
    for group in table:
        if group not in GROUPS:
            raise PluginError(f"--plugin {path}: " + unknown("group", group, GROUPS))
    found = [
        Plugin(group, str(name), path.name, value=value, digest=digest)
        for group, entries in table.items()
        for name, value in entries.items()
    ]
    _from_files.extend(plugin for plugin in found if plugin not in _from_files)
    return found


def _execute(path: Path, code: bytes, name: str) -> ModuleType:
    """Return the module of a file, with the digest of its code and of the modules next to it that it imported."""
    try:
        module, digest = run_file(path, code, name)
    except KeyboardInterrupt:
        raise
    except BaseException as fault:  # whatever a file of someone else raises
        raise PluginError(f"--plugin {path}: it cannot be run ({brief(fault)}); mend it") from None
    vars(module)[_DIGEST] = digest
    return module


def brief(fault: BaseException) -> str:
    """Return an error in a line."""
    said = next(iter(str(fault).strip().splitlines()), "")
    return f"{type(fault).__name__}: {said}"[:300] if said else type(fault).__name__
