"""What attacks leave, and what speaks for and against their results, as tables of the page."""

from __future__ import annotations

from collections.abc import Sequence

from ...display.grid import Grid, Part, side_by_side
from ..kinds import words_of
from ..results import Results
from ..support import support_grids
from .tables import STAGE_HEADINGS, STRENGTH_HEADINGS, STRENGTH_NOTE, dossiers, stage_tables, strength_rows
from .vocabulary import VOCABULARY


def stage_grids(results: Results) -> list[Grid]:
    """Return what stands after each stage, all checkpoints side by side."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    for checkpoint, condition, stages in stage_tables(results):
        rows.setdefault(checkpoint, []).extend((condition, *row) for row in stages)
    headings = ("condition", *STAGE_HEADINGS)
    parts = [Part(checkpoint, headings, tuple(lines)) for checkpoint, lines in rows.items()]
    return side_by_side("Samples that stand after each stage", parts, keys=2, headline=STAGE_HEADINGS[1])


def strength_grids(results: Results) -> list[Grid]:
    """Return how much of what all attacks broke each broke itself, and the figures of attacks on a part of the samples
    that others support, all checkpoints side by side.
    """
    parts = [Part(name, STRENGTH_HEADINGS, tuple(rows)) for name, rows in strength_rows(results).items()]
    title = "How strong the attacks were"
    strengths = side_by_side(title, parts, headline=STRENGTH_HEADINGS[1], note=STRENGTH_NOTE)
    return [*strengths, *support_grids(results, lambda text: words_of(text) is VOCABULARY)]


def dossier_grids(results: Results) -> list[Grid]:
    """Return the checks that found something, then, folded, the others."""
    flagged, passed = list[tuple[str, ...]](), list[tuple[str, ...]]()
    for checkpoint, condition, findings in dossiers(results):
        for finding in findings:
            said = "" if finding.flag else "not measured" if finding.figure == "not measured" else "nothing found"
            row = (finding.check, checkpoint, condition, finding.figure)
            (flagged if finding.flag else passed).append((*row, f"⚑ {finding.flag}" if finding.flag else said))
    return [*_grid("Checks that found something", flagged), *_grid("Checks that found nothing", passed, folded=True)]


def _grid(title: str, rows: Sequence[tuple[str, ...]], folded: bool = False) -> list[Grid]:
    headings = ("check", "checkpoint", "condition", "measured", "verdict")
    names = list(dict.fromkeys(row[0] for row in rows))
    ordered = tuple(sorted(rows, key=lambda row: names.index(row[0])))
    return [Grid(f"{title}: {len(rows)}", headings, ordered, 3, folded=folded)] if rows else []
