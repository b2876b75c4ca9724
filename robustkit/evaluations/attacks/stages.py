"""What each stage of an attack left standing and what it cost; the dossier of evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...common.intervals import wilson
from ...runs.folder import RunFolder
from ..results import Gatherer
from ..rows import Number, column_of, readable
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


def stage_numbers(read: pa.Table) -> Iterator[Number]:
    """Yield the share of samples that stands after each stage, for the results."""
    n = len(read)
    for stage in stages_of(read):
        yield f"top1_after_{stage.name}", stage.standing / n, n, *wilson(stage.standing, n)


class Stages(Gatherer):
    """What stands after each stage of the attacks of a run, in which attacks without stages have none.

    found: by checkpoint and condition the number of samples and the stages.
    """

    def __init__(self, manifest: Mapping[str, Any]) -> None:
        super().__init__(manifest)
        self.found: dict[tuple[str, str], tuple[int, list[StageCounts]]] = {}

    def wants(self, checkpoint: str, condition: str) -> bool:
        return condition in self.manifest.get("claims", {}) or condition in self.manifest.get("evidence", [])

    def needs(self, column: str) -> bool:
        return is_stage_column(column)

    def take(self, checkpoint: str, condition: str, read: pa.Table) -> None:
        self.found[checkpoint, condition] = len(read), stages_of(read)


def dossier(run: RunFolder, checkpoint: str, condition: str) -> list[Doubt]:
    """Return what speaks for and against the result of an attack; empty where no evidence was asked for."""
    read = readable(run.table(checkpoint, condition, is_stage_column))
    return dossier_of(run, run.manifest, checkpoint, condition, len(read), stages_of(read))


def dossier_of(
    run: RunFolder,
    manifest: Mapping[str, Any],
    checkpoint: str,
    condition: str,
    n: int,
    stages: Sequence[StageCounts],
) -> list[Doubt]:
    """Return the same of n samples, of which some stand after each stage."""
    if condition not in manifest.get("evidence", []):
        return []
    figures = run.evidence(checkpoint, condition)
    if figures is None:
        return [NO_EVIDENCE]
    standing = {stage.name: stage.standing for stage in stages}
    return findings(figures, standing, n=n, averaged="version=rand" in condition)
