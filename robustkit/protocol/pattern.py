"""A condition as a rule names it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ConditionPattern:
    """The conditions that have every parameter given here.

    what: the corruption or the map; empty for others.
    """

    text: str
    name: str
    what: str = ""
    parameters: tuple[tuple[str, str], ...] = ()

    @property
    def given(self) -> dict[str, str]:
        """The parameters by name."""
        return dict(self.parameters)

    @property
    def pairs(self) -> list[str]:
        """The parameters as texts, `severity=3`."""
        return [f"{key}={value}" for key, value in self.parameters]
