"""Which preprocessing and numbering of labels a classifier fits."""

import io
import math
from collections.abc import Sequence
from typing import Any

import pytest
import setup_oracles as slow
import torch
from colours import NUMBERED, OWN, bench
from rich.console import Console
from torch import Tensor

from robustkit.common.preprocessing import Preprocessing
from robustkit.data.dataset import open_dataset
from robustkit.display.progress import Bars
from robustkit.models import load
from robustkit.models.identity import Classifier
from robustkit.models.setup_check import BETTER, FITS, NORMALISATIONS, UNKNOWN, PartFit, Setup, SetupFit
from robustkit.slices.inspect import search as searching
from robustkit.slices.inspect.search import SetupSearch, fit_setup, label_numberings, makes_no_difference, verdict_text


def named(fits: Sequence[object]) -> dict[str, tuple[str, str]]:
    return {fit.part: (fit.best.name, fit.verdict) for fit in fits}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "shift", "swapped"),
    [
        ("CLIP", 0, False),
        ("none, 0 to 1", 0, False),
        ("none, 0 to 255", 0, False),
        ("0.5 / 0.5", 0, False),
        ("CLIP", 1, False),
        ("CLIP", 0, True),
        ("0.5 / 0.5", 1, False),  # two at once
    ],
)
def test_the_part_that_is_wrong_is_found(given: str, shift: int, swapped: bool) -> None:
    model, _ = bench(240, shift, swapped)
    wrong = Preprocessing((4, 4), *NORMALISATIONS[given], crop_pct=1.0)
    fits = fit_setup(model, Setup(wrong), NUMBERED, math.log(6))
    found = named(fits)
    if not swapped:
        assert "CLIP" in {fits[0].best.name, *fits[0].open}
        assert (found["normalisation"][1] == BETTER) == (given != "CLIP")
    assert found["channels"] == (("BGR", BETTER) if swapped else ("RGB", FITS))
    assert found["labels"] == (("label + 1", BETTER) if shift else ("as given", FITS))
    assert (
        makes_no_difference(fits[2]) and verdict_text(fits[2]) == "interpolation: makes no difference on these images"
    )


def test_eight_images_cannot_tell() -> None:
    model, _ = bench(8)
    fits = fit_setup(model, Setup(Preprocessing((4, 4))), NUMBERED, math.log(6))
    assert {fit.verdict for fit in fits} == {UNKNOWN}
    assert all("inconclusive" in text or "no difference" in text for text in map(verdict_text, fits))


def test_what_is_equivalent_is_said_to_be_so() -> None:
    def row(name: str, behind: float) -> SetupFit:
        return SetupFit(name, 0.5, 1 + behind, behind, behind - 0.01, behind + 0.01, 200, Setup(OWN), 0.5)

    fit = PartFit("crop", (row("rival", 0.0), row("used", 0.003), row("far", 1.0)), "used", FITS)
    assert verdict_text(fit) == (
        "crop: used fits best and is in use; rival would be equivalent, within 0.02 of NLL; the next is far "
        "(NLL +1.000, 95 % interval +0.990 to +1.010)"
    )


def test_numberings() -> None:
    assert label_numberings(["b", "a", "c"], 3) == {
        "as given": [0, 1, 2],
        "label + 1": [1, 2, 0],
        "label - 1": [2, 0, 1],
        "names in alphabetical order": [1, 0, 2],
    }
    assert label_numberings(["0", "1", "10", "2"], 5)["names in the order of their numbers"] == [0, 1, 3, 2]
    assert label_numberings(["0", "1", "2", "10"], 4)["names in alphabetical order"] == [0, 1, 3, 2]
    assert label_numberings(["a", "b"], 1001)["label + 1"] == [1, 2]  # a class of the background comes first


@pytest.mark.parametrize("mean", [0.5, 0.0])
def test_a_shipped_vit_names_its_own_normalisation(mean: float) -> None:
    model = load("zoo:shapes-vit-quest", mean=(mean,) * 3, std=(0.5 if mean else 1.0,) * 3)
    fits, lines = SetupSearch(model, open_dataset("embedded:shapes").select(limit=60), 20, 0).fit()
    near = {fits[0].best.name, *fits[0].open}
    assert {"0.5 / 0.5", "127 / 128 of 255"} <= near and "none, 0 to 1" not in near
    assert (fits[0].verdict == BETTER) == (not mean) and lines[0].startswith("WARNING: normalisation") == (not mean)
    assert named(fits)["channels"] == ("RGB", FITS) and named(fits)["labels"] == ("as given", FITS)
    assert not mean or all("WARNING" not in line for line in lines)


def permuted(model: Classifier) -> Classifier:
    order = torch.tensor([3, 0, 5, 1, 2, 4, 9, 7, 8, 6])
    model.network.head.weight.copy_(model.network.head.weight[order].clone())
    model.network.head.bias.copy_(model.network.head.bias[order].clone())
    return model


FORMULAS = ("standard", "quest", "elliptical", "elliptical-quest")
GIVEN = [
    *(pytest.param(trained, given, {}, marks=[] if trained == given == "quest" else pytest.mark.slow)
      for trained in FORMULAS for given in FORMULAS if trained == given or "standard" in (trained, given)),
    pytest.param("quest", "quest", {"mean": (0.0,) * 3, "std": (1.0,) * 3}, marks=pytest.mark.slow),
]  # fmt: skip


@pytest.mark.parametrize(("trained", "given", "options"), GIVEN)
def test_halving_has_the_verdicts_of_the_full_search(trained: str, given: str, options: dict[str, Any]) -> None:
    model = load(f"zoo:shapes-vit-{trained}", attention=given, **options)
    assert slow.check_same_verdicts(model, open_dataset("embedded:shapes").select(limit=60)) < 20


@pytest.mark.slow
def test_labels_in_another_order_are_hopeless_soon_and_said_so() -> None:
    data = open_dataset("embedded:shapes").select(limit=60)
    assert slow.check_same_verdicts(permuted(load("zoo:shapes-vit-standard")), data) < 16
    _, lines = SetupSearch(permuted(load("zoo:shapes-vit-standard")), data, 16, 0).fit()
    assert "no candidate is better than chance" in lines[0] and "labels may be in a different order" in lines[1]


def test_images_that_are_no_longer_held_are_read_again() -> None:
    looked = list[str]()

    def look(sample: Any, preprocessing: Preprocessing) -> tuple[Tensor, Tensor]:
        looked.append(sample.id)
        return torch.full((3, 2, 2), float(sample.label)), torch.tensor([sample.label])

    dataset = open_dataset("embedded:shapes").select(limit=6)
    images = searching._Images(dataset, Preprocessing((2, 2)), 0, look, held=2, batch_size=1)
    assert images.reach(9) == 6 and len(looked) == 6
    labels = [sample.label for sample in images.samples]
    assert images.truths(range(6)).flatten().tolist() == labels
    assert looked[6:] == [sample.id for sample in images.samples[2:5]]  # two are held, and the last batch


@pytest.mark.slow
def test_images_are_a_function_of_the_seed_and_no_other() -> None:
    data, model = open_dataset("embedded:shapes").select(limit=60), load("zoo:shapes-vit-quest")
    found = {}
    for size, seed in ((16, 0), (7, 0), (16, 1)):
        search = SetupSearch(model, data, size, seed)
        ranking, (_, lines) = search.rank(), search.fit()
        ids = [sample.id for sample in search.images.samples]
        found[size, seed] = ids, ranking.text, [row.n for row in ranking.rows], lines
        assert len({sample.label for sample in search.images.samples[:10]}) == 10  # class by class in turn
    assert found[16, 0] == found[7, 0] and found[16, 1][0] != found[16, 0][0]
    assert sorted(found[16, 0][0]) == sorted(found[16, 1][0])


def test_a_bar_counts_to_its_end_on_a_terminal_only() -> None:
    for terminal in (True, False):
        out = io.StringIO()
        search = SetupSearch(load("zoo:shapes-vit-quest"), open_dataset("embedded:shapes").select(limit=20), 8, 0)
        with Bars(Console(file=out, force_terminal=terminal, width=100), "passes") as bars:
            search.show(bars)
            search.rank()
            search.fit()
            assert [task.completed for task in bars.tasks] == [task.total for task in bars.tasks]
            assert bars.tasks[0].total > 20 * 25
        text = out.getvalue()
        assert ("passes" in text and "left" in text) == terminal == bool(text)
