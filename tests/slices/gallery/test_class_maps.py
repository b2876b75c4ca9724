"""Maps of a segmenter's classes as conditions: texts, regions, records against slow replicas, leads, galleries."""

from __future__ import annotations

import math
import shutil
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest
import torch
from figures import said_of
from safetensors.torch import save_file
from torch import Tensor, nn

import cam
import robustkit
from cam import SegmentTarget
from cam.faithfulness import abpc
from cam.localisation import rank_correlation
from cam.sensitivity import randomise_weights
from robustkit.common.determinism import SampleRng
from robustkit.common.intervals import mean_of
from robustkit.data.scenes import open_scenes
from robustkit.data.shapes import cached_render
from robustkit.errors import ModelError, ProtocolError, RobustkitError
from robustkit.evaluations.aggregate import Results
from robustkit.evaluations.condition import check_condition, kind_of, matches, words_of
from robustkit.evaluations.records import CheckpointRecords
from robustkit.evaluations.subject import Batch, Settings
from robustkit.models.dense import SegmenterNetwork
from robustkit.pipeline.inputs import options_asking
from robustkit.protocol.card import load_card
from robustkit.report.run import Run
from robustkit.runs import untrusted
from robustkit.slices.gallery.class_maps import COLUMNS_READ, VOCABULARY, ClassMap, Region, parse_class_map
from robustkit.slices.gallery.class_maps.evaluate import ClassMapsEvaluator, _curves, explained_in, overlap_of
from robustkit.slices.gallery.class_maps.results import (
    ClassMapsAggregator,
    ClassMapsPresenter,
    Values,
    lead_rows,
    moved_rows,
    value_rows,
)
from robustkit.tasks.segmentation import TASK
from robustkit.tasks.segmentation.subject import SegmenterSubject

pytestmark = pytest.mark.usefixtures("one_thread")
MODEL = "zoo:shapes-segmenter-standard"
NAME = "shapes-segmenter-standard"
OPTIONS: dict[str, Any] = {
    "data_dir": "embedded:shapes",
    "attacks": "none",
    "limit": 3,
    "device": "cpu",
    "examples": 0,
    "setup_check": False,
}
PGD, FOG = "pgd(eps=1/255,steps=2)", "corruption(fog,severity=3,variant=bethgelab)"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Maps of each class with all tests, those of one class over the truth, and both under an attack and fog."""
    cams = "agcam(of=*,faithfulness=all),gradient(of=disc,over=true)"
    out = tmp_path_factory.mktemp("maps") / "run"
    more = {"attacks": "pgd(steps=2)", "corruptions": "fog(severity=3)", "stability": True, "examples": 2}
    return robustkit.segment(MODEL, out=out, cams=cams, **{**OPTIONS, **more})


def rows_of(run: Run, condition: str) -> dict[str, dict[str, Any]]:
    columns = [*COLUMNS_READ, "sample_id", "error"]
    return {row["sample_id"]: row for row in run.table(NAME, condition, columns).to_pylist()}


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("agcam", "cam(agcam,of=largest)"),
        ("AGCAM(of=road)", "cam(agcam,of=road)"),
        ("cam(agcam,of=road,over=predicted)", "cam(agcam,of=road)"),
        ("cam(rise,masks=200,of=*,over=box)", "cam(rise,masks=200,of=*,over=box)"),
        ("legrad(layers=2, of=a b, over=pixel=3+4, on=20)", "cam(legrad,layers=2,of=a b,over=pixel=3+4,on=20)"),
        ("own-mask(faithfulness=none)", "cam(own-mask,of=largest,faithfulness=none)"),
        ("class-noise(of=road)", "class-noise(of=road)"),
        (
            "stability(agcam,of=road,under=pgd(eps=1/255,steps=2))",
            "stability(agcam,of=road,under=pgd(eps=1/255,steps=2))",
        ),
    ],
)
def test_a_map_has_one_text_which_is_of_its_own_kind_and_means_itself(text: str, canonical: str) -> None:
    spec = parse_class_map(text)
    assert spec.text == canonical and parse_class_map(canonical) == spec
    assert words_of(canonical) is VOCABULARY
    assert kind_of(canonical) == ("class-noise" if not spec.method else "stability-of" if spec.under else "cam-of")
    pattern = check_condition(canonical.replace(",o", ", o"))
    assert pattern.text == canonical and matches(pattern, canonical)


def test_a_rule_means_the_class_and_region_that_it_names() -> None:
    pattern = check_condition("cam(agcam,of=road)")
    assert matches(pattern, "cam(agcam,of=road,over=predicted)")
    assert matches(check_condition("cam(agcam,of=road,over=true)"), "cam(agcam,of=road,over=true)")
    for other in ("cam(agcam,of=car)", "cam(gradient,of=road)", "cam(agcam)", "stability(agcam,of=road,under=clean)"):
        assert not matches(pattern, other), other
    assert kind_of("cam(agcam)") == "cam" == kind_of("cam(agcam,on=30)")
    assert kind_of("stability(agcam,under=cam(agcam,of=road))") == "stability"
    asked = {"attacks": "none", "cams": "agcam(of=road)"}
    for text in ("cam(agcam,of=road)", "Cam(AGCAM, of=road)"):
        assert options_asking(text) == asked
    assert check_condition("cam(Grad CAM,of=road)").text == "cam(grad-cam,of=road)"
    with pytest.raises(ProtocolError, match="'agcam' is not key=value"):
        check_condition("class-noise(agcam,of=road)")
    assert options_asking("class-noise(of=road)")["cams"] == "own-mask(of=road)"
    moved = options_asking(f"stability(agcam,of=road,under={FOG})")
    assert moved["stability"] is True and moved["cams"] == "agcam(of=road)" and moved["corruptions"] != "none"


NAMES = ("sky", "road", "void", "pole", "pole", "a, b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cam(of=road)", "cam(of=road): expected a method first, such as cam(agcam,of=road)"),
        ("agcamm(of=road)", "unknown map 'agcamm'"),
        ("full", "unknown map 'full'"),
        ("agcam(of=road,of=sky)", "a parameter is given twice; expected it once"),
        ("agcam(road)", "'road' is not key=value; expected such as of=road"),
        ("agcam(threshold=0.3)", "unknown parameter 'threshold'; known: faithfulness, of, on, over"),
        ("agcam(faithfulness=some)", "unknown faithfulness 'some'; known: abpc, all, none"),
        ("agcam(on=1/2)", "on 1/2; expected how many images, such as on=200"),
        ("agcam(over=nowhere)", "over nowhere: expected predicted, true, box, component=ROW+COLUMN, pixel=ROW+COLUMN"),
        ("agcam(over=pixel=3)", "over pixel=3: expected predicted"),
        ("agcam(over=box=1+2)", "over box=1+2: expected predicted"),
        ("agcam(over=pixel=-3+4)", "over pixel=-3+4: expected predicted"),
        ("agcam(of=rod)", "of=rod: no class 'rod' among the model's 6; did you mean road, void?"),
        ("agcam(of=7)", "of=7: target 7: the model has 6 classes, 0 to 5"),
        ("agcam(of=pole)", "of=pole: target 'pole' names classes 3, 4; give the number"),
        ("stability(agcam,of=road)", "under; stability(agcam,of=road,under=pgd) needs it, others do not have it"),
        ("agcam(of=road,under=pgd)", "under; stability(agcam,of=road,under=pgd) needs it, others do not have it"),
        ("cam-of(agcam,of=road)", "expected a method first, such as cam(agcam,of=road)"),
        ("class-noise(agcam,of=road)", "'agcam' is not key=value; expected such as of=road"),
        ("agcam(of=void)", "of=void: void is ignored, so no label says where it is; name another class, such as sky"),
    ],
)
def test_what_no_map_can_be_of_is_refused_in_a_line(text: str, message: str) -> None:
    with pytest.raises(RobustkitError) as raised:
        parse_class_map(text).resolve(NAMES, [2])
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_a_class_is_found_by_name_or_number_and_stays_as_it_was_typed() -> None:
    for typed, index in (("ROAD", 1), ("0", 0), ("4", 4), ("5", 5), ("b", 5)):
        spec = parse_class_map(f"agcam(of={typed})").resolve(NAMES, [2])
        assert (spec.of, spec.index) == (typed, index)  # so that a rule with the same words is met
    for typed in ("largest", "*"):
        assert parse_class_map(f"agcam(of={typed})").resolve(NAMES).index is None


PREDICTED = torch.tensor([[0, 0, 0, 1], [0, 2, 2, 1], [2, 2, 0, 0], [2, 0, 0, 0]])
TRUE = torch.tensor([[1, 1, 1, 1], [0, 0, 1, 1], [-1, -1, 1, 1], [-1, -1, -1, 2]])


def picked(of: str, over: str = "predicted", index: int | None = None, **options: Any) -> Any:
    spec = ClassMap("agcam", of=of, over=over, index=index)
    return {
        part.target: (part.region.nonzero().tolist(), part.object.nonzero().tolist())
        for part in explained_in(spec, PREDICTED, TRUE, **options)
    }


def where(mask: Tensor) -> list[list[int]]:
    return cast("list[list[int]]", mask.nonzero().tolist())


def test_classes_come_from_the_largest_down_with_the_pixels_of_the_region() -> None:
    every = picked("*")
    assert list(every) == [0, 2, 1]  # 9, 5 and 2 pixels
    assert all(every[k] == (where(k == PREDICTED),) * 2 for k in every)
    assert list(picked("*", unjudged=(0, 7))) == [2, 1] and list(picked("largest", unjudged=(0,))) == [2]
    assert list(picked("largest")) == [0] and picked("x", index=3) == {} and picked("x", index=9) == {}
    true = picked("*", "true")
    assert list(true) == [1, 0, 2] and true[1] == (where(TRUE == 1),) * 2  # ignored pixels are of no class
    assert (
        next(iter(explained_in(ClassMap("agcam", of="*"), torch.tensor([[1, 0]]), None))).target == 0
    )  # of equals the first


def test_a_pixel_a_box_and_a_component_choose_where_the_logits_are_summed() -> None:
    two = where(PREDICTED == 2)
    assert picked("largest", "pixel=1+1") == {2: ([[1, 1]], two)}
    assert picked("x", "pixel=0+0", index=2) == {}  # another class is there
    assert picked("x", "pixel=0+0", index=2, anywhere=True) == {2: ([[0, 0]], two)}  # why is it not of this one?
    box = [[row, column] for row in (0, 1) for column in (2, 3)]
    assert picked("largest", "box=0+2+2+4") == {1: (box, where(PREDICTED == 1))}  # two of its four pixels
    assert list(picked("*", "box=0+2+2+4")) == [1, 0, 2]
    around = [[row, column] for row in (1, 2, 3) for column in (0, 1, 2)]
    assert picked("x", "box", index=2) == {2: (around, two)}
    assert picked("x", "component=1+1", index=2) == {2: (two,) * 2}  # corners hang together
    apart = where(torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]))
    assert picked("x", "component=0+0", index=0) == {0: (apart,) * 2}
    assert picked("x", "component=1+3", index=0) == {}  # another class is there
    assert picked("largest", "pixel=0+4") == {} == picked("largest", "box=0+0+5+1")  # a smaller image than the first


def test_what_is_left_is_of_what_was_predicted_and_of_a_component_alone() -> None:
    def part(over: str, index: int) -> Any:
        return next(iter(explained_in(ClassMap("agcam", of="x", over=over, index=index), PREDICTED, TRUE)))

    for over, index in (("predicted", 0), ("true", 1), ("true", 0), ("component=0+0", 0), ("pixel=1+1", 2), ("box", 2)):
        assert part(over, index).left(PREDICTED) == 1.0  # nothing changed
    corner = part("component=0+0", 0)  # four pixels, and five of another component
    less = PREDICTED.clone()
    less[0, 0], less[3, 3] = 1, 1
    assert corner.left(less) == 0.75 and part("predicted", 0).left(less) == pytest.approx(7 / 9)
    assert math.isnan(
        next(iter(explained_in(ClassMap("agcam", of="x", over="true", index=1), PREDICTED * 0, TRUE))).left(less)
    )


@pytest.mark.parametrize(
    ("region", "size", "inside"),
    [
        ("pixel=3+4", (4, 5), True),
        ("pixel=4+4", (4, 5), False),
        ("pixel=3+5", (4, 5), False),
        ("box=0+0+4+5", (4, 5), True),
        ("box=0+0+4+6", (4, 5), False),
        ("box=2+2+2+4", (4, 5), False),
        ("box=1+3+2+3", (4, 5), False),
        ("box", (1, 1), True),
    ],
)
def test_a_region_lies_inside_and_has_pixels(region: str, size: tuple[int, int], inside: bool) -> None:
    if inside:
        Region.of(region).check(*size, "a.png")
        return
    with pytest.raises(
        ProtocolError, match=f"a.png has {size[0]} rows and {size[1]} columns; expected a region inside"
    ):
        Region.of(region).check(*size, "a.png")


class Replica:
    """Scores of maps of one image by plain loops."""

    def __init__(self, name: str) -> None:
        split, _, index = name.partition("/")
        shape = cached_render(split, int(index))
        self.name, self.segmenter = name, robustkit.load_segmenter(MODEL)
        self.image = torch.from_numpy(shape.pixels.copy()).permute(2, 0, 1)[None] / 255
        self.truth = torch.from_numpy(shape.mask.astype(np.int64) * (1 + shape.label))
        self.predicted = self.classes(self.image)

    def classes(self, image: Tensor) -> Tensor:
        with torch.no_grad():
            return cast("Tensor", self.segmenter(image)[0].argmax(dim=0))

    def overlap(self, image: Tensor, own: Tensor, target: int) -> float:
        mask = self.classes(image) == target
        return int((mask & own).sum()) / max(int((mask | own).sum()), 1)

    def curve(self, heat: Tensor, own: Tensor, target: int, first: str, back: Tensor, front: Tensor) -> list[float]:
        """The overlap while 0, 10, … 100 % of the pixels of `front` become those of `back`."""
        order = heat.flatten().argsort(descending=first == "high", stable=True)
        if first == "low":  # the reverse of the same order
            order = heat.flatten().argsort(descending=True, stable=True).flip(0)
        points = []
        for step in range(11):
            image = front.clone()
            chosen = order[: step * heat.numel() // 10]
            image.flatten(2)[:, :, chosen] = back.flatten(2)[:, :, chosen]
            points.append(self.overlap(image, own, target))
        return points


def test_scores_are_those_of_plain_loops(run: Run) -> None:
    rows = rows_of(run, "cam(agcam,of=*,faithfulness=all)")
    assert len(rows) == 3
    name, row = max(rows.items(), key=lambda item: len(item[1]["explained"]))
    replica = Replica(name)
    counts = torch.bincount(replica.predicted.flatten(), minlength=11)
    assert row["explained"] == [k for k in counts.argsort(descending=True, stable=True).tolist() if counts[k]]
    grey = replica.segmenter.mean.view(1, 3, 1, 1).expand_as(replica.image)
    for place, target in enumerate(row["explained"][:2]):
        mask = replica.predicted == target
        heat = cam.AGCAM(replica.segmenter)(replica.image, SegmentTarget(target, mask))[0]
        assert row["class_area"][place] == pytest.approx(float(mask.float().mean()), abs=1e-6)
        assert row["class_energy"][place] == pytest.approx(float(heat[mask].sum() / heat.sum()), abs=1e-5)
        assert row["class_pointing"][place] == float(mask.flatten()[heat.flatten().argmax()])
        low, high = (replica.curve(heat, mask, target, first, grey, replica.image) for first in ("low", "high"))
        assert row["class_abpc"][place] == pytest.approx(np.mean(np.subtract(low, high)), abs=2e-3)
        assert 0 <= row["class_deletion"][place] <= 1 and row["class_flat"][place] == 0
        assert row["class_deletion"][place] < row["class_insertion"][place] + 1


def test_controls_see_the_same_classes_and_the_own_mask_is_on_them(run: Run) -> None:
    mine = rows_of(run, "cam(agcam,of=*,faithfulness=all)")
    for control in ("random", "centre", "own-mask"):
        theirs = rows_of(run, f"cam({control},of=*,faithfulness=all)")
        assert [theirs[name]["explained"] for name in mine] == [mine[name]["explained"] for name in mine]
        assert all(row["class_head_correlation"] is None for row in theirs.values())
        if control == "own-mask":
            assert all(set(row["class_energy"]) == {1.0} == set(row["class_pointing"]) for row in theirs.values())
    assert all(len(row["class_head_abpc"]) == len(row["explained"]) for row in mine.values())
    assert all(max(map(abs, row["class_head_correlation"])) < 0.999 for row in mine.values())  # another head


def test_an_image_without_the_class_is_counted_and_left_out(run: Run) -> None:
    condition = "cam(gradient,of=disc,over=true)"
    rows = rows_of(run, condition)
    scenes = open_scenes("embedded:shapes", num_classes=11)
    disc = scenes.class_names.index("disc")
    has = [name for name in rows if (Replica(name).truth == disc).any()]
    assert [name for name, row in rows.items() if row["explained"]] == has and len(has) < 3
    figures = {row.metric: row for row in run.summary() if row.condition == condition}
    if has:
        assert figures["class_energy"].n == len(has)
        assert f"{3 - len(has)} of 3 images do not show the class there; excluded" in said_of(figures["class_energy"])
        assert figures["class_energy"].value + figures["class_context"].value == pytest.approx(1)
        assert not [name for name in figures if name.startswith("class_energy(")]  # the condition says which


def test_noise_replaces_the_class_or_all_else_by_even_levels(run: Run) -> None:
    rows = rows_of(run, "class-noise(of=*)")
    name, row = next(iter(rows.items()))
    replica = Replica(name)
    rng = SampleRng.of([name], seed=0, condition="class-noise", device="cpu")
    levels = (rng.uniform((3, 64, 64), "levels") * 256).floor() / 255
    for place, target in enumerate(row["explained"]):
        mask = replica.predicted == target
        on_it, around = torch.where(mask, levels, replica.image), torch.where(mask, replica.image, levels)
        assert row["class_noise_inside"][place] == pytest.approx(replica.overlap(on_it, mask, target), abs=1e-6)
        assert row["class_noise_around"][place] == pytest.approx(replica.overlap(around, mask, target), abs=1e-6)


def test_maps_under_a_condition_are_over_the_clean_pixels(run: Run) -> None:
    name, row = next(iter(rows_of(run, f"stability(agcam,of=*,under={PGD})").items()))
    replica = Replica(name)
    assert row["explained"] == rows_of(run, "cam(agcam,of=*,faithfulness=all)")[name]["explained"]
    assert all(-1 <= value <= 1 for value in row["class_rank_correlation"])
    fog = rows_of(run, f"stability(agcam,of=*,under={FOG})")[name]
    assert np.mean(fog["class_rank_correlation"]) < np.mean(row["class_rank_correlation"])
    assert len(set(replica.predicted.flatten().tolist())) == len(row["explained"]) == len(fog["class_iou_left"])
    figures = {each.metric: each for each in run.summary() if each.condition == f"stability(agcam,of=*,under={FOG})"}
    assert figures["class_iou_left"].n == 3 and "class_rank_correlation_held" in figures


def table(explained: list[list[int]], **columns: list[list[float]]) -> pa.Table:
    ids = [f"{place:02}" for place in range(len(explained))]
    return pa.table({"sample_id": ids, "error": pa.nulls(len(ids), pa.string()), "explained": explained, **columns})


READING = cast("Any", SimpleNamespace(groups=lambda ids: None))


def values(spec: ClassMap, explained: list[list[int]], **columns: list[list[float]]) -> Values:
    return Values.of(spec, table(explained, **columns), [], READING)


def test_an_image_counts_once_whatever_the_number_of_its_classes() -> None:
    spec = ClassMap("agcam", of="*")
    explained: list[list[int]] = [[1, 0], [1], [], [0]]
    mine = values(
        spec,
        explained,
        class_energy=[[0.2, 0.6], [0.5], [], [0.1]],
        class_head_correlation=[[0.95, math.nan], [0.91], [], [math.nan]],
        class_flat=[[0.0, 1.0], [0.0], [], [0.0]],
    )
    figures = {row.metric: row for row in value_rows(mine, ["sky", "road"])}
    assert figures["class_energy"].value == pytest.approx((0.4 + 0.5 + 0.1) / 3) and figures["class_energy"].n == 3
    assert figures["class_energy(road)"].value == pytest.approx(0.35) and figures["class_energy(road)"].n == 2
    assert figures["class_energy(sky)"].value == pytest.approx(0.35)
    assert figures["class_context"].value == pytest.approx((0.8 + 0.5 + 0.9) / 3)  # without the constant map
    assert figures["class_head_correlation"].n == 2 and "class_head_correlation(sky)" not in figures
    findings = said_of(figures["class_energy"])
    assert "1 of 4 images do not show the class there; excluded" in findings
    assert "1 of 4 maps are constant or not finite; they are scored as all zeros" in findings


@pytest.mark.parametrize(("low", "flagged"), [(0.89, False), (0.91, True)])
def test_a_map_that_stays_with_another_head_is_flagged(low: float, flagged: bool) -> None:
    mine = values(ClassMap("agcam", of="*"), [[0]] * 12, class_head_correlation=[[low]] * 12)
    (row, _) = value_rows(mine, ["sky"])
    assert ("maps stay the same with a random head" in " ".join(said_of(row))) is flagged


def test_a_lead_is_paired_over_the_best_control_and_over_the_own_mask() -> None:
    draw = np.random.default_rng(0)
    kind = ClassMap("", of="*", faithfulness="all")
    explained = [[0]] * 20
    scores = {name: draw.random(20) for name in ("agcam", "random", "centre", "own-mask", "head")}
    scores["centre"] += 0.5
    every = {}
    for name in ("agcam", "random", "centre", "own-mask"):
        spec = ClassMap(name, of="*", faithfulness="all")
        columns = {
            "class_abpc": [[value] for value in scores[name]],
            "class_deletion": [[-value] for value in scores[name]],
        }
        if name == "agcam":
            columns["class_head_abpc"] = [[value] for value in scores["head"]]
        every[spec] = values(spec, explained, **columns)
    assert kind in {spec.kind for spec in every}
    rows = {row.metric: row for row in lead_rows(next(iter(every.values())), every)}
    assert set(rows) == {
        f"class_{score}_over_{rival}" for score in ("abpc", "deletion") for rival in ("control", "own_mask")
    }
    for name, rival in (("class_abpc_over_control", "centre"), ("class_abpc_over_own_mask", "own-mask")):
        expected = mean_of(scores["agcam"] - scores[rival])
        assert rows[name].value == pytest.approx(expected.value)
        assert rows[name].value == pytest.approx(rows[name.replace("abpc", "deletion")].value)  # less is better there
        assert f"best control: {rival}" in said_of(rows[name])
    of_mask = mean_of(scores["agcam"] - scores["own-mask"])
    assert (rows["class_abpc_over_own_mask"].low, rows["class_abpc_over_own_mask"].high) == pytest.approx(
        (of_mask.low, of_mask.high)
    )
    assert rows["class_abpc_over_control"].n == 20
    scores["head"][:] = 3  # the best of all
    spec = next(iter(every))
    every[spec] = values(
        spec, explained, class_abpc=[[v] for v in scores["agcam"]], class_head_abpc=[[v] for v in scores["head"]]
    )
    (best, _) = lead_rows(every[spec], every)
    assert "best control: redrawn head" in said_of(best) and best.value == pytest.approx(scores["agcam"].mean() - 3)


def test_maps_of_classes_that_held_are_apart_from_those_that_fell() -> None:
    spec = ClassMap("agcam", of="*", under="clean")
    mine = values(
        spec,
        [[0, 1], [0], [1]],
        class_rank_correlation=[[0.9, 0.1], [0.7], [0.3]],
        class_iou_left=[[0.5, 0.49], [0.8], [0.0]],
    )
    figures = {row.metric: (row.value, row.n) for row in moved_rows(mine)}
    assert {name: n for name, (_, n) in figures.items()} == dict.fromkeys(figures, 2) and len(figures) == 2
    assert figures["class_rank_correlation_held"][0] == pytest.approx(0.8)
    assert figures["class_rank_correlation_fell"][0] == pytest.approx(0.2)
    held = {row.metric: row for row in value_rows(mine, ["sky", "road"])}
    assert held["class_held"].value == pytest.approx((0.5 + 1 + 0) / 3)
    assert held["class_iou_left(sky)"].value == pytest.approx(0.65) and held["class_held(sky)"].n == 2


def test_the_same_bytes_whatever_the_batch_and_after_a_kill(tmp_path: Path) -> None:
    def made(name: str, **options: Any) -> Run:
        cams = {"cams": "agcam(of=*),smooth-grad(samples=2,of=disc)", "stability": True, "attacks": "pgd(steps=2)"}
        return robustkit.segment(MODEL, out=tmp_path / name, **{**OPTIONS, **cams, "shard_size": 2, **options})

    first = made("first", batch_size=1)
    other = made("other", batch_size=3)
    shutil.copytree(first.path, tmp_path / "killed")
    lost = sorted((tmp_path / "killed" / "records").rglob("*.parquet"))[::2]
    assert len(lost) > 5
    for path in lost:
        path.unlink()
    again = made("killed", batch_size=1)
    for path in sorted((first.path / "records").rglob("*.parquet")):
        assert path.read_bytes() == (again.path / path.relative_to(first.path)).read_bytes()
    texts = [(run.path / "summary.json").read_text() for run in (first, again)]
    assert texts[0] == texts[1]
    both = ({row.key: row.value for row in run.summary()} for run in (first, other))
    ours, theirs = both
    assert ours.keys() == theirs.keys()
    for key, value in ours.items():
        assert value == pytest.approx(theirs[key], abs=0.03 if "abpc" in key[1] else 2e-3), key


def test_the_gallery_has_a_row_for_each_class_and_condition_and_the_page_shows_it(run: Run) -> None:
    page = (run.path / "cams" / "gallery.html").read_text()
    for text in ("<legend>Classes</legend>", "<legend>Images</legend>", ">truth<", ">prediction<", "AG-CAM"):
        assert text in page
    assert (run.path / "cams" / "gallery.png").stat().st_size > 10_000
    report = (run.path / "report.html").read_text()
    assert "Maps of classes" in report and "gallery of maps of classes" in report
    titles = [each.title for each in ClassMapsPresenter().tables(Results.of(run, run.summary()))]
    assert f"{NAME}: AG-CAM of each class, tests all, by class" in titles and any(
        "alike to the clean map" in title for title in titles
    )
    assert len(set(titles)) == len(titles) and sum("maps of each class" in title for title in titles) == 1


def test_a_pair_of_checkpoints_is_compared_by_the_mean_of_each_image(run: Run) -> None:
    side = CheckpointRecords(run, NAME)
    condition = "cam(agcam,of=*,faithfulness=all)"
    ids, figures = cast("Any", ClassMapsAggregator().per_sample(side, condition, "class_energy"))
    rows = rows_of(run, condition)
    assert [np.mean(rows[name]["class_energy"]) for name in ids.to_pylist()] == pytest.approx(figures.tolist())
    with pytest.raises(RobustkitError, match="class_area"):
        ClassMapsAggregator().per_sample(side, condition, "class_area")
    with pytest.raises(RobustkitError, match="class_insertion"):  # which was not asked for
        ClassMapsAggregator().per_sample(side, "cam(gradient,of=disc,over=true)", "class_insertion")
    conditions = [*run.manifest.conditions]
    ours = [text for text in conditions if kind_of(text) in ("cam-of", "stability-of", "class-noise")]
    pairs = {*ClassMapsAggregator().compared(side, side, ours, TASK.compared)}
    scores = {f"class_{score}" for score in ("energy", "pointing", "abpc")}
    assert {metric for text, metric in pairs if text == condition} == {*scores, "class_insertion", "class_deletion"}
    has = {row.condition for row in run.summary() if row.metric == "class_energy" and row.n}
    assert {text for text, metric in pairs if metric == "class_energy"} == {
        text for text in has if not parse_class_map(text).is_control
    }
    noise = {metric for text, metric in pairs if text == "class-noise(of=*)"}
    assert noise == {"class_noise_inside", "class_noise_around"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cams": "agcam(of=zebra)"}, "of=zebra: no class 'zebra' among the model's 11"),
        ({"cams": "agcam(over=pixel=64+0)"}, "has 64 rows and 64 columns; expected a region inside, not empty"),
        ({"cams": " , "}, "none is left; expected methods such as agcam,grad-cam"),
        ({"cams": "stability(agcam,of=disc,under=clean)"}, "under= is of --stability, which compares maps under"),
        ({"cams": "agcam", "stability": True}, "--stability: nothing to compare clean maps with; give --attacks or"),
    ],
)
def test_a_run_without_the_class_or_region_is_refused_before_a_file_is_written(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(RobustkitError) as raised:
        robustkit.segment(MODEL, out=tmp_path / "run", **{**OPTIONS, **options})
    assert message in str(raised.value) and not (tmp_path / "run" / "records").exists()


NET = """
import torch


def make():
    return torch.nn.Conv2d(3, 11, 3, padding=1)
"""


def test_a_method_that_does_not_fit_is_refused_and_auto_is_one_that_does(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    torch.manual_seed(0)
    save_file(torch.nn.Conv2d(3, 11, 3, padding=1).state_dict(), tmp_path / "net.safetensors")
    model = {"arch": f"{tmp_path / 'net.py'}:make", "mean": [0.5] * 3, "std": [0.5] * 3}
    options = {**OPTIONS, "limit": 2, "model": model}
    with pytest.raises(ModelError, match=r"net: AG-CAM needs a vision transformer .* use grad-cam"):
        robustkit.segment(tmp_path / "net.safetensors", out=tmp_path / "run", **{**options, "cams": "agcam"})
    run = robustkit.segment(tmp_path / "net.safetensors", out=tmp_path / "run", **{**options, "cams": "auto"})
    assert "cam(grad-cam,of=largest)" in run.manifest.conditions


def test_masks_overlap() -> None:
    one, two = torch.tensor([[True, True, False]]), torch.tensor([[False, True, True]])
    assert overlap_of(one, two) == pytest.approx(1 / 3) and overlap_of(one & two, one) == 0.5
    assert overlap_of(one & False, one & False) == 0.0 and overlap_of(one & two, one & two) == 1.0


def test_curves_of_a_component_ignore_the_others(tmp_path: Path) -> None:
    """A network of one pixel each, in which the left and the right edge are of one class."""

    class Edges(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            bright = images.mean(dim=1)
            return torch.stack([0.6 - bright, bright - 0.6], dim=1)

    image = torch.zeros(1, 3, 16, 16)
    image[..., :4] = image[..., 12:] = 1.0
    network = Edges().eval()
    predicted = network(image)[0].argmax(dim=0)
    spec = ClassMap("agcam", of="1", over="component=0+0", index=1)
    (part,) = explained_in(spec, predicted, None)
    model = SimpleNamespace(mean=torch.zeros(1, 3, 1, 1))
    card, settings = SimpleNamespace(space="pixels"), SimpleNamespace(batch_size=4)
    subject = cast("Any", SimpleNamespace(exact=network, classifier=model, card=card, settings=settings))
    shared = _curves(subject, image, part, spec)
    heat = part.object[None].float()  # the left edge, whose pixels go first or last
    curves = abpc(images=image, maps=heat, target=1, **shared)
    gone = torch.tensor(
        [[1.0, 1 - 25 / 64, 1 - 51 / 64, *[0.0] * 8]]
    )  # of its 64 pixels; none of the right edge's count
    assert torch.allclose(curves.morf, gone) and torch.allclose(curves.lerf[:, :8], torch.ones(1, 8))


@pytest.mark.parametrize(("cams", "faithfulness"), [("gradient", "abpc"), ("gradient", "all"), ("random", "none")])
def test_a_map_costs_what_the_plan_says(
    cams: str, faithfulness: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    forward = SegmenterNetwork.forward

    def counted(self: SegmenterNetwork, images: Tensor) -> Tensor:
        rows.append(len(images))
        return forward(self, images)

    condition = ClassMap(cams, faithfulness=faithfulness).condition()
    cost = ClassMapsEvaluator().cost(condition, cast("Any", None), 11)
    segmenter = robustkit.load_segmenter(MODEL)
    scenes = open_scenes("embedded:shapes", num_classes=11).select(3)
    subject = SegmenterSubject(segmenter, load_card("segmentation"), Settings(batch_size=2))
    pixels = torch.stack(
        [torch.from_numpy(np.array(scenes.dataset.image(s))).permute(2, 0, 1) for s in scenes.dataset.samples]
    )
    batch = Batch(pixels, scenes.dataset.samples, [scenes.labels(s, (64, 64)) for s in scenes.dataset.samples])
    monkeypatch.setattr(SegmenterNetwork, "forward", counted)
    ClassMapsEvaluator().evaluate(subject, batch, condition, subject.rng(batch.samples, condition))
    found_head = cams == "gradient"  # asked once for a shard
    expected = 3 * cost.forwards + found_head
    assert sum(rows) == expected - 3 * (cams == "random")  # nothing is removed, so no empty image is asked


NETS = """
import torch
from torch import nn


class Net(nn.Module):
    \"\"\"Its own weights are used first, its head last; an auxiliary one is called after that.\"\"\"

    def __init__(self, kind):
        super().__init__()
        self.kind, self.place = kind, nn.Parameter(torch.randn(1, 3, 1, 1) / 10)
        self.body, self.head, self.auxiliary = (nn.Conv2d(a, b, 1) for a, b in ((3, 8), (8, 11), (8, 11)))

    def forward(self, images):
        features = self.body(images + self.place).relu()
        logits = self.head(features)
        self.auxiliary(features)
        return logits


class Plain(nn.Module):
    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(1))

    def forward(self, images):
        parts = [images, images.flip(1), images[:, :1], 1 - images, 0.5 * images[:, :1]]
        return torch.cat(parts, dim=1) + self.shift


def net():
    return Net("net")


def plain():
    return Plain()
"""


def test_the_head_is_what_is_nearest_to_the_logits_and_nothing_without_weights(tmp_path: Path) -> None:
    (tmp_path / "nets.py").write_text(NETS)
    scope: dict[str, Any] = {}
    exec(NETS, scope)
    torch.manual_seed(0)
    options = {**OPTIONS, "limit": 2}
    for name, cams in (("net", "gradient(faithfulness=none)"), ("plain", "rise(masks=8,faithfulness=none)")):
        network, path = scope[name]().eval(), tmp_path / f"{name}.safetensors"
        save_file(network.state_dict(), path)
        model: dict[str, Any] = {"arch": f"{tmp_path / 'nets.py'}:{name}", "mean": [0.5] * 3, "std": [0.5] * 3}
        run = robustkit.segment(path, out=tmp_path / name, cams=cams, model=model, num_classes=11, **options)
        columns = ["sample_id", "class_head_correlation", "class_energy", "explained"]
        for row in run.table(name, run.manifest.conditions[1], columns).to_pylist():
            if name == "plain":
                assert row["class_head_correlation"] is None and row["class_energy"]
                continue
            split, _, index = row["sample_id"].partition("/")
            image = torch.from_numpy(cached_render(split, int(index)).pixels.copy()).permute(2, 0, 1)[None] / 255
            segmenter = robustkit.load_segmenter(path, num_classes=11, **model)
            (head,) = (part for place, part in segmenter.named_modules() if place.endswith(".head"))
            with torch.no_grad():
                region = SegmentTarget(row["explained"][0]).resolve(segmenter(image)[0], 0, 1)[1]
            explain = partial(cam.METHODS["gradient"](segmenter), image, SegmentTarget(row["explained"][0], region))
            before = explain()
            with randomise_weights([head]):
                after = explain()
            assert row["class_head_correlation"][0] == pytest.approx(float(rank_correlation(before, after)), abs=1e-4)


def test_a_class_that_no_image_shows_is_said(tmp_path: Path) -> None:
    run = robustkit.segment(
        MODEL, out=tmp_path / "run", cams="agcam(of=ring,faithfulness=none)", **{**OPTIONS, "limit": 2}
    )
    (row,) = [row for row in run.summary() if row.condition == "cam(agcam,of=ring,faithfulness=none)"]
    assert (row.n, row.is_finite) == (0, False)
    assert "2 of 2 images do not show the class there; excluded" in said_of(row)
    assert "2 of 2 images do not show the class there" in (run.path / "report.html").read_text()


def test_lists_of_maps_are_bounded_where_records_are_read() -> None:
    assert {*COLUMNS_READ} == {
        name for name in (*untrusted._LISTS, *untrusted._REAL_LISTS) if name[:3] in ("cla", "exp")
    }
