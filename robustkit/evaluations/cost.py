"""What a condition costs before anything was measured, in passes of a sample through the model. Loads no torch."""

from __future__ import annotations

from dataclasses import dataclass

BACKWARD = 1.5
"""Forwards that a backward to the input takes as long as, on a ViT on a CPU; measured seconds soon replace it."""
_REACHED = 0.3
"""Share of an upper bound that is expected, since samples leave when they fall."""


@dataclass(frozen=True)
class Cost:
    """What one sample costs under a condition.

    forwards, backwards: passes through the model. extra: other work, in forwards. at_most: whether the passes are an
    upper bound, because a sample leaves once it has fallen.
    """

    forwards: float = 1.0
    backwards: float = 0.0
    extra: float = 0.0
    at_most: bool = False

    def __add__(self, other: Cost) -> Cost:
        return Cost(
            self.forwards + other.forwards,
            self.backwards + other.backwards,
            self.extra + other.extra,
            self.at_most or other.at_most,
        )

    def __mul__(self, times: float) -> Cost:
        return Cost(self.forwards * times, self.backwards * times, self.extra * times, self.at_most)

    def __str__(self) -> str:
        """Forwards + backwards."""
        return f"{'at most ' * self.at_most}{self.forwards:.0f} + {self.backwards:.0f}"

    @property
    def most(self) -> float:
        """All of it in forwards, by what a backward usually takes."""
        return self.forwards + BACKWARD * self.backwards + self.extra

    @property
    def expected(self) -> float:
        """What is expected of it, in forwards."""
        return self.most * (_REACHED if self.at_most else 1.0)
