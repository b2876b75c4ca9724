"""Whatever way a model or data come in: the reference's figures, a finding, or a refusal."""

from __future__ import annotations

from pathlib import Path

import pytest
from doors import COLUMNS, Place, cells

pytestmark = pytest.mark.usefixtures("one_thread", "pageless")
SAME, FINDING, REFUSED, NONE = "same", "finding", "refused", ""
OF_DATA = (SAME, SAME, SAME, NONE, REFUSED, SAME, NONE, NONE)
EXPECTED = {
    "folder": (SAME, SAME, SAME, SAME, NONE, SAME, NONE, NONE),
    "zip": (SAME, SAME, SAME, SAME, NONE, SAME, NONE, NONE),
    "CSV": (SAME, SAME, SAME, SAME, NONE, SAME, NONE, NONE),
    "tensors": OF_DATA,
    "Dataset": (SAME, SAME, SAME, FINDING, REFUSED, SAME, NONE, NONE),
    "loader, sampler": OF_DATA,
    "loader, batch sampler": OF_DATA,
    "loader, collate": OF_DATA,
    "MAITE": (SAME, SAME, SAME, SAME, NONE, SAME, NONE, NONE),
    "file": (NONE, NONE, NONE, SAME, FINDING, SAME, FINDING, NONE),
    "in memory": (NONE, NONE, NONE, NONE, REFUSED, SAME, SAME, NONE),
    "ONNX": (NONE, NONE, NONE, SAME, FINDING, SAME, SAME, NONE),
    "pt2": (NONE, NONE, NONE, SAME, FINDING, SAME, SAME, NONE),
    "hf": (NONE, NONE, NONE, SAME, SAME, SAME, NONE, SAME),
    "open_clip": (NONE, NONE, NONE, SAME, SAME, SAME, NONE, SAME),
    "predictions": (REFUSED, FINDING, REFUSED, NONE, NONE, NONE, NONE, NONE),  # always: computed elsewhere
}
"""By door, in the order of `COLUMNS`."""
NEEDED = {
    "ONNX": ("onnx", "onnxruntime", "onnxscript", "robustkit.slices.graphs"),
    "pt2": ("robustkit.slices.graphs",),
    "hf": ("transformers",),
    "open_clip": ("open_clip", "robustkit.slices.open_clip"),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("doors"))


def test_the_table_names_each_door() -> None:
    assert {door: tuple(column in row for column in COLUMNS) for door, row in cells().items()} == {
        door: tuple(bool(kind) for kind in row) for door, row in EXPECTED.items()
    }


@pytest.mark.parametrize("door", [pytest.param(door, marks=[pytest.mark.slow] * (door == "ONNX")) for door in EXPECTED])
def test_what_comes_in_is_what_was_meant(door: str, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in NEEDED.get(door, ()):
        pytest.importorskip(package)
    monkeypatch.setenv("ROBUSTKIT_CACHE", str(place.path("cache")))
    row, found = cells()[door], dict[str, str]()
    for column, expected in zip(COLUMNS, EXPECTED[door], strict=True):
        if expected:
            found[column] = row[column](place)
            assert found[column].partition(":")[0] == expected, found
            assert "\n" not in found[column]
    assert Path(place.root).is_dir()
