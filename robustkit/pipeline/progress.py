"""Say what a run will cost, how long it takes (logger `robustkit.plan`), and how far it is (`robustkit.progress`)."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..display.format import about, clock_time
from ..display.text import no_controls
from ..errors import RobustkitError
from ..evaluations.condition import Cost, shows
from ..evaluations.corruptions import Corrupted, corruption_condition, expand
from ..evaluations.family import family_of
from ..evaluations.maps import map_condition, parse_cams
from ..evaluations.maps.evaluate import cost_lines
from ..evaluations.setup import CHECK, COST, FIRST
from ..protocol.card import Card, samples_of
from ..protocol.condition import Condition
from ..runs.folder import RunFolder
from ..runs.progress import Finder, Follower, Progress
from ..tasks.task import task_of
from .processes import Ranks
from .request import ClassificationRequest, SegmentationRequest

_EVIDENCE = "evidence"
_BESIDES = (_EVIDENCE, CHECK)  # kinds of what is measured besides the conditions
_MANY = 50_000  # samples of a preset without a limit
_NOTABLE = 0.3  # share of the whole from which a kind of condition is named


def jobs_of(
    checkpoint: str,
    lacking: Sequence[tuple[Condition, int]],
    doubted: Mapping[str, tuple[int, Cost]],
    card: Card,
    classes: int,
    every: int,
    checked: bool = False,
) -> list[Job]:
    """Return what is to be done for a checkpoint of `classes`. lacking: conditions, each with its samples without a
    record. doubted: attacks that evidence is taken on, with its samples and what each costs. every: samples of the run.
    checked: whether its set-up is.
    """
    jobs = [
        Job(
            checkpoint,
            condition.text,
            condition.name,
            condition.group,
            min(samples, -(-samples * condition.on // every)) if condition.on else samples,
            family_of(condition.name).evaluator.cost(condition, card, classes),
        )
        for condition, samples in lacking
        if samples
    ]
    check = [Job(checkpoint, CHECK, CHECK, "", min(FIRST, every), COST)] if checked else []
    evidence = (
        Job(checkpoint, f"evidence on {text}", _EVIDENCE, "", some, cost)
        for text, (some, cost) in doubted.items()
        if some
    )
    return [*check, *jobs, *evidence]


def work_lines(
    conditions: Sequence[Condition],
    checkpoints: int,
    samples: int,
    units: int,
    done: int,
    doubted: Sequence[tuple[int, Cost]],
    card: Card,
    classes: int,
    checked: int = 0,
    unchecked: Iterable[str] = (),
) -> list[str]:
    """Return lines on what is to be done. done: units that have a record. doubted: the samples of each evidence
    that is taken, and what they cost. checked: of how many checkpoints the set-up is; unchecked: why it is not of
    others.
    """
    what = (
        f"to do: {_count(checkpoints, 'checkpoint')}, {_count(len(conditions), 'condition')}, "
        f"{_count(samples, 'sample')}: {_count(units, 'unit')} of work"
    )
    if done:
        what += f", of which {done} {'is' if done == 1 else 'are'} already done"
    if done == units:
        return [what]
    costs = {each: _cost(each, card, classes, samples) for each in conditions}
    total = sum(costs.values(), Cost(0))
    groups: dict[str, Cost] = {}
    for condition, cost in costs.items():
        name = family_of(condition.name).name
        groups[name] = groups.get(name, Cost(0)) + cost
    parts = ", ".join(f"{name} {str(cost).replace(' + ', '+')}" for name, cost in groups.items())
    passes = str(total).replace(" +", " forward +") + " backward passes"
    one = samples_of(card.task).one
    lines = [what, f"cost per {one} and checkpoint: {passes}" + (f" ({parts})" if len(groups) > 1 else "")]
    lines += cost_lines(costs)
    if checked:
        lines.append(
            f"{CHECK}: {_count(checked, 'time')} at least {COST} passes, for {_count(min(FIRST, samples), 'sample')}"
        )
    lines += (f"{CHECK} skipped: {why}" for why in dict.fromkeys(unchecked))
    for (some, cost), times in Counter(each for each in doubted if each[0]).items():
        lines.append(
            f"evidence on attacks: {_count(times, 'time')} at least {cost} passes, for {_count(some, 'sample')}"
        )
    return lines


def _cost(condition: Condition, card: Card, classes: int, samples: int) -> Cost:
    """Return what a condition costs for each of all samples, of which it may take a part."""
    some = condition.on or condition.most or samples
    return family_of(condition.name).evaluator.cost(condition, card, classes) * (min(some, samples) / max(samples, 1))


def preset_cost(task: str, name: str) -> Cost:
    """Return what a preset costs for each sample of a model of 1000 classes; maps are those of a ViT."""
    kind = {"classification": ClassificationRequest, "segmentation": SegmentationRequest}[task]
    request = kind(checkpoints=["net"], data_dir="images", preset=name)
    corrupted = (
        Corrupted(each, level) for each, levels in expand(request.corruptions or ()).items() for level in levels
    )
    maps = parse_cams("agcam") if isinstance(request, ClassificationRequest) and request.cams else ()
    attacked = request.attack_conditions(request.attack_list)
    every = (*attacked, *map(corruption_condition, corrupted), *map(map_condition, maps))
    return sum((_cost(each, request.card, 1000, request.limit or _MANY) for each in every), Cost(0))


def estimate_line(estimate: Estimate, where: str) -> str:
    """Return a line on the time that all takes; empty where too little was measured."""
    measured = estimate.measured
    steep = any(job.cost.backwards for job in estimate.jobs.values())
    first = next((job for job in estimate.jobs.values() if job.kind not in _BESIDES), None)
    if first is None or not any(job.kind not in _BESIDES for job in measured):
        return ""
    if steep and not any(job.cost.backwards for job in measured) and len(measured) < 2:
        return ""
    usual, most = estimate.total(), estimate.most()
    if usual is None or most is None:
        return ""
    line = f"about {about(usual)} on {where}"
    if most > 1.2 * usual:
        line += f", at most {about(most)}"
    kinds = dict.fromkeys(job.kind for job in estimate.jobs.values() if job.kind not in _BESIDES)
    shares = {kind: estimate.most(kind) for kind in kinds}
    kind, largest = max(((kind, share or 0.0) for kind, share in shares.items()), key=lambda item: item[1])
    if len(kinds) > 1 and largest >= _NOTABLE * most:
        bound = any(job.cost.at_most for job in estimate.jobs.values() if job.kind == kind)
        share = f"{100 * min(largest / most, 1):.0f} %"
        line += f"; {kind} accounts for {'up to' if bound else 'about'} {share}"
    return line


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


PLAN, PROGRESS = logging.getLogger("robustkit.plan"), logging.getLogger("robustkit.progress")
_QUIET = 60.0  # seconds after which a line says how far the current condition is
_OFTEN = 1.0  # seconds for which what is said about the whole run is kept


@dataclass
class _Entry:
    """What one line reports: a checkpoint's condition, or a group of them. shown: both without control characters.
    waiting: records not seen yet."""

    checkpoint: str
    title: str
    shown: str
    conditions: list[Condition] = field(default_factory=list)
    waiting: deque[Path] = field(default_factory=deque)

    @property
    def over(self) -> bool:
        while self.waiting and self.waiting[0].is_file():
            self.waiting.popleft()
        return not self.waiting


class Silent:
    def start(self, checkpoint: str, condition: str, samples: int) -> None: ...
    def advance(self, samples: int) -> None: ...
    def stage(self, name: str, standing: int, share: float) -> None: ...


class Reporter:
    """A `Progress` that also gives signs of life to the other processes, and reports a run to the loggers.
    every_shard: those of this command, by checkpoint and condition. where: the device. The first process alone tells.
    """

    def __init__(
        self,
        run: RunFolder,
        conditions: Sequence[Condition],
        samples: int,
        every_shard: Mapping[str, Mapping[str, Sequence[int]]],
        estimate: Estimate,
        ranks: Ranks,
        inner: Progress,
        where: str = "cpu",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.run, self.estimate, self.ranks, self.inner, self.where = run, estimate, ranks, inner, where
        self._samples = samples
        self._clock, self._last = clock, clock()
        self._lock = threading.RLock()  # records are written in a thread of their own
        self._announced = not estimate.jobs
        self._entries: dict[tuple[str, str], _Entry] = {}
        groups = Counter(condition.group for condition in conditions if condition.group)
        self._several = {group for group, count in groups.items() if count > 1}
        for checkpoint, shards in every_shard.items():
            for condition in (each for each in conditions if shards[each.text]):
                title = self._title(condition)
                shown = no_controls(f"{checkpoint} {title}")
                entry = self._entries.setdefault((checkpoint, title), _Entry(checkpoint, title, shown))
                entry.conditions.append(condition)
                entry.waiting += (run.shard_path(checkpoint, condition.text, shard) for shard in shards[condition.text])
        self._open = [entry for entry in self._entries.values() if not entry.over]
        self._finished = len(self._entries) - len(self._open)
        self._current = self._stage = ""
        self._overall = "", -math.inf
        self._apart = False  # records may be there before it is said that they are
        if estimate.jobs and isinstance(inner, Follower):
            inner.follow(self.overall)

    # A listener

    def begin(self, checkpoint: str, condition: Condition, samples: int) -> None:
        self.start(checkpoint, condition.text, samples, self._title(condition))

    def start(self, checkpoint: str, condition: str, samples: int, title: str = "") -> None:
        self.ranks.beat()
        with self._lock:
            self._announce()
            self.estimate.start(checkpoint, condition)
            self._current, self._stage = f"{checkpoint} {condition}", ""
        self.inner.start(checkpoint, title or condition, samples)

    def advance(self, samples: int) -> None:
        self.ranks.beat()
        with self._lock:
            self.estimate.advance(samples)
            self._sign()
        self.inner.advance(samples)

    def stage(self, name: str, standing: int, share: float) -> None:
        self.ranks.beat()
        with self._lock:
            self._stage = f", {name}: {standing} stand"
            self._sign()
        self.inner.stage(name, standing, share)

    def elsewhere(self, checkpoint: str, name: str, condition: Condition | None, samples: int, seconds: float) -> None:
        """Report what another process computed. seconds: that it took, over how many work at once."""
        with self._lock:
            self.estimate.add(checkpoint, name, samples, seconds)
            self._apart = True
            self._current, self._stage = f"{checkpoint} {name}", ""
            self._announce()
        self.inner.start(checkpoint, name if condition is None else self._title(condition), samples)
        self.inner.advance(samples)
        if condition is not None:
            self.written(checkpoint, condition)

    # Lines

    def overall(self) -> str:
        """Return how far the run is; computed once a second at most, and never by waiting: who draws holds locks."""
        line, asked = self._overall
        if self._clock() - asked < _OFTEN or not self._lock.acquire(blocking=False):
            return line
        try:
            line = f"{self._finished} of {len(self._entries)} done; {self._times()}"
        finally:
            self._lock.release()
        self._overall = line, self._clock()
        return line

    def written(self, checkpoint: str, condition: Condition) -> None:
        """Report what is finished now that a record of this condition is there."""
        if not self.ranks.leads:
            return
        with self._lock:
            finished = self._entries[checkpoint, self._title(condition)]
            for entry in [finished] if self.ranks.size == 1 else [e for e in self._open if e.checkpoint == checkpoint]:
                self._tell(entry)

    def finish(self) -> None:
        if self.ranks.leads:
            with self._lock:
                for entry in list(self._open):
                    self._tell(entry)

    def done(self, computed: float) -> None:
        """Tell that summary and report are there. computed: seconds until the last record was written."""
        if self.ranks.leads and self.estimate.jobs:
            total = self.estimate.elapsed
            PROGRESS.info("done in %s, including %s for summary and report", clock_time(total), about(total - computed))

    def _tell(self, entry: _Entry) -> None:
        if entry not in self._open or not entry.over:
            return
        self._open.remove(entry)
        self._finished += 1
        names = [condition.text for condition in entry.conditions]
        new = sum(self.estimate.done(entry.checkpoint, name) for name in names)
        every = sum(min(condition.on or self._samples, self._samples) for condition in entry.conditions)
        seen = self.ranks.size == 1 and not self._apart
        samples = f"{new} of {every} samples" if seen and new < every else f"{every} samples"
        seconds = sum(self.estimate.seconds(entry.checkpoint, name) for name in names)
        spent = f", {seconds:.1f} s" if seen else ""
        several = f" x{len(names)}" if len(names) > 1 else ""
        self._line(
            f"[{self._finished}/{len(self._entries)}] {entry.shown}{several}: {samples}"
            f"{(figure := self._figure(entry))}{spent}; {self._times()}"
        )
        if figure and isinstance(self.inner, Finder):
            self.inner.found(entry.checkpoint, entry.title, figure.removeprefix(", "))

    def _title(self, condition: Condition) -> str:
        return condition.group if condition.group in self._several else condition.text

    def _figure(self, entry: _Entry) -> str:
        """Return the headline figure of the images that conditions show; empty for others."""
        kind = entry.conditions[0].name
        if not shows(kind):
            return ""
        try:
            task = task_of(self.run.manifest)
            figures = [task.brief(self.run, entry.checkpoint, condition.text) for condition in entry.conditions]
        except (RobustkitError, KeyError, ValueError):  # a line less says the same
            return ""
        numbers = [figure for figure in figures if figure is not None]
        metric = task.headline_metric
        return f", {metric.word} {metric.as_text(sum(numbers) / len(numbers))}" if numbers else ""

    def _times(self) -> str:
        left, elapsed = self.estimate.left(), clock_time(self.estimate.elapsed)
        if not self._open:
            return f"elapsed {elapsed}, writing summary and report"
        return f"elapsed {elapsed}" if left is None else f"elapsed {elapsed}, about {clock_time(left)} left"

    def _sign(self) -> None:
        """Say how far the current condition is, where nothing was said for a while."""
        if self.ranks.leads and self._clock() - self._last > _QUIET:
            of_current = self.estimate.current
            samples = "" if of_current is None else f"{self.estimate.done(*of_current)} samples"
            self._line(no_controls(f"{self._current}: {samples} so far{self._stage}; {self._times()}"))

    def _announce(self) -> None:
        if self._announced or not self.ranks.leads:
            return
        if line := estimate_line(self.estimate, self.where):
            self._announced = True
            PLAN.info(line)

    def _line(self, line: str) -> None:
        self._last = self._clock()
        PROGRESS.info(line)


@dataclass(frozen=True)
class Job:
    """What is to be done for a checkpoint. kind, group: of which cost alike, the second more so."""

    checkpoint: str
    name: str
    kind: str
    group: str
    samples: int
    cost: Cost

    @property
    def key(self) -> tuple[str, str]:
        return self.checkpoint, self.name


_TELLING = 10.0  # passes from which on a condition's time is the device's


class Estimate:
    """The seconds of a run that are over, and those that are left. Seconds per sample are the job's own; else those of
    its condition with other checkpoints, at this one's pace; else per expected pass in the same group, kind,
    checkpoint, or any. Time between units is spread over all. processes: that share the work. accelerated: on a device
    where conditions of few passes take as long as the host that decodes and writes, and tell nothing of longer ones.
    """

    def __init__(
        self,
        jobs: Iterable[Job],
        processes: int = 1,
        clock: Callable[[], float] = time.monotonic,
        accelerated: bool = False,
    ) -> None:
        self.jobs = {job.key: job for job in jobs}
        self._accelerated = accelerated
        self._processes, self._clock = processes, clock
        self._began = self._since = clock()
        self._seconds: dict[tuple[str, str], float] = {}
        self._done: dict[tuple[str, str], int] = {}
        self.current: tuple[str, str] | None = None  # checkpoint and name of the job that was begun last

    @property
    def elapsed(self) -> float:
        return self._clock() - self._began

    @property
    def measured(self) -> Sequence[Job]:
        return [job for key, job in self.jobs.items() if self._done.get(key)]

    def seconds(self, checkpoint: str, name: str) -> float:
        return self._seconds.get((checkpoint, name), 0.0)

    def done(self, checkpoint: str, name: str) -> int:
        return self._done.get((checkpoint, name), 0)

    def start(self, checkpoint: str, name: str) -> None:
        self.current, self._since = (checkpoint, name), self._clock()

    def advance(self, samples: int) -> None:
        """Count samples of the current unit, and the seconds since the last ones."""
        assert self.current is not None
        now = self._clock()
        self._seconds[self.current] = self._seconds.get(self.current, 0.0) + now - self._since
        self._done[self.current] = self._done.get(self.current, 0) + samples
        self._since = now

    def add(self, checkpoint: str, name: str, samples: int, seconds: float) -> None:
        """Count samples that were computed elsewhere, and their seconds."""
        key = self.current = checkpoint, name
        self._seconds[key] = self._seconds.get(key, 0.0) + seconds
        self._done[key] = self._done.get(key, 0) + samples
        self._since = self._clock()

    def left(self) -> float | None:
        """Return the seconds left; None before anything was measured."""
        left = 0.0
        for key, job in self.jobs.items():
            remaining = job.samples / self._processes - self._done.get(key, 0)
            if remaining <= 0:
                continue
            rate = self._rate(job)
            if rate is None:
                return None
            expected = remaining * rate
            if key == self.current and not self._done.get(key):  # a unit that tells nothing before its end
                spent = self._clock() - self._since
                expected = max(expected - spent, spent / 4)
            left += expected
        return left * self._around()

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

    def _around(self) -> float:
        units = sum(self._seconds.values())
        if self.current is not None:
            units += self._clock() - self._since
        return min(2.0, self.elapsed / units) if units > 0 else 1.0

    def _rate(self, job: Job) -> float | None:
        """Return seconds per sample; None where nothing was measured."""
        if self._done.get(job.key):
            return self._own(job.key)
        least = _TELLING if self._accelerated and job.cost.expected >= _TELLING else 0.0
        measured = [
            other for other in self.measured if not least or (other.cost.expected >= least and other.kind != CHECK)
        ]
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
                    passes = sum(self._done[each.key] * each.cost.expected for each in some)
                    return job.cost.expected * sum(self._seconds[each.key] for each in some) / max(passes, 1e-9)
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
