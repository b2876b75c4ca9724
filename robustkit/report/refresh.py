"""A run as a page and as a terminal table, from its records alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..errors import NothingEvaluated
from ..evaluations.attention.tables import attention_tables
from ..evaluations.corruptions.tables import corruption_tables, left_out_lines
from ..evaluations.maps.tables import map_tables
from ..results.summary import survey, write_summary
from ..runs.folder import RunFolder, is_of_scenes
from ..tasks.classification.tables import table_rows
from ..tasks.segmentation.tables import scene_tables


def refresh(run: RunFolder) -> list[dict[str, Any]]:
    """Make summary.json, summary.csv and report.html anew from the records; returns the summary's rows.

    Raises:
        NothingEvaluated: there is no row, because every image was unreadable or nothing was computed yet.
    """
    from .page import write_report

    manifest = run.manifest
    found = survey(run)
    bad = found.bad_images
    if bad != manifest["bad_images"]:
        run.write_manifest(manifest | {"bad_images": bad})
    rows = write_summary(run, found.rows)
    write_report(run, rows)
    if not rows:
        why = bad[0]["error"] if bad else "there are no records"
        raise NothingEvaluated(
            f"{run.path}: none of the {manifest['data']['n']} images was evaluated; the first: {why}"
        )
    return rows


def flag_lines(run: RunFolder, results: Sequence[dict[str, Any]]) -> list[str]:
    """`⚑ checkpoint, condition: flag` for each flag, and what was left out."""
    lines = [f"⚑ {row[0]}, {row[2]}: {row[9]}" for row in table_rows(run, results) if row[9]]
    if not is_of_scenes(run):
        lines += [f"⚑ {table.checkpoint}, {flag}" for table in corruption_tables(results) for flag in table.flags]
    lines += dict.fromkeys(f"⚑ {table.checkpoint}, {flag}" for table in map_tables(results) for flag in table.flags)
    lines += (f"⚑ {flag}" for table in attention_tables(results) for flag in table.flags)
    lines += (f"⚑ {flag}" for table in scene_tables(results, run.manifest) for flag in table.flags)
    return [*lines, *(f"⚑ {line}" for line in left_out_lines(run))]
