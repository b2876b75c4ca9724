"""Show estimates from two phases as a table."""

from __future__ import annotations

from ...display.table import TextTable
from ..cells import interval_cell
from ..family import family_of
from ..flags import short_names
from ..results import Results
from .condition import phases_of
from .measures import ESTIMATE, KEPT

_HEADINGS = (
    "checkpoint",
    "attack",
    "n",
    "first phase",
    "drawn",
    f"{KEPT.label} [95 %]",
    f"{ESTIMATE.label} [95 %]",
)
_NOTE = (
    "Two-phase: all n samples go through the first phase; of those that stand after it at most m, drawn at random, go "
    "through the rest of the attack. The interval of the estimate holds what both phases leave to chance."
)


def two_phase_tables(results: Results) -> list[TextTable]:
    """Return one table of all estimates, a row for each checkpoint and attack; none where there are none."""
    called = short_names(results.manifest.names)
    rows = []
    for row in results:
        phases = phases_of(row["condition"])
        if phases is None or row["metric"] != ESTIMATE.name:
            continue
        kept = results.cells[row["checkpoint"]].get((row["condition"], KEPT.name))  # none where nobody was drawn
        attack = family_of("two-phase").called(row["condition"], results.manifest)
        rows.append(
            (
                called[row["checkpoint"]],
                attack,
                str(row["n"]),
                phases.first,
                "0" if kept is None else str(kept["n"]),
                interval_cell(kept),
                interval_cell(row),
            )
        )
    return [TextTable("attacks in two phases", _HEADINGS, tuple(rows), (), _NOTE)] if rows else []
