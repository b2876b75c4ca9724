"""What the sentence about a checkpoint says about corruptions."""

from __future__ import annotations

from collections.abc import Iterator

from ...runs.manifest import Manifest
from ..cells import Cells, Row, is_whole
from ..metric import Metric
from ..sentence import Clause, percent, share
from .condition import parse_corrupted
from .measures import BENCHMARK
from .sets import SETS


def clauses(cells: Cells, manifest: Manifest, headline: Metric) -> Iterator[Clause]:
    """Yield the mean over the benchmark's set where there is one, else over the worst set, and the worst corruption.

    A metric of single samples gives errors, any other what is left of it. While records of some corruption are missing,
    the worst is that so far.
    """
    asked = [condition for condition in manifest.conditions if _is_single(condition)]
    so_far = "" if all(is_whole(cells.get((condition, headline.name))) for condition in asked) else " so far"
    worst = _worst_severity(cells, headline.name)
    if headline.binary:
        if (mean := _worst_mean(cells, "mean_error", 1)) is not None:
            most = _at(worst, headline, f",{so_far} most under")
            yield Clause(f"its error under corruption is {share(mean)} ({_of(mean, so_far)}){most}", (mean,))
        elif worst is not None:
            yield Clause(f"its error under corruption{_at(worst, headline, f' is{so_far} largest under')}")
    elif (kept := _worst_mean(cells, "retention", -1)) is not None:
        most = _at(worst, headline, f",{so_far} worst")
        yield Clause(f"corruption leaves {share(kept)} of it ({kept['condition']}){most}", (kept,))
    elif worst is not None:
        yield Clause(f"under corruption{_at(worst, headline, f' it is{so_far} lowest under')}")


def _worst_mean(cells: Cells, metric: str, sign: int) -> Row | None:
    """Return the mean over the benchmark's set if there is one, else the highest (sign 1) or lowest mean over a set."""
    means = [row for (condition, name), row in cells.items() if name == metric and _set(condition)]
    return max(means, key=lambda row: (_set(row["condition"]) == BENCHMARK, sign * row["value"]), default=None)


def _of(mean: Row, so_far: str) -> str:
    """Return `in-c`, or which of the sets has the highest mean."""
    name: str = mean["condition"]
    return name if _set(name) == BENCHMARK else f"mean over {name}, the worst set{so_far}"


def _set(condition: str) -> str:
    """Return the set of corruptions that a mean is over; empty for other conditions."""
    name = condition.partition("(")[0]
    return name if name in SETS else ""


def _worst_severity(cells: Cells, metric: str) -> Row | None:
    """Return the row of the corruption and severity with the worst result."""
    single = [row for (condition, name), row in cells.items() if name == metric and _is_single(condition)]
    return min(single, key=lambda row: float(row["value"]), default=None)


def _is_single(condition: str) -> bool:
    """Whether it is one corruption at one severity."""
    return condition.startswith("corruption(") and "severity=" in condition and "+" not in condition


def _at(row: Row | None, headline: Metric, start: str) -> str:
    if row is None:
        return ""
    part = parse_corrupted(row["condition"])
    assert part is not None
    value = percent(1 - row["value"]) if headline.binary else f"{headline.word} {percent(row['value'])}"
    return f"{start} {part.label} at severity {part.severity} with {value}"
