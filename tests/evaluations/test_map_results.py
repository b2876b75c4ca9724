"""Results of maps: means over the right samples, leads over controls, stability, tables and the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
import torch
from explained import AGCAM, FGSM, MODEL, NAME, results
from gate_runs import verdict
from manifests import whole

import cam
import robustkit
from cam.faithfulness import abpc
from cam.localisation import box_hits, iou_at, max_box_acc, pixel_counts, pxap, rank_correlation, score
from cam.registry import CONTROLS
from cam.sensitivity import redrawn_head
from robustkit.common.figure import Figure
from robustkit.common.finding import Finding
from robustkit.common.intervals import percentiles, wilson
from robustkit.data.dataset import open_dataset
from robustkit.data.images import to_pixels
from robustkit.errors import ProtocolError
from robustkit.evaluations.aggregate import Results
from robustkit.evaluations.attacks.evaluate import build_attack
from robustkit.evaluations.maps import METRICS, MapSpec
from robustkit.evaluations.maps.evaluate import LEVELS
from robustkit.evaluations.maps.results import Counted, Figures, PooledMaps, map_rows, method_figures, stability_rows
from robustkit.evaluations.maps.tables import _CHIEF, chief_grids, map_scores, map_tables
from robustkit.evaluations.presenting import finding_lines, note_lines
from robustkit.report.run import Run
from robustkit.runs.manifest import Manifest
from robustkit.slices.gallery.drawing import Choice

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def alone(run: Run) -> tuple[dict[str, Any], torch.Tensor, torch.Tensor]:
    """The records by id, and for the right samples maps and masks that were made one by one."""
    model, dataset = robustkit.load(MODEL), open_dataset("embedded:shapes")
    rows = {row["sample_id"]: row for row in run.table(NAME, AGCAM).to_pylist()}
    maps, masks = [], []
    for place, (name, row) in enumerate(rows.items()):
        sample = next(one for one in dataset.samples if one.id == name)
        pixels = to_pixels(dataset.image(sample), model.identity.preprocessing)[None] / 255
        found = cam.AGCAM(model).explain(pixels)
        mask = torch.from_numpy(dataset.mask(sample)).bool()
        scores = score(found.maps, mask[None])
        curves = abpc(model, pixels, found.maps, found.target, fill=0.5)
        assert row["target"] == row["prediction"] == int(found.target[0])
        assert row["mask_iou"] == pytest.approx(scores.iou.item(), abs=0.02)  # a pixel at the threshold may fall
        assert row["abpc"] == pytest.approx(curves.abpc.item(), abs=1e-3)
        alike = []
        for seed in range(5) if place % 3 == 0 else ():
            with redrawn_head(model.network, seed):
                alike.append(rank_correlation(found.maps, cam.AGCAM(model)(pixels, found.target)).item())
        assert not alike or row["head_correlation"] == pytest.approx(sum(alike) / 5, abs=1e-3)
        if row["correct"]:
            maps.append(found.maps[0])
            masks.append(mask)
    return rows, torch.stack(maps), torch.stack(masks)


def test_results_are_means_over_the_right_samples(
    run: Run, alone: tuple[dict[str, Any], torch.Tensor, torch.Tensor]
) -> None:
    rows, maps, masks = alone
    right = [row for row in rows.values() if row["correct"]]
    assert 6 < len(right) < 12
    plain = results(run, AGCAM)
    for mode in ("mask", "box"):
        found = results(run, f"{AGCAM[:-1]},mode={mode})")
        for name in ("pixel_accuracy", "iou", "dice", "precision", "recall"):
            expected = np.mean([row[f"{mode}_{name}"] for row in right])
            assert found[f"cam_{name}"].value == pytest.approx(expected, abs=1e-6)
            assert found[f"cam_{name}"].n == len(right)
        assert found["cam_iou"].low < found["cam_iou"].value < found["cam_iou"].high
    for metric, column in (("abpc", "abpc"), ("insertion_auc", "insertion"), ("pointing_game", "pointing_game")):
        assert plain[metric].value == pytest.approx(np.mean([row[column] for row in right]), abs=1e-6)
    changed = [row["head_correlation"] for row in right]
    assert plain["head_correlation"].value == pytest.approx(np.mean(changed), abs=1e-6)
    excluded = f"{12 - len(right)} of 12 samples are misclassified and excluded from the map scores"
    assert plain["abpc"].findings == (Finding("maps/misclassified-excluded", excluded, "note"),)
    pooled = pxap(pixel_counts(maps, masks, LEVELS).sum(dim=0)).item()
    best = max_box_acc(box_hits(maps, [open_boxes(mask) for mask in masks])).item()
    assert plain["pxap"].value == pytest.approx(pooled, abs=2e-3)
    assert plain["max_box_acc"].value == pytest.approx(best, abs=0.03)


def open_boxes(mask: torch.Tensor) -> torch.Tensor:
    return cam.boxes.boxes_of(mask)


def best_control(name: str) -> tuple[Finding, ...]:
    return (Finding("maps/best-control", f"best control: {name}", "note"),)


def test_the_lead_over_the_best_control_is_paired(run: Run) -> None:
    for metric, column, sign in (("abpc", "abpc", 1), ("deletion_auc", "deletion", -1), ("road", "road", 1)):
        values = {}
        for method in ("agcam", *CONTROLS):
            rows = run.table(NAME, f"cam({method},faithfulness=all)").to_pylist()
            values[method] = np.array([row[column] for row in rows if row["correct"]])
        best = max(CONTROLS, key=lambda name: sign * values[name].mean())
        lead = results(run, AGCAM)[f"{metric}_over_control"]
        gaps = sign * (values["agcam"] - values[best])
        assert (lead.value, lead.findings) == (pytest.approx(gaps.mean(), abs=1e-6), best_control(best))
        assert lead.high - lead.low == pytest.approx(2 * 1.96 * gaps.std() / len(gaps) ** 0.5, rel=0.3)
    assert [metric.name for metric in METRICS if metric.better < 0] == ["deletion_auc", "road_morf", "infidelity"]
    box = f"{AGCAM[:-1]},mode=box)"
    ours, everything = (run.table(NAME, f"cam({m},faithfulness=all)").to_pylist() for m in ("agcam", "full"))
    pairs = [
        (a["box_pixel_accuracy"], b["box_pixel_accuracy"])
        for a, b in zip(ours, everything, strict=True)
        if a["correct"]
    ]
    lead = results(run, box)["cam_pixel_accuracy_over_control"]  # objects are small: marking nothing is the rival
    assert lead.findings == best_control("nothing")
    assert lead.value == pytest.approx(np.mean([a - (1 - b) for a, b in pairs]), abs=1e-6)


def test_the_best_control_is_found_anew_in_every_resample() -> None:
    generator = np.random.default_rng(0)
    scores = {name: generator.normal(0.5, 0.1, 40) for name in ("agcam", "random", "centre")}
    figures = [
        Figures(MapSpec(name), [str(i) for i in range(40)], {(f"cam({name})", "abpc"): values})
        for name, values in scores.items()
    ]
    lead = {row.key: row for row in map_rows(figures)}["cam(agcam)", "abpc_over_control"]
    counts = resampled(40)
    means = {name: counts @ values / 40 for name, values in scores.items()}
    leads = means["agcam"] - np.maximum(means["random"], means["centre"])
    assert (lead.low, lead.high) == pytest.approx(tuple(np.percentile(leads, percentiles(40))), abs=0.005)
    best = max(("random", "centre"), key=lambda name: scores[name].mean())
    assert lead.value == pytest.approx(scores["agcam"].mean() - scores[best].mean())
    assert (lead.n, lead.findings) == (40, best_control(best))


def resampled(n: int) -> Any:
    """How often each of n samples is drawn, in 20000 resamples."""
    return np.random.default_rng(1).multinomial(n, [1 / n] * n, size=20000)


def test_hits_and_misses_have_wilsons_interval() -> None:
    hits = {("cam(agcam)", "pointing_game"): np.repeat([1.0, 0.0, np.nan], [59, 1, 1])}
    (game,) = map_rows([Figures(MapSpec("agcam"), [str(i) for i in range(61)], hits)])
    assert (game.value, game.n, game.low, game.high) == (pytest.approx(59 / 60), 60, *wilson(59, 60))


def test_few_samples_and_maxima_have_no_interval() -> None:
    nine = Figures(MapSpec("agcam"), list("abcdefghi"), {("cam(agcam)", "abpc"): np.linspace(0, 1, 9)})
    (few,) = map_rows([nine])
    assert (few.value, few.n, few.interval) == (pytest.approx(0.5), 9, "")
    assert list(map_rows([Figures(MapSpec("agcam"), [], {("cam(agcam)", "abpc"): np.zeros(0)})])) == []
    ids = [str(i) for i in range(30)]
    hits = np.tile([[1, 0, 0], [0, 1, 1]], (15, 2))
    counted = Counted("max_box_acc", np.arange(30), lambda: hits)
    (most,) = map_rows([Figures(MapSpec("agcam"), ids, {("cam(agcam)", "max_box_acc"): counted})])
    assert most == Figure(0.5, 30).of("cam(agcam)", "max_box_acc")


def records(**columns: list[Any]) -> pa.Table:
    """Records of images that are predicted right, and have a map, where `columns` does not say otherwise."""
    (n,) = {len(values) for values in columns.values()}
    usual = {"sample_id": [str(i) for i in range(n)], "error": pa.nulls(n, pa.string())}
    usual |= {"correct": [True] * n, "clean_correct": [True] * n, "held": [True] * n, "degenerate": [False] * n}
    return pa.table(usual | columns)


def scored(table: pa.Table, keep: bool = False) -> dict[str, Figure]:
    """The figures of a map with these records, by metric."""
    figures = method_figures(lambda: iter([table]), PooledMaps().taken(table), PooledMaps(), MapSpec("agcam"), keep, ())
    return {row.metric: row for row in map_rows([figures])}


def of_code(row: Figure, code: str) -> list[Finding]:
    return [finding for finding in row.findings if finding.code == code]


@pytest.mark.parametrize(
    ("vanished", "correct", "keep", "said"),
    [
        ([0, 0, 0, 0], [1, 1, 1, 1], False, ""),
        ([0, 1, 0, 0], [1, 1, 1, 1], False, "1 boxes lie outside the crop and are ignored"),
        ([2, 1, None, 0], [1, 1, 1, 1], False, "3 boxes lie outside the crop and are ignored"),
        ([2, 1, None, 5], [1, 1, 1, 0], False, "3 boxes lie outside the crop and are ignored"),
        ([0, 0, None, 5], [1, 1, 1, 0], False, ""),  # that image is not counted
        ([0, 0, None, 5], [1, 1, 1, 0], True, "5 boxes lie outside the crop and are ignored"),
        ([None] * 4, [1, 1, 1, 1], False, ""),
    ],
)
def test_boxes_outside_the_crop_are_told_of_the_images_that_count(
    vanished: list[Any], correct: list[int], keep: bool, said: str
) -> None:
    table = records(
        vanished_boxes=pa.array(vanished, pa.int32()), correct=[bool(one) for one in correct], abpc=[0.1, 0.2, 0.3, 0.4]
    )
    row = scored(table, keep)["abpc"]
    expected = [Finding("maps/boxes-cropped", said, "note")] * bool(said)
    assert of_code(row, "maps/boxes-cropped") == expected
    assert row.n == (4 if keep else sum(correct))


def test_a_score_that_a_constant_map_has_not_is_of_the_other_maps() -> None:
    constant = [True, False, False, False]
    table = records(
        degenerate=constant,
        map_gini=[None, 0.25, 0.5, 0.75],
        infidelity=[None, 1.0, 2.0, 3.0],
        max_sensitivity=[None, None, 2.0, 4.0],
        abpc=[0.0, 0.1, 0.2, 0.3],
    )
    rows = scored(table)
    zeros = Finding("maps/degenerate", "1 of 4 maps are constant or not finite; they are scored as all zeros")
    without = Finding("maps/constant-excluded", "1 of 4 maps are constant")
    for metric, value in (("map_gini", 0.5), ("infidelity", 2.0)):
        assert (rows[metric].value, rows[metric].n, rows[metric].findings) == (value, 3, (zeros, without))
    assert (rows["abpc"].n, rows["abpc"].findings) == (4, (zeros,))  # it is scored as all zeros
    overflowed = Finding("maps/non-finite", "1 of 4 maps have a score that is not finite; excluded")
    assert (rows["max_sensitivity"].n, rows["max_sensitivity"].findings) == (2, (zeros, without, overflowed))
    rows = scored(records(map_gini=[0.0, 0.25, 0.5, 0.75], infidelity=[0.0, 1.0, 2.0, 3.0]))
    assert all((row.n, row.findings) == (4, ()) for row in rows.values())


def test_a_score_says_what_it_lacks_an_object_or_a_finite_answer() -> None:
    table = records(
        mask_iou=[0.5, None, 0.25, None],
        pointing_game=[None, None, None, 1.0],
        abpc=[0.5, np.nan, 0.25, 0.0],
        road=[None, None, 0.5, 0.25],
        energy_inside=[0.25] * 4,
        deletion=[0.75] * 4,
    )
    rows = scored(table)
    for metric, count in (("cam_iou", 2), ("pointing_game", 3)):
        outside = Finding("maps/no-object", f"{count} of 4 samples have no known object in the frame", "note")
        assert (rows[metric].n, rows[metric].findings) == (4 - count, (outside,))
    for metric, count in (("abpc", 1), ("road", 2)):
        odd = Finding("maps/non-finite", f"{count} of 4 maps have a score that is not finite; excluded")
        assert (rows[metric].n, rows[metric].findings) == (4 - count, (odd,))
    assert all((rows[metric].n, rows[metric].findings) == (4, ()) for metric in ("energy_inside", "deletion_auc"))


@pytest.mark.parametrize(
    ("correlations", "same"),
    [
        ([0.91] * 12, True),
        ([0.89] * 12, False),
        ([0.85, 0.99] * 6, False),  # 0.92, but chance may have it
        ([0.85, 0.99] * 40, True),
        ([1.0] * 9, False),  # too few for an interval
        ([1.0] * 10, True),
        ([1.0] * 10 + [None] * 2, True),
    ],
)
def test_maps_that_surely_stay_with_a_random_head_do_not_depend_on_the_class(
    correlations: list[float | None], same: bool
) -> None:
    rows = scored(records(head_correlation=correlations, cascade_correlation=correlations))
    code, said = "maps/independent-of-class", "maps stay the same with a random head: they do not depend on the class"
    assert of_code(rows["head_correlation"], code) == [Finding(code, said)] * same
    assert not of_code(rows["cascade_correlation"], code)  # that of the whole network


@pytest.mark.parametrize(
    ("lost", "right", "keep", "said"),
    [
        ([0, 0, 0, 0], [1, 1, 1, 1], False, ""),
        ([0, 1, 0, 0], [1, 1, 1, 1], False, "1 of 4 pairs have a map that is constant or not finite; excluded"),
        ([1, 1, 0, 0], [1, 1, 1, 0], False, "2 of 3 pairs have a map that is constant or not finite; excluded"),
        ([0, 0, 0, 1], [1, 1, 1, 0], False, ""),  # of an image that is not counted
        ([0, 0, 0, 1], [1, 1, 1, 0], True, "1 of 4 pairs have a map that is constant or not finite; excluded"),
        ([0, 0, 0, 1], [1, 1, 1, None], False, "1 of 4 pairs have a map that is constant or not finite; excluded"),
    ],
)
def test_pairs_with_a_constant_map_are_excluded_and_counted(
    lost: list[int], right: list[int | None], keep: bool, said: str
) -> None:
    alike = [None if one else 0.5 for one in lost]
    table = records(
        degenerate=[bool(one) for one in lost],
        clean_correct=[None if one is None else bool(one) for one in right],
        rank_correlation=pa.array(alike, pa.float32()),
        map_iou=pa.array(alike, pa.float32()),
    )
    stability = MapSpec("agcam", under=FGSM)
    rows = {row.metric: row for row in stability_rows(table, stability, keep, ())}
    assert rows.keys() == {"rank_correlation", "rank_correlation_held", "map_iou", "map_iou_held"}
    counted = [place for place, one in enumerate(right) if keep or one != 0]
    for row in rows.values():
        assert of_code(row, "maps/pairs-degenerate") == [Finding("maps/pairs-degenerate", said)] * bool(said)
        assert row.n == len(counted) - sum(lost[place] for place in counted) and row.value == 0.5


def test_stability_is_of_the_same_attack_and_1_without_one(run: Run) -> None:
    still = run.table(NAME, "stability(agcam,under=fgsm(eps=0))").to_pylist()
    assert all(row["held"] and row["map_iou"] == 1 for row in still)
    assert [row["rank_correlation"] for row in still] == pytest.approx([1.0] * 12)
    moved = run.table(NAME, f"stability(agcam,under={FGSM})").to_pylist()
    attacked = run.table(NAME, FGSM).to_pylist()
    assert [row["prediction"] for row in moved] == [row["prediction"] for row in attacked]
    clean = {row["sample_id"]: row["prediction"] for row in run.table(NAME, "clean").to_pylist()}
    assert [row["held"] for row in moved] == [row["prediction"] == clean[row["sample_id"]] for row in moved]
    right = {row["sample_id"]: row["correct"] for row in run.table(NAME, "clean").to_pylist()}
    assert [row["clean_correct"] for row in moved] == [right[row["sample_id"]] for row in moved]
    counted = [row for row in moved if row["clean_correct"]]
    assert 0 < len(counted) < len(moved)
    held = [row["rank_correlation"] for row in counted if row["held"]]
    fell = [row["rank_correlation"] for row in counted if not row["held"]]
    found = results(run, f"stability(agcam,under={FGSM})")
    assert (found["rank_correlation_held"].value, found["rank_correlation_held"].n) == (
        pytest.approx(np.mean(held), abs=1e-6),
        len(held),
    )
    assert found["rank_correlation_fell"].value == pytest.approx(np.mean(fell), abs=1e-6)
    model, dataset = robustkit.load(MODEL), open_dataset("embedded:shapes")
    sample = next(one for one in dataset.samples if one.id == moved[0]["sample_id"])
    pixels = to_pixels(dataset.image(sample), model.identity.preprocessing)[None] / 255
    attack = build_attack(
        robustkit.evaluations.attacks.evaluate.parse_condition(FGSM, robustkit.protocol.card.load_card("standard")),
        robustkit.protocol.card.load_card("standard"),
    )
    shown = attack(model, pixels, torch.tensor([sample.label]))
    target = model(pixels).argmax(1)
    first, second = (cam.AGCAM(model)(images, target) for images in (pixels, shown))
    assert moved[0]["rank_correlation"] == pytest.approx(rank_correlation(first, second).item(), abs=1e-3)
    assert moved[0]["map_iou"] == pytest.approx(iou_at(first, second).item(), abs=0.02)


def test_the_tables_have_a_row_a_method_with_its_lead_below_and_the_controls_last(run: Run) -> None:
    tables = {table.title: table for table in map_tables(run.summary())}
    mask = tables["maps, mask mode at threshold 0.5"]
    assert mask.headings == ("method", "n", "pixel acc. %", "IoU %", "DICE %", "precision %", "recall %")
    assert [row[0] for row in mask.rows] == ["agcam", "agcam, lead", *CONTROLS]
    shown, ahead, *controls = mask.rows
    found = results(run, f"{AGCAM[:-1]},mode=mask)")
    iou, lead = found["cam_iou"], found["cam_iou_over_control"]
    best = lead.findings[0].text.removeprefix("best control: ")
    counted = str(iou.n)
    full = results(run, "cam(full,faithfulness=all,mode=mask)")["cam_iou"]
    span = "{:.1f} [{:.1f}, {:.1f}]"
    iou, lead, full = ([100 * end for end in (row.value, row.low, row.high)] for row in (iou, lead, full))
    assert (shown[1], shown[3], controls[-1][3]) == (counted, span.format(*iou), f"{full[0]:.1f}")
    assert ahead[3] == f"over {best}: {span.replace(':', ':+').format(*lead)}"
    assert ahead[5:] == ("", "")  # precision or recall alone is nothing to be ahead in
    stable = tables["agcam: alike to the clean map"]
    assert [row[0] for row in stable.rows] == [FGSM, "fgsm(eps=0)"]
    right = sum(row["correct"] for row in run.table(NAME, "clean").to_pylist())
    assert stable.rows[1][1:3] == (str(right), "1.000 [1.000, 1.000]")
    lost = f"{12 - right} of 12 samples are misclassified and excluded from the map scores"
    found = Results.of(run, run.summary())
    excluded = Finding("maps/misclassified-excluded", lost, "note")
    assert f"{NAME}, all maps: {excluded}" in note_lines(found)
    assert not any(lost in line for line in finding_lines(found))
    assert {excluded, *best_control(best)} <= {finding for row in found for finding in row.findings}
    raised = verdict(run, f"no findings under {AGCAM}").reason
    assert lost not in raised and "best control" not in raised
    (chief,) = chief_grids(map_scores(run.summary(), of=_CHIEF))
    assert chief.title == NAME and [row[0] for row in chief.rows] == ["agcam", "best control"]
    entry = map_scores(run.summary(), of=_CHIEF)[0]
    kinds = [grid.title for grid in chief_grids([entry, replace(entry, kind="threshold 0.3")])]
    assert kinds == [f"{NAME}: {entry.kind}", f"{NAME}: threshold 0.3"]
    place = chief.headings.index("IoU of pixels %")
    assert chief.rows[0][place] == span.format(*iou) and chief.rows[1][place] == f"{iou[0] - lead[0]:.1f} ({best})"
    page = (run.path / "report.html").read_text("utf-8")
    assert page.count("<h3>agcam: alike to the clean map</h3>") == 1


def test_the_page_of_maps_has_two_galleries(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from scripts.studies.maps import page as maps_page

    monkeypatch.setattr(maps_page, "SHAPES", (MODEL, MODEL))
    assert [path for path, _ in maps_page.draw(run, tmp_path / "maps")] == [
        "shapes-disagreement.png",
        "shapes-controls.png",
    ]
    assert len({path.read_bytes() for path in (tmp_path / "maps").iterdir()}) == 2


def test_the_page_says_where_a_control_wins(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from scripts.studies.maps import page as maps_page

    class Told:
        manifest: ClassVar[Manifest] = whole({"checkpoints": [{"name": "vit"}]})

        def summary(self) -> list[Figure]:
            leads = (("mask", "cam_iou", -0.3, -0.1), ("mask", "cam_recall", -0.9, -0.8), ("box", "cam_dice", 0.1, 0.2))
            free = (("", "pxap", -0.1, 0.2), ("", "abpc", 0.02, 0.3), ("", "energy_inside", -0.1, -0.0001))
            return [
                Figure((low + high) / 2, 9, low, high, checkpoint="vit").of(
                    f"cam(agcam{',mode=' * bool(mode)}{mode})", f"{metric}_over_control", best_control("full")
                )
                for mode, metric, low, high in (*leads, *free)
            ] + [
                Figure(0.053, 9, checkpoint="vit").of("cam(agcam)", "max_box_acc_over_control", best_control("centre"))
            ]

    reported: Any = Told()
    assert list(maps_page.behind(reported)) == [
        "- vit, agcam: Ahead of every control in DICE (box); ABPC. Behind the best one in IoU (mask), by 0.200 (full). "
        "Not distinguished from it in PxAP +0.050 (full); energy inside -0.050 (full). Without an interval MaxBoxAccV2 "
        "+0.053 (centre)."
    ]
    assert maps_page.leads(reported, "vit")["PxAP"]["agcam"] == (pytest.approx(0.05), -0.1, 0.2, "full")
    assert "recall (mask)" not in maps_page.leads(reported, "vit")
    last = maps_page.in_short([("Part", reported)]).splitlines()[-1].split("|")
    assert [cell.strip() for cell in last[1:-1]] == [
        *("Part", "vit, agcam", "1 ahead, 0 level, 1 behind", "0 ahead, 2 level, 0 behind", "+0.053", "ahead (+0.160)")
    ]
    part = maps_page.Part("zoo", "The zoo", [MODEL])
    page = maps_page.page([(part, run)], "python -m scripts.studies.maps.page", [("maps/a.png", "a picture")])
    assert page.count("| method ") == 3 and "![a picture](maps/a.png)" in page
    assert "head redrawn" in page and f"Note: {NAME}, all maps: " in page
    digest = run.manifest.data.digest[:12]
    assert f"12 images of `embedded:shapes` (digest {digest}…)" in page and "-0.000" not in page
    own = results(run, AGCAM)["pointing_game"].value
    (line,) = (line for line in maps_page.side_by_side(run).splitlines() if line.startswith("| pointing"))
    assert f" {own:.3f} [" in line and line in page


def test_a_control_is_drawn_when_it_is_named() -> None:
    choice = Choice.of([MODEL], "centre,agcam")
    assert [one.method for one in choice.maps] == ["agcam", "centre"]
    assert [one.method for one in Choice.of([MODEL], "agcam").maps] == ["agcam"]
    with pytest.raises(ProtocolError, match="controls only"):
        Choice.of([MODEL], "centre,full")


def test_another_batch_size_and_a_kept_run_give_the_same(run: Run, tmp_path: Path) -> None:
    options: dict[str, Any] = {"data_dir": "embedded:shapes", "attacks": "none", "cams": "agcam", "limit": 12}
    again = robustkit.audit(
        [MODEL], out=tmp_path, device="cpu", faithfulness="none", keep_misclassified=True, batch_size=12, **options
    )
    rows = again.table(NAME, "cam(agcam,faithfulness=none)").to_pylist()
    for row, other in zip(rows, run.table(NAME, AGCAM).to_pylist(), strict=True):
        assert (row["sample_id"], row["target"]) == (other["sample_id"], other["target"])
        assert row["mask_iou"] == pytest.approx(other["mask_iou"], abs=0.02)
        assert row["energy_inside"] == pytest.approx(other["energy_inside"], abs=1e-4)
    drawn = [again.table(NAME, "cam(random,faithfulness=none)"), run.table(NAME, "cam(random,faithfulness=all)")]
    assert drawn[0]["energy_inside"].to_pylist() == drawn[1]["energy_inside"].to_pylist()
    found = {r.metric: r for r in again.summary() if r.condition == "cam(agcam,faithfulness=none)"}
    assert found["pointing_game"].n == 12
    assert "abpc" not in found
