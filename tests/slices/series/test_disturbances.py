"""Disturbances of time series: values by hand, and draws that depend on nothing but seed, sample and kind."""

import numpy as np
import pytest
import torch
from torch import Tensor

from robustkit.common.determinism import SampleRng
from robustkit.errors import ProtocolError
from robustkit.slices.series import USUAL, VOCABULARY, parse_disturbances
from robustkit.slices.series.evaluate import DISTURBANCES, KNOTS

IDS = ("x/0", "x/1", "x/2")


def rng_of(ids: tuple[str, ...] = IDS, kind: str = "kind", seed: int = 3) -> SampleRng:
    return SampleRng.of(ids, seed=seed, condition=kind, device="cpu")


def series() -> Tensor:
    return torch.randn(3, 5, 20, generator=torch.Generator().manual_seed(0))


def test_jitter_adds_its_own_draws() -> None:
    shown = DISTURBANCES["jitter"](series(), 0.25, rng_of())
    torch.testing.assert_close(shown - series(), 0.25 * rng_of().normal((5, 20), "jitter"))
    assert 0.2 < float((shown - series()).std()) < 0.3


def test_dropping_puts_the_mean_at_so_many_places_and_more_at_a_larger_share() -> None:
    before = set[tuple[int, int]]()
    for share, count in ((0.0, 0), (0.1, 2), (0.23, 5), (0.5, 10), (1.0, 20)):
        shown = DISTURBANCES["drop-steps"](series(), share, rng_of())
        dropped = (shown == 0).all(dim=1)
        assert dropped.sum(dim=1).tolist() == [count] * 3
        assert torch.equal(shown, series() * ~dropped[:, None])
        places = set(map(tuple, dropped.nonzero().tolist()))
        assert before <= places
        before = places
    shown = DISTURBANCES["drop-channels"](series(), 0.5, rng_of())  # half of five channels, rounded up
    dropped = (shown == 0).all(dim=2)
    assert dropped.sum(dim=1).tolist() == [3] * 3 and torch.equal(shown, series() * ~dropped[:, :, None])


def test_rescaling_has_a_factor_for_each_channel() -> None:
    factors = DISTURBANCES["rescale"](series(), 0.3, rng_of()) / series()
    expected = 1 + 0.3 * rng_of().normal((5, 1), "rescale")
    torch.testing.assert_close(factors, expected.expand(3, 5, 20), rtol=1e-4, atol=1e-4)


def test_a_warp_equals_a_plain_loop() -> None:
    shown, drawn = DISTURBANCES["warp"](series(), 0.7, rng_of()), rng_of().normal((KNOTS,), "warp").double().numpy()
    for values, draws, warped in zip(series().double().numpy(), drawn, shown.numpy(), strict=True):
        middles = np.linspace(0, KNOTS - 1, 19)
        speeds = np.exp(0.7 * np.interp(middles, np.arange(KNOTS), draws))
        times = 19 * np.append(0, np.cumsum(speeds)) / speeds.sum()
        expected = [np.interp(times, np.arange(20), channel) for channel in values]
        np.testing.assert_allclose(warped, expected, atol=1e-4)
    assert torch.equal(shown[:, :, 0], series()[:, :, 0])
    torch.testing.assert_close(shown[:, :, -1], series()[:, :, -1], rtol=1e-4, atol=1e-4)
    assert torch.equal(DISTURBANCES["warp"](series()[:, :, :1], 0.7, rng_of()), series()[:, :, :1])


@pytest.mark.parametrize("kind", DISTURBANCES)
def test_nothing_happens_at_zero_and_each_sample_has_draws_of_its_own(kind: str) -> None:
    disturb = DISTURBANCES[kind]
    torch.testing.assert_close(disturb(series(), 0.0, rng_of()), series())
    whole = disturb(series(), 0.6, rng_of())
    for place in (2, 0):
        alone = disturb(series()[place : place + 1], 0.6, rng_of((IDS[place],)))
        torch.testing.assert_close(alone[0], whole[place], rtol=1e-6, atol=1e-6)
    assert not torch.equal(whole, disturb(series(), 0.6, rng_of(seed=4)))


def test_texts_are_canonical_and_draws_are_of_the_kind() -> None:
    conditions = parse_disturbances("jitter, drop-steps(share=1/4),jitter(sigma=0.50),warp(sigma=2)")
    texts = [condition.text for condition in conditions]
    assert texts == ["jitter(sigma=0.5)", "drop-steps(share=0.25)", "warp(sigma=2)"]
    assert [condition.draws for condition in conditions] == ["jitter", "drop-steps", "warp"]
    assert [condition.name for condition in parse_disturbances("all")] == list(USUAL) == list(DISTURBANCES)
    assert VOCABULARY.label("drop-channels(share=0.2)") == "20 % of the channels dropped"
    for text, said in (
        ("drop-steps(share=1.5)", "share 1.5: expected a share from 0 to 1"),
        ("warp(sigma=-1)", "sigma -1: expected 0 or more"),
        ("jitter(share=1)", "unknown parameter of jitter 'share'"),
        ("shake", "unknown disturbance 'shake'"),
    ):
        with pytest.raises(ProtocolError, match=said):
            parse_disturbances(text)
