"""Scenes in groups, such as frames of a drive: whole groups are resampled, and every figure says so."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scene_records import by_key, draws, random_rows, slow, table
from scipy import stats

from robustkit.common.figure import STUDENT
from robustkit.common.groups import Groups
from robustkit.evaluations.records import CheckpointRecords
from robustkit.runs.metadata import SampleGroups
from robustkit.tasks.segmentation.counts import METRICS, Counts
from robustkit.tasks.segmentation.results import (
    recorded_difference,
    scene_difference,
    scene_mean_rows,
    scene_rows,
    worst_rows,
)

N, DRIVES = 24, 12
DRIVE = np.array([place % DRIVES for place in range(N)])
IDS = [f"{place:03}" for place in range(N)]


def grouped(codes: np.ndarray = DRIVE) -> SampleGroups:
    return SampleGroups("drive", pa.array(IDS), codes.astype(np.int64))


def drawn_images() -> list[list[int]]:
    """The images of each resample: all of each drawn drive."""
    return [[image for drive in drives for image in np.flatnonzero(drive == DRIVE)] for drives in draws(DRIVES)]


def test_figures_are_of_resampled_groups() -> None:
    rows = random_rows(3, N, 4)
    counts = Counts.of(table(rows), (), grouped())
    figures = {row.metric: row for row in scene_rows("clean", counts, "0123")}
    every = [slow(rows, drawn) for drawn in drawn_images()]
    alone = [slow(rows, drawn) for drawn in draws(N)]
    tail = 100 * stats.norm.cdf(math.sqrt(DRIVES / (DRIVES - 1)) * stats.t.ppf(0.025, DRIVES - 1))
    for metric in METRICS:
        low, high = np.percentile([each[metric] for each in every], [tail, 100 - tail])
        figure = figures[metric]
        assert (figure.low, figure.high) == pytest.approx((low, high)) and (figure.n, figure.groups) == (N, DRIVES)
        spreads = [np.var([each[metric] for each in some]) for some in (every, alone)]
        assert figure.effect == pytest.approx(spreads[0] / spreads[1])
    assert figures["iou(0)"].groups == DRIVES
    plain = {row.metric: row for row in scene_rows("clean", Counts.of(table(rows), ()), "0123")}
    assert plain["miou"].groups == 0 and plain["miou"].value == figures["miou"].value
    (worst,) = worst_rows("pgd", counts, [Counts.of(table(random_rows(4, N, 4)), (), grouped())], "0123")
    assert worst.groups == DRIVES and worst.low < worst.value < worst.high
    fog = [f"corruption(fog,severity={severity})" for severity in (1, 2, 3, 4, 5)]
    means = scene_mean_rows(dict.fromkeys(["clean", *fog], counts), N, "0123")
    assert {row.groups for row in means if row.metric in (*METRICS, "retention")} == {DRIVES}


def test_few_groups_have_no_interval_and_groups_of_one_change_nothing() -> None:
    rows = random_rows(3, N, 4)
    few = next(iter(scene_rows("clean", Counts.of(table(rows), (), grouped(DRIVE % 9)), "0123")))
    assert few.groups == 9 and not few.has_interval
    alone = Counts.of(table(rows), (), grouped(np.arange(N)))
    plain = Counts.of(table(rows), ())
    assert by_key(scene_rows("clean", alone, "0123")) == by_key(scene_rows("clean", plain, "0123"))
    assert np.isnan(alone.effects).all() and alone.units == N


def test_a_difference_is_of_resampled_groups() -> None:
    sides = [random_rows(seed, N, 4) for seed in (1, 2)]
    gaps = [slow(sides[1], drawn)["miou"] - slow(sides[0], drawn)["miou"] for drawn in [range(N), *drawn_images()]]
    first, second = ([(1.0, Counts.of(table(rows), (), grouped()))] for rows in sides)
    groups = Groups.numbered(DRIVE)
    gap = scene_difference(first, second, "miou", groups)
    error = np.std(gaps[1:], ddof=1)
    assert (gap.value, gap.n, gap.test) == (pytest.approx(gaps[0]), N, STUDENT)
    assert (gap.ci_low, gap.ci_high) == pytest.approx(stats.t.interval(0.95, DRIVES - 1, gaps[0], error))
    assert gap.p_value == pytest.approx(2 * stats.t.sf(abs(gaps[0]) / error, DRIVES - 1))
    few = Groups.numbered(DRIVE % 9)
    assert math.isnan(scene_difference(first, second, "miou", few).p_value)


class Recorded:
    """Stands for a run of one checkpoint, whose images are in groups or not."""

    path, grouping = Path("somewhere"), None

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows

    def table(self, checkpoint: str, condition: str, columns: list[str]) -> pa.Table:
        return table(self.rows).select(columns)


def side(seed: int, groups: SampleGroups | None) -> CheckpointRecords:
    records = CheckpointRecords(Recorded(random_rows(seed, N, 4)), "net")  # type: ignore[arg-type]
    records.__dict__["sample_groups"] = groups
    return records


def test_both_sides_are_resampled_alike_and_each_pair_by_its_own_groups() -> None:
    first, other, alone = side(1, None), side(2, grouped()), side(3, None)
    rows = [random_rows(seed, N, 4) for seed in (1, 2, 3)]
    of_groups = [[(1.0, Counts.of(table(each), (), grouped()))] for each in rows]
    of_images = [[(1.0, Counts.of(table(each), ()))] for each in rows]
    groups = Groups.numbered(DRIVE)
    for _ in range(2):  # what is kept of a side for one pair is not used for another
        assert recorded_difference(first, other, "clean", "miou") == scene_difference(*of_groups[:2], "miou", groups)
        assert recorded_difference(other, first, "clean", "miou").test == STUDENT
        expected = scene_difference(of_images[0], of_images[2], "miou")
        assert recorded_difference(first, alone, "clean", "miou") == expected
