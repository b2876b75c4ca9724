"""Predictions that changed from one checkpoint to another on the same samples: what an update breaks.

A negative flip is right before and wrong now (Yan et al., CVPR 2021), a positive flip the reverse. Churn is the share
of samples whose predicted class is another one, right or wrong. Under an attack each checkpoint has images of its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...common.differences import Difference
from ...common.figure import Figure
from ...common.groups import Groups, chosen_groups
from ...common.intervals import Floats, share_of
from ...display.format import counted, figure_cell
from ...display.table import Table
from ...errors import DamagedRecord, RunError
from ...evaluations.condition import name_of, results_and_singles
from ...evaluations.metrics import Metric
from ...evaluations.records import CheckpointRecords, common_groups, common_ids

Bools = NDArray[np.bool_]


_MEANINGS = (
    "Of two checkpoints, the share of {many} that the first predicts right and the second wrong.",
    "Of two checkpoints, the share of {many} that the first predicts wrong and the second right.",
    "The share of {many} that two checkpoints predict to be of different classes, right or wrong.",
)


class Kind(NamedTuple):
    """A way in which samples change. metric: their share. changed: (n,) which do, from which are right and what each is
    predicted to be, (n,) before and now."""

    metric: Metric
    changed: Callable[[list[Bools], list[Floats]], Bools]


def _share(name: str, better: int, meaning: str) -> Metric:
    return Metric(name, f"{name} %", 100, better, share=True, of_pairs=True, meaning=meaning)


KINDS = {
    "negative": Kind(_share("negative flips", -1, _MEANINGS[0]), lambda right, predicted: right[0] & ~right[1]),
    "positive": Kind(_share("positive flips", 1, _MEANINGS[1]), lambda right, predicted: ~right[0] & right[1]),
    "churn": Kind(_share("churn", -1, _MEANINGS[2]), lambda right, predicted: predicted[0] != predicted[1]),
}
METRICS = tuple(kind.metric for kind in KINDS.values())
_LISTED = "negative"
_ROWS = 20  # flipped samples of a condition that a page lists
NOTE = (
    "Negative flip: right before, wrong now. Positive flip: the reverse. Churn: another predicted class. Shares of the "
    "samples that both have, with 95 % intervals."
)


@dataclass(frozen=True)
class Flipped:
    """Samples that changed, and their share."""

    ids: tuple[str, ...]
    share: Figure


@dataclass(frozen=True)
class Flips:
    """Of n samples of a pair under one condition. kinds: what changed, by name. before, now: the predicted classes of
    the samples that changed, by id."""

    condition: str
    n: int
    kinds: dict[str, Flipped]
    before: dict[str, int]
    now: dict[str, int]

    def to_dict(self) -> dict[str, Any]:
        """Return shares with their intervals and samples, as JSON has them."""
        shares = {
            kind: {"value": each.share.value, "ci_low": each.share.low, "ci_high": each.share.high, "ids": [*each.ids]}
            for kind, each in self.kinds.items()
        }
        return {"condition": self.condition, "n": self.n, **shares}


def flips_of(first: CheckpointRecords, second: CheckpointRecords, condition: str) -> Flips:
    """Return what changed from the first to the second. Raises RunError where records hold no predictions of labelled
    samples, or no sample is common."""
    read = [side.samples(condition, ("correct", "prediction")) for side in (first, second)]
    ids = common_ids([each.ids for each in read])
    right, predicted = ([each.of(name, ids) for each in read] for name in ("correct", "prediction"))
    labelled = np.isfinite(right[0]) & np.isfinite(right[1])
    if not labelled.any():
        raise RunError(f"no labelled sample is common under {condition}; expected the same labelled data")
    names = np.array(ids.to_pylist(), dtype=object)[labelled]
    right, predicted = ([column[labelled] for column in each] for each in (right, predicted))
    groups = common_groups(first, second, ids)
    kinds = _kinds(names, [each == 1 for each in right], predicted, chosen_groups(groups, labelled))
    differing = (predicted[0] != predicted[1]) | (right[0] != right[1])
    each = (dict(zip(names[differing], part[differing].tolist(), strict=True)) for part in predicted)
    before, now = ({name: int(place) for name, place in part.items() if math.isfinite(place)} for part in each)
    return Flips(condition, len(names), kinds, before, now)


def _kinds(names: Any, right: list[Bools], predicted: list[Floats], groups: Groups | None) -> dict[str, Flipped]:
    changed = {name: kind.changed(right, predicted) for name, kind in KINDS.items()}
    return {name: Flipped(tuple(names[which]), share_of(which, groups)) for name, which in changed.items()}


def flip_difference(
    first: CheckpointRecords, second: CheckpointRecords, condition: str, metric: str
) -> Difference | None:
    """Return the share of a metric of `METRICS` with its interval, without a test; None of another metric. Raises
    RunError as `flips_of`."""
    kind = next((name for name, each in KINDS.items() if each.metric.name == metric), None)
    if kind is None:
        return None
    share = flips_of(first, second, condition).kinds[kind].share
    return Difference(share.value, share.n, share.low, share.high, math.nan, groups=share.groups)


def flipping(first: CheckpointRecords, second: CheckpointRecords) -> tuple[list[str], list[str]]:
    """Return the conditions of the table of results that both have, and the single corruptions, where these are few."""
    return results_and_singles(condition for condition in first.conditions if condition in second.conditions)


def flips_under(first: CheckpointRecords, second: CheckpointRecords, conditions: Iterable[str]) -> Iterator[Flips]:
    """Yield the flips of a pair under these conditions; nothing of a task without predictions of labelled samples."""
    for condition in conditions:
        try:
            yield flips_of(first, second, condition)
        except DamagedRecord:
            raise
        except RunError:
            continue


def flip_table(second: CheckpointRecords, names: tuple[str, str], flips: Sequence[Flips]) -> Table:
    rows = [
        (
            name_of(each.condition, "table", second.manifest),
            counted(each.kinds[_LISTED].share),
            *(figure_cell(kind.share) for kind in each.kinds.values()),
        )
        for each in flips
    ]
    title = f"{names[1]} against {names[0]}: predictions that changed"
    headings = ("condition", "n", *(f"{kind} % [95 %]" for kind in KINDS))
    return Table(title, headings, tuple(rows), (), NOTE, names[1])


def flipped_grid(second: CheckpointRecords, flips: Sequence[Flips]) -> Table | None:
    """Return the first samples with a negative flip, with both predictions; None without any."""
    named = second.described.class_names or second.manifest.data.class_names

    def called(place: int | None) -> str:
        return "–" if place is None else named[place] if 0 <= place < len(named) else str(place)

    rows = [
        (
            name_of(each.condition, "table", second.manifest),
            sample,
            called(each.before.get(sample)),
            called(each.now.get(sample)),
        )
        for each in flips
        for sample in each.kinds[_LISTED].ids[:_ROWS]
    ]
    if not rows:
        return None
    note = f"At most {_ROWS} samples of each condition."
    headings = ("condition", "sample", "before (right)", "now (wrong)")
    return Table(f"Negative flips of {second.checkpoint}", headings, tuple(rows), note=note, keys=2, folded=True)
