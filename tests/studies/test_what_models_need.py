"""The page of what models need: its audits made small, figures that are those of the records, pictures next to it."""

from __future__ import annotations

import argparse
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from robustkit.report.run import Run
from scripts.studies.what_models_need import page as needs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread", "pageless")]
STANDARD, QUEST = "shapes-vit-standard", "shapes-vit-quest"
FLIPPED = "counterfactual(change=colour,map=agcam)"


def test_the_page_says_what_the_records_say_and_has_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    planned = needs.parts

    def small(options: argparse.Namespace) -> Any:
        for part in planned(options):
            if part.checkpoints == needs.SHAPES:
                fewer: dict[str, Any] = {"limit": 8, "browse": 0}
                yield replace(part, checkpoints=needs.SHAPES[:2], options=part.options | fewer)

    monkeypatch.setattr(needs, "parts", small)
    page = tmp_path / "docs" / "needs.md"
    page.parent.mkdir()
    words = ["/somewhere/net.pth", "--images", "val", "--boxes", "boxes.csv", "--out", str(tmp_path / "runs")]
    assert needs.main([*words, "--device", "cpu", "--markdown", str(page)]) == 0
    text = page.read_text("utf-8")
    assert capsys.readouterr().out.strip() == text.strip()
    assert "Made by `python -m scripts.studies.what_models_need.page net.pth --images val" in text
    titles = ("Region noise on generated shapes", "Two objects in generated images", "One thing changed", "In pictures")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [*titles]
    run = Run(tmp_path / "runs" / "changed")
    sides = [{row["sample_id"]: row for row in run.table(name, FLIPPED).to_pylist()} for name in (STANDARD, QUEST)]
    both = [one for one, row in sides[0].items() if row["clean_correct"] and sides[1][one]["clean_correct"]]
    first, second = (
        sum(side[one]["mass_after"] - side[one]["mass_before"] for one in both) / len(both) for side in sides
    )
    (line,) = (line for line in text.splitlines() if line.startswith("| colour changed") and "change of mass" in line)
    assert line.split("|")[2].strip().startswith(f"{100 * (second - first):+.1f} [") and abs(second - first) > 0.001
    shares = {}
    for change in ("colour", "shape"):
        of = [run.table(name, FLIPPED.replace("colour", change))["flipped"].to_pylist() for name in (STANDARD, QUEST)]
        shares[change] = sorted(100 * sum(column) / len(column) for column in of)
    said = [f"{low:.0f} to {high:.0f} %" for low, high in shares.values()]
    assert f"Predictions flip with the colour in {said[0]} of images, and with the outline in {said[1]}." in text
    assert ("All of these checkpoints take the shortcut." in text) == (shares["colour"][0] > shares["shape"][1])
    drawn = re.findall(r"^!\[(.*)\]\((.*)\)$", text, re.MULTILINE)
    assert [path for _, path in drawn] == [f"{name}.png" for name in ("figure-1", "figure-a8", "changed")]
    for caption, path in drawn:
        assert f"\n{caption}.\n" in text
        with Image.open(page.parent / path) as picture:
            assert picture.width > 2 * 224
    found = Run(tmp_path / "runs" / "pairs")
    tables = [found.table(name, "two-object(map=agcam)")["both_found"].to_pylist() for name in (STANDARD, QUEST)]
    assert f"of the {sum(a and b for a, b in zip(*tables, strict=True))} of 8 images" in drawn[1][0]
