"""Objects of the calling program by a name: what a run takes from memory in place of a file, as `memory:NAME`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from ..errors import ModelError

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


def held_object(spec: str) -> Any:
    """Return the object that `memory:NAME` means. Raises ModelError where nothing has that name, as elsewhere."""
    try:
        return _HELD.get()[spec.removeprefix(PREFIX)]
    except KeyError:
        why = "it is in the memory of the program that started the run, not of this process"
        raise ModelError(f"{spec}: {why}; call robustkit from there, without ray or torchrun") from None
