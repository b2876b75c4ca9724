"""Keep batches full with samples that still stand: an attack's state shrinks as they fall, and a queue refills it.

An attack may make several runs at a sample, from different random starts or towards different classes. Runs enter the
batch as places become free, and leave it when they are over or their sample is broken: so no pass is spent on a broken
sample, and batches stay full across samples, targets and restarts.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from .attack import Attack, Tally
from .model_access import (
    NoGradientError,
    Oracle,
    as_sets,
    input_gradient,
    is_missed,
    label_mask,
    likeliest,
    margin_targeted,
)
from .threat import Rng, Rows, per_sample

LINEAR_TARGETS = 9
"""How many of the likeliest classes are ordered by their linear distances."""


def upload(values: Sequence[int], device: torch.device) -> Tensor:
    """Return (n,) int64 on a device, without waiting for what the device is doing."""
    return torch.tensor(values, dtype=torch.int64).to(device, non_blocking=device.type == "cuda")


def pick(values: Tensor, index: Tensor | None) -> Tensor:
    """Return `values[index]`, or all of them without a copy."""
    return values if index is None else values[index]


@dataclass(frozen=True)
class Survivors(Rows):
    """The samples under attack."""

    rows: Tensor  # (n,) int64, each sample's position in the whole batch

    def __len__(self) -> int:
        return len(self.rows)


R = TypeVar("R", bound="Restarts")


@dataclass(frozen=True)
class Places:
    """What the host knows of runs under way without asking the device; one entry for each."""

    rows: tuple[int, ...]  # their samples
    runs: tuple[int, ...]  # which run of its sample
    steps: tuple[int, ...]  # updates made

    @classmethod
    def first(cls, pairs: Sequence[tuple[int, int]]) -> Places:
        """Return new runs by (sample, run)."""
        return cls(tuple(row for row, _ in pairs), tuple(run for _, run in pairs), (0,) * len(pairs))

    def only(self, keep: Sequence[int]) -> Places:
        return Places(*(tuple(column[i] for i in keep) for column in (self.rows, self.runs, self.steps)))

    def join(self, more: Places) -> Places:
        return Places(self.rows + more.rows, self.runs + more.runs, self.steps + more.steps)

    def later(self, by: Sequence[int] | None = None) -> Places:
        """Return the same after another update of each, or after as many as `by` says."""
        more = by or (1,) * len(self.steps)
        return Places(self.rows, self.runs, tuple(step + n for step, n in zip(self.steps, more, strict=True)))

    def of_each_run(self) -> list[tuple[int, list[int]]]:
        """Return the numbers of runs, ascending, each with the entries that have it."""
        return [(run, [i for i, other in enumerate(self.runs) if other == run]) for run in sorted(set(self.runs))]


@dataclass(frozen=True)
class Restarts(Survivors):
    """Runs under way, one row each; `rows` holds their samples. Attacks add their own state."""

    run: Tensor  # (n,) int64, which run of its sample
    step: Tensor  # (n,) int64, updates made
    places: Places  # the same, on the host

    def leave(self: R, gone: Sequence[bool]) -> tuple[R, Tensor | None]:
        """Return the same state without the rows that are `gone`, and the index of those that stay; None: all stay."""
        if not any(gone):
            return self, None
        keep = [i for i, leaves in enumerate(gone) if not leaves]
        stay = upload(keep, self.rows.device)
        return replace(self.take(stay), places=self.places.only(keep)), stay


class AttackState:
    """The samples under attack, which of them stand, and the points found so far (`ends`, (B, ...)).

    labels: (B,) or (B, L), from `logits` (B, K) of the clean images where None is given. contenders: for each sample,
    how many classes compete where its set of labels counts as one. doubts: (B,), how often the judge found a sample
    right that looked wrong, on the clean image and in the attack that runs. ends: the first wrong point of a broken
    sample; of another one the image, or the point of the highest loss where runs are reported with losses.
    """

    def __init__(self, oracle: Oracle, clean: Tensor, labels: Tensor | None, rng: Rng, tally: Tally) -> None:
        self.oracle, self.clean, self.rng, self.tally = oracle, clean, rng, tally
        self.batch_size = oracle.batch_size or len(clean)
        self.ends = clean.clone()
        everyone = torch.arange(len(clean), device=clean.device)
        self.logits = torch.cat([oracle.predict(clean[rows], rows) for rows in torch.split(everyone, self.batch_size)])
        self.tally.count(everyone, forwards=1)
        self.labels = self.logits.argmax(dim=1) if labels is None else labels
        count = self.logits.shape[1]
        self.contenders = [count] * len(clean)
        if self.labels.ndim == 2:
            self.contenders = (count + 1 - label_mask(self.labels, self.logits).sum(dim=1)).tolist()
        self.standing = [True] * len(clean)
        self._nearest: dict[str, Tensor] = {}
        self.doubts = torch.zeros_like(everyone)
        self.best = torch.full((len(clean),), -torch.inf, dtype=clean.dtype, device=clean.device)
        seen = [row for row, wrong in enumerate(is_missed(self.logits, self.labels).tolist()) if wrong]
        for start in range(0, len(seen), self.batch_size):
            part = Places.first([(row, 0) for row in seen[start : start + self.batch_size]])
            rows = upload(part.rows, clean.device)
            wrong = self.wrong(rows, clean[rows], torch.ones_like(rows, dtype=torch.bool))
            self.fall(part, clean[rows], [i for i, is_wrong in enumerate(wrong.tolist()) if is_wrong])

    def targets(self, count: int) -> Tensor:
        """Return the classes (B, n), n up to `count`, likeliest first; labels come last, where too few compete."""
        count = min(count, self.logits.shape[1] - 1)
        return likeliest(self.logits.scatter(1, as_sets(self.labels), float("-inf")), count)

    def nearest_targets(self, count: int, norm: str) -> Tensor:
        """Return the classes (B, n) whose linear models are misled by the smallest change in a norm, nearest first.

        The order of MALT (Melamed et al. 2024, arXiv:2407.02240) among the `LINEAR_TARGETS` likeliest classes: the
        difference of a class's logit to the label's, over the dual norm of its gradient at the clean image. Each
        standing sample pays a forward, and a backward for each of these classes, once; others keep the likeliest.
        """
        if norm not in self._nearest:
            order, dual = self.targets(LINEAR_TARGETS), 1 if norm == "linf" else 2
            standing = upload([row for row, stands in enumerate(self.standing) if stands], order.device)
            for rows in torch.split(standing, self.batch_size):
                points = self.clean[rows].requires_grad_()
                logits, distances = self.oracle(points, rows), []
                for target in order[rows].unbind(dim=1):
                    gap = margin_targeted(logits, self.labels[rows], target)
                    slope = input_gradient(gap, points, more=True).flatten(1)
                    distances.append(-gap.detach() / torch.linalg.vector_norm(slope, ord=dual, dim=1))
                far = torch.stack(distances, dim=1).nan_to_num(nan=torch.inf, posinf=torch.inf)
                right = label_mask(self.labels[rows], logits).gather(1, order[rows])  # labels, where too few compete
                near = far.masked_fill(right, torch.inf).argsort(dim=1, stable=True)
                order[rows] = order[rows].gather(1, near)
                self.tally.count(rows, forwards=1, backwards=order.shape[1])
            self._nearest[norm] = order
        return self._nearest[norm][:, :count]

    def note_targets(self, asked: int) -> None:
        classes = self.logits.shape[1]
        if classes <= asked:
            self.tally.note(f"{classes} classes: {classes - 1} target{'s' * (classes > 2)} instead of {asked}")
        elif min(self.contenders) <= asked:
            self.tally.note(f"samples with many valid labels: all other classes as targets, fewer than {asked}")

    def wrong(self, rows: Tensor, points: Tensor, seen: Tensor) -> Tensor:
        """Return which of the points that were `seen` to be wrong (n,) are wrong, asking the judge if there is one."""
        if not self.oracle.judged:
            return seen
        confirmed, asked = self.oracle.confirm(points, self.labels[rows], seen, rows)
        self.tally.count(rows, forwards=asked.long())
        self.doubts.index_add_(0, rows, (asked & ~confirmed).long())
        return confirmed

    def report(self, runs: Restarts, points: Tensor, losses: Tensor, falls: list[bool], done: list[bool]) -> None:
        """Record the runs whose points (n, ...) break their sample, and those that are over (`done`) without that."""
        self.fall(runs.places, points, [i for i, broken in enumerate(falls) if broken])
        left = [i for i, over in enumerate(done) if over and self.standing[runs.places.rows[i]]]
        while left:  # a sample's runs one after another, as the first of equal losses counts
            first = list({runs.places.rows[i]: i for i in reversed(left)}.values())
            left = [i for i in left if i not in first]
            index, rows = upload(first, points.device), upload([runs.places.rows[i] for i in first], points.device)
            higher = losses[index] > self.best[rows]
            self.best[rows] = torch.where(higher, losses[index], self.best[rows])
            self.ends[rows] = torch.where(per_sample(higher, points), points[index], self.ends[rows])

    def fall(self, places: Places, points: Tensor, which: Sequence[int]) -> None:
        """Record that `points` break the samples of the runs `which`; of several runs of a sample the first counts."""
        order = sorted(which, key=places.runs.__getitem__)
        first = {places.rows[i]: i for i in reversed(order) if self.standing[places.rows[i]]}
        if first:
            index, rows = upload(list(first.values()), points.device), upload(list(first), points.device)
            self.ends[rows] = points[index]
            self.tally.broken_at[rows] = upload([places.steps[i] for i in first.values()], points.device)
            for row in first:
                self.standing[row] = False


@dataclass(frozen=True)
class QueuedAttack(Attack):
    """An attack that makes runs at each right sample, at most `batch_size` rows in a pass."""

    queues: ClassVar[bool] = True

    @property
    @abstractmethod
    def stage(self) -> str:
        """The name of this attack as a stage, which also names its random draws."""

    @property
    def _aims(self) -> int:  # how many target classes are asked for
        return 0

    @property
    def _alone(self) -> int | None:  # updates of a sample's run before its other runs may join; None: all
        return None

    @abstractmethod
    def _begin(self, front: AttackState, rows: Tensor, runs: Tensor, places: Places) -> Restarts:
        """Return the state of new runs `runs` (n,) of the samples `rows` (n,), which `places` names, too."""

    @abstractmethod
    def _advance(self, front: AttackState, state: Restarts) -> Restarts:
        """Make a forward and an update of every run; report to `front`, and return the runs that go on."""

    def _points(self, oracle: Oracle, clean: Tensor, labels: Tensor | None, rng: Rng, tally: Tally) -> Tensor:
        front = AttackState(oracle, clean, labels, rng, tally)
        if self._aims:
            front.note_targets(self._aims)
        self.drain(front)
        return front.ends

    def drain(self, front: AttackState) -> None:
        """Make all runs at all samples of `front` that stand, until those are over or these are broken.

        Where a judge found such a sample right that looked wrong, what is searched differs from it near the sample's
        boundary: the runs are made again, at the judge itself, if it has a gradient. Not in a search for the smallest
        change, which ends at a boundary.
        """
        before = front.doubts.clone()
        self.make_runs(front)
        if not front.oracle.judged or self.minimal:
            return
        stood, searched, doubts = front.standing, front.oracle, front.doubts.tolist()
        doubted = [stands and count > 0 for stands, count in zip(stood, doubts, strict=True)]
        front.doubts = before  # so that an attack does the same after others as alone
        if not any(doubted):
            return
        front.standing, front.oracle = list(doubted), searched.judging()
        try:
            self.make_runs(front, aside=sum(stood) - sum(doubted))
        except NoGradientError:
            front.tally.note("the judge has no gradient: where it disagreed, it was not attacked itself")
        left = zip(stood, doubted, front.standing, strict=True)
        front.standing, front.oracle = [now if again else stands for stands, again, now in left], searched

    def make_runs(self, front: AttackState, aside: int | None = None) -> None:
        """Make the runs of `drain` once. aside: in a second time, how many other samples stand."""
        restarts = getattr(self, "restarts", 1)
        totals = [restarts * (min(self._aims, n - 1) if self._aims else 1) for n in front.contenders]
        made = [0] * len(front.clean)
        state: Restarts | None = None
        while True:
            if state is not None:
                state, _ = state.leave([not front.standing[row] for row in state.places.rows])
            fresh = self._next(front, state, made, totals)
            if fresh:
                places = Places.first(fresh)
                rows, runs = (upload(column, front.clean.device) for column in (places.rows, places.runs))
                begun = self._begin(front, rows, runs, places)
                # An empty batch would lead torch.cat away from channels_last.
                state = state.join(begun) if state is not None and len(state) else begun
            if state is None or not len(state):
                break
            state = self._advance(front, state)
            left = sum(total - done for total, done, stands in zip(totals, made, front.standing, strict=True) if stands)
            whole = 0 if aside is not None else sum(totals)
            share = 1 - (left + len(state)) / whole if whole else 1.0
            front.tally.tell(self.stage, sum(front.standing) + (aside or 0), share)

    def _next(
        self, front: AttackState, state: Restarts | None, made: list[int], totals: list[int]
    ) -> list[tuple[int, int]]:
        """Return (sample, run) pairs to begin now, first runs first, and count them in `made`.

        A sample's next run waits for the one before; if places are left over, only until that made `_alone` updates.
        """
        free = front.batch_size - (0 if state is None else len(state))
        if not free:
            return []
        open_rows = [row for row, stands in enumerate(front.standing) if stands and made[row] < totals[row]]
        if not open_rows:
            return []
        young: dict[int, bool] = {}
        if state is not None:
            for row, step in zip(state.places.rows, state.places.steps, strict=True):
                young[row] = young.get(row, False) or self._alone is None or step < self._alone
        idle = sorted((row for row in open_rows if row not in young), key=lambda row: (made[row], row))[:free]
        fresh = [(row, made[row]) for row in idle]
        for row in idle:
            made[row] += 1
        joining = [row for row in open_rows if not young.get(row, True)]
        while len(fresh) < free and (joining := [row for row in joining if made[row] < totals[row]]):
            row = min(joining, key=lambda row: (made[row], row))
            fresh.append((row, made[row]))
            made[row] += 1
        return fresh
