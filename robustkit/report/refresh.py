"""Rebuild the page and the summary of a run from its records alone."""

from __future__ import annotations

import msgspec

from ..errors import NothingEvaluated
from ..evaluations.results import Results
from ..results.summary import survey, write_summary
from ..runs.folder import RunFolder
from ..runs.manifest import BadImage


def refresh(run: RunFolder) -> Results:
    """Rebuild summary.json, summary.csv and report.html from the records; return the results.

    Raises:
        NothingEvaluated: there is no row, because every image was unreadable or nothing was computed yet.
    """
    results = summarised(run)
    write_page(run, results)
    return results


def summarised(run: RunFolder) -> Results:
    """Rebuild summary.json and summary.csv alone; return the results, with what the page shows besides."""
    manifest = run.manifest
    gathered = survey(run, for_page=True)
    bad = gathered.bad_images
    unread = tuple(BadImage(**sample) for sample in bad)
    if unread != manifest.bad_images:
        run.write_manifest(msgspec.structs.replace(manifest, bad_images=unread))
    return write_summary(run, gathered)


def write_page(run: RunFolder, results: Results) -> None:
    """Write report.html. results: from `summarised`. Raises NothingEvaluated as `refresh` does."""
    from .page import write_report

    write_report(run, results)
    if not len(results):
        bad = results.bad_images
        why = bad[0]["error"] if bad else "there are no records"
        called = run.manifest.protocol.samples.many
        raise NothingEvaluated(
            f"{run.path}: none of the {run.manifest.data.n} {called} was evaluated; the first: {why}"
        )
