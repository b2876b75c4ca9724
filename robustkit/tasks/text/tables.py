"""Show the results of language models as tables: for a terminal, the page and a model card."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...display.grid import Grid, Part, side_by_side, with_flags
from ...display.table import CardPart, TextTable
from ...display.text import Made, code
from ...evaluations.cells import Cells, is_finite
from ...evaluations.flags import flag_lines
from ...evaluations.kinds import words_of
from ...evaluations.results import Results
from ...runs.description import shown_as
from ...runs.manifest import CheckpointEntry

_COLUMNS = (
    ("perplexity", "perplexity [95 %]", 1, ".2f"),
    ("word_perplexity", "word perplexity [95 %]", 1, ".2f"),
    ("bits_per_byte", "bits a byte [95 %]", 1, ".4f"),
    ("nll", "NLL [95 %]", 1, ".4f"),
    ("token_accuracy", "top-1 % of tokens [95 %]", 100, ".2f"),
)
HEADINGS = ("condition", "n", *(heading for _, heading, _, _ in _COLUMNS), "flag")
_HEADLINE = HEADINGS[2]


def _rows(cells: Cells) -> list[tuple[str, ...]]:
    """Return a row for each condition, its text first."""
    rows = []
    for text in dict.fromkeys(text for text, _ in cells if words_of(text).in_results):
        first = cells[text, _COLUMNS[0][0]]
        shown = (_cell(cells.get((text, name)), scale, form) for name, _, scale, form in _COLUMNS)
        rows.append((text, str(first["n"]), *shown, "⚑" if first["flags"] else ""))
    return rows


def _cell(row: Any, scale: float, form: str) -> str:
    """Return `434.70 [410.12, 460.03]`; a dash where there is no row."""
    if row is None or not is_finite(row["value"]):
        return "–" if row is None else "nan"
    value = format(scale * row["value"], form)
    if not is_finite(row["ci_low"]) or not is_finite(row["ci_high"]):
        return value
    return f"{value} [{scale * row['ci_low']:{form}}, {scale * row['ci_high']:{form}}]"


def _read_as(entry: CheckpointEntry) -> str:
    """Return how a checkpoint reads a text, in words."""
    return ", ".join(shown_as(entry).values())


def terminal_table(results: Results) -> TextTable:
    """Return the results for a terminal, each checkpoint above its conditions."""
    protocol, rows, heads = results.manifest.protocol, list[tuple[str, ...]](), list[str]()
    for entry in results.manifest.checkpoints:
        own = _rows(results.cells[entry.name])
        rows += [(entry.name, *row) for row in own]
        heads += [f"{entry.name}, {entry.attention} attention, {_read_as(entry)}"] * len(own)
    title = f"protocol {protocol.tag}: {protocol.summary}"
    spare = (HEADINGS[5], HEADINGS[3], HEADINGS[4], "n")
    table = TextTable(title, ("checkpoint", *HEADINGS), tuple(rows), spare=spare)
    return table.said_once("n").under_heads(heads)


def result_grids(results: Results) -> list[Grid]:
    """Return the perplexities of all checkpoints side by side, then every figure."""
    parts = [
        Part(entry.name, HEADINGS[:-1], tuple(row[:-1] for row in _rows(results.cells[entry.name])))
        for entry in results.manifest.checkpoints
    ]
    said = dict.fromkeys(f"{entry.name}: {_read_as(entry)}." for entry in results.manifest.checkpoints)
    grids = side_by_side("Clean and with changed words", parts, headline=_HEADLINE, note=" ".join(said))
    return with_flags(grids, flag_lines(results, lambda text: words_of(text).in_results))


def card_parts(checkpoint: str, results: Results) -> Iterator[CardPart]:
    """Yield the table of a checkpoint for its model card."""
    if rows := _rows(results.cells[checkpoint]):
        shown = [(Made(code(row[0]) + (" ⚑" if row[-1] else "")), *row[1:-1]) for row in rows]
        entry = results.manifest.checkpoint(checkpoint)
        note = f"In brackets 95 % intervals, n is the number of documents; {_read_as(entry)}."
        yield CardPart("Clean and with changed words", note, [("", HEADINGS[:-1], shown)])
