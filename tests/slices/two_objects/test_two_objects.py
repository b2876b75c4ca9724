"""Maps of two objects: exact shares on maps made by hand, controls, records, results, and what pairs are."""

from __future__ import annotations

import re
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from evaluating import evaluate
from figures import said_of
from PIL import Image
from small_audit import UNCHECKED, audit, files

import robustkit
from cam import AGCAM, Explanation
from robustkit.common.finding import Finding
from robustkit.data.dataset import Dataset, open_dataset
from robustkit.data.layouts import Sample
from robustkit.data.shapes import PAIRS, pair_labels, rendered_pair
from robustkit.errors import DataError, ProtocolError
from robustkit.evaluations.condition import check_condition
from robustkit.evaluations.maps import chosen_of
from robustkit.evaluations.maps.evaluate import masses
from robustkit.evaluations.maps.truth import Located
from robustkit.evaluations.subject import Batch, Settings
from robustkit.protocol.card import load_card
from robustkit.report.run import Run
from robustkit.slices.two_objects import VOCABULARY, two_object_condition
from robustkit.slices.two_objects import evaluate as two_objects
from robustkit.slices.two_objects.evaluate import COLUMNS
from robustkit.slices.two_objects.results import TwoObjectsAggregator
from robustkit.tasks.labelled.subject import ClassifierSubject

pytestmark = pytest.mark.usefixtures("one_thread", "pageless", "unexamined")
NAME = "shapes-vit-quest"
AGCAM_TEXT, ROLLOUT = "two-object(map=agcam)", "two-object(map=rollout)"
OPTIONS: dict[str, Any] = {"attacks": "none", "faithfulness": "none", "browse": 0, "device": "cpu"}
OPTIONS |= {"setup_check": False}


def test_shares_of_maps_made_by_hand() -> None:
    objects = torch.zeros(1, 2, 2, 4, dtype=torch.bool)
    objects[0, 0, :, 0] = True  # the first column
    objects[0, 1, 0, 2:] = True  # half of the last two
    maps = torch.zeros(1, 2, 2, 4)
    maps[0, 0] = torch.tensor([[3.0, 1, 1, 0], [3, 1, 0, 1]])  # asked for the first: 6 there, 1 in the other, of 10
    maps[0, 1] = torch.tensor([[0.0, 0, 4, 2], [2, 0, 0, 0]])  # asked for the second: 6 there, 2 in the other, of 8
    own, other, shares = masses(maps, objects)
    assert own.tolist() == [[0.6, 0.75]] and other.tolist() == [[0.1, 0.25]]
    assert shares.tolist() == [[pytest.approx(6 / 7), 0.75]]
    for each, expected in zip(masses(torch.zeros_like(maps), objects), (0, 0, 0.5), strict=True):
        assert each.tolist() == [[expected, expected]]
    same = maps[:, :1].expand(-1, 2, -1, -1)  # a map that is the same for both classes: a share of one half
    assert masses(same, objects)[2].mean() == pytest.approx(0.5)
    scaled, flipped = masses(7 * maps, objects), masses(maps.flip(3), objects.flip(3))
    for plain, *alike in zip((own, other, shares), scaled, flipped, strict=True):
        assert all(torch.allclose(plain, each) for each in alike)


def pairs_of(place: Path, shown: list[int], broken: list[int], monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """The records of images with so many objects in the frame, of which some have a constant map for one class."""
    objects = torch.zeros(len(shown), 2, 8, 8, dtype=torch.bool)
    for each, count in zip(objects, shown, strict=True):
        each[0, :3], each[1, 5:] = count > 0, count > 1
    truths = [Located(each.any(dim=0), torch.zeros(0, 4), objects=each) for each in objects]
    pixels = torch.full((len(shown), 3, 8, 8), 128, dtype=torch.uint8)
    samples = [Sample(str(i), 0, valid=(0, 1)) for i in range(len(shown))]
    flat = torch.tensor([[False, bool(one)] for one in broken])
    maps = torch.zeros(len(shown), 2, 8, 8)
    maps[:, 0, 0], maps[:, 1, 7] = 1.0, 1.0  # each in its object
    maps[flat] = 0.0
    made = partial(Explanation, maps, torch.eye(len(shown), 3), degenerate=flat)
    method = SimpleNamespace(explain=lambda inputs, labels, rng: made(target=labels))
    monkeypatch.setattr(two_objects, "explainer_of", lambda *_: nullcontext(method))
    classifier = robustkit.load(place / "net.pth", arch=f"{place / 'net.py'}:build")
    subject = ClassifierSubject(classifier, load_card("standard"), Settings(), None)
    return evaluate(subject, Batch(pixels, samples, truths), two_object_condition("grad-cam")).columns


@pytest.mark.parametrize(
    ("shown", "broken", "outside", "constant"),
    [
        ([2, 2, 2, 2], [0, 0, 0, 0], "", ""),
        ([2, 1, 2, 2], [0, 0, 0, 0], "1 of 4", ""),
        ([0, 1, 2, 2], [0, 0, 0, 0], "2 of 4", ""),
        ([2, 2, 2, 2], [0, 0, 1, 0], "", "1 of 4"),
        ([2, 1, 2, 2], [0, 0, 1, 1], "1 of 4", "2 of 3"),
        ([2, 1, 2, 2], [0, 1, 0, 0], "1 of 4", ""),  # one that is not counted anyway
    ],
)
def test_images_without_both_objects_are_not_counted_and_constant_maps_are_scored_as_0(
    shown: list[int], broken: list[int], outside: str, constant: str, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    columns = pairs_of(place, shown, broken, monkeypatch)
    table = pa.table({name: pa.array(columns[name], kind) for name, kind in COLUMNS.items()})
    rows = {row.metric: row for row in TwoObjectsAggregator().rows("two-object(map=grad-cam)", table, [])}
    said = {
        "maps/object-outside": f"{outside} images have an object outside the frame; not counted",
        "maps/scored-as-zero": f"{constant} images have a map that is constant or not finite; it is scored as 0",
    }
    raised = tuple(Finding(code, text) for code, text in said.items() if text[0] != " ")
    lost = [both == 2 and flat for both, flat in zip(shown, broken, strict=True)].count(1)
    n = shown.count(2)
    assert rows.keys() == {metric.name for metric in VOCABULARY.metrics}
    assert {row.findings for row in rows.values()} == {raised} and {row.n for row in rows.values()} == {n}
    assert rows["asked_mass"].value == pytest.approx((n - lost / 2) / n)  # 0 of one of two classes
    assert rows["asked_share"].value == pytest.approx((n - lost / 4) / n)  # one half of it


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("pairs") / "run"
    options = OPTIONS | {"data_dir": "embedded:shapes-pairs", "cams": "agcam,rollout", "limit": 20, "shard_size": 10}
    return robustkit.audit(f"zoo:{NAME}", out=out, batch_size=8, **options)


def _rows(run: Run, text: str) -> dict[str, dict[str, Any]]:
    return {row["sample_id"]: row for row in run.table(NAME, text).to_pylist()}


def test_records_are_those_of_a_slow_replica(run: Run) -> None:
    classifier = robustkit.load(f"zoo:{NAME}")
    y, x = np.mgrid[:64, :64] - 31.5
    hill = np.exp(-(x**2 + y**2) / (2 * (64 * 64 / 224) ** 2))
    for name, row in list(_rows(run, AGCAM_TEXT).items())[::6]:
        pair = rendered_pair(int(name.partition("/")[2]))
        image = torch.from_numpy(pair.pixels).permute(2, 0, 1)[None] / 255
        inside, shares = [], []
        for place, target in enumerate(pair.labels):
            heat = AGCAM(classifier)(image, target)[0].numpy()
            own, other = (float(heat[mask > 0].sum()) for mask in (pair.masks[place], pair.masks[1 - place]))
            inside.append((own / heat.sum(), other / heat.sum()))
            shares.append(own / (own + other))
        expected = {
            "first_share": shares[0],
            "second_share": shares[1],
            "asked_share": np.mean(shares),
            "asked_mass": np.mean([own for own, _ in inside]),
            "other_mass": np.mean([other for _, other in inside]),
            "centre_mass": np.mean([hill[mask > 0].sum() / hill.sum() for mask in pair.masks]),
        }
        assert {key: row[key] for key in expected} == pytest.approx(expected, abs=2e-4)
        with torch.inference_mode():
            found = set(classifier(image)[0].topk(2).indices.tolist()) == set(pair.labels)
        assert row["both_found"] == found and 0 < row["random_mass"] < 1


def test_results_are_of_the_records_and_a_map_without_a_question_has_half(run: Run) -> None:
    rows = list(_rows(run, AGCAM_TEXT).values())
    for text in (AGCAM_TEXT, ROLLOUT):
        figures = {row.metric: row for row in run.summary() if row.condition == text}
        rows = list(_rows(run, text).values())
        mean = {key: np.mean([row[key] for row in rows]) for key in ("asked_mass", "other_mass", "centre_mass")}
        assert figures["asked_over_other"].value == pytest.approx(mean["asked_mass"] - mean["other_mass"])
        assert figures["asked_over_centre"].value == pytest.approx(mean["asked_mass"] - mean["centre_mass"])
        share = figures["asked_share"]
        assert share.n == 20 and share.low <= share.value <= share.high and said_of(share) == [UNCHECKED]
        if text == ROLLOUT:
            assert share.value == pytest.approx(0.5) and figures["asked_over_other"].value == 0
        else:
            assert share.low > 0.55 and figures["asked_over_other"].low > 0.05
    assert {row["random_mass"] for row in _rows(run, AGCAM_TEXT).values()} == {
        row["random_mass"] for row in _rows(run, ROLLOUT).values()
    }


def test_a_run_goes_on_to_the_same_bytes_and_batches_do_not_matter(run: Run, tmp_path: Path) -> None:
    options = OPTIONS | {"data_dir": "embedded:shapes-pairs", "cams": "agcam", "limit": 20, "shard_size": 10}
    whole = robustkit.audit(f"zoo:{NAME}", out=tmp_path / "whole", batch_size=3, **options)
    before = files(whole.path)
    whole.shard_path(NAME, AGCAM_TEXT, 0).unlink()
    assert files(robustkit.audit(f"zoo:{NAME}", out=whole.path, batch_size=3, **options).path) == before
    for row, other in zip(_rows(whole, AGCAM_TEXT).values(), _rows(run, AGCAM_TEXT).values(), strict=True):
        assert row["random_mass"] == other["random_mass"]
        assert row["asked_share"] == pytest.approx(other["asked_share"], abs=1e-3)


def test_a_methods_own_options_are_in_the_condition_and_in_the_maps(tmp_path: Path) -> None:
    """`rise(masks=4)` is scored with 4 masks, and what a mask hides is the model's mean, as everywhere."""
    made = robustkit.audit(
        "zoo:shapes-vit-quest",
        data_dir="embedded:shapes-pairs",
        attacks="none",
        cams=["rise(masks=4)", "rise(masks=6)"],
        faithfulness="none",
        limit=2,
        out=tmp_path / "run",
        setup_check=False,
    )
    shares = [
        made.table("shapes-vit-quest", f"two-object(map=rise,masks={masks})", ["asked_share"])[
            "asked_share"
        ].to_pylist()
        for masks in (4, 6)
    ]
    assert shares[0] != shares[1] and all(0 < share < 1 for share in (*shares[0], *shares[1]))
    chosen = VOCABULARY.parse("two-object(map=rise,masks=4)")
    assert dict(chosen_of(chosen)) == {"masks": 4} and chosen.text == "two-object(map=rise,masks=4)"
    with pytest.raises(ProtocolError, match="unknown parameter of two-object 'masks'; known: map"):
        VOCABULARY.parse("two-object(map=agcam,masks=4)")


def test_embedded_pairs_hold_every_two_classes_and_never_touch() -> None:
    dataset = open_dataset("embedded:shapes-pairs")
    ordered = [(a, b) for a in range(10) for b in range(10) if a != b]
    assert sorted({pair_labels(index) for index in range(90)}) == ordered
    assert [sample.valid for sample in dataset.samples] == [pair_labels(index) for index in range(PAIRS)]
    for sample in dataset.samples[::45]:
        objects, union, image = dataset.objects(sample), dataset.mask(sample), np.asarray(dataset.image(sample))
        assert objects is not None and union is not None
        first, second = (one.astype(bool) for one in objects)
        assert first.sum() > 60 and second.sum() > 60 and np.array_equal(first | second, union > 0)
        near = [np.roll(first, (dy, dx), (0, 1)) for dy in (-1, 0, 1) for dx in (-1, 0, 1)]
        assert not (np.any(near, axis=0) & second).any()
        assert image.shape == (64, 64, 3)
    first = dataset.select(ids=[f"pair/{index:05d}" for index in range(30)])
    assert first.digest() == "58f83b51be210e7f3b3f5d271e4e1068b92659d8b2a6775308d666ac5c36ebc5"
    with pytest.raises(DataError, match="segment takes embedded:shapes"):
        robustkit.data.open_scenes("embedded:shapes-pairs")


def _photographs(root: Path) -> Dataset:
    for place, (name, size) in enumerate((("a", (300, 200)), ("a", (64, 64)), ("b", (100, 400)), ("c", (80, 90)))):
        (root / name).mkdir(parents=True, exist_ok=True)
        Image.new("RGB", size, (60 * place, 0, 255 - 60 * place)).save(root / name / f"{place}.png")
    return open_dataset(f"pairs:{root}")


def test_pairs_of_photographs_are_two_classes_side_by_side(tmp_path: Path) -> None:
    dataset, colours = _photographs(tmp_path), {f"{place}.png": 60 * place for place in range(4)}
    assert len(dataset) == 2 and dataset.root == f"pairs:{tmp_path}"
    each = ["a/0.png", "a/1.png", "b/2.png", "c/3.png"]  # in one pair: two that share a photograph are alike
    assert sorted(name for sample in dataset.samples for name in sample.id.split("|")) == each
    for sample in dataset.samples:
        names = sample.id.split("|")
        assert [dataset.class_names[label] for label in sample.valid or ()] == [name[0] for name in names]
        assert sample.label == (sample.valid or (-1,))[0] and len(set(sample.valid or ())) == 2
        image, objects = np.asarray(dataset.image(sample)), dataset.objects(sample)
        assert image.shape == (512, 512, 3) and objects is not None and dataset.mask(sample) is None
        for name, half in zip(names, objects, strict=True):
            assert half.sum() == 512 * 256 and set(image[half > 0][:, 0]) == {colours[name.partition("/")[2]]}
    (tmp_path / "a" / "9.png").write_bytes(b"no image")
    (tmp_path / "a" / "8.png").write_bytes(b"no image")
    whole = open_dataset(f"pairs:{tmp_path}")
    assert len(whole) == 2 and whole.notes[-1].startswith("2 pairs side by side, each of two classes that both count")
    assert whole.notes[-1].endswith("; 2 images have no partner of another class")
    broken = next(sample for sample in whole.samples if re.search("[89].png", sample.id))
    with pytest.raises(DataError, match=r"a/[89]\.png"):
        whole.image(broken)


def test_what_makes_no_pairs_is_refused_in_one_line(place: Path, tmp_path: Path) -> None:
    _photographs(tmp_path / "some")
    places = {"some/a": "images but no class folders", "none": "no such folder"}
    for wrong, said in ((tmp_path / name, said) for name, said in places.items()):
        with pytest.raises(DataError, match=said) as refused:
            open_dataset(f"pairs:{wrong}")
        assert "\n" not in str(refused.value)
    with pytest.raises(DataError, match="pairs need labelled images of two classes or more"):
        open_dataset(f"pairs:{tmp_path / 'some' / 'a'}", layout="unlabelled")
    with pytest.raises(ProtocolError, match="unknown parameter of two-object 'threshold'"):
        check_condition("two-object(threshold=0.5)")
    run = audit(place, tmp_path / "run", attacks="none", cams="grad-cam", data_dir=f"pairs:{place / 'images'}")
    figures = {row.metric: row for row in run.summary() if row.condition == "two-object(map=grad-cam)"}
    assert figures["asked_share"].n == 14 and figures["both_found"].n == 14
    assert figures["asked_mass"].value + figures["other_mass"].value == pytest.approx(1, abs=1e-5)
