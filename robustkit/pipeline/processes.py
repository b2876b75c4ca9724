"""Share the work of one run between processes, as torchrun starts them, or do it in a single one.

They communicate through torchrun's c10d store alone: no process group, no collective, so that only the end waits for
the slowest. Each draws the next piece of work when it is free. What a process had drawn when it died has no record, and
is drawn again when the same command is next started.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from ..common.environment import count_in
from ..errors import RobustkitError, RunError

T = TypeVar("T")
SILENCE = 1800.0
"""Seconds without a sign of life after which a process counts as hung; ROBUSTKIT_RANK_TIMEOUT overrides it."""
_POLL = 0.1
_PATIENCE = 12  # times the silence that the others wait while the first one hashes data and measures


@dataclass
class Ranks:
    """One of `size` processes; the first leads: it writes run.json and the summary. store: of c10d; None for one."""

    rank: int = 0
    size: int = 1
    store: Any = None
    silence: float = SILENCE
    _beaten: float = field(default=0.0, init=False)
    _beats: int = field(default=0, init=False)

    @classmethod
    def of_environment(cls) -> Ranks:
        """Return what torchrun's variables name, or one process. RunError where store or time-out is unusable."""
        if count_in("WORLD_SIZE", 1) < 2:
            return cls()
        from torch.distributed.distributed_c10d import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        text = os.environ.get("ROBUSTKIT_RANK_TIMEOUT", str(SILENCE))
        try:
            silence = float(text)
        except ValueError:
            silence = math.nan
        if not 0 < silence < math.inf:
            raise RunError(f"ROBUSTKIT_RANK_TIMEOUT {text!r}: expected seconds, above 0, such as 1800")
        try:
            store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=60)))
        except (RuntimeError, ValueError) as fault:
            line = (str(fault).splitlines() or [""])[0]
            raise RunError(
                f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but the other processes cannot be reached ({line}); start "
                "with torchrun, or unset WORLD_SIZE"
            ) from None
        return cls(rank, size, PrefixStore(_place(), store), silence)

    @property
    def leads(self) -> bool:
        return self.rank == 0

    def share(self, name: str, make: Callable[[], T]) -> T:
        """Return in all processes what the leader makes, in JSON types. Others raise RunError if it failed or hangs."""
        if self.store is None:
            return make()
        if self.leads:
            try:
                made = make()
            except BaseException as fault:
                self.store.set(f"failed {name}", f"{type(fault).__name__}: {fault}")
                raise
            self.store.set(f"made {name}", json.dumps(made))
            return made
        began = time.monotonic()
        while not self.store.check([f"made {name}"]):
            if self.store.check([f"failed {name}"]):
                raise LedError(f"the first process failed: {self.store.get(f'failed {name}').decode()}")
            if time.monotonic() - began > _PATIENCE * self.silence:
                raise RunError(f"the first process made no {name} in {_PATIENCE * self.silence:g} s; see its output")
            time.sleep(_POLL)
        shared: T = json.loads(self.store.get(f"made {name}"))
        return shared

    def draw(self, name: str, items: Sequence[T]) -> Iterator[T]:
        """Yield the items that this process is to do; each goes to one process, when it asks for the next."""
        if self.store is None:
            yield from items
            return
        while (place := self.store.add(f"drawn {name}", 1) - 1) < len(items):
            self.beat()
            yield items[place]

    def beat(self) -> None:
        if self.store is not None and time.monotonic() - self._beaten > 1:
            self._beaten, self._beats = time.monotonic(), self._beats + 1
            self.store.set(f"beat {self.rank}", str(self._beats))

    def finish(self) -> None:
        """Say that this process is done; the leader waits for all. Raises RunError as `meet`."""
        self.meet("done", waits=self.leads)

    def meet(self, name: str, waits: bool = True) -> None:
        """Say that this process has come to a place and, if it `waits`, wait until all have. RunError where one is
        silent for `silence` s.
        """
        if self.store is None:
            return
        self.store.set(f"{name} {self.rank}", "")
        if not waits:
            return
        heard = {rank: ("", time.monotonic()) for rank in range(self.size) if rank != self.rank}
        while heard:
            self.beat()
            for rank, (last, since) in list(heard.items()):
                if self.store.check([f"{name} {rank}"]):
                    del heard[rank]
                    continue
                beats = self.store.get(f"beat {rank}").decode() if self.store.check([f"beat {rank}"]) else ""
                if beats != last:
                    heard[rank] = beats, time.monotonic()
                elif time.monotonic() - since > self.silence:
                    raise RunError(
                        f"process {rank} of {self.size} has not responded for {self.silence:g} s and is considered "
                        "hung; its current work is not recorded: stop all processes and run the same command again"
                    )
            time.sleep(_POLL)


def is_follower() -> bool:
    try:
        return count_in("WORLD_SIZE", 1) > 1 and count_in("RANK", 0) > 0
    except RunError:  # said where the number is needed, and not where errors are printed
        return False


class LedError(RunError):
    """The leader failed and has printed why."""


_runs = itertools.count()


def _place() -> str:
    """Return the key prefix of this run in the store, which survives runs and restarts."""
    return f"robustkit {os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')} {next(_runs)}"


def is_own(fault: RobustkitError) -> bool:
    """Whether this process should print the error; the leader has printed its own."""
    return not isinstance(fault, LedError)


def line_prefix() -> str:
    """Return the prefix of the lines of a process that does not lead."""
    return f"[process {os.environ.get('RANK', '?')}] " if is_follower() else ""
