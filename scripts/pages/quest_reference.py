"""The zoo's figures as a reference of `robustkit compare`: means and spreads over seeds, by formula.

A few trainings may agree by chance, and one has no spread: where a formula has fewer than five, its spread is that of
all formulas together.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

from scripts.zoo.evaluate import part_of
from scripts.zoo.trainings import Trainings, means

from .quest_figures import FIGURES, MAPS, Figure
from .writing import listed, span

ENOUGH = 5  # trainings of a formula: with fewer its own spread is not told
IMAGES = {"shapes": ("generated shapes", "embedded:shapes"), "cifar10": ("CIFAR-10", "CIFAR-10 test")}
"""What a family's trainings were on: in words, and the test images."""


def file_of(family: str) -> str:
    """Return the name of a family's file: that of shapes is the zoo's own, since these images come along."""
    return "zoo.toml" if family == "shapes" else f"zoo-{family}.toml"


def reference(family: str, trainings: Trainings) -> str:
    """Return the TOML file of a family. Figures have the names of conditions and metrics in summary.json, and those of
    maps the name that stands for them.
    """
    kind, data = IMAGES.get(family, (family, family))
    pairs = [(name, figure) for name in trainings.formulas() for figure in FIGURES]
    counts = {len(trainings.values(name, f.condition, f.metric)) for name, f in pairs} - {0}
    over = "one training" if counts <= {1} else f"means and spreads over {span(counts)} trainings"
    pooled = max(counts, default=0) > 1 and min(counts) < ENOUGH
    few = f"; spreads of fewer than {ENOUGH} are those of all formulas together" if pooled else ""
    lines = [
        f'summary = "the zoo\'s small ViTs on {kind}: {over} of each formula{few} ({_images(trainings)})"',
        'source = "docs/results/quest-tables.md, made by python -m scripts.pages.reproduce_quest"',
        f'data = "{data}"',
        'protocol = "standard"',
    ]
    for formula in trainings.formulas():
        lines += ["", f"[{formula}]"]
        for condition in dict.fromkeys(figure.condition for figure in FIGURES):
            found = {
                figure.metric: _mean_and_spread(trainings, formula, figure)
                for figure in FIGURES
                if figure.condition == condition and trainings.values(formula, condition, figure.metric)
            }
            if found:
                inner = ", ".join(f"{metric} = {_level(values)}" for metric, values in found.items())
                name = "agcam" if condition == MAPS else trainings.whole(condition)
                lines.append(f"{json.dumps(name)} = {{ {inner} }}")
    return "\n".join(lines) + "\n"


def _mean_and_spread(trainings: Trainings, formula: str, figure: Figure) -> list[float]:
    """Return the mean over seeds and the standard deviation, where there is one."""
    values = {
        name: list(trainings.values(name, figure.condition, figure.metric).values()) for name in trainings.formulas()
    }
    mean, own = means(values[formula])
    if len(values[formula]) < ENOUGH:
        squares = [(len(each) - 1, means(each)[1] ** 2) for each in values.values() if len(each) > 1]
        freedom = sum(many for many, _ in squares)
        own = math.sqrt(sum(many * square for many, square in squares) / freedom) if freedom else math.nan
    return [mean, own] if math.isfinite(own) else [mean]


def _level(values: Sequence[float]) -> str:
    """Return `[0.904, 0.004]`, mean and standard deviation; the mean of one training."""
    texts = [str(round(value, 6)) for value in values]
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def _images(trainings: Trainings) -> str:
    """Return on how many images figures are: `clean on all test images, fgsm and pgd on 500`."""
    by_count: dict[int | None, list[str]] = {}
    for condition in dict.fromkeys(figure.condition for figure in FIGURES):
        if any(trainings.whole(condition) in line["figures"] for line in trainings.lines):
            by_count.setdefault(part_of(condition).limit, []).append(condition.partition("(")[0])
    return ", ".join(f"{listed(kinds)} on {count or 'all test images'}" for count, kinds in by_count.items())
