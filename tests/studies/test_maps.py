"""The picture of which maps beat the controls, for as many methods as there are."""

import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from scripts.studies.maps import page
from scripts.studies.maps.page import COLOURS, Lead, plot, winners

pytestmark = pytest.mark.usefixtures("one_thread")


def test_each_lead_is_a_cell_in_the_colour_of_its_verdict(tmp_path: Path) -> None:
    verdicts = {
        "ahead": Lead(0.11, 0.05, 0.17, "centre"),
        "level": Lead(0.02, -0.03, 0.07, "full"),
        "behind": Lead(-0.31, -0.4, -0.2, "full"),
        "open": Lead(0.04, math.nan, math.nan, "centre"),
    }
    methods = [f"method-{i}" for i in range(13)]
    leads = {score: dict.fromkeys(methods, lead) for score, lead in verdicts.items()}
    fewer = {"ahead": {"method-0": Lead(-0.25, -0.3, -0.2, "random")}}
    plot([("many", leads), ("one", fewer)], tmp_path / "leads.svg")
    root = ElementTree.parse(tmp_path / "leads.svg").getroot()
    texts = [node.text for node in root.iter("{http://www.w3.org/2000/svg}text")]
    assert [texts.count(f"{lead.value:+.2f}") for lead in verdicts.values()] == [13] * 4
    assert texts.count("-0.25") == 1
    assert [texts.count(name) for name in methods] == [1] * 13  # below the last panel
    styles = [node.get("style", "") for node in root.iter("{http://www.w3.org/2000/svg}path")]
    cells = {name: sum(f"fill: {colour}" in style for style in styles) for name, colour in COLOURS.items()}
    assert cells["ahead"] == 14 and cells["behind"] == 15 and cells["open"] == 14  # a cell of each is in the legend


def test_who_beats_the_controls_is_said_score_by_score(monkeypatch: pytest.MonkeyPatch) -> None:
    won, lost, open_ = (
        Lead(0.1, 0.05, 0.15, "centre"),
        Lead(-0.1, -0.15, -0.05, "full"),
        Lead(0.1, math.nan, math.nan, "full"),
    )
    found = {
        "a": {"x": won, "y": lost, "z": won},
        "b": {"x": lost, "y": Lead(0.02, -0.03, 0.07, "full")},
        "c": {"x": open_},
    }
    run: Any = object()
    monkeypatch.setattr(page, "names", lambda run: ["vit"])
    monkeypatch.setattr(page, "leads", lambda run, checkpoint: found)
    assert list(winners("real", run)) == ["- real, vit: a: x, z; none on b."]
    del found["a"]
    assert list(winners("real", run)) == ["- real, vit: nothing; none on b."]
