"""List what was asked of a run and is in none of its tables."""

from __future__ import annotations

from collections.abc import Iterator

from ..runs.folder import RunFolder
from .family import families


def left_out_lines(run: RunFolder, checkpoint: str | None = None) -> list[str]:
    """Return lines on images with unprintable names, on what could not be evaluated, and on conditions without any
    record.
    """
    manifest = run.manifest
    unnamed = [line for line in manifest.data.notes if "whose names" in line]
    lines = [line for family in families() for line in family.left_out(manifest)]
    return [*unnamed, *lines, *_without_records(run, checkpoint)]


def _without_records(run: RunFolder, checkpoint: str | None) -> Iterator[str]:
    manifest, done = run.manifest, set(run.units())
    for entry in manifest.checkpoints:
        gone = [condition for condition in manifest.conditions if (entry.name, condition) not in done]
        if gone and checkpoint in (None, entry.name):
            more = f" and {len(gone) - 3} more" if len(gone) > 3 else ""
            yield f"{entry.name} has no records under {', '.join(gone[:3])}{more}; the same command continues"
