"""Figures of curves, panel by panel, as SVG files that are the same at every call."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

COLOURS = ("black", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5c00")
Curve = tuple[Sequence[float], Sequence[float]]
"""Places on the axis below, and values."""


@dataclass(frozen=True)
class Panel:
    """One set of axes. curves: by label, which has the same colour in every panel of a figure. beyond: values above it
    are not drawn.
    """

    title: str
    side: str
    curves: Mapping[str, Curve]
    log: bool = False
    beyond: float = math.inf


def draw(path: Path, rows: Sequence[Sequence[Panel]], below: str, log_below: bool = False) -> None:
    """Draw rows of panels, as many in each, with one legend. below: what the axes below are."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    labels = list(dict.fromkeys(label for row in rows for panel in row for label in panel.curves))
    size = (2.4 + 2.6 * len(rows[0]), 0.6 + 2.3 * len(rows))
    figure, axes = pyplot.subplots(len(rows), len(rows[0]), figsize=size, squeeze=False, layout="constrained")
    for axis, panel in zip(axes.flat, (panel for row in rows for panel in row), strict=True):
        for label, (places, values) in panel.curves.items():
            kept = [value if value <= panel.beyond else math.nan for value in values]
            colour = COLOURS[labels.index(label) % len(COLOURS)]
            axis.plot(places, kept, color=colour, linewidth=1.2, label=label, marker="." if log_below else "")
        axis.set_title(panel.title, fontsize=9)
        axis.set_ylabel(panel.side, fontsize=8)
        axis.set_xlabel(below, fontsize=8)
        axis.set_xscale("log" if log_below else "linear")
        axis.set_yscale("log" if panel.log else "linear")
        axis.grid(alpha=0.25)
        axis.tick_params(labelsize=7, which="both")
    named = {name: line for axis in axes.flat for line, name in zip(*axis.get_legend_handles_labels(), strict=True)}
    shown = [label for label in labels if label in named]
    figure.legend([named[name] for name in shown], shown, fontsize=8, loc="outside right center", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with pyplot.rc_context({"svg.hashsalt": path.stem}):
        figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
