"""Show watched attention as tables: on clean images, its changes under each condition, and layer by layer."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...common.intervals import Floats
from ...display.table import TextTable
from ..cells import by_checkpoint
from .condition import under_of
from .metrics import Heads

HEADINGS = {
    "largest_logit": ("largest |logit|", 1, 1),
    "query_norm": ("query norm", 1, 2),
    "key_norm": ("key norm", 1, 2),
    "entropy_share": ("entropy, % of log N", 100, 1),
    "strongest_key": ("strongest key, %", 100, 1),
    "softmax_slope": ("softmax slope", 1, 3),
}
"""Name, factor and decimals of each figure. Entropy in nats is in the summary and in the tables of layers."""
_LAYERS = (
    ("largest_logits", "largest |logit|", 1, 1),
    ("query_norms", "query norm", 1, 1),
    ("key_norms", "key norm", 1, 1),
    ("attention_entropies", "entropy, nats", 1, -1),
    ("entropy_shares", "entropy, % of log N", 100, -1),
    ("strongest_keys", "strongest key, %", 100, 1),
    ("softmax_slopes", "softmax slope", 1, -1),
)
"""For each figure of a head its name, its factor, and 1 if the highest is the worst, -1 if the lowest is."""
_MOST = 64  # layers in a table
_NOTE = (
    "Means over samples; per sample the largest |logit| of all heads and means over the heads of all layers. With a "
    "sign: the change against clean, paired by sample, of percentages in points."
)
_OF_LAYERS = (
    "Mean over the heads of a layer, then the worst of them with its number from 0 on; a head's logit is the largest "
    "over all samples, all else a mean over samples and tokens."
)

Rows = Sequence[Mapping[str, Any]]


def attention_tables(results: Rows) -> list[TextTable]:
    """Return a table for each checkpoint whose attention was watched, from the rows of the summary."""
    return [_table(checkpoint, conditions) for checkpoint, conditions in by_checkpoint(results, under_of).items()]


def _table(checkpoint: str, conditions: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> TextTable:
    rows = []
    counts = {under: next(iter(figures.values()))["n"] for under, figures in conditions.items()}
    several = len(set(counts.values())) > 1
    for under, figures in conditions.items():
        shown = [(figures.get(f"{name}_change") if under != "clean" else None, figures.get(name)) for name in HEADINGS]
        cells = (_cell(*pair, *HEADINGS[name][1:]) for name, pair in zip(HEADINGS, shown, strict=True))
        rows.append((under, *([str(counts[under])] if several else []), *cells))
    headings = ("condition", *(["n"] if several else []), *(name for name, _, _ in HEADINGS.values()))
    title = f"{checkpoint}: attention" + ("" if several else f", n = {counts[next(iter(counts))]}")
    return TextTable(title, headings, tuple(rows), (), _NOTE, checkpoint=checkpoint)


def _cell(change: Mapping[str, Any] | None, value: Mapping[str, Any] | None, factor: int, decimals: int) -> str:
    """Return `12.30 [12.10, 12.50]`, or of a change `+0.31 [+0.20, +0.42]`."""
    row, sign = (change, "+") if change is not None else (value, "")
    decimals = max(decimals, 2) if sign and factor == 1 else decimals
    if row is None:
        return "–"
    if row["value"] is None:
        return "nan"
    text = _number(factor * row["value"], decimals, sign)
    if row["ci_low"] is None or row["ci_high"] is None:
        return text
    low, high = (_number(factor * row[key], decimals, sign) for key in ("ci_low", "ci_high"))
    return f"{text} [{low}, {high}]"


def _number(value: float, decimals: int, sign: str = "") -> str:
    if not math.isfinite(value):
        return "nan"
    if abs(value) >= 1e6:
        return f"{value:{sign}.3g}"
    if abs(value) >= 1e3:
        return f"{value:{sign},.0f}"
    return f"{round(value, decimals) + 0.0:{sign}.{decimals}f}"  # no -0.00


def layer_table(heads: Heads, title: str) -> TextTable:
    """Return a row for each layer, with its flags."""
    headings = ("layer", "heads", "N", *(name for _, name, _, _ in _LAYERS))
    parts = [(heads.by_layer(name), factor, worst) for name, _, factor, worst in _LAYERS]
    rows = [
        (
            *(layer.name, str(layer.heads), str(layer.keys)),
            *(_mean_and_worst(factor * values[place], worst, percent=factor == 100) for values, factor, worst in parts),
        )
        for place, layer in enumerate(heads.layers[:_MOST])
    ]
    more = len(heads.layers) - len(rows)
    note = _OF_LAYERS + (f" {more} more layers are left out." if more else "")
    return TextTable(title, headings, tuple(rows), tuple(heads.flags), note)


def _mean_and_worst(values: Floats, sign: int, percent: bool) -> str:
    """Return `8.25, 10.12 (2)`: the mean, the worst and its head; `nan` where nothing is finite."""
    finite = np.flatnonzero(np.isfinite(values))
    if not len(finite):
        return "nan"
    worst = int(finite[(sign * values[finite]).argmax()])
    digits = 1 if percent or float(np.abs(values[finite]).max()) >= 10 else 2
    return f"{_number(float(values[finite].mean()), digits)}, {_number(float(values[worst]), digits)} ({worst})"
