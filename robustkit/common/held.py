"""Objects of the calling program by a name: what a run takes from memory in place of a file, as `memory:NAME`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

PREFIX = "memory:"
_HELD: ContextVar[Mapping[str, Any]] = ContextVar("held", default=MappingProxyType({}))


@contextmanager
def hold(objects: Mapping[str, Any]) -> Iterator[None]:
    """Let `memory:NAME` mean an object inside."""
    token = _HELD.set({**_HELD.get(), **objects})
    try:
        yield
    finally:
        _HELD.reset(token)


def held(spec: str) -> Any:
    """Return the object that `memory:NAME` means; None where nothing has that name, as in another process."""
    return _HELD.get().get(spec.removeprefix(PREFIX))
