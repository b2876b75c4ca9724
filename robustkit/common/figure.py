"""A figure: a number with its 95 % interval, and what it is of. Families and tasks make figures from records."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec

from .finding import Finding, PlainFinding

FEWEST = 10  # fewer samples have no interval
INCOMPLETE = "run/incomplete"
WILSON, BOOTSTRAP, STUDENT, NORMAL = "Wilson score", "bootstrap", "Student's t", "normal approximation"
ORDER, INVERTED, PAIRED_SCORE = "order statistics", "inverted tests", "score interval of paired outcomes"
CLUSTERED = "cluster-robust"
COLUMNS = ("checkpoint", "condition", "metric", "value", "n", "ci_low", "ci_high", "protocol", "flags", "interval")
"""The columns of summary.csv and the keys of a row of summary.json."""
OF_GROUPS = ("groups", "design_effect")
"""Those that figures of grouped samples have, too."""


@dataclass(frozen=True)
class Figure:
    value: float
    """nan where it is not finite."""
    n: int
    """Samples that it is of."""
    low: float = math.nan
    """The lower end of the 95 % interval; nan where there is none, as of fewer than `FEWEST` samples."""
    high: float = math.nan
    interval: str = ""
    """How the interval was computed, such as `Wilson score`; empty where there is none."""
    checkpoint: str = ""
    condition: str = ""
    metric: str = ""
    protocol: str = ""
    """The tag of the protocol card."""
    findings: tuple[Finding, ...] = ()
    groups: int = 0
    """Groups that its samples are in, such as videos; 0 where each sample is taken to be independent."""
    effect: float = math.nan
    """The design effect: how many times its variance is that of independent samples; nan where it is not known."""

    def __post_init__(self) -> None:
        for name in ("value", "low", "high", "effect"):  # as read again from summary.json, which has no infinity
            if not math.isfinite(getattr(self, name)):
                object.__setattr__(self, name, math.nan)
        if math.isnan(self.low) and math.isnan(self.high):
            object.__setattr__(self, "interval", "")

    @property
    def key(self) -> tuple[str, str]:
        return self.condition, self.metric

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.value)

    @property
    def has_interval(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)

    @property
    def is_whole(self) -> bool:
        """Whether no record of it is missing."""
        return not any(finding.code == INCOMPLETE for finding in self.findings)

    @property
    def complement(self) -> Figure:
        """1 minus the figure: the accuracy of an error."""
        return replace(self, value=1 - self.value, low=1 - self.high, high=1 - self.low)

    def of(self, condition: str, metric: str, findings: Collection[Finding] = ()) -> Figure:
        """Return it as the figure of a metric under a condition."""
        return replace(self, condition=condition, metric=metric, findings=tuple(findings))

    def having(self, findings: Collection[Finding]) -> Figure:
        """Return it with more findings."""
        return replace(self, findings=(*self.findings, *findings)) if findings else self

    def named(self, metric: str) -> Figure:
        return replace(self, metric=metric)

    def to_plain(self) -> dict[str, Any]:
        """Return the row of summary.json, under `COLUMNS`; None for what is not finite."""
        value, low, high = (each if math.isfinite(each) else None for each in (self.value, self.low, self.high))
        ends = value, self.n, low, high
        row = (
            self.checkpoint,
            self.condition,
            self.metric,
            *ends,
            self.protocol,
            [finding.to_plain() for finding in self.findings],
            self.interval,
        )
        effect = self.effect if math.isfinite(self.effect) else None
        of_groups = dict(zip(OF_GROUPS, (self.groups, effect), strict=True)) if self.groups else {}
        return dict(zip(COLUMNS, row, strict=True)) | of_groups

    @classmethod
    def from_plain(cls, row: Any) -> Figure:
        """Return the figure of a row of summary.json. Raises msgspec.ValidationError for any other."""
        plain = msgspec.convert(row, _Row)
        value, low, high = (math.nan if end is None else end for end in (plain.value, plain.ci_low, plain.ci_high))
        of = plain.interval, plain.checkpoint, plain.condition, plain.metric, plain.protocol
        findings = tuple(each.finding for each in plain.flags)
        effect = math.nan if plain.design_effect is None else plain.design_effect
        return cls(value, plain.n, low, high, *of, findings, plain.groups, effect)


class _Row(msgspec.Struct):
    """A row of summary.json. That of someone else may hold anything."""

    checkpoint: str
    condition: str
    metric: str
    value: float | None
    n: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)]
    ci_low: float | None
    ci_high: float | None
    flags: tuple[PlainFinding, ...]
    protocol: str = ""
    interval: str = ""
    groups: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] = 0
    design_effect: float | None = None
