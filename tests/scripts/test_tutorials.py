"""The tutorials run, and print what is stored; with the weights that the first one trains, numbers are others."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path
from typing import Any

import pytest

from scripts.pages.tutorials import TUTORIALS, execute

TRAINED = "tutorial-1-classifier"
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def texts(cell: dict[str, Any]) -> list[str]:
    """What a cell shows, without its pictures and what a terminal would colour; one text for what it prints."""
    printed, shown = "", []
    for output in cell["outputs"]:
        if output["output_type"] == "stream":
            printed += "".join(output["text"]) * (output["name"] == "stdout")
            continue
        data = output["data"]
        kind = next((kind for kind in ("text/markdown", "text/html", "text/plain") if kind in data), "")
        text = "" if "image/png" in data else "".join(data[kind])
        shown.append(unescape(re.sub(r"<style.*?</style>|<[^>]*>", " ", text, flags=re.DOTALL)))
    return [" ".join(re.sub(r"\x1b\[[\d;]*m", "", text).split()) for text in (printed, *shown) if text.strip()]


def differing(stored: str, made: str) -> list[str]:
    """The numbers that differ by more than a percent and more than one unit of the last digit; or both texts, where
    their words differ."""
    if _NUMBER.sub("#", stored) != _NUMBER.sub("#", made):
        return [stored, made]
    pairs = zip(_NUMBER.findall(stored), _NUMBER.findall(made), strict=True)
    return [f"{old} -> {new}" for old, new in pairs if abs(float(new) - float(old)) > allowance(old)]


def allowance(number: str) -> float:
    return max(1.01 * 10.0 ** -len(number.partition(".")[2]), abs(float(number)) / 100)


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)
def test_a_tutorial_prints_what_is_stored(path: Path, tmp_path: Path) -> None:
    for name in ("nbformat", "nbclient", "ipykernel"):
        pytest.importorskip(name)
    stored = json.loads(path.read_text("utf-8"))["cells"]
    notebook = execute(path, tmp_path)
    pairs = [(texts(old), texts(new)) for old, new in zip(stored, notebook.cells, strict=True) if "outputs" in old]
    for old, new in pairs:
        assert len(old) == len(new), (old, new)
        if path.stem != TRAINED:
            differences = [each for both in zip(old, new, strict=True) for each in differing(*both)]
            assert not differences
    if path.stem == TRAINED:
        printed = [text for _, new in pairs for text in new]
        compared = [text for text in printed if "paired by image" in text]
        assert len(compared) == 2
        assert all(re.search(r"Significantly better: [^.]*accuracy under fog", text) for text in compared)
        assert "0 fail" in printed[-2] and re.search(r"FAIL plain mean_error under corruption\(fog\)", printed[-1])


def test_what_differs() -> None:
    assert differing("top-1 92.0 [88.4, 94.6]", "top-1 92.1 [88.3, 94.6]") == []
    assert differing("top-1 9.2, n = 10", "top-1 9.4, n = 10") == ["9.2 -> 9.4"]
    assert differing("10 pass, 3 fail", "10 pass, 3 failed") == ["10 pass, 3 fail", "10 pass, 3 failed"]
    cell = {"outputs": [{"output_type": "stream", "name": "stdout", "text": ["\x1b[1mFAIL\x1b[0m\n", " a"]}]}
    assert texts(cell) == ["FAIL a"]
