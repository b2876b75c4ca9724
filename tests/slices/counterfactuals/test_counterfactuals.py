"""Images with one thing changed: what changes in the pixels, and what becomes of predictions in records and results."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from figures import said_of
from small_audit import files

import robustkit
from cam import AGCAM
from cam.localisation import energy_inside
from robustkit.data import shapes
from robustkit.data.dataset import open_dataset
from robustkit.data.shapes import CLASSES, OWN, cached_render, class_of
from robustkit.errors import DataError, ProtocolError
from robustkit.evaluations.condition import check_condition
from robustkit.evaluations.records import CheckpointRecords
from robustkit.report.run import Run
from robustkit.slices.counterfactuals import CHANGES, VOCABULARY
from robustkit.slices.counterfactuals.results import CounterfactualsAggregator

pytestmark = pytest.mark.usefixtures("one_thread", "pageless", "unexamined")
NAME = "shapes-vit-standard"
TEXTS = {change: f"counterfactual(change={change},map=agcam)" for change in CHANGES}
OPTIONS: dict[str, Any] = {"data_dir": "embedded:shapes-counterfactual", "attacks": "none", "faithfulness": "none"}
OPTIONS |= {"limit": 24, "browse": 0, "device": "cpu", "setup_check": False, "shard_size": 12}


def test_one_thing_changes_and_all_else_stays() -> None:
    assert shapes.CHANGES == CHANGES
    for index in shapes.changeable_samples()[::60]:
        before, other = cached_render("test", index), shapes.other_label(index)
        colour, shape, background = (shapes.change_sample(index, change).shape for change in CHANGES)
        assert [made.label for made in (colour, shape, background)] == [class_of(index), other, class_of(index)]
        assert [shapes.change_sample(index, change).other for change in CHANGES] == [other, other, -1]
        for same in (colour, background):
            assert np.array_equal(same.mask, before.mask) and same.box == before.box
        near = _grown(before.mask, 1)
        assert np.array_equal(colour.pixels[~near], before.pixels[~near])  # not one pixel of the photograph
        apart = ~_grown(before.mask, 3) & ~_grown(shape.mask, 3)  # the tips of some outlines are no half pixel wide
        assert np.array_equal(shape.pixels[apart], before.pixels[apart])
        core = ~_grown(1 - before.mask, 1)
        assert np.array_equal(background.pixels[core], before.pixels[core])  # not one pixel inside the shape
        assert (background.pixels[~near] != before.pixels[~near]).any(axis=-1).mean() > 0.9
        assert not np.array_equal(shape.mask, before.mask) and (colour.pixels[core] != before.pixels[core]).any()


def _grown(mask: np.ndarray[Any, np.dtype[np.uint8]], by: int) -> np.ndarray[Any, np.dtype[np.bool_]]:
    steps = range(-by, by + 1)
    return np.any([np.roll(mask, (dy, dx), (0, 1)) for dy in steps for dx in steps], axis=0)


def test_the_colour_that_is_put_in_is_that_of_the_other_class() -> None:
    near = 0
    for index in shapes.changeable_samples()[:120]:
        made = shapes.change_sample(index, "colour").shape
        mean = np.median(made.pixels[made.mask > 0], axis=0)  # the first of two related colours has most pixels
        distances = {name: float(np.abs(mean - OWN[name]).sum()) for name in CLASSES}
        near += distances[CLASSES[shapes.other_label(index)]] < distances[CLASSES[class_of(index)]]
    assert near > 110
    labels = [shapes.other_label(index) for index in shapes.changeable_samples()]
    assert all(a != class_of(i) for a, i in zip(labels, shapes.changeable_samples(), strict=True))
    assert np.bincount(labels, minlength=10).min() > 60


def test_the_set_is_the_test_split_where_shapes_wear_their_colour() -> None:
    dataset, plain = open_dataset("embedded:shapes-counterfactual"), open_dataset("embedded:shapes")
    assert len(dataset) == 892
    for sample in dataset.samples[::200]:
        assert dataset.read(sample) == plain.read(sample) and plain.changed(sample, "colour") is None
    one = [shapes.change_sample(shapes.changeable_samples()[7], change).shape.pixels.tobytes() for change in CHANGES]
    assert [hash_of(pixels) for pixels in one] == ["9229f2dff6795931", "e2c278547cfe0c6b", "f678923b05b106fa"]
    for index, change in ((0, "size"), (-1, "colour"), (1000, "colour"), (_unusual(), "shape")):
        with pytest.raises(DataError, match=f"embedded shapes have no change {change} of test/{index}"):
            shapes.change_sample(index, change)


def hash_of(content: bytes) -> str:
    import hashlib

    return hashlib.sha256(content).hexdigest()[:16]


def _unusual() -> int:
    return min(set(range(1000)) - set(shapes.changeable_samples()))


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("changed") / "run"
    return robustkit.audit(f"zoo:{NAME}", out=out, cams="agcam", batch_size=9, **OPTIONS)


def _rows(run: Run, text: str) -> dict[str, dict[str, Any]]:
    return {row["sample_id"]: row for row in run.table(NAME, text).to_pylist()}


def test_records_are_those_of_a_slow_replica(run: Run) -> None:
    classifier = robustkit.load(f"zoo:{NAME}")
    for change, text in TEXTS.items():
        for name, row in list(_rows(run, text).items())[::8]:
            index = int(name.partition("/")[2])
            made, before = shapes.change_sample(index, change), cached_render("test", index)
            said, masses = [], []
            for shape in (before, made.shape):
                image = torch.from_numpy(shape.pixels.copy()).permute(2, 0, 1)[None] / 255
                explained = AGCAM(classifier).explain(image)
                said.append(int(explained.logits.argmax()))
                masses.append(float(energy_inside(explained.maps, torch.from_numpy(shape.mask.copy())[None].bool())))
            assert [row["clean_prediction"], row["prediction"]] == said
            assert row["label"] == made.shape.label and row["correct"] == (said[1] == made.shape.label)
            assert row["clean_correct"] == (said[0] == before.label) and row["flipped"] == (said[0] != said[1])
            assert row["followed"] is (None if change == "background" else said[1] == made.other)
            assert [row["mass_before"], row["mass_after"]] == pytest.approx(masses, abs=2e-4)


def test_results_count_what_is_right_as_it_is(run: Run) -> None:
    for change, text in TEXTS.items():
        counted = [row for row in _rows(run, text).values() if row["clean_correct"]]
        figures = {row.metric: row for row in run.summary() if row.condition == text}
        assert figures["flipped"].value == pytest.approx(np.mean([row["flipped"] for row in counted]))
        assert figures["flipped"].n == len(counted) and figures["changed_top1"].n == 24
        changes = [row["mass_after"] - row["mass_before"] for row in counted]
        assert figures["mass_change"].value == pytest.approx(np.mean(changes))
        assert ("followed" in figures) == (change != "background")
        for metric in ("flipped", "mass_change"):
            ids, values = CounterfactualsAggregator().per_sample(CheckpointRecords(run, NAME), text, metric)
            assert len(ids) == len(counted) and values.mean() == pytest.approx(figures[metric].value)
    flips = {row.condition: row.value for row in run.summary() if row.metric == "flipped"}
    assert flips[TEXTS["colour"]] > 0.8 > 0.3 > flips[TEXTS["background"]]  # the zoo goes by colour


def test_without_maps_a_run_compares_predictions_and_goes_on_to_the_same_bytes(tmp_path: Path, run: Run) -> None:
    plain = robustkit.audit(f"zoo:{NAME}", out=tmp_path / "run", batch_size=24, **OPTIONS)
    text = "counterfactual(change=colour)"
    assert list(plain.manifest.conditions) == ["clean", *(f"counterfactual(change={change})" for change in CHANGES)]
    assert "mass_before" not in plain.table(NAME, text).column_names
    for row, other in zip(_rows(plain, text).values(), _rows(run, TEXTS["colour"]).values(), strict=True):
        assert [row[key] for key in ("prediction", "flipped")] == [other[key] for key in ("prediction", "flipped")]
    before = files(plain.path)
    plain.shard_path(NAME, text, 1).unlink()
    assert files(robustkit.audit(f"zoo:{NAME}", out=plain.path, batch_size=24, **OPTIONS).path) == before


def test_images_with_a_constant_map_count_for_flips_and_not_for_mass(
    tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = AGCAM._finish

    def first_is_flat(self: AGCAM, grids: torch.Tensor, size: tuple[int, int]) -> Any:
        maps, degenerate = whole(self, grids, size)
        maps[0], degenerate[0] = 0, True
        return maps, degenerate

    monkeypatch.setattr(AGCAM, "_finish", first_is_flat)
    flat = robustkit.audit(f"zoo:{NAME}", out=tmp_path / "run", cams="agcam", batch_size=12, **OPTIONS)
    for change, text in TEXTS.items():
        rows = [*_rows(flat, text).values()]
        assert [place for place, row in enumerate(rows) if row["mass_before"] is None] == [0, 12]
        counted = [row for row in rows if row["clean_correct"]]
        reported = [row["mass_after"] - row["mass_before"] for row in counted if row["mass_before"] is not None]
        figures = {row.metric: row for row in flat.summary() if row.condition == text}
        usual = {row.metric: row for row in run.summary() if row.condition == text}
        assert figures["flipped"] == usual["flipped"]
        assert figures["mass_change"].value == pytest.approx(np.mean(reported)) and len(reported) < len(counted), change
        lost = len(counted) - len(reported)
        why = f"{lost} of {len(counted)} images have a map that is constant or not finite; excluded"
        assert why in said_of(figures["mass_change"])
        assert len(
            CounterfactualsAggregator().per_sample(CheckpointRecords(flat, NAME), text, "mass_change")[0]
        ) == len(reported)


def test_words() -> None:
    assert VOCABULARY.label(TEXTS["shape"]) == "shape changed, maps by agcam"
    assert check_condition("counterfactual(change=colour)").given == {"change": "colour"}
    with pytest.raises(ProtocolError, match=r"unknown change 'size'.*colour"):
        check_condition("counterfactual(change=size)")
