"""Listen to the progress of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from ..protocol.condition import Condition


class Progress(Protocol):
    """A listener to the progress of a run."""

    def start(self, checkpoint: str, condition: str, samples: int) -> None: ...
    def advance(self, samples: int) -> None: ...
    def stage(self, name: str, standing: int, share: float) -> None: ...


@runtime_checkable
class Follower(Progress, Protocol):
    """A listener that also shows how far the whole run is: `overall` returns a line that says so, at any time."""

    def follow(self, overall: Callable[[], str]) -> None: ...


@runtime_checkable
class Finder(Progress, Protocol):
    """A listener that also shows the headline figure of each finished condition, such as `top-1 87.5 %`."""

    def found(self, checkpoint: str, condition: str, figure: str) -> None: ...


class Watch(Progress, Protocol):
    """A listener that also hears which condition a unit of work is of, and when its record is there."""

    def begin(self, checkpoint: str, condition: Condition, samples: int) -> None: ...
    def written(self, checkpoint: str, condition: Condition) -> None: ...
