"""What each stage of an attack left standing, and its cost; the dossier of evidence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ...common.intervals import wilson
from ...runs.folder import RunFolder
from ..rows import Gatherer, Number, column_of, readable
from .gradient_masking import NO_EVIDENCE, Doubt, findings

if TYPE_CHECKING:
    import pyarrow as pa

    from ...runs.manifest import Manifest


@dataclass(frozen=True)
class StageCounts:
    """A stage of an attack: samples that stand after it, and the total of its passes."""

    name: str
    standing: int
    forwards: int
    backwards: int
    seconds: float | None = None


def is_stage_column(column: str) -> bool:
    return column in ("error", "broken_by") or column.startswith(("forwards ", "backwards "))


def stages(run: RunFolder, checkpoint: str, condition: str) -> list[StageCounts]:
    """Return the stages of an attack, with the seconds of each where known; empty for an attack without stages."""
    counts = stages_of(readable(run.table(checkpoint, condition, is_stage_column)))
    seconds = run.stage_seconds(checkpoint, condition) if counts else {}
    return [replace(stage, seconds=seconds.get(stage.name)) for stage in counts]


def stages_of(read: pa.Table) -> list[StageCounts]:
    names = [name.removeprefix("forwards ") for name in read.column_names if name.startswith("forwards ")]
    often = Counter(read["broken_by"].to_pylist() if names else ())
    standing, counts = len(read), []
    for name in names:
        standing -= often[name]
        passes = (int(np.nansum(column_of(read, f"{what} {name}"))) for what in ("forwards", "backwards"))
        counts.append(StageCounts(name, standing, *passes))
    return counts


def stage_numbers(read: pa.Table) -> Iterator[Number]:
    """Yield the share of samples that stands after each stage, for the results."""
    n = len(read)
    for stage in stages_of(read):
        yield f"top1_after_{stage.name}", stage.standing / n, n, *wilson(stage.standing, n)


class Stages(Gatherer):
    """What stands after each stage of the attacks of a run; attacks without stages have an empty list.

    by_unit: by checkpoint and condition, the number of samples and the stages.
    """

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(manifest)
        self.by_unit: dict[tuple[str, str], tuple[int, list[StageCounts]]] = {}

    def wants(self, checkpoint: str, condition: str) -> bool:
        return condition in self.manifest.claims or condition in self.manifest.evidence

    def needs(self, column: str) -> bool:
        return is_stage_column(column)

    def take(self, checkpoint: str, condition: str, read: pa.Table) -> None:
        self.by_unit[checkpoint, condition] = len(read), stages_of(read)


def dossier(run: RunFolder, checkpoint: str, condition: str) -> list[Doubt]:
    """Return what speaks for and against the result of an attack; empty where no evidence was asked for."""
    read = readable(run.table(checkpoint, condition, is_stage_column))
    return dossier_of(run, run.manifest, checkpoint, condition, len(read), stages_of(read))


def dossier_of(
    run: RunFolder,
    manifest: Manifest,
    checkpoint: str,
    condition: str,
    n: int,
    stages: Sequence[StageCounts],
) -> list[Doubt]:
    """Return the same for n samples, of which some stand after each stage."""
    if condition not in manifest.evidence:
        return []
    figures = run.evidence(checkpoint, condition)
    if figures is None:
        return [NO_EVIDENCE]
    standing = {stage.name: stage.standing for stage in stages}
    return findings(figures, standing, n=n, averaged="version=rand" in condition)
