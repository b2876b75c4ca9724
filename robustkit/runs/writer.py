"""Write files while the next ones are computed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType

_AHEAD = 4


class Writer:
    """A thread that writes, one thing after the other; a context, which is left when all is written.

    What comes after a failure is not written. The failure is raised by the next `check` or `submit`, or on leaving.
    Where the context is left by another exception, what was submitted before is still written, since it is whole.

    ahead: what may wait; with more, `submit` waits.
    """

    def __init__(self, ahead: int = _AHEAD) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="robustkit-write")
        self._pending: deque[Future[None]] = deque()
        self._ahead = ahead
        self._failed = False

    def check(self) -> None:
        """Raise what a write has raised, if one has."""
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()

    def submit(self, write: Callable[[], None]) -> None:
        """Have something written. Raises what an earlier one raised."""
        while self._pending and (self._pending[0].done() or len(self._pending) >= self._ahead):
            self._pending.popleft().result()
        self._pending.append(self._pool.submit(self._carry_out, write))

    def _carry_out(self, write: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            write()
        except BaseException:
            self._failed = True
            raise

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()
        if kind is None:
            for pending in self._pending:
                pending.result()
