"""Listen to the progress of a run."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """A listener to the progress of a run."""

    def start(self, checkpoint: str, condition: str, samples: int) -> None: ...
    def advance(self, samples: int) -> None: ...
    def stage(self, name: str, standing: int, share: float) -> None: ...
