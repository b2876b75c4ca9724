"""Pair checkpoints of run folders: which, whether they may be paired, and what a reader must know about it."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from ..errors import RunError, unknown
from ..evaluations.family import family_of
from ..evaluations.flags import Flagged
from ..evaluations.kinds import kind_of
from ..evaluations.needed import check_plugins
from ..evaluations.recorded import common_ids, nothing_common
from ..runs.folder import RunFolder
from ..runs.manifest import CheckpointEntry
from ..tasks.task import task_of
from .paired import Side, lacking
from .setups import checkpoint_changes, checkpoint_setup, run_changes, run_setup


def pairs(
    runs: Sequence[RunFolder], checkpoints: Collection[str] = (), against: str | None = None
) -> list[tuple[Side, Side]]:
    """Return which checkpoints are compared, each as (first, second); the difference is second minus first.

    For one run, its checkpoints against the first of them; for several, those of the later runs against those of the
    first run of the same name, or all against the first where a run shares no name. checkpoints: only these as second.
    against: the checkpoint of the first run that all are compared with.

    Raises:
        RunError: a name is unknown, or there is nothing to pair. PluginError: a run needs a plug-in that is not here.
    """
    for run in runs:
        check_plugins(run.manifest)
    names = [run.manifest.names for run in runs]
    for name in checkpoints:
        _known(name, runs, [checkpoint for group in names for checkpoint in group])
    if against is not None:
        _known(against, runs[:1], names[0])
    sides: dict[tuple[str, str], Side] = {}  # of a run that is given twice, the records are read once

    def side(run: RunFolder, name: str) -> Side:
        return sides.setdefault((str(run.path.resolve()), name), Side(run, name))

    base = side(runs[0], against or names[0][0])
    paired = []
    for place, (run, group) in enumerate(zip(runs, names, strict=True)):
        if place == 0 and len(runs) > 1:
            continue
        chosen = [name for name in group if not checkpoints or name in checkpoints]
        shared = [name for name in chosen if name in names[0]] if len(runs) > 1 and against is None else []
        if shared:
            paired += [(side(runs[0], name), side(run, name)) for name in shared]
        else:
            paired += [(base, side(run, name)) for name in chosen if len(runs) > 1 or name != base.checkpoint]
    if not paired and len(runs) == 1 and len(names[0]) == 1:
        raise RunError(
            f"{runs[0].path} holds one checkpoint, {names[0][0]}; expected two: give a second run, or audit another "
            "checkpoint into this one"
        )
    if not paired:
        raise RunError(
            f"{', '.join(sorted(checkpoints))}: nothing is left to compare with {base.checkpoint}; name another with "
            "--checkpoint or --against"
        )
    return paired


def _known(name: str, runs: Sequence[RunFolder], names: Sequence[str]) -> None:
    if name not in names:
        where = ", ".join(str(run.path) for run in runs)
        raise RunError(f"{where}: {unknown('checkpoint', name, dict.fromkeys(names))}")


def unpaired(runs: Sequence[RunFolder], checkpoints: Collection[str] = (), against: str | None = None) -> list[str]:
    """Return lines on checkpoints of later runs that `pairs` leaves out, because others of their run share a name."""
    first = runs[0].manifest.names
    lines = []
    for run in runs[1:] if against is None else ():
        every = run.manifest.names
        chosen = [name for name in every if not checkpoints or name in checkpoints]
        alone = [name for name in chosen if name not in first]
        if 0 < len(alone) < len(chosen):
            names = ", ".join(alone)
            lines.append(f"{names} of {run.path}: {runs[0].path} has none of that name; choose one with --against")
    return lines


def names_of(first: Side, second: Side) -> tuple[str, str]:
    """Return the names of both checkpoints, with their runs where these differ."""
    if first.run.path == second.run.path:
        return first.checkpoint, second.checkpoint
    return f"{first.checkpoint} of {first.run.path}", f"{second.checkpoint} of {second.run.path}"


def refuse(first: Side, second: Side, common: Sequence[str]) -> None:
    """Raise RunError where differences would mean nothing."""
    names, sides = names_of(first, second), (first, second)
    classes = [(side.manifest.data.classes, side.described.num_classes) for side in sides]
    for what, (before, after) in (
        ("is of", [task_of(side.manifest).name for side in sides]),
        ("is audited on images of", [f"{images} classes" for images, _ in classes]),
        ("has outputs for", [f"{outputs} classes" for _, outputs in classes]),
    ):
        if before != after:
            raise RunError(
                f"{names[0]} {what} {before}, {names[1]} {what} {after}; expected the same of both: name others with "
                "--checkpoint or --against"
            )
    if not common:
        raise RunError(
            f"{names[0]} and {names[1]} have records of no common condition; expected one such as clean: audit both "
            "under it"
        )
    if wrong := _other_truth(first, second, common[0]):
        raise RunError(f"{wrong}; expected the same data: audit both on it")


def _other_truth(first: Side, second: Side, condition: str) -> str:
    """Return which sample has another truth in the second run; empty if none. Raises RunError: none in common."""
    n, wrong = task_of(first.manifest).other_truth(first, second, condition)
    if not n:
        raise nothing_common(first, second, condition)
    return f"{' and '.join(names_of(first, second))}: {wrong}" if wrong else ""


def changed(first: CheckpointEntry, second: CheckpointEntry) -> Iterator[str]:
    """Yield how two checkpoints differ by intent: what is compared."""
    yield from checkpoint_changes(checkpoint_setup(first), checkpoint_setup(second))


def doubts(first: Side, second: Side, common: Sequence[str]) -> Iterator[str]:
    """Yield how two runs differ, besides in their checkpoints, and what else makes a difference mean less."""
    before, after = first.manifest, second.manifest
    digests = [str(manifest.data.digest)[:8] for manifest in (before, after)]
    if digests[0] != digests[1]:
        sizes = f"{before.data.n} and {after.data.n}"
        yield (
            f"data digest differs: {digests[0]} and {digests[1]}; {_in_common(first, second, common[0])} samples in "
            f"common, of {sizes}"
        )
    yield from run_changes(run_setup(before), run_setup(after), common)


def same_file(first: Side, second: Side) -> Iterator[str]:
    """Yield that both checkpoints are one file, if so."""
    digest = first.described.sha256
    if digest and digest == second.described.sha256:
        yield f"both are the same file (sha256 {digest[:12]})"


def _in_common(first: Side, second: Side, condition: str) -> int:
    task = task_of(first.manifest)
    return len(common_ids([task.ids(side, condition) for side in (first, second)]))


def flagged(first: Side, second: Side, shown: Collection[tuple[str, str]]) -> Iterator[Flagged]:
    """Yield the results of both sides that are compared, with their flags and those of what they lack."""
    for side, name in zip((first, second), names_of(first, second), strict=True):
        for row in side.results:
            if (row["condition"], row["metric"]) in shown:  # `incomplete` is as it was when the summary was made
                flags = (flag for flag in row["flags"] if not flag.startswith("incomplete"))
                yield Flagged(name, row["condition"], tuple(flags), side.manifest)
        for condition in dict.fromkeys(condition for condition, _ in shown):
            beside = family_of(kind_of(condition)).lacks(side.run, side.checkpoint, condition)
            lacks = filter(None, [lacking(side, condition), *beside])
            yield Flagged(name, condition, tuple(lacks), side.manifest)
