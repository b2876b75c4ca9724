"""The fixture for pytest decides by the interval, and says what it found."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from robustkit.errors import ProtocolError
from robustkit.testing import assert_robust as asserted
from robustkit.testing import assert_robust_fixture as assert_robust_fixture  # known to the tests here

pytestmark = pytest.mark.usefixtures("one_thread", "pageless", "unexamined")


class Bright(nn.Module):
    """Two logits by the mean brightness: right with a margin that an attack of 8/255 leaves, one of 128/255 not."""

    def forward(self, images: Tensor) -> Tensor:
        mean = images.flatten(1).mean(dim=1)
        return torch.stack([0.5 - mean, mean - 0.5], dim=1)


def images(count: int) -> tuple[Tensor, Tensor]:
    labels = torch.arange(count) % 2
    return torch.where(labels.bool(), 0.8, 0.2)[:, None, None, None].expand(count, 3, 32, 32).clone(), labels


def test_the_fixture_passes_where_the_whole_interval_does(assert_robust: Callable[..., float], tmp_path: Path) -> None:
    assert assert_robust(Bright(), images(40), eps=8 / 255, at_least=0.9, pixels=True) == 1.0
    assert (tmp_path / "robustkit" / "summary.json").is_file()
    assert assert_robust(Bright(), images(8), attack="clean", at_least=0.5, pixels=True, out=tmp_path / "b") == 1.0


@pytest.mark.parametrize(
    ("count", "eps", "at_least", "said"),
    [
        (40, 128 / 255, 0.5, r"Bright: top1 0.000 \[0.000, 0.088\] under pgd\(.*\), n = 40; below 0.5"),
        (
            4,
            8 / 255,
            0.9,
            r"top1 1.000 \[0.510, 1.000\] .*; inconclusive, more samples would decide: expected at least 0.9",
        ),
    ],
)
def test_it_fails_where_the_interval_does_not(
    count: int, eps: float, at_least: float, said: str, tmp_path: Path
) -> None:
    with pytest.raises(AssertionError, match=said):
        asserted(Bright(), images(count), eps=eps, at_least=at_least, pixels=True, out=tmp_path / "run")


def test_every_call_of_a_test_is_judged_by_its_own_conditions(assert_robust: Callable[..., float]) -> None:
    """The margin of `Bright` is 0.3: a radius of 128/255 breaks each sample, one of 32/255 none."""
    judged = partial(assert_robust, Bright(), images(40), pixels=True, at_least=0.9)
    assert judged(eps=8 / 255) == judged(eps="8/255,32/255") == judged(attack="clean") == 1.0
    for asked in (
        {"eps": 128 / 255},
        {"eps": "8/255,128/255"},
        {"eps": "128/255,8/255"},
        {"eps": 128 / 255, "attack": "pgd(steps=1,random_start=false,step_size=0.00001),pgd(steps=20)"},
        {"eps": 128 / 255, "attack": "clean, pgd"},
        {"attack": "clean", "corruptions": "brightness(severity=5)", "constants": "imagenet"},
    ):
        with pytest.raises(AssertionError, match=r"below 0.9|inconclusive"):
            judged(**asked)


def test_one_folder_for_several_calls(tmp_path: Path) -> None:
    """What an earlier call asked for is judged by that call alone."""
    judged = partial(asserted, Bright(), images(40), pixels=True, out=tmp_path / "run")
    with pytest.raises(AssertionError, match=r"under pgd\(eps=128/255,steps=20\), n = 40; below 0.9"):
        judged(eps=128 / 255, at_least=0.9)
    assert judged(eps=8 / 255, at_least=0.9) == 1.0
    with pytest.raises(AssertionError, match=r"under pgd\(eps=128/255,"):
        judged(eps="8/255,128/255", at_least=0.9)


def test_a_metric_in_its_direction(assert_robust: Callable[..., float]) -> None:
    """NLL of two logits that differ by 0.6 is log(1 + exp(-0.6)) = 0.437; by -0.4, after 128/255, 0.916 or more."""
    judged = partial(assert_robust, Bright(), images(40), pixels=True, metric="nll")
    assert judged(attack="clean", at_most=0.44) == pytest.approx(math.log1p(math.exp(-0.6)), abs=1e-5)
    with pytest.raises(AssertionError, match=r"nll 0\.9.*; above 0\.5"):
        judged(eps=128 / 255, at_most=0.5)
    for bounds, said in (
        ({"at_least": 0.1}, "nll is better lower: give at_most"),
        ({"at_most": 0.1, "metric": "top1"}, "top1 is better higher: give at_least"),
        ({}, "expected one of them"),
        ({"at_least": 0.1, "at_most": 0.2}, "expected one of them"),
        ({"at_most": math.nan}, "expected a finite number"),
        ({"at_most": 0.1, "metric": "nll2"}, "unknown metric 'nll2'"),
    ):
        with pytest.raises(ProtocolError, match=said):
            judged(**bounds)


def test_an_attack_that_was_not_evaluated_fails(assert_robust: Callable[..., float]) -> None:
    for asked, said in (({"attack": "none"}, "none has no top1"), ({"metric": "cam_iou"}, "pgd has no cam_iou")):
        with pytest.raises(AssertionError, match=said):
            assert_robust(Bright(), images(8), pixels=True, at_least=0.1, **asked)
