"""The worst case for the mIoU of a whole data set: of each image, the run of an attack that lowers it most.

An attack that makes several runs (SEA) keeps of each image the point by which fewest of its own pixels are right. The
mIoU is no mean over images, so another choice may lower it further: Croce, Singh and Hein (2024, arXiv:2306.12941)
choose image after image, and go on until nothing changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from ...evaluations.rows import FEWEST, Row
from .columns import BY_RUN
from .counts import NO_INTERVAL, Counts, mean_known

if TYPE_CHECKING:
    import pyarrow as pa


def of_runs(column: str) -> bool:
    """Whether a column of records is about a run of an attack: `predicted js`."""
    return column.partition(" ")[0] in BY_RUN and " " in column


def counts_of_runs(table: pa.Table) -> list[Counts]:
    """Return the counts at the worst point of each run of an attack; none where it makes no several runs."""
    runs = [name.partition(" ")[2] for name in table.column_names if name.startswith(f"{BY_RUN[0]} ")]
    tables = []
    for run in runs:
        ours = table.drop_columns(list(BY_RUN))
        tables.append(ours.rename_columns([_whole(name, run) for name in ours.column_names]))
    return [Counts.of(each, ()) for each in tables]


def worst_rows(condition: str, counts: Counts, runs: Sequence[Counts], notes: Sequence[str]) -> Iterator[Row]:
    """Yield condition, `miou_worst`, value, n, interval and flags; nothing where there are no runs.

    The interval is of resampled images, each with the run that was chosen on all of them.
    """
    n = len(counts.ids)
    if n and runs:
        worst = worst_case(counts, runs)
        bounds = worst.intervals[0] if n >= FEWEST else NO_INTERVAL
        yield condition, "miou_worst", float(worst.values[0]), n, *bounds, [*counts.flags, *notes]


def worst_case(counts: Counts, runs: Sequence[Counts]) -> Counts:
    """Return the counts of each image at the point, of its record's and of those of all runs, that was chosen.

    It begins with the record's points, so it is never above their mIoU. Then it goes through the images in the order of
    their ids, takes of each the point with which the mIoU of all is lowest, the first of those that are alike, and
    starts again until a whole round has changed nothing. That need not be the lowest of all choices, of which there are
    too many to try. counts, runs: of the same images, (n, K).
    """
    every = [counts, *runs]
    hits = np.stack([each.intersections for each in every]).astype(np.int64)
    unions = np.stack([each.predicted for each in every]) + counts.labelled.astype(np.int64) - hits
    images = np.arange(len(counts.ids))
    chosen = np.zeros(len(images), dtype=np.int64)
    both, either = hits[0].sum(axis=0), unions[0].sum(axis=0)
    changed = True
    while changed:
        changed = False
        for image in images:
            now = chosen[image]
            hit = both - hits[now, image] + hits[:, image]
            union = either - unions[now, image] + unions[:, image]
            with np.errstate(invalid="ignore", divide="ignore"):
                figures = mean_known(hit / union)
            best = int(np.argmin(np.where(np.isnan(figures), np.inf, figures)))
            if figures[best] < figures[now]:
                chosen[image], both, either, changed = best, hit[best], union[best], True
    predicted = np.stack([each.predicted for each in every])
    return replace(
        counts,
        intersections=hits[chosen, images].astype(np.int32),
        predicted=predicted[chosen, images],
    )


def _whole(name: str, run: str) -> str:
    """Return the name of the column that a run's column stands for; any other as it is."""
    column, _, of = name.partition(" ")
    return column if of == run and column in BY_RUN else name
