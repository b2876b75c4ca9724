"""Paired differences from records, against plain loops and scipy; and the page that puts them beside the paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

import robustkit
from robustkit.compare import Difference, paired_difference
from robustkit.errors import RunError
from robustkit.records import Run

pytestmark = pytest.mark.usefixtures("one_thread")
PAIR = ("shapes-vit-standard", "shapes-vit-quest")
PGD = "pgd(eps=4/255,steps=3)"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Two checkpoints, 60 images."""
    return robustkit.audit(
        [f"zoo:{name}" for name in PAIR],
        data_dir="embedded:shapes",
        attacks=PGD,
        corruptions="gaussian_noise,shot_noise,impulse_noise",
        cams="agcam(faithfulness=none)",
        limit=60,
        out=tmp_path_factory.mktemp("compare") / "run",
        device="cpu",
    )


def outcomes(run: Run, checkpoint: str, condition: str, name: str) -> dict[str, float]:
    return {row["sample_id"]: float(row[name]) for row in run.table(checkpoint, condition).to_pylist()}


@pytest.mark.parametrize(("metric", "column"), [("top1", "correct"), ("top5", "top5"), ("nll", "nll")])
def test_a_difference_is_the_mean_over_pairs_with_scipys_interval(run: Run, metric: str, column: str) -> None:
    first, second = (outcomes(run, name, PGD, column) for name in PAIR)
    gaps = np.array([second[sample] - first[sample] for sample in sorted(first)])
    found = paired_difference(run, *PAIR, PGD, metric)
    assert (found.value, found.n) == (pytest.approx(gaps.mean()), 60)
    interval = stats.bootstrap((gaps,), np.mean, method="percentile", n_resamples=9999, rng=0).confidence_interval
    assert (found.ci_low, found.ci_high) == pytest.approx(tuple(interval), abs=0.25 * gaps.std() / 60**0.5)
    back = paired_difference(run, *PAIR[::-1], PGD, metric)
    assert (back.value, back.ci_low, back.ci_high) == pytest.approx((-found.value, -found.ci_high, -found.ci_low))


def test_pairing_narrows_the_interval(run: Run) -> None:
    found = paired_difference(run, *PAIR, "clean", "nll")
    first, second = (np.array(list(outcomes(run, name, "clean", "nll").values())) for name in PAIR)
    unpaired = 1.96 * np.sqrt((first.var() + second.var()) / 60)
    assert (found.ci_high - found.ci_low) / 2 < 0.8 * unpaired


def test_a_mean_error_is_over_all_conditions_of_each_sample(run: Run) -> None:
    expected = 0.0
    for sign, name in zip((-1, 1), PAIR, strict=True):
        for corruption in ("gaussian_noise", "shot_noise", "impulse_noise"):
            for severity in range(1, 6):
                wrong = outcomes(run, name, f"corruption({corruption},severity={severity})", "correct").values()
                expected += sign * sum(1 - value for value in wrong) / 60 / 15
    found = paired_difference(run, *PAIR, "noise", "mean_error")
    assert (found.value, found.n) == (pytest.approx(expected), 60)
    summary = {(row["checkpoint"], row["metric"]): row["value"] for row in run.summary() if row["condition"] == "noise"}
    assert found.value == pytest.approx(summary[PAIR[1], "mean_error"] - summary[PAIR[0], "mean_error"])


def test_scores_of_maps_are_of_samples_that_both_predict_right_and_stability_of_all() -> None:
    def of_map(sample: str, correct: bool, abpc: float | None, similarity: float | None) -> dict[str, Any]:
        places = {"box_iou": 2 * abpc, "mask_iou": -abpc / 2} if abpc is not None else {}
        return row(sample, 0.0) | {"correct": correct, "abpc": abpc, "rank_correlation": similarity} | places

    first = [of_map("a", True, 0.1, 0.5), of_map("b", False, 9.0, 0.5), of_map("c", True, 0.2, None)]
    second = [of_map("a", True, 0.4, 0.7), of_map("b", True, 5.0, 0.9), of_map("c", True, 0.3, 1.0)]
    run = Recorded({"first": first, "second": second})
    moved = "stability(agcam,under=fgsm(eps=1/255))"
    for condition, metric, expected in (
        ("cam(agcam)", "abpc", 0.2),
        ("cam(agcam,mode=box)", "cam_iou", 0.4),
        ("cam(agcam,mode=mask)", "cam_iou", -0.1),
        (moved, "rank_correlation", 0.3),
    ):
        found = paired_difference(run, "first", "second", condition, metric)  # type: ignore[arg-type]
        assert (found.value, found.n) == (pytest.approx(expected), 2)


class Recorded:
    """Stands for a run: tables by checkpoint."""

    path = Path("somewhere")

    def __init__(self, tables: dict[str, list[dict[str, Any]]]) -> None:
        self.tables = tables

    def table(self, checkpoint: str, _: str, columns: list[str]) -> pa.Table:
        return pa.Table.from_pylist(self.tables[checkpoint]).select(columns)


def row(sample: str, nll: float, error: str | None = None) -> dict[str, Any]:
    return {"sample_id": sample, "nll": nll, "error": error}


def test_only_samples_that_both_could_read_count_whatever_their_order() -> None:
    first = [row("a", 1.0), row("b", 2.0), row("c", 9.0, "damaged"), row("d", 4.0)]
    second = [row("d", 5.0), row("c", 1.0), row("b", 4.0)]
    found = paired_difference(Recorded({"first": first, "second": second}), "first", "second", "clean", "nll")  # type: ignore[arg-type]
    assert (found.value, found.n) == (1.5, 2)
    with pytest.raises(RunError, match="first and second have no sample in common under clean; audit both again"):
        paired_difference(Recorded({"first": first[:1], "second": second}), "first", "second", "clean", "nll")  # type: ignore[arg-type]
    endless = [row("a", float("inf")), row("b", float("inf"))]
    for other in (endless, first[:2]):
        found = paired_difference(Recorded({"first": endless, "second": other}), "first", "second", "clean", "nll")  # type: ignore[arg-type]
        assert np.isnan([found.value, found.ci_low, found.ci_high]).all()
        assert (found.n, found.sign) == (2, 0)


def test_a_sign_needs_an_interval_without_0_and_enough_samples() -> None:
    told = [Difference(0.1, n, low, high).sign for n, low, high in ((30, 0.01, 0.2), (29, 0.01, 0.2), (30, 0.0, 0.2))]
    assert told == [1, 0, 0]
    assert Difference(-0.1, 30, -0.2, -0.01).sign == -1


# the page


@pytest.fixture(scope="module")
def script() -> Any:
    """The script's module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parents[1] / "scripts"))
        import reproduce_quest

        yield reproduce_quest


def comparison(script: Any, metric: str, published: tuple[float, float], interval: tuple[float, float]) -> Any:
    base = script.Line("standard", {}, {}, {"top1": published[0], "mce": published[0]})
    differences = {metric: Difference(sum(interval) / 2, 100, *interval)}
    other = script.Line("quest", {}, differences, {"top1": published[1], "mce": published[1]})
    return script.Comparison("standard", "pgd", "pgd(eps=1/255)", (metric,), (base, other))


@pytest.mark.parametrize(
    ("metric", "published", "interval", "verdict"),
    [
        ("top1", (0.4, 0.5), (0.01, 0.2), "shown"),
        ("top1", (0.4, 0.5), (-0.2, -0.01), "the opposite"),
        ("top1", (0.5, 0.4), (-0.2, -0.01), "shown"),
        ("top1", (0.4, 0.5), (-0.01, 0.2), "cannot tell"),
        ("mean_error", (0.557, 0.550), (-0.2, -0.01), "shown"),
        ("mean_error", (0.557, 0.550), (0.01, 0.2), "the opposite"),
    ],
)
def test_the_verdict_on_the_published_order(
    script: Any, metric: str, published: tuple[float, float], interval: tuple[float, float], verdict: str
) -> None:
    found = comparison(script, metric, published, interval)
    assert list(found.verdicts()) == [("quest", verdict)]
    unpublished = replace(found, lines=(found.lines[0], replace(found.lines[1], published={})))
    assert list(unpublished.verdicts()) == []


def test_the_page_has_our_figures_beside_the_published_ones(script: Any, run: Run) -> None:
    parts = {part.folder: part for part in script.PARTS}
    published = script.published_figures()
    found = [(parts["standard-steps"], run), (parts["standard-corruptions"], run)]
    page = script.page(found, published, "python scripts/reproduce_quest.py")
    lines = page.splitlines()
    values: Callable[[str], str] = lambda name: next(line for line in lines if line.startswith(name))  # noqa: E731
    place = lines.index(f"`{PGD}`, 60 images of embedded:shapes.")
    cells = [cell.strip() for cell in next(x for x in lines[place:] if x.startswith("| quest")).split("|")[1:-1]]
    summary = {r["metric"]: r for r in run.summary() if (r["checkpoint"], r["condition"]) == (PAIR[1], PGD)}
    top1, difference = summary["top1"], paired_difference(run, *PAIR, PGD)
    assert cells[1] == f"{100 * top1['value']:.1f} [{100 * top1['ci_low']:.1f}, {100 * top1['ci_high']:.1f}]"
    assert cells[2].startswith(f"{100 * difference.value:+.1f} [")
    assert cells[-3:] == ["45.26", "79.33", "2.448"]
    assert values("- `standard`: of 2 published differences").endswith("the interval contains 0.")  # clean and PGD
    assert "### noise" in lines
    assert "ImageNet" not in lines[lines.index("### noise") + 4]


def test_maps_have_a_table_for_boxes_with_the_published_figures_and_one_for_masks(script: Any, run: Run) -> None:
    part = next(part for part in script.PARTS if part.folder == "standard-localisation")
    page = script.page([(part, run)], script.published_figures(), "python scripts/reproduce_quest.py")
    titles = [line for line in page.splitlines() if line.startswith("### ")]
    assert titles == ["### AG-CAM", "### AG-CAM, mask mode"]
    lines = page[page.index("### AG-CAM\n") :].splitlines()
    heading, cells = ([cell.strip() for cell in line.split("|")[1:-1]] for line in (lines[4], lines[7]))
    condition = "cam(agcam,faithfulness=none,mode=box)"
    box = {r["metric"]: r for r in run.summary() if (r["checkpoint"], r["condition"]) == (PAIR[1], condition)}
    assert heading[4:7] == ["IoU % [95 %]", "minus standard", "minus best control"]
    found, lead = box["cam_iou"], box["cam_iou_over_control"]
    assert cells[4] == f"{100 * found['value']:.1f} [{100 * found['ci_low']:.1f}, {100 * found['ci_high']:.1f}]"
    assert cells[6].startswith(f"{100 * lead['value']:+.1f} [")
    assert cells[6].endswith(f"({lead['flags'][0].removeprefix('best control: ')})")
    assert cells[-3:] == ["70.76", "53.54", "0.660"]
    assert "of 1 published differences" in page


def test_the_published_figures_are_the_papers(script: Any) -> None:
    published = script.published_figures()
    assert published["elliptical-quest"]["spsa"] == {"top1": 0.5915, "top5": 0.8744, "nll": 1.613}
    assert published["standard"]["in-c"] == {"mce": 0.557}
    assert published["quest"]["agcam"] == {"cam_pixel_accuracy": 0.7076, "cam_iou": 0.5354, "cam_dice": 0.6597}
    attacks = ("clean", "fgsm", "pgd", "spsa", "autoattack")
    for name in ("standard", "quest", "elliptical", "elliptical-quest"):
        figures = [published[name][attack] for attack in attacks]
        assert all(f["top1"] < f["top5"] < 1 < f["nll"] for f in figures)
