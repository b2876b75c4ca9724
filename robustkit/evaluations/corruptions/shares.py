"""The conditions that a mean over corruptions is made of, and their shares."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from .condition import Corrupted, parse_corrupted
from .sets import FROST, SETS, corruption_names, set_of, sets_at

_SOME_SEVERITIES = re.compile(r"severity=([1-5](?:\+[1-5])+)")


def by_definition(texts: Iterable[str]) -> Iterator[tuple[Corrupted, list[tuple[str, int]]]]:
    """Yield for each definition of corruptions an example, and the corruptions and severities of `texts`.

    Where frost was made with several textures, its definition comes once for each, with the other corruptions.
    """
    parts = [part for text in texts if (part := parse_corrupted(text)) is not None]
    for example in {part.definition: part for part in parts}.values():
        mine = [part for part in parts if part.definition == example.definition]
        for texture in dict.fromkeys(part.texture for part in mine if part.name == FROST) or [example.texture]:
            fitting = [part for part in mine if part.name != FROST or part.texture == texture]
            yield replace(example, texture=texture), [(part.name, part.severity) for part in fitting]


def means_of_shares(example: Corrupted, evaluated: Iterable[tuple[str, int]]) -> Iterator[str]:
    """Yield the texts of the means over corruptions that one definition may have."""
    for name in corruption_names():
        named = replace(example, name=name)
        for severities in dict.fromkeys(members[name] for members in SETS.values() if name in members):
            several = "severity=" + "+".join(map(str, severities))
            text = replace(named, severity=1).text
            yield named.mean.text if len(severities) == 5 else text.replace("severity=1", several, 1)
    yield from sets_at(evaluated, example.definition, example.of_frost)


def conditions_of(mean: str) -> list[str]:
    """Return the texts of the conditions that a mean is over: `corruption(fog)`, `in-c(source=released)` or
    `in-c(severity=3)`.
    """
    if (parts := set_of(mean)) is None:
        part = parse_corrupted(mean)
        assert part is not None
        return [replace(part, severity=severity).text for severity in (1, 2, 3, 4, 5)]
    name, some, definition = parts
    odd = dict(item.split("=") for item in definition[1:-1].split(",") if item)
    return [Corrupted(member, severity, **odd).text for member, s in SETS[name].items() for severity in some or s]


def shares_of(condition: str) -> dict[str, float]:
    """Return the conditions that a result is over and the share of each: `in-c`, `in-c(severity=3)`, `corruption(fog)`
    and `corruption(fog,severity=1+2+3)` are means over severities and then over corruptions; any other is itself.
    """
    texts = [condition]
    if set_of(condition):
        texts = conditions_of(condition)
    elif several := _SOME_SEVERITIES.search(condition):
        texts = [condition.replace(several[1], severity, 1) for severity in several[1].split("+")]
    elif condition.startswith("corruption(") and "severity=" not in condition:
        texts = conditions_of(condition)
    of_one = Counter(text.partition(",")[0] for text in texts)
    return {text: 1 / len(of_one) / of_one[text.partition(",")[0]] for text in texts}
