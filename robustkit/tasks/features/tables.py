"""Show the results of features as tables: for a terminal, the page and a model card."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from ...display.grid import Grid, Part, side_by_side, with_flags
from ...display.table import CardPart, TextTable
from ...display.text import Made, amount, code
from ...evaluations.cells import Cells, finite, interval_cell, is_finite
from ...evaluations.flags import flag_lines
from ...evaluations.kinds import is_over_groups, shares_of, words_of
from ...evaluations.results import Results
from ...runs.manifest import CheckpointEntry, Manifest

_MAIN = (("knn", "kNN % [95 %]"), ("probe", "linear probe % [95 %]"), ("retrieval", "retrieval mAP % [95 %]"))
_SWEPT = re.compile(r"knn\((\d+)\)|few_shot\((\d+)\)")
_HEADLINE = _MAIN[0][1]


def _rows(cells: Cells, texts: Sequence[str], manifest: Manifest) -> list[tuple[str, ...]]:
    """Return a row for each condition: what the heads answer right, and how far the features moved."""
    rows = []
    for text in texts:
        norm, knn = manifest.norm(text), cells[text, "knn"]
        largest, moved = finite(cells, text, f"{norm}_max"), cells.get((text, "moved"))
        rows.append(
            (
                *(text, str(knn["n"]), *(interval_cell(cells.get((text, metric))) for metric, _ in _MAIN)),
                "0" if moved is None or not is_finite(moved["value"]) else f"{moved['value']:.3f}",
                amount(largest, norm, manifest.protocol.space) if largest else "0",
                "⚑" if knn["flags"] else "",
            )
        )
    return rows


HEADINGS = ("condition", "n", *(heading for _, heading in _MAIN), "features moved", "largest |δ|", "flag")


def _sweep(results: Results) -> list[str]:
    """Return the metrics of kNN at each k and of few-shot accuracy that any checkpoint has."""
    return [metric for metric in dict.fromkeys(row["metric"] for row in results) if _SWEPT.fullmatch(metric)]


def _swept(cells: Cells, texts: Sequence[str], metrics: Sequence[str]) -> list[tuple[str, ...]]:
    """Return a row for each condition: kNN at each k, and few-shot accuracy with its spread."""
    rows = []
    for text in texts:
        shown = []
        for metric in metrics:
            value = finite(cells, text, metric)
            spread = finite(cells, text, metric.replace("few_shot(", "few_shot_spread("))
            said = "–" if value is None else f"{100 * value:.1f}"
            shown.append(said + (f" ± {100 * spread:.1f}" if spread is not None and metric.startswith("few") else ""))
        rows.append((text, *shown))
    return rows


def _heading(metric: str) -> str:
    said = _SWEPT.fullmatch(metric)
    assert said is not None
    return f"kNN %, k {said[1]}" if said[1] else f"{said[2]}-shot %"


def _texts(cells: Cells, wanted: Callable[[str], bool] = lambda text: True) -> list[str]:
    """Return the conditions that have results."""
    return [text for text in dict.fromkeys(text for text, metric in cells if metric == "knn") if wanted(text)]


def _is_shown(text: str) -> bool:
    return words_of(text).in_results


def _in_short(cells: Cells) -> list[str]:
    """Return the conditions that are not single severities of a mean."""
    every = _texts(cells)
    covered = {share for text in every if len(shares_of(text)) > 1 for share in shares_of(text)}
    sets = [text for text in every if is_over_groups(text)]
    return [text for text in every if _is_shown(text) or text in sets or (not sets and text not in covered)]


def heads_of(entry: CheckpointEntry) -> str:
    """Return in words how the heads of a checkpoint were made."""
    said = entry.heads if isinstance(entry.heads, dict) else {}
    chosen = "chosen by cross-validation" if said.get("probe") == "cv" else f"{said.get('probe')}"
    return (
        f"{said.get('images')} training images of {said.get('classes')} classes; kNN with k {said.get('k')}, "
        f"temperature {said.get('temperature')}; strength of the probe {chosen}, of few-shot heads "
        f"{said.get('few_shot')}, {said.get('draws')} draws"
    )


def terminal_tables(results: Results) -> Iterator[TextTable]:
    """Yield the results for a terminal, each checkpoint above its conditions."""
    manifest, rows, heads = results.manifest, list[tuple[str, ...]](), list[str]()
    swept, under, metrics = list[tuple[str, ...]](), list[str](), _sweep(results)
    for entry in manifest.checkpoints:
        cells = results.cells[entry.name]
        own = _rows(cells, _in_short(cells), manifest)
        rows += [(entry.name, *row) for row in own]
        heads += [f"{entry.name}, {entry.attention} attention"] * len(own)
        more = _swept(cells, _texts(cells, _is_shown), metrics)
        swept += [(entry.name, *row) for row in more]
        under += [entry.name] * len(more)
    if rows:
        title = f"protocol {manifest.protocol.tag}: {heads_of(manifest.checkpoints[0])}"
        spare = (HEADINGS[6], HEADINGS[4], "n")
        yield TextTable(title, ("checkpoint", *HEADINGS), tuple(rows), spare=spare).said_once("n").under_heads(heads)
        title = "kNN by k, and few-shot accuracy ± its spread over draws"
        yield TextTable(title, ("checkpoint", "condition", *map(_heading, metrics)), tuple(swept)).under_heads(under)


def result_grids(results: Results) -> list[Grid]:
    """Return clean and attacked, corrupted, and the figures of every head, of all checkpoints side by side."""
    manifest, note = results.manifest, f"{heads_of(results.manifest.checkpoints[0])}."
    grids = [
        *_grids(results, "Clean and under attack", _is_shown, note),
        *_grids(results, "Under corruption", lambda text: not _is_shown(text), ""),
    ]
    parts, metrics = [], _sweep(results)
    for entry in manifest.checkpoints:
        cells = results.cells[entry.name]
        rows = _swept(cells, _texts(cells), metrics)
        parts += [Part(entry.name, ("condition", *map(_heading, metrics)), tuple(rows))] if rows else []
    grids += side_by_side("kNN by k, and few-shot accuracy ± its spread over draws", parts)
    return with_flags(grids, flag_lines(results, lambda text: True))


def _grids(results: Results, title: str, wanted: Callable[[str], bool], note: str) -> list[Grid]:
    parts = []
    for entry in results.manifest.checkpoints:
        cells = results.cells[entry.name]
        rows = _rows(cells, _texts(cells, wanted), results.manifest)
        parts += [Part(entry.name, HEADINGS[:-1], tuple(row[:-1] for row in rows))] if rows else []
    return side_by_side(title, parts, headline=_HEADLINE, note=note)


def card_parts(checkpoint: str, results: Results) -> Iterator[CardPart]:
    """Yield the tables of a checkpoint for its model card."""
    cells, entry = results.cells[checkpoint], results.manifest.checkpoint(checkpoint)
    if rows := _rows(cells, _in_short(cells), results.manifest):
        shown = [(Made(code(row[0]) + (" ⚑" if row[-1] else "")), *row[1:-1]) for row in rows]
        note = f"In brackets 95 % intervals, n is the number of images. {heads_of(entry)}."
        yield CardPart("What heads make of its features", note, [("", HEADINGS[:-1], shown)])
