"""What the scripts that write pages share."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from robustkit.data.shapes import SIZES, draws_of, wears_its_own
from robustkit.errors import RobustkitError


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


def listed(words: Sequence[str]) -> str:
    """Return `a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def span(counts: Collection[int]) -> str:
    """Return `3`, or `2 to 5`: the smallest and the largest of numbers; '' of none."""
    return " to ".join(map(str, sorted({min(counts), max(counts)}))) if counts else ""


def shortcut() -> str:
    """Return what a model that looks at colour alone gets right on the generated shapes, and what follows."""
    own, every = sum(wears_its_own(draws_of("test", index)) for index in range(SIZES["test"])), SIZES["test"]
    return (
        f"On shapes, {own} of {every} test images wear the colour of their class, so that a model that looks at colour "
        f"alone is right on {100 * own / every:.0f} % at least. The four checkpoints that were tested go by the colour "
        "far more than by the outline ([one thing changed](what-models-need.md#one-thing-changed)). So clean top-1 of "
        "shapes can hardly tell formulas apart, and robustness there may be mostly that of looking at colours."
    )


def deliver(script: str, make: Callable[[], str], path: Path | None) -> int:
    """Print the page that `make` returns, and write it to `path` if there is one. Return the exit status.

    A RobustkitError becomes one line on standard error. script: the module's name, `scripts.pages.maps`.
    """
    try:
        written = make()
    except RobustkitError as error:
        print(f"{script}: {error}", file=sys.stderr)
        return error.exit_code
    print(written)
    if path:
        path.write_text(written, "utf-8")
    return 0
