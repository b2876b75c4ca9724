"""What the paper leaves open about the toy task, and what each choice does to the success rates."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from robustkit.common.files import write_whole
from robustkit.errors import RunError
from scripts.pages.writing import markdown, whole_percent

from .model import Shape
from .results import OUTCOMES, PUBLISHED, gather
from .run import Grid, Plan, Setting, run

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
        choices = list(_summary(work / f"setting{number}", Plan(setting, grid)))
        yield f"{setting.text()}: " + ", ".join(f"{choice.formula} {100 * choice.success:.0f} %" for choice in choices)


def _summary(work: Path, plan: Plan) -> Iterator[Choice]:
    results = gather(work, plan)
    classes = results.outcomes()
    for formula in plan.grid.formulas:
        rows = results.of(formula)
        counts = tuple(int((classes[rows] == outcome).sum()) for outcome in OUTCOMES)
        failed = rows & (classes != "correct")
        means = [
            float(results.columns[name][some].mean()) if some.any() else np.nan
            for some in (rows, failed)
            for name in ("train", "test")
        ]
        yield Choice(plan.setting.text(), formula, int(rows.sum()), counts, tuple(round(mean, 4) for mean in means))


def save(work: Path, path: Path, grid: Grid = SLICE) -> None:
    """Write choices.csv of a folder in which `explore` has ended."""
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(HEADING)
    for number, setting in enumerate(SETTINGS):
        for choice in _summary(work / f"setting{number}", Plan(setting, grid)):
            writer.writerow([choice.setting, choice.formula, choice.models, *choice.counts, *choice.means])
    write_whole(path, buffer.getvalue().encode())


def load(path: Path) -> list[Choice]:
    """Read what `save` wrote. Raises RunError where it cannot be read."""
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
    """Return the root mean square distance of one setting's success rates from the published ones, in percentage
    points.
    """
    gaps = [100 * choice.success - PUBLISHED[choice.formula] for choice in choices]
    return float(np.sqrt(np.mean(np.square(gaps))))


def _table(choices: list[Choice]) -> str:
    rows = []
    for setting, group in groupby(choices, key=lambda choice: choice.setting):
        members = list(group)
        failed = [f"{whole_percent(choice.means[2])}, {whole_percent(choice.means[3])}" for choice in members]
        cells = [f"{whole_percent(choice.success)} ({shares})" for choice, shares in zip(members, failed, strict=True)]
        rows.append((setting, *cells, f"{distance(members):.0f}"))
    formulas = list(dict.fromkeys(choice.formula for choice in choices))
    published = (f"{PUBLISHED[formula]}" if PUBLISHED[formula] else "about 0" for formula in formulas)
    return markdown([("setting", *formulas, "distance"), ("*published*", *published, ""), *rows])


def _failed(choices: list[Choice], reading: str) -> str:
    """Return the range of mean test accuracies of failed models under a reading, in percent."""
    means = [choice.means[3] for choice in choices if reading in choice.setting and np.isfinite(choice.means[3])]
    return f"{whole_percent(min(means))} to {whole_percent(max(means))} %" if means else "nothing, since none failed,"


def section(choices: list[Choice]) -> str:
    """Return the page's section about the choices."""
    return f"""## What the paper leaves open

A slice of the grid under each choice, {choices[0].models} models of a formula: percent correct and, in brackets, mean \
training and test accuracy of those that are not. Distance: root mean square of the four gaps to the published rates, \
in points. `--preset choices` makes it.

{_table(choices)}

- Algorithm A2, read line by line (*literal*), takes queries, keys and values of the tokens before LayerNorm. The CLS \
query is the same for all samples, so standard and QNorm logits are linear in a token, and an unbiased answer, whose \
distribution is symmetric around 0, lies on the far side half of the time. No training brings these two over 90 %; \
the paper reports 25 and 49 %. Keys of fixed length see more: next to a constant part, which positions can give, a \
long vector turns its key further than a short one.
- *Pre-norm* (tokens pass LayerNorm first, both residuals around the stream) gives the same to all formulas. It is the \
default for this reason, and not for its distance.
- Failed models have mean test accuracies of {_failed(choices, "literal")} under the literal reading and of \
{_failed(choices, "pre-norm")} under pre-norm; the paper has 20 to 40 % for biased ones.
- The number of training samples is not given. With the default start, 2048 let standard, QNorm and QUEST all \
succeed sometimes and fail sometimes; 1024 are too few for QNorm.
"""
