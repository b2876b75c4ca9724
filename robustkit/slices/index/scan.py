"""List all runs beneath a folder for an index: run.json and summary.json of each, no record. Links are not followed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ...common.figure import Figure
from ...common.files import bytes_of, write_whole
from ...errors import RunError
from ...evaluations.condition import name_of, words_of
from ...evaluations.family import by_family
from ...evaluations.metrics import Cells
from ...evaluations.presenting import chief_figures, missing_units
from ...results.pairing import RunSetup, checkpoint_setup, run_setup
from ...results.survey import doubts_of
from ...runs.folder import OWN, OWN_PICTURES, RunFolder, refuse_link
from ...runs.manifest import Manifest
from ...tasks import find_metric
from ...tasks.task import task_of

_DEEPEST = 32


@dataclass
class Found:
    """Paths relative to the folder, in the order of their names. closed: folders that cannot be read, and why."""

    runs: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    closed: dict[str, str] = field(default_factory=dict)


def find_runs(folder: Path) -> Found:
    """Return the folders beneath `folder`, and itself, that hold a run.json."""
    listing, waiting = Found(), [("", 0)]
    while waiting:
        here, depth = waiting.pop()
        try:
            with os.scandir(folder / here) as entries:
                listed = sorted(entries, key=lambda entry: entry.name)
        except OSError as fault:
            listing.closed[here or "."] = fault.strerror or str(fault)
            continue
        is_run = any(entry.name == "run.json" for entry in listed)
        if is_run:
            listing.runs.append(here or ".")
        inner = list[tuple[str, int]]()
        for entry in listed:
            path = f"{here}/{entry.name}" if here else entry.name
            if entry.name.startswith(".") or (is_run and entry.name in (*OWN, *OWN_PICTURES)):
                continue
            if entry.is_symlink():
                listing.links.append(path)
            elif entry.is_dir() and depth < _DEEPEST:
                inner.append((path, depth + 1))
        waiting += reversed(inner)
    return listing


PAGE, FOLDER = "index.html", ".robustkit-view"
MARK = "<!-- written by robustkit view, which overwrites it -->"
CACHE_MARK = '{"written_by":"robustkit view"'


def write_file(folder: Path, name: str, text: str) -> Path:
    """Write a page or the cache, whole; return where. Raises RunError for a link, a foreign file, or without access."""
    path, remedy = index_place(folder, name), "view a folder that you may write"
    write_whole(path, text.encode("utf-8", "replace"), durable=False, remedy=remedy)
    return path


def index_place(folder: Path, name: str) -> Path:
    """Return where a file of an index may be written. Raises RunError as `write_index`, but not without access."""
    path = folder / name
    refuse_link(path, folder)
    if os.path.lexists(path) and not is_own_file(path):
        remedy = "move it, or view another folder"
        raise RunError(f"{path} was not written by robustkit view and is not overwritten; {remedy}")
    return path


def is_own_file(path: Path) -> bool:
    try:
        start = bytes_of(path)[:200].decode("utf-8", "replace") if not path.is_symlink() else ""
    except OSError:
        return False
    return MARK in start or start.startswith(CACHE_MARK)


_FOLDERS = 200_000  # of records: checkpoints × conditions of a run; an honest one has a few thousand at most
_FLAGS = 12  # that are kept of a checkpoint
Whole = Annotated[int, Meta(ge=0, lt=1 << 53)]


class Indexed(msgspec.Struct, frozen=True):
    """A figure, as a row of summary.json. chief: whether it sums up the run. called: what people call its condition."""

    row: dict[str, Any]
    family: str
    chief: bool
    called: str

    @property
    def figure(self) -> Figure:
        return Figure.from_plain(self.row)


class IndexCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint of a run. setup: how it was built and is shown images. flags: the first of `flagged` many."""

    name: str
    attention: str
    sha256: str
    setup: dict[str, str]
    figures: tuple[Indexed, ...]
    flags: tuple[str, ...]
    flagged: Whole


class IndexRun(msgspec.Struct, frozen=True):
    """What an index shows of a run. total: samples of which n were chosen, or n. missing: units of work without a
    record, of units. problem: why no results. gate: what the last check said, and its policy."""

    started: str
    task: str
    card: str
    data: str
    n: Whole
    total: Whole
    data_digest: str
    setup: RunSetup
    checkpoints: tuple[IndexCheckpoint, ...]
    missing: Whole
    units: Whole
    problem: str
    report: bool
    gate: tuple[str, str]

    @property
    def is_whole(self) -> bool:
        return not self.missing and not self.problem


def read_run(path: Path) -> IndexRun:
    """Return what an index shows of a run. Raises RunError where run.json cannot be read, or something is a link."""
    run = RunFolder(path)
    manifest = run.manifest
    folders = len(manifest.checkpoints) * len(manifest.conditions)
    if folders > _FOLDERS:
        why = "no audit is that large"
        raise RunError(f"{run.manifest_path}: {folders} folders of records, more than {_FOLDERS}; {why}")
    missing, units = missing_units(run)
    rows, problem = _results(run)
    cells: dict[str, dict[tuple[str, str], Figure]] = {name: {} for name in manifest.names}
    for row in rows:
        if row.checkpoint in cells:
            cells[row.checkpoint][row.key] = row
    figures, checkpoints = _figures(manifest, cells), list[IndexCheckpoint]()
    for entry in manifest.checkpoints:
        doubts = doubts_of(row for row in rows if row.checkpoint == entry.name).items()
        flags = [f"{flag} ({texts[0] if len(texts) == 1 else f'{len(texts)} conditions'})" for flag, texts in doubts]
        values = tuple(figures[entry.name]), tuple(flags[:_FLAGS]), len(flags)
        digest = str(entry.sha256 or "")
        checkpoints.append(IndexCheckpoint(entry.name, entry.attention, digest, checkpoint_setup(entry), *values))
    return IndexRun(
        started=manifest.started,
        task=manifest.protocol.task,
        card=manifest.protocol.tag,
        data=manifest.data.name,
        n=manifest.data.n,
        total=total if isinstance(total := manifest.data.total, int) else manifest.data.n,
        data_digest=manifest.data.digest,
        setup=run_setup(manifest),
        checkpoints=tuple(checkpoints),
        missing=missing,
        units=units,
        problem=problem,
        report=(path / "report.html").is_file(),
        gate=(gate["outcome"], gate["policy"]) if (gate := run.gate()) else ("", ""),
    )


def _results(run: RunFolder) -> tuple[list[Figure], str]:
    if not os.path.lexists(run.path / "summary.json"):
        return [], "no results yet: robustkit report makes them of the records that are there"
    try:
        rows = run.summary()
    except RunError as fault:
        return [], str(fault).removeprefix(f"{run.path / 'summary.json'}: ")
    return rows, "" if rows else "no sample was evaluated"


def _figures(manifest: Manifest, cells: Mapping[str, Cells]) -> dict[str, list[Indexed]]:
    """Return the figures of each checkpoint that a policy could have a rule on, the chief ones among them."""
    chief = {(figure.condition, figure.metric) for figure in chief_figures(cells.values(), task_of(manifest).headline)}
    texts = dict.fromkeys(text for own in cells.values() for text, _ in own)
    family_of = {text: family.name for family, some in by_family(texts) for text in some}
    result: dict[str, list[Indexed]] = {}
    for name, figures in cells.items():
        result[name] = [
            Indexed(row.to_plain() | {"flags": ()}, family_of[text], row.key in chief, name_of(text, "table", manifest))
            for (text, metric), row in figures.items()
            if row.is_finite
            if (text, metric) in chief or _is_kept(text, metric)
        ]
    return result


def _is_kept(text: str, metric: str) -> bool:
    definition = find_metric(metric)
    return definition is not None and definition.drafted and words_of(text).in_results and "severity=" not in text


VERSION = metadata.version("robustkit-audit")  # what was read or compared by another version is not used
_READ_BY = f"{VERSION}, with verdicts of gates"
_CACHE = f"{FOLDER}/cache.json"
Stamp = tuple[tuple[tuple[int, int, int], ...], str]
"""Inode, time and size of the files that an entry is made from, and a digest of the folders of its records."""


class Kept(msgspec.Struct, frozen=True):
    stamp: Stamp
    run: IndexRun


class _Cache(msgspec.Struct, frozen=True):
    written_by: Literal["robustkit view"]
    version: str
    runs: dict[str, Kept]


@dataclass(frozen=True)
class Listed:
    """What was found beneath a folder, by path relative to it; runs: the newest first. unreadable: why. links: not
    followed."""

    runs: dict[str, IndexRun]
    stamps: dict[str, Stamp]
    unreadable: dict[str, str]
    links: list[str]


def list_runs(folder: Path) -> Listed:
    """Read all runs beneath a folder, except for those that the cache has. A run that cannot be read stops no other."""
    listing, earlier = find_runs(folder), _kept(folder)
    runs, stamps, unreadable = dict[str, IndexRun](), dict[str, Stamp](), dict(listing.closed)
    for name in listing.runs:
        try:
            stamps[name] = stamp = _stamp(folder / name)
            old = earlier.get(name)
            runs[name] = old.run if old is not None and old.stamp == stamp else read_run(folder / name)
        except Exception as fault:  # whatever a folder of someone else holds spoils its own line only
            unreadable[name] = (str(fault) or type(fault).__name__).removeprefix(f"{folder / name}/")
    order = sorted(runs, key=lambda name: (runs[name].started, name), reverse=True)
    return Listed({name: runs[name] for name in order}, stamps, unreadable, listing.links)


def write_cache(folder: Path, listed: Listed) -> None:
    """Write what was read of finished runs, for the next time. Raises RunError as `write_index`."""
    whole = {name: Kept(listed.stamps[name], run) for name, run in listed.runs.items() if run.is_whole}
    write_file(folder, _CACHE, msgspec.json.encode(_Cache("robustkit view", _READ_BY, whole)).decode())


def _kept(folder: Path) -> dict[str, Kept]:
    path = folder / _CACHE
    try:
        refuse_link(path, folder)
        cache = msgspec.json.decode(bytes_of(path), type=_Cache)
    except Exception:  # missing, another version's, or altered: everything is read
        return {}
    return cache.runs if cache.version == _READ_BY else {}


def _stamp(path: Path) -> Stamp:
    """Return what changes with an entry's files, and with which records are there. Raises OSError, RunError for a
    link."""
    run, stamps = RunFolder(path), list[tuple[int, int, int]]()
    for name in (run.manifest_path.name, "summary.json", "report.html", "gate.json"):
        refuse_link(path / name, path)
        try:
            status = (path / name).stat()
            stamps.append((status.st_ino, status.st_mtime_ns, status.st_size))
        except FileNotFoundError:
            stamps.append((0, 0, 0))
    return tuple(stamps), run.records_stamp()
