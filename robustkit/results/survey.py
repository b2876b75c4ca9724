"""Turn records into results: value, n, 95 % interval, protocol and flags for each checkpoint and condition."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable
from itertools import groupby
from typing import Any

from ..common.figure import COLUMNS, OF_GROUPS, Figure
from ..common.finding import Finding
from ..common.plugins import plugin_session
from ..display.svg import Style, style
from ..display.text import no_controls, no_formula
from ..errors import RunError
from ..evaluations.aggregate import Parts, RecordReader, Results
from ..evaluations.condition import BriefRow
from ..evaluations.family import by_family
from ..evaluations.records import check_plugins
from ..runs.folder import RunFolder
from ..tasks.task import task_of
from .slices import WeakSlices


@plugin_session()
def survey(run: RunFolder, for_page: bool = False) -> Results:
    """Return the results of a run, in the order of its checkpoints and conditions; each record is read once. for_page:
    also gather what sections of the page show."""
    manifest = run.manifest
    check_plugins(manifest)
    task = task_of(manifest)
    collected: Parts = ([], [], [])
    unread: dict[str, str] = {}
    kinds = (*task.gatherers(manifest), WeakSlices) if for_page else ()
    gatherers = {kind: kind(run) for kind in kinds}
    for checkpoint, units in groupby(run.units(), key=lambda unit: unit[0]):
        parts = task.rows(
            RecordReader(run, manifest, checkpoint, unread, gatherers), [condition for _, condition in units]
        )
        for rows, more in zip(collected, parts, strict=True):
            rows += more
    every = Results(run, [row for rows in collected for row in rows], unread, gatherers)
    mixed = several_versions(run)
    return every.changed(lambda figure: figure.having(mixed)) if mixed else every


def written_results(run: RunFolder) -> Results:
    """Return the rows of summary.json; computed from the records where that file is missing or was altered."""
    try:
        return Results(run, run.summary())
    except RunError:
        return survey(run)


def several_versions(run: RunFolder) -> list[Finding]:
    """Return a finding where the records that were read are of several versions of what computes."""
    by_name: dict[str, list[str]] = {}
    for name, version in sorted(run.made_with):
        by_name.setdefault(name, []).append(version)
    versions = ", ".join(f"{name} {' and '.join(some)}" for name, some in by_name.items() if len(some) > 1)
    return [Finding.of("run/several-versions", versions=versions)] if versions else []


def brief_rows(results: Results, place: str) -> list[BriefRow]:
    """Return the rows of a place for which some checkpoint has a number, in the order of families."""
    manifest, headline = results.manifest, task_of(results.manifest).headline_metric
    keys = dict.fromkeys((row.condition, row.metric) for row in results)
    rows = list[BriefRow]()
    for family, conditions in by_family(dict.fromkeys(condition for condition, _ in keys)):
        texts = set(conditions)
        rows += family.presenter.brief([key for key in keys if key[0] in texts], manifest, headline)
    return [row for row in rows if place in row.places and (row.condition, row.metric.name) in keys]


def doubts_of(rows: Iterable[Figure]) -> dict[Finding, list[str]]:
    """Return each doubt and limit of results, with the conditions that have it."""
    doubts: dict[Finding, dict[str, None]] = {}
    for row in rows:
        for finding in row.findings:
            if finding.counts:
                doubts.setdefault(finding, {})[row.condition] = None
    return {finding: list(conditions) for finding, conditions in doubts.items()}


def looks_of(run: RunFolder) -> dict[str, Style]:
    """Return the style of each checkpoint in all figures of a run."""
    return {checkpoint.name: style(place) for place, checkpoint in enumerate(run.manifest.checkpoints)}


def write_summary(run: RunFolder, results: Results | None = None) -> Results:
    """Write summary.json and summary.csv; return the results. results: from `survey`."""
    results = survey(run) if results is None else results
    run.write_summary(results)
    run.write(run.path / "summary.csv", summary_csv(results).encode("utf-8", "replace"))
    return results


def summary_csv(results: Iterable[Figure]) -> str:
    sheet, figures = io.StringIO(), list(results)
    more = OF_GROUPS if any(figure.groups for figure in figures) else ()
    writer = csv.DictWriter(sheet, (*COLUMNS, *more), lineterminator="\n")
    writer.writeheader()
    writer.writerows(_cells(figure.to_plain() | {"flags": "; ".join(map(str, figure.findings))}) for figure in figures)
    return sheet.getvalue()


def _cells(row: dict[str, Any]) -> dict[str, Any]:
    return {name: no_controls(no_formula(value)) if isinstance(value, str) else value for name, value in row.items()}
