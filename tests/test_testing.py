"""The fixture for pytest decides by the interval, and says what it found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

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
