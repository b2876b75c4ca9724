"""Draw the figures of a run's report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..display.section import Section
from ..display.svg import Figure, Style, style
from ..evaluations.cells import Row
from ..evaluations.results import Results
from ..tasks.task import task_of

if TYPE_CHECKING:
    from ..runs.folder import RunFolder

SECTIONS = (
    *("samples", "results", "attacks", "distances", "transfers", "corruptions"),
    *("calibration", "classes", "stages", "doubts"),
    *("segmentation", "maps", "two-objects", "regions", "counterfactuals", "attention"),
    *("logits", "comparison", "unread", "reproduce"),
)
"""The sections of the page in order. One with another name follows `logits`."""


def looks_of(run: RunFolder) -> dict[str, Style]:
    """Return the style of each checkpoint, the same in all figures."""
    return {checkpoint.name: style(place) for place, checkpoint in enumerate(run.manifest.checkpoints)}


def sections_of(run: RunFolder, rows: Sequence[Row]) -> list[Section]:
    """Return the sections of the page that show the results, in the order of a page. rows: of the summary."""
    results = Results.of(run, rows).changed(_with_none)
    return in_order(task_of(results.manifest).sections(results, looks_of(run)))


def in_order(sections: Iterable[Section]) -> list[Section]:
    """Return sections in the order of a page."""
    last = SECTIONS.index("logits")
    return sorted(
        sections, key=lambda section: SECTIONS.index(section.name) if section.name in SECTIONS else last + 0.5
    )


def figures(run: RunFolder, rows: Sequence[Row]) -> list[Figure]:
    """Return all figures of a run, in the order of a page. rows: of its summary."""
    return [figure for section in sections_of(run, rows) for figure in section.figures]


def _with_none(row: Row) -> Row:
    """Return a row with None for nan, as the summary's JSON has it."""
    return {key: None if isinstance(value, float) and value != value else value for key, value in row.items()}
