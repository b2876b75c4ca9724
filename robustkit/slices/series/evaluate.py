"""Disturb standardised series: each a function of the series, an amount and each sample's own random draws.

Series are (B, C, T) in units of each channel's standard deviation, so that 0 is a channel's mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import functional

from ...common.determinism import SampleRng
from ...evaluations.family import Evaluator
from ...evaluations.subject import Batch, EvaluatedModel, Shown
from . import VOCABULARY

if TYPE_CHECKING:
    from ...protocol.condition import Condition

KNOTS = 4
"""The places of a series, evenly spaced, at which the speed of a warp is drawn (time warping of Um et al. 2017)."""


def jitter(series: Tensor, sigma: float, rng: SampleRng) -> Tensor:
    """Add normal noise of standard deviation `sigma` to each value."""
    return series + sigma * rng.normal(series.shape[1:], "jitter").to(series)


def drop_steps(series: Tensor, share: float, rng: SampleRng) -> Tensor:
    """Put the mean in place of all channels at a share of the steps, rounded to whole steps."""
    return series.masked_fill(_chosen(series.shape[2], share, rng, "steps")[:, None, :].to(series.device), 0)


def drop_channels(series: Tensor, share: float, rng: SampleRng) -> Tensor:
    """Put the mean in place of a share of the channels, rounded to whole channels."""
    return series.masked_fill(_chosen(series.shape[1], share, rng, "channels")[:, :, None].to(series.device), 0)


def warp(series: Tensor, sigma: float, rng: SampleRng) -> Tensor:
    """Let time run at speeds whose logarithm is drawn at `KNOTS` places, linear between them; both ends stay."""
    steps = series.shape[2]
    if steps < 2:
        return series
    drawn = (sigma * rng.normal((KNOTS,), "warp")).to(series)
    speeds = functional.interpolate(drawn[:, None], size=steps - 1, mode="linear", align_corners=True)[:, 0].exp()
    times = functional.pad(speeds.cumsum(dim=1), (1, 0)) * (steps - 1) / speeds.sum(dim=1, keepdim=True)
    before = times.floor().clamp(0, steps - 2).long()
    share = (times - before)[:, None]
    first, second = (series.gather(2, at[:, None].expand_as(series)) for at in (before, before + 1))
    return first + share * (second - first)


def rescale(series: Tensor, sigma: float, rng: SampleRng) -> Tensor:
    """Multiply how far each channel is from its mean by a factor of its own, normal around 1 with `sigma`."""
    return series * (1 + sigma * rng.normal((series.shape[1], 1), "rescale").to(series))


def _chosen(count: int, share: float, rng: SampleRng, what: str) -> Tensor:
    """Return a mask (B, count) of so many of each sample's places; a larger share adds to those of a smaller one."""
    order = rng.uniform((count,), what).argsort(dim=1, stable=True)
    return order.argsort(dim=1) < int(share * count + 0.5)


DISTURBANCES: Mapping[str, Callable[[Tensor, float, SampleRng], Tensor]] = {
    "jitter": jitter,
    "drop-steps": drop_steps,
    "drop-channels": drop_channels,
    "warp": warp,
    "rescale": rescale,
}


class DisturbancesEvaluator(Evaluator):
    """Series are changed at random, as worse sensors would measure them."""

    words = VOCABULARY

    def show(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
        inputs = subject.inputs(batch.inputs)
        ((_, amount),) = condition.parameters
        disturbed = DISTURBANCES[condition.name](inputs, float(amount), rng)
        return Shown(disturbed, lambda: disturbed, disturbed - inputs)
