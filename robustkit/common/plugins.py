"""Plug-ins: code of other packages or of a user's file that takes part in an audit, found by name.

A package names what it brings under an entry point group, `robustkit.attacks` for example; a file has a dictionary
`PLUGINS = {"attacks": {"spin": Spin}}`. Nothing of a package is imported before something asks for it by its name.
Robustkit's own slices (`slices/text` and others) are found by entry points, too (`built_in`), and count as no plug-ins.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from configparser import ConfigParser
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, cached_property, partial
from importlib import resources
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from ..errors import PluginError, unknown
from .files import TEXT, bytes_of, reason_of

if TYPE_CHECKING:
    if sys.version_info >= (3, 11):
        from importlib.resources.abc import Traversable
    else:
        from importlib.abc import Traversable


def run_file(path: Path, code: bytes, name: str) -> tuple[ModuleType, str]:
    """Execute a Python file under a name; return its module, and the SHA-256 (hex) of its code and imported neighbours.
    Raises ImportError where it is no Python file, and whatever the file raises.
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
    such a name is its own. helpers: takes their files. No bytecode is kept: Python would take that of a file which was
    changed within the second and kept its size, while the digest is of the file.
    """
    before, setting = set(sys.modules), sys.dont_write_bytecode
    sys.path.insert(0, str(folder))
    sys.dont_write_bytecode = True
    try:
        yield
    finally:
        sys.dont_write_bytecode = setting
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
    """Return modules imported since `before` from a folder, without installed packages and parts of earlier ones."""
    modules = []
    for name in sys.modules.keys() - before:
        file = getattr(sys.modules[name], "__file__", None)
        if not file or name.partition(".")[0] in before or not Path(file).is_relative_to(folder):
            continue
        if "site-packages" not in Path(file).relative_to(folder).parts:
            modules.append((name, Path(file)))
    return modules


GROUPS = {
    "attacks": "attack",
    "corruptions": "corruption",
    "explainers": "explainer",
    "formulas": "attention formula",
    "readers": "reader of checkpoints",
    "families": "family of evaluations",
    "tasks": "task",
    "commands": "command",
}
"""The groups of plug-ins, and what one of each is called. The entry point group is `robustkit.` and the name."""
DISTRIBUTION = "robustkit-audit"  # Our own, whose entry points are the slices
TABLE = "PLUGINS"  # The name of the dictionary in a file
_CODE = (".py", ".pyd", ".so")
_DIGEST = "__robustkit_digest__"


@dataclass(frozen=True)
class Plugin:
    """One plug-in, loaded or not. distribution, version: of its package; of a file, its name and nothing. entry: where
    an installed one is. value, digest: what a file brought, and its SHA-256.
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
        return f"{self.distribution} {self.version}".rstrip()

    @property
    def words(self) -> str:
        return f"plug-in {self.name} ({GROUPS[self.group]}, {self.origin})"

    @cached_property
    def source(self) -> str:
        """SHA-256 (hex) of its file and imported neighbours, or of its top-level package; PluginError without files."""
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
            raise PluginError(f"{self.words}: its source files were not found; install it as files")
        return digest_of_files(paths, Path(places[0]) if places else Path())

    @property
    def identity(self) -> dict[str, str]:
        values = {"group": self.group, "name": self.name, "distribution": self.distribution, "version": self.version}
        return values | {"source": self.source}

    def load(self) -> object:
        """Return what it brings, imported on the first call; PluginError where that fails."""
        if self.entry is None:
            return self.value
        try:
            return self.entry.load()
        except KeyboardInterrupt:
            raise
        except BaseException as fault:  # whatever a module of someone else raises
            raise PluginError(f"{self.words} cannot be imported ({error_line(fault)}); fix or uninstall it") from None


@dataclass(eq=False)
class _Session:
    """files: those that were executed, each with what it brings. loaded: what plug-ins brought, or why they failed."""

    files: dict[Path, list[Plugin]] = field(default_factory=dict)
    loaded: dict[Plugin, Any] = field(default_factory=dict)


_PROCESS = _Session()
_session: ContextVar[_Session] = ContextVar("robustkit plug-ins", default=_PROCESS)


@contextmanager
def plugin_session() -> Iterator[None]:
    """Begin with the plug-ins that the process knows, and forget on leaving those that came inside; also a decorator.

    Inside another session, it is that one. A thread belongs to none, unless it runs in `contextvars.copy_context()`.

    Example:
        >>> with robustkit.plugin_session():
        ...     run = robustkit.report("runs/reference")
    """
    if _session.get() is not _PROCESS:
        yield
        return
    files = {path: [*found] for path, found in _PROCESS.files.items()}
    token = _session.set(_Session(files, dict(_PROCESS.loaded)))
    try:
        yield
    finally:
        _session.reset(token)


def plugin_files() -> list[Path]:
    return list(_session.get().files)


def declared(group: str) -> list[Plugin]:
    """Return the plug-ins of a group, installed ones and those of files, in the order of their names."""
    of_files = dict.fromkeys(plugin for found in _session.get().files.values() for plugin in found)
    return sorted((*_installed(group), *(one for one in of_files if one.group == group)), key=lambda one: one.name)


def every_plugin() -> list[Plugin]:
    return [plugin for group in GROUPS for plugin in declared(group)]


@cache
def _installed(group: str) -> tuple[Plugin, ...]:
    entries = [(entry, entry.dist) for entry in entry_points(group=f"robustkit.{group}")]
    of_others = ((each, at.name if at else "", at.version if at else "") for each, at in entries)
    return tuple(
        Plugin(group, each.name, name, version, each) for each, name, version in of_others if name != DISTRIBUTION
    )


@cache
def built_in(group: str) -> dict[str, EntryPoint]:
    """Return the entry points of a group that robustkit's own slices name, in the `entry_points.txt` of each."""
    declared_entries = ConfigParser(delimiters="=", interpolation=None)
    declared_entries.read(sorted(Path(__file__).parents[1].glob("slices/*/entry_points.txt")), encoding="utf-8")
    section = f"robustkit.{group}"
    named = declared_entries.items(section) if declared_entries.has_section(section) else ()
    return {name: EntryPoint(name, value, section) for name, value in named}


def of_slice(name: str, asked: str) -> Any:
    """Return a function that a slice brings for the core to call, named under `robustkit.functions`. asked: what the
    user gave. Raises PluginError where this installation is without that slice."""
    if (entry := built_in("functions").get(name)) is None:
        why = "this installation is without the slice that does it"
        raise PluginError(f"{asked}: {why}; install RobustKit again from its source, or leave it out")
    return entry.load()


@cache
def shipped_files(package: str, folder: str) -> Mapping[str, Traversable]:
    """Return the TOML files in a folder of a package of the core, and in that of each slice, by name."""
    packages = [package, *(entry.module.rpartition(".")[0] for entry in built_in("tasks").values())]
    places = [resources.files(each) / folder for each in packages]
    files = (file for place in places if place.is_dir() for file in place.iterdir())
    return {file.name.removesuffix(".toml"): file for file in files if file.name.endswith(".toml")}


def load_plugin(path: str | Path) -> list[Plugin]:
    r"""Execute a Python file, and return the plug-ins of its `PLUGINS`, which are known from then on.

    Args:
        path: a Python file with a dictionary `PLUGINS`, such as `{"attacks": {"name": Class}}`.

    Returns:
        Its plug-ins, which are known until the session or the process ends.

    Raises:
        PluginError: it cannot be read or raises, has no such dictionary, or names a group that does not exist.

    Example:
        >>> _ = Path("plugin.py").write_text("from attacks import FGSM\nPLUGINS = {'attacks': {'one-step': FGSM}}")
        >>> with robustkit.plugin_session():
        ...     print([plugin.name for plugin in robustkit.load_plugin("plugin.py")])
        ['one-step']
    """
    path = Path(path)
    try:
        code = bytes_of(path, TEXT)
    except OSError as fault:
        raise PluginError(f"--plugin {path}: {reason_of(fault)}; give a Python file") from None
    place = hashlib.sha256(str(path.resolve()).encode() + code).hexdigest()
    name = f"robustkit_plugin_{path.stem}_{place[:12]}"
    if name not in sys.modules:
        try:
            module, own_digest = run_file(path, code, name)
        except KeyboardInterrupt:
            raise
        except BaseException as fault:  # whatever a file of someone else raises
            raise PluginError(f"--plugin {path}: it failed ({error_line(fault)}); fix it") from None
        vars(module)[_DIGEST] = own_digest
    digest = str(vars(sys.modules[name])[_DIGEST])
    table = getattr(sys.modules[name], TABLE, None)
    if not isinstance(table, dict) or not all(isinstance(entries, dict) for entries in table.values()):
        raise PluginError(f'--plugin {path}: expected {TABLE} = {{"attacks": {{"name": Class}}}} in it')
    groups = [group for group in GROUPS if group != "commands"]  # it is a command that executes the file
    for group in table:
        if group not in groups:
            raise PluginError(f"--plugin {path}: " + unknown("group", group, groups))
    plugins = [
        Plugin(group, str(name), path.name, value=value, digest=digest)
        for group, entries in table.items()
        for name, value in entries.items()
    ]
    session_plugins = _session.get().files.setdefault(path.resolve(), [])
    session_plugins.extend(plugin for plugin in plugins if plugin not in session_plugins)
    return plugins


def error_line(fault: BaseException) -> str:
    line = next(iter(str(fault).strip().splitlines()), "")
    return f"{type(fault).__name__}: {line}"[:300] if line else type(fault).__name__


T = TypeVar("T")
_RIVALS = {"attacks": ("attacks", "families"), "families": ("attacks", "families")}
"""Groups whose names stand for conditions alike, so that no two plug-ins of them can share one."""
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")


def loaded_plugins() -> list[Plugin]:
    return list(_session.get().loaded)


class Registry(Mapping[str, T], Generic[T]):
    """What robustkit has of a kind and what plug-ins bring, by name. A plug-in is loaded when it is asked for.
    entries: what robustkit has, or its entry point. check: returns a plug-in's value, or raises TypeError with what was
    expected. reserved: more names that no plug-in may take. same_name: a value's `name`, if any, must be the plug-in's.
    """

    def __init__(
        self,
        group: str,
        entries: Mapping[str, T | EntryPoint],
        check: Callable[[Any], T],
        reserved: tuple[str, ...] = (),
        same_name: bool = True,
    ) -> None:
        self.group, self.entries, self._check, self._reserved = group, entries, check, (*reserved, "none")
        self._same_name = same_name

    def __contains__(self, name: object) -> bool:
        return name in self.entries or (isinstance(name, str) and self.plugin(name) is not None)

    def __iter__(self) -> Iterator[str]:
        names = (plugin.name for plugin in declared(self.group) if plugin.name not in self._reserved)
        return iter(dict.fromkeys([*self.entries, *names]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, name: str) -> T:
        """Return what has this name. Raises KeyError where nothing has, PluginError where a plug-in cannot be used."""
        if name in self.entries:
            entry = self.entries[name]
            return entry.load() if isinstance(entry, EntryPoint) else entry
        if (plugin := self.plugin(name)) is None:
            raise KeyError(name)
        return self.load(plugin)

    def load(self, plugin: Plugin) -> T:
        """Return what a plug-in of this group brings; PluginError where its name or what it brings is refused."""
        if refusal := self._refused(plugin):
            raise PluginError(refusal)
        loaded = _session.get().loaded
        if plugin not in loaded:
            try:
                loaded[plugin] = self._checked(plugin)
            except PluginError as fault:
                loaded[plugin] = fault
        if isinstance(loaded[plugin], PluginError):
            raise loaded[plugin]
        return loaded[plugin]  # type: ignore[no-any-return]

    @property
    def loaded(self) -> list[T]:
        of_group = (value for plugin, value in _session.get().loaded.items() if plugin.group == self.group)
        return [value for value in of_group if not isinstance(value, PluginError)]

    def _checked(self, plugin: Plugin) -> T:
        value = plugin.load()
        try:
            if self._same_name and getattr(value, "name", plugin.name) != plugin.name:
                raise TypeError(f"its object is called {value.name!r}; expected {plugin.name!r}")  # type: ignore[attr-defined]
            return self._check(value)
        except Exception as fault:  # also of a value that cannot be shown
            problem = fault if type(fault) is TypeError else error_line(fault)
            raise PluginError(f"{plugin.words}: {problem}") from None

    def usable(self) -> Iterator[tuple[str, T]]:
        for name in self:
            try:
                yield name, self[name]
            except PluginError:
                continue

    def plugin(self, name: str) -> Plugin | None:
        """Return the plug-in that a name stands for; None for a name that is robustkit's, or nobody's."""
        if name in self.entries or name in self._reserved:
            return None
        return next((plugin for plugin in declared(self.group) if plugin.name == name), None)

    def _refused(self, plugin: Plugin) -> str:
        if not _NAME.fullmatch(plugin.name):
            return f"{plugin.words}: expected a name of a-z, 0-9, _ and -, a letter first; rename it"
        if plugin.name in self.entries or plugin.name in self._reserved:
            return f"{plugin.words}: robustkit has {plugin.name} already; rename the plug-in"
        groups = _RIVALS.get(self.group, (self.group,))
        alike = [other for group in groups for other in declared(group) if other.name == plugin.name]
        if len(alike) > 1:
            origins = " and of ".join(other.origin for other in alike)
            return f"{len(alike)} plug-ins are called {plugin.name}: of {origins}; keep one of them"
        return ""


def subclass_of(base: type | str) -> Callable[[Any], Any]:
    """Return a check that a plug-in brings a subclass. base: or its place, `attacks.attack:Attack`."""
    return partial(_checked_kind, base, "a subclass")


def instance_of(base: type | str) -> Callable[[Any], Any]:
    """Return a check that a plug-in brings an instance. base: or its place."""
    return partial(_checked_kind, base, "an instance")


def _checked_kind(base: type | str, what: str, value: Any) -> Any:
    kind = resolve_name(base) if isinstance(base, str) else base
    if not (isinstance(value, kind) if what == "an instance" else isinstance(value, type) and issubclass(value, kind)):
        raise TypeError(f"it provides {value!r}; expected {what} of {kind.__module__}.{kind.__qualname__}")
    return value
