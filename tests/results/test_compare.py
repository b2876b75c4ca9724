"""Paired differences from records, against plain loops and scipy; and the page that puts them next to the paper."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
from manifests import whole
from msgspec.structs import replace
from paired_oracles import interval_of
from scipy import stats

import robustkit
from robustkit.common.differences import Difference, holm, of_means
from robustkit.errors import RobustkitError, RunError
from robustkit.results.paired import Side, paired_difference
from robustkit.results.run import Run
from robustkit.runs.manifest import Manifest
from scripts.pages import quest, quest_page

pytestmark = pytest.mark.usefixtures("one_thread", "pageless")
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
    summary = {(row["checkpoint"], row["metric"]): row["value"] for row in run.summary() if row["condition"] == "noise"}
    assert found.value == pytest.approx(summary[PAIR[1], "mean_error"] - summary[PAIR[0], "mean_error"])


def test_scores_of_maps_are_of_samples_that_both_predict_right() -> None:
    def of_map(sample: str, correct: bool, abpc: float | None, similarity: float | None) -> dict[str, Any]:
        places = {"box_iou": 2 * abpc, "mask_iou": -abpc / 2} if abpc is not None else {}
        told = {"correct": correct, "clean_correct": sample != "b", "abpc": abpc, "rank_correlation": similarity}
        return row(sample, 0.0) | told | places

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
        RunError, match="of shapes-vit-standard under clean have no abpc; compare another figure, or run"
    ):
        Side(run, PAIR[0]).samples("clean", ["correct", "abpc"])


class Recorded:
    """Stands for a run: tables by checkpoint."""

    path = Path("somewhere")
    manifest: ClassVar[Manifest] = whole({"checkpoints": [{"name": "a"}]})

    def __init__(self, tables: dict[str, list[dict[str, Any]]]) -> None:
        self.tables = tables

    def table(self, checkpoint: str, _: str, columns: list[str]) -> pa.Table:
        return pa.Table.from_pylist(self.tables[checkpoint]).select(columns)


def row(sample: str, nll: float, error: str | None = None) -> dict[str, Any]:
    return {"sample_id": sample, "nll": nll, "error": error}


def test_only_samples_that_both_could_read_count_whatever_their_order() -> None:
    first = [row("a", 1.0), row("b", 2.0), row("c", 9.0, "damaged"), row("d", 4.0)]
    second = [row("d", 5.0), row("c", 1.0), row("b", 4.0)]
    found = between(Recorded({"first": first, "second": second}), "first", "second", "clean", "nll")
    assert (found.value, found.n) == (1.5, 2)
    with pytest.raises(RunError, match="first and second have no sample in common under clean; audit both again"):
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


# the page


@pytest.fixture(scope="module")
def script() -> Any:
    """The page's module."""
    return quest


@pytest.mark.parametrize(
    ("metric", "published", "ours", "p", "verdict"),
    [
        ("top1", 0.01, 0.05, 0.05, "shown"),
        ("top1", 0.01, -0.05, 0.001, "the opposite"),
        ("top1", -0.01, -0.05, 0.001, "shown"),
        ("top1", 0.01, 0.05, 0.051, "cannot tell"),
        ("nll", -0.03, -0.2, 0.001, "shown"),
        ("mean_error", -0.007, 0.02, 0.001, "the opposite"),
        ("nll", -0.03, float("nan"), float("nan"), "cannot tell"),
    ],
)
def test_the_verdict_on_the_published_order(
    script: Any, metric: str, published: float, ours: float, p: float, verdict: str
) -> None:
    found = Difference(ours, 100, ours - 0.01, ours + 0.01, p)
    gap = script.Gap("quest-paper@1:x", "pgd", metric, "quest", "standard", published, found, 1)
    assert gap.verdict(p) == verdict


@pytest.fixture(scope="module")
def published(script: Any) -> dict[str, Any]:
    """As if the paper's attacks were those of the run's card."""
    return script.published_figures() | {"protocol": "standard"}


def sections(page: str) -> dict[str, list[list[str]]]:
    """The tables of a page by their titles, cell by cell."""
    found = {}
    for part in page.split("### ")[1:]:
        title, _, rest = part.partition("\n")
        lines = [line for line in rest.split("##")[0].splitlines() if line.startswith("|")]
        found[title] = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    return found


def test_the_page_has_our_figures_beside_the_published_ones(script: Any, run: Run, published: dict[str, Any]) -> None:
    page = quest_page.page([run, run], published, "python -m scripts.pages.reproduce_quest")
    tables = sections(page)
    assert list(tables) == ["clean", "pgd", "noise", "AG-CAM", "AG-CAM, mask mode"]
    assert page.count("### pgd") == 1
    heading, _, _, cells = tables["pgd"]
    summary = {r["metric"]: r for r in run.summary() if (r["checkpoint"], r["condition"]) == (PAIR[1], PGD)}
    top1, difference = summary["top1"], between(run, *PAIR, PGD)
    assert cells[0] == "quest"
    assert cells[1] == f"{100 * top1['value']:.1f} [{100 * top1['ci_low']:.1f}, {100 * top1['ci_high']:.1f}]"
    assert cells[2].startswith(f"{100 * difference.value:+.1f} [")
    assert cells[-3:] == ["45.26", "79.33", "2.448"]
    assert heading[-3:] == ["published: top-1 %", "published: top-5 %", "published: NLL"]
    assert not any(cell.startswith("published") for cell in tables["noise"][0])
    assert "shapes-vit-quest " + run.manifest.checkpoints[1].sha256[:12] in page
    own = quest_page.page([run], published | {"protocol": "quest-paper"}, "x")
    assert not any(cell.startswith("published") for cell in sections(own)["pgd"][0])


def test_the_verdicts_are_counted_and_each_has_its_gap(script: Any, run: Run, published: dict[str, Any]) -> None:
    page = quest_page.page([run], published, "x")
    lines = [line for line in page.splitlines() if line.startswith("| standard |")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines]
    told = {(cells[1], cells[2]): cells for cells in rows}
    expected = [(name, unit) for name in ("clean", "pgd") for unit in ("top-1 %", "NLL")]
    assert list(told) == [*expected, *(("agcam", unit) for unit in ("pixel accuracy %", "IoU %", "DICE"))]
    assert told["pgd", "top-1 %"][3:6] == ["quest", "standard", "+1.61 (better)"]
    assert told["pgd", "NLL"][5] == "-0.055 (better)"
    ours = between(run, *PAIR, PGD, "nll")
    assert told["pgd", "NLL"][6] == f"{ours.value:+.3f} [{ours.ci_low:+.3f}, {ours.ci_high:+.3f}]"
    words = [cells[-1] for cells in rows]
    assert set(words) <= {"shown", "the opposite", "cannot tell"}
    shown, opposite = words.count("shown"), words.count("the opposite")
    assert f"Of 7 differences that the paper has, {shown} show here, {opposite} are the opposite, and" in page
    raw = [between(run, *PAIR, name, metric) for name in ("clean", PGD) for metric in ("top1", "nll")]
    raw += [between(run, *PAIR, BOX, f"cam_{name}") for name in ("pixel_accuracy", "iou", "dice")]
    adjusted = [float(cells[8].removeprefix("< ")) for cells in rows]
    assert adjusted == pytest.approx(holm([one.p_value for one in raw]), abs=1e-3)


def test_differences_that_the_paper_does_not_resolve_have_no_verdict(script: Any, run: Run) -> None:
    close = {"protocol": "standard", **script.published_figures()}
    close = close | {"quest": close["standard"] | {"pgd": {"top1": 0.4375, "nll": 2.60}}, "protocol": "standard"}
    page = quest_page.page([run], close, "x")
    rows = [line for line in page.splitlines() if line.startswith("| standard |")]
    assert len(rows) == 1 and "| NLL" in rows[0] and "(worse)" in rows[0]


def test_what_the_paper_has_no_figure_of_is_listed_where_0_is_left_out(script: Any, run: Run) -> None:
    page = quest_page.page([run], script.published_figures() | {"protocol": "quest-paper"}, "x")
    found = [line for line in page.splitlines() if line.startswith("- ")]
    expected = []
    for name, condition in (("pgd", PGD), ("noise", "noise"), ("agcam-mask", BOX.replace("box", "mask"))):
        metrics = {"pgd": ("top1", "nll"), "noise": ("mean_error",)}.get(name, script.LOCALISED)
        for metric in metrics:
            d = between(run, *PAIR, condition, metric)
            if d.ci_low > 0 or d.ci_high < 0:
                better = d.value < 0 if metric in ("nll", "mean_error") else d.value > 0
                expected.append((name, script.UNITS[metric][0], "better" if better else "worse"))
    told = [line[2:].replace(" (standard)", "").replace(": ", ", ").split(", ") for line in found]
    assert [(words[1], words[2], words[-1]) for words in told] == expected
    assert expected


def test_the_first_checkpoint_must_have_standard_attention(script: Any, run: Run, published: dict[str, Any]) -> None:
    asked = run.manifest.arguments["checkpoints"]
    turned = Mirror(run, asked[::-1])
    with pytest.raises(RobustkitError, match="shapes-vit-quest has quest attention; expected one with standard"):
        quest_page.page([turned], published, "x")
    alone = sections(quest_page.page([Mirror(run, [f"zoo:{PAIR[0]}"])], published, "x"))
    assert [cells[0] for cells in alone["pgd"][2:]] == ["standard"]


class Mirror:
    """A run that was asked for other checkpoints."""

    def __init__(self, run: Run, asked: list[str]) -> None:
        arguments = {**run.manifest.arguments, "checkpoints": asked}
        self.manifest, self.path = replace(run.manifest, arguments=arguments), run.path
        self.summary, self.table = run.summary, run.table


def test_maps_have_a_table_for_boxes_with_the_published_figures_and_one_for_masks(script: Any, run: Run) -> None:
    heading, _, _, cells = sections(quest_page.page([run], script.published_figures(), "x"))["AG-CAM"]
    box = {r["metric"]: r for r in run.summary() if (r["checkpoint"], r["condition"]) == (PAIR[1], BOX)}
    assert heading[4:7] == ["IoU % [95 %]", "minus standard", "minus best control"]
    found, lead = box["cam_iou"], box["cam_iou_over_control"]
    assert cells[4] == f"{100 * found['value']:.1f} [{100 * found['ci_low']:.1f}, {100 * found['ci_high']:.1f}]"
    assert cells[6].startswith(f"{100 * lead['value']:+.1f} [")
    assert cells[6].endswith(f"({lead['flags'][0].removeprefix('best control: ')})")
    assert cells[-3:] == ["70.76", "53.54", "0.660"]


def test_the_published_figures_are_the_papers(script: Any) -> None:
    published = script.published_figures()
    assert published["elliptical-quest"]["spsa"] == {"top1": 0.5915, "top5": 0.8744, "nll": 1.613}
    assert published["standard"]["in-c"] == {"mce_16": 0.557}
    assert published["quest"]["agcam"] == {"cam_pixel_accuracy": 0.7076, "cam_iou": 0.5354, "cam_dice": 0.6597}
    attacks = ("clean", "fgsm", "pgd", "spsa", "autoattack")
    for name in ("standard", "quest", "elliptical", "elliptical-quest"):
        figures = [published[name][attack] for attack in attacks]
        assert all(f["top1"] < f["top5"] < 1 < f["nll"] for f in figures)
