"""Which candidate of a part of a set-up a classifier fits, and on how many images that is decided."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from colours import OWN, bench
from scipy import stats
from torch import Tensor, nn

from robustkit.common.preprocessing import Preprocessing
from robustkit.evaluations.setup_findings import other_order
from robustkit.models.setup_check import (
    BETTER,
    FITS,
    UNKNOWN,
    Bench,
    Setup,
    _judged,
    _p_value,
    alternatives,
    fit_part,
)


@pytest.mark.parametrize(
    ("lead", "spread", "verdict"), [(0.003, 0.01, FITS), (0.003, 0.5, UNKNOWN), (0.1, 0.01, BETTER)]
)
def test_what_does_the_same_is_not_in_doubt(lead: float, spread: float, verdict: str) -> None:
    losses = torch.rand(200, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wobble = spread * torch.randn(200, 1, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    held = {"used": losses, "rival": losses - lead + wobble - wobble.mean(), "far": losses + 1 + wobble}
    fit = _judged("crop", held, dict.fromkeys(held, Setup(OWN)), "used", guessing=9, level=0.05, doubt=0.05, least=0.0)
    assert fit.best.name == "rival" and fit.verdict == verdict
    assert fit.used.does_the_same == (verdict == FITS) and not fit.rows[-1].does_the_same


@pytest.mark.parametrize(("close", "verdict"), [(2.1, FITS), (1.5, UNKNOWN)])
def test_the_one_in_use_fits_where_each_other_is_worse_by_itself(close: float, verdict: str) -> None:
    """Each of nine others by t = 2.1, p = 0.04: after Holm's correction, which is for one of many, none would be."""
    draws = torch.randn(9, 64, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    standard = (draws - draws.mean(dim=1, keepdim=True)) / draws.std(dim=1, keepdim=True)
    used = torch.rand(64, 2, dtype=torch.float64)
    held = {"used": used} | {f"other {k}": used + standard[k] + (2.1 if k else close) / 8 for k in range(9)}
    fit = _judged("crop", held, dict.fromkeys(held, Setup(OWN)), "used", guessing=9, level=0.05, doubt=0.05, least=0.0)
    assert fit.verdict == verdict and all(row.p_value > 0.05 for row in fit.rows if row.name != "used")


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
    same = fit_part(model, "interpolation", Setup(OWN), {}, math.log(6))  # the same pixels
    assert all(row.ci_low == row.ci_high == 0 for row in same.rows)
    assert net.asked == asked
    model, net = bench(240)
    fit_part(model, "channels", Setup(OWN), {}, math.log(6), glance=16)
    assert net.asked == 32  # nothing is ahead of the right one on 16 images, so the rest is not looked at


def test_no_candidate_is_believed_where_the_model_is_no_better_than_guessing() -> None:
    model, _ = bench(60)
    fit = fit_part(model, "normalisation", Setup(OWN), {}, guessing=0.01)
    assert fit.verdict == UNKNOWN


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


@pytest.mark.slow
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
