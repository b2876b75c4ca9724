"""Columns of probes into figures that JSON holds: sums, medians, means, extremes, in a few digits."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from .gradient_masking import AROUND

_EXTREMES = ("random_difference", "low", "high", "sum_error", "noise", "graph", "batch", "thread", "again", "attacked")
_APART = ("random_difference", "noise", "graph", "batch", "thread", "again", "attacked", "jump", "path")
_ROUNDING = 1e-5
_GRADIENTS = ("zero_margin", "zero_ce", "bad_margin", "bad_ce", "slope_samples")
_COUNTS = ("right", "random_predictions", *_GRADIENTS, "saved_samples", "saved_same", "saved_lost", "hidden", *AROUND)
_MEDIANS = ("slope", "slope_error", "slope_far", "jump", "path", "rise", "rise_shifted")
_MEANS = ("loss", "accuracy")


def reduced(columns: Mapping[str, Tensor]) -> dict[str, Any]:
    """Return one figure for each name; None where there is no column, or an empty one."""
    return {name: _reduce(name, columns.get(name)) for name in (*_EXTREMES, *_COUNTS, *_MEDIANS, *_MEANS)}


def plain(figures: Mapping[str, Any]) -> dict[str, Any]:
    """Return figures in six significant digits, differences of answers in two."""
    return {name: _rounded(_coarse(value) if name in _APART else value) for name, value in figures.items()}


def _reduce(name: str, column: Tensor | None) -> Any:
    if column is None or name in _COUNTS:
        return None if column is None else int(column.sum())
    if not len(column):
        return None
    if name in _MEANS:
        return column.double().mean(dim=0).tolist()
    return float(column.median() if name in _MEDIANS else column.min() if name == "low" else column.max())


def _coarse(apart: float | None) -> float | None:
    """Return a difference of two answers in two digits, and 0 where it is as small as float32's rounding, which differs
    at each call, wherever the numbers lie in memory.
    """
    return None if apart is None else 0.0 if apart < _ROUNDING else float(f"{apart:.2g}")


def _rounded(value: Any) -> Any:
    """Round to six significant digits; None for what JSON cannot hold."""
    if isinstance(value, list):
        return [_rounded(entry) for entry in value]
    finite = not isinstance(value, float) or math.isfinite(value)
    return (float(f"{value:.6g}") if isinstance(value, float) else value) if finite else None
