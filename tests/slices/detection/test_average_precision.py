"""Average precision of COCO results: against pycocotools, by hand, and of resampled images."""

from __future__ import annotations

import contextlib
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from coco_sets import Entry, coco_set, write_json

from robustkit.common.groups import Groups
from robustkit.common.intervals import basic_ends, percentiles
from robustkit.errors import DamagedRecord
from robustkit.slices.detection.files import read_annotations, read_results
from robustkit.slices.detection.matching import AREAS, runs_of_counts, runs_of_polygons
from robustkit.slices.detection.plan import Truth
from robustkit.slices.detection.scores import Detections

SIZES = [area for area in AREAS if area != "all"]


def records(place: Path, truth: Entry, results: list[Entry], kind: str = "bbox") -> pa.Table:
    annotations = read_annotations(write_json(place / "truth.json", truth), kind)
    boxes = read_results(write_json(place / "results.json", results), annotations.layout, kind)
    return Truth(annotations, kind).rows(boxes, np.arange(len(truth["images"])))[0]


def detections(place: Path, truth: Entry, results: list[Entry], kind: str = "bbox") -> Detections:
    return Detections.of(records(place, truth, results, kind), len(truth["categories"]), "")


def figures(scores: Detections, area: str = "all") -> np.ndarray[Any, Any]:
    return scores.figures(np.ones((1, len(scores.ids))), area)[0]


def by_pycocotools(truth: Entry, results: list[Entry], kind: str) -> tuple[list[float], list[float]]:
    """Return its mAP, mAP50, mAP75, those of three sizes, AR100, and AP of each category; nan in place of -1."""
    coco, evaluation = pytest.importorskip("pycocotools.coco"), pytest.importorskip("pycocotools.cocoeval")
    with contextlib.redirect_stdout(io.StringIO()):
        gold = coco.COCO()
        gold.dataset = json.loads(json.dumps(truth))
        gold.createIndex()
        evaluated = evaluation.COCOeval(gold, gold.loadRes(json.loads(json.dumps(results))), kind)
        evaluated.evaluate()
        evaluated.accumulate()
        evaluated.summarize()
    stats = [math.nan if value == -1 else float(value) for value in evaluated.stats[[0, 1, 2, 3, 4, 5, 8]]]
    precision = evaluated.eval["precision"][:, :, :, 0, -1]
    means = [precision[..., k][precision[..., k] > -1] for k in range(precision.shape[2])]
    return stats, [float(mean.mean()) if mean.size else math.nan for mean in means]


@pytest.mark.parametrize("seed", range(24))
def test_every_figure_is_pycocotools(seed: int, tmp_path: Path) -> None:
    """Crowds, ties, more than 100 results, empty images, a category without objects; boxes and masks; sizes."""
    masks = pytest.importorskip("pycocotools.mask")
    kind, compress = "bbox", None
    if seed % 3 == 2:

        def compress(mask: np.ndarray[Any, Any]) -> Entry:
            code = masks.encode(np.asfortranarray(mask))
            return {"size": code["size"], "counts": code["counts"].decode()}

        kind = "segm"
    truth, results = coco_set(seed, most=20 if compress else (20, 260)[seed % 2], compress=compress)
    scores = detections(tmp_path, truth, results, kind)
    ours = figures(scores)
    stats, categories = by_pycocotools(truth, results, kind)
    sizes = [figures(scores, area)[0] for area in SIZES]
    np.testing.assert_allclose([*ours[:3], *sizes, ours[3]], stats, rtol=0, atol=1e-12)
    np.testing.assert_allclose(ours[4:], categories, rtol=0, atol=1e-12)
    assert math.isnan(ours[-1]) and 0 < ours[0] < 1


@pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")  # of pycocotools
def test_polygons_are_coco_masks_pixel_by_pixel() -> None:
    masks = pytest.importorskip("pycocotools.mask")
    draw = np.random.default_rng(0)
    for _ in range(600):
        height, width = map(int, draw.integers(1, 60, 2))
        polygons = []
        for _ in range(draw.integers(1, 4)):
            corners = draw.uniform(-10, 70, (draw.integers(3, 9), 2))
            corners = (corners, corners.round(), (5 * corners).round() / 5)[draw.integers(3)]
            if draw.random() < 0.3:
                corners[-1] = corners[0]
            polygons.append(corners.ravel().tolist())
        code = masks.merge(masks.frPyObjects(polygons, height, width))
        theirs = masks.decode(code).ravel(order="F")
        for runs in (runs_of_polygons(polygons, height, width), runs_of_counts(code["counts"].decode(), theirs.size)):
            filled = np.zeros(theirs.size + 1, int)
            np.add.at(filled, runs, np.tile([1, -1], len(runs) // 2))
            assert (filled.cumsum()[:-1] == theirs).all()


BOX: Entry = {"image_id": 1, "category_id": 1}
PLAIN: Entry = {
    "images": [{"id": 1}],
    "categories": [{"id": 1, "name": "cat"}],
    "annotations": [
        {**BOX, "id": 0, "bbox": [0, 0, 10, 10], "area": 100, "iscrowd": 0},
        {**BOX, "id": 1, "bbox": [20, 0, 10, 10], "area": 100, "iscrowd": 0},
    ],
}


def result(score: float, *box: float) -> Entry:
    return {**BOX, "score": score, "bbox": box}


def test_one_category_by_hand(tmp_path: Path) -> None:
    """Right, wrong, right: precision 1 up to recall 1/2, of 51 levels, then 2/3. The second is right from 0.5 to 0.8:
    its IoU is 0.8 exactly. An annotation with the id 0 counts as others."""
    boxes = [result(0.9, 0, 0, 10, 10), result(0.8, 50, 50, 5, 5), result(0.7, 20, 0, 10, 8)]
    ours = figures(detections(tmp_path, PLAIN, boxes))
    whole, half = (51 + 50 * 2 / 3) / 101, 51 / 101
    assert ours.tolist() == pytest.approx(
        [(7 * whole + 3 * half) / 10, whole, whole, 0.85, (7 * whole + 3 * half) / 10]
    )
    assert figures(detections(tmp_path, PLAIN, []))[:4].tolist() == [0, 0, 0, 0]


def test_a_resample_is_a_data_set_in_which_images_are_repeated(tmp_path: Path) -> None:
    truth, results = coco_set(5, most=25)
    draw = np.random.default_rng(1)
    for place, each in enumerate(results):
        each["score"] = (place + 1) / (len(results) + 1)  # of equals, copies would come in another order
    times = draw.integers(0, 3, len(truth["images"]))
    repeated: Entry = {"images": [], "annotations": [], "categories": truth["categories"]}
    again: list[Entry] = []
    for image, count in zip(truth["images"], times.tolist(), strict=True):
        for copy in range(count):
            number = 3 * image["id"] + copy
            repeated["images"].append({"id": number})
            mine = [each for each in truth["annotations"] if each["image_id"] == image["id"]]
            for each in mine:
                more = {"image_id": number, "id": len(repeated["annotations"])}
                repeated["annotations"].append(each | more)
            again += [each | {"image_id": number} for each in results if each["image_id"] == image["id"]]
    scores = detections(tmp_path, truth, results)
    ordered = times[np.argsort([image["id"] for image in truth["images"]])]
    both = scores.figures(np.stack([ordered, np.ones(len(times))]).astype(float))
    np.testing.assert_allclose(both[0], figures(detections(tmp_path, repeated, again)), rtol=0, atol=1e-12)
    np.testing.assert_allclose(both[1], figures(scores), rtol=1e-14)


def test_some_of_the_images_are_scored_as_a_data_set_of_them(tmp_path: Path) -> None:
    truth, results = coco_set(6)
    chosen = {image["id"] for image in truth["images"][::2]}
    smaller = truth | {
        key: [each for each in truth[key] if each.get("image_id", each["id"]) in chosen] for key in PARTS
    }
    alone = detections(tmp_path, smaller, [each for each in results if each["image_id"] in chosen])
    scores = detections(tmp_path, truth, results).of_samples(alone.ids)
    assert scores.ids.equals(alone.ids) and 0 < len(alone.ids) < len(truth["images"])
    np.testing.assert_array_equal(figures(scores), figures(alone))
    assert (
        scores.has.sum(axis=1).tolist()
        == alone.has.sum(axis=1).tolist()
        == [
            len(
                {
                    each["image_id"]
                    for each in smaller["annotations"]
                    if each["category_id"] == k and not each["iscrowd"]
                }
            )
            for k in (1, 8, 15, 22)
        ]
    )


PARTS = ("images", "annotations")


def test_records_that_do_not_fit_are_one_line(tmp_path: Path) -> None:
    table = records(tmp_path, *coco_set(3))
    lists = table["category[]"].to_pylist()
    place = next(row for row, each in enumerate(lists) if each)
    for name, value in (
        ("category[]", [*lists[:place], lists[place][1:], *lists[place + 1 :]]),
        ("category[]", [[4] * len(each) for each in lists]),
        ("true category[]", [[-1] * len(each) for each in table["true category[]"].to_pylist()]),
        ("score[]", [[None] * len(each) for each in lists]),
        ("small[]", [None] * len(lists)),
    ):
        column = table.schema.get_field_index(name)
        changed = table.set_column(column, name, pa.array(value, table.schema.field(name).type))
        with pytest.raises(DamagedRecord, match=r"^here: lists that do not fit each other; make the run again$"):
            Detections.of(changed, 4, "here")


def test_intervals_are_turned_about_the_figure() -> None:
    drawn = np.random.default_rng(0).uniform(0.5, 0.7, 1000)
    low, high = np.percentile(drawn, percentiles(40))
    assert basic_ends(drawn, 0.58, None, 40) == pytest.approx((1.16 - high, 1.16 - low))
    assert basic_ends(drawn, 0.95, None, 40)[1] == 1.0 and basic_ends(drawn, 0.95, None, 40, math.inf)[1] > 1.3
    assert basic_ends(drawn, 0.3, None, 40)[0] == 0.0
    assert basic_ends(np.append(drawn, np.nan), 0.58, None, 40) == basic_ends(drawn, 0.58, None, 40)
    pairs, few = Groups(np.arange(40) // 2, 20), Groups(np.arange(40) // 5, 8)
    assert basic_ends(drawn, 0.58, pairs, 40) == basic_ends(drawn, 0.58, None, 20)
    for values, groups, n in ((drawn, few, 40), (drawn, None, 9), (drawn * np.nan, None, 40)):
        assert all(map(math.isnan, basic_ends(values, 0.58, groups, n)))
    assert not any(map(math.isnan, basic_ends(drawn, 0.58, None, 10)))


def test_a_perfect_figure_is_no_certain_one() -> None:
    """Wilson's interval of 20 of 20, and of 0 of 20; a figure next to it has that of the bootstrap."""
    for value, ends in ((1.0, (20 / (20 + 1.959964**2), 1.0)), (0.0, (0.0, 1.959964**2 / (20 + 1.959964**2)))):
        assert basic_ends(np.full(1000, value), value, None, 20) == pytest.approx(ends, abs=1e-6)
    rounded = np.r_[np.full(999, 1.0), 1 - 2e-16]
    assert basic_ends(rounded, 1 - 2e-16, None, 20) == pytest.approx((20 / (20 + 1.959964**2), 1.0), abs=1e-6)
    assert basic_ends(np.full(1000, 2.0), 2.0, None, 20, math.inf) == (2.0, 2.0)  # a ratio has no largest value
    nearly = np.r_[np.full(999, 1.0), 0.9]
    assert basic_ends(nearly, 0.999, None, 20) != pytest.approx((20 / (20 + 1.959964**2), 1.0), abs=1e-3)
