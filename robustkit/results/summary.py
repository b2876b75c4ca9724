"""Records into results: value, n, 95 % interval, protocol and flags, for every checkpoint and condition of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from ..display.neutral import no_controls, no_formula
from ..evaluations.needed import check_plugins
from ..evaluations.rows import Parts, Reading
from ..runs.folder import SUMMARY_COLUMNS, RunFolder
from ..tasks.task import task_of


@dataclass(frozen=True)
class Survey:
    """What one reading of all records gives.

    rows: of summary.json, in the order of the run's checkpoints and conditions. unread: why a sample could not be read,
    by its id.
    """

    rows: list[dict[str, Any]]
    unread: dict[str, str]

    @property
    def bad_images(self) -> list[dict[str, str]]:
        """Samples that could not be read under some condition: id and reason."""
        return [{"sample_id": name, "error": self.unread[name]} for name in sorted(self.unread)]


def summarise(run: RunFolder) -> list[dict[str, Any]]:
    """The rows of summary.json, in the order of the run's checkpoints and conditions."""
    return survey(run).rows


def survey(run: RunFolder) -> Survey:
    """Reads each record once, and holds of one checkpoint at a time what several conditions are needed for."""
    manifest = run.manifest
    check_plugins(manifest)
    task = task_of(manifest)
    found: Parts = ([], [], [])
    unread: dict[str, str] = {}
    for checkpoint, units in groupby(run.units(), key=lambda unit: unit[0]):
        conditions = [condition for _, condition in units]
        reading = Reading(run, manifest, checkpoint, unread)
        parts = task.rows(reading, conditions)
        for rows, more in zip(found, parts, strict=True):
            rows += more
    return Survey([row for rows in found for row in rows], unread)


def write_summary(run: RunFolder, rows: Sequence[dict[str, Any]] | None = None) -> list[dict[str, Any]]:
    """Write summary.json and summary.csv from the records; returns the rows as `Run.summary` reads them.

    rows: of `survey`, where the records have been read already.
    """
    import csv
    import io

    rows = summarise(run) if rows is None else rows
    finite = [{name: _json_value(value) for name, value in row.items()} for row in rows]
    run.write_summary(finite)
    sheet = io.StringIO()
    writer = csv.DictWriter(sheet, SUMMARY_COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(_cells(row | {"flags": "; ".join(row["flags"])}) for row in finite)
    run.write(run.path / "summary.csv", sheet.getvalue().encode("utf-8", "replace"))
    return finite


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    return {name: no_controls(no_formula(value)) if isinstance(value, str) else value for name, value in row.items()}


def _json_value(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
