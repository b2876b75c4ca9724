"""The table of an attack's stages."""

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
    """Return for each attack in stages its checkpoint, condition and rows of texts under `STAGE_HEADINGS`."""
    tables = []
    for (checkpoint, condition), (_, stages) in results.gathered(Stages).found.items():
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
    """Return what raises doubt about attacks, or does not: checkpoint, condition, findings."""
    flags = {(row["checkpoint"], row["condition"]): row["flags"] for row in results}
    found = []
    for unit, (n, stages) in results.gathered(Stages).found.items():
        doubts = [*dossier_of(results.run, results.manifest, *unit, n, stages), *findings_of(flags.get(unit, []))]
        if doubts:
            found.append((*unit, doubts))
    return found


def terminal_stages(results: Results) -> Table | None:
    """Return the stages of all attacks that have some as one rich table; None if there are none."""
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
