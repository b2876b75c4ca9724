"""The rank correlation of softmax slopes and distances: scipy's values, ties, missing points, runs without slopes."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sealing import put, seal

import robustkit
from robustkit.errors import DamagedRecord
from robustkit.evaluations.aggregate import RecordReader, Results
from robustkit.evaluations.condition import words_of
from robustkit.evaluations.layers import Layer
from robustkit.report.run import Run
from robustkit.slices.distances.results import (
    DistancesPresenter,
    DistanceSummary,
    Slopes,
    by_chance,
    correlations,
    slopes_of,
    spearman,
)

stats = pytest.importorskip("scipy.stats")
pytestmark = pytest.mark.usefixtures("one_thread", "unexamined")
NAME, FMN, DDN, WATCHED = "shapes-vit-standard", "fmn(steps=5)", "ddn(norm=l2,steps=5)", "attention(clean)"
OPTIONS: dict[str, Any] = {
    "data_dir": "embedded:shapes",
    "attacks": "fmn(steps=5),ddn(steps=5)",
    "limit": 24,
    "batch_size": 24,
    "shard_size": 16,
    "browse": 0,
    "device": "cpu",
}


def slopes(means: Any, heads: Any = None, ids: Any = None) -> Slopes:
    means = np.asarray(means, float)
    heads = means[:, None] if heads is None else np.asarray(heads, float)
    layers = (Layer("a", 1, 9), *([Layer("b", heads.shape[1] - 1, 9)] if heads.shape[1] > 1 else []))
    return Slopes(list(map(str, range(len(means)))) if ids is None else ids, means, heads, layers)


def found(distances: Any, known: Slopes, ids: Any = None) -> dict[str, tuple[float, int, float, float]]:
    distances = np.asarray(distances, float)
    names = list(map(str, range(len(distances)))) if ids is None else ids
    return {e.metric: (e.value, e.n, e.low, e.high) for e in correlations(names, distances, known)}


def test_each_resample_is_scipy_s_on_its_copies_with_ties_and_endless_distances() -> None:
    draw = np.random.Generator(np.random.PCG64(3))
    x, y = draw.integers(0, 6, 30).astype(float), draw.normal(size=30)
    y[::4] = math.inf
    counts = np.stack([np.ones(30), *(np.bincount(draw.integers(0, 30, 30), minlength=30) for _ in range(20))])
    for row, value in zip(counts.astype(int), spearman(x, y, counts.astype(float)), strict=True):
        finite = np.where(np.isinf(y), 99.0, y)
        assert value == pytest.approx(stats.spearmanr(np.repeat(x, row), np.repeat(finite, row)).statistic, abs=1e-12)
    assert spearman(np.arange(4.0), np.array([1.0, 1, 2, 2]), np.ones((1, 4)))[0] == pytest.approx(2 / math.sqrt(5))
    assert np.isnan(spearman(np.ones(4), np.arange(4.0), np.ones((1, 4)))).all()


def test_samples_that_are_right_count_paired_by_id_and_those_without_a_wrong_point_are_last() -> None:
    draw = np.random.Generator(np.random.PCG64(4))
    distances, means = draw.uniform(0.1, 1, 40), draw.uniform(0, 0.5, 40)
    distances[:6], distances[6:10], means[10:12] = 0, math.inf, math.nan
    far, close = np.where(np.isinf(distances), 9.0, distances)[6:], means[6:]
    kept = np.isfinite(close)
    order = draw.permutation(38)  # of the slopes two samples have no record
    known = slopes(means[order], ids=[str(place) for place in order])
    kept[32:] = False
    value, n, low, high = found(distances, known)["slope_correlation"]
    assert (n, value) == (30, pytest.approx(stats.spearmanr(far[kept], close[kept]).statistic, abs=1e-12))
    assert -1 <= low < value < high <= 1
    clear = found(np.arange(1, 41), slopes(-np.arange(40.0)))["slope_correlation"]
    assert clear == (-1, 40, -1, -1)


def test_a_few_samples_have_no_interval_and_ties_alone_no_number() -> None:
    for n, names in ((9, 1), (10, 3)):
        rows = found(np.arange(1, n + 1), slopes(np.arange(n) % 4))
        assert len(rows) == names and rows["slope_correlation"][1] == n
        assert math.isnan(rows["slope_correlation"][2]) == (n == 9)
    assert not found(np.full(20, math.inf), slopes(np.arange(20.0)))
    assert not found(np.zeros(20), slopes(np.arange(20.0)))
    assert not found([1.0, 2.0], slopes([1.0, 2.0], ids=["a", "b"]))


def test_the_head_with_most_is_named_next_to_what_the_largest_of_as_many_is_by_chance() -> None:
    draw = np.random.Generator(np.random.PCG64(5))
    distances, heads = draw.uniform(0.1, 1, 200), draw.uniform(0, 0.5, (200, 8))
    heads[:, 3] = 2 * draw.uniform(0, 1, 200) - distances
    heads[:, 7] = 0.25
    known = slopes(heads.mean(axis=1), heads)
    value, n, low, _ = found(distances, known)["slope_correlation(b head 2)"]
    assert value == pytest.approx(stats.spearmanr(heads[:, 3], distances).statistic, abs=1e-12) and value < -0.2
    assert n == 200 and math.isnan(low)
    # Of 7 that are independent, none exceeds this in 95 % of draws; the one that is constant never does.
    expected = stats.norm.ppf(1 - (1 - 0.95 ** (1 / 7)) / 2) / math.sqrt(199)
    chance = found(distances, known)["slope_correlation_by_chance"][0]
    assert chance == pytest.approx(expected, rel=0.06) and chance < abs(value)
    assert chance == found(distances, known)["slope_correlation_by_chance"][0]
    ranks = (np.arange(4.0) - 1.5) / math.sqrt(5)
    assert by_chance(ranks, ranks[:, None]) == pytest.approx(1)  # 2 of 24 orders are that or its reverse
    assert list(found(distances, slopes(distances, np.full((200, 2), 0.25)))) == ["slope_correlation"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    place = tmp_path_factory.mktemp("slopes") / "run"
    return robustkit.audit([f"zoo:{NAME}"], out=place, watch_attention=True, **OPTIONS)


def rows_of(run: Run, condition: str) -> dict[str, dict[str, Any]]:
    rows = run.results().to_dict("records")
    return {r["metric"]: r for r in rows if r["condition"] == condition and r["metric"].startswith("slope")}


def test_a_run_with_both_has_it_for_each_distance_and_on_the_page(run: Run) -> None:
    slope = run.table(NAME, WATCHED).to_pandas().set_index("sample_id")
    for condition in (FMN, DDN):
        rows, table = rows_of(run, condition), run.table(NAME, condition).to_pandas().set_index("sample_id")
        far = table["distance"].astype(float).fillna(math.inf)
        far = far[far > 0].replace(math.inf, 1e9)
        expected = stats.spearmanr(far, slope["softmax_slope"][far.index]).statistic
        of_heads = [stats.spearmanr(far, one).statistic for one in np.stack(slope["softmax_slopes"][far.index]).T]
        best = int(np.abs(of_heads).argmax())
        name = f"slope_correlation(blocks.{best // 3}.attn head {best % 3})"
        assert [*rows] == ["slope_correlation", name, "slope_correlation_by_chance"]
        assert rows["slope_correlation"]["n"] == len(far) >= 10
        assert [rows[key]["value"] for key in (*rows,)][:2] == pytest.approx([expected, of_heads[best]], abs=1e-9)
        assert rows["slope_correlation"]["ci_low"] < expected < rows["slope_correlation"]["ci_high"]
    (shown,) = DistancesPresenter().tables(Results.of(run, run.summary()))
    lines = [(what, value) for _, what, value in shown.rows if what.startswith("slope")]
    assert [what for what, _ in lines] == ["slope correlation", "slope correlation, largest of all heads"] * 2
    assert lines[2][1].startswith(f"{expected:.2f} [") and lines[2][1].endswith(f"], n = {len(far)}")
    page = re.sub(r"<[^>]*>", "", (run.path / "report.html").read_text("utf-8"))
    assert "rank last, ties share their rank" in page and "largest of all heads" in page
    assert words_of(FMN).needs(FMN, name, []) == [FMN, WATCHED] and words_of(FMN).needs(FMN, "ln_distance", []) == [FMN]


def test_only_what_shows_images_is_watched(run: Run) -> None:
    assert list(run.manifest.conditions) == ["clean", WATCHED, FMN, DDN]


def test_without_slopes_there_is_none_and_a_missing_head_is_damage(run: Run, tmp_path: Path) -> None:
    fewer = OPTIONS | {"limit": 12, "cams": "rollout", "stability": True}
    alone = robustkit.audit([f"zoo:{NAME}"], out=tmp_path / "alone", **fewer)
    assert [text for text in alone.manifest.conditions if "steps" in text] == [FMN, DDN]  # nor maps next to them
    assert not rows_of(alone, FMN)
    (shown,) = DistancesPresenter().tables(Results.of(alone, alone.summary()))
    assert "Slope" not in shown.note
    shutil.copytree(run.path, tmp_path / "run")
    copy = Run(tmp_path / "run")
    lost = RecordReader(copy, copy.manifest, NAME, {})
    assert slopes_of(lost) is not None
    record = copy.shard_path(NAME, WATCHED, 1)
    table = pq.read_table(record)
    lists = pa.array([[0.1] * 11] * len(table), pa.list_(pa.float32()))
    put(copy, NAME, WATCHED, table.set_column(table.column_names.index("softmax_slopes"), "softmax_slopes", lists), 1)
    seal(copy)
    with pytest.raises(DamagedRecord, match="a figure for each head"):
        slopes_of(lost)
    shutil.rmtree(record.parent)
    assert slopes_of(lost) is None
    assert not [row for row in DistanceSummary(lost).add(FMN) if row.metric.startswith("slope")]
