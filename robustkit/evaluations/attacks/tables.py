"""The table of an attack's stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...runs.folder import RunFolder
from .gradient_masking import Doubt
from .order import findings_of
from .stages import dossier, stages

if TYPE_CHECKING:
    from rich.table import Table

STAGE_HEADINGS = ("stage", "standing", "forwards", "backwards", "seconds")


def stage_tables(run: RunFolder) -> list[tuple[str, str, list[tuple[str, ...]]]]:
    """Return, for each attack in stages, its checkpoint, condition and rows of texts under `STAGE_HEADINGS`."""
    tables, claims = [], run.manifest.claims
    for checkpoint, condition in run.units():
        if condition not in claims:
            continue  # not an attack: nothing of it needs to be read
        rows: list[tuple[str, ...]] = [
            (
                stage.name,
                str(stage.standing),
                f"{stage.forwards:,}",
                f"{stage.backwards:,}",
                "–" if stage.seconds is None else f"{stage.seconds:.1f}",
            )
            for stage in stages(run, checkpoint, condition)
        ]
        if rows:
            tables.append((checkpoint, condition, rows))
    return tables


def dossiers(run: RunFolder, results: Sequence[Mapping[str, Any]]) -> list[tuple[str, str, list[Doubt]]]:
    """Return what raises doubt about attacks, or does not: checkpoint, condition, findings."""
    flags = {(row["checkpoint"], row["condition"]): row["flags"] for row in results}
    entries = ((*unit, [*dossier(run, *unit), *findings_of(flags.get(unit, []))]) for unit in run.units())
    return [entry for entry in entries if entry[2]]


def terminal_stages(run: RunFolder) -> Table | None:
    """Return the stages of all attacks that have some as one rich table; None if there are none."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    tables = stage_tables(run)
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
