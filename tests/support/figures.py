"""Figures made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from robustkit.common.figure import Figure

EMPTY = dict.fromkeys(("checkpoint", "condition", "metric"), "") | dict.fromkeys(("value", "ci_low", "ci_high"))


def figure(row: Mapping[str, Any]) -> Figure:
    """Return the figure of a row of summary.json, of which what a test does not care about may be left out."""
    return Figure.from_plain({**EMPTY, "n": 0, "flags": [], **row})
