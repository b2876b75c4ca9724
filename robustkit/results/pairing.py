"""Pair checkpoints of run folders: which, whether they may be compared, and how they differ on the same samples."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
from msgspec import UNSET

from ..common.differences import Difference
from ..common.figure import INCOMPLETE, Figure
from ..common.finding import Finding
from ..common.names import IN_MEMORY
from ..common.plugins import plugin_session
from ..errors import RunError, unknown
from ..evaluations.attacks.ranking import missing_evidence
from ..evaluations.condition import pattern_of, vocabulary_of, words_of
from ..evaluations.presenting import Concerned
from ..evaluations.records import CheckpointRecords, check_plugins, common_ids, nothing_common
from ..protocol.condition import ConditionPattern, split_list
from ..runs.folder import RunFolder
from ..runs.manifest import CheckpointEntry, Manifest
from ..tasks.task import task_of
from .survey import written_results


class RunSetup(msgspec.Struct, frozen=True):
    """What a run decides for all its checkpoints. values: texts by name. rounding: likewise, what changes figures by
    rounding only, unless something is defective. files, cards: by condition, digests of the files that it reads (empty
    for none) and of what it uses of the card."""

    values: dict[str, str]
    rounding: dict[str, str]
    files: dict[str, str]
    cards: dict[str, str]


def run_setup(manifest: Manifest) -> RunSetup:
    deciding, digests = manifest.deciding, manifest.corrupted.digests
    values = {name: str(getattr(deciding, name)) for name in ("seed", "dtype")}
    values["engine"] = str(manifest.arguments.get("engine") or "robustkit")
    if manifest.data.unjudged is not UNSET:
        values["labels that do not count"] = " ".join(map(str, manifest.data.unjudged)) or "none"
    values["use of maps of wrong predictions"] = "scored" if manifest.keep_misclassified else "left out"
    values |= {f"source of plug-in {plugin.name}": f"{plugin.source[:12]}…" for plugin in manifest.used_plugins}
    files = {text: digests.get(text, "")[:16] for text in manifest.conditions}
    cards = {text: manifest.card_digest(text)[:16] for text in manifest.conditions}
    versions = {f"version of {name}": text for name, text in manifest.made_with.items()}
    return RunSetup(values, {"compile": str(deciding.compile), **versions}, files, cards)


def checkpoint_setup(entry: CheckpointEntry) -> dict[str, str]:
    """Return how a checkpoint was built and is shown images, as texts by name: formula, architecture, preprocessing."""
    plain = entry.to_plain()
    windows = plain.get("windows") or {}
    values = {
        **{key: plain[key] for key in ("attention", "arch")},
        **plain["preprocessing"],
        **{f"window {key}": value for key, value in windows.items()},
        **{f"heads' {key}": value for key, value in heads_setup(entry).items()},
        **{key: plain[key] for key in ("num_classes", "weights")},
        **{key: plain["metadata"][key] for key in ("classes", "prompts") if "text_sha256" in plain["metadata"]},
        "code": (entry.code_sha256 or "none")[:12],
        "label map": "none"
        if entry.label_map is UNSET
        else f"{entry.label_map['name']} {entry.label_map['sha256'][:12]}",
    }
    return {key.replace("_", " "): _text(key, value) for key, value in values.items()}


def heads_setup(entry: CheckpointEntry) -> dict[str, str]:
    """Return how the heads of features were made, and from which images, as texts by name; empty without heads."""
    heads = {} if entry.heads is UNSET else entry.heads
    return {key.replace("_", " "): _text(key, value) for key, value in heads.items()}


def _text(key: str, value: Any) -> str:
    return ("×" if "size" in key else " ").join(map(str, value)) if isinstance(value, list) else str(value)


def checkpoint_changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str]:
    """Return `crop pct 1.0 instead of 0.875` for each part of a `checkpoint_setup` that is another one, by its name."""
    texts = {name: (before.get(name, "none"), after.get(name, "none")) for name in {**after, **before}}
    return {name: f"{name} {here} instead of {there}" for name, (there, here) in texts.items() if there != here}


def run_changes(before: RunSetup, after: RunSetup, conditions: Collection[str] | None = None) -> list[Finding]:
    """Return a finding for each value that both have in two ways, and for other parts of the card, or other files, of
    some conditions; by default of all that both have."""
    findings = []
    for code, ours, theirs in (
        ("compare/setup", before.values, after.values),
        ("compare/rounding", before.rounding, after.rounding),
    ):
        both = [(name, text, theirs[name]) for name, text in ours.items() if name in theirs]
        findings += [Finding.of(code, name=name, first=one, second=other) for name, one, other in both if one != other]
    texts = [text for text in before.files if text in after.files] if conditions is None else conditions
    cards = ((text, before.cards.get(text, ""), after.cards.get(text, "")) for text in texts)
    other_cards = [(text, there[:8], here[:8]) for text, there, here in cards if there != here]
    for text, there, here in other_cards[:1]:
        findings.append(Finding.of("compare/card", conditions=f"{text}{_more(other_cards)}", first=there, second=here))
    changed = [text for text in texts if before.files.get(text, "") != after.files.get(text, "")]
    return [*findings, *(Finding.of("compare/files", conditions=f"{text}{_more(changed)}") for text in changed[:1])]


def _more(items: Collection[object]) -> str:
    return f" and {len(items) - 1} more" if len(items) > 1 else ""


_IDENTITY = ("sha256", "arch", "code_sha256", "attention", "preprocessing", "weights", "windows", "heads", "label_map")


@dataclass(frozen=True)
class Side(CheckpointRecords):
    """A checkpoint of a run, with its results."""

    @property
    def sides(self) -> tuple[Side, ...]:
        """Itself; of a method its trainings."""
        return (self,)

    @cached_property
    def results(self) -> list[Figure]:
        """Its rows of summary.json; computed from the records where that file is missing or was altered."""
        return [row for row in written_results(self.run) if row.checkpoint == self.checkpoint]


def paired_difference(first: Side, second: Side, condition: str, metric: str = "top1") -> Difference:
    """Return how `second` differs from `first`, whose runs the caller found comparable, under a condition. metric: of
    the task or the condition's family. Infinite losses make the difference nan; one checkpoint differs from itself by 0
    exactly. Raises RunError where records are missing, no sample is common, or there is no such metric."""
    difference = task_of(first.manifest).difference(first, second, condition, metric)
    if difference.value == 0 and same_identity(first.described, second.described):
        return replace(difference, ci_low=0.0, ci_high=0.0)
    return difference


def missing_records(side: Side, condition: str, metric: str = "") -> list[Finding]:
    """Return which records a side lacks for a figure under a condition, of the first condition that it needs."""
    n = side.manifest.data.n
    for text in words_of(condition).needs(condition, metric, side.manifest.conditions):
        if gone := side.run.lacking(side.checkpoint, text):
            return [
                Finding.of(INCOMPLETE, have=n - gone, expected=f"{n} samples under {text}".removesuffix(" samples"))
            ]
    return []


def missing_command(manifest: Manifest, name: str, pattern: ConditionPattern, out: Path) -> str:
    """Return the command that also evaluates a condition of a checkpoint into the same run, whose folder is `out`.

    It has the options of the run. Of a run in memory it is the program that made it; empty where no option is known.
    """
    spec, asked = manifest.checkpoint(name).spec, manifest.arguments
    options, specs = asked.get("options"), asked.get("checkpoints")
    if not isinstance(options, dict) or not isinstance(specs, list):  # of another version, or altered
        return ""
    options = dict(options)
    if any(str(text).startswith(IN_MEMORY) for text in (spec, *options.values())):
        return manifest.command
    words = [*vocabulary_of(pattern.name).command(pattern, pattern_of), "--"]
    for flag, value in pairwise(words):
        if flag.startswith("--") and (flag, value) != ("--attacks", "none"):  # those of the run are there
            usual = options.get(flag)
            if value.startswith("--"):
                options[flag] = True
            elif flag not in _SINGLE and isinstance(usual, str) and usual != "none":
                options[flag] = ",".join(dict.fromkeys((*split_list(usual), value)))
            else:
                options[flag] = value
    command = ["robustkit", task_of(manifest).command, *map(str, specs if spec in specs else [spec])]
    for flag, value in options.items():
        for text in value if isinstance(value, list) else [value]:
            command += [flag] if text is True else [flag, str(text)]
    return shlex.join([*command, "--out", str(out)])


_SINGLE = ("--data-dir", "--constants", "--variant")  # options that hold no list


def same_identity(first: CheckpointEntry, second: CheckpointEntry) -> bool:
    """Whether two descriptions are of one checkpoint, shown images in one way: differences are 0 on any samples."""
    before, after = first.to_plain(), second.to_plain()
    return all(before.get(key) == after.get(key) for key in _IDENTITY) and not first.answers_gap(second)


@plugin_session()
def checkpoint_pairs(
    runs: Sequence[RunFolder], checkpoints: Collection[str] = (), against: str | None = None
) -> list[tuple[Side, Side]]:
    """Return which checkpoints are compared, as (first, second): of one run the others against its first, of several
    those of a name that the first run has, or all against its first. checkpoints: only these as second. against: the
    checkpoint of the first run to compare with. Raises RunError, PluginError."""
    for run in runs:
        check_plugins(run.manifest)
    names = [run.manifest.names for run in runs]
    for name in checkpoints:
        _refuse_unknown(name, runs, [checkpoint for group in names for checkpoint in group])
    if against is not None:
        _refuse_unknown(against, runs[:1], names[0])
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
        remedy = "expected two: give a second run, or audit another checkpoint into this one"
        raise RunError(f"{runs[0].path} holds one checkpoint, {names[0][0]}; {remedy}")
    if not paired:
        message = f"{', '.join(sorted(checkpoints))}: nothing is left to compare with {base.checkpoint}"
        raise RunError(f"{message}; choose others with --checkpoint or --against")
    return paired


def _refuse_unknown(name: str, runs: Sequence[RunFolder], names: Sequence[str]) -> None:
    if name not in names:
        where = ", ".join(str(run.path) for run in runs)
        raise RunError(f"{where}: {unknown('checkpoint', name, dict.fromkeys(names))}")


def unpaired_lines(
    runs: Sequence[RunFolder], checkpoints: Collection[str] = (), against: str | None = None
) -> list[str]:
    """Return lines on checkpoints of later runs that `checkpoint_pairs` leaves out: their run has two of a name."""
    first = runs[0].manifest.names
    lines = []
    for run in runs[1:] if against is None else ():
        chosen = [name for name in run.manifest.names if not checkpoints or name in checkpoints]
        alone = [name for name in chosen if name not in first]
        if 0 < len(alone) < len(chosen):
            names = ", ".join(alone)
            lines.append(f"{names} of {run.path}: {runs[0].path} has none of that name; choose one with --against")
    return lines


def pair_names(first: Side, second: Side) -> tuple[str, str]:
    """Return the names of both checkpoints, with their runs where these differ."""
    if first.run.path == second.run.path:
        return first.checkpoint, second.checkpoint
    return f"{first.checkpoint} of {first.run.path}", f"{second.checkpoint} of {second.run.path}"


def refuse_incomparable(first: Side, second: Side, common: Sequence[str]) -> None:
    names, sides = pair_names(first, second), (first, second)
    classes = [(side.manifest.data.classes, side.described.num_classes) for side in sides]
    for what, (before, after) in (
        ("is of", [task_of(side.manifest).name for side in sides]),
        ("is audited on images of", [f"{images} classes" for images, _ in classes]),
        ("has outputs for", [f"{outputs} classes" for _, outputs in classes]),
    ):
        if before != after:
            remedy = "expected the same of both: name others with --checkpoint or --against"
            raise RunError(f"{names[0]} {what} {before}, {names[1]} {what} {after}; {remedy}")
    if not common:
        remedy = "expected one such as clean: audit both under it"
        raise RunError(f"{names[0]} and {names[1]} have records of no common condition; {remedy}")
    n, wrong = task_of(first.manifest).other_truth(first, second, common[0])
    if not n:
        raise nothing_common(first, second, common[0])
    if wrong:
        raise RunError(f"{' and '.join(names)}: {wrong}; expected the same data: audit both on it")


def intended_differences(first: CheckpointEntry, second: CheckpointEntry) -> dict[str, str]:
    """Return how two checkpoints differ by intent, by the name of the part."""
    return checkpoint_changes(checkpoint_setup(first), checkpoint_setup(second))


def comparison_findings(first: Side, second: Side, common: Sequence[str]) -> Iterator[Finding]:
    """Yield how two runs differ, besides in their checkpoints, and what else makes a difference mean less."""
    before, after = first.manifest, second.manifest
    digests = [str(manifest.data.digest)[:8] for manifest in (before, after)]
    if digests[0] != digests[1]:
        sizes = f"{before.data.n} and {after.data.n}"
        ids = [task_of(before).ids(side, common[0]) for side in (first, second)]
        shared = len(common_ids(ids))
        yield Finding.of("compare/data", first=digests[0], second=digests[1], common=shared, sizes=sizes)
    yield from run_changes(run_setup(before), run_setup(after), common)


def same_file(first: Side, second: Side) -> Iterator[Finding]:
    digest, code = first.described.sha256, first.described.code_sha256
    if digest and (digest, code) == (second.described.sha256, second.described.code_sha256):
        yield Finding.of("compare/same-file", sha256=digest[:12])


def flagged_results(first: Side, second: Side, compared: Collection[tuple[str, str]]) -> Iterator[Concerned]:
    """Yield the results of both sides that are compared, with their flags and those of what they lack."""
    for side, name in zip((first, second), pair_names(first, second), strict=True):
        for row in side.results:
            if (row.condition, row.metric) in compared:  # `incomplete` is as it was when the summary was made
                findings = (each for each in row.findings if each.code != INCOMPLETE)
                yield Concerned(name, row.condition, tuple(findings), side.manifest)
        for condition in dict.fromkeys(condition for condition, _ in compared):
            expected, figures = condition in side.run.manifest.evidence, side.run.evidence(side.checkpoint, condition)
            missing = missing_evidence(figures, side.run.manifest.arguments) if expected else None
            evidence = [missing.finding] if missing and missing.finding else []
            yield Concerned(name, condition, (*missing_records(side, condition), *evidence), side.manifest)
