"""Clauses of the sentence that says what a run found about a checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from .cells import Row, is_finite


@dataclass(frozen=True)
class Clause:
    """A statement about some conditions. rows: the results that it gives with their intervals."""

    text: str
    rows: tuple[Row, ...] = ()


def percent(value: float) -> str:
    """Return `93.3 %`."""
    return f"{100 * value:.1f} %"


def share(row: Row) -> str:
    """Return `93.3 % [84.1, 97.4]`."""
    low, high = row["ci_low"], row["ci_high"]
    bounds = f" [{100 * low:.1f}, {100 * high:.1f}]" if is_finite(low) and is_finite(high) else ""
    return percent(row["value"]) + bounds
