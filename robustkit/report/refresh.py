"""Rebuild the page and the summary of a run from its records, and make one run of several parts."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from msgspec import UNSET
from msgspec.structs import replace

from ..common.files import locked
from ..common.plugins import plugin_session
from ..data.metadata import FROM_IDS, Grouping, read_metadata
from ..errors import DamagedRecord, NothingEvaluated, RunError
from ..evaluations.aggregate import Results
from ..evaluations.parts import missing_by_part
from ..results.survey import survey, write_summary
from ..runs.description import why_not_repeated, without_option
from ..runs.folder import RunFolder, refuse_links
from ..runs.kept_images import remove_adversarials
from ..runs.manifest import BadImage
from ..runs.merging import gather_parts, refuse_damaged
from ..runs.metadata import (
    SampleMetadata,
    columns_of,
    metadata_of_run,
    sample_ids,
    write_metadata,
)
from .run import Run


@plugin_session()
def refresh(run: RunFolder, by: Sequence[str] = ()) -> Results:
    """Rebuild summary.json, summary.csv and report.html from the records; return the results. by: columns whose slices
    the page has a table of, `camera,daylight` meaning both together. Raises NothingEvaluated where there is no row,
    because every image was unreadable or nothing was computed yet; RunError for an unknown column.
    """
    results = rebuild_summary(run)
    write_page(run, results, by)
    return results


def report(
    run: RunFolder | str | Path,
    metadata: str | Path | None = None,
    by: str | Sequence[str] = (),
    groups: str | None = None,
    groups_from: str | None = None,
) -> Run:
    """Rebuild summary and report of a run folder from its records, without a model; return the run, which shows both.

    Args:
        run: a run folder.
        metadata: a CSV of samples and columns of your own, kept in the run in place of an earlier one.
        by: columns whose slices the page has a table of, such as `["camera", "camera,daylight"]`.
        groups: a column, such as `patient`, kept in the run: samples of one value may resemble each other, so that
            intervals and tests are of groups; `none`: each stands for itself.
        groups_from: a regular expression that finds the group of a sample in its id, likewise.

    Returns:
        The run.

    Raises:
        RunError: no run, damaged records, or an unknown column.
        NothingEvaluated: there is no row.
        DataError: the table is not one of this run.

    Example:
        >>> run = robustkit.report("runs/reference", by="class")
        >>> (run.path / "report.html").exists()
        True
    """
    result = Run.existing(run.path if isinstance(run, RunFolder) else run)
    keep_metadata(result, None if metadata is None else Path(metadata), Grouping.of(groups, groups_from))
    refresh(result, [by] if isinstance(by, str) else by)
    return result


def keep_metadata(run: RunFolder, table: Path | None, grouping: Grouping | None = None) -> None:
    """Keep the columns of a CSV in a run, in place of earlier ones, and how its samples are grouped; what is not given
    stays. Raises DataError as `read_metadata` and `Grouping.names`, RunError where
    a sample has no record yet."""
    if table is None and grouping is None:
        return
    try:
        earlier = metadata_of_run(run)
    except DamagedRecord:
        if table is None:
            raise
        earlier = None
    ids: list[str] = sample_ids(run) if earlier is None else earlier["sample_id"].to_pylist()
    columns, groups = ({}, "") if earlier is None else columns_of(earlier)
    column = {groups: columns[groups]} if groups else {}
    if table is not None:
        arguments = run.manifest.arguments
        whole = arguments.get("limit") is None and arguments.get("ids") is None
        columns = read_metadata(table, ids, str(run.path), whole)
    if grouping is None and groups:
        columns, grouping = column | columns, Grouping(groups)
    elif grouping is not None and grouping.column != FROM_IDS and groups == FROM_IDS and table is None:
        columns.pop(FROM_IDS)
    write_metadata(run, SampleMetadata.of(ids, columns, grouping))


def rebuild_summary(run: RunFolder) -> Results:
    """Rebuild summary.json and summary.csv alone; return the results, with what the page shows besides."""
    manifest = run.manifest
    gathered = survey(run, for_page=True)
    unread = tuple(BadImage(**sample) for sample in gathered.bad_images)
    if unread != manifest.bad_images:
        run.write_manifest(replace(manifest, bad_images=unread))
    return write_summary(run, gathered)


def write_page(run: RunFolder, results: Results, by: Sequence[str] = ()) -> None:
    """Write report.html. results: from `rebuild_summary`. by: as of `refresh`. Raises NothingEvaluated where there is
    no row."""
    from .page import write_report

    write_report(run, results, by)
    if not len(results):
        why = next((bad["error"] for bad in results.bad_images), "there are no records")
        called = f"{run.manifest.data.n} {run.manifest.protocol.samples.many}"
        raise NothingEvaluated(f"{run.path}: none of the {called} was evaluated; the first: {why}")


_NAMED = 3  # parts that an error names


@plugin_session()
def merge(runs: str | Path | Sequence[str | Path], out: str | Path | None = None) -> Run:
    """Check that all units of a run are there, once and whole, and make summary and report.

    The records have the bytes that one process writes. Segmentation's sheet of examples needs a model: the command
    without `part` draws it.

    Args:
        runs: the folder that all parts wrote to, or the folders of all parts.
        out: the folder of the run; if left out, the first of `runs`, which then gets the files of the others.

    Returns:
        The run.

    Raises:
        RunError: units are missing, a file is damaged, two parts differ, a part is of another run or still at work.
        NothingEvaluated: no sample could be evaluated.

    Example:
        >>> options = dict(attacks="none", limit=4, shard_size=2, batch_size=2, setup_check=False, out="runs/parts")
        >>> for part in ("1/2", "2/2"):
        ...     run = robustkit.audit("zoo:shapes-vit-quest", "embedded:shapes", part=part, **options)
        >>> robustkit.merge("runs/parts").results().n.unique().tolist()
        [4]
    """
    paths = [runs] if isinstance(runs, str | Path) else list(runs)
    parts = [Run.existing(path) for path in paths]
    run = Run(paths[0] if out is None else out)
    with ExitStack() as held:
        for path in dict.fromkeys(each.path.resolve() for each in (run, *parts)):
            held.enter_context(locked(path))
        refuse_links(run.path)
        run.sweep()
        if {each.path.resolve() for each in parts} == {run.path.resolve()}:
            refuse_damaged(run)
        else:
            gather_parts(run, parts)
        _refuse_missing(run)
        run.write_manifest(replace(run.manifest, parts=UNSET))
        if not run.manifest.keeps_adversarials:
            remove_adversarials(run)
        refresh(run)
        run.forget_refusal()
    return run


def _refuse_missing(run: Run) -> None:
    """Raise RunError where units have no record: which, of which part, and the command that makes them."""
    manifest = run.manifest
    count = 1 if manifest.parts is UNSET else manifest.parts
    if not (missing := missing_by_part(run, count)):
        return
    units = run.shard_count * len(manifest.pairs)
    first = {number: f"{some[0]}{'; …' if len(some) > 1 else ''}" for number, some in missing.items()}
    parts = [f"part {number}/{count} lacks {len(some)} ({first[number]})" for number, some in missing.items()]
    more = f", and {len(parts) - _NAMED} more parts" if len(parts) > _NAMED else ""
    why_not = why_not_repeated(manifest.command)
    command = f"the same command ({why_not})"
    if not why_not:  # here is what the second phase of an attack waits for, whichever folders it came from
        command = shlex.join([*without_option(shlex.split(manifest.command), "--out"), "--out", str(run.path)])
    option = f" --part {next(iter(missing))}/{count}" if count > 1 else ""
    these = "those of the first of these parts" if len(missing) > 1 else "them"
    raise RunError(
        f"{run.path}: {sum(map(len, missing.values()))} of {units} units are missing: "
        f"{', '.join(parts[:_NAMED])}{more}; this makes {these}: {command}{option}"
    )
