"""Flags of results, each once with its subject: which checkpoints, and under which conditions.

Terminal, page and comparison show them in these words and in this order.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..display.svg import labels
from ..runs.manifest import Manifest
from .cells import LEFT_OUT
from .family import family_of
from .kinds import kind_of, shares_of, words_of
from .results import Results

_NAMED = 3  # conditions and checkpoints that a flag names
_WIDEST = 28

Levels = dict[str, set[str]]
"""The conditions of each group, such as all severities of a corruption; a mean over several has none."""


@dataclass(frozen=True)
class Flag:
    """A doubt. who: the checkpoints; where: the conditions; empty for one about the whole run."""

    who: str
    where: str
    text: str

    @property
    def line(self) -> str:
        """All of it: `vit, clean: normalisation was assumed`."""
        subject = ", ".join(filter(None, (self.who, self.where)))
        return f"{subject}: {self.text}" if subject else self.text


@dataclass(frozen=True)
class Flagged:
    """A result of a checkpoint under a condition, and its flags, if any; manifest: of its run."""

    checkpoint: str
    condition: str
    flags: tuple[str, ...]
    manifest: Manifest


def flags_of(results: Results, of: Callable[[str], bool] = lambda condition: True) -> list[Flag]:
    """Return each doubt once. of: whether those of a condition are wanted.

    What is unfinished is left out, since all that shows a run says so first; so is which classes a condition leaves
    out, where a mean over several says it.
    """
    repeated = {
        (name, share)
        for name, cells in results.cells.items()
        for condition, _ in cells
        if len(shares := shares_of(condition)) > 1
        for share in shares
    }

    def counts(row: Mapping[str, str], flag: str) -> bool:
        key = row["checkpoint"], row["condition"]
        return not flag.startswith("incomplete") and not (LEFT_OUT in flag and key in repeated)

    manifest = results.manifest
    every = []
    for row in results:
        flags = tuple(flag for flag in row["flags"] if counts(row, flag)) if of(row["condition"]) else ()
        every.append(Flagged(row["checkpoint"], row["condition"], flags, manifest))
    return raised(every, short_names(manifest.names))


def flag_lines(results: Results, of: Callable[[str], bool] = lambda condition: True) -> tuple[str, ...]:
    """Return each doubt of `flags_of` as a line."""
    return tuple(flag.line for flag in flags_of(results, of))


def short_names(names: Iterable[str]) -> dict[str, str]:
    """Return what flags call checkpoints."""
    return labels(names, _WIDEST)


def of_family(name: str) -> Callable[[str], bool]:
    """Return whether a condition is of the family of this name."""
    return lambda condition: family_of(kind_of(condition)).name == name


def raised(every: Iterable[Flagged], called: Mapping[str, str]) -> list[Flag]:
    """Return each doubt about results once. every: with those without a flag. called: the checkpoints, with what they
    are called.
    """
    seen: dict[str, dict[str, Levels]] = {}  # by flag and checkpoint
    reached: dict[str, Levels] = {}
    manifests: dict[str, Manifest] = {}
    for result in every:
        name, condition, words = result.checkpoint, result.condition, words_of(result.condition)
        single = len(words.shares(condition)) == 1
        group, level = (words.group(condition), {condition}) if single else (condition, set[str]())
        reached.setdefault(name, {}).setdefault(group, set()).update(level)
        manifests[name] = result.manifest
        for flag in result.flags:
            if not words.is_remark(flag):
                seen.setdefault(flag, {}).setdefault(name, {}).setdefault(group, set()).update(level)
    found = []
    for flag, by_checkpoint in seen.items():
        alike: dict[tuple[str, ...], list[str]] = {}  # checkpoints that have it under the same conditions
        for name, groups in by_checkpoint.items():
            said = _without_means(groups)
            every_one = _without_means(reached[name], said)
            where = _all(said, every_one) or _each(said, reached[name], manifests[name])
            alike.setdefault((where, *groups), []).append(name)
        found += [Flag(_who(names, called), where, flag) for (where, *_), names in alike.items()]
    return found


def _without_means(groups: Levels, kept: Collection[str] = ()) -> Levels:
    """Return the groups without means over conditions that are all there themselves. kept: means that stay."""
    singles = set[str]().union(*groups.values())
    return {
        group: levels
        for group, levels in groups.items()
        if levels or group in kept or not singles.issuperset(shares_of(group))
    }


def _who(names: Sequence[str], called: Mapping[str, str]) -> str:
    if 1 < len(names) == len(called):
        return "both checkpoints" if len(names) == 2 else f"all {len(names)} checkpoints"
    return _some([called[name] for name in names], "checkpoints")


def _each(groups: Levels, reached: Levels, manifest: Manifest) -> str:
    """Return what people call the conditions, and which groups have the flag in part."""

    def called(text: str) -> str:
        return family_of(kind_of(text)).called(text, manifest)

    names = dict[str, None]()
    for group, levels in groups.items():
        if _is_whole(levels, reached[group]):
            names[called(group)] = None
        else:
            names[called(*levels) if len(levels) == 1 else f"{called(group)} in part"] = None
    return _some(list(names), "conditions")


def _all(groups: Levels, reached: Levels) -> str:
    """Return `all conditions`, or `all corruptions`, where these are all of many; else an empty text."""
    families = {family_of(kind_of(text)).name for text in groups}
    of_these = [text for text in reached if family_of(kind_of(text)).name in families]
    whole = all(_is_whole(levels, reached[group]) for group, levels in groups.items())
    if not whole or len(groups) <= _NAMED or len(groups) < min(len(of_these), len(reached)):
        return ""
    return "all conditions" if len(groups) == len(reached) else f"all {' and '.join(sorted(families))}"


def _is_whole(levels: set[str], every: set[str]) -> bool:
    return not levels or levels == every


def _some(names: Sequence[str], what: str) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - _NAMED
    if more < 2:
        return "; ".join(names)
    return f"{'; '.join(names[:_NAMED])} and {more} more {what}"
