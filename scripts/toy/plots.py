"""The figures of the toy page: success by rate and decay, key norms by epoch, accuracies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .results import Results
from .run import TOKENS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

STYLE = {"svg.hashsalt": "robustkit", "svg.fonttype": "none", "font.size": 9, "axes.titlesize": 9.5}
LOOKS = {"biased": ("#f25100", "-"), "unbiased": ("#0072b2", "--"), "other": ("#5b6b68", ":")}
"""Colour and line of each kind of token."""
BINS = np.linspace(0, 1, 21)


def _drawn(path: Path, size: tuple[float, float], paint: Callable[[Figure], None]) -> Path:
    """Draw a figure on white as SVG, whose bytes depend only on what is drawn."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        settings: Any = matplotlib.rcParams
        settings.update(STYLE)
        figure = Canvas(figsize=size, layout="constrained")
        FigureCanvasSVG(figure)
        paint(figure)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, format="svg", metadata={"Date": None})
    return path


def heat_maps(results: Results, path: Path) -> Path:
    """Draw, for each formula, the share of correct models in every cell of rates and decays (Figures 3 and A1)."""
    grid = results.plan.grid

    def paint(figure: Figure) -> None:
        columns = min(3, len(grid.formulas))
        rows = -(-len(grid.formulas) // columns)
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for axes in panels.flat[len(grid.formulas) :]:
            axes.set_visible(False)
        for axes, formula in zip(panels.flat, grid.formulas, strict=False):
            shares = results.map(formula)
            mesh = axes.pcolormesh(shares, cmap="viridis", vmin=0, vmax=1, edgecolors="white", linewidth=0.5)
            for (row, column), share in np.ndenumerate(shares):
                colour = "black" if share > 0.6 else "white"
                axes.text(column + 0.5, row + 0.5, f"{100 * share:.0f}", ha="center", va="center", color=colour)
            axes.set_xticks(np.arange(len(grid.rates)) + 0.5, [f"{rate:g}" for rate in grid.rates], rotation=45)
            axes.set_yticks(np.arange(len(grid.decays)) + 0.5, [f"{decay:g}" for decay in grid.decays])
            axes.tick_params(length=0)
            axes.set_title(f"{formula}: {100 * results.success(formula)[0]:.0f} %", loc="left")
        for axes in panels[:, 0]:
            axes.set_ylabel("weight decay")
        for axes in panels.flat[max(0, len(grid.formulas) - columns) : len(grid.formulas)]:  # with none below it
            axes.set_xlabel("learning rate")
            axes.tick_params(labelbottom=True)
        bar = figure.colorbar(mesh, ax=panels.ravel().tolist(), shrink=0.6, ticks=[0, 0.5, 1])
        bar.ax.set_yticklabels(["0 %", "50 %", "100 %"])
        bar.set_label("correct models")

    return _drawn(path, (8.4, 0.9 + 2.4 * -(-len(grid.formulas) // 3)), paint)


def key_norms(results: Results, formulas: Sequence[str], path: Path) -> Path:
    """Draw medians and quartiles of the mean key norms of models that look for b, and of correct ones (4, A4, A5)."""
    groups = [group for group in ("shortcut", "correct") if any((f, group) in results.curves for f in formulas)]

    def paint(figure: Figure) -> None:
        panels = figure.subplots(len(groups), len(formulas), squeeze=False, sharex=True, sharey=False)
        for row, group in zip(panels, groups, strict=True):
            for axes, formula in zip(row, formulas, strict=True):
                _norm_panel(axes, results, formula, group)
            row[0].set_ylabel("norm of keys")
        for axes in panels[-1]:
            axes.set_xlabel("epoch")
        handles = [panels[0, 0].plot([], [], color=c, linestyle=line, linewidth=1.6)[0] for c, line in LOOKS.values()]
        names = ["biased answer", "unbiased answer", "other tokens"]
        figure.legend(handles, names, loc="outside upper left", ncols=3, frameon=False)

    return _drawn(path, (8.4, 0.7 + 2.3 * len(groups)), paint)


def _norm_panel(axes: Any, results: Results, formula: str, group: str) -> None:
    title = "look for b" if group == "shortcut" else "correct"
    axes.set_title(f"{formula}, {title}: {results.group(formula, group).sum()} models", loc="left")
    curve = results.curves.get((formula, group))
    if curve is None:
        axes.text(0.5, 0.5, "none", transform=axes.transAxes, ha="center")
        return
    epochs = np.arange(curve.shape[1])
    for kind, (colour, line) in LOOKS.items():
        low, median, high = curve[:, :, TOKENS.index(kind)]
        axes.fill_between(epochs, low, high, color=colour, alpha=0.18, linewidth=0)
        axes.plot(epochs, median, color=colour, linestyle=line, linewidth=1.6)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.25)


def histograms(results: Results, column: str, title: str, path: Path) -> Path:
    """Draw how many models of each formula end with which accuracy (Figures A2 and A3)."""
    formulas = results.plan.grid.formulas

    def paint(figure: Figure) -> None:
        columns = min(3, len(formulas))
        rows = -(-len(formulas) // columns)
        panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
        for axes in panels.flat[len(formulas) :]:
            axes.set_visible(False)
        for axes, formula in zip(panels.flat, formulas, strict=False):
            axes.hist(results.columns[column][results.of(formula)], bins=BINS, color="#0072b2")
            axes.set_title(formula, loc="left")
            axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0", "25", "50", "75", "100"])
            axes.grid(alpha=0.25)
        for axes in panels[:, 0]:
            axes.set_ylabel("models")
        for axes in panels.flat[max(0, len(formulas) - columns) : len(formulas)]:
            axes.set_xlabel(title)
            axes.tick_params(labelbottom=True)

    return _drawn(path, (8.4, 0.5 + 1.9 * -(-len(formulas) // 3)), paint)
