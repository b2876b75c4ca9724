"""FGSM and PGD: on labels, on features without labels, and on a patch, a square of an image that takes any values."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from .attack import Attack, AttackResult, Tally, Tell
from .model_access import LOSSES, Oracle, are_finite, cross_entropy, input_gradient, is_missed
from .queue import Survivors
from .threat import Ball, Rng, ThreatModel, above_0, at_least, one_of, per_sample


@dataclass(frozen=True)
class FGSM(Attack):
    """One step of length eps along the gradient's sign (Goodfellow et al. 2015, arXiv:1412.6572, section 4).

    With the l2 norm the step goes along the gradient itself. One forward and one backward; predicted labels come from
    that forward. `broken_at` is 0 where the clean prediction is already wrong; an image whose logits are not finite is
    returned as it is.

    Args:
        loss: "ce", "margin", "dlr", "pma" (the margin of probabilities) or "bce" (`LOSSES`).

    Example:
        >>> adversarials = FGSM(eps=8 / 255)(model, images, labels)
        >>> bool((adversarials - images).abs().max() <= 8 / 255 + 1e-6)
        True
    """

    loss: str = "ce"

    def __post_init__(self) -> None:
        one_of(LOSSES, self, "loss")

    def _points(self, oracle: Oracle, clean: Tensor, labels: Tensor | None, rng: Rng, tally: Tally) -> Tensor:
        points = clean.clone().requires_grad_()
        everyone = torch.arange(len(clean), device=clean.device)
        logits = oracle(points, everyone)
        labels = logits.detach().argmax(dim=1) if labels is None else labels
        gradient = input_gradient(LOSSES[self.loss](logits, labels), points)
        tally.saw(everyone, is_missed(logits, labels))
        tally.steps += 1
        tally.forwards += 1
        tally.backwards += 1
        points = points.detach().add_(self.threat.steepest(gradient), alpha=self.threat.eps)
        points = self.threat.ball(clean).project_(points)
        return torch.where(per_sample(are_finite(logits), clean), points, clean)


STEP_SHARES: Mapping[str, float] = MappingProxyType({"linf": 0.15, "l2": 0.35})  # default length of an update over eps


@dataclass(frozen=True)
class _Ascent(Survivors):
    """The samples of one restart on their way up; `labels` is None until the first clean forward gives them."""

    points: Tensor
    ball: Ball
    labels: Tensor | None


@dataclass(frozen=True)
class _Watch(Survivors):
    """anchor, slope: points of an earlier step and their gradients. period: (n,) int64, after how many steps a sample
    was at its anchor again, with the same gradient; 0 of those that were not. unsure: (n,) whether the gradient was
    another one there."""

    anchor: Tensor
    slope: Tensor
    period: Tensor
    unsure: Tensor


def same_bits(first: Tensor, second: Tensor) -> Tensor:
    """Return which samples (B,) of two tensors are alike bit by bit, NaN and the sign of 0 included."""
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}[first.element_size()]
    return (first.view(kind) == second.view(kind)).flatten(1).all(dim=1)


LOOK_FROM = 20
"""Steps up to which nobody looks for circles: hardly any image has reached one."""
FIRST_ANCHOR = 15
"""Steps to the first point that later ones are compared to. Another one follows after a quarter of the steps; then the
device is asked who went in a circle, and once more a step later, as most circles are of two points."""


class _Circles:
    """Finds samples whose walk repeats itself, and lets them leave. steps: of the walk; 0 to look for none."""

    def __init__(self, steps: int, rows: Tensor, batch: int) -> None:
        self.steps, self.anchor_step, self.due, self.fewest = steps if steps > LOOK_FROM else 0, 0, FIRST_ANCHOR, 0
        self.cycle_at = torch.full((batch,), -1, dtype=torch.int64, device=rows.device)
        self.watch: _Watch | None = None

    def begin(self, ascent: _Ascent, gradient: Tensor, step: int) -> None:
        """Compare later steps to this one."""
        none = torch.zeros_like(ascent.rows)
        state = (none, none.bool()) if self.watch is None else (self.watch.period, self.watch.unsure)
        self.watch = _Watch(ascent.rows, ascent.points, gradient.clone(), *state)
        self.anchor_step, self.due = step, step + 1 + max(4, step // 4)

    def leaving(self, ascent: _Ascent, gradient: Tensor, step: int) -> list[int] | None:
        """Return the rows that go on, where some are where they will be at the end; None where all go on. The rows are
        filled up to a multiple of 8, as a batch of a few has other sums."""
        watch = self.watch
        if watch is None:
            return None
        back, again = same_bits(ascent.points, watch.anchor), same_bits(gradient, watch.slope)
        new, at = back & again & (watch.period == 0), self.cycle_at[ascent.rows]
        period = torch.where(new, step - self.anchor_step, watch.period)
        self.cycle_at[ascent.rows] = torch.where(new & (at < 0), step, at)
        self.watch = watch = replace(watch, period=period, unsure=watch.unsure | (back & ~again))
        if step < self.due - 1:
            return None
        if bool(watch.unsure.any()):  # the same point, another gradient: the model is random
            self.forget()
            return None
        remaining = self.steps - step
        is_end = [period > 0 and remaining % period == 0 for period in watch.period.tolist()]
        going = [row for row, end in enumerate(is_end) if not end]
        on = sorted([*going, *[row for row, end in enumerate(is_end) if end][: -len(going) % 8]])
        pays = (len(is_end) - len(on)) * (remaining - 1) > len(on) > self.fewest
        return on if pays or not on else None

    def forget(self) -> None:
        """Look for no more circles, and have found none."""
        self.watch, self.steps = None, 0
        self.cycle_at.fill_(-1)

    def take(self, index: Tensor) -> None:
        self.watch = None if self.watch is None else self.watch.take(index)


def _random_states(device: torch.device) -> tuple[Any, ...]:
    """Return the states of the generators that a model with random outputs draws from, if not from its own."""
    states: list[Any] = [random.getstate(), torch.get_rng_state().tolist()]
    if device.type == "cuda" and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        states.append(torch.cuda.get_rng_state(device).tolist())
    return tuple(states)


@dataclass(frozen=True)
class PGD(Attack):
    """Signed (l2: normalised) gradient steps, each projected back into the ball (Madry et al. 2018, arXiv:1706.06083).

    Steps of one length end in a circle, mostly of one or two points (arXiv:2503.19347). A sample whose point and
    gradient are, bit by bit, what they were some steps ago leaves where it would have ended, and `cycle_at` says when
    that was seen: the result is the same, the passes are fewer. Before it leaves, a pass shows whether the others have
    the same gradients without it, bit by bit; else it stays. Nobody looks for circles in up to 20 steps, with
    early_stop, and where the model draws random numbers, or answers the same point differently.

    Args:
        steps: most updates of each restart, a forward and a backward each; a pass more shows that the rest of a batch
            does not need those that leave it.
        step_size: length of an update in the threat model's norm and unit; None: 0.15 * eps, in l2 0.35 * eps.
        random_start: begin at a random point of the ball, otherwise at the image. Predicted labels (labels=None) then
            cost a forward of the clean images, which otherwise is the first one of the attack.
        restarts: runs from different random starts. With more than one, the last point of each is scored (one forward
            more), and the worst is kept: a wrong prediction before a right one, then the larger loss.
        early_stop: a sample leaves as soon as a forward shows its prediction wrong, with that point; later restarts
            work on the rest. Otherwise all take all steps, which raises the loss further; but where logits are not
            finite, and so the prediction wrong, there is no loss to raise, and the sample stays.
        loss: "ce", "margin", "dlr", "pma" (the margin of probabilities) or "bce" (`LOSSES`).

    Example:
        >>> adversarials = PGD(norm="l2", eps=0.5, steps=10)(model, images, labels)
        >>> bool((cross_entropy(model(adversarials), labels) > cross_entropy(model(images), labels)).all())
        True
    """

    steps: int = 20
    step_size: float | None = None
    random_start: bool = True
    restarts: int = 1
    early_stop: bool = False
    loss: str = "ce"

    def __post_init__(self) -> None:
        one_of(LOSSES, self, "loss")
        at_least(1, self, "steps", "restarts")
        if self.step_size is not None and not (math.isfinite(self.step_size) and self.step_size > 0):
            raise ValueError(
                f"step_size is {self.step_size}; expected a finite number above 0, or None for a share of eps"
            )
        if self.restarts > 1 and not self.random_start:
            raise ValueError(f"restarts is {self.restarts}, but without random_start every restart is the same; use 1")

    def _points(self, oracle: Oracle, clean: Tensor, labels: Tensor | None, rng: Rng, tally: Tally) -> Tensor:
        rows = torch.arange(len(clean), device=clean.device)
        if labels is None and self.random_start:
            labels = oracle.predict(clean, rows).argmax(dim=1)
            tally.forwards += 1
        tally.cycle_at = torch.zeros_like(rows)
        everyone = _Ascent(rows, clean, self.threat.ball(clean), labels)
        if self.restarts == 1:
            return self._climb(oracle, self._start(everyone, rng, 0), clean.clone(), tally)[0]
        worst, worst_loss = clean, torch.full_like(everyone.rows, -math.inf, dtype=clean.dtype)
        broken = torch.zeros_like(everyone.rows, dtype=torch.bool)
        for restart in range(self.restarts):
            standing = everyone.take((~broken).nonzero().flatten()) if self.early_stop else everyone
            if not len(standing):
                break
            ends, fell = self._climb(oracle, self._start(standing, rng, restart), worst.clone(), tally)
            rows = standing.rows[~fell[standing.rows]]
            losses, wrong = worst_loss.clone(), broken | fell
            losses[rows], wrong[rows] = self._score(oracle, everyone.take(rows), ends, tally)
            worse = (wrong & ~broken) | ((wrong == broken) & (losses > worst_loss))
            worst = torch.where(per_sample(worse, worst), ends, worst)
            worst_loss = torch.where(worse, losses, worst_loss)
            broken |= wrong
        return worst

    def _start(self, ascent: _Ascent, rng: Rng, restart: int) -> _Ascent:
        if not self.random_start:
            return ascent
        return replace(ascent, points=ascent.ball.random_start(rng.take(ascent.rows), f"pgd/start/{restart}"))

    def _climb(self, oracle: Oracle, ascent: _Ascent, ends: Tensor, tally: Tally) -> tuple[Tensor, Tensor]:
        """Write each sample's last point to its row of `ends`; return that and which samples (B,) left as broken."""
        step_size = STEP_SHARES[self.threat.norm] * self.threat.eps if self.step_size is None else self.step_size
        fell = torch.zeros_like(tally.steps, dtype=torch.bool)
        circles = _Circles(0 if self.early_stop else self.steps, ascent.rows, len(fell))
        for step in range(self.steps):
            states = _random_states(ascent.points.device) if circles.steps and step == circles.due else None
            points = ascent.points.detach().requires_grad_()
            logits = oracle(points, ascent.rows)
            labels = logits.detach().argmax(dim=1) if ascent.labels is None else ascent.labels
            ascent = replace(ascent, labels=labels)
            wrong, answers = is_missed(logits, labels), are_finite(logits)
            if oracle.judged:  # once of each sample, and where there is no answer
                doubtful = wrong & ((tally.broken_at[ascent.rows] < 0) | ~answers)
                confirmed, asked = oracle.confirm(points.detach(), labels, doubtful, ascent.rows)
                wrong = torch.where(doubtful, confirmed, wrong)
                tally.forwards[ascent.rows] += asked.long()
            moves = ~wrong | answers
            tally.forwards[ascent.rows] += 1
            tally.saw(ascent.rows, wrong)
            losses = LOSSES[self.loss](logits, labels)
            if self.early_stop and wrong.any():
                ends[ascent.rows[wrong]] = ascent.points[wrong]
                fell[ascent.rows[wrong]] = True
                stay = (~wrong).nonzero().flatten()
                if not len(stay):
                    ascent = ascent.take(stay)
                    break
                gradient = input_gradient(losses[stay], points)[stay]
                ascent, moves = ascent.take(stay), moves[stay]
            else:
                gradient = input_gradient(losses, points)
            tally.backwards[ascent.rows] += 1
            if states is not None and states != _random_states(points.device):
                circles.forget()
            if (on := circles.leaving(ascent, gradient, step)) is not None:
                stay = torch.tensor(on, dtype=torch.int64, device=points.device)
                if not on or self._is_same_alone(oracle, ascent.take(stay), gradient[stay], tally):
                    ends[ascent.rows] = ascent.points
                    ascent, gradient, moves = ascent.take(stay), gradient[stay], moves[stay]
                    circles.take(stay)
                else:
                    circles.fewest = len(on)
                if not on:
                    break
            if circles.steps and step == circles.due:
                circles.begin(ascent, gradient, step)
            tally.steps[ascent.rows] += 1
            ahead = torch.add(ascent.points, self.threat.steepest(gradient), alpha=step_size)
            ahead = torch.where(per_sample(moves, ahead), ascent.ball.project_(ahead), ascent.points)
            ascent = replace(ascent, points=ahead)
        ends[ascent.rows] = ascent.points
        assert tally.cycle_at is not None
        both = (tally.cycle_at >= 0) & (circles.cycle_at >= 0)
        tally.cycle_at = torch.maximum(tally.cycle_at, circles.cycle_at).where(both, -1)
        return ends, fell

    def _is_same_alone(self, oracle: Oracle, ascent: _Ascent, gradient: Tensor, tally: Tally) -> bool:
        """Whether these samples have the same gradients, bit by bit, without the rest of the batch."""
        assert ascent.labels is not None
        points = ascent.points.detach().requires_grad_()
        alone = input_gradient(LOSSES[self.loss](oracle(points, ascent.rows), ascent.labels), points)
        tally.count(ascent.rows, forwards=1, backwards=1)
        return bool(same_bits(alone, gradient).all())

    def _score(self, oracle: Oracle, ascent: _Ascent, ends: Tensor, tally: Tally) -> tuple[Tensor, Tensor]:
        """Return losses and wrongness (n,) of the samples' last points, at the price of a forward."""
        assert ascent.labels is not None  # restarts need random_start, which predicts labels beforehand
        if not len(ascent):
            return ends.new_empty(0), ascent.rows.bool()
        logits = oracle.predict(ends[ascent.rows], ascent.rows)
        wrong, asked = oracle.confirm(ends[ascent.rows], ascent.labels, is_missed(logits, ascent.labels), ascent.rows)
        tally.forwards[ascent.rows] += 1 + asked.long()
        tally.saw(ascent.rows, wrong)
        return LOSSES[self.loss](logits, ascent.labels).to(ends.dtype), wrong


def cosine(features: Tensor, clean: Tensor) -> Tensor:
    """Return half the squared distance (B,) of features (B, D) at length 1: 1 minus the cosine, exactly 0 if alike."""
    return squared(functional.normalize(features, dim=1), functional.normalize(clean, dim=1)) / 2


def squared(features: Tensor, clean: Tensor) -> Tensor:
    """Return the squared Euclidean distance (B,) between features (B, D) and those of the clean images."""
    return (features - clean).square().sum(dim=1)


DISTANCES: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = MappingProxyType({"cosine": cosine, "l2": squared})


@dataclass(frozen=True)
class FeaturePGD(Attack):
    """PGD that moves the features of each image as far as it can from those of the clean image.

    The model returns features (B, D) in place of logits. Labels play no part, and `broken_at` is -1 for all. Each
    restart begins at a random point of the ball, since at the image itself both distances have no gradient. Of all
    points that were seen the farthest is returned; features that are not finite count as infinitely far.

    Args:
        steps: updates of each restart, a forward and a backward each; a forward more scores its last point, and one the
            clean images.
        step_size: as in `PGD`.
        restarts: runs from different random starts.
        loss: "cosine", 1 minus the cosine, or "l2", the squared Euclidean distance.

    Example:
        >>> adversarials = FeaturePGD(eps=8 / 255, steps=5)(model, images)
        >>> bool((torch.cosine_similarity(model(adversarials), model(images)) < 1).all())
        True
    """

    steps: int = 20
    step_size: float | None = None
    restarts: int = 1
    loss: str = "cosine"
    least_classes: ClassVar[int] = 1

    def __post_init__(self) -> None:
        PGD(self.threat, self.steps, self.step_size, restarts=self.restarts)  # raises for what PGD cannot do
        one_of(DISTANCES, self, "loss")

    def _points(self, oracle: Oracle, clean: Tensor, labels: Tensor | None, rng: Rng, tally: Tally) -> Tensor:
        step_size = STEP_SHARES[self.threat.norm] * self.threat.eps if self.step_size is None else self.step_size
        distance, ball = DISTANCES[self.loss], self.threat.ball(clean)
        start = oracle.predict(clean)
        tally.forwards += 1
        farthest, record = clean.clone(), torch.full((len(clean),), -math.inf, dtype=start.dtype, device=clean.device)
        for restart in range(self.restarts):
            points = ball.random_start(rng, f"pgd/start/{restart}")
            for step in range(self.steps + 1):
                points.requires_grad_(step < self.steps)
                away = distance(oracle(points), start)
                tally.forwards += 1
                reached = away.detach().nan_to_num(nan=math.inf, posinf=math.inf)
                farther = reached > record
                farthest = torch.where(per_sample(farther, clean), points.detach(), farthest)
                record = torch.where(farther, reached, record)
                if step < self.steps:
                    gradient = input_gradient(away, points)
                    points = torch.add(points.detach(), self.threat.steepest(gradient), alpha=step_size)
                    ball.project_(points)
                    tally.steps += 1
                    tally.backwards += 1
        return farthest


PATCH_LOSSES = ("ce", "kq", "kq-cls")
MOMENTUM = 0.9


@dataclass(frozen=True)
class PatchResult(AttackResult):
    """An `AttackResult` of `Patch`, with the place of each patch.

    Example:
        >>> Patch(size=4, steps=5).run(model, images, labels).places
        tensor([[0, 0],
                [0, 0]])
    """

    places: Tensor
    """(B, 2) top and left of the patch that is returned, in pixels."""


@dataclass(frozen=True)
class _PatchClimb(Survivors):
    points: Tensor
    velocity: Tensor
    ball: Ball
    labels: Tensor
    boxes: Tensor
    first: Tensor
    fell: Tensor


class _Tally(Tally):
    """Counts, and the places of the patches that are returned."""

    def __init__(self, batch: int, device: torch.device, tell: Tell | None) -> None:
        super().__init__(batch, device, tell)
        self.places = torch.zeros(batch, 2, dtype=torch.int64, device=device)

    def result(self, adversarials: Tensor) -> PatchResult:
        return PatchResult(**vars(super().result(adversarials)), places=self.places)


@dataclass(frozen=True)
class Patch(Attack):
    """Signed gradient steps with momentum on the values of one square patch, of any values inside the bounds.

    Returns the first wrong point of a sample, otherwise the point that its last run ends at; `run` returns a
    `PatchResult`. Raises ValueError for images smaller than the patch, or without bounds.

    Args:
        threat: of norm "patch": size, and where. "corner" is the upper left one; "random" one of the places at
            multiples of the size from there; "worst-of-4" four different ones of these, one run at each.
        steps: updates of each run, a forward and a backward each; the last point costs a forward more.
        step_size: length of the first update over the range of the bounds; it shrinks to 0 by a cosine.
        loss: "ce" is cross-entropy. "kq" adds a loss before softmax that draws all queries to the keys of the patch,
            and "kq-cls" one that draws the class token's query there. Both ask for a model with `key_loss`, from
            images, boxes (B, 3) of top, left and side, and whether only the class token asks, to logits (B, K) and such
            a loss (B,).
        early_stop: a sample leaves as soon as its prediction is seen to be wrong.

    Reference: after Lovisotto et al. 2022, arXiv:2203.13639.

    Example:
        >>> adversarials = Patch(size=4, where="corner", steps=5)(model, images, labels)
        >>> bool((adversarials == images)[:, :, 4:, 4:].all())
        True
    """

    threat: ThreatModel = field(default_factory=lambda: ThreatModel("patch", math.inf, size=16))
    steps: int = 100
    step_size: float = 0.1
    loss: str = "ce"
    early_stop: bool = True
    norms: ClassVar[tuple[str, ...]] = ("patch",)
    radius: ClassVar[bool] = False
    _tally = _Tally

    def __post_init__(self) -> None:
        if self.threat.bounds is None:
            raise ValueError("a patch may take any values within the bounds, and no bounds are given; state them")
        one_of(PATCH_LOSSES, self, "loss")
        at_least(1, self, "steps")
        above_0(self, "step_size")

    def _points(self, oracle: Oracle, clean: Tensor, labels: Tensor | None, rng: Rng, tally: Tally) -> Tensor:
        assert isinstance(tally, _Tally)
        places = self._places(clean, rng)
        everyone = torch.arange(len(clean), device=clean.device)
        ends, logits = clean.clone(), oracle.predict(clean, everyone)
        tally.forwards += 1
        labels = logits.argmax(dim=1) if labels is None else labels
        wrong, asked = oracle.confirm(clean, labels, is_missed(logits, labels), everyone)
        tally.forwards += asked.long()
        tally.saw(everyone, wrong)
        tally.places[everyone] = places[:, 0]
        returned = wrong.clone()
        for run in range(places.shape[1]):
            rows = (~returned if self.early_stop else ~wrong).nonzero().flatten()
            if not len(rows):
                break
            start = self._start(clean[rows], places[rows, run], labels[rows], rows, rng.take(rows), run)
            samples, points, fell = self._climb(oracle, start, tally)
            new = ~returned[samples]
            ends[samples[new]], tally.places[samples[new]] = points[new], places[samples[new], run]
            returned[samples[fell]] = True
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

    def _start(self, clean: Tensor, places: Tensor, labels: Tensor, rows: Tensor, rng: Rng, run: int) -> _PatchClimb:
        """Return the samples with a patch of noise at their places (n, 2)."""
        assert self.threat.bounds is not None
        size, (low, high) = self.threat.size, self.threat.bounds
        boxes = torch.cat([places, torch.full_like(places[:, :1], size)], dim=1)
        inside = _inside(clean, boxes)
        ball = Ball(self.threat, clean, torch.where(inside, low, clean), torch.where(inside, high, clean))
        noise = rng.uniform(clean.shape[1:], f"patch/start/{run}").to(clean).mul_(high - low).add_(low)
        start, none = torch.where(inside, noise, clean), torch.zeros_like(labels if labels.ndim == 1 else labels[:, 0])
        return _PatchClimb(rows, start, torch.zeros_like(clean), ball, labels, boxes, start, none.bool())

    def _climb(self, oracle: Oracle, state: _PatchClimb, tally: Tally) -> tuple[Tensor, Tensor, Tensor]:
        """Return rows (n,), points (n, ...), and whether (n,) each breaks its sample, of all samples of `state`."""
        assert self.threat.bounds is not None
        reach = self.step_size * (self.threat.bounds[1] - self.threat.bounds[0])
        gone: list[tuple[Tensor, Tensor, Tensor]] = []
        for step in range(self.steps + 1):
            points = state.points.detach().requires_grad_(step < self.steps)
            logits, losses = self._ask(oracle, points, state, last=step == self.steps)
            wrong, asked = oracle.confirm(points.detach(), state.labels, is_missed(logits, state.labels), state.rows)
            tally.count(state.rows, forwards=1 + asked.long())
            tally.saw(state.rows, wrong)
            first = torch.where(per_sample(wrong & ~state.fell, state.points), state.points, state.first)
            state = replace(state, first=first, fell=state.fell | wrong)
            leave = torch.full_like(wrong, step == self.steps) | (wrong & self.early_stop)
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
        rows, points, fell = map(torch.cat, zip(*gone, strict=True))
        return rows, points, fell

    def _ask(self, oracle: Oracle, points: Tensor, state: _PatchClimb, last: bool) -> tuple[Tensor, Tensor]:
        if last or self.loss == "ce":
            logits = (oracle.predict if last else oracle)(points, state.rows)
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
