"""Intervals, calibration, summary rows and flags, from records made by hand."""

import csv
import json
import math
from pathlib import Path

import numpy as np
import pytest
from figures import said_of
from row_runs import PGD, make_run, row
from scipy.stats import binomtest

from robustkit.common.files import write_whole
from robustkit.common.intervals import bootstrap, calibration_error, calibration_interval, percentiles, wilson
from robustkit.errors import RunError
from robustkit.report.refresh import refresh
from robustkit.report.run import Run
from robustkit.results.survey import survey, write_summary


def test_an_infinite_loss_is_no_warning(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"clean": [row(i, True, nll=float("inf") if i == 0 else 0.5) for i in range(6)]})
    found = {one.metric: one for one in survey(run)}
    assert math.isnan(found["nll"].value) and found["top1"].value == 1.0


def test_wilson_equals_scipy() -> None:
    for hits, n in ((0, 7), (7, 7), (3, 10), (755, 1000)):
        expected = binomtest(hits, n).proportion_ci(0.95, "wilson")
        assert wilson(hits, n) == pytest.approx((expected.low, expected.high), abs=1e-9)
    assert wilson(0, 0) == (0.0, 1.0)


def test_calibration_error_by_hand() -> None:
    confidence = np.array([0.9, 0.95, 0.55, 0.6, 0.05])
    correct = np.array([1.0, 0.0, 1.0, 1.0, 0.0])
    # Bins of 1/15: .9 is in (.8667, .9333], .95 in (.9333, 1], .55 and .6 in (.5333, .6], .05 in (0, .0667].
    expected = (abs(0.9 - 1) + abs(0.95 - 0) + abs(0.55 + 0.6 - 2) + abs(0.05)) / 5
    assert calibration_error(confidence, correct) == pytest.approx(expected)


def test_bootstrap_repeats_and_covers_the_normal_interval() -> None:
    values = np.random.Generator(np.random.PCG64(3)).normal(2.0, 1.0, 400)
    (low, high), (lowest, _) = bootstrap(
        lambda counts: np.stack([counts @ values, counts.sum(1)], 1) / 400, 400, [values.mean(), 1]
    )
    assert bootstrap(lambda counts: counts @ values / 400, 400, [values.mean()]) == [(low, high)] and lowest == 1
    half = 1.96 * values.std() / 20
    assert low == pytest.approx(values.mean() - half, abs=0.02)
    assert high == pytest.approx(values.mean() + half, abs=0.02)


def test_summary_of_records_made_by_hand(tmp_path: Path) -> None:
    clean = [row(0, True), row(1, False, nll=1.25, top5=False), row(2, True)]
    clean.append({"sample_id": "003", "label": 1, "error": "003: not an image"})
    run = make_run(tmp_path, {"clean": clean, PGD: [row(i, False, linf=1.2e-2, nll=float("nan")) for i in range(4)]})
    rows = {(r.condition, r.metric): r for r in survey(run)}
    top1 = rows["clean", "top1"]
    assert (top1.value, top1.n, top1.protocol) == (2 / 3, 3, "standard@1:00")
    assert (top1.low, top1.high) == pytest.approx(wilson(2, 3))
    assert rows["clean", "top5"].value == pytest.approx(2 / 3)
    assert rows["clean", "nll"].value == pytest.approx((0.25 + 1.25 + 0.25) / 3)
    assert said_of(top1) == ["1 of 4 images could not be read; excluded"]
    assert ("clean", "linf_max") not in rows
    assert rows[PGD, "linf_max"].value == pytest.approx(1.2e-2)
    assert said_of(rows[PGD, "top1"]) == [
        "exceeds eps: largest linf perturbation 3.06/255 in pixels, claimed 1/255",
        "4 of 4 samples have non-finite logits; counted as wrong",
    ]


def test_eps_of_another_space_is_flagged_with_its_size_in_pixels(tmp_path: Path) -> None:
    run = make_run(tmp_path, {PGD: [row(0, False, linf=0.5 / 255)]}, space="normalised")
    assert said_of(survey(run)[0]) == [
        "eps 0.003922 is in normalised units: largest linf perturbation 0.5/255 in pixels"
    ]


def test_an_excess_in_normalised_units_is_flagged_too(tmp_path: Path) -> None:
    run = make_run(tmp_path, {PGD: [row(0, False, linf=0.8 / 255)]}, space="normalised")  # std 0.5: 0.5/255 is allowed
    assert "exceeds eps: largest linf perturbation 0.8/255 in pixels, claimed 0.5/255" in said_of(survey(run)[0])


def test_rounding_is_not_an_excess(tmp_path: Path) -> None:
    run = make_run(tmp_path, {PGD: [row(0, False, linf=1 / 255 + 5e-7)]})
    assert survey(run)[0].findings == ()


def test_files_agree_with_each_other_and_escape_what_they_show(tmp_path: Path) -> None:
    run = make_run(tmp_path, {"clean": [row(0, True), row(1, False)]})
    rows = write_summary(run)
    refresh(run)
    stored = json.loads((tmp_path / "summary.json").read_text())["results"]
    with (tmp_path / "summary.csv").open() as file:
        sheet = list(csv.DictReader(file))
    assert [r["metric"] for r in stored] == [r.metric for r in rows] == [r["metric"] for r in sheet]
    assert [float(r["value"]) for r in sheet] == pytest.approx([r.value for r in rows])
    assert run.results()["value"].tolist() == pytest.approx([r.value for r in rows])
    page = (tmp_path / "report.html").read_text()
    assert page.count("<script>") == 1 and "vit <b>" not in page and "vit &lt;b&gt;&amp;" in page


def test_a_file_is_whole_or_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "deep" / "file"
    write_whole(target, b"first")
    monkeypatch.setattr("os.fsync", lambda handle: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(RunError, match="No space left on device; choose a folder with --out"):
        write_whole(target, b"second")
    assert target.read_bytes() == b"first" and [p.name for p in target.parent.iterdir()] == ["file"]


def test_an_altered_run_folder_is_explained(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is not a run folder"):
        Run.existing(tmp_path)
    run = make_run(tmp_path, {"clean": [row(0, True)]})
    run.shard_path("vit <b>&", "clean", 0).write_bytes(b"PAR1 nonsense")
    with pytest.raises(RunError, match="rerun the same audit command to compute it again"):
        survey(run)
    run.manifest_path.write_text("{")
    with pytest.raises(RunError, match=r"run\.json: cannot be read"):
        survey(run)
    assert math.isnan(calibration_error(np.array([]), np.array([])))


def test_the_interval_of_nll_is_that_of_resampled_samples(tmp_path: Path) -> None:
    stream = np.random.Generator(np.random.PCG64(5))
    confidence, correct, nll = stream.uniform(0.1, 1, 40), stream.random(40) < 0.6, stream.exponential(1, 40)
    rows = [row(i, bool(correct[i]), confidence=float(confidence[i]), nll=float(nll[i])) for i in range(40)]
    found = {r.metric: r for r in survey(make_run(tmp_path, {"clean": rows}))}
    draws = np.random.Generator(np.random.PCG64(0))
    figures = []
    for _ in range(1000):
        index = draws.integers(0, 40, 40)
        figures.append(nll[index].mean())
    low, high = np.percentile(figures, percentiles(40))
    assert (found["nll"].low, found["nll"].high) == pytest.approx((low, high), rel=1e-5)
    seen = np.float32(confidence).astype(float), correct.astype(float)
    assert (found["ece"].low, found["ece"].high) == calibration_interval(*seen)
