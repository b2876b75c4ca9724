"""Carry out a request: compute what a run still lacks, in this process, with others, or on a Ray cluster.

A task is a shard with conditions, or what is measured before them. The process of a worker, which Ray uses for one task
after the other, keeps the plan, and the network that it placed last.
"""

from __future__ import annotations

import contextlib
import logging
import os
import platform
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from ..common.environment import usual_workers
from ..common.files import in_turn, locked
from ..common.plugins import load_plugin, plugin_files, plugin_session
from ..display.text import no_controls
from ..errors import ProtocolError, RobustkitWarning, RunError, warn
from ..evaluations.aggregate import Results
from ..evaluations.presenting import finding_lines
from ..protocol.condition import CLEAN, Condition
from ..report.run import Run
from ..runs.folder import refuse_links
from ..runs.kept_images import remove_adversarials
from ..runs.progress import Progress
from .manifest import prepare_run
from .pending import (
    PendingWork,
    announce,
    await_same,
    checkpoint_groups,
    computable,
    count_shards,
    pending_units,
    pending_work,
)
from .plan import Compute, Plan, plan_of
from .processes import Ranks
from .progress import Reporter, Silent
from .request import Request
from .units import Worker

_LOOK = 1.0  # seconds between two looks at what is done
_ALL_VISIBLE = "RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES"
"""Set, Ray leaves all GPUs of a node visible: a process that keeps a network may be lent another GPU for its next task,
which it could not see.
"""


class ClusterTask(NamedTuple):
    """What one task computes for a checkpoint. texts: of conditions; the one that evidence is taken on, or several."""

    kind: Literal["set-up", "before attacks", "units", "evidence"]
    checkpoint: str
    texts: tuple[str, ...] = ()
    shard: int = 0


@dataclass(frozen=True)
class _Order:
    """What all tasks of a run share. folder: where the command began. plugins: files. cpus: of a task."""

    request: Request
    manifest: dict[str, Any]
    folder: str
    plugins: tuple[str, ...]
    cpus: int
    device: str
    key: str = field(default_factory=lambda: uuid.uuid4().hex)


def compute_on_cluster(plan: Plan, progress: Progress, say: Callable[[str], None]) -> Reporter:
    """Write the missing records on a Ray cluster, as `compute`. RunError where Ray is not there or gives up."""
    request, kind = plan.request, plan.request.settings.device.type
    if kind not in ("cpu", "cuda"):
        raise ProtocolError(f"--ray with device {kind}: Ray lends CPUs and CUDA devices; use --device cpu or cuda")
    threads = torch.get_num_threads() if os.environ.get("OMP_NUM_THREADS") else 1
    cpus = (request.workers or 1) if kind == "cuda" else threads
    with _cluster(str(request.ray)) as ray:
        resources = ray.cluster_resources()
        slots = int(resources.get("GPU", 0) if kind == "cuda" else resources.get("CPU", 0) // cpus)
        if not slots:
            raise RunError(f"--ray {request.ray}: the cluster has no {kind} for a task; it has {_in_words(resources)}")
        every = pending_work(plan, slots)
        reporter = announce(plan, Ranks(), progress, say, every)
        folder, plugins = str(Path.cwd()), tuple(map(str, plugin_files()))
        order = ray.put(_Order(request, plan.run.manifest.to_plain(), folder, plugins, cpus, kind))
        options = {"num_gpus": 1, "runtime_env": {"env_vars": {_ALL_VISIBLE: "1"}}} if kind == "cuda" else {}
        remote = ray.remote(num_cpus=cpus, max_calls=0, **options)(carry_out_task)
        for tasks in _rounds(plan, every):
            _await(ray, {remote.remote(order, task): task for task in tasks}, plan, reporter, say, slots)
    return reporter


def _in_words(resources: dict[str, float]) -> str:
    return ", ".join(f"{resources.get(name, 0):g} {name}" for name in ("CPU", "GPU"))


@contextlib.contextmanager
def _cluster(address: str) -> Iterator[Any]:
    """Connect to a cluster, or start one for as long as the context lasts; one that is connected already is used."""
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        import ray
    except ImportError:
        raise RunError('--ray: Ray is not installed; pip install ".[ray]" in a clone of this project') from None
    ours = not ray.is_initialized()
    if ours:
        local = {"include_dashboard": False} if address == "local" else {}
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **local)
        except (ConnectionError, RuntimeError, ValueError, TimeoutError) as fault:
            raise RunError(f"--ray {address}: no cluster responds ({_line(fault)}); start one with ray start") from None
    try:
        yield ray
    except ray.exceptions.RayTaskError as fault:
        raise fault.cause if isinstance(fault.cause, Exception) else fault from None
    except ray.exceptions.RayError as fault:
        raise RunError(
            f"--ray {address}: Ray gave up ({type(fault).__name__}: {_line(fault)}); finished work is kept; rerun "
            "the same command to continue"
        ) from None
    finally:
        if ours:
            ray.shutdown()


def _line(fault: BaseException) -> str:
    return next(iter(str(fault).strip().splitlines()), type(fault).__name__)[:200]


def _rounds(plan: Plan, every: Sequence[PendingWork]) -> Iterator[list[ClusterTask]]:
    """Yield what is to be done: the set-up first, evidence on attacks last; then what needs others' results."""
    for later in (False, True):
        first, units, last = list[ClusterTask](), list[ClusterTask](), list[ClusterTask]()
        for (planned, some), (lacking, doubted, _, _, unchecked) in zip(checkpoint_groups(plan), every, strict=True):
            if some[0].waits is not later:
                continue
            first += [ClusterTask("set-up", planned.name)] if unchecked is None else []
            first += (ClusterTask("before attacks", planned.name, (text,)) for text in doubted)
            units += (ClusterTask("units", planned.name, tuple(texts), shard) for shard, texts in lacking)
            last += (ClusterTask("evidence", planned.name, (text,)) for text in doubted)
        yield [*first, *units]
        yield last


def _await(
    ray: Any, pending: dict[Any, ClusterTask], plan: Plan, reporter: Reporter, say: Callable[[str], None], slots: int
) -> None:
    """Report each task as it is done. slots: how many are computed at once."""
    by_text = {condition.text: condition for condition in plan.conditions}
    try:
        while pending:
            done, _ = ray.wait([*pending], num_returns=len(pending), timeout=_LOOK)
            for reference in done:
                task = pending.pop(reference)
                lines, heard = ray.get(reference)
                for name, samples, seconds in heard:
                    reporter.elsewhere(task.checkpoint, name, by_text.get(name), samples, seconds / slots)
                for line in lines:
                    say(line)
    except BaseException:
        for reference in pending:
            ray.cancel(reference, force=True)
        raise


# In the process of a worker


@dataclass
class _Ears(Silent):
    """A `Watch` that keeps what it heard: of each unit the name, the samples, and when it began."""

    heard: list[tuple[str, int, float]] = field(default_factory=list)

    def begin(self, checkpoint: str, condition: Condition, samples: int) -> None:
        self.start(checkpoint, condition.text, samples)

    def start(self, checkpoint: str, condition: str, samples: int) -> None:
        self.heard.append((condition, samples, time.monotonic()))

    def written(self, checkpoint: str, condition: Condition) -> None: ...

    def taken(self) -> list[tuple[str, int, float]]:
        ends = [*(began for _, _, began in self.heard), time.monotonic()][1:]
        timings = [(name, n, end - began) for (name, n, began), end in zip(self.heard, ends, strict=True)]
        self.heard.clear()
        return timings


@dataclass
class _Kept:
    key: tuple[str, str]
    worker: Worker
    ears: _Ears
    lines: list[str]


_kept: list[_Kept] = []


def carry_out_task(order: _Order, task: ClusterTask) -> tuple[list[str], list[tuple[str, int, float]]]:
    """Compute a task; return lines for the user, and the name, samples and seconds of what was done."""
    device = _lent(order.device)
    if not _kept or _kept[0].key != (order.key, device):
        _kept[:] = [_prepared(order, device)]
    state = _kept[0]
    if task.kind == "set-up":
        state.worker.check_setup(task.checkpoint)
    elif task.kind == "units":
        state.worker.compute(task.checkpoint, [(task.shard, task.texts)])
    else:
        state.worker.take_evidence(task.checkpoint, task.texts[0], before=task.kind == "before attacks")
    lines, heard = list(state.lines), state.ears.taken()
    state.lines.clear()
    return lines, heard


def _prepared(order: _Order, device: str) -> _Kept:
    try:
        os.chdir(order.folder)
    except OSError:
        raise RunError(
            f"--ray: the node {platform.node()} has no folder {order.folder}; all nodes must share the same files"
        ) from None
    for file in order.plugins:
        load_plugin(file)
    at_once = torch.cuda.device_count() if order.device == "cuda" else usual_workers() // order.cpus
    workers = order.request.workers or max(1, usual_workers() // max(1, at_once))
    if order.device == "cpu":
        torch.set_num_threads(order.cpus)
    plan = plan_of(replace(order.request, device=device, workers=workers))
    await_same(plan.run, order.manifest)
    ears, lines = _Ears(), list[str]()
    return _Kept((order.key, device), Worker(plan, ears, lines.append), ears, lines)


def _lent(kind: str) -> str:
    """Return the device that Ray has lent to this task, as torch counts devices here."""
    if kind == "cpu":
        return kind
    import ray

    lent, visible = str(ray.get_gpu_ids()[0]), os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return f"{kind}:{visible.split(',').index(lent) if visible else lent}"


def carry_out(plan: Plan, progress: Progress, say: Callable[[str], None], instead: Compute | None = None) -> None:
    """Carry out a whole run: in this process, with others of torchrun, on a Ray cluster, or by `instead` in this
    process. The first process makes run.json, summary and report, and holds the folder's lock; a part of a run shares
    it and makes neither summary nor report. Raises RunError where another command is at work, ProtocolError for Ray in
    several.
    """
    ranks, run, part, instead = Ranks.of_environment(), plan.run, plan.request.share, instead or plan.write
    if ranks.size > 1 and plan.request.ray is not None:
        raise ProtocolError(f"--ray in {ranks.size} processes of torchrun: Ray starts its own; run it without torchrun")
    with contextlib.ExitStack() as held:

        def begin() -> dict[str, Any]:
            held.enter_context(locked(run.path, together=part is not None))
            refuse_links(run.path)
            digest = plan.digest()
            with in_turn(run.path):
                lines = prepare_run(plan, digest)
            for line in (*plan.lines, *lines):
                say(line)
            if part is None:  # others are writing
                run.sweep()
            return run.manifest.to_plain()

        await_same(run, ranks.share("run", begin))
        if instead is not None:
            reporter = instead(plan, progress, say)
        elif plan.request.ray is None:
            reporter = compute(plan, ranks, progress, say)
        else:
            reporter = compute_on_cluster(plan, progress, say)
        ranks.finish()
        reporter.finish()
        if ranks.leads:
            if ranks.size > 1:
                _check_complete(plan)
            if part is not None:
                return
            computed = reporter.estimate.elapsed
            if not run.manifest.keeps_adversarials:
                remove_adversarials(run)
            plan.finish()
            run.forget_refusal()
            reporter.done(computed)


def compute(plan: Plan, ranks: Ranks, progress: Progress, say: Callable[[str], None]) -> Reporter:
    """Write the missing records, evidence last. ModelError where a network fails, RunError where a process is lost."""
    every: list[PendingWork] = ranks.share("work", lambda: pending_work(plan, ranks.size))
    reporter = announce(plan, ranks, progress, say, every)
    worker, met = Worker(plan, reporter, say), False
    for (planned, conditions), (lacking, doubted, _, _, unchecked) in zip(checkpoint_groups(plan), every, strict=True):
        name, check = planned.name, [CLEAN.text] if unchecked is None else []
        if not lacking and not doubted and not check:
            continue
        later = conditions[0].waits
        if later and not met:  # what they need comes from any of the processes
            ranks.meet("later")
            met = True
        for _ in ranks.draw(f"set-up of {name}", check):
            worker.check_setup(name)
        for text in ranks.draw(f"before attacks on {name}", doubted):
            worker.take_evidence(name, text, before=True)
        worker.compute(name, ranks.draw(f"units of {name}{', later' if later else ''}", lacking))
        for text in ranks.draw(f"evidence on {name}", doubted):
            worker.take_evidence(name, text)
    worker.rest()
    return reporter


def _check_complete(plan: Plan) -> None:
    run, shards = plan.run, count_shards(plan)
    lacking = 0
    for name in (planned.name for planned in plan.contenders):
        conditions = computable(plan, name, plan.conditions)
        for _, texts in pending_units(run, name, conditions, shards, part=plan.request.share):
            lacking += len(texts)
    if lacking:
        raise RunError(
            f"{run.path}: {lacking} units of work have no record here, though all processes are done; make sure that "
            "all of them share this folder, and run the same command again"
        )


_LOG = logging.getLogger("robustkit")


def run(request: Request, progress: Progress | None = None, say: Callable[[str], None] | None = None) -> Run:
    """Carry out a request, and return the run.

    progress: listens to units and samples as they are done. say: takes a line for the user; without one, each flag of
    the results is a RobustkitWarning. The logger `robustkit` gets the same lines at INFO, and below it `robustkit.plan`
    what all will cost and `robustkit.progress` what is finished.

    Raises:
        RobustkitError: anything that is wrong with the request, before a file is written.
        ModelError: besides, a network that fails on some batch; what was done before it is kept.
        NothingEvaluated: no sample could be evaluated.
    """

    def heard(line: str) -> None:
        _LOG.info(no_controls(line))
        if say is not None:
            say(line)

    with plugin_session(), request.noted():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RobustkitWarning)  # of assumptions; the set-up check says more about them
            planned = plan_of(request)
        planned.run.asked = tuple(dict.fromkeys(condition.text for condition in planned.conditions))
        carry_out(planned, progress or Silent(), heard)
        if say is None and request.share is None and (planned.run.path / "summary.json").is_file():
            for line in finding_lines(Results.of(planned.run, planned.run.summary())):
                warn(line)
    return planned.run
