"""Figures made by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from robustkit.common.figure import Figure
from robustkit.common.finding import Finding

EMPTY = dict.fromkeys(("checkpoint", "condition", "metric"), "") | dict.fromkeys(("value", "ci_low", "ci_high"))


def figure(row: Mapping[str, Any]) -> Figure:
    """Return the figure of a row of summary.json, of which what a test does not care about may be left out."""
    plain = {**EMPTY, "n": 0, **row, "flags": [each.to_plain() for each in noted(*row.get("flags", ()))]}
    return Figure.from_plain(plain)


def noted(*texts: str) -> tuple[Finding, ...]:
    """Return findings that say so."""
    return tuple(Finding.parse(text) or Finding("run/note", text) for text in texts)


def said_of(figure: Figure) -> list[str]:
    """Return the texts of a figure's findings."""
    return [finding.text for finding in figure.findings]


def raised(results: pd.DataFrame) -> set[Finding]:
    """Return the findings in the results of a run, as `Run.results` has them."""
    return {Finding(**each) for flags in results["flags"] for each in flags}
