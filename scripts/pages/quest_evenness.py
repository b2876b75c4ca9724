"""Whether trainings whose attention is more even are more robust: over all, and among those of one formula."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robustkit.attention import FORMULAS
from scripts.zoo.logs import Log
from scripts.zoo.trainings import LEVEL, Trainings, correlation_interval, partial_rank_correlation

from .quest_figures import EVENNESS, FIGURES, ROBUSTNESS, Figure
from .writing import listed, markdown

Floats = NDArray[np.float64]
Formulas = NDArray[np.str_]
FEWEST = 12  # trainings: below, a rank correlation says nothing
OF_EACH = 3  # trainings of each formula: below, intervals within formulas are too narrow
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
    """What is known of each of n trainings. columns: how even attention is, its share of the largest entropy first;
    robust: more is better; held: clean accuracy, (n,); formulas: (n,).
    """

    columns: tuple[Column, ...]
    robust: tuple[Column, ...]
    held: Floats
    formulas: Formulas

    @property
    def within(self) -> Formulas | None:
        """The formulas, where there are enough trainings of each to look within."""
        return self.formulas if np.unique(self.formulas, return_counts=True)[1].min() >= OF_EACH else None

    @property
    def correlations(self) -> int:
        """The number of correlations of a side, over all trainings or within formulas."""
        return len(self.columns) * len(self.robust)

    @cached_property
    def over_all(self) -> dict[str, Leaning]:
        """By measure of attention. Intervals hold for all correlations together (Bonferroni)."""
        return self._leanings(None)

    @cached_property
    def of_one_formula(self) -> dict[str, Leaning]:
        """The same within formulas; nothing before there are enough trainings of each."""
        return {} if self.within is None else self._leanings(self.within)

    def _leanings(self, groups: Formulas | None) -> dict[str, Leaning]:
        level, found = LEVEL / self.correlations, {}
        for column in self.columns:
            more, less = [], []
            for other in self.robust:
                sides = column.values, other.values, self.held, groups
                low, high = correlation_interval(*sides, draws=DRAWS, level=level)
                more += [other.name] if low > 0 else []
                less += [other.name] if high < 0 else []
            found[column.name] = Leaning(tuple(more), tuple(less))
        return found


def evenness_of(trainings: Trainings) -> Evenness | None:
    """Return it for trainings that are enough and all have the figures, else None."""
    columns = tuple(_column(trainings, figure) for figure in EVENNESS)
    robust = tuple(Column(f.title, f.better * _column(trainings, f).values) for f in ROBUSTNESS)
    if len(trainings.lines) < FEWEST or not all(np.isfinite(column.values).all() for column in (*columns, *robust)):
        return None
    formulas = np.array([line["attention"] for line in trainings.lines])
    return Evenness(columns, robust, _column(trainings, FIGURES[0]).values, formulas)


def evenness(even: Evenness, trainings: Trainings, logs: Sequence[Log], picture: Path) -> Iterator[str]:
    """Yield the sections on it, and draw the plot."""
    robust, held, within = even.robust, even.held, even.within
    yield "## Does more even attention make a model more robust?"
    yield (
        f"Spearman's rank correlation over {len(held)} trainings with clean accuracy held fixed, and 95 % intervals "
        "over resampled trainings, each of one correlation. The signs of errors are turned, so that + means more "
        "robust. Trainings of one formula are alike, so over all of them a correlation may be the formula's and not "
        "attention's, and intervals say nothing about other formulas: *within formulas* are correlations of the "
        "differences from the formula's own mean."
    )
    yield _correlations("attention on clean images", even.columns, robust, held, within)
    yield _verdict(even)
    during = _during(trainings, logs)
    if during:
        yield "The same for what was seen during training, over layers and epochs:"
        yield _correlations("during training", during, robust, held, within)
    _draw(even.columns[0], robust, even.formulas, picture)
    yield (
        f"![Robustness over the share of the largest entropy, a point for each training, a colour for each formula]"
        f"({picture.parent.name}/{picture.name})"
    )


def _column(trainings: Trainings, figure: Figure) -> Column:
    values = [line["figures"].get(figure.condition, {}).get(figure.metric, np.nan) for line in trainings.lines]
    return Column(figure.title, figure.scale * np.array(values))


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


def _correlation(x: Floats, y: Floats, held: Floats, groups: Formulas | None) -> tuple[float, float, float]:
    return (partial_rank_correlation(x, y, held, groups), *correlation_interval(x, y, held, groups))


def _correlations(
    heading: str, columns: Sequence[Column], robust: Sequence[Column], held: Floats, within: Formulas | None
) -> str:
    """Return a table; within: the formula of each training, where there are enough of each to look within."""
    sides = [None] if within is None else [None, within]
    titles = [t for c in robust for t in (c.title, *(["within formulas"] if within is not None else []))]
    rows: list[tuple[str, ...]] = [(heading, *titles)]
    for column in columns:
        cells = []
        for other in robust:
            for groups in sides:
                value, low, high = _correlation(column.values, other.values, held, groups)
                cells.append(f"{value:+.2f} [{low:+.2f}, {high:+.2f}]")
        rows.append((column.title, *cells))
    return markdown(rows)


def _verdict(even: Evenness) -> str:
    """Return what measures of attention say about robustness, over all and within formulas."""
    parts = [f"**What follows**, from intervals that hold for all {even.correlations} correlations of a side together."]
    for where, found in (("Over all trainings", even.over_all), ("Within formulas", even.of_one_formula)):
        if not found:
            parts.append(f"{where} nothing can be told before each has {OF_EACH} trainings.")
            continue
        first, *others = found.items()
        said = first[1].text or "neither more nor less robust, as far as these can tell"
        parts.append(f"{where}, those with more even attention are {said}.")
        parts += [f"Those with more of *{name}* are {leaning.text}." for name, leaning in others if leaning.text]
    return " ".join(parts)


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
