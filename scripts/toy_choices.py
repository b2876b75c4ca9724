"""What the paper leaves open about the toy task, and what each choice does to the success rates."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from toy_model import Shape
from toy_results import OUTCOMES, PUBLISHED, gather
from toy_run import Grid, Plan, Setting, run

from robustkit.errors import RunError
from robustkit.records import write_whole

FORMULAS = ("standard", "qnorm", "quest", "qknorm-ds")
SLICE = Grid(FORMULAS, rates=(0.001, 0.0025, 0.0075), decays=(0.0, 0.05), data=2, seeds=3)
SETTINGS = (
    *(Setting(Shape(reading=reading, start="mixed"), 1024) for reading in ("literal", "pre-norm")),
    *(Setting(Shape(reading=reading, start="mixed"), 2048) for reading in ("literal", "pre-norm")),
    *(Setting(Shape(reading=reading, start="torch"), 1024) for reading in ("literal", "pre-norm")),
    *(Setting(Shape(reading=reading, start="timm"), 1024) for reading in ("literal", "pre-norm")),
    Setting(Shape(bias=True), 1024),
    Setting(Shape(final_norm=True), 1024),
    Setting(Shape(length=32), 1024),
)
HEADING = ("setting", "formula", "models", *OUTCOMES, "train", "test", "train of failed", "test of failed")


@dataclass(frozen=True)
class Choice:
    """A formula under a setting: how many of its models came to which outcome, and mean accuracies: of all, and of
    those that are not correct."""

    setting: str
    formula: str
    models: int
    counts: tuple[int, ...]
    means: tuple[float, ...]

    @property
    def success(self) -> float:
        """Share of correct models."""
        return self.counts[0] / self.models


def explore(work: Path, workers: int, grid: Grid = SLICE) -> Iterator[str]:
    """Train the slice under every setting; a line for each that is done."""
    for number, setting in enumerate(SETTINGS):
        for _ in run(work / f"setting{number}", Plan(setting, grid), workers):
            pass
        found = list(_summary(work / f"setting{number}", Plan(setting, grid)))
        yield f"{setting.text()}: " + ", ".join(f"{one.formula} {100 * one.success:.0f} %" for one in found)


def _summary(work: Path, plan: Plan) -> Iterator[Choice]:
    results = gather(work, plan)
    classes = results.outcomes()
    for formula in plan.grid.formulas:
        own = results.of(formula)
        counts = tuple(int((classes[own] == outcome).sum()) for outcome in OUTCOMES)
        failed = own & (classes != "correct")
        means = [
            float(results.columns[name][some].mean()) if some.any() else np.nan
            for some in (own, failed)
            for name in ("train", "test")
        ]
        yield Choice(plan.setting.text(), formula, int(own.sum()), counts, tuple(round(mean, 4) for mean in means))


def save(work: Path, path: Path, grid: Grid = SLICE) -> None:
    """choices.csv of a folder in which `explore` has ended."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(HEADING)
    for number, setting in enumerate(SETTINGS):
        for one in _summary(work / f"setting{number}", Plan(setting, grid)):
            writer.writerow([one.setting, one.formula, one.models, *one.counts, *one.means])
    write_whole(path, buffer.getvalue().encode())


def load(path: Path) -> list[Choice]:
    """What `save` wrote. Raises RunError where it cannot be read."""
    try:
        with path.open(newline="") as file:
            heading, *rows = csv.reader(file)
        if tuple(heading) != HEADING:
            raise ValueError(f"its columns are {', '.join(heading)}")
        split = 3 + len(OUTCOMES)
        return [
            Choice(row[0], row[1], int(row[2]), tuple(map(int, row[3:split])), tuple(map(float, row[split:])))
            for row in rows
        ]
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: cannot be read as choices ({error}); make it with --preset choices") from None


def distance(choices: list[Choice]) -> float:
    """Root mean square distance of one setting's success rates from the published ones, in percentage points."""
    gaps = [100 * one.success - PUBLISHED[one.formula] for one in choices]
    return float(np.sqrt(np.mean(np.square(gaps))))
