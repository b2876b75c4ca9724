"""The figures of the QUEST paper's tables: what our trainings have of them, and what is published."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from robustkit.common.differences import Difference
from robustkit.results.published import read_published
from scripts.pages.writing import listed, means, span, spread

from .evaluate import part_of
from .trainings import Trainings

ENOUGH = 5  # trainings of a formula: with fewer its own spread is unknown
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
        'source = "scripts/studies/quest_tables/README.md, made by python -m scripts.studies.quest_tables.page"',
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


FGSM, PGD, SPSA, AUTOATTACK = "fgsm", "pgd", "spsa", "autoattack"
"""Conditions whose kind is all that is said here: the only one of it in a line, of whatever radius or constants."""
IN_C = "in-c"  # with the constants of ImageNet-C or, on images of 32 pixels, of CIFAR-10-C
FMN, ATTENTION, MAPS = "fmn(steps=100)", "attention(clean)", "cam(agcam,faithfulness=none,mode=box)"
PAPERS = ("quest-ablation", "quest")
"""References of the package; the first that has both sides of a difference counts."""


def signed(found: Difference, scale: float = 1.0, digits: int = 1) -> str:
    """Return `+1.5 [+1.1, +1.8]`, a difference with its interval, where it has one."""
    parts = [f"{scale * value:+.{digits}f}" for value in (found.value, found.ci_low, found.ci_high)]
    return f"{parts[0]} [{parts[1]}, {parts[2]}]" if math.isfinite(found.ci_low) else parts[0]


@dataclass(frozen=True)
class Figure:
    """A figure of a training. better: 1 where more is better, -1 where less is, 0 where neither. published: condition
    and metric of the paper's tables, where they have it.
    """

    condition: str
    metric: str
    title: str
    scale: float = 1.0
    digits: int = 2
    better: int = 0
    published: tuple[str, str] | None = None

    @property
    def name(self) -> str:
        """The title without the unit."""
        return self.title.partition(",")[0]

    @property
    def unit(self) -> str:
        """Of its differences, as it stands after a number: ` points`, ` of 1/255`; '' where there is none."""
        unit = self.title.partition(", ")[2]
        return " points" if unit == "%" else f" of {unit}" if unit else ""

    def signed(self, found: Difference) -> str:
        """Return a difference with its interval, where it has one."""
        return signed(found, self.scale, self.digits)

    def level(self, trainings: Trainings, formula: str) -> str:
        """Return mean ± standard deviation over seeds."""
        values = trainings.values(formula, self.condition, self.metric).values()
        return spread([self.scale * value for value in values], self.digits)

    def papers(self, formulas: Sequence[str]) -> list[float] | None:
        """Return the published figures of all these formulas, of one source; None where none has them all."""
        if self.published is None:
            return None
        condition, metric = self.published
        for name in PAPERS:
            table = read_published(name).figures
            found = [table.get(formula, {}).get(condition, {}).get(metric) for formula in formulas]
            if all(value is not None for value in found):
                return [value for value in found if value is not None]
        return None

    def of_paper(self, formula: str) -> str:
        """Return the published level."""
        found = self.papers([formula])
        return "–" if found is None else f"{self.scale * found[0]:.{self.digits + (self.scale == 100)}f}"


@dataclass(frozen=True)
class Table:
    """Figures that stand next to each other, and a note on them. {eps} in it: the radius of their attacks."""

    title: str
    note: str
    figures: tuple[Figure, ...]

    def reported(self, trainings: Trainings) -> str:
        """Return the note on the figures of these trainings."""
        names = (trainings.whole(figure.condition) for figure in self.figures)
        radii = [found[1] for name in names if (found := re.search(r"\beps=([^,)]+)", name))]
        return self.note.format(eps=" and ".join(dict.fromkeys(radii)))


TABLES = (
    Table(
        "Tables 1 and A1: clean images",
        "",
        (
            Figure("clean", "top1", "clean top-1, %", 100, 1, 1, ("clean", "top1")),
            Figure("clean", "nll", "clean NLL", 1, 3, -1, ("clean", "nll")),
        ),
    ),
    Table(
        "Table 1: corruptions",
        "IN-C is the paper's mCE of 16 corruptions over AlexNet's, here the mean error of 15 (on images of 32 pixels "
        "with the constants of CIFAR-10-C).",
        (Figure(IN_C, "mean_error", "IN-C mean error, %", 100, 1, -1, ("in-c", "mce_16")),),
    ),
    Table(
        "Table 3: FGSM and PGD",
        "The paper attacks at 1/255 in normalised units, ours at {eps} in pixels. The smallest distance (FMN, linf) "
        "needs no radius.",
        (
            Figure(FGSM, "top1", "FGSM top-1, %", 100, 1, 1, ("fgsm", "top1")),
            Figure(FGSM, "nll", "FGSM NLL", 1, 3, -1, ("fgsm", "nll")),
            Figure(PGD, "top1", "PGD-20 top-1, %", 100, 1, 1, ("pgd", "top1")),
            Figure(PGD, "nll", "PGD-20 NLL", 1, 3, -1, ("pgd", "nll")),
            Figure(FMN, "median_distance", "median distance, 1/255", 255, 2, 1),
        ),
    ),
    Table(
        "Table 4: SPSA and AutoAttack",
        "SPSA with a budget of 10 steps of 32 directions, so small that it lowers accuracy little, AutoAttack whole; "
        "both at {eps}, on few images.",
        (
            Figure(SPSA, "top1", "SPSA top-1, %", 100, 1, 1, ("spsa", "top1")),
            Figure(AUTOATTACK, "top1", "AutoAttack top-1, %", 100, 1, 1, ("autoattack", "top1")),
        ),
    ),
    Table(
        "Table 6: AG-CAM",
        "Box mode at threshold 0.5: the boxes around what a map marks, against the object's; images predicted right.",
        (
            Figure(MAPS, "cam_pixel_accuracy", "pixel accuracy, %", 100, 1, 1, ("agcam", "cam_pixel_accuracy")),
            Figure(MAPS, "cam_iou", "IoU, %", 100, 1, 1, ("agcam", "cam_iou")),
            Figure(MAPS, "cam_dice", "DICE, %", 100, 1, 1, ("agcam", "cam_dice")),
        ),
    ),
)
FIGURES = tuple(figure for table in TABLES for figure in table.figures)
EVENNESS = (
    Figure(ATTENTION, "entropy_share", "share of the largest entropy", 1, 3),
    Figure(ATTENTION, "largest_logit", "largest logit", 1, 1),
    Figure(ATTENTION, "key_norm_spread", "spread of key norms", 1, 3),
    Figure(ATTENTION, "softmax_slope", "slope of softmax", 1, 3),
    Figure(ATTENTION, "strongest_key", "weight of the strongest key", 1, 3),
)
ROBUSTNESS = tuple(
    figure
    for figure in FIGURES
    if (figure.condition, figure.metric) in ((PGD, "top1"), (FMN, "median_distance"), (IN_C, "mean_error"))
)
