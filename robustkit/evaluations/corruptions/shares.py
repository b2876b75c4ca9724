"""The conditions that a mean over corruptions is made of, and their shares."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

from .condition import Corrupted, parse_corrupted
from .sets import SETS, corruption_names, set_of, sets_at

_SOME_SEVERITIES = re.compile(r"severity=([1-5](?:\+[1-5])+)")


def means_of_shares(example: Corrupted, evaluated: Iterable[tuple[str, int]]) -> Iterator[str]:
    """Yield the texts of the means over corruptions that one definition may have."""
    for name in corruption_names():
        named = replace(example, name=name)
        for severities in dict.fromkeys(members[name] for members in SETS.values() if name in members):
            several = "severity=" + "+".join(map(str, severities))
            text = replace(named, severity=1).text
            yield named.mean.text if len(severities) == 5 else text.replace("severity=1", several, 1)
    yield from sets_at(evaluated, example.definition)


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
