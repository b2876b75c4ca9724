"""Samples with columns, of which some slices are weak; a slow search for them; runs with a table of metadata."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from gate_runs import make
from scipy.stats import fisher_exact

from robustkit.report.refresh import keep_metadata
from robustkit.report.run import Run
from robustkit.results.slices import Attribute, attribute_of

Cells = dict[str, list[str]]


def columns(n: int, seed: int, **values: int) -> Cells:
    """Return columns of so many values each, drawn evenly for n samples."""
    generator = np.random.default_rng(seed)
    return {name: [f"{name}{value}" for value in generator.integers(0, k, n)] for name, k in values.items()}


def column(name: str, texts: Sequence[str]) -> Attribute:
    different = sorted({*texts}, reverse=True)  # as the file of a run has them, in any order
    return attribute_of(name, different, np.array([different.index(text) for text in texts]))


def outcomes(cells: Cells, weak: Sequence[Mapping[str, str]], seed: int, right: float = 0.85) -> list[bool]:
    """Return which samples are right: 25 points less often in weak slices, which are values by column."""
    n = len(next(iter(cells.values())))
    inside = np.zeros(n, bool)
    for slice in weak:
        inside |= np.all([np.array(cells[name]) == value for name, value in slice.items()], axis=0)
    return (np.random.default_rng(seed).random(n) < right - 0.25 * inside).tolist()


def slow_search(cells: Cells, right: Sequence[bool]) -> dict[str, float]:
    """Return Holm's p-value of each slice of 20 samples or more, by its name: scipy's Fisher test, masks, loops."""
    wrong, n = ~np.array(right), len(right)
    masks: dict[tuple[tuple[str, str], ...], Any] = {}
    for count in (1, 2):
        for names in combinations(cells, count):
            for values in sorted(set(zip(*(cells[name] for name in names), strict=True))):
                mask = np.all([np.array(cells[name]) == v for name, v in zip(names, values, strict=True)], axis=0)
                masks[tuple(zip(names, values, strict=True))] = mask

    def worse(mask: Any, among: Any) -> float:
        rest = among & ~mask
        table = [[(wrong & mask).sum(), (~wrong & mask).sum()], [(wrong & rest).sum(), (~wrong & rest).sum()]]
        return float(fisher_exact(table, alternative="greater")[1])

    found = {}
    for key, mask in masks.items():
        parents = [masks[part,] for part in key] if len(key) > 1 else []
        if 20 <= mask.sum() < n and all(mask.sum() < parent.sum() for parent in parents):
            name = ", ".join(" = ".join(part) for part in key)
            found[name] = max(worse(mask, among) for among in (np.ones(n, bool), *parents))
    adjusted, largest = {}, 0.0
    for rank, (name, p_value) in enumerate(sorted(found.items(), key=lambda item: item[1])):
        largest = max(largest, min(1.0, (len(found) - rank) * p_value))
        adjusted[name] = largest
    return adjusted


def table(path: Path, cells: Mapping[str, Sequence[str]], ids: Sequence[str] = ()) -> Path:
    """Write a CSV of metadata. ids: by default those of `gate_runs.make`."""
    n = len(next(iter(cells.values())))
    with path.open("w", newline="", encoding="utf-8") as file:
        sheet = csv.writer(file)
        sheet.writerow(["sample_id", *cells])
        sheet.writerows(zip(ids or [f"{place:03d}.png" for place in range(n)], *cells.values(), strict=True))
    return path


def run_of(folder: Path, cells: Cells, found: Mapping[str, Sequence[Any]], **changes: Any) -> Run:
    """Return a run of one checkpoint, `vit`, with these columns. found: outcomes by condition."""
    run = make(folder / "run", {"vit": found}, **{"arguments": {"data_dir": "val"}, **changes})
    keep_metadata(run, table(folder / "table.csv", cells))
    return run
