"""Rotations and translations in a run: records, curves, segmenters, exports, rules."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gate_runs import verdict
from torch import nn

import robustkit
from robustkit.common.intervals import wilson
from robustkit.errors import ProtocolError
from robustkit.evaluations.aggregate import Results
from robustkit.evaluations.attacks.evaluate import parse_condition
from robustkit.evaluations.condition import check_condition, pattern_of, words_of
from robustkit.protocol.card import load_card
from robustkit.report.run import Run
from robustkit.slices.spatial import VOCABULARY
from robustkit.slices.spatial.results import SpatialPresenter, angles_of

pytestmark = pytest.mark.usefixtures("one_thread", "unexamined")
GRID = "spatial(degrees=96,shift=0.1,angles=9,shifts=3)"
DRAWN = "spatial(degrees=96,shift=0,draws=3,early_stop=false)"
OPTIONS: dict[str, Any] = {
    "data_dir": "embedded:shapes",
    "limit": 16,
    "browse": 0,
    "device": "cpu",
    "setup_check": False,
}
NET = "shapes-vit-quest"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("spatial") / "run"
    return robustkit.audit(f"zoo:{NET}", out=out, attacks=f"{GRID},{DRAWN}", **OPTIONS)


def test_records_have_the_move_and_do_not_depend_on_the_batch(run: Run, tmp_path: Path) -> None:
    small = {**OPTIONS, "batch_size": 3, "shard_size": 5}
    other = robustkit.audit(f"zoo:{NET}", out=tmp_path / "run", attacks=f"{GRID},{DRAWN}", **small)
    names = ("sample_id", "correct", "degrees", "shift_down", "shift_right", "first_degrees", "steps", "forwards")
    for text in (GRID, DRAWN):
        rows, others = (sorted(each.table(NET, text, names).to_pylist(), key=str) for each in (run, other))
        assert rows == others and len(rows) == 16
        for row in rows:
            assert row["correct"] == (row["first_degrees"] is None)
            assert abs(row["degrees"]) <= 96 and abs(row["shift_down"]) <= 0.1 + 1e-6
            if text == GRID and not row["correct"]:
                assert row["first_degrees"] == abs(row["degrees"]), "it leaves at the first"
    whole = run.table(NET, GRID).to_pylist()
    assert {row["broken_by"] for row in whole} == {"spatial", None} and {row["linf"] for row in whole} == {None}
    assert not run.manifest.evidence


def test_accuracy_within_each_angle_falls_to_that_of_all_moves(run: Run) -> None:
    rows = {(row.condition, row.metric): row for row in run.summary()}
    within = [rows[GRID, f"within({angle})"] for angle in range(0, 97, 24)]
    first = np.array(run.table(NET, GRID, ["first_degrees"])["first_degrees"].to_pylist(), float)
    for angle, row in zip(range(0, 97, 24), within, strict=True):
        right = int((np.isnan(first) | (first > angle)).sum())
        assert (row.value, row.n) == (right / 16, 16) and (row.low, row.high) == pytest.approx(wilson(right, 16))
    values = [row.value for row in within]
    assert values == sorted(values, reverse=True) and values[-1] == rows[GRID, "top1"].value < values[0]
    assert (GRID, "within(6)") not in rows
    assert (GRID, "nll") not in rows and (DRAWN, "nll") in rows, "the losses of a sample that leaves mean nothing"
    assert verdict(run, f"within(24) under {GRID} >= 0.01").state == "pass"
    (table, _) = SpatialPresenter().tables(Results.of(run, run.summary()))
    assert table.headings == ("checkpoint", "0°", "24°", "48°", "72°", "96°")
    page = (run.path / "report.html").read_text("utf-8")
    assert "Rotations and translations" in page and "largest angle, degrees" in page


def test_curves_have_angles_that_were_tried() -> None:
    expected = {
        "spatial(degrees=30,shift=0.1)": [0, 6, 12, 18, 24, 30],
        "spatial(degrees=30,shift=0.1,angles=29)": [0, *(30 * step / 14 for step in (3, 6, 9, 12)), 30],
        "spatial(degrees=30,shift=0,angles=3)": [0, 30],
        "spatial(degrees=30,shift=0,angles=4)": [0, 10, 30],
        "spatial(degrees=30,shift=0,angles=1)": [],
        "spatial(degrees=0,shift=0.1)": [],
        "spatial(degrees=30,shift=0.1,draws=50)": [0, 5, 10, 15, 20, 25, 30],
    }
    assert {text: pytest.approx(angles, abs=1e-5) for text, angles in expected.items()} == {
        text: angles_of(text) for text in expected
    }


def test_angles_at_which_wrong_labels_turn_are_on_no_curve(tmp_path: Path) -> None:
    card = tmp_path / "predicted.toml"
    text = Path(robustkit.__file__).with_name("protocol").joinpath("cards", "standard.toml").read_text("utf-8")
    card.write_text(text.replace('labels = "true"', 'labels = "predicted"'), "utf-8")
    run = robustkit.audit(f"zoo:{NET}", out=tmp_path / "run", attacks=GRID, protocol=str(card), **OPTIONS)
    assert run.manifest.protocol.labels == "predicted"
    assert not any("within" in row.metric for row in run.summary())


def test_a_segmenter_is_scored_by_masks_that_moved_alike(tmp_path: Path) -> None:
    text = "spatial(degrees=90,shift=0,angles=3)"
    segmenter = "zoo:shapes-segmenter-standard"
    run = robustkit.segment(segmenter, out=tmp_path / "run", attacks=text, data_dir="embedded:shapes", limit=4)
    clean, moved = (run.table("shapes-segmenter-standard", each).to_pylist() for each in ("clean", text))
    assert {abs(row["degrees"]) for row in moved} <= {0, 90} and any(row["degrees"] for row in moved)
    for before, after in zip(clean, moved, strict=True):
        assert before["labelled"] == after["labelled"], "a quarter turn of a square keeps each class's pixels"
        assert sum(after["intersections"]) <= sum(before["intersections"])
        assert after["forwards"] == 3 and after["first_degrees"] is None
    assert not any("within" in row.metric for row in run.summary())


def test_an_exported_network_without_gradients_is_attacked(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    onnx = pytest.importorskip("onnx")
    torch.manual_seed(0)
    net = nn.Sequential(nn.AvgPool2d(16), nn.Flatten(), nn.Linear(48, 10)).eval()
    shapes = ({0: torch.export.Dim("rows")},)
    options: dict[str, Any] = {"dynamo": True, "verbose": False, "external_data": False, "dynamic_shapes": shapes}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (torch.rand(3, 3, 64, 64),), tmp_path / "net.onnx", **options)
    assert onnx.load(tmp_path / "net.onnx").graph
    stated = {"mean": [0.5] * 3, "std": [0.5] * 3}
    run = robustkit.audit(f"onnx:{tmp_path / 'net.onnx'}", out=tmp_path / "run", attacks=GRID, model=stated, **OPTIONS)
    rows = run.table("net", GRID).to_pylist()
    assert len(rows) == 16 and {row["backwards"] for row in rows} == {0} and any(row["steps"] > 0 for row in rows)


def test_texts_and_words() -> None:
    card, scenes = load_card("standard"), load_card("segmentation")
    for each in (card, scenes):
        assert parse_condition("spatial", each).text == "spatial(degrees=30,shift=0.1)"
        assert parse_condition("spatial(degrees=7.5,shift=0)", each).text == "spatial(degrees=7.5,shift=0)"
    assert (
        parse_condition("Spatial(degrees=30.0,border=edge)", card).text == "spatial(degrees=30,shift=0.1,border=edge)"
    )
    for text in (GRID, DRAWN):
        check_condition(text)
        assert pattern_of(text).text == text and parse_condition(text, card).text == text
        assert "".join(VOCABULARY.command(pattern_of(text), pattern_of)) == f"--attacks{text}"
    labels = {
        "spatial(degrees=30,shift=0.1)": "rotation ±30°, shift ±10 %",
        "spatial(degrees=0,shift=0.1)": "shift ±10 %",
        "spatial(degrees=7.5,shift=0)": "rotation ±7.5°",
        "spatial(degrees=0,shift=0)": "rotation ±0°",
        "spatial(degrees=30,shift=0.1,shifts=1)": "rotation ±30°",
        "spatial(degrees=30,shift=0.1,angles=1)": "shift ±10 %",
        "spatial(degrees=30,shift=0.1,angles=1,shifts=1,draws=5)": "rotation ±30°, shift ±10 %, worst of 5 draws",
        "spatial(degrees=30,shift=0,draws=9,border=edge)": "rotation ±30°, worst of 9 draws, edge border",
    }
    assert {text: words_of(text).label(text) for text in labels} == labels
    assert VOCABULARY.label(GRID, "sentence") == "rotation of ±96° and shift of ±10 %"
    for wrong in (
        "spatial(eps=1/255)",
        "spatial(size=3)",
        "spatial(degrees=200)",
        "spatial(border=wrap)",
        "spatial(norm=l2)",
    ):
        with pytest.raises(ProtocolError):
            parse_condition(wrong, card)
    with pytest.raises(ProtocolError, match="fixed radius"):
        parse_condition("spatial(under=fog,severity=3)", card)
