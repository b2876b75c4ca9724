"""Names as people type them, whose case and separators do not matter; and `memory:NAME`, an object of the calling
program that a run takes in place of a file."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from ..errors import ModelError, ProtocolError

NONE = "none"
NORMS: Mapping[str, str] = {"inf": "linf", "infinity": "linf", "2": "l2", "1": "l1", "0": "l0"}
"""Norms by what else they are called."""


def plain(text: object) -> str:
    """Return a name without case and signs, in which spellings of one name differ; a plus as in Grad-CAM++ is a p."""
    spelled = str(text).lower().replace("+", "p").replace("∞", "inf")
    return "".join(filter(str.isalnum, spelled))


def canonical(name: str, names: Iterable[str], also: Mapping[str, str] | None = None) -> str:
    """Return the one of the known names that a text spells, such as `qknorm-ln` for `QKNorm_LN`; otherwise the text
    as it is, for a message. also: further names, in the form of `plain`, and the known ones that they stand for.
    """
    names = tuple(names)
    if name in names:
        return name
    spelled = plain(name)
    alike = dict.fromkeys(each for each in names if plain(each) == spelled)
    if len(alike) == 1:
        return next(iter(alike))
    return also[spelled] if also and not alike and also.get(spelled) in names else name


def norm_name(norm: object) -> str:
    """Return a norm as it is called here: `linf` for `Linf`, `inf` or an infinite number, `l2` for `L2` or 2."""
    text = f"{norm:g}" if isinstance(norm, int | float) else str(norm)
    return canonical(text, dict.fromkeys(NORMS.values()), NORMS)


def nothing(asked: object, option: str = "") -> bool:
    """Whether a list of names asks for nothing by the one word `none`. ProtocolError for others next to it. option:
    that the list was given by.
    """
    parts = asked.split(",") if isinstance(asked, str) else asked if isinstance(asked, tuple | list) else ()
    names = [str(part).strip().lower() for part in parts]
    if NONE in names and len(names) > 1:
        text = ",".join(map(str, parts))
        where = f"--{option.replace('_', '-')} " if option else ""
        raise ProtocolError(f"{where}{text}: none cannot be combined with others; leave out none, or the others")
    return names == [NONE]


IN_MEMORY = "memory:"
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
        return _HELD.get()[spec.removeprefix(IN_MEMORY)]
    except KeyError:
        why = "it is in the memory of the program that started the run, not of this process"
        raise ModelError(f"{spec}: {why}; call robustkit from there, without ray or torchrun") from None
