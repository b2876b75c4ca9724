"""Whether trainings whose attention is more even are more robust: over all, and among those of one formula."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robustkit.attention import FORMULAS
from robustkit.common.differences import holm
from robustkit.display.format import p_value as p_text
from scripts.pages.writing import listed, markdown
from scripts.zoo.logs import Log

from .figures import EVENNESS, FIGURES, ROBUSTNESS, Figure
from .trainings import (
    LEVEL,
    Trainings,
    chance_between,
    correlation_interval,
    group_orders,
    partial_rank_correlation,
    smallest_correlation,
)

Floats = NDArray[np.float64]
Formulas = NDArray[np.str_]
FEWEST = 12  # trainings: below, a rank correlation says nothing
OF_EACH = 3  # trainings of a formula: of fewer, intervals within formulas are too narrow
OF_EACH_FOR_POWER = 5  # below, resampled trainings find much less than Fisher's z has it
ALL, WITHIN = "Over all trainings", "Within formulas"
TOO_FEW = "so few formulas have too few orders"
DRAWS = 10_000  # for verdicts, whose intervals end far out


@dataclass(frozen=True)
class Column:
    """A figure of each training, (n,), in the unit of its title."""

    title: str
    values: Floats

    @property
    def name(self) -> str:
        """The title without the unit."""
        return self.title.partition(",")[0]


@dataclass(frozen=True)
class Leaning:
    """By which figures trainings with more of something are more robust, and by which less."""

    more: tuple[str, ...]
    less: tuple[str, ...]

    @property
    def text(self) -> str:
        """It in words; '' where there are none."""
        words = [f"more robust by {listed(self.more)}"] if self.more else []
        words += [f"less robust by {listed(self.less)}"] if self.less else []
        return " and ".join(words)


@dataclass(frozen=True)
class Evenness:
    """What is known of each of n trainings, several of each formula. columns: how even attention is, its share of the
    largest entropy first; robust: more is better; held: how good it is on clean images, (n,); formulas: (n,).
    """

    columns: tuple[Column, ...]
    robust: tuple[Column, ...]
    held: Floats
    formulas: Formulas

    @property
    def of_each(self) -> int:
        """How many trainings there are of each formula, at least."""
        return int(np.unique(self.formulas, return_counts=True)[1].min())

    @property
    def correlations(self) -> int:
        """The number of correlations of a side, over all trainings or within formulas."""
        return len(self.columns) * len(self.robust)

    @property
    def least(self) -> float | None:
        """A correlation within formulas that is found about seven times out of ten, as one of a side; None where there
        are too few trainings to tell.
        """
        if self.of_each < OF_EACH_FOR_POWER:
            return None
        return smallest_correlation(len(self.held), len(np.unique(self.formulas)), LEVEL / self.correlations)

    def chance(self, column: Column, other: Column) -> float:
        """Return the p-value of a correlation over all trainings, by orders of the formulas."""
        return chance_between(column.values, other.values, self.held, self.formulas)

    @cached_property
    def over_all(self) -> dict[str, Leaning]:
        """By measure of attention, with Holm's correction for all correlations of this side; nothing where so few
        formulas have too few orders for any to be beyond chance.
        """
        if self.correlations / len(group_orders(len(np.unique(self.formulas)))) >= LEVEL:
            return {}
        pairs = [(column, other) for column in self.columns for other in self.robust]
        adjusted = holm([self.chance(*pair) for pair in pairs])
        signs = {}
        for (column, other), p_value in zip(pairs, adjusted, strict=True):
            value = partial_rank_correlation(column.values, other.values, self.held)
            signs[column.name, other.name] = np.sign(value) if p_value < LEVEL else 0.0
        return self._leanings(signs)

    @cached_property
    def of_one_formula(self) -> dict[str, Leaning]:
        """The same within formulas, by intervals that hold for all correlations together (Bonferroni)."""
        level, signs = LEVEL / self.correlations, {}
        for column in self.columns:
            for other in self.robust:
                sides = column.values, other.values, self.held, self.formulas
                low, high = correlation_interval(*sides, draws=DRAWS, level=level)
                signs[column.name, other.name] = float(low > 0) - float(high < 0)
        return self._leanings(signs)

    def _leanings(self, signs: Mapping[tuple[str, str], float]) -> dict[str, Leaning]:
        found = {}
        for column in self.columns:
            more, less = (
                tuple(other.name for other in self.robust if signs[column.name, other.name] == sign) for sign in (1, -1)
            )
            found[column.name] = Leaning(more, less)
        return found


def evenness_of(trainings: Trainings, held: Figure = FIGURES[0]) -> Evenness | None:
    """Return it for the trainings of which there are several of each formula, where they are enough and all have the
    figures, else None. held: what is held fixed.
    """
    trainings = several_of_each(trainings)
    columns = tuple(_column(trainings, figure) for figure in EVENNESS)
    robust = tuple(Column(f.title, f.better * _column(trainings, f).values) for f in ROBUSTNESS)
    fixed = _column(trainings, held)
    if len(trainings.lines) < FEWEST or lacking(trainings):
        return None
    formulas = np.array([line["attention"] for line in trainings.lines])
    return Evenness(columns, robust, fixed.values, formulas)


def several_of_each(trainings: Trainings) -> Trainings:
    """Return those of formulas with enough trainings to look within."""
    counts = trainings.counts()
    return Trainings(tuple(line for line in trainings.lines if counts[line["attention"]] >= OF_EACH))


def lacking(trainings: Trainings) -> list[str]:
    """Return the figures for correlations that a training lacks, or that are the same for all."""
    columns = [_column(trainings, figure) for figure in (*EVENNESS, *ROBUSTNESS, *FIGURES[:2])]
    return [c.title for c in columns if not (np.isfinite(c.values).all() and np.ptp(c.values) > 0)]


def evenness(even: Evenness, trainings: Trainings, logs: Sequence[Log], picture: Path) -> Iterator[str]:
    """Yield the sections on it, and draw the plot."""
    trainings = several_of_each(trainings)
    yield "### Does more even attention make a model more robust?"
    yield (
        f"Spearman's rank correlation over {len(even.held)} trainings, of formulas with {OF_EACH} or more, clean top-1 "
        "held fixed. The signs of errors are turned, so that + means more robust. Trainings of one formula are alike, "
        "so that over all of them a correlation is mostly the formula's: its p-value is of a test that gives what a "
        "formula's mean has beyond its clean top-1 to other formulas, in all orders (Freedman and Lane 1983; 5040 "
        "random ones above seven formulas). *Within formulas* are correlations of the differences from the formula's "
        f"own mean, with 95 % intervals over resampled trainings. Both are of one correlation each.{_between(even)}"
        f"{_found(even)}"
    )
    yield _correlations("attention on clean images", even.columns, even)
    yield _verdict(even)
    other = evenness_of(trainings, FIGURES[1])
    if other:
        values = len(np.unique(even.held))
        few = (
            f"Clean top-1 has only {values} values here, so it holds little fixed. "
            if 2 * values < len(even.held)
            else ""
        )
        yield f"{few}With clean NLL held fixed instead: {' '.join(_said(other))}"
    during = _during(trainings, logs)
    if during:
        yield "The same for what was seen during training, over layers and epochs, clean top-1 held fixed:"
        yield _correlations("during training", during, even)
    _draw(even.columns[0], even.robust, even.formulas, picture)
    yield (
        f"![Robustness over the share of the largest entropy, a point for each training, a colour for each formula]"
        f"({picture.name})"
    )


def _between(even: Evenness) -> str:
    """Return what a correlation over all trainings must be to show; '' where none can."""
    if not even.over_all:
        return ""
    return (
        f" Over all trainings there are in effect {len(np.unique(even.formulas))} values, one of each formula, so that "
        "only a very strong correlation shows."
    )


def _found(even: Evenness) -> str:
    """Return which correlations within formulas could have been found."""
    if even.least is None:
        return ""
    return (
        f" Within formulas one of {even.least:.2f} is found about seven times out of ten (simulated), as one of "
        f"{even.correlations}."
    )


def _column(trainings: Trainings, figure: Figure) -> Column:
    return Column(figure.title, figure.scale * np.array(trainings.column(figure.condition, figure.metric)))


def _during(trainings: Trainings, logs: Sequence[Log]) -> list[Column]:
    """Return the columns that logs give; none where a training has no log."""
    found = {(log.attention, log.seed): log for log in logs if not log.variant}
    keys = [(line["attention"], line["seed"]) for line in trainings.lines]
    if not set(keys) <= found.keys():
        return []
    return [
        Column("largest logit of any epoch", np.array([found[key].largest_logit() for key in keys])),
        Column("its largest change from an epoch to the next", np.array([found[key].logit_change() for key in keys])),
    ]


def _correlations(heading: str, columns: Sequence[Column], even: Evenness) -> str:
    """Return a table: over all trainings, and within formulas."""
    titles = [title for column in even.robust for title in (column.title, "within formulas")]
    rows: list[tuple[str, ...]] = [(heading, *titles)]
    for column in columns:
        cells = []
        for other in even.robust:
            sides = column.values, other.values, even.held
            p_value = p_text(even.chance(column, other))
            cells.append(f"{partial_rank_correlation(*sides):+.2f}, p {p_value}")
            value, (low, high) = (
                find(*sides, even.formulas) for find in (partial_rank_correlation, correlation_interval)
            )
            cells.append(f"{value:+.2f} [{low:+.2f}, {high:+.2f}]")
        rows.append((column.title, *cells))
    return markdown(rows)


def _verdict(even: Evenness) -> str:
    """Return what measures of attention say about robustness, over all and within formulas."""
    return " ".join(
        [
            f"**What follows**, with a correction for all {even.correlations} correlations of a side (Holm; within "
            "formulas Bonferroni).",
            *_said(even),
        ]
    )


def _said(even: Evenness) -> Iterator[str]:
    for where, found in ((ALL, even.over_all), (WITHIN, even.of_one_formula)):
        if not found:
            yield f"{where} nothing can be told: {TOO_FEW}."
            continue
        first, *others = found.items()
        said = first[1].text or "neither more nor less robust, as far as these can tell"
        yield f"{where}, those with more even attention are {said}."
        for name, leaning in others:
            if leaning.text:
                yield f"Those with more of *{name}* are {leaning.text}."


def _draw(even: Column, robust: Sequence[Column], formulas: NDArray[np.str_], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(robust), figsize=(3.4 * len(robust), 3.2), layout="constrained")
    for axis, other in zip(axes, robust, strict=True):
        sign = -1 if (other.values < 0).all() else 1
        for place, name in enumerate(name for name in FORMULAS if name in formulas):
            of_formula = formulas == name
            colour = pyplot.get_cmap("tab10")(place)
            axis.scatter(even.values[of_formula], sign * other.values[of_formula], s=18, color=colour, label=name)
        axis.set_xlabel(even.title, fontsize=9)
        axis.set_ylabel(other.title, fontsize=9)
        if sign < 0:
            axis.invert_yaxis()
        axis.tick_params(labelsize=8)
        axis.grid(alpha=0.25)
    axes[-1].legend(fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with pyplot.rc_context({"svg.hashsalt": "zoo"}):
        figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
