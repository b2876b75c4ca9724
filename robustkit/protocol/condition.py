"""A condition: what is done to the images before the model sees them. Its text, parameters, pattern.

`clean`, `pgd(eps=1/255,steps=20)`, `corruption(fog,severity=3)`, `cam(agcam)`, `attention(clean)`: each family of
evaluations parses its own.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..errors import ProtocolError, unknown
from .card import format_number, parse_number

_FORM = re.compile(r"\s*([A-Za-z][\w-]*)\s*(?:\((.*)\))?\s*", re.DOTALL)


def split_condition(text: str) -> tuple[str, str | None]:
    """Return a condition's name, in lower case, and what its brackets hold; None without. Or ProtocolError."""
    form = _FORM.fullmatch(text)
    if not form:
        expected = "a name or name(key=value,...), such as pgd(eps=1/255,steps=20)"
        raise ProtocolError(f"condition {text!r}: expected {expected}")
    return form[1].lower(), form[2]


def split_list(text: str | Iterable[str]) -> list[str]:
    """Return the items of a list, stripped, without empty ones. Commas inside brackets separate nothing."""
    if not isinstance(text, str):
        return [part.strip() for part in text if part.strip()]
    parts, depth = [""], 0
    for character in text:
        depth = max(0, depth + (character == "(") - (character == ")"))
        if character == "," and not depth:
            parts.append("")
        else:
            parts[-1] += character
    return split_list(parts)


def split_arguments(name: str, text: str | None, defaults: Mapping[str, Value]) -> dict[str, str]:
    """Return the key=value pairs in a condition's brackets. ProtocolError for other forms, and a key given twice."""
    arguments: dict[str, str] = {}
    for item in filter(None, map(str.strip, (text or "").split(","))):
        key, equals, value = (part.strip() for part in item.partition("="))
        if not equals:
            raise ProtocolError(f"{name}: {item!r} is not key=value; parameters: {', '.join(defaults)}")
        if key in arguments:
            raise ProtocolError(f"{name}: {key} is given twice; expected it once")
        arguments[key] = value
    return arguments


def parse_value(name: str, key: str, text: str, defaults: Mapping[str, Value]) -> Value:
    """Return a text as a value of the type of `known[key]`. ProtocolError for no such key or another type."""
    if key not in defaults:
        raise ProtocolError(unknown(f"parameter of {name}", key, defaults))
    usual, what = defaults[key], f"{name}: {key}"
    if isinstance(usual, bool):
        if text.lower() not in ("true", "false"):
            raise ProtocolError(f"{what} {text!r}: expected true or false, such as {key}={format_value(usual)}")
        return text.lower() == "true"
    if isinstance(usual, int):
        expected = f"a whole number, such as {key}={usual or 100}"  # 0 stands for all samples
        value = parse_number(text, what, expected)
        if value.denominator != 1:
            raise ProtocolError(f"{what} {text!r}: expected {expected}")
        return int(value)
    if isinstance(usual, Fraction | float):
        value = parse_number(text, what, f"a number, such as {key}={format_value(usual)}")
        return value if isinstance(usual, Fraction) else float(value)
    return text


def parse_parameters(text: str, defaults: Mapping[str, Value]) -> tuple[str, dict[str, Value]]:
    """Return a condition's name and all parameters, in the order of `defaults`. Or ProtocolError."""
    name, inside = split_condition(text)
    arguments = split_arguments(name, inside, defaults)
    return name, {**defaults, **{key: parse_value(name, key, value, defaults) for key, value in arguments.items()}}


def format_value(value: Value) -> str:
    if isinstance(value, Fraction):
        return format_number(value)
    if isinstance(value, float):
        return repr(value).removesuffix(".0")
    return str(value).lower() if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class ConditionPattern:
    """The conditions that have every parameter given here. what: the corruption or the map; empty for others."""

    text: str
    name: str
    what: str = ""
    parameters: tuple[tuple[str, str], ...] = ()

    @property
    def given(self) -> dict[str, str]:
        return dict(self.parameters)

    @property
    def pairs(self) -> list[str]:
        return [f"{key}={value}" for key, value in self.parameters]


ON = "on"  # The parameter that says on how many samples a condition is evaluated, drawn at random
_ON = re.compile(rf"[(,]{ON}=(\d+)[,)]")
Value = bool | int | float | str | Fraction


def samples_named(text: str) -> int:
    """Return on how many samples a condition, and what names it, is evaluated, by its text; 0 for all."""
    match = _ON.search(text.partition(",from=")[0] + ")")
    return int(match[1]) if match else 0


@dataclass(frozen=True)
class Condition:
    """One way to treat the images. `parameters` are all of an attack's, card and options resolved; `text` names it.

    payload: what the condition's family parsed from the text, for the family alone. under: the condition whose images a
    map is compared on, on whose images attention is watched, around whose images an attack looks, or the attack whose
    adversarial images are passed on. group: the text of the conditions counted and shown together, such as all
    severities of a corruption; empty if there are no others. level: its place in the group, such as its severity.
    released: whether the images come already corrupted, from other files. draws: the text that its random draws depend
    on, if not its own. needs_truth: whether it is scored against the place of a sample's object. source: the checkpoint
    that the adversarial images of `under` were found for, where that is not the one that is evaluated. after: the
    condition whose records, of all samples, tell which of them this one takes; most: at most so many of them.
    whole_shard: whether its family makes its own batches from a whole shard.
    """

    name: str
    text: str
    parameters: tuple[tuple[str, Value], ...] = ()
    payload: Hashable = None
    under: Condition | None = None
    group: str = ""
    level: int = 0
    released: bool = False
    draws: str = ""
    needs_truth: bool = False
    source: str = ""
    after: Condition | None = None
    most: int = 0
    whole_shard: bool = False

    @property
    def waits(self) -> bool:
        return bool(self.source) or self.after is not None

    @property
    def eps(self) -> float | None:
        """The radius that an attack claims, in the units of its card's space; None where nothing is claimed."""
        eps = dict(self.parameters).get("eps")
        return None if eps is None else float(eps)

    @property
    def on(self) -> int:
        return samples_named(self.text)

    @property
    def norm(self) -> str:
        return str(dict(self.parameters).get("norm", "linf"))

    @property
    def engine(self) -> str:
        return str(dict(self.parameters).get("engine", "robustkit"))

    @property
    def early_stop(self) -> bool:
        """Whether samples leave at their first wrong prediction, so that their losses mean nothing."""
        return bool(dict(self.parameters).get("early_stop", False))

    @property
    def claim(self) -> dict[str, Any]:
        """The claim that the records of an attack are checked against, as in run.json; empty for other conditions."""
        return {} if self.eps is None else {"norm": self.norm, "eps": self.eps, "early_stop": self.early_stop}


CLEAN = Condition("clean", "clean")
