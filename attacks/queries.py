"""Attacks without the model's gradients: SPSA, which estimates them from logits, Square, a random search with squares,
and HopSkipJump, which sees predicted classes only."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, cast, get_args

import torch
from torch import Tensor, nn

from .attack import Attack, Tally
from .model_access import LOSSES, Oracle, is_missed
from .queue import AttackState, Places, QueuedAttack, Restarts, upload
from .threat import Ball, Rng, above_0, at_least, distance, one_of, onto_ball, per_sample, scale_to_unit

GradientAt = Literal["iterate", "doubled-input"]
_BETA1, _BETA2, _TINY = 0.9, 0.999, 1e-8  # Adam's usual constants
# Rows of one forward, and their values: a CPU's caches hold few, but large images may have more; a device takes more.
_ROWS, _VALUES, _FEW, _MOST = 256, 3 * 2**17, 16, 5 * 2**19


@dataclass(frozen=True)
class SPSA(Attack):
    """Gradients estimated by random two-sided differences (Uesato et al. 2018, arXiv:1802.05666), followed by Adam.

    At each step the gradient at the point x is the mean over random signs v of (f(x + delta v) - f(x - delta v)) /
    (2 delta) * v, with f the loss. Adam raises f, then the point is projected into the ball and the bounds. The points
    x ± delta v at which the model is asked are *not* cut to the bounds, as in the published code: cutting would halve
    the difference wherever a pixel is black or white. Only forwards, in `torch.inference_mode`; samples do not
    influence each other. `broken_at` is -1: the attack never classifies the points that it could return.

    Args:
        steps: updates; each asks the model 2 * directions times for each sample, and nothing else (except one forward
            of the clean images if labels=None).
        lr: Adam's step size, in the unit of the images.
        delta: half the width of the differences, in the same unit.
        directions: random signs v per step.
        loss: "ce", "margin", "dlr", "pma" (the margin of probabilities) or "bce" (`LOSSES`).
        gradient_at: "iterate" is the attack. "doubled-input" estimates the gradient at twice the clean image at every
            step, never at the point reached: a known error of CleverHans' PyTorch code (its issue 1249) that went into
            published figures, kept to reproduce them and for nothing else.
        chunk: most rows in one forward; None: 2.6 million input values, at most 256 rows (on a GPU sixteen times as
            many); never more than the `batch_size` of `run`. Rows are filled with directions first, then samples. It
            changes neither the draws nor, except for rounding, the result.
        random_start: begin at a random point of the ball (as the published code does), otherwise at the image.

    Example:
        >>> result = SPSA(eps=8 / 255, steps=5, directions=16).run(model, images, labels)
        >>> result.forwards.tolist(), result.backwards.tolist()
        ([160, 160], [0, 0])
    """

    needs_gradients: ClassVar[bool] = False
    steps: int = 40
    lr: float = 0.01
    delta: float = 0.01
    directions: int = 128
    loss: str = "margin"
    gradient_at: GradientAt = "iterate"
    chunk: int | None = None
    random_start: bool = True

    def __post_init__(self) -> None:
        one_of(LOSSES, self, "loss")
        at_least(1, self, "steps", "directions")
        above_0(self, "lr", "delta")
        if self.chunk is not None and self.chunk < 2:
            raise ValueError(f"chunk is {self.chunk}; expected 2 or more (a direction is two rows), or None")
        one_of(get_args(GradientAt), self, "gradient_at")

    def _points(self, oracle: Oracle, clean: Tensor, labels: Tensor | None, rng: Rng, tally: Tally) -> Tensor:
        if labels is None:
            batches = torch.split(torch.arange(len(clean), device=clean.device), self._rows(clean, oracle))
            labels = torch.cat([oracle.predict(clean[rows], rows).argmax(dim=1) for rows in batches])
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
        batch = torch.empty_like(centre[:1].expand(most, *centre.shape[1:]), memory_format=_memory_format(centre))
        everyone = torch.arange(len(centre), device=centre.device)
        for rows in torch.split(everyone, most // (2 * width)):
            draws, around = rng.take(rows), centre[rows]
            for first in range(0, self.directions, width):
                shape = (min(width, self.directions - first), *centre.shape[1:])
                signs = draws.signs(shape, purpose, first).to(centre)
                slopes = self._slopes(oracle, around, signs, [labels[rows], rows], batch)
                gradient[rows] += torch.bmm(slopes[:, None], signs.flatten(2)).reshape(around.shape)
        return gradient.div_(self.directions)

    def _slopes(self, oracle: Oracle, around: Tensor, signs: Tensor, of: list[Tensor], batch: Tensor) -> Tensor:
        """Return the slopes (b, d) of the loss at `around` (b, ...) along `signs`, 0 where not finite; fill `batch`.
        of: labels and rows of the samples."""
        with torch.inference_mode():
            batch = batch[: 2 * signs.shape[0] * signs.shape[1]]
            pairs = batch.view(2, *signs.shape)
            torch.add(around[:, None], signs, alpha=self.delta, out=pairs[0])
            torch.sub(around[:, None], signs, alpha=self.delta, out=pairs[1])
            size, wide = self._rows(around, oracle), pairs.shape[:3]
            classes, samples = (each[None, :, None].expand(*wide, *each.shape[1:]).flatten(0, 2) for each in of)
            parts = zip(torch.split(batch, size), torch.split(samples, size), strict=True)
            logits = torch.cat([oracle(*part) for part in parts])
            up, down = LOSSES[self.loss](logits, classes).to(around.dtype).view(pairs.shape[:3])
            slopes: Tensor = (up - down).div_(2 * self.delta).nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)
        return slopes.clone()

    def _rows(self, images: Tensor, oracle: Oracle) -> int:
        return min(self.chunk, oracle.batch_size or self.chunk) if self.chunk else _most_rows(images, oracle)


def _memory_format(images: Tensor) -> torch.memory_format:
    return torch.channels_last if images.ndim == 4 and not images.is_contiguous() else torch.contiguous_format


def _most_rows(images: Tensor, oracle: Oracle) -> int:
    """Return how many rows go in one pass."""
    each = max(1, images[0].numel())
    most = max(_VALUES // each, min(_FEW, _MOST // each))
    rows = max(2, min(_ROWS, most) if images.device.type == "cpu" else 16 * min(_ROWS, _MOST // each))
    return min(rows, oracle.batch_size or rows)


_SCHEDULE = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)  # queries of 10000 after which the share p halves
AHEAD = {"cpu": 1, "": 16}  # most queries of a run in one pass, by kind of device, "" for others


@dataclass(frozen=True)
class _Search(Restarts):
    """Runs of Square: the best point, its loss, whether it is wrong, and all numbers to draw: (n, queries, numbers)."""

    ball: Ball
    labels: Tensor
    points: Tensor
    loss: Tensor
    wrong: Tensor
    draws: Tensor


@dataclass(frozen=True)
class Square(QueuedAttack):
    """The Square attack (Andriushchenko et al. 2020, arXiv:1912.00049, algorithms 1 to 3). Forwards only.

    It begins with stripes (l2: bumps) and at each query changes a random square, which shrinks over the queries. A
    change stays if it raises the loss. For l-inf a square takes the ball's highest or lowest value in each channel; for
    l2 it takes over the budget of another square. Images are (B, C, H, W).

    Args:
        queries: the most for each run, after the one for its start.
        p_init: share of pixels in the first squares.
        restarts: runs from different starts, each on the samples that still stand.
        loss: "margin", "ce" or "bce".
        rescale_schedule: shrink the squares over `queries`, otherwise over 10000.
        early_stop: a sample leaves at its first wrong prediction. Otherwise its run goes on, and its best point is
            returned.

    Example:
        >>> result = Square(eps=8 / 255, queries=20).run(model, images, labels)
        >>> bool((result.forwards <= 22).all()), result.backwards.tolist()
        (True, [0, 0])
    """

    needs_gradients: ClassVar[bool] = False
    queries: int = 5000
    p_init: float = 0.8
    restarts: int = 1
    loss: str = "margin"
    rescale_schedule: bool = True
    early_stop: bool = True
    stage = "square"

    def __post_init__(self) -> None:
        one_of(("margin", "ce", "bce"), self, "loss")
        at_least(1, self, "queries", "restarts")
        above_0(self, "p_init", share=True)

    def drain(self, front: AttackState) -> None:
        """Search at the judge where there is one: many changes raise the loss by less than bfloat16 resolves, and would
        be turned down."""
        searched = front.oracle
        front.oracle = searched.judging() if searched.judged else searched
        try:
            super().drain(front)
        finally:
            front.oracle = searched

    def _begin(self, front: AttackState, rows: Tensor, runs: Tensor, places: Places) -> Restarts:
        clean = front.clean[rows]
        if clean.ndim != 4:
            raise ValueError(f"Square attacks images (B, C, H, W); these have shape {tuple(clean.shape)}")
        ball, linf = self.threat.ball(clean), self.threat.norm == "linf"
        channels, height, width = clean.shape[1:]
        tile = max(1, height // 5)
        numbers = (channels, 1, width) if linf else (channels, height // tile, width // tile)
        each = channels + (2 if linf else 5)
        points, draws = clean.clone(), clean.new_empty(len(rows), self.queries, each)
        for run, which in places.of_each_run():
            index = upload(which, rows.device)
            rng = front.rng.take(rows[index])
            signs = _signs(rng.uniform(numbers, f"square/start/{run}").to(clean))
            if not linf:  # bumps of these signs side by side, 0 at the right and lower rest
                bumps = torch.kron(signs, _bump_on(signs.device, signs.dtype, tile))
                signs = scale_to_unit(nn.functional.pad(bumps, (0, width - bumps.shape[3], 0, height - bumps.shape[2])))
            points[index] = ball.take(index).project_(clean[index] + self.threat.eps * signs)
            draws[index] = rng.uniform((self.queries, each), f"square/queries/{run}").to(clean)
        lowest = torch.full_like(rows, -torch.inf, dtype=clean.dtype)
        no = torch.zeros_like(rows, dtype=torch.bool)
        return _Search(rows, runs, torch.zeros_like(rows), places, ball, front.labels[rows], points, lowest, no, draws)

    def _advance(self, front: AttackState, state: Restarts) -> Restarts:
        s = cast("_Search", state)
        begins = [step == 0 for step in s.places.steps]
        ahead = 1 if any(begins) else self._ahead(front, s)
        tried = s.points if all(begins) else torch.cat([self._proposal(s, later) for later in range(ahead)])
        if any(begins):
            tried = torch.where(per_sample(s.step == 0, tried), s.points, tried)
        s, used = self._choose(front, s, tried, front.oracle.predict(tried, s.rows.repeat(len(tried) // len(s))))
        front.tally.count(s.rows, forwards=used)
        flags = torch.stack((s.wrong.long(), used)).tolist()  # one wait for the device
        broken, made = [bool(fell) for fell in flags[0]], flags[1]
        s = replace(s, step=s.step + used - 1, places=s.places.later([n - 1 for n in made]))
        over = [step == self.queries for step in s.places.steps]
        falls = broken if self.early_stop else [fell and ends for fell, ends in zip(broken, over, strict=True)]
        done = [ends and not fell for ends, fell in zip(over, falls, strict=True)]
        front.report(s, s.points, s.loss, falls, done)
        leaves = [ends or fell for ends, fell in zip(over, falls, strict=True)]
        gone = (s.step == self.queries) | (s.wrong & self.early_stop)
        front.tally.count(s.rows, steps=used - gone.long())
        s, _ = s.leave(leaves)
        return replace(s, step=s.step + 1, places=s.places.later())

    def _ahead(self, front: AttackState, s: _Search) -> int:
        """Return how many queries of a run go in one pass: most changes are turned down, and free places are cheap."""
        most = AHEAD.get(s.points.device.type, AHEAD[""])
        return max(1, min(most, front.batch_size // len(s), self.queries - max(s.places.steps) + 1))

    def _choose(self, front: AttackState, s: _Search, tried: Tensor, logits: Tensor) -> tuple[_Search, Tensor]:
        """Return the runs after queries `tried` (ahead * n, C, H, W), and how many (n,) up to the first that stays."""
        n, used = len(s), torch.zeros_like(s.step)
        open_ = torch.ones_like(s.wrong)
        for start in range(0, len(tried), n):
            points, scores = tried[start : start + n], logits[start : start + n]
            losses = LOSSES[self.loss](scores, s.labels).to(s.points.dtype)
            wrong = front.wrong(s.rows, points, is_missed(scores, s.labels) & open_)
            better = torch.where(s.wrong == wrong, losses > s.loss, wrong) & open_  # a wrong point before a right one
            current = s.points
            if current.device.type == "cpu":
                current[better] = points[better]  # few: a copy of all would cost time
            else:
                current = torch.where(per_sample(better, current), points, current)
            s = replace(s, points=current, loss=torch.where(better, losses, s.loss), wrong=s.wrong | (wrong & open_))
            used += open_
            open_ &= ~better
        return s, used

    def _proposal(self, s: _Search, later: int) -> Tensor:
        """Return the points (n, C, H, W) to ask about at the runs' next query, or `later` ones from the same points."""
        query = (s.step - 1 + later).clamp_(min=0)
        draws = s.draws[torch.arange(len(s), device=query.device), query]
        size, linf = (s.points.shape[2], s.points.shape[3]), self.threat.norm == "linf"
        low, high = s.ball.low, s.ball.high
        if linf and query.device.type != "cpu":  # one kernel for all sides, and no indices to put in order
            sides = _sides_on(query.device, self, *size)[query]
            inside = _window(draws, sides, *size)[:, None]
            up = draws[:, 2:, None, None] >= 0.5
            assert low is not None and high is not None
            return torch.where(inside, torch.where(up, high, low), s.points)
        points = s.points.clone()
        sides_of = _sides(self, *size)
        each = [sides_of[max(step - 1 + later, 0)] for step in s.places.steps]
        for side in sorted(set(each)):
            index = upload([i for i, other in enumerate(each) if other == side], query.device)
            if linf:  # most squares are small
                assert low is not None and high is not None
                some, along = draws[index], torch.arange(side)
                down, right = ((some[:, i, None] * (size[i] - side + 1)).long() + along for i in (0, 1))
                place = index[:, None, None], slice(None), down[:, :, None], right[:, None, :]  # to (n, side, side, C)
                points[place] = torch.where(some[:, None, None, 2:] >= 0.5, high[place], low[place])
                continue
            ball = s.ball.take(index)
            change = _exchange(s.points[index] - ball.clean, draws[index], side, self.threat.eps)
            points[index] = ball.project_(scale_to_unit(change).mul_(self.threat.eps).add_(ball.clean))
        return points


@functools.cache
def _sides_on(device: torch.device, attack: Square, height: int, width: int) -> Tensor:
    """Return `_sides` as (queries,) on a device."""
    return upload(_sides(attack, height, width), device)


@functools.cache
def _sides(attack: Square, height: int, width: int) -> list[int]:
    """Return the side of the square at each query."""
    scale = 10000 / attack.queries if attack.rescale_schedule else 1.0
    sides = []
    for query in range(attack.queries):
        share = attack.p_init / 2 ** sum(int(query * scale) > edge for edge in _SCHEDULE)
        side = max(round(math.sqrt(share * height * width)), 1)
        if attack.threat.norm == "l2":  # bumps need a middle
            side = max(side, 3) | 1
        sides.append(min(side, height, width))
    return sides


def _signs(uniform: Tensor) -> Tensor:
    return torch.where(uniform < 0.5, -1.0, 1.0).to(uniform)


def _window(draws: Tensor, sides: Tensor, height: int, width: int) -> Tensor:
    """Return (n, H, W), True in squares whose place is `draws[:, :2]` in [0, 1)."""
    inside = []
    for number, size in enumerate((height, width)):
        first = (draws[:, number] * (size - sides + 1)).long()[:, None]
        place = torch.arange(size, device=draws.device)
        inside.append((place >= first) & (place < first + sides[:, None]))
    return inside[0][:, :, None] & inside[1][:, None, :]


def _pixels(draws: Tensor, side: int, height: int, width: int) -> Tensor:
    """Return (m, side * side): the pixels of the same squares, row by row, as raster indices."""
    top, left = ((draws[:, number] * (size - side + 1)).long() for number, size in enumerate((height, width)))
    along = torch.arange(side, device=draws.device)
    return ((top[:, None] + along)[:, :, None] * width + (left[:, None] + along)[:, None, :]).flatten(1)


def _exchange(change: Tensor, draws: Tensor, side: int, eps: float) -> Tensor:
    """Make the l2 proposal: a window of `change` (m, C, H, W) gets a new bump and the budget of another, now empty."""
    m, channels, height, width = change.shape  # draws (m, 5 + C): two places, which way the bump lies, its signs
    sides = draws.new_full((m,), side, dtype=torch.int64)
    into, other = (_window(places, sides, height, width)[:, None] for places in (draws[:, :2], draws[:, 2:4]))
    places = _pixels(draws[:, :2], side, height, width)[:, None].expand(-1, channels, -1)
    budget = (change * (into | other)).square().sum(dim=(2, 3), keepdim=True)
    unused = (eps**2 - change.square().sum(dim=(1, 2, 3), keepdim=True)).clamp_(min=0)
    here = change.flatten(2).gather(2, places).view(m, channels, side, side)
    here = here / (here.square().sum(dim=(2, 3), keepdim=True).sqrt() + 1e-12)
    bump = _bump_on(change.device, change.dtype, side)
    bumps = torch.where(draws[:, 4, None, None] < 0.5, bump, bump.T)[:, None]
    new = bumps * _signs(draws[:, 5:, None, None]) + here
    new = new / (new.square().sum(dim=(2, 3), keepdim=True).sqrt() + 1e-12) * (unused / channels + budget).sqrt()
    return change.masked_fill(other, 0.0).flatten(2).scatter(2, places, new.flatten(2)).view_as(change)


@functools.cache
def _bump_on(device: torch.device, dtype: torch.dtype, side: int) -> Tensor:
    """Return (side, side) of length 1: a hill in the upper half, a hollow in the lower one (the paper's equation 2)."""
    whole = torch.cat([_hill(side // 2, side), -_hill(side - side // 2, side)])
    bump: Tensor = whole / torch.linalg.vector_norm(whole)
    return bump.to(device, dtype)


def _hill(rows: int, columns: int) -> Tensor:
    """Return (rows, columns): d cells from the middle, by the larger distance, the sum over c >= d of 1/(c+1)²."""
    last = max(rows // 2, columns // 2)
    away = [(torch.arange(size) - size // 2).abs() for size in (rows, columns)]
    distance = torch.maximum(away[0][:, None], away[1][None, :])
    terms = 1.0 / torch.arange(1, last + 2).square()
    hill = terms.flip(0).cumsum(0).flip(0)[distance]
    length: Tensor = torch.linalg.vector_norm(hill)
    return hill / length.clamp(min=1e-12)


_HALVINGS = 10  # of the way from a wrong point back to the boundary
_PROBE = 0.1  # length of a probe, as a share of the point's l2 distance from the image
_GRIDS = (0, 1, 2, 4, 8)  # cells along a side of the random colours that a start is made of; 0: one for each pixel
_SHORTEST = 10  # times a step is halved before the point stays where it is
_LEAST = 10  # probes of a round, with fewer of which none begins
_BLOCK = 16  # probes that are drawn at once


class _Decisions:
    """Whether points are wrong, and no more: what a decision-based attack may ask. Each answer is a query.

    left: (B,) queries that each sample still has. Without one, nobody is asked and a point counts as right.
    """

    def __init__(self, front: AttackState, queries: int, most: int) -> None:
        self.front, self.most, self.memory_format = front, most, _memory_format(front.clean)
        self.left = torch.full_like(front.tally.steps, queries)

    def wrong(self, rows: Tensor, points: Tensor) -> Tensor:
        """Return which points (n, ...) of n samples are wrong, also by the judge if there is one: (n,)."""
        answers = self.left[rows] > 0
        rows, points = rows[answers], points[answers]
        if len(rows):
            seen = self.around(rows, points[:, None])[:, 0]
            answers[answers.clone()] = self.front.wrong(rows, points, seen)
        return answers

    def around(self, rows: Tensor, points: Tensor) -> Tensor:
        """Return which points (n, d, ...), d of each of n samples that have so many queries, are wrong: (n, d)."""
        count = points.shape[1]
        self.left[rows] -= count
        self.front.tally.count(rows, forwards=count)
        labels = self.front.labels[rows].repeat_interleave(count, dim=0)
        points = points.flatten(0, 1).contiguous(memory_format=self.memory_format)
        samples = torch.split(rows.repeat_interleave(count), self.most)
        parts = zip(torch.split(points, self.most), samples, torch.split(labels, self.most), strict=True)
        missed = [is_missed(self.front.oracle.predict(*some), theirs) for *some, theirs in parts]
        return torch.cat(missed).view(-1, count)


@dataclass(frozen=True)
class HopSkipJump(Attack):
    """HopSkipJump (Chen et al. 2020, arXiv:1904.02144, algorithm 2): it sees predicted classes only. Forwards only.

    It begins at random colours that are wrong, and halves the way to the image until it is at the boundary. In each
    round it probes random points around: which of them are wrong tells the boundary's normal. It steps along the normal
    (linf: its signs), half as far until the point is wrong, and returns to the boundary. Its result is the nearest
    wrong point that it met, and the image where it met none; eps decides which count, `math.inf`: all. Images are
    (B, C, H, W), and the threat model needs bounds.

    Unlike in the paper, starts are coarse as well as fine, which robust networks do not all give one class; and probes
    are a tenth of the distance long, in directions of random signs: a share of 1 / (C H W) drowns in float32.

    Args:
        queries: the most for each sample, after one for the image.
        directions: probes in the first round; in round t there are sqrt(t) times as many.

    Example:
        >>> predicted = model(images).argmax(dim=1)
        >>> nearest = HopSkipJump(norm="l2", queries=200)(model, images, predicted)
        >>> bool((model(nearest).argmax(dim=1) != predicted).all())
        True
    """

    minimal: ClassVar[bool] = True
    needs_gradients: ClassVar[bool] = False
    queries: int = 5000
    directions: int = 30

    def __post_init__(self) -> None:
        at_least(1, self, "queries", "directions")
        if self.threat.bounds is None:
            raise ValueError("bounds are None; expected such as (0, 1), since HopSkipJump begins at random colours")

    def _points(self, oracle: Oracle, clean: Tensor, labels: Tensor | None, rng: Rng, tally: Tally) -> Tensor:
        if clean.ndim != 4:
            raise ValueError(f"HopSkipJump attacks images (B, C, H, W); these have shape {tuple(clean.shape)}")
        front = AttackState(oracle, clean, labels, rng, tally)
        ask = _Decisions(front, self.queries, _most_rows(clean, oracle))
        closest, nearest = clean.clone(), torch.full_like(front.best, torch.inf)
        rows, points = self._begin(ask, upload([i for i, right in enumerate(front.standing) if right], clean.device))
        turn = 0
        while len(rows):
            points = self._to_boundary(ask, rows, points)
            away = distance(self.threat.norm, points, clean[rows])
            nearer = away < nearest[rows]
            nearest[rows] = torch.where(nearer, away, nearest[rows])
            closest[rows] = torch.where(per_sample(nearer, points), points, closest[rows])
            tally.tell("hopskipjump", len(rows), 1 - float(ask.left[rows].amin()) / self.queries)
            turn, able = turn + 1, ask.left[rows] >= _LEAST + 1 + _HALVINGS
            rows, points = rows[able], points[able]
            if len(rows):
                points = self._step(ask, rows, points, self._normal(ask, rows, points, turn), turn)
                tally.count(rows, steps=1)
        return torch.where(per_sample(nearest <= self.threat.eps, clean), closest, clean)

    def _begin(self, ask: _Decisions, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the samples of `rows` for which random colours that are wrong were found, and these (n, ...)."""
        clean = ask.front.clean
        points, open_ = clean.clone(), rows
        (low, high), (channels, height, width) = self.threat.bounds or (0, 1), clean.shape[1:]
        for number in range(self.queries):
            if not len(open_):
                break
            side = _GRIDS[number % len(_GRIDS)]
            grid = (channels, min(side, height) or height, min(side, width) or width)
            colours = ask.front.rng.take(open_).uniform(grid, f"hopskipjump/start/{number}").to(clean)
            tried = nn.functional.interpolate(low + (high - low) * colours, (height, width))
            wrong = ask.wrong(open_, tried)
            points[open_[wrong]], open_ = tried[wrong], open_[~wrong]
        met = rows[~torch.isin(rows, open_)]
        ask.front.tally.saw(met, torch.ones_like(met, dtype=torch.bool))
        return met, points[met]

    def _to_boundary(self, ask: _Decisions, rows: Tensor, points: Tensor) -> Tensor:
        """Return the wrong points (n, ...) nearest to the images that halving the way from `points` finds."""
        clean, change = ask.front.clean[rows], points - ask.front.clean[rows]
        size = distance(self.threat.norm, points, clean)
        low, high = torch.zeros_like(size), torch.ones_like(size)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            way = onto_ball(self.threat.norm, change, middle * size)
            tried = self._inside(clean + way)
            wrong = ask.wrong(rows, tried)
            points = torch.where(per_sample(wrong, tried), tried, points)
            low, high = torch.where(wrong, low, middle), torch.where(wrong, middle, high)
        return points

    def _normal(self, ask: _Decisions, rows: Tensor, points: Tensor, turn: int) -> Tensor:
        """Return the directions (n, ...) to step in: of length 1 in l2, signs in linf (the paper's equations 9, 15)."""
        most = int(self.directions * math.sqrt(turn))
        counts = (ask.left[rows] - 1 - _HALVINGS).clamp(max=most).tolist()
        normal = torch.empty_like(points)
        for count in dict.fromkeys(counts):
            alike = upload([i for i, other in enumerate(counts) if other == count], rows.device)
            for index in torch.split(alike, max(1, ask.most // _BLOCK)):
                normal[index] = self._estimate(ask, rows[index], points[index], count, turn)
        return self.threat.steepest(normal)

    def _estimate(self, ask: _Decisions, rows: Tensor, points: Tensor, count: int, turn: int) -> Tensor:
        """Return the sum (n, ...) of probes, times 1 where they are wrong and -1 where they are right, less the mean of
        these votes unless all agree; in units of a probe's change of a pixel over their `count`."""
        rng, shape = ask.front.rng.take(rows), points.shape[1:]
        length = _PROBE * distance("l2", points, ask.front.clean[rows]) / math.sqrt(shape.numel())
        voted, plain, votes = torch.zeros_like(points), torch.zeros_like(points), torch.zeros_like(length)
        for first in range(0, count, _BLOCK):
            signs = rng.signs((min(_BLOCK, count - first), *shape), f"hopskipjump/round/{turn}", first).to(points)
            tried = self._inside(points[:, None] + signs * per_sample(length, signs))
            probes = tried - points[:, None]
            vote = ask.around(rows, tried).to(points).mul_(2).sub_(1)
            voted += torch.bmm(vote[:, None], probes.flatten(2)).view_as(points)
            plain += probes.sum(dim=1)
            votes += vote.sum(dim=1)
        votes = votes.masked_fill(votes.abs() == count, 0.0)
        total = (count * voted - per_sample(votes, plain) * plain) / per_sample(length, plain)
        return total.masked_fill_(total.abs() < 0.5, 0.0)  # whole numbers away from the bounds: 0 up to rounding

    def _step(self, ask: _Decisions, rows: Tensor, points: Tensor, normal: Tensor, turn: int) -> Tensor:
        """Return wrong points (n, ...) along the normal, or `points` where none is found."""
        size = distance(self.threat.norm, points, ask.front.clean[rows]) / math.sqrt(turn)
        points, open_ = points.clone(), torch.arange(len(rows), device=rows.device)
        for halved in range(_SHORTEST):
            if not len(open_):
                break
            way = normal[open_] * per_sample(size[open_] / 2**halved, points)
            tried = self._inside(points[open_] + way)
            wrong = ask.wrong(rows[open_], tried)
            points[open_[wrong]], open_ = tried[wrong], open_[~wrong]
        return points

    def _inside(self, points: Tensor) -> Tensor:
        assert self.threat.bounds is not None
        return points.clamp_(*self.threat.bounds)
