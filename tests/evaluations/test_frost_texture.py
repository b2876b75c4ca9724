"""Frost's own textures: in the text of conditions and means, chosen where the photographs are missing, and said."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import robustkit
from robustkit.errors import ProtocolError
from robustkit.evaluations.condition import matches, pattern_of
from robustkit.evaluations.corruptions import (
    SETS,
    Corrupted,
    as_published,
    asked_texture,
    conditions_of,
    expand,
    parse_corrupted,
    possible_means,
    unlike_published,
)
from robustkit.evaluations.corruptions.plan import choose_texture
from robustkit.evaluations.corruptions.results import tree_doubts
from scripts.studies.frost import make

ALL = [Corrupted(name, s, texture="own").text for name, some in SETS["in-c"].items() for s in some]


def test_texts_and_back() -> None:
    text = "corruption(frost,severity=3,preset=cifar,texture=own)"
    assert parse_corrupted(text) == Corrupted("frost", 3, "cifar", texture="own") and parse_corrupted(text).text == text  # type: ignore[union-attr]
    assert parse_corrupted("corruption(frost,texture=photographs)").text == "corruption(frost)"  # type: ignore[union-attr]
    assert Corrupted("fog", 3, texture="own").text == "corruption(fog,severity=3)"
    for wrong in ("corruption(fog,texture=own)", "corruption(frost,source=released,texture=own)"):
        with pytest.raises(ProtocolError, match="unknown parameter of corruption 'texture'"):
            parse_corrupted(wrong)


def test_means_that_hold_frost_say_so_and_others_do_not() -> None:
    means = list(possible_means(ALL))
    assert {"in-c(texture=own)", "weather(texture=own)", "noise", "blur", "corruption(frost,texture=own)"} <= set(means)
    assert not {"in-c", "weather", "noise(texture=own)", "corruption(frost)"} & set(means)
    assert sorted(conditions_of("in-c(texture=own)")) == sorted(ALL)
    both = list(possible_means([*ALL, *(f"corruption(frost,severity={s})" for s in range(1, 6))]))
    assert {"in-c", "in-c(texture=own)"} <= set(both) and len(both) == len(set(both))


def test_lists_name_the_texture() -> None:
    assert expand("in-c(texture=own),-fog") == expand("in-c,-fog") and asked_texture("in-c(texture=own),-fog") == "own"
    assert expand("frost(severity=3,texture=photographs)") == {"frost": (3,)} and asked_texture("in-c") == ""
    with pytest.raises(ProtocolError, match="both textures of frost"):
        asked_texture("frost(texture=own),in-c(texture=photographs)")
    with pytest.raises(ProtocolError, match="unknown texture 'owm'; did you mean 'own'"):
        expand("frost(texture=owm)")
    with pytest.raises(ProtocolError, match="'texture=own' is not severity"):
        expand("noise(texture=own)")


def test_which_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "robustkit.evaluations.corruptions.plan.find_spec"
    monkeypatch.setattr(place, lambda name: None)
    assert choose_texture("", {})[0] == "own" and "pip install --no-deps imagecorruptions" in choose_texture("", {})[1]
    assert choose_texture("photographs", {}) == ("photographs", "") == choose_texture("", {"frost_dir": "ice"})
    monkeypatch.setattr(place, lambda name: object())
    assert choose_texture("", {}) == ("photographs", "") and choose_texture("own", {}) == ("own", "")
    with pytest.raises(ProtocolError, match=r"frost\(texture=own\) and --frost-dir ice: leave one of the two out"):
        choose_texture("own", {"frost_dir": "ice"})


def test_a_figure_beside_published_ones_is_flagged() -> None:
    assert as_published("in-c(texture=own)") == "in-c" and as_published("in-c(preset=cifar)") == ""
    assert as_published("corruption(frost,texture=own)") == "corruption(frost)"
    assert "benchmark's photographs" in unlike_published("in-c(texture=own)")
    assert not unlike_published("in-c") and not tree_doubts("in-c", (224, 224), [])
    (found,) = tree_doubts("in-c(texture=own)", (224, 224), [])
    assert found.code == "corruptions/own-frost" and found.text.startswith("frost(texture=own): uses our textures")
    demanded = pattern_of("in-c(texture=photographs)")
    assert matches(demanded, "in-c") and not matches(demanded, "in-c(texture=own)")


def test_an_audit_without_photographs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("corruptions.weather", "robustkit.evaluations.corruptions.plan"):
        monkeypatch.setattr(f"{module}.find_spec", lambda name: None)
    asked = {"attacks": "none", "corruptions": "frost", "limit": 4, "out": tmp_path / "run"}
    run = robustkit.audit(["zoo:shapes-vit-quest"], data_dir="embedded:shapes", **asked)
    rows = run.results().set_index(["condition", "metric"])
    assert "corruption(frost,severity=5,texture=own)" in rows.index and "corruption(frost,texture=own)" in rows.index
    page = (tmp_path / "run" / "report.html").read_text("utf-8")
    assert "frost(texture=own)" in page


@pytest.mark.parametrize("number", [0, 3])
def test_the_script_makes_the_textures_that_are_shipped(number: int) -> None:
    made = np.asarray(make.texture(number).convert("RGB")).astype(int)
    with Image.open(make.OUT / f"ice{number + 1}.png") as shipped:
        assert np.abs(made - np.asarray(shipped.convert("RGB"))).mean() < 1  # FFTs round as the machine likes


def test_textures_have_the_measures_of_the_photographs() -> None:
    for number, texture in enumerate(make.TEXTURES, start=1):
        with Image.open(make.OUT / f"ice{number}.png") as shipped:
            found = make.measure(np.asarray(shipped.convert("RGB")))
        for colour in ("red", "green", "blue"):
            mean, spread = getattr(found, colour)
            wanted = getattr(texture.like, colour)
            assert mean == pytest.approx(wanted[0], abs=2) and spread == pytest.approx(
                texture.contrast * wanted[1], rel=0.1
            )
        assert found.power == pytest.approx(texture.like.power, abs=0.1)
