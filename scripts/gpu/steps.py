"""The steps in their order, what each gets, and faults for rehearsals. Imports nothing that may be missing."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SUPPORT = Path(__file__).parents[2] / "tests" / "support"
STAND_IN, FAULT = "ROBUSTKIT_STAND_IN", "ROBUSTKIT_GPU_FAULT"
"""Set in rehearsals: `1` for the stand-in for a CUDA device; `STEP=FAULT` for a fault of `FAULTS` in a step."""


@dataclass(frozen=True)
class Step:
    """A function of a module here, and its share of six minutes in seconds."""

    place: str
    seconds: float
    title: str


STEPS = {
    "machine": Step("machine:describe", 20, "versions, device, memory"),
    "doctor": Step("machine:examine", 45, "robustkit doctor"),
    "truth": Step("truth:compare", 90, "records against the CPU's, and repeated"),
    "resume": Step("truth:resume", 90, "four ViTs, killed and resumed"),
    "rates": Step("rates:eager", 90, "attacks in images a second"),
    "maps": Step("rates:corruptions_and_maps", 25, "corruptions and maps in images a second"),
    "memory": Step("rates:memory", 30, "batches halved where memory is short"),
    "compiled": Step("rates:compiled", 205, "attacks on compiled networks"),
    "host": Step("rates:host", 40, "decoding, uploads, writing"),
    "processes": Step("truth:processes", 60, "two processes on one device"),
}
"""Most important first; together they may ask for more than there is, so that the last ones wait for the others."""


def append(path: Path, line: dict[str, Any]) -> None:
    """Add a line of JSON to a file, on disk when this returns."""
    with path.open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


@dataclass(frozen=True)
class Bench:
    """What a step gets. device: `cuda` or `cpu`. small: sizes of a rehearsal. ends: by time.monotonic."""

    out: Path
    step: str
    device: str
    small: bool
    ends: float

    @property
    def left(self) -> float:
        return self.ends - time.monotonic()

    @property
    def folder(self) -> Path:
        """An empty place for the step's own files."""
        folder = self.out / "work" / self.step
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def robustkit(self) -> list[str]:
        """The words that begin the command, also where the stand-in is the device."""
        script = [str(SUPPORT / "on_stand_in.py")] if os.environ.get(STAND_IN) else ["-m", "robustkit"]
        return [sys.executable, *script]

    def record(self, **values: Any) -> None:
        append(self.out / "results.jsonl", {"step": self.step, **values})


def carry_out(bench: Bench) -> None:
    """Run a step in this process, on the stand-in or with a fault where the environment asks for that."""
    module, _, name = STEPS[bench.step].place.partition(":")
    with contextlib.ExitStack() as stack:
        if os.environ.get(STAND_IN):
            sys.path.insert(0, str(SUPPORT))
            stand_in = importlib.import_module("stand_in")
            stand_in.prepare()
            stack.enter_context(stand_in.devices())
        step, _, fault = os.environ.get(FAULT, "").partition("=")
        if step == bench.step:
            stack.enter_context(FAULTS[fault]())
        getattr(importlib.import_module(f"{__package__}.{module}"), name)(bench)


# Faults that a first day brings


@contextlib.contextmanager
def _raises() -> Iterator[None]:
    raise RuntimeError("CUDA error: an illegal memory access was encountered")
    yield


@contextlib.contextmanager
def _hangs() -> Iterator[None]:
    while True:
        time.sleep(60)
    yield


@contextlib.contextmanager
def _no_memory() -> Iterator[None]:
    """Every pass of a network says that no memory is left, also for one image."""
    import torch

    def refuse(*inputs: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    handle = torch.nn.modules.module.register_module_forward_pre_hook(lambda *inputs: refuse())
    try:
        yield
    finally:
        handle.remove()


@contextlib.contextmanager
def _no_operator() -> Iterator[None]:
    """An operator has no kernel on the device."""
    import torch

    def refuse(*inputs: Any, **more: Any) -> None:
        raise NotImplementedError("Could not run 'aten::linear' with arguments from the 'CUDA' backend")

    before = torch.nn.functional.linear
    torch.nn.functional.linear = refuse
    try:
        yield
    finally:
        torch.nn.functional.linear = before


@contextlib.contextmanager
def _clock_jumps() -> Iterator[None]:
    """The time of day goes back by an hour at each look, and one measurement of the other clock takes a day."""
    now, precise, looks = time.time, time.perf_counter, [0]

    def back() -> float:
        looks[0] += 1
        return now() - 3600 * looks[0]

    def jump() -> float:
        looks[0] += 1
        return precise() + (86400 if looks[0] > 40 else 0)

    time.time, time.perf_counter = back, jump
    try:
        yield
    finally:
        time.time, time.perf_counter = now, precise


FAULTS = {"raise": _raises, "hang": _hangs, "memory": _no_memory, "operator": _no_operator, "clock": _clock_jumps}
