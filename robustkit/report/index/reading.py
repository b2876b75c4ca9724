"""Read what an index shows of a run: run.json and summary.json, and which records are there. No record is opened."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from ...errors import RunError
from ...evaluations.cells import Cells, Row
from ...evaluations.chief import chief_figures
from ...evaluations.family import by_family
from ...evaluations.gaps import missing_units
from ...evaluations.kinds import words_of
from ...results.setups import RunSetup, checkpoint_setup, run_setup
from ...runs.folder import RunFolder
from ...runs.manifest import Manifest
from ...tasks.measures import find_metric
from ...tasks.task import task_of

_FOLDERS = 200_000  # of records: checkpoints × conditions of a run; an honest one has a few thousand at most
_FLAGS = 12  # that are kept of a checkpoint
Whole = Annotated[int, Meta(ge=0, lt=1 << 53)]


class ResultRow(msgspec.Struct, frozen=True):
    """A row of summary.json. That of someone else may hold anything."""

    checkpoint: str
    condition: str
    metric: str
    n: Whole
    value: float | None
    ci_low: float | None
    ci_high: float | None
    flags: tuple[str, ...]


class IndexFigure(msgspec.Struct, frozen=True):
    """A figure with its 95 % interval (None where there is none). chief: whether it sums up the run."""

    family: str
    condition: str
    metric: str
    value: float
    low: float | None
    high: float | None
    n: Whole
    chief: bool


class IndexCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint of a run. setup: how it was built and is shown images. flags: the first of them; flagged: how many
    there are.
    """

    name: str
    attention: str
    sha256: str
    setup: dict[str, str]
    figures: tuple[IndexFigure, ...]
    flags: tuple[str, ...]
    flagged: Whole


class IndexRun(msgspec.Struct, frozen=True):
    """What an index shows of a run.

    missing: units of work without a record, of units. problem: why there are no results.
    """

    started: str
    task: str
    card: str
    data: str
    n: Whole
    data_digest: str
    setup: RunSetup
    checkpoints: tuple[IndexCheckpoint, ...]
    missing: Whole
    units: Whole
    problem: str
    report: bool

    @property
    def is_whole(self) -> bool:
        """Whether all its records are there, and its results."""
        return not self.missing and not self.problem


def read_run(path: Path) -> IndexRun:
    """Return what an index shows of the run in a folder.

    Raises:
        RunError: run.json cannot be read, or something of the run is a link.
    """
    run = RunFolder(path)
    manifest = run.manifest
    folders = len(manifest.checkpoints) * len(manifest.conditions)
    if folders > _FOLDERS:
        raise RunError(
            f"{run.manifest_path}: {folders} folders of records, more than {_FOLDERS}; no audit is that large"
        )
    missing, units = missing_units(run)
    rows, problem = _results(run)
    by_checkpoint: dict[str, list[ResultRow]] = {name: [] for name in manifest.names}
    for row in rows:
        by_checkpoint.setdefault(row.checkpoint, []).append(row)
    figures = _figures(manifest, by_checkpoint)
    report = run.path / "report.html"
    return IndexRun(
        started=manifest.started,
        task=manifest.protocol.task,
        card=manifest.protocol.tag,
        data=manifest.data.name,
        n=manifest.data.n,
        data_digest=manifest.data.digest,
        setup=run_setup(manifest),
        checkpoints=tuple(
            IndexCheckpoint(
                entry.name,
                entry.attention,
                str(entry.sha256 or ""),
                checkpoint_setup(entry),
                tuple(figures[entry.name]),
                tuple(flags[:_FLAGS]),
                len(flags),
            )
            for entry in manifest.checkpoints
            for flags in [_flags(by_checkpoint[entry.name])]
        ),
        missing=missing,
        units=units,
        problem=problem,
        report=report.is_file() and not report.is_symlink(),
    )


def _results(run: RunFolder) -> tuple[list[ResultRow], str]:
    """Return the rows of summary.json, or why there are none."""
    if not os.path.lexists(run.path / "summary.json"):
        return [], "no results yet: robustkit report makes them of the records that are there"
    try:
        rows = msgspec.convert(run.summary(), list[ResultRow])
    except RunError as fault:
        return [], str(fault).removeprefix(f"{run.path / 'summary.json'}: ")
    except msgspec.ValidationError as fault:
        return [], f"summary.json is not as an audit writes it ({fault}); robustkit report rebuilds it"
    return rows, "" if rows else "no sample was evaluated"


def _figures(manifest: Manifest, rows: dict[str, list[ResultRow]]) -> dict[str, list[IndexFigure]]:
    """Return the figures of each checkpoint that a policy could have a rule on, the chief ones among them."""
    cells: dict[str, Cells] = {
        name: {(row.condition, row.metric): _as_row(row) for row in rows.get(name, [])} for name in manifest.names
    }
    chief = {(figure.condition, figure.metric) for figure in chief_figures(cells.values(), task_of(manifest).headline)}
    texts = dict.fromkeys(text for own in cells.values() for text, _ in own)
    family_of = {text: family.name for family, some in by_family(texts) for text in some}
    result: dict[str, list[IndexFigure]] = {}
    for name, own in cells.items():
        result[name] = [
            IndexFigure(
                *(family_of[text], text, metric, float(row["value"]), row["ci_low"], row["ci_high"], row["n"]),
                (text, metric) in chief,
            )
            for (text, metric), row in own.items()
            if row["value"] is not None and math.isfinite(row["value"])
            if (text, metric) in chief or _is_kept(text, metric)
        ]
    return result


def _is_kept(text: str, metric: str) -> bool:
    definition = find_metric(metric)
    return definition is not None and definition.drafted and words_of(text).in_results and "severity=" not in text


def _as_row(row: ResultRow) -> Row:
    return {field: getattr(row, field) for field in row.__struct_fields__}


def _flags(rows: Sequence[ResultRow]) -> list[str]:
    """Return the flags that raise a doubt, each once, with the conditions that have it."""
    seen: dict[str, dict[str, None]] = {}
    for row in rows:
        for flag in row.flags:
            if not words_of(row.condition).is_remark(flag):
                seen.setdefault(flag, {})[row.condition] = None
    return [
        f"{flag} ({next(iter(texts)) if len(texts) == 1 else f'{len(texts)} conditions'})"
        for flag, texts in seen.items()
    ]
