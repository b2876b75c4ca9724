"""What the scripts that write pages share."""

from __future__ import annotations

import math
from collections.abc import Sequence


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, the heading first, its columns aligned for readers of the source."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def whole_percent(share: float) -> str:
    """Return `93` for 0.934; a dash for nan."""
    return f"{100 * share:.0f}" if math.isfinite(share) else "–"
