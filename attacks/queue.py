"""A queue that keeps batches full with runs that still matter.

An attack may make several runs at a sample, from different random starts or towards different classes. Runs enter the
batch as places become free, and leave it when they are over or their sample is broken: so no pass is spent on a broken
sample, and batches stay full across samples, targets and restarts.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import torch
from torch import Tensor

from .attack import Attack, Tally
from .frozen import Oracle
from .labels import as_sets, members, missed
from .rng import Rng
from .survivors import Survivors


@dataclass(frozen=True)
class Runs(Survivors):
    """Runs under way, one row each; `rows` holds their samples. Attacks add their own state.

    run: (n,) int64, which run of its sample. step: (n,) int64, updates made.
    """

    run: Tensor
    step: Tensor


R = TypeVar("R", bound=Runs)


class Front:
    """The samples under attack, which of them stand, and the points found so far.

    clean: (B, ...). labels: (B,) or (B, L), from `logits` (B, K) of the clean images where None is given.
    contenders: for each sample, how many classes compete where its set of labels counts as one: K for a plain label.
    ends: (B, ...) what the attack returns: the first wrong point of a broken sample; of another one the image, or the
        point of the highest loss where runs are reported with losses.
    """

    def __init__(self, oracle: Oracle, clean: Tensor, labels: Tensor | None, rng: Rng, tally: Tally) -> None:
        self.oracle, self.clean, self.rng, self.tally = oracle, clean, rng, tally
        self.batch_size = oracle.batch_size or len(clean)
        self.ends = clean.clone()
        everyone = torch.arange(len(clean), device=clean.device)
        self.logits = torch.cat([oracle.predict(clean[rows]) for rows in torch.split(everyone, self.batch_size)])
        self.tally.count(everyone, forwards=1)
        self.labels = self.logits.argmax(dim=1) if labels is None else labels
        count = self.logits.shape[1]
        self.contenders = [count] * len(clean)
        if self.labels.ndim == 2:
            self.contenders = (count + 1 - members(self.labels, self.logits).sum(dim=1)).tolist()
        self.standing = [True] * len(clean)
        self.best = torch.full((len(clean),), -torch.inf, dtype=clean.dtype, device=clean.device)
        for rows in torch.split(everyone[missed(self.logits, self.labels)], self.batch_size):
            wrong = self.wrong(rows, clean[rows], torch.ones_like(rows, dtype=torch.bool))
            self.fall(rows[wrong], torch.zeros_like(rows)[wrong], clean[rows[wrong]], torch.zeros_like(rows)[wrong])

    def targets(self, count: int) -> Tensor:
        """Return the classes (B, count) nearest to winning on the clean images, the labels left out.

        A sample with fewer `contenders` has labels in the last places.
        """
        return self.logits.scatter(1, as_sets(self.labels), float("-inf")).topk(count, dim=1).indices

    def note_targets(self, asked: int) -> None:
        """Note if fewer classes than `asked` are left as targets."""
        classes = self.logits.shape[1]
        if classes <= asked:
            self.tally.note_targets(classes, asked)
        elif min(self.contenders) <= asked:
            self.tally.note(f"samples with many valid labels: all other classes as targets, fewer than {asked}")

    def wrong(self, rows: Tensor, points: Tensor, seen: Tensor) -> Tensor:
        """Return which of the points that were `seen` to be wrong (n,) are wrong, asking the judge if there is one."""
        confirmed, asked = self.oracle.confirm(points, self.labels[rows], seen)
        if asked.any():
            self.tally.count(rows, forwards=asked.long())
        return confirmed

    def report(self, runs: Runs, points: Tensor, losses: Tensor, falls: Tensor, done: Tensor) -> None:
        """Record the runs (n,) whose points (n, ...) break their sample, and those that are over without that."""
        if falls.any():
            self.fall(runs.rows[falls], runs.run[falls], points[falls], runs.step[falls])
        if done.any():
            for row, point, loss in zip(runs.rows[done].tolist(), points[done], losses[done], strict=True):
                if self.standing[row] and loss > self.best[row]:
                    self.best[row] = loss
                    self.ends[row] = point

    def fall(self, rows: Tensor, runs: Tensor, points: Tensor, steps: Tensor) -> None:
        """Record that `points` break the samples `rows`; where runs of one sample meet here, the first run counts."""
        order = sorted(range(len(rows)), key=runs.tolist().__getitem__)
        where = rows.tolist()
        first = {where[i]: i for i in reversed(order) if self.standing[where[i]]}
        if first:
            index = torch.tensor(list(first.values()), device=rows.device)
            self.ends[rows[index]] = points[index]
            self.tally.broken_at[rows[index]] = steps[index]
            for row in first:
                self.standing[row] = False


@dataclass(frozen=True)
class QueuedAttack(Attack):
    """An attack that makes runs at each sample, at most `batch_size` rows in a pass.

    First the clean images are classified, one forward each; only right ones are attacked.
    """

    queues: ClassVar[bool] = True

    @property
    @abstractmethod
    def stage(self) -> str:
        """The name of this attack as a stage, which also names its random draws."""

    @abstractmethod
    def _runs(self, classes: int) -> int:
        """Return the number of runs at a sample for which that many classes compete."""

    @property
    def _aims(self) -> int:
        """How many target classes are asked for."""
        return 0

    @property
    def _alone(self) -> int | None:
        """Updates that a sample's run makes before the sample's other runs may join; None: it must be over."""
        return None

    @abstractmethod
    def _begin(self, front: Front, rows: Tensor, runs: Tensor) -> Runs:
        """Return the state of new runs `runs` (n,) of the samples `rows` (n,)."""

    @abstractmethod
    def _advance(self, front: Front, state: Runs) -> Runs:
        """Make a forward and an update of every run; report to `front`, and return the runs that go on."""

    def _points(self, oracle: Oracle, clean: Tensor, labels: Tensor | None, rng: Rng, tally: Tally) -> Tensor:
        front = Front(oracle, clean, labels, rng, tally)
        if self._aims:
            front.note_targets(self._aims)
        self.drain(front)
        return front.ends

    def drain(self, front: Front) -> None:
        """Make all runs at all samples of `front` that stand, until those are over or these are broken."""
        totals = [self._runs(classes) for classes in front.contenders]
        made = [0] * len(front.clean)
        state: Runs | None = None
        while True:
            if state is not None and not all(stands := [front.standing[row] for row in state.rows.tolist()]):
                state = state.take(_indices(state.rows, stands))
            fresh = self._next(front, state, made, totals)
            if fresh:
                rows, runs = torch.tensor(fresh, device=front.clean.device).unbind(1)
                begun = self._begin(front, rows, runs)
                # An empty batch would lead torch.cat away from channels_last.
                state = state.join(begun) if state is not None and len(state) else begun
            if state is None or not len(state):
                break
            state = self._advance(front, state)
            left = sum(total - done for total, done, stands in zip(totals, made, front.standing, strict=True) if stands)
            whole = sum(totals)
            front.tally.tell(self.stage, sum(front.standing), 1 - (left + len(state)) / whole if whole else 1.0)

    def _next(self, front: Front, state: Runs | None, made: list[int], totals: list[int]) -> list[tuple[int, int]]:
        """Return (sample, run) pairs to begin now, first runs first, and count them in `made`.

        A sample's next run waits for the one before, unless places are left over: then it may join once that one has
        made `_alone` updates, after which most samples that fall have fallen.
        """
        free = front.batch_size - (0 if state is None else len(state))
        if not free:
            return []
        open_rows = [row for row, stands in enumerate(front.standing) if stands and made[row] < totals[row]]
        if not open_rows:
            return []
        young: dict[int, bool] = {}
        if state is not None:
            for row, step in zip(state.rows.tolist(), state.step.tolist(), strict=True):
                young[row] = young.get(row, False) or self._alone is None or step < self._alone
        idle = sorted((row for row in open_rows if row not in young), key=lambda row: (made[row], row))[:free]
        fresh = [(row, made[row]) for row in idle]
        for row in idle:
            made[row] += 1
        beside = [row for row in open_rows if not young.get(row, True)]
        while len(fresh) < free and (beside := [row for row in beside if made[row] < totals[row]]):
            row = min(beside, key=lambda row: (made[row], row))
            fresh.append((row, made[row]))
            made[row] += 1
        return fresh


def _indices(like: Tensor, keep: list[bool]) -> Tensor:
    return torch.tensor([i for i, kept in enumerate(keep) if kept], dtype=torch.int64, device=like.device)
