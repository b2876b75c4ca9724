"""List what was asked of a run and is in none of its tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ..runs.description import repeat_of
from ..runs.folder import RunFolder
from .family import families, family_of
from .kinds import kind_of, words_of


@dataclass(frozen=True)
class Gap:
    """What an unfinished run lacks under a condition, or a group of them such as all severities of a corruption.

    called: what people call the condition. missing, units: shards of samples, over all checkpoints. fewest, most:
    samples that have a record, of the checkpoint and condition with the fewest and of that with the most.
    """

    called: str
    missing: int
    units: int
    fewest: int
    most: int

    @property
    def samples(self) -> str:
        """The number of samples that have a record, such as `64` or `0 to 64`."""
        return str(self.most) if self.fewest == self.most else f"{self.fewest} to {self.most}"


def gaps_of(run: RunFolder) -> list[Gap]:
    """Return what an unfinished run lacks, in the order of its conditions; nothing of a finished one."""
    manifest, missing, units = run.manifest, Counter[str](), Counter[str]()
    names: dict[str, str] = {}
    there: dict[str, list[int]] = {}
    for condition in manifest.conditions:
        group = words_of(condition).group(condition)
        names.setdefault(group, family_of(kind_of(group)).called(group, manifest))
        for checkpoint in manifest.names:
            units[group] += run.shard_count
            missing[group] += run.missing_units(checkpoint, condition)
            there.setdefault(group, []).append(manifest.data.n - run.lacking(checkpoint, condition))
    return [
        Gap(names[group], missing[group], units[group], min(there[group]), max(there[group]))
        for group in names
        if missing[group]
    ]


def unfinished(run: RunFolder, checkpoint: str | None = None) -> str:
    """Return a line that says what a run lacks, and the command that completes it; empty for a finished one.

    checkpoint: only what this one lacks.
    """
    missing, every = missing_units(run, checkpoint)
    what = "ends when its rules are decided" if run.manifest.is_sequential else "unfinished"
    return f"{what}: {missing} of {every} units are missing; {_completing(run)}" if missing else ""


def _completing(run: RunFolder) -> str:
    repeat = repeat_of(run.manifest.command)
    if repeat.why_not:
        return f"the same command completes it, which is not repeated here: {repeat.why_not}"
    return f"this completes it: {repeat.command}"


def missing_units(run: RunFolder, checkpoint: str | None = None) -> tuple[int, int]:
    """Return how many units of work have no record, and how many there are. checkpoint: only those of this one."""
    manifest = run.manifest
    wanted = manifest.names if checkpoint is None else [checkpoint]
    missing = sum(run.missing_units(name, condition) for name in wanted for condition in manifest.conditions)
    return missing, run.shard_count * len(wanted) * len(manifest.conditions)


def left_out_lines(run: RunFolder, checkpoint: str | None = None) -> list[str]:
    """Return lines on images with unprintable names, on what could not be evaluated, and on conditions without any
    record.
    """
    return [*not_evaluated(run), *_without_records(run, checkpoint)]


def not_evaluated(run: RunFolder) -> list[str]:
    """Return lines on images with unprintable names, and on what could not be evaluated, however often it is tried."""
    manifest = run.manifest
    unnamed = [line for line in manifest.data.notes if "whose names" in line]
    return [*unnamed, *(line for family in families() for line in family.left_out(manifest))]


def _without_records(run: RunFolder, checkpoint: str | None) -> Iterator[str]:
    manifest, done = run.manifest, set(run.units())
    for entry in manifest.checkpoints:
        gone = [condition for condition in manifest.conditions if (entry.name, condition) not in done]
        if gone and checkpoint in (None, entry.name):
            more = f" and {len(gone) - 3} more" if len(gone) > 3 else ""
            yield f"{entry.name} has no records under {', '.join(gone[:3])}{more}; the same command continues"
