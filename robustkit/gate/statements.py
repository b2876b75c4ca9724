"""What a rule can state: about a value, a change, flags, or the identity of what was measured."""

from __future__ import annotations

from dataclasses import dataclass

from ..protocol.pattern import ConditionPattern

OF_RUN = ("protocol", "data digest", "settings")
"""What all checkpoints of a run share."""
SUBJECTS = ("attention", "arch", "preprocessing", "heads", *OF_RUN, "checkpoint sha256")


@dataclass(frozen=True)
class Value:
    """A figure, or for `n` the number of samples, is on one side of a bound; `sure`: its whole 95 % interval is."""

    metric: str
    condition: ConditionPattern
    compare: str
    bound: float
    sure: bool = False


@dataclass(frozen=True)
class Change:
    """How much a figure may drop or rise against the baseline's.

    metric: empty for top1, or miou of segmenters. condition: None for all of the baseline. excepted: parts of the lines
    on how the set-ups of both may differ.
    """

    falls: bool
    metric: str
    condition: ConditionPattern | None
    compare: str
    bound: float
    sure: bool = False
    excepted: tuple[str, ...] = ()


@dataclass(frozen=True)
class NoFlags:
    """No flags, except those that contain one of these texts."""

    condition: ConditionPattern | None = None
    excepted: tuple[str, ...] = ()


@dataclass(frozen=True)
class Identity:
    """What run.json says about the subject."""

    subject: str
    expected: str


Statement = Value | Change | NoFlags | Identity
SLACK = 1e-12
"""The tolerance within which a figure equals a bound: sums of floats in another order differ."""


def quoted(text: str) -> str:
    """Return a text as rules quote it."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def always_meets(compare: str, bound: float, ends: tuple[float, float]) -> bool:
    """Whether every value between two ends, which may be infinite, is on the right side of a bound."""
    return meets(compare, bound, ends[0] if compare.startswith(">") else ends[1])


def meets(compare: str, bound: float, value: float) -> bool:
    """Whether a value is on the right side of a bound."""
    gap = value - bound if compare.startswith(">") else bound - value
    return gap > SLACK if compare in (">", "<") else gap >= -SLACK
