"""What robustkit has of a kind and what plug-ins bring, by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, TypeVar

from ..errors import PluginError
from .plugins import Plugin, brief, declared

T = TypeVar("T")
_RIVALS = {"attacks": ("attacks", "families"), "families": ("attacks", "families")}
"""Groups whose names stand for conditions alike, so that no two plug-ins of them can share one."""
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,63}")


_used: dict[Plugin, None] = {}


def loaded_plugins() -> list[Plugin]:
    """Return the plug-ins whose code this process has asked for."""
    return list(_used)


class Registry(Mapping[str, T], Generic[T]):
    """What robustkit has of a kind and what plug-ins bring, by name. A plug-in is loaded when it is asked for.

    own: what robustkit has; a plug-in of one of these names is refused. check: returns a plug-in's value, or raises
    TypeError with what was expected. reserved: further names that no plug-in may take. same_name: whether a value that
    has a name must have the plug-in's.
    """

    def __init__(
        self,
        group: str,
        own: Mapping[str, T],
        check: Callable[[Any], T],
        reserved: tuple[str, ...] = (),
        same_name: bool = True,
    ) -> None:
        self.group, self.own, self._check, self._reserved = group, own, check, (*reserved, "none")
        self._same_name = same_name
        self._loaded: dict[Plugin, T] = {}
        self._failed: dict[Plugin, PluginError] = {}

    def __contains__(self, name: object) -> bool:
        return name in self.own or (isinstance(name, str) and self.plugin(name) is not None)

    def __iter__(self) -> Iterator[str]:
        names = (plugin.name for plugin in declared(self.group) if plugin.name not in self._reserved)
        return iter(dict.fromkeys([*self.own, *names]))

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __getitem__(self, name: str) -> T:
        """Return what has this name. Raises KeyError where nothing has, PluginError where a plug-in cannot be used."""
        if name in self.own:
            return self.own[name]
        if (plugin := self.plugin(name)) is None:
            raise KeyError(name)
        return self.load(plugin)

    def load(self, plugin: Plugin) -> T:
        """Return what a plug-in of this group brings.

        Raises:
            PluginError: its name is taken or not a name, or it cannot be imported, or brings something else.
        """
        if refusal := self._refused(plugin):
            raise PluginError(refusal)
        if plugin in self._failed:
            raise self._failed[plugin]
        if plugin not in self._loaded:
            try:
                self._loaded[plugin] = self._checked(plugin)
            except PluginError as fault:
                self._failed[plugin] = fault
                raise
        return self._loaded[plugin]

    @property
    def loaded(self) -> list[T]:
        """The values of plug-ins that were loaded."""
        return list(self._loaded.values())

    def _checked(self, plugin: Plugin) -> T:
        _used[plugin] = None
        value = plugin.load()
        try:
            if self._same_name and getattr(value, "name", plugin.name) != plugin.name:
                raise TypeError(f"what it brings is called {value.name!r}; expected {plugin.name!r}")  # type: ignore[attr-defined]
            return self._check(value)
        except Exception as fault:  # also of a value that cannot be shown
            raise PluginError(f"{plugin.words}: {brief(fault) if type(fault) is not TypeError else fault}") from None

    def usable(self) -> Iterator[tuple[str, T]]:
        """Yield names and values, without plug-ins that cannot be used."""
        for name in self:
            try:
                yield name, self[name]
            except PluginError:
                continue

    def plugin(self, name: str) -> Plugin | None:
        """Return the plug-in that a name stands for; None for a name that is robustkit's, or nobody's."""
        if name in self.own or name in self._reserved:
            return None
        return next((plugin for plugin in declared(self.group) if plugin.name == name), None)

    def _refused(self, plugin: Plugin) -> str:
        if not _NAME.fullmatch(plugin.name):
            return f"{plugin.words}: expected a name of a-z, 0-9, _ and -, a letter first; rename it"
        if plugin.name in self.own or plugin.name in self._reserved:
            return f"{plugin.words}: robustkit has {plugin.name} already; rename the plug-in"
        groups = _RIVALS.get(self.group, (self.group,))
        alike = [other for group in groups for other in declared(group) if other.name == plugin.name]
        if len(alike) > 1:
            origins = " and of ".join(other.origin for other in alike)
            return f"{len(alike)} plug-ins are called {plugin.name}: of {origins}; keep one of them"
        return ""


def subclass_of(base: type) -> Callable[[Any], Any]:
    """Return a check that a plug-in brings a subclass."""

    def check(value: Any) -> Any:
        if not (isinstance(value, type) and issubclass(value, base)):
            raise TypeError(f"it brings {value!r}; expected a subclass of {base.__module__}.{base.__qualname__}")
        return value

    return check


def instance_of(base: type[T]) -> Callable[[Any], T]:
    """Return a check that a plug-in brings an instance."""

    def check(value: Any) -> T:
        if not isinstance(value, base):
            raise TypeError(f"it brings {value!r}; expected an instance of {base.__module__}.{base.__qualname__}")
        return value

    return check
