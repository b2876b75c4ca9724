"""What each stage of an attack left standing and what it cost; the dossier of evidence."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ...runs.folder import RunFolder
from ...runs.manifest import Manifest
from ..rows import column_of, readable
from .gradient_masking import NO_EVIDENCE, Doubt, findings

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class StageCounts:
    """A stage of an attack: samples that stand after it, and the passes that it made in all."""

    name: str
    standing: int
    forwards: int
    backwards: int
    seconds: float | None = None


def is_stage_column(column: str) -> bool:
    return column in ("error", "broken_by") or column.startswith(("forwards ", "backwards "))


def stages(run: RunFolder, checkpoint: str, condition: str) -> list[StageCounts]:
    """The stages of an attack, with the seconds of each where they are known; none for an attack in one piece."""
    found = stages_of(readable(run.table(checkpoint, condition, is_stage_column)))
    seconds = run.stage_seconds(checkpoint, condition) if found else {}
    return [replace(stage, seconds=seconds.get(stage.name)) for stage in found]


def stages_of(read: pa.Table) -> list[StageCounts]:
    names = [name.removeprefix("forwards ") for name in read.column_names if name.startswith("forwards ")]
    often = Counter(read["broken_by"].to_pylist() if names else ())
    standing, found = len(read), []
    for name in names:
        standing -= often[name]
        passes = (int(np.nansum(column_of(read, f"{what} {name}"))) for what in ("forwards", "backwards"))
        found.append(StageCounts(name, standing, *passes))
    return found


def dossier(run: RunFolder, checkpoint: str, condition: str) -> list[Doubt]:
    """What speaks for and against the result of an attack; empty where no evidence was asked for."""
    manifest = run.manifest
    if condition not in manifest.evidence:
        return []
    read = readable(run.table(checkpoint, condition, is_stage_column))
    return dossier_of(run, manifest, checkpoint, condition, read)


def dossier_of(run: RunFolder, manifest: Manifest, checkpoint: str, condition: str, read: pa.Table) -> list[Doubt]:
    if condition not in manifest.evidence:
        return []
    figures = run.evidence(checkpoint, condition)
    if figures is None:
        return [NO_EVIDENCE]
    standing = {stage.name: stage.standing for stage in stages_of(read)}
    return findings(figures, standing, n=len(read), averaged="version=rand" in condition)
