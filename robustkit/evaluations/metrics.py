"""Everything about a number that results may have, in one place: its name, unit, direction, and what its words mean."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ..common.figure import Figure
from ..common.files import parse_toml
from ..display.format import Cell, figure_cell, number, percent
from ..errors import ProtocolError


class Term(NamedTuple):
    """A word that pages explain. definition: sentences. also: other words for it that pages show."""

    name: str
    definition: str
    also: tuple[str, ...] = ()


@cache
def terms_next_to(module: str) -> tuple[Term, ...]:
    """Return the terms in the TOML file next to a module of robustkit, with its name, or of a package `condition.toml`
    (a family's) or `task.toml`; none where there is no file."""
    if not module.startswith("robustkit."):
        return ()
    path = Path(str(sys.modules[module].__file__))
    names = ("condition.toml", "task.toml") if path.stem == "__init__" else (f"{path.stem}.toml",)
    places = (place for name in names if (place := path.with_name(name)).is_file())
    table = next((parse_toml(place.read_text("utf-8"), str(place), ProtocolError) for place in places), {})
    return tuple(Term(name, each["definition"], tuple(each.get("also", ()))) for name, each in table.items())


def terms_of(owner: Any) -> Iterator[Term]:
    """Yield the terms of a task or a vocabulary: its own, and those next to the modules of its classes."""
    yield from getattr(owner, "terms", ())
    yield from (Term(metric.word, metric.meaning) for metric in owner.metrics if metric.meaning)
    for kind in reversed(type(owner).__mro__):
        yield from terms_next_to(kind.__module__)


ESTIMATED = "estimated_"
"""How the metric of a figure begins that estimates the headline of an attack which was not carried out as a whole."""


@dataclass(frozen=True)
class Metric:
    """A number of the results.

    name: in summary.json and in rules. label: for people, with its unit. scale: the factor of the value under that
    label. better: 1 where higher is better, -1 where less is, 0 where neither is. paired: a mean over samples, or of
    segmentation, so that two runs can be paired by sample. binary: each sample is right or wrong, hence Wilson's
    interval. share: between 0 and 1, so that n samples bound how sure it can be. under: the condition that a rule means
    where it names none. parametric: the name continues with a parameter, such as a class. drafted: a drafted policy has
    a rule on it. hub: its type and its name in the metadata of a model card; None where it has none. noun: what a
    sentence calls it, where that is not the label. narrowed_by: what makes its interval narrower, where that is not
    samples alone, so that their number is unknown. by_rank: figures of the same samples are compared by the
    ranks of their differences, not by their means. least, most: what no value is below, or above; those of shares are
    0 and 1. also: what else people call it. short: what the heading of a column calls it, where that is not the label.
    bare: whether a column leaves its interval out. of_pairs: a share of the samples of two checkpoints, which neither
    has alone; rules take it against the baseline. complement: the label of 1 minus the value, which people read in its
    place (`shown`, of which is_complement is true). meaning: sentences for the glossary, where no term has them.
    """

    name: str
    label: str = ""
    scale: float = 1.0
    better: int = 0
    paired: bool = False
    binary: bool = False
    share: bool = False
    under: str = ""
    parametric: bool = False
    drafted: bool = False
    hub: tuple[str, str] | None = None
    noun: str = ""
    narrowed_by: str = ""
    by_rank: bool = False
    least: float = -math.inf
    most: float = math.inf
    also: tuple[str, ...] = ()
    short: str = ""
    bare: bool = False
    of_pairs: bool = False
    complement: str = ""
    is_complement: bool = False
    meaning: str = ""

    @property
    def ends(self) -> tuple[float, float]:
        """What no value is below, and what none is above; infinite where nothing bounds it."""
        bounded = self.share or self.binary
        return max(self.least, 0.0) if bounded else self.least, min(self.most, 1.0) if bounded else self.most

    @property
    def difference_ends(self) -> tuple[float, float]:
        """The same of a difference of two values."""
        reach = self.ends[1] - self.ends[0]
        return -reach, reach

    @property
    def shown(self) -> Metric:
        """What pages and tables show: the metric itself, or in place of an error its complement, an accuracy."""
        if not self.complement:
            return self
        better, noun = -self.better, "accuracy"
        return replace(
            self, label=self.complement, better=better, noun=noun, short="", complement="", is_complement=True
        )

    @property
    def heading(self) -> str:
        """The label, and which way is better."""
        return self.label + {1: ", higher is better", -1: ", lower is better"}.get(self.better, "")

    def as_text(self, value: float) -> str:
        """Return a value for a sentence: `93.3 %`, or `434.7` where it is not in percent."""
        return percent(value) if self.scale == 100 else number(self.scale * value, 1)

    @property
    def column(self) -> str:
        """The heading of its column in a table."""
        return f"{self.short or self.label}{'' if self.bare else ' [95 %]'}"

    def cell(self, row: Figure | None) -> Cell:
        """Return the cell of that column: `93.3 [84.1, 97.4]`; of what is not in percent with three decimals."""
        row = row.complement if row is not None and self.is_complement else row
        return figure_cell(row, self.scale, not self.bare, sign="+" if scored_by(self.name) else "")

    @property
    def word(self) -> str:
        """The label without a unit."""
        return re.sub(r",? %|, points$", "", self.label)


_LEAD = "_over_control"


def lead_over_control(score: Metric) -> Metric:
    """Return the metric of the lead of a map's score over the best control: a larger one is better, whichever way the
    score itself is."""
    (low, high), better = score.difference_ends, abs(score.better)
    plain = replace(score, better=better, paired=False, share=False, drafted=False, also=(), least=low, most=high)
    return replace(plain, name=score.name + _LEAD, label=f"lead in {score.label}")


def scored_by(name: str) -> str:
    """Return the score that a lead over the best control is in; empty for another metric."""
    return name.removesuffix(_LEAD) if name.endswith(_LEAD) else ""


def of_samples(name: str, label: str, drafted: bool = False, hub: tuple[str, str] | None = None) -> Metric:
    """Return a metric for which each sample is right or wrong, in percent."""
    return Metric(name, label, 100, 1, paired=True, binary=True, drafted=drafted, hub=hub)


def mean_share(
    name: str, label: str = "", better: int = 1, drafted: bool = False, hub: tuple[str, str] | None = None
) -> Metric:
    """Return a metric that is a mean over samples of shares between 0 and 1, in percent."""
    return Metric(name, label, 100, better, paired=True, share=True, drafted=drafted, hub=hub)


def metric_named(metrics: Iterable[Metric], name: str) -> Metric | None:
    """Return the metric of this name, also of a parametric one such as `iou(CLASS)`; None where there is none."""
    for metric in metrics:
        if metric.name == name and not metric.parametric:
            return metric
        if metric.parametric and name.startswith(metric.name) and name != f"{metric.name})":
            parameter = name.removeprefix(metric.name).removesuffix(")")
            return replace(metric, name=name, label=f"{metric.label} ({parameter})")
    return None


PREFIX = "supported_"
WEIGHT = Metric("support_weight(", "λ", parametric=True)


def supported_name(metric: Metric) -> Metric:
    label, percent = metric.label.removesuffix(" %"), " %" * metric.label.endswith(" %")
    called = f"{label}, supported{percent}"
    return Metric(PREFIX + metric.name, called, metric.scale, metric.better, share=metric.share)


def plain_name(metric: str) -> str:
    """Return the name of the metric that a supported figure is of; empty for other metrics."""
    return metric.removeprefix(PREFIX) if metric.startswith(PREFIX) else ""


def weight_of(name: str) -> tuple[str, str]:
    """Return the metric that a weight is of, and the supporting condition; empty for other numbers."""
    metric, _, by = name.removeprefix(WEIGHT.name).removesuffix(")").partition(" by ")
    return (metric, by) if name.startswith(WEIGHT.name) else ("", "")


Cells = Mapping[tuple[str, str], Figure]  # the rows of a checkpoint, by condition and metric


def by_checkpoint(
    rows: Iterable[Figure], name_of: Callable[[str], str | None]
) -> dict[str, dict[str, dict[str, Figure]]]:
    """Return rows of the summary by checkpoint, condition as `name_of` calls it, and metric; without those that it
    calls None.
    """
    figures: dict[str, dict[str, dict[str, Figure]]] = {}
    for row in rows:
        if (name := name_of(row.condition)) is not None:
            figures.setdefault(row.checkpoint, {}).setdefault(name, {})[row.metric] = row
    return figures


LEFT_OUT = "segmentation/class-left-out"  # of single conditions, which a mean over them repeats


def is_finite(value: float | None) -> bool:
    return value is not None and math.isfinite(value)


def is_whole(cells: Cells, condition: str, metric: str) -> bool:
    """Whether there is a figure, and no record of it is missing."""
    return (condition, metric) in cells and cells[condition, metric].is_whole


def finite_or_none(cells: Cells, condition: str, metric: str) -> float | None:
    """Return a value; None where there is none or it is not finite."""
    row = cells.get((condition, metric))
    return None if row is None or not row.is_finite else row.value
