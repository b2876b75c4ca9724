"""Show the stages of attacks as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..results import Results
from .gradient_masking import Doubt
from .order import findings_of
from .stages import Stages, dossier_of

if TYPE_CHECKING:
    from rich.table import Table

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


def dossiers(results: Results) -> list[tuple[str, str, list[Doubt]]]:
    """Return the evidence on attacks, doubtful or not: checkpoint, condition, findings."""
    flags = {(row["checkpoint"], row["condition"]): row["flags"] for row in results}
    rows = []
    for unit, (n, stages) in results.gathered(Stages).by_unit.items():
        doubts = [*dossier_of(results.run, results.manifest, *unit, n, stages), *findings_of(flags.get(unit, []))]
        if doubts:
            rows.append((*unit, doubts))
    return rows


def terminal_stages(results: Results) -> Table | None:
    """Return the stages of all attacks that have any as one rich table; None if none has."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    tables = stage_tables(results)
    if not tables:
        return None
    table = Table(title="stages: each works on what the ones before left standing", title_justify="left")
    table.box = box.SIMPLE_HEAD
    for heading in ("checkpoint", "condition", *STAGE_HEADINGS):
        words = heading in ("checkpoint", "condition", "stage")
        table.add_column(heading, justify="left" if words else "right", overflow="fold", no_wrap=not words)
    for checkpoint, condition, rows in tables:
        for index, row in enumerate(rows):
            names = (checkpoint, condition) if index == 0 else ("", "")
            table.add_row(*map(Text, (*names, *row)), end_section=index + 1 == len(rows))
    return table
