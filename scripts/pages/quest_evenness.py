"""Whether trainings whose attention is more even are more robust: over all, and among those of one formula."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robustkit.attention import FORMULAS
from scripts.zoo.logs import Log
from scripts.zoo.trainings import Trainings, correlation_interval, partial_rank_correlation

from .quest_figures import EVENNESS, FIGURES, ROBUSTNESS, Figure
from .writing import markdown

Floats = NDArray[np.float64]
Formulas = NDArray[np.str_]
FEWEST = 12  # trainings: below, a rank correlation says nothing
OF_EACH = 3  # trainings of each formula: below, intervals within formulas are too narrow


@dataclass(frozen=True)
class Column:
    """A figure of each training, (n,), in the unit of its title."""

    title: str
    values: Floats


def evenness(trainings: Trainings, logs: Sequence[Log], pictures: Path) -> Iterator[str]:
    """Yield the sections on it, and draw the plot; nothing for few trainings."""
    columns = [_column(trainings, figure) for figure in EVENNESS]
    if len(trainings.lines) < FEWEST or not all(np.isfinite(column.values).all() for column in columns):
        return
    held = _column(trainings, FIGURES[0]).values
    robust = [Column(f.title, f.better * _column(trainings, f).values) for f in ROBUSTNESS]
    formulas = np.array([line["attention"] for line in trainings.lines])
    within = formulas if np.unique(formulas, return_counts=True)[1].min() >= OF_EACH else None
    yield "## Does more even attention make a model more robust?"
    yield (
        f"Spearman's rank correlation over {len(held)} trainings with clean accuracy held fixed, and 95 % intervals "
        "over resampled trainings. The signs of errors are turned, so that + means more robust. Trainings of one "
        "formula are alike, so over all of them a correlation may be the formula's and not attention's: *within "
        "formulas* are those of the differences from the formula's own mean."
    )
    yield _correlations("attention on clean images", columns, robust, held, within)
    yield _verdict(columns, robust, held, within)
    during = _during(trainings, logs)
    if during:
        yield "The same for what was seen during training, over layers and epochs:"
        yield _correlations("during training", during, robust, held, within)
    path = pictures / "evenness.svg"
    _draw(columns[0], robust, formulas, path)
    yield (
        f"![Robustness over the share of the largest entropy, a point for each training, a colour for each formula]"
        f"({pictures.name}/{path.name})"
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


def _verdict(columns: Sequence[Column], robust: Sequence[Column], held: Floats, within: Formulas | None) -> str:
    """Return what the share of the largest entropy says, over all and within formulas."""
    said = []
    for groups, where in ((None, "Over all trainings"), (within, "Within formulas")):
        if groups is None and where == "Within formulas":
            said.append(f"Within formulas nothing can be told before each has {OF_EACH} trainings.")
            continue
        more, less = [], []
        for other in robust:
            low, high = _correlation(columns[0].values, other.values, held, groups)[1:]
            more += [other.title] if low > 0 else []
            less += [other.title] if high < 0 else []
        words = [f"more robust by {' and '.join(more)}"] if more else []
        words += [f"less robust by {' and '.join(less)}"] if less else []
        found = " and ".join(words) or "neither more nor less robust, as far as these can tell"
        said.append(f"{where}, those with more even attention are {found}.")
    return "**What follows.** " + " ".join(said)


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
