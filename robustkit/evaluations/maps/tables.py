"""Show the maps of a run as tables: localisation and faithfulness next to the controls, and stability."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...display.table import CardPart, TextTable
from ..map_methods import CONTROLS
from .condition import MODES, MapSpec, parts_of

SCORE_HEADINGS = {
    "cam_pixel_accuracy": "pixel acc.",
    "cam_iou": "IoU",
    "cam_dice": "DICE",
    "cam_precision": "precision",
    "cam_recall": "recall",
}
FREE_HEADINGS = {
    "pointing_game": "pointing",
    "energy_inside": "energy inside",
    "pxap": "PxAP",
    "max_box_acc": "MaxBoxAccV2",
    "abpc": "ABPC",
    "insertion_auc": "insertion",
    "deletion_auc": "deletion ↓",
    "road": "ROAD",
    "road_lerf": "ROAD LeRF",
    "road_morf": "ROAD MoRF ↓",
    "infidelity": "infidelity ↓",
    "head_correlation": "head redrawn",
    "cascade_correlation": "model redrawn",
    "entropy_rise": "entropy rise",
    "max_sensitivity": "max sensitivity",
    "mean_sensitivity": "mean sensitivity",
    "map_entropy": "entropy of maps",
    "map_gini": "Gini of maps",
}
ONE_SIDED = ("cam_precision", "cam_recall")
"""Scores that a map reaches by marking everything, or nearly nothing: a lead in one is not shown without the other."""
STABLE_HEADINGS = ("under", "n held", "rank corr.", "IoU", "n fell", "rank corr.", "IoU")

Rows = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class MapTable:
    """One table of a checkpoint. title: what is scored. headings: of the columns; rows of texts."""

    checkpoint: str
    title: str
    headings: tuple[str, ...]
    rows: Rows


def is_of_maps(condition: str) -> bool:
    """Whether a row of the summary belongs to the tables of this module."""
    return condition.startswith(("cam(", "stability("))


def map_tables(results: Sequence[Mapping[str, Any]], only_boxes: bool = False) -> list[MapTable]:
    """Return the tables of all checkpoints, from the rows of the summary. only_boxes: whether there are no masks."""
    by_checkpoint: dict[str, list[Mapping[str, Any]]] = {}
    for row in results:
        if is_of_maps(row["condition"]):
            by_checkpoint.setdefault(row["checkpoint"], []).append(row)
    return [table for checkpoint, rows in by_checkpoint.items() for table in _tables(checkpoint, rows, only_boxes)]


def _tables(checkpoint: str, rows: Sequence[Mapping[str, Any]], only_boxes: bool) -> Iterator[MapTable]:
    figures: dict[tuple[MapSpec, str], dict[str, Mapping[str, Any]]] = {}
    for row in rows:
        parts = parts_of(row["condition"])
        assert parts is not None
        figures.setdefault(parts, {})[row["metric"]] = row
    scored = {key: metrics for key, metrics in figures.items() if not key[0].under}
    for kind in dict.fromkeys(spec.kind for spec, _ in scored):
        ours = {key: metrics for key, metrics in scored.items() if key[0].kind == kind}
        said = _title_of(kind)
        for mode in MODES:
            part = {spec: metrics for (spec, its), metrics in ours.items() if its == mode}
            against = "pixels against boxes" if only_boxes and mode == "mask" else f"{mode} mode"
            title = f"maps, {against} at threshold {kind.threshold:g}{said}"
            yield from _scores(checkpoint, title, SCORE_HEADINGS, part)
        part = {spec: metrics for (spec, its), metrics in ours.items() if not its}
        yield from _scores(checkpoint, f"maps, without a threshold{said}", FREE_HEADINGS, part)
    stable = {spec: metrics for (spec, _), metrics in figures.items() if spec.under}
    for method in dict.fromkeys(spec.called for spec in stable):
        same = {spec: metrics for spec, metrics in stable.items() if spec.called == method}
        lines = tuple(_stable(spec, metrics) for spec, metrics in same.items())
        yield MapTable(checkpoint, f"{method}: alike to the clean map", STABLE_HEADINGS, lines)


def _title_of(kind: MapSpec) -> str:
    return " of the label's class" * (kind.target == "label") + (f", {kind.on} samples drawn" if kind.on else "")


def _scores(
    checkpoint: str,
    title: str,
    headings: Mapping[str, str],
    part: Mapping[MapSpec, Mapping[str, Mapping[str, Any]]],
) -> Iterator[MapTable]:
    """Yield a table with one column per method, the controls last and without intervals; below each score its lead over
    the best control.
    """
    used = [metric for metric in headings if any(metric in metrics for metrics in part.values())]
    if not used:
        return
    order = sorted(part, key=lambda spec: spec.method in CONTROLS)
    rows = []
    for metric in used:
        figures = {spec: part[spec].get(metric) for spec in order}
        ns = dict.fromkeys(str(row["n"]) for row in figures.values() if row is not None)
        cells = ["" if row is None else _interval(row, plain=spec.is_control) for spec, row in figures.items()]
        rows.append((headings[metric], " / ".join(ns), *cells))
        leads = {spec: part[spec].get(f"{metric}_over_control") for spec in order}
        best = [row["flags"][0].partition(": ")[2] for row in leads.values() if row is not None]
        if best and metric not in ONE_SIDED:
            cells = ["" if row is None else _interval(row, "+") for row in leads.values()]
            rows.append((f"  – {best[0]}", "", *cells))
    names = (f"{spec.called} [95 %]" if not spec.is_control else spec.method for spec in order)
    yield MapTable(checkpoint, title, ("score", "n", *names), tuple(rows))


def _stable(spec: MapSpec, metrics: Mapping[str, Mapping[str, Any]]) -> tuple[str, ...]:
    cells = [spec.under]
    for group in ("held", "fell"):
        row = metrics.get(f"rank_correlation_{group}")
        cells.append("0" if row is None else str(row["n"]))
        for metric in ("rank_correlation", "map_iou"):
            score = metrics.get(f"{metric}_{group}")
            cells.append("–" if score is None else _interval(score))
    return tuple(cells)


def _interval(row: Mapping[str, Any], sign: str = "", plain: bool = False) -> str:
    """Return `0.436 [0.410, 0.461]`: the third digit is noise at a few hundred images, a fourth would mislead."""
    if row["value"] is None:
        return "nan"
    if plain or row["ci_low"] is None:
        return _thousandths(row["value"], sign)
    low, high = (_thousandths(row[name], sign) for name in ("ci_low", "ci_high"))
    return f"{_thousandths(row['value'], sign)} [{low}, {high}]"


def _thousandths(value: float, sign: str) -> str:
    return f"{round(value, 3) + 0.0:{sign}.3f}"  # no -0.000


def card_parts(results: Sequence[Mapping[str, Any]], only_boxes: bool = False) -> Iterator[CardPart]:
    """Yield the tables for a model card, in one part. only_boxes: whether there are no masks."""
    if maps := map_tables(results, only_boxes):
        note = "Controls do not look at the image; below a score stands its lead over the best of them."
        parts = [(f"{table.title[:1].upper()}{table.title[1:]}", table.headings, table.rows) for table in maps]
        yield CardPart("Maps", note, parts)


def terminal_maps(tables: Sequence[MapTable]) -> Iterator[TextTable]:
    """Yield the tables for a terminal."""
    for table in tables:
        yield TextTable(f"{table.checkpoint}: {table.title}", table.headings, table.rows).said_once("n")
