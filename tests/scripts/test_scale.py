"""What a summary and a report read and hold, by counts: each record once, its columns that are needed, and no more."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from figures import noted

from cam.localisation import IOUS, THRESHOLDS, pxap
from robustkit.common.intervals import calibration_error, calibration_gaps, resampled_figures, resampled_sums
from robustkit.evaluations.corruptions.results import CorruptionSample
from robustkit.evaluations.maps.results import Counted, PooledMaps
from robustkit.report.refresh import refresh
from robustkit.report.run import Run
from robustkit.results.comparison import compare_sides, compare_with_first
from robustkit.results.pairing import Side, checkpoint_pairs
from robustkit.results.survey import survey
from scripts.bench import scale

Make = Callable[..., Run]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """A made-up run, without pictures, of clean, PGD, AutoAttack, fog at five severities, AG-CAM and a control."""
    monkeypatch.setattr(scale, "KEPT", 0)
    kept = (
        "clean",
        "pgd(eps=1/255",
        "pgd(eps=2/255",
        "autoattack(eps=1/255",
        "corruption(fog",
        "cam(agcam",
        "cam(random",
    )
    every = [one for one in scale.conditions(scale.load_card("standard")) if one.text.startswith(kept)]
    assert len(every) == 11
    monkeypatch.setattr(scale, "conditions", lambda card: every)
    monkeypatch.setattr("robustkit.runs.folder.os.fsync", lambda handle: None)

    def made(n: int, checkpoints: int = 1, shard: int = 100, name: str = "run") -> Run:
        monkeypatch.setattr(scale, "SHARD", shard)
        run = Run(tmp_path / name)
        scale.write(run, n, checkpoints)
        return run

    return made


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> dict[tuple[str, str], list[str]]:
    """By checkpoint and condition the columns that were read, those of one reading in one text."""
    found: dict[tuple[str, str], list[str]] = {}
    shards = Run.shards

    def watched(self: Run, checkpoint: str, condition: str, *columns: Any) -> Iterator[pa.Table]:
        for shard in shards(self, checkpoint, condition, *columns):
            found.setdefault((checkpoint, condition), []).append(" ".join(shard.column_names))
            yield shard

    monkeypatch.setattr(Run, "shards", watched)
    return found


def test_a_summary_reads_each_record_once_and_what_it_needs(
    make: Make, opened: dict[tuple[str, str], list[str]]
) -> None:
    run = make(250)  # three shards
    survey(run)
    assert {len(read) for read in opened.values()} == {3} and len(opened) == 11
    plain = "sample_id correct top5 tied nll confidence linf l2"
    assert set(opened["vit-0", "clean"]) == {f"{plain} broken_by cycle_at error".replace("correct", "label correct")}
    (staged,) = set(opened["vit-0", "autoattack(eps=1/255,version=standard)"])
    assert staged.startswith(f"{plain} broken_by cycle_at error")
    assert "backwards square" in staged and "steps" not in staged.split()
    (scored,) = set(opened["vit-0", "cam(agcam)"])
    assert {"pixel_counts", "box_hits", "mask_iou"} < set(scored.split())
    assert not {"label", "prediction", "target", "confidence", "linf", "steps"} & set(scored.split())


def test_a_report_opens_no_file_again(make: Make, opened: dict[tuple[str, str], list[str]]) -> None:
    run = make(250)
    refresh(run)
    assert {len(read) for read in opened.values()} == {3} and len(opened) == 11
    text = (run.path / "report.html").read_text("utf-8")
    assert all(title in text for title in ("AutoAttack by stage", "Calibration"))


@pytest.mark.slow
def test_checkpoints_do_not_add_up_in_memory(make: Make) -> None:
    runs = {checkpoints: make(1500, checkpoints, shard=500, name=str(checkpoints)) for checkpoints in (1, 3)}

    def peak(checkpoints: int) -> int:
        run = runs[checkpoints]
        tracemalloc.start()
        try:
            survey(run)
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1)  # imports, and the draws of the bootstrap, which stay
    assert peak(3) < 1.15 * peak(1)


def test_sides_forget_what_no_later_pair_asks(
    make: Make, opened: dict[tuple[str, str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make(60, checkpoints=3)
    run.write_summary([])
    found = checkpoint_pairs([run])
    compare_sides(found)
    assert not any(side._samples for pair in found for side in pair)
    assert scale.compared(run).keys() == {"compare", "compare CPU"}  # what the benchmark of it measures
    opened.clear()
    made = list[Side]()

    def side(*given: Any) -> Side:
        made.append(Side(*given))
        return made[-1]

    monkeypatch.setattr("robustkit.results.comparison.Side", side)
    assert len(compare_with_first(run).pairs) == 2 and [bool(one._samples) for one in made] == [True, False, False]
    assert {len(read) for read in opened.values()} == {1}


def test_unread_samples_are_found_on_the_way(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale, "UNREADABLE", 0.1)
    run = make(100)
    refresh(run)
    bad = run.manifest.bad_images
    assert [one.error for one in bad] == ["truncated file"] * len(bad) and 1 < len(bad) < 30
    lost = run.table("vit-0", "clean", ["sample_id", "error"]).to_pylist()
    assert [one.sample_id for one in bad] == [row["sample_id"] for row in lost if row["error"]]
    (top1,) = (r for r in run.summary() if (r.condition, r.metric) == ("clean", "top1"))
    assert top1.n == 100 - len(bad)


def test_counts_in_few_bytes_give_the_sums_of_all() -> None:
    generator = np.random.default_rng(0)
    counts = generator.integers(0, 50_000, (60, 2, 8)).reshape(60, 16)
    counts[41] *= 3  # an image of more than 65,535 pixels
    hits = generator.random((60, len(THRESHOLDS) * len(IOUS))) < 0.4
    lacks = {3, 17}
    both = pa.table(
        {
            "a": range(60),
            "pixel_counts": pa.array(
                [None if i in lacks else row for i, row in enumerate(counts)], pa.list_(pa.int32())
            ),
            "box_hits": [None if i in lacks else np.packbits(row).tobytes() for i, row in enumerate(hits)],
        }
    )
    shards = [both.slice(0, 25), both.slice(25, 0), both.slice(25).select(["a"]).slice(0, 5), both.slice(30)]
    known = [i for i in range(60) if i not in lacks and not 25 <= i < 30]  # a shard without an object has no column
    read = 0

    def taken() -> PooledMaps:
        nonlocal read
        read, pooled = read + 1, PooledMaps()
        assert [shard.column_names for shard in map(pooled.taken, shards)] == [["a"]] * 4
        return pooled

    rows = np.arange(2, 60)
    pooled = taken()
    levels, boxes = (pooled.of(column, rows, taken) for column in ("pixel_counts", "box_hits"))
    assert levels is not None and boxes is not None and read == 1
    known = [i for i in known if i >= 2]
    assert rows[levels.present].tolist() == known

    def slow(chosen: list[int]) -> Any:
        def figure(drawn: Any) -> Any:
            sums = (drawn @ counts[chosen].astype(float)).reshape(len(drawn), 2, -1)
            return pxap(torch.from_numpy(sums)).numpy()

        return [*figure(np.ones((1, len(chosen)))), *resampled_figures(figure, len(chosen))[:, 0]]

    assert levels.figure(levels.present).tolist() == slow(known)
    shares = hits[known].mean(axis=0).reshape(-1, len(IOUS))
    assert boxes.figure(boxes.present) == pytest.approx([shares.max(axis=0).mean()], abs=1e-15) and read == 1
    assert levels.figure(levels.present[:30]).tolist() == slow(known[:30]) and read == 2
    assert levels.figure(levels.present[:30]).tolist() == slow(known[:30]) and read == 2  # kept
    assert PooledMaps().of("pixel_counts", rows, PooledMaps) is None


def test_sums_hold_a_part_of_the_rows_at_once() -> None:
    n, width = 30_000, 200
    resampled_sums(lambda some: np.ones((n, 1))[some], n)  # the draws
    asked = list[int]()

    def rows(some: slice) -> Any:
        found = np.full((len(range(n)[some]), width), 2.0)
        asked.append(len(found))
        return found

    tracemalloc.start()
    sums = resampled_sums(rows, n)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (sums == 2 * n).all() and sum(asked) == n and max(asked) < n / 10
    assert peak < 0.5 * n * width * 8  # of all rows as floats


def test_the_calibration_error_is_that_of_its_gaps() -> None:
    generator = np.random.default_rng(0)
    confidence, right = generator.random(500), (generator.random(500) < 0.5).astype(float)
    gaps = np.abs(calibration_gaps(confidence, right).sum(axis=0)).sum() / 500
    assert calibration_error(confidence, right) == gaps


def test_outcomes_share_their_ids() -> None:
    def read(ids: str) -> pa.Table:
        n, float32 = len(ids), pa.float32()
        columns = {"sample_id": list(ids), "correct": [True] * (n - 1) + [False]}
        return pa.table(columns | {name: pa.array([0.5] * n, float32) for name in ("nll", "confidence")})

    first = CorruptionSample.of(read("abc"), noted("flag"))
    assert first.wrong.tolist() == [False, False, True] and first.flags == noted("flag")
    assert CorruptionSample.of(read("abc"), [], like=first).ids is first.ids
    assert CorruptionSample.of(read("abd"), [], like=first).ids.to_pylist() == list("abd")


def test_few_samples_have_sums_alone() -> None:
    nine = Counted("pxap", np.arange(9), lambda: np.ones((9, 4), np.uint16))
    assert nine.figure(np.arange(9)).shape == (1,) and nine.figure(np.arange(8)).shape == (1,)
