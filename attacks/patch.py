"""Patches: a small square of an image takes any values, and misleads the model wherever it looks."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from .attack import Attack, AttackResult, Tally
from .model_access import Oracle, cross_entropy, input_gradient, missed
from .queue import Survivors
from .rng import Rng
from .threat import Ball, ThreatModel, per_sample

PATCH_LOSSES = ("ce", "kq", "kq-cls")
MOMENTUM = 0.9

KeyLoss = Callable[[Tensor, Tensor, bool], tuple[Tensor, Tensor]]
"""Images (B, C, H, W), boxes (B, 3) of top, left and side, and whether only the class token asks, to logits (B, K) and
a loss (B,) that grows as queries are drawn to the keys of the box."""


@dataclass(frozen=True)
class PatchResult(AttackResult):
    """An `AttackResult` with the place of each patch: top and left (B, 2), in pixels."""

    places: Tensor


@dataclass(frozen=True)
class _Climb(Survivors):
    points: Tensor
    velocity: Tensor
    ball: Ball
    labels: Tensor
    boxes: Tensor
    first: Tensor
    fell: Tensor


class _Tally(Tally):
    """Counts, and the places of the patches that are returned."""

    def __init__(self, batch: int, device: torch.device) -> None:
        super().__init__(batch, device)
        self.places = torch.zeros(batch, 2, dtype=torch.int64, device=device)

    def result(self, adversarials: Tensor) -> PatchResult:
        counts = (self.steps, self.forwards, self.backwards, self.broken_at)
        return PatchResult(adversarials, *counts, notes=tuple(self.notes), places=self.places)


@dataclass(frozen=True)
class Patch(Attack):
    """Signed gradient steps with momentum on the values of one square patch, of any values inside the bounds; after
    Lovisotto et al. 2022 (arXiv:2203.13639).

    threat: of norm "patch": size, and where. "corner" is the upper left one; "random" one of the places at multiples
        of the size from there; "worst-of-4" four different ones of these, one run at each.
    steps: updates of each run, a forward and a backward each; the last point costs a forward more.
    step_size: length of the first update over the range of the bounds; it shrinks to 0 by a cosine.
    loss: "ce" is cross-entropy. "kq" adds a loss before softmax that draws all queries to the keys of the patch, and
        "kq-cls" one that draws the class token's query there; both ask for a model with `key_loss` (`KeyLoss`).
    early_stop: a sample leaves as soon as its prediction is seen to be wrong.

    Returns the first wrong point of a sample, otherwise the last point of its last run. `run` returns a `PatchResult`.
    Raises ValueError for images smaller than the patch, or without bounds.
    """

    threat: ThreatModel = field(default_factory=lambda: ThreatModel("patch", math.inf, size=16))
    steps: int = 100
    step_size: float = 0.1
    loss: str = "ce"
    early_stop: bool = True
    norms: ClassVar[tuple[str, ...]] = ("patch",)
    radius: ClassVar[bool] = False

    def __post_init__(self) -> None:
        if self.threat.bounds is None:
            raise ValueError("a patch takes any values inside the bounds, and there are none; state them")
        if self.loss not in PATCH_LOSSES:
            raise ValueError(f"loss is {self.loss!r}; expected one of: {', '.join(PATCH_LOSSES)}")
        if self.steps < 1:
            raise ValueError(f"steps is {self.steps}; expected 1 or more")
        if not (math.isfinite(self.step_size) and self.step_size > 0):
            raise ValueError(f"step_size is {self.step_size}; expected a finite number above 0")

    def _tally(self, batch: int, device: torch.device, tell: object) -> Tally:
        return _Tally(batch, device)

    def _points(self, oracle: Oracle, clean: Tensor, labels: Tensor | None, rng: Rng, tally: Tally) -> Tensor:
        assert isinstance(tally, _Tally)
        places = self._places(clean, rng)
        ends, logits = clean.clone(), oracle.predict(clean)
        tally.forwards += 1
        labels = logits.argmax(dim=1) if labels is None else labels
        wrong, asked = oracle.confirm(clean, labels, missed(logits, labels))
        tally.forwards += asked.long()
        everyone = torch.arange(len(clean), device=clean.device)
        tally.saw(everyone, wrong)
        tally.places[everyone] = places[:, 0]
        returned = wrong.clone()
        for run in range(places.shape[1]):
            rows = (~returned if self.early_stop else ~wrong).nonzero().flatten()
            if not len(rows):
                break
            start = self._start(clean[rows], places[rows, run], labels[rows], rows, rng.take(rows), run)
            found, points, fell = self._climb(oracle, start, tally)
            new = ~returned[found]
            ends[found[new]], tally.places[found[new]] = points[new], places[found[new], run]
            returned[found[fell]] = True
        return ends

    def _places(self, clean: Tensor, rng: Rng) -> Tensor:
        """Return top and left (B, runs, 2) of each run's patch."""
        size, where = self.threat.size, self.threat.where
        if clean.ndim != 4 or min(clean.shape[-2:]) < size:
            raise ValueError(f"images have shape {tuple(clean.shape)}; expected (B, C, H, W), {size} x {size} at least")
        rows, columns = (length // size for length in clean.shape[-2:])
        if where == "corner":
            return clean.new_zeros(len(clean), 1, 2, dtype=torch.int64)
        runs = 1 if where == "random" else min(int(where.removeprefix("worst-of-")), rows * columns)
        order = rng.uniform((rows * columns,), "patch/place").argsort(dim=1)[:, :runs].to(clean.device)
        return torch.stack([order // columns, order % columns], dim=2) * size

    def _start(self, clean: Tensor, places: Tensor, labels: Tensor, rows: Tensor, rng: Rng, run: int) -> _Climb:
        """Return the samples with a patch of noise at their places (n, 2)."""
        assert self.threat.bounds is not None
        size, (low, high) = self.threat.size, self.threat.bounds
        boxes = torch.cat([places, torch.full_like(places[:, :1], size)], dim=1)
        inside = _inside(clean, boxes)
        ball = Ball(self.threat, clean, torch.where(inside, low, clean), torch.where(inside, high, clean))
        noise = rng.uniform(clean.shape[1:], f"patch/start/{run}").to(clean).mul_(high - low).add_(low)
        start, none = torch.where(inside, noise, clean), torch.zeros_like(labels if labels.ndim == 1 else labels[:, 0])
        return _Climb(rows, start, torch.zeros_like(clean), ball, labels, boxes, start, none.bool())

    def _climb(self, oracle: Oracle, state: _Climb, tally: Tally) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows (n,), points (n, ...), and whether (n,) each breaks its sample, of all samples of `state`."""
        assert self.threat.bounds is not None
        reach = self.step_size * (self.threat.bounds[1] - self.threat.bounds[0])
        gone: list[tuple[Tensor, Tensor, Tensor]] = []
        for step in range(self.steps + 1):
            points = state.points.detach().requires_grad_(step < self.steps)
            logits, losses = self._ask(oracle, points, state, last=step == self.steps)
            seen = missed(logits, state.labels)
            wrong, asked = oracle.confirm(points.detach(), state.labels, seen)
            tally.count(state.rows, forwards=1 + asked.long())
            tally.saw(state.rows, wrong)
            state = replace(
                state,
                first=torch.where(per_sample(wrong & ~state.fell, state.points), state.points, state.first),
                fell=state.fell | wrong,
            )
            leave = wrong if self.early_stop else torch.zeros_like(wrong)
            if step == self.steps:
                leave = torch.ones_like(wrong)
            if leave.any():
                ends = torch.where(per_sample(state.fell, state.points), state.first, state.points)
                gone.append((state.rows[leave], ends[leave], state.fell[leave]))
            stay = (~leave).nonzero().flatten()
            if not len(stay):
                break
            gradient = input_gradient(losses[stay], points)[stay]
            state = state.take(stay)
            tally.count(state.rows, backwards=1, steps=1)
            size = gradient.abs().flatten(1).mean(dim=1).clamp_(min=torch.finfo(gradient.dtype).tiny)
            velocity = state.velocity * MOMENTUM + (gradient / per_sample(size, gradient)).nan_to_num_(nan=0.0)
            length = reach * 0.5 * (1 + math.cos(math.pi * step / self.steps))
            ahead = state.ball.project_(state.points + length * velocity.sign())
            state = replace(state, points=ahead, velocity=velocity)
        rows, points, fell = (torch.cat(parts) for parts in zip(*gone, strict=True))
        return rows, points, fell

    def _ask(self, oracle: Oracle, points: Tensor, state: _Climb, last: bool) -> tuple[Tensor, Tensor]:
        """Return logits (n, K) and losses (n,)."""
        if last or self.loss == "ce":
            logits = oracle.predict(points) if last else oracle(points)
            return logits, cross_entropy(logits, state.labels)
        logits, drawn = oracle.drawn_to(points, state.boxes, self.loss == "kq-cls")
        return logits, cross_entropy(logits, state.labels) + drawn


def _inside(images: Tensor, boxes: Tensor) -> Tensor:
    """Return which values of `images` (B, C, H, W) lie in the boxes (B, 3) of top, left and side: (B, 1, H, W)."""
    top, left, side = boxes.to(images.device).unbind(dim=1)
    row, column = (torch.arange(length, device=images.device) for length in images.shape[-2:])
    rows = (row >= top[:, None]) & (row < (top + side)[:, None])
    columns = (column >= left[:, None]) & (column < (left + side)[:, None])
    return (rows[:, :, None] & columns[:, None, :])[:, None]
