"""SPSA: an attack that asks for logits only."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from .attack import Attack, Tally
from .model_access import LOSSES, Oracle, check_loss
from .rng import Rng

GradientAt = Literal["iterate", "doubled-input"]
_BETA1, _BETA2, _TINY = 0.9, 0.999, 1e-8  # Adam's usual constants
_ROWS, _VALUES = 256, 5 * 2**19  # values of one forward: 17 rows of 224x224 pixels; a GPU takes sixteen times as many


@dataclass(frozen=True)
class SPSA(Attack):
    """Gradients estimated by random two-sided differences (Uesato et al. 2018, arXiv:1802.05666), followed by Adam.

    At each step the gradient at the point x is the mean over random signs v of (f(x + delta v) - f(x - delta v)) /
    (2 delta) * v, with f the loss. Adam raises f, then the point is projected into the ball and the bounds. The points
    x ± delta v at which the model is asked are *not* cut to the bounds, as in the published code: cutting would halve
    the difference wherever a pixel is black or white. Only forwards, in `torch.inference_mode`; samples do not
    influence each other. `broken_at` is -1: the attack never classifies the points that it could return.

    steps: updates; each asks the model 2 * directions times for each sample, and nothing else (except one forward of
        the clean images if labels=None).
    lr: Adam's step size, in the unit of the images. delta: half the width of the differences, in the same unit.
    directions: random signs v per step.
    loss: "ce", "margin" or "dlr".
    gradient_at: "iterate" is the attack. "doubled-input" estimates the gradient at twice the clean image at every
        step, never at the point reached: a known error of CleverHans' PyTorch code (its issue 1249) that went into
        published figures, kept to reproduce them and for nothing else.
    chunk: most rows in one forward; None: 2.6 million input values, at most 256 rows (on a GPU sixteen times as
        many); never more than the `batch_size` of `run`. Rows are filled with directions first, then samples. It
        changes neither the draws nor, except for rounding, the result.
    random_start: begin at a random point of the ball (as the published code does), otherwise at the image.
    """

    steps: int = 40
    lr: float = 0.01
    delta: float = 0.01
    directions: int = 128
    loss: str = "margin"
    gradient_at: GradientAt = "iterate"
    chunk: int | None = None
    random_start: bool = True

    def __post_init__(self) -> None:
        check_loss(self.loss)
        for name in ("steps", "directions"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; expected 1 or more")
        for name in ("lr", "delta"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} is {getattr(self, name)}; expected a finite number above 0")
        if self.chunk is not None and self.chunk < 2:
            raise ValueError(f"chunk is {self.chunk}; expected 2 or more (a direction is two rows), or None")
        if self.gradient_at not in get_args(GradientAt):
            expected = ", ".join(get_args(GradientAt))
            raise ValueError(f"gradient_at is {self.gradient_at!r}; expected one of: {expected}")

    def _points(self, oracle: Oracle, clean: Tensor, labels: Tensor | None, rng: Rng, tally: Tally) -> Tensor:
        if labels is None:
            batches = torch.split(clean, self._rows(clean, oracle))
            labels = torch.cat([oracle.predict(batch).argmax(dim=1) for batch in batches])
            tally.forwards += 1
        ball = self.threat.ball(clean)
        points = ball.random_start(rng, "spsa/start") if self.random_start else clean.clone()
        mean, square = torch.zeros_like(points), torch.zeros_like(points)
        for step in range(1, self.steps + 1):
            centre = points if self.gradient_at == "iterate" else 2 * clean
            gradient = self._gradient(oracle, centre, labels, rng, f"spsa/step/{step}")
            mean.lerp_(gradient, 1 - _BETA1)
            square.mul_(_BETA2).addcmul_(gradient, gradient, value=1 - _BETA2)
            scale = (square / (1 - _BETA2**step)).sqrt_().add_(_TINY)
            points.addcdiv_(mean, scale, value=self.lr / (1 - _BETA1**step))
            ball.project_(points)
        tally.steps += self.steps
        tally.forwards += 2 * self.directions * self.steps
        return points

    def _gradient(self, oracle: Oracle, centre: Tensor, labels: Tensor, rng: Rng, purpose: str) -> Tensor:
        """Return the estimate (B, ...) at `centre`, in chunks of `_rows` rows."""
        most = max(2, self._rows(centre, oracle))
        width = min(self.directions, most // 2)
        gradient = torch.zeros_like(centre)
        batch = room_for(most, centre)
        everyone = torch.arange(len(centre), device=centre.device)
        for rows in torch.split(everyone, most // (2 * width)):
            draws, around, classes = rng.take(rows), centre[rows], labels[rows]
            for first in range(0, self.directions, width):
                shape = (min(width, self.directions - first), *centre.shape[1:])
                signs = draws.signs(shape, purpose, first).to(centre)
                slopes = self._slopes(oracle, around, signs, classes, batch)
                gradient[rows] += torch.bmm(slopes[:, None], signs.flatten(2)).reshape(around.shape)
        return gradient.div_(self.directions)

    def _slopes(self, oracle: Oracle, around: Tensor, signs: Tensor, labels: Tensor, batch: Tensor) -> Tensor:
        """Return the slopes (b, d) of the loss at `around` (b, ...) along `signs` (b, d, ...); slopes that are not
        finite count as 0.

        batch: room for the rows to ask, overwritten.
        """
        with torch.inference_mode():
            batch = batch[: 2 * signs.shape[0] * signs.shape[1]]
            pairs = batch.view(2, *signs.shape)
            torch.add(around[:, None], signs, alpha=self.delta, out=pairs[0])
            torch.sub(around[:, None], signs, alpha=self.delta, out=pairs[1])
            classes = labels[None, :, None].expand(*pairs.shape[:3], *labels.shape[1:]).flatten(0, 2)
            logits = torch.cat([oracle(rows) for rows in torch.split(batch, self._rows(around, oracle))])
            up, down = LOSSES[self.loss](logits, classes).to(around.dtype).view(pairs.shape[:3])
            slopes: Tensor = (up - down).div_(2 * self.delta).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        return slopes.clone()

    def _rows(self, images: Tensor, oracle: Oracle) -> int:
        """Return the most rows of one forward."""
        more = 1 if images.device.type == "cpu" else 16
        rows = self.chunk or max(2, more * min(_ROWS, _VALUES // max(1, images[0].numel())))
        return min(rows, oracle.batch_size or rows)


def room_for(rows: int, images: Tensor) -> Tensor:
    """Return an uninitialised batch of `rows` in the dtype, device and memory format of `images`."""
    last = images.ndim == 4 and not images.is_contiguous()
    return torch.empty(
        (rows, *images.shape[1:]),
        dtype=images.dtype,
        device=images.device,
        memory_format=torch.channels_last if last else torch.contiguous_format,
    )
