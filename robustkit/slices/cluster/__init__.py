"""Compute what a run still lacks as tasks of a Ray cluster.

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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from ...common.environment import usual_workers
from ...common.plugins import load_plugin, plugin_files
from ...errors import ProtocolError, RunError
from ...pipeline.pending import PendingWork, announce, await_same, checkpoint_groups, pending_work
from ...pipeline.plan import Plan, plan_of
from ...pipeline.processes import Ranks
from ...pipeline.progress import Reporter, Silent
from ...pipeline.request import Request
from ...pipeline.units import Worker
from ...protocol.condition import Condition
from ...runs.progress import Progress

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
        for (planned, some), work in zip(checkpoint_groups(plan), every, strict=True):
            if some[0].waits is not later:
                continue
            first += [ClusterTask("set-up", planned.name)] if work.checks_setup else []
            first += (ClusterTask("before attacks", planned.name, (text,)) for text in work.doubted)
            units += (ClusterTask("units", planned.name, tuple(texts), shard) for shard, texts in work.units)
            last += (ClusterTask("evidence", planned.name, (text,)) for text in work.doubted)
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
class _State:
    key: tuple[str, str]
    worker: Worker
    ears: _Ears
    lines: list[str]


_states: list[_State] = []


def carry_out_task(order: _Order, task: ClusterTask) -> tuple[list[str], list[tuple[str, int, float]]]:
    """Compute a task; return lines for the user, and the name, samples and seconds of what was done."""
    device = _lent(order.device)
    if not _states or _states[0].key != (order.key, device):
        _states[:] = [_prepared(order, device)]
    state = _states[0]
    if task.kind == "set-up":
        state.worker.check_setup(task.checkpoint)
    elif task.kind == "units":
        state.worker.compute(task.checkpoint, [(task.shard, task.texts)])
    else:
        state.worker.take_evidence(task.checkpoint, task.texts[0], before=task.kind == "before attacks")
    lines, heard = list(state.lines), state.ears.taken()
    state.lines.clear()
    return lines, heard


def _prepared(order: _Order, device: str) -> _State:
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
    return _State((order.key, device), Worker(plan, ears, lines.append), ears, lines)


def _lent(kind: str) -> str:
    """Return the device that Ray has lent to this task, as torch counts devices here."""
    if kind == "cpu":
        return kind
    import ray

    lent, visible = str(ray.get_gpu_ids()[0]), os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return f"{kind}:{visible.split(',').index(lent) if visible else lent}"
