"""Show the stages of attacks as tables."""

from __future__ import annotations

from collections.abc import Iterator

from ...display.table import TextTable
from ..cells import interval_cell
from ..kinds import words_of
from ..results import Results
from ..support import support_tables
from .gradient_masking import Doubt
from .order import findings_of
from .stages import Stages, dossier_of
from .terms import FOUND
from .vocabulary import VOCABULARY

STRENGTH_HEADINGS = ("condition", "found of all broken % [95 %]", "broken by any")
STRENGTH_NOTE = (
    "Of the samples right when clean that any attack of the run in the same norm broke within the radius, the share "
    "that this attack broke itself."
)
STAGE_HEADINGS = ("stage", "standing", "forwards", "backwards", "seconds")


def stage_tables(results: Results) -> list[tuple[str, str, list[tuple[str, ...]]]]:
    """Return the checkpoint, condition and rows of texts under `STAGE_HEADINGS` of each attack in stages."""
    tables = []
    for (checkpoint, condition), (_, stages) in results.gathered(Stages).by_unit.items():
        seconds = results.run.stage_seconds(checkpoint, condition) if stages else {}
        rows: list[tuple[str, ...]] = [
            (
                *(stage.name, str(stage.standing), f"{stage.forwards:,}", f"{stage.backwards:,}"),
                f"{seconds[stage.name]:.1f}" if stage.name in seconds else "–",
            )
            for stage in stages
        ]
        if rows:
            tables.append((checkpoint, condition, rows))
    return tables


def strength_rows(results: Results) -> dict[str, list[tuple[str, ...]]]:
    """Return the rows of texts under `STRENGTH_HEADINGS`, by checkpoint, of attacks that have others to compare."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    for row in results:
        if row["metric"] == FOUND.name:
            rows.setdefault(row["checkpoint"], []).append((row["condition"], interval_cell(row), str(row["n"])))
    return rows


def dossiers(results: Results) -> list[tuple[str, str, list[Doubt]]]:
    """Return the evidence on attacks, doubtful or not: checkpoint, condition, findings."""
    flags = {(row["checkpoint"], row["condition"]): row["flags"] for row in results}
    rows = []
    for unit, (n, stages) in results.gathered(Stages).by_unit.items():
        doubts = [*dossier_of(results.run, results.manifest, *unit, n, stages), *findings_of(flags.get(unit, []))]
        if doubts:
            rows.append((*unit, doubts))
    return rows


def terminal_stages(results: Results) -> Iterator[TextTable]:
    """Yield the stages of all attacks that have any as one table, and how much of what was broken each attack found."""
    every = [(checkpoint, condition, row) for checkpoint, condition, rows in stage_tables(results) for row in rows]
    if every:
        title = "stages: each works on what the ones before left standing"
        rows = tuple((f"{checkpoint}, {condition}", *row) for checkpoint, condition, row in every)
        yield TextTable(title, ("", *STAGE_HEADINGS), rows).under_heads([row[0] for row in rows])
    if found := strength_rows(results):
        lines = [(f"{checkpoint}, {row[0]}", *row[1:]) for checkpoint, rows in found.items() for row in rows]
        yield TextTable("how strong the attacks were", ("", *STRENGTH_HEADINGS[1:]), tuple(lines), note=STRENGTH_NOTE)
    yield from support_tables(results, lambda text: words_of(text) is VOCABULARY)
