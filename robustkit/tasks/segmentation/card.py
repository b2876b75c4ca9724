"""Show the results of a segmenter as a part of its model card."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...display.table import CardPart
from ...display.text import code
from ...evaluations.results import Results
from .tables import LONGEST, scene_tables


def card_parts(checkpoint: str, results: Results) -> Iterator[CardPart]:
    """Yield the tables of a checkpoint, except those of many classes, which are in results.json."""
    tables = scene_tables(results, results.manifest)
    if not tables:
        return
    first, *others = tables
    parts: list[tuple[str, tuple[str, ...], Sequence[Sequence[str]]]] = [
        ("", first.headings[2:], [(code(row[2]), *row[3:]) for row in first.rows])
    ]
    for table in others:
        title = table.title.removeprefix(f"{checkpoint}: ")
        if len(table.rows) <= LONGEST:
            parts.append((f"{title[:1].upper()}{title[1:]}", table.headings, table.rows))
    yield CardPart("Segmentation", "In brackets 95 % intervals, n is the number of images.", parts)
