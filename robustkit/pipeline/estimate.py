"""Estimate how long the rest of a run takes, from what its conditions should cost and what was measured so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ..evaluations.interface import Cost


@dataclass(frozen=True)
class Job:
    """What is to be done for one checkpoint under one condition.

    name: of the condition, or what is measured before them. kind, group: conditions of which cost alike, the second
    more so. samples: that lack a record.
    """

    checkpoint: str
    name: str
    kind: str
    group: str
    samples: int
    cost: Cost

    @property
    def key(self) -> tuple[str, str]:
        return self.checkpoint, self.name


class Estimate:
    """The seconds of a run that are over, and those that are left.

    Seconds per sample are those measured for the same job; else those of the same condition with another checkpoint,
    times how much faster or slower this one is; else those per expected pass in the same group, of the same kind, of
    the same checkpoint, or of any. What happens between units (reading, loading) is spread over all of them.

    processes: that share the work, of which this one is seen. reserve: seconds expected after the last unit.
    """

    def __init__(
        self,
        jobs: Iterable[Job],
        processes: int = 1,
        reserve: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.jobs = {job.key: job for job in jobs}
        self._processes, self._reserve, self._clock = processes, reserve, clock
        self._began = self._since = clock()
        self._seconds: dict[tuple[str, str], float] = {}
        self._done: dict[tuple[str, str], int] = {}
        self._current: tuple[str, str] | None = None

    @property
    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return self._clock() - self._began

    @property
    def current(self) -> tuple[str, str] | None:
        """The checkpoint and the name of the job that was begun last."""
        return self._current

    @property
    def measured(self) -> Sequence[Job]:
        """The jobs of which some samples are done."""
        return [job for key, job in self.jobs.items() if self._done.get(key)]

    def seconds(self, checkpoint: str, name: str) -> float:
        """Return the seconds that this process has spent on a job."""
        return self._seconds.get((checkpoint, name), 0.0)

    def done(self, checkpoint: str, name: str) -> int:
        """Return the samples of a job that this process has done."""
        return self._done.get((checkpoint, name), 0)

    def start(self, checkpoint: str, name: str) -> None:
        """Begin a unit of a job."""
        self._current, self._since = (checkpoint, name), self._clock()

    def advance(self, samples: int) -> None:
        """Count samples of the current unit, and the seconds since the last ones."""
        assert self._current is not None
        now = self._clock()
        self._seconds[self._current] = self._seconds.get(self._current, 0.0) + now - self._since
        self._done[self._current] = self._done.get(self._current, 0) + samples
        self._since = now

    def add(self, checkpoint: str, name: str, samples: int, seconds: float) -> None:
        """Count samples that were computed elsewhere, and their seconds."""
        key = self._current = checkpoint, name
        self._seconds[key] = self._seconds.get(key, 0.0) + seconds
        self._done[key] = self._done.get(key, 0) + samples
        self._since = self._clock()

    def left(self) -> float | None:
        """Return the seconds left; None before anything was measured."""
        return None if (left := self._left()) is None else left + self._reserve

    def total(self) -> float | None:
        """Return the seconds of the whole run; None before anything was measured."""
        return None if (left := self.left()) is None else self.elapsed + left

    def most(self, kind: str = "") -> float | None:
        """Return the same where all samples stay to the end; of the jobs of one kind, if it is given."""
        if (total := self.total()) is None:
            return None
        more = spent = 0.0
        for job in self.jobs.values():
            seconds = job.samples / self._processes * (self._rate(job) or 0.0)
            if job.cost.at_most and not self._done.get(job.key):
                bound = seconds * job.cost.most / job.cost.expected
                more, seconds = more + bound - seconds, bound
            spent += seconds if job.kind == kind else 0.0
        return spent if kind else total + more

    def _left(self) -> float | None:
        left = 0.0
        for key, job in self.jobs.items():
            remaining = job.samples / self._processes - self._done.get(key, 0)
            if remaining <= 0:
                continue
            rate = self._rate(job)
            if rate is None:
                return None
            expected = remaining * rate
            if key == self._current and not self._done.get(key):  # a unit that tells nothing before its end
                spent = self._clock() - self._since
                expected = max(expected - spent, spent / 4)
            left += expected
        return left * self._around()

    def _around(self) -> float:
        """Return by how much a run takes longer than its units."""
        units = sum(self._seconds.values())
        if self._current is not None:
            units += self._clock() - self._since
        return min(2.0, self.elapsed / units) if units > 0 else 1.0

    def _rate(self, job: Job) -> float | None:
        """Return seconds per sample; None where nothing was measured."""
        if self._done.get(job.key):
            return self._own(job.key)
        measured = self.measured
        here = [other for other in measured if other.checkpoint == job.checkpoint]
        if elsewhere := [other for other in measured if other.name == job.name]:
            rates = [self._own(other.key) * self._pace(job.checkpoint, other.checkpoint) for other in elsewhere]
            return sum(rates) / len(rates)
        tests: list[Callable[[Job], bool]] = [
            lambda other: bool(job.group) and other.group == job.group,
            lambda other: other.kind == job.kind,
            lambda other: True,
        ]
        for place in (here, measured):
            for alike in tests:
                if some := [other for other in place if alike(other)]:
                    return job.cost.expected * self._per_pass(some)
        return None

    def _own(self, key: tuple[str, str]) -> float:
        return self._seconds[key] / self._done[key]

    def _pace(self, checkpoint: str, other: str) -> float:
        """Return how much slower a checkpoint is than another, by what was measured of both."""
        names = {job.name for job in self.measured if job.checkpoint == checkpoint}
        common = [job.name for job in self.measured if job.checkpoint == other and job.name in names]
        if not common:
            return 1.0
        return sum(self._own((checkpoint, name)) for name in common) / max(
            1e-9, sum(self._own((other, name)) for name in common)
        )

    def _per_pass(self, jobs: Sequence[Job]) -> float:
        passes = sum(self._done[job.key] * job.cost.expected for job in jobs)
        return sum(self._seconds[job.key] for job in jobs) / max(passes, 1e-9)


def clock_time(seconds: float) -> str:
    """Return `1:02` or `1:02:03`."""
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def about(seconds: float) -> str:
    """Return `40 s`, `36 min` or `3.5 h`."""
    if seconds < 99.5:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"
