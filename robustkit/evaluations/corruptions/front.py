"""What a first page says about corruptions: which rows, and what they are called."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from ..metric import Metric
from .condition import parse_corrupted
from .measures import BENCHMARK
from .sets import set_of
from .vocabulary import VOCABULARY

_SEVERAL = re.compile(r"severity=([1-5](?:\+[1-5])+)")


def front(keys: Sequence[tuple[str, str]], headline: Metric) -> Iterator[tuple[str, str]]:
    """Yield condition and metric of the means over sets, else of each corruption; then of the benchmark's mCE.

    Of single samples the mean error, of any other metric the figure itself; of single severities the task's metric.
    """
    there = dict.fromkeys(keys)
    texts = list(VOCABULARY.in_short(list(dict.fromkeys(text for text, _ in keys))))
    texts.sort(key=lambda text: text.partition("(")[0] != BENCHMARK)
    for text in texts:
        mean, own = (text, "mean_error"), (text, headline.name)
        yield from [mean] if mean in there else [own] if own in there else []
    yield from (key for key in there if key[1] == "mce")


def called(text: str) -> str:
    """Return `noise`, `all corruptions (in-c)`, `fog`, or `fog, severity 3`, with what is not the benchmark's."""
    if (parts := set_of(text)) is not None:
        name, severities, definition = parts
        words = f"all corruptions ({name})" if name == BENCHMARK else name
        at = f", severity {'+'.join(map(str, severities))}" if severities else ""
        return f"{words}{at}{f' {definition}' if definition else ''}"
    several = _SEVERAL.search(text)
    part = parse_corrupted(text.replace(several[0], "severity=1", 1) if several else text)
    if part is None:
        return text
    at = several[1] if several else str(part.severity or "")
    severity = f", severity {at}" if at else ""
    return f"{part.name.replace('_', ' ')}{severity}{f' {part.definition}' if part.definition else ''}"
