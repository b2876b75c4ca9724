"""Drowned regions: which pixels, how large, by whose draws; what records and results say, and what is refused."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from figures import said_of
from PIL import Image
from small_audit import UNCHECKED, audit, files

import robustkit
from robustkit.common.determinism import SampleRng
from robustkit.common.differences import of_outcomes
from robustkit.data.dataset import open_dataset
from robustkit.data.shapes import cached_render
from robustkit.errors import DataError, ProtocolError, RobustkitError
from robustkit.evaluations.condition import check_condition, pattern_of
from robustkit.evaluations.records import CheckpointRecords
from robustkit.protocol.condition import split_condition, split_list
from robustkit.report.run import Run
from robustkit.slices.regions import VOCABULARY
from robustkit.slices.regions.evaluate import elsewhere, extreme, noised
from robustkit.slices.regions.results import RegionsAggregator

pytestmark = pytest.mark.usefixtures("one_thread", "pageless", "unexamined")
MODEL = NAME = "shapes-vit-quest"
OBJECT, TOP = "region-noise(region=object,severity=5)", "region-noise(region=map-top,map=agcam,share=0.5,severity=5)"
BOTTOM = TOP.replace("top", "bottom")
OPTIONS: dict[str, Any] = {"attacks": "none", "limit": 24, "browse": 0, "device": "cpu", "setup_check": False}


def regions(asked: str) -> list[str]:
    """Return the conditions of a list such as `object,random(share=0.25)`."""
    parts = map(split_condition, split_list(asked))
    return [f"region-noise({','.join(filter(None, (name, inside)))})" for name, inside in parts]


def test_the_extremes_of_a_map_have_exactly_their_share_and_ties_are_cut_in_raster_order() -> None:
    maps = torch.tensor([[[0.1, 0.9], [0.5, 0.2]], [[0.5, 0.5], [0.5, 0.5]]])
    half = Fraction(1, 2)
    assert extreme(maps, half).tolist() == [[[False, True], [True, False]], [[True, True], [False, False]]]
    assert torch.equal(extreme(maps, half, lowest=True), ~extreme(maps, half))
    drawn = torch.rand(3, 7, 5, generator=torch.Generator().manual_seed(0)).round(decimals=1)  # many are equal
    for share, count in ((Fraction(3, 10), 11), (Fraction(1, 100), 0), (Fraction(99, 100), 35)):
        for lowest in (False, True):
            chosen = extreme(drawn, share, lowest)
            assert chosen.sum(dim=(1, 2)).tolist() == [count] * 3
            for values, mask in zip(drawn, chosen, strict=True):
                if 0 < count < 35:
                    inside, outside = values[mask], values[~mask]
                    assert inside.max() <= outside.min() if lowest else inside.min() >= outside.max()


def test_a_region_is_moved_as_a_whole_by_each_samples_own_draws() -> None:
    ids = [f"image {number}" for number in range(40)]
    rng = SampleRng.of(ids, seed=3, condition="region-noise", device="cpu")
    regions = torch.rand(40, 9, 6, generator=torch.Generator().manual_seed(1)) < 0.3
    moved, drawn = elsewhere(regions, rng), rng.uniform((2,), "place")
    for region, other, (down, right) in zip(regions, moved, drawn.tolist(), strict=True):
        assert np.array_equal(np.roll(region.numpy(), (-int(9 * down), -int(6 * right)), (0, 1)), other.numpy())
    assert len({(int(9 * down), int(6 * right)) for down, right in drawn.tolist()}) > 20
    assert torch.equal(elsewhere(~regions, rng), ~moved)
    alone = elsewhere(regions[7:8], SampleRng.of(ids[7:8], seed=3, condition="region-noise", device="cpu"))
    assert torch.equal(alone[0], moved[7])


def test_noise_has_the_spread_of_its_severity_and_the_last_one_keeps_nothing() -> None:
    rng = SampleRng.of(["a", "b"], seed=0, condition="region-noise", device="cpu")
    grey = torch.full((2, 3, 64, 64), 128, dtype=torch.uint8)
    for severity, spread in ((1, 25.5), (2, 51)):
        change = noised(grey, severity, rng).double() - 128
        assert abs(float(change.std()) - spread) < 0.03 * spread and abs(float(change.mean())) < 1
    last = noised(grey, 5, rng)
    assert torch.equal(last, noised(grey // 2, 5, rng)) and not torch.equal(last[0], last[1])
    assert torch.bincount(last.flatten().long(), minlength=256).min() > 50  # of 96 expected: every level
    assert not torch.equal(noised(grey, 4, rng), noised(grey // 2, 4, rng))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("regions") / "run"
    asked = "object,background,map-top,map-bottom,random(share=0.25,severity=2)"
    return robustkit.audit(
        f"zoo:{MODEL}",
        data_dir="embedded:shapes",
        evaluations=regions(asked),
        out=out,
        batch_size=16,
        shard_size=12,
        **OPTIONS,
    )


def _rows(run: Run, text: str) -> dict[str, dict[str, Any]]:
    return {row["sample_id"]: row for row in run.table(NAME, text).to_pylist()}


def test_records_are_those_of_a_slow_replica(run: Run) -> None:
    classifier = robustkit.load(f"zoo:{MODEL}")
    rows = _rows(run, OBJECT)
    for name in list(rows)[::5]:
        shape = cached_render(*_split(name))
        rng = SampleRng.of([name], seed=0, condition="region-noise", device="cpu")
        noise = np.floor(rng.uniform((3, 64, 64), "levels")[0].numpy() * 256).transpose(1, 2, 0).astype(np.uint8)
        down, right = rng.uniform((2,), "place")[0].tolist()
        moved = np.roll(shape.mask, (-int(64 * down), -int(64 * right)), (0, 1))
        for mask, column in ((shape.mask, "correct"), (moved, "random_correct"), (0 * moved, "clean_correct")):
            image = np.where(mask[..., None] > 0, noise, shape.pixels)
            with torch.inference_mode():
                logits = classifier(torch.from_numpy(image).permute(2, 0, 1)[None] / 255)
            assert (int(logits.argmax()) == shape.label) == rows[name][column]
            if column == "correct":
                assert int(logits.argmax()) == rows[name]["prediction"]
                change = (image.astype(float) - shape.pixels) / 255
                assert rows[name]["l2"] == pytest.approx(np.linalg.norm(change), rel=1e-5)
        assert rows[name]["region_area"] == pytest.approx(shape.mask.mean())


def _split(name: str) -> tuple[str, int]:
    split, _, index = name.partition("/")
    return split, int(index)


def test_regions_that_complete_each_other_share_the_image(run: Run) -> None:
    there, rest = _rows(run, OBJECT), _rows(run, OBJECT.replace("object", "background"))
    assert all(there[name]["region_area"] + rest[name]["region_area"] == pytest.approx(1) for name in there)
    assert all(_rows(run, text)[name]["region_area"] == 0.5 for text in (TOP, BOTTOM) for name in there)
    alone = run.table(NAME, "region-noise(region=random,share=0.25,severity=2)")
    assert "random_correct" not in alone.column_names and set(alone["region_area"].to_pylist()) == {0.25}


def test_results_are_of_the_records(run: Run) -> None:
    rows = [row for row in _rows(run, TOP).values() if row["clean_correct"]]
    figures = {row.metric: row for row in run.summary() if row.condition == TOP}
    kept = [row["correct"] for row in rows]
    there = [row["random_correct"] for row in rows]
    assert figures["region_kept"].value == pytest.approx(np.mean(kept)) and figures["region_kept"].n == len(rows)
    assert figures["region_random_kept"].value == pytest.approx(np.mean(there))
    gained = sum(k and not t for k, t in zip(kept, there, strict=True))
    lost = sum(t and not k for k, t in zip(kept, there, strict=True))
    lead = figures["region_over_random"]
    assert lead.value == pytest.approx((gained - lost) / len(rows)) and gained != lost
    assert (lead.low, lead.high) == pytest.approx(of_outcomes(gained, lost, len(rows)))
    assert figures["region_top1"].n == 24 and said_of(figures["region_top1"]) == [UNCHECKED]
    alone = {row.metric for row in run.summary() if row.condition.startswith("region-noise(region=random")}
    assert alone == {"region_top1", "region_area", "region_kept"}
    from robustkit.evaluations.records import CheckpointRecords

    ids, values = RegionsAggregator().per_sample(CheckpointRecords(run, NAME), TOP, "region_over_random")
    assert len(ids) == len(rows) and values.mean() == pytest.approx(lead.value)


def test_a_run_goes_on_to_the_same_bytes_and_batches_do_not_matter(run: Run, tmp_path: Path) -> None:
    options = OPTIONS | {"data_dir": "embedded:shapes", "evaluations": f"{OBJECT},{TOP}", "shard_size": 12}
    whole = robustkit.audit(f"zoo:{MODEL}", out=tmp_path / "whole", batch_size=16, **options)
    before = files(whole.path)
    whole.shard_path(NAME, TOP, 1).unlink()
    again = robustkit.audit(f"zoo:{MODEL}", out=tmp_path / "whole", batch_size=16, **options)
    assert files(again.path) == before
    small = robustkit.audit(f"zoo:{MODEL}", out=tmp_path / "small", batch_size=5, **options)
    for text in (OBJECT, TOP):
        for row, other in zip(_rows(small, text).values(), _rows(run, text).values(), strict=True):
            for key in ("correct", "random_correct", "clean_correct", "region_area"):
                assert row[key] == other[key]


def test_images_without_a_region_are_not_counted(tmp_path: Path) -> None:
    dataset = open_dataset("embedded:shapes").select(limit=20)
    for place, sample in enumerate(dataset.samples):
        folder = tmp_path / "images" / dataset.class_names[sample.label]
        folder.mkdir(parents=True, exist_ok=True)
        dataset.image(sample).save(folder / f"{place}.png")
        if place % 3 == 0:
            (tmp_path / "masks").mkdir(exist_ok=True)
            mask = dataset.mask(sample)
            assert mask is not None
            mask[:] |= place == 3  # an object that fills the image
            Image.fromarray(mask * 255).save(tmp_path / "masks" / f"{place}.png")
    where = {"data_dir": tmp_path / "images", "masks": tmp_path / "masks", "out": tmp_path / "run"}
    run = robustkit.audit(
        f"zoo:{MODEL}", evaluations=regions("object,background"), **(OPTIONS | {"limit": None}), **where
    )
    for region, lacking in (("object", "no known object"), ("background", "no background, or no known object")):
        text = OBJECT.replace("object", region)
        rows = {row.metric: row for row in run.summary() if row.condition == text}
        assert rows["region_top1"].n == 6
        fewer = 13 + (region == "background")
        assert f"{fewer} of 20 images have {lacking}; not counted" in said_of(rows["region_top1"])
        filled = "1 of 20 images are filled by it, so it cannot be moved; not counted"
        assert (filled in said_of(rows["region_top1"])) == (region == "object")
        assert (
            len(RegionsAggregator().per_sample(CheckpointRecords(run, MODEL), text, "region_over_random")[0])
            == rows["region_over_random"].n
        )
        without = [row for row in _rows(run, text).values() if row["region_area"] == 0]
        assert len(without) == fewer
        assert all(row["l2"] == 0 and row["correct"] == row["clean_correct"] for row in without)


def test_texts_and_words() -> None:
    assert (
        VOCABULARY.parse("region-noise(object)").text == OBJECT
        and VOCABULARY.parse("region-noise(map-top)").text == TOP
    )
    turned = VOCABULARY.parse("region-noise( Map_Top, share = 1/4 ,map=rollout)")
    assert turned.text == "region-noise(region=map-top,map=rollout,share=0.25,severity=5)"
    assert VOCABULARY.label(TOP) == "highest 50 % of agcam, severity 5"
    assert pattern_of(TOP).text == TOP and check_condition(TOP).given["share"] == "0.5"
    assert VOCABULARY.parse(OBJECT).needs_truth and not VOCABULARY.parse(TOP).needs_truth
    drawn = VOCABULARY.parse("region-noise(map-top,map=rise,masks=4,share=0.3)")  # of the image: RISE's own stays
    assert drawn.text == "region-noise(region=map-top,map=rise,share=0.3,severity=5,masks=4)"
    assert VOCABULARY.label(drawn.text) == "highest 30 % of rise(masks=4), severity 5"
    assert VOCABULARY.parse(drawn.text) == drawn and check_condition(drawn.text).given["masks"] == "4"


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("objekt", r"unknown region 'objekt'.*object"),
        ("object(severity=6)", "severity 6; expected a whole number from 1 to 5"),
        ("object(severity=2.5)", "severity '2.5': expected a whole number"),
        ("object(share=0.5)", "share does nothing for the region object; leave it out"),
        ("random(map=agcam)", "map does nothing for the region random; leave it out"),
        ("map-top(share=1)", "share 1; expected a part of the image, above 0 and below 1"),
        ("map-top(map=agcam,masks=4)", "unknown parameter of region-noise 'masks'"),
        ("map-top(map=rise,masks=0)", "masks 0; expected a whole number from 1"),
        ("random(map=rise,masks=4)", "map does nothing for the region random"),
        ("map-top(colour=red)", "unknown parameter of region-noise 'colour'"),
        ("map-top(map=agcan)", r"unknown map 'agcan'.*agcam"),
    ],
)
def test_what_is_no_region_is_refused_in_one_line(asked: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match=said) as refused:
        where = {"data_dir": "embedded:shapes", "out": tmp_path / "run"}
        robustkit.audit(f"zoo:{MODEL}", evaluations=regions(asked), **where, **OPTIONS)
    assert "\n" not in str(refused.value) and not (tmp_path / "run").exists()


def test_what_cannot_be_drowned_is_refused(place: Path, tmp_path: Path) -> None:
    with pytest.raises(ProtocolError, match="has no object locations; give --boxes or --masks"):
        audit(place, tmp_path / "run", attacks="none", evaluations=regions("object"))
    with pytest.raises(RobustkitError, match="AG-CAM needs a vision transformer"):
        audit(place, tmp_path / "run", attacks="none", evaluations=regions("map-top"))
    asked = {
        "data_dir": "embedded:shapes",
        "evaluations": regions("map-top(map=legrad,layers=99)"),
        "out": tmp_path / "run",
    }
    with pytest.raises(RobustkitError, match="layers is 99; the model has 4 blocks"):
        robustkit.audit(f"zoo:{MODEL}", **asked, **OPTIONS)
    (tmp_path / "loose").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "loose" / "a.png")
    with pytest.raises(DataError, match="images but no class folders"):
        audit(place, tmp_path / "run", attacks="none", evaluations=regions("random"), data_dir=tmp_path / "loose")
    assert not (tmp_path / "run").exists()
