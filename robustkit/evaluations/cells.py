"""Format rows of the summary as cells of tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Row = Mapping[str, Any]
Cells = Mapping[tuple[str, str], Row]
"""The rows of a checkpoint, by condition and metric."""


def by_checkpoint(rows: Iterable[Row], name_of: Callable[[str], str | None]) -> dict[str, dict[str, dict[str, Row]]]:
    """Return rows of the summary by checkpoint, condition as `name_of` calls it, and metric; without those that it
    calls None.
    """
    found: dict[str, dict[str, dict[str, Row]]] = {}
    for row in rows:
        if (name := name_of(row["condition"])) is not None:
            found.setdefault(row["checkpoint"], {}).setdefault(name, {})[row["metric"]] = row
    return found


LEFT_OUT = "left out of the mean"
"""Text in flags of single conditions that the flags of a mean over them repeat."""


def is_finite(value: float | None) -> bool:
    """Whether there is a value, and a finite one."""
    return value is not None and math.isfinite(value)


INCOMPLETE = "incomplete"
"""How the flag of a result begins while records of it are missing."""


def is_whole(row: Row | None) -> bool:
    """Whether there is a result, and no record of it is missing."""
    return row is not None and not any(flag.startswith(INCOMPLETE) for flag in row["flags"])


def finite(cells: Cells, condition: str, metric: str) -> float | None:
    """Return a value; None where there is none or it is not finite."""
    row = cells.get((condition, metric))
    return None if row is None or not is_finite(row["value"]) else float(row["value"])


def percent_cell(value: float | None) -> str:
    """Return `93.3`; a dash where there is no value."""
    return "–" if value is None else f"{100 * value:.1f}"


def interval_cell(row: Row | None) -> str:
    """Return `93.3 [84.1, 97.4]`; a dash where there is no row."""
    if row is None or not is_finite(row["value"]):
        return "–" if row is None else "nan"
    if not is_finite(row["ci_low"]):
        return percent_cell(row["value"])
    return f"{100 * row['value']:.1f} [{100 * row['ci_low']:.1f}, {100 * row['ci_high']:.1f}]"


def loss_cell(row: Row | None) -> str:
    """Return `1.234`; a dash where there is no row."""
    if row is None or not is_finite(row["value"]):
        return "–" if row is None else "nan"
    return f"{row['value']:.3f}"
