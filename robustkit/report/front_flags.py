"""Flags of a run, each with its subject: which checkpoints, and under which conditions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ..display.svg import labels
from ..evaluations.family import family_of
from ..evaluations.kinds import kind_of, words_of
from ..evaluations.results import Results

_NAMED = 3  # conditions and checkpoints that a flag names


@dataclass(frozen=True)
class Flag:
    """A doubt. who: the checkpoints; where: the conditions; empty for one about the whole run."""

    who: str
    where: str
    text: str


def flags_of(results: Results) -> list[Flag]:
    """Return each doubt once. What is unfinished is left out: the page says so above."""
    manifest = results.manifest
    seen: dict[str, dict[str, dict[str, None]]] = {}  # checkpoints and groups of conditions, by flag
    reached: dict[str, set[str]] = {name: set() for name in manifest.names}  # all conditions with results
    for row in results:
        words, condition = words_of(row["condition"]), row["condition"]
        group = words.group(condition) if len(words.shares(condition)) == 1 else condition
        reached.setdefault(row["checkpoint"], set()).add(group)
        for flag in row["flags"]:
            if words.is_remark(flag) or flag.startswith("incomplete"):
                continue
            seen.setdefault(flag, {}).setdefault(row["checkpoint"], {})[group] = None
    short = labels(manifest.names, 28)
    found = []
    for flag, by_checkpoint in seen.items():
        alike: dict[tuple[str, ...], list[str]] = {}  # checkpoints that have it under the same conditions
        for checkpoint, groups in by_checkpoint.items():
            alike.setdefault(tuple(groups), []).append(checkpoint)
        for conditions, checkpoints in alike.items():
            called = dict.fromkeys(family_of(kind_of(text)).called(text, manifest) for text in conditions)
            every = len(checkpoints) == len(manifest.names) > 1
            both = "both checkpoints" if len(checkpoints) == 2 else f"all {len(checkpoints)} checkpoints"
            who = both if every else _some([short[name] for name in checkpoints], "checkpoints")
            where = _all(conditions, reached[checkpoints[0]]) or _some(list(called), "conditions")
            found.append(Flag(who, where, flag))
    return found


def _all(conditions: Sequence[str], reached: Collection[str]) -> str:
    """Return `all conditions`, or `all corruptions`, where these are all of many; else an empty text."""
    families = {family_of(kind_of(text)).name for text in conditions}
    of_one = [text for text in reached if family_of(kind_of(text)).name in families]
    if len(conditions) <= _NAMED or len(conditions) < min(len(of_one), len(reached)):
        return ""
    return "all conditions" if len(conditions) == len(reached) else f"all {' and '.join(sorted(families))}"


def _some(names: Sequence[str], what: str) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - _NAMED
    if more < 2:
        return "; ".join(names)
    return f"{'; '.join(names[:_NAMED])} and {more} more {what}".strip()
