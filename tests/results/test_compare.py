"""Paired differences from records, against plain loops and scipy."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from manifests import whole
from paired_oracles import interval_of
from scipy import stats

import robustkit
from robustkit.common.differences import Difference, holm, of_means
from robustkit.errors import RunError
from robustkit.report.run import Run
from robustkit.results.pairing import Side, paired_difference
from robustkit.runs.manifest import Manifest

pytestmark = pytest.mark.usefixtures("one_thread", "pageless", "unexamined")
PAIR = ("shapes-vit-standard", "shapes-vit-quest")
PGD = "pgd(eps=4/255,steps=3)"
BOX = "cam(agcam,faithfulness=none,mode=box)"


def between(run: Any, first: str, second: str, condition: str, metric: str = "top1") -> Difference:
    """How the second checkpoint of a run differs from its first."""
    return paired_difference(Side(run, first), Side(run, second), condition, metric)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two checkpoints, 24 images."""
    return robustkit.audit(
        [f"zoo:{name}" for name in PAIR],
        data_dir="embedded:shapes",
        attacks=PGD,
        corruptions="gaussian_noise,shot_noise,impulse_noise",
        cams="agcam(faithfulness=none)",
        limit=24,
        setup_check=False,
        out=tmp_path_factory.mktemp("compare") / "run",
        device="cpu",
    )


def outcomes(run: Run, checkpoint: str, condition: str, name: str) -> dict[str, float]:
    return {row["sample_id"]: float(row[name]) for row in run.table(checkpoint, condition).to_pylist()}


@pytest.mark.parametrize(("metric", "column"), [("top1", "correct"), ("nll", "nll")])
def test_a_difference_is_the_mean_over_pairs_with_its_interval(run: Run, metric: str, column: str) -> None:
    first, second = (outcomes(run, name, PGD, column) for name in PAIR)
    gaps = np.array([second[sample] - first[sample] for sample in sorted(first)])
    found = between(run, *PAIR, PGD, metric)
    assert (found.value, found.n) == (pytest.approx(gaps.mean()), 24)
    assert (found.ci_low, found.ci_high) == pytest.approx(interval_of(gaps, binary=metric == "top1"))
    back = between(run, *PAIR[::-1], PGD, metric)
    assert (back.value, back.ci_low, back.ci_high) == pytest.approx((-found.value, -found.ci_high, -found.ci_low))


def test_pairing_narrows_the_interval(run: Run) -> None:
    found = between(run, *PAIR, "clean", "nll")
    first, second = (np.array(list(outcomes(run, name, "clean", "nll").values())) for name in PAIR)
    unpaired = 1.96 * np.sqrt((first.var() + second.var()) / 24)
    assert (found.ci_high - found.ci_low) / 2 < 0.8 * unpaired


def test_a_mean_error_is_over_all_conditions_of_each_sample(run: Run) -> None:
    expected = 0.0
    for sign, name in zip((-1, 1), PAIR, strict=True):
        for corruption in ("gaussian_noise", "shot_noise", "impulse_noise"):
            for severity in range(1, 6):
                wrong = outcomes(run, name, f"corruption({corruption},severity={severity})", "correct").values()
                expected += sign * sum(1 - value for value in wrong) / 24 / 15
    found = between(run, *PAIR, "noise", "mean_error")
    assert (found.value, found.n) == (pytest.approx(expected), 24)
    summary = {(row.checkpoint, row.metric): row.value for row in run.summary() if row.condition == "noise"}
    assert found.value == pytest.approx(summary[PAIR[1], "mean_error"] - summary[PAIR[0], "mean_error"])


def test_scores_of_maps_are_of_samples_that_both_predict_right() -> None:
    def of_map(sample: str, correct: bool, abpc: float | None, similarity: float | None) -> dict[str, Any]:
        places = {"box_iou": 2 * abpc, "mask_iou": -abpc / 2} if abpc is not None else {}
        reported = {"correct": correct, "clean_correct": sample != "b", "abpc": abpc, "rank_correlation": similarity}
        return row(sample, 0.0) | reported | places

    first = [of_map("a", True, 0.1, 0.5), of_map("b", False, 9.0, 0.5), of_map("c", True, 0.2, None)]
    second = [of_map("a", True, 0.4, 0.7), of_map("b", True, 5.0, 0.9), of_map("c", True, 0.3, 1.0)]
    run = Recorded({"first": first, "second": second})
    moved = "stability(agcam,under=fgsm(eps=1/255))"
    for condition, metric, expected in (
        ("cam(agcam)", "abpc", 0.2),
        ("cam(agcam,mode=box)", "cam_iou", 0.4),
        ("cam(agcam,mode=mask)", "cam_iou", -0.1),
        (moved, "rank_correlation", 0.2),
    ):
        found = between(run, "first", "second", condition, metric)
        assert (found.value, found.n) == (pytest.approx(expected), 1 if condition == moved else 2)


def test_maps_of_images_without_labels_count_all() -> None:
    def of_map(sample: str, abpc: float) -> dict[str, Any]:
        return row(sample, 0.0) | {"correct": None, "abpc": abpc}

    tables = {name: [of_map("a", value), of_map("b", value)] for name, value in (("x", 0.25), ("y", 0.75))}
    found = between(Recorded(tables), "x", "y", "cam(agcam)", "abpc")
    assert (found.value, found.n, found.first, found.second) == (0.5, 2, 0.25, 0.75)


def test_what_cannot_be_paired_is_refused(run: Run) -> None:
    for condition, metric, message in (
        ("clean", "topp1", "unknown figure of pairs under clean 'topp1'; did you mean 'top1'?"),
        (BOX, "abpc", f"unknown figure of pairs under {BOX} 'abpc'; known: cam_dice, cam_iou"),
        ("cam(agcam)", "pxap", "unknown figure of pairs under cam(agcam) 'pxap'"),
    ):
        with pytest.raises(RunError) as fault:
            between(run, *PAIR, condition, metric)
        assert str(fault.value).startswith(message)
    with pytest.raises(
        RunError, match="of shapes-vit-standard under clean have no abpc; compare another figure, or rerun"
    ):
        Side(run, PAIR[0]).samples("clean", ["correct", "abpc"])


class Recorded:
    """Stands for a run: tables by checkpoint."""

    path, grouping = Path("somewhere"), None
    manifest: ClassVar[Manifest] = whole({"checkpoints": [{"name": "a"}]})

    def __init__(self, tables: dict[str, list[dict[str, Any]]]) -> None:
        self.tables = tables

    def table(self, checkpoint: str, _: str, columns: list[str]) -> pa.Table:
        return pa.Table.from_pylist(self.tables[checkpoint]).select(columns)

    def read_bytes(self, path: Path) -> bytes:
        raise FileNotFoundError(path)  # it has no metadata


def row(sample: str, nll: float, error: str | None = None) -> dict[str, Any]:
    return {"sample_id": sample, "nll": nll, "error": error}


def test_only_samples_that_both_could_read_count_whatever_their_order() -> None:
    first = [row("a", 1.0), row("b", 2.0), row("c", 9.0, "damaged"), row("d", 4.0)]
    second = [row("d", 5.0), row("c", 1.0), row("b", 4.0)]
    found = between(Recorded({"first": first, "second": second}), "first", "second", "clean", "nll")
    assert (found.value, found.n) == (1.5, 2)
    with pytest.raises(RunError, match="first and second have no common sample under clean; audit both again"):
        between(Recorded({"first": first[:1], "second": second}), "first", "second", "clean", "nll")
    endless = [row("a", float("inf")), row("b", float("inf"))]
    for other in (endless, first[:2]):
        found = between(Recorded({"first": endless, "second": other}), "first", "second", "clean", "nll")
        assert np.isnan([found.value, found.ci_low, found.ci_high]).all()
        assert (found.n, holm([found.p_value])[0] <= 1) == (2, False)


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (4, 0), (2, 8), (31, 17), (600, 500)])
def test_right_against_wrong_has_mcnemars_exact_p(gained: int, lost: int) -> None:
    first = [False] * gained + [True] * lost + [True] * 7
    second = [True] * gained + [False] * lost + [True] * 7
    found = of_means(np.array(first, float), np.array(second, float), binary=True)
    expected = stats.binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert found.p_value == pytest.approx(expected)


def test_means_have_students_t() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.normal(0, 1, 20), generator.normal(0.15, 1, 20)
    tables = {name: [row(f"{i:03}", x) for i, x in enumerate(values)] for name, values in (("a", first), ("b", second))}
    found = between(Recorded(tables), "a", "b", "clean", "nll")
    expected = stats.ttest_rel(second, first)
    assert found.p_value == pytest.approx(expected.pvalue) and found.test == "Student's t"
    assert (found.ci_low, found.ci_high) == pytest.approx(tuple(expected.confidence_interval()))
    alike = of_means(first, first + 3, binary=False)
    assert alike.p_value == 2 / 2**20 and math.isnan(alike.ci_low) and math.isnan(alike.ci_high)
    none = of_means(first, first, binary=False)
    assert (none.value, none.p_value) == (0, 1) and math.isnan(none.ci_low)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    first, second = holm([float("nan"), 0.02])
    assert np.isnan(first) and second == pytest.approx(0.04)
    assert holm([]) == []
