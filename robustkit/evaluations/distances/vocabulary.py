"""The words of attacks that look for the smallest change: `fmn(steps=100)`, `ddn(steps=100,norm=l2)`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import ClassVar

from ...protocol.condition import CLEAN, ConditionPattern, Value
from ..vocabulary import Vocabulary
from .measures import CORRELATION, METRICS, TERMS

WATCHED = f"attention({CLEAN.text})"
"""The condition whose records have softmax slopes on clean images."""


class DistanceWords(Vocabulary):
    """Attacks whose result is a distance, so that their texts name no radius."""

    parameters: ClassVar[Mapping[str, Value]] = {
        "steps": 100,
        "alpha": 1.0,
        "gamma": 0.05,
        "norm": "linf",
        "engine": "robustkit",
    }
    defaults: ClassVar[Mapping[str, str]] = {"norm": "linf", "engine": "robustkit"}
    metrics = METRICS
    terms = TERMS

    def distance_norm(self, text: str) -> str:
        return norm_of(text)

    def is_fixed(self, name: str) -> bool:
        return name.startswith(("fmn(", "ddn("))

    def label(self, text: str) -> str:
        name, given = parts(text)
        words = [name.upper() + (f"-{given['steps']}" if "steps" in given else ""), norm_of(text)]
        return " ".join(words + [f"{key} {value}" for key, value in given.items() if key not in ("steps", "norm")])

    def needs(self, text: str, metric: str, conditions: Iterable[str]) -> list[str]:
        return [text, *([WATCHED] if metric.startswith(CORRELATION.name) else [])]

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        yield from ("--attacks", pattern.text)


def parts(text: str) -> tuple[str, dict[str, str]]:
    """Return the name of an attack and the parameters that its text names."""
    name, _, inside = text.partition("(")
    return name, dict(item.split("=", 1) for item in inside.rstrip(")").split(",") if "=" in item)


def norm_of(text: str) -> str:
    """Return the norm in which an attack measures."""
    return parts(text)[1].get("norm", "linf")


VOCABULARY = DistanceWords()
