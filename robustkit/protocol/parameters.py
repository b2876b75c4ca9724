"""Parameters of a condition: `name(key=value,…)` into values of the right types, and back."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from ..errors import ProtocolError, unknown
from .card import format_number, number
from .condition import Value

_FORM = re.compile(r"\s*([A-Za-z][\w-]*)\s*(?:\((.*)\))?\s*", re.DOTALL)


def split_condition(text: str) -> tuple[str, str | None]:
    """Return a condition's name, in lower case, and what stands in its brackets; None without brackets.

    Raises:
        ProtocolError: it is neither a name nor name(key=value,...).
    """
    form = _FORM.fullmatch(text)
    if not form:
        raise ProtocolError(
            f"condition {text!r}: expected a name or name(key=value,...), such as pgd(eps=1/255,steps=20)"
        )
    return form[1].lower(), form[2]


def split_arguments(name: str, text: str | None, known: Mapping[str, Value]) -> dict[str, str]:
    """Return what stands in the brackets of a condition by key.

    Raises:
        ProtocolError: it is not key=value, or a key stands there twice.
    """
    given: dict[str, str] = {}
    for item in filter(None, map(str.strip, (text or "").split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise ProtocolError(f"{name}: {item!r} is not key=value; parameters: {', '.join(known)}")
        if key in given:
            raise ProtocolError(f"{name}: {key} is given twice; expected it once")
        given[key] = value
    return given


def typed(name: str, key: str, text: str, known: Mapping[str, Value]) -> Value:
    """Return a text as a value of the type that parameter `key` has in `known`.

    Raises:
        ProtocolError: there is no such parameter, or the value is of another type.
    """
    if key not in known:
        raise ProtocolError(unknown(f"parameter of {name}", key, known))
    usual, what = known[key], f"{name}: {key}"
    if isinstance(usual, bool):
        if text.lower() not in ("true", "false"):
            raise ProtocolError(f"{what} {text!r}: expected true or false, such as {key}={show(usual)}")
        return text.lower() == "true"
    if isinstance(usual, int):
        expected = f"a whole number, such as {key}={usual or 100}"  # 0 stands for all samples
        value = number(text, what, expected)
        if value.denominator != 1:
            raise ProtocolError(f"{what} {text!r}: expected {expected}")
        return int(value)
    if isinstance(usual, Fraction | float):
        value = number(text, what, f"a number, such as {key}={show(usual)}")
        return value if isinstance(usual, Fraction) else float(value)
    return text


def parse_parameters(text: str, known: Mapping[str, Value]) -> tuple[str, dict[str, Value]]:
    """Return a condition's name, and all its parameters in the order of `known`, which has the usual values.

    Raises:
        ProtocolError: the text is malformed, or has an unknown parameter, or a value of the wrong type.
    """
    name, inside = split_condition(text)
    given = split_arguments(name, inside, known)
    return name, {**known, **{key: typed(name, key, value, known) for key, value in given.items()}}


def show(value: Value) -> str:
    """Return a value as a condition's text has it."""
    if isinstance(value, Fraction):
        return format_number(value)
    return str(value).lower() if isinstance(value, bool) else repr(value) if isinstance(value, float) else str(value)
