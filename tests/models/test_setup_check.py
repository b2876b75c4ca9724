"""Which preprocessing and numbering of labels a classifier fits."""

import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import setup_oracles as slow
import torch
from rich.console import Console
from scipy import stats
from torch import Tensor, nn

from robustkit.common.preprocessing import Preprocessing
from robustkit.data.dataset import open_dataset
from robustkit.display.progress import Bars
from robustkit.evaluations.setup_findings import other_order
from robustkit.models import load
from robustkit.models.identity import Classifier
from robustkit.models.setup_check import (
    BETTER,
    FITS,
    NORMALISATIONS,
    UNKNOWN,
    Bench,
    Setup,
    _judged,
    _p_value,
    alternatives,
    fit_part,
    fit_setup,
    label_numberings,
)
from robustkit.pipeline import inspection
from robustkit.pipeline.inspection import SetupSearch

TRUE = NORMALISATIONS["CLIP"]
OWN = Preprocessing((4, 4), *TRUE, crop_pct=1.0)


class Colours(nn.Module):
    """The best logits that there are for colours with noise, where they are normalised as in its training."""

    def __init__(self, centres: Tensor) -> None:
        super().__init__()
        mean, std = (torch.tensor(values) for values in TRUE)
        self.register_buffer("centres", (centres / 255 - mean) / std)
        self.asked = 0

    def forward(self, x: Tensor) -> Tensor:
        self.asked += len(x)
        return -2.6 * torch.cdist(x.mean(dim=(2, 3)), self.centres) ** 2


def bench(n: int, shift: int = 0, swapped: bool = False) -> tuple[Bench, Colours]:
    """A model of six colours on n images, whose labels are one too small, or channels swapped, if asked."""
    noise = torch.Generator().manual_seed(0)
    centres = torch.tensor(
        [[200, 40, 40], [40, 200, 40], [40, 40, 200], [150, 150, 20], [20, 150, 150], [90, 90, 90.0]]
    )
    net, truth = Colours(centres), torch.arange(n) % 6
    colours = centres[truth][:, :, None, None] + 30 * torch.randn((n, 3, 1, 1), generator=noise)
    pixels = (colours + 5 * torch.randn((n, 3, 4, 4), generator=noise)).clamp(0, 255).to(torch.uint8)
    pixels = pixels.flip(1) if swapped else pixels
    labels = (truth - shift) % 6
    numbered = label_numberings(list("abcdef"), 6)

    def score(logits: Tensor, places: Sequence[int], order: str) -> Tensor:
        theirs = torch.tensor(numbered[order])[labels[list(places)]]
        nll = nn.functional.cross_entropy(logits, theirs, reduction="none").double()
        return torch.stack([nll, (logits.argmax(dim=1) == theirs).double()], dim=1)

    return Bench(net, lambda place, _: pixels[place], n, score, 12, torch.device("cpu")), net


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
    fits = fit_setup(model, Setup(wrong), label_numberings(list("abcdef"), 6), math.log(6))
    found = named(fits)
    if not swapped:
        assert "CLIP" in {fits[0].best.name, *fits[0].open}
        assert (found["normalisation"][1] == BETTER) == (given != "CLIP")
    assert found["channels"] == (("BGR", BETTER) if swapped else ("RGB", FITS))
    assert found["labels"] == (("label + 1", BETTER) if shift else ("as given", FITS))
    assert fits[2].makes_no_difference and fits[2].text == "interpolation: makes no difference on these images"


@pytest.mark.parametrize(
    ("lead", "spread", "verdict"), [(0.003, 0.01, FITS), (0.003, 0.5, UNKNOWN), (0.1, 0.01, BETTER)]
)
def test_what_does_the_same_is_not_in_doubt(lead: float, spread: float, verdict: str) -> None:
    losses = torch.rand(200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wobble = spread * torch.randn(200, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    held = {"used": losses, "rival": losses - lead + wobble - wobble.mean(), "far": losses + 1 + wobble}
    fit = _judged("crop", held, dict.fromkeys(held, Setup(OWN)), "used", guessing=9, level=0.05, doubt=0.05, least=0.0)
    assert fit.best.name == "rival" and fit.verdict == verdict
    if verdict == FITS:
        same = "rival would be equivalent, within 0.02 of NLL"
        assert fit.text.startswith(f"crop: used fits best and is in use; {same}; the next is far (NLL +1.00")


@pytest.mark.parametrize(("close", "verdict"), [(2.1, FITS), (1.5, UNKNOWN)])
def test_the_one_in_use_fits_where_each_other_is_worse_by_itself(close: float, verdict: str) -> None:
    """Each of nine others by t = 2.1, p = 0.04: after Holm's correction, which is for one of many, none would be."""
    draws = torch.randn(9, 64, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    standard = (draws - draws.mean(dim=1, keepdim=True)) / draws.std(dim=1, keepdim=True)
    used = torch.rand(64, 2, dtype=torch.float64)
    held = {"used": used} | {f"other {k}": used + standard[k] + (2.1 if k else close) / 8 for k in range(9)}
    fit = _judged("crop", held, dict.fromkeys(held, Setup(OWN)), "used", guessing=9, level=0.05, doubt=0.05, least=0.0)
    assert fit.verdict == verdict and all(row.p_value > 0.05 for row in fit.rows if row.name != "used")


def test_eight_images_cannot_tell() -> None:
    model, _ = bench(8)
    fits = fit_setup(model, Setup(Preprocessing((4, 4))), label_numberings(list("abcdef"), 6), math.log(6))
    assert {fit.verdict for fit in fits} == {UNKNOWN}
    assert all("inconclusive" in fit.text or "no difference" in fit.text for fit in fits)


def test_a_ranking_is_paired_and_interval_and_p_value_are_students() -> None:
    model, _ = bench(60)
    fit = fit_part(model, "normalisation", Setup(OWN), {}, math.log(6))
    candidates = alternatives("normalisation", Setup(OWN), {})
    losses = dict(zip(candidates, model.losses([*candidates.values()], 60), strict=True))
    assert len({row.n for row in fit.rows}) > 2 and fit.rows[0].n == fit.used.n == max(row.n for row in fit.rows)
    assert [row.difference for row in fit.rows[1:]] == sorted(row.difference for row in fit.rows[1:])
    raw = {}
    for row in fit.rows[1:]:
        differences = (losses[row.name] - losses[fit.best.name])[: row.n, 0].numpy()
        error = differences.std(ddof=1) / math.sqrt(row.n)
        interval = stats.t.interval(0.95, row.n - 1, differences.mean(), error)
        assert (row.ci_low, row.ci_high) == pytest.approx(interval, rel=1e-2)
        assert row.difference == pytest.approx(differences.mean())
        raw[row.name] = stats.ttest_rel(losses[row.name][: row.n, 0], losses["CLIP"][: row.n, 0]).pvalue
    largest = 0.0
    for rank, name in enumerate(sorted(raw, key=raw.__getitem__)):  # Holm's, by hand
        largest = max(largest, min(1.0, (len(raw) - rank) * raw[name]))
        row = next(row for row in fit.rows if row.name == name)
        assert math.log(row.p_value) == pytest.approx(math.log(largest), rel=0.1, abs=0.05)
    for n, size in ((10, 0.8), (10, 2.0), (64, 0.3)):
        draws = np.random.default_rng(n).normal(size / 2, 1, n)
        assert _p_value(torch.tensor(draws)) == pytest.approx(stats.ttest_1samp(draws, 0).pvalue, rel=0.06)


def test_what_is_settled_is_dropped_and_nothing_is_asked_twice() -> None:
    model, net = bench(240)
    fit = fit_part(model, "normalisation", Setup(OWN), {}, math.log(6))
    asked = sum(row.n for row in fit.rows)
    assert {row.n for row in fit.rows} == {16, 32, 64, 240}
    assert net.asked == model.forwards == asked < 5 * 240
    fit_part(model, "normalisation", Setup(OWN), {}, math.log(6))
    assert fit_part(model, "interpolation", Setup(OWN), {}, math.log(6)).makes_no_difference  # the same pixels
    assert net.asked == asked
    model, net = bench(240)
    fit_part(model, "channels", Setup(OWN), {}, math.log(6), glance=16)
    assert net.asked == 32  # nothing is ahead of the right one on 16 images, so the rest is not looked at


def test_no_candidate_is_believed_where_the_model_is_no_better_than_guessing() -> None:
    model, _ = bench(60)
    fit = fit_part(model, "normalisation", Setup(OWN), {}, guessing=0.01)
    assert fit.verdict == UNKNOWN


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


def test_a_consistent_other_order_is_seen_and_a_bad_model_is_not_one() -> None:
    labels = np.arange(60) % 6
    order = np.array([3, 0, 5, 1, 2, 4])
    (found,) = other_order(labels, order[labels])
    assert found.code == "labels/other-order"
    assert "100 % of the samples are predicted as the rest of their class, and 0 % as their label" in found.text
    assert "(label 0 as 3, 1 as 0, 2 as 5, 3 as 1, …)" in found.text
    assert other_order(labels, labels) == []
    assert other_order(labels, np.zeros_like(labels)) == []
    random = np.random.default_rng(1).integers(6, size=60)
    assert other_order(labels, random) == other_order(np.zeros(4, dtype=int), np.ones(4, dtype=int)) == []


def looks_on(differences: dict[float, Tensor], n: int) -> tuple[Bench, list[int]]:
    """A bench whose candidates, crops, differ from the one in use by given losses. Returns it and what was asked."""
    asked: list[int] = []

    def read(place: int, preprocessing: Preprocessing) -> Tensor:
        asked.append(place)
        return torch.full((3, 1, 1), int(1000 * preprocessing.crop_pct) % 251, dtype=torch.uint8)

    marks = {int(1000 * crop) % 251: crop for crop in differences}

    def score(logits: Tensor, places: Sequence[int], _: str) -> Tensor:
        crops = [marks[round(float(value))] for value in logits[:, 0]]
        nll = [float(differences[crop][place]) for crop, place in zip(crops, places, strict=True)]
        return torch.tensor([nll, [1.0] * len(nll)], dtype=torch.float64).T

    class Pixels(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 255 * x[:, :1, 0, 0]

    return Bench(Pixels(), read, n, score, 16, torch.device("cpu")), asked


def crops(means: Sequence[float], n: int, seed: int, spread: float = 0.5) -> dict[float, Tensor]:
    """Losses of the crop in use, 0.875, and of three others that are worse by these means."""
    draws = torch.Generator().manual_seed(seed)
    return {
        0.875: torch.zeros(n),
        **{
            crop: mean + spread * torch.randn(n, generator=draws)
            for crop, mean in zip((0.9, 0.95, 1.0), means, strict=True)
        },
    }


def sequential(means: Sequence[float], n: int, seed: int) -> tuple[str, int]:
    bench, asked = looks_on(crops(means, n, seed), n)
    setup = Setup(Preprocessing((1, 1), (0.0,) * 3, (1.0,) * 3, crop_pct=0.875))
    fit = fit_part(bench, "crop", setup, {}, 9.0, 0.01, hasty=True)
    return fit.verdict, len(asked)


def test_looking_until_it_is_decided_ends_early_and_adds_no_false_verdicts() -> None:
    """Counted over draws: a wrong one is named, a right one is confirmed, and of four that are alike none is
    named in more than two of 100 draws, although each is looked at six times.
    """
    wrong = [sequential((-0.4, 0.5, 0.5), 1000, seed) for seed in range(20)]
    assert {verdict for verdict, _ in wrong} == {BETTER} and max(asked for _, asked in wrong) < 700
    right = [sequential((0.4, 0.5, 0.6), 1000, seed) for seed in range(20)]
    assert sum(verdict == FITS for verdict, _ in right) == 20 and max(asked for _, asked in right) < 700
    alike = [sequential((0.0, 0.0, 0.0), 600, seed)[0] for seed in range(100)]
    assert alike.count(BETTER) <= 2 and alike.count(FITS) <= 2


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
    *(pytest.param(trained, given, {}, marks=[] if trained == "quest" else pytest.mark.slow)
      for trained in FORMULAS for given in FORMULAS if trained == given or "standard" in (trained, given)),
    pytest.param("quest", "quest", {"mean": (0.0,) * 3, "std": (1.0,) * 3}, marks=pytest.mark.slow),
]  # fmt: skip


@pytest.mark.parametrize(("trained", "given", "options"), GIVEN)
def test_halving_has_the_verdicts_of_the_full_search(trained: str, given: str, options: dict[str, Any]) -> None:
    model = load(f"zoo:shapes-vit-{trained}", attention=given, **options)
    assert slow.check_same_verdicts(model, open_dataset("embedded:shapes").select(limit=60)) < 20


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
    images = inspection._Images(dataset, Preprocessing((2, 2)), 0, look, held=2, batch_size=1)
    assert images.reach(9) == 6 and len(looked) == 6
    labels = [sample.label for sample in images.samples]
    assert images.truths(range(6)).flatten().tolist() == labels
    assert looked[6:] == [sample.id for sample in images.samples[2:5]]  # two are held, and the last batch


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
