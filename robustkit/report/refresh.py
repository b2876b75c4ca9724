"""A run as a page and as a terminal table, from its records alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..errors import NothingEvaluated
from ..evaluations.gaps import left_out_lines
from ..results.summary import survey, write_summary
from ..runs.folder import RunFolder
from ..runs.manifest import BadImage
from ..tasks.task import task_of


def refresh(run: RunFolder) -> list[dict[str, Any]]:
    """Make summary.json, summary.csv and report.html anew from the records; returns the summary's rows.

    Raises:
        NothingEvaluated: there is no row, because every image was unreadable or nothing was computed yet.
    """
    from .page import write_report

    manifest = run.manifest
    found = survey(run)
    bad = found.bad_images
    unread = tuple(BadImage(**sample) for sample in bad)
    if unread != manifest.bad_images:
        run.write_manifest(msgspec.structs.replace(manifest, bad_images=unread))
    rows = write_summary(run, found.rows)
    write_report(run, rows)
    if not rows:
        why = bad[0]["error"] if bad else "there are no records"
        raise NothingEvaluated(f"{run.path}: none of the {manifest.data.n} images was evaluated; the first: {why}")
    return rows


def flag_lines(run: RunFolder, results: Sequence[dict[str, Any]]) -> list[str]:
    """`⚑ checkpoint, condition: flag` for each flag, and what was left out."""
    lines = task_of(run.manifest).flag_lines(run, results)
    return [f"⚑ {line}" for line in (*lines, *left_out_lines(run))]
