"""What the scripts that write pages share: tables, figures of curves, and the findings at the head of a page."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from robustkit.common.files import write_whole
from robustkit.data.shapes import SIZES, draws_of, wears_its_own
from robustkit.errors import RobustkitError

_FOUND = re.compile(r"<!-- found\b.*?<!-- /found -->", re.DOTALL)
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


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown, the heading first, its columns aligned for readers of the source."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |" for row in rows
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def whole_percent(share: float) -> str:
    """Return `93` for 0.934; a dash for nan."""
    return f"{100 * share:.0f}" if math.isfinite(share) else "–"


def listed(words: Sequence[str]) -> str:
    """Return `a, b and c`."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def span(counts: Collection[int]) -> str:
    """Return `3`, or `2 to 5`: the smallest and the largest of numbers; '' of none."""
    return " to ".join(map(str, sorted({min(counts), max(counts)}))) if counts else ""


def means(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard deviation over seeds; nan for the latter where there is one."""
    return float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else math.nan


def spread(values: Sequence[float], digits: int) -> str:
    """Return `90.1 ± 0.4`, mean and standard deviation over seeds; the value of one; a dash of none that is finite."""
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return "–"
    mean, sd = means(finite)
    return f"{mean:.{digits}f}" + (f" ± {sd:.{digits}f}" if len(finite) > 1 else "")


def shortcut(studies: str) -> str:
    """Return what a model that looks at colour alone gets right on the generated shapes, and what follows.

    studies: the way from the page to the folder of studies.
    """
    own, every = sum(wears_its_own(draws_of("test", index)) for index in range(SIZES["test"])), SIZES["test"]
    return (
        f"On shapes, {own} of {every} test images wear the colour of their class, so that a model that looks at colour "
        f"alone is right on {100 * own / every:.0f} % at least. The four checkpoints that were tested go by the colour "
        "far more than by the outline ([one thing "
        f"changed]({studies}/what_models_need/README.md#one-thing-changed)). So clean top-1 of shapes can hardly tell "
        "formulas apart, and robustness there may be mostly that of looking at colours."
    )


def deliver(script: str, make: Callable[[], str], path: Path | None) -> int:
    """Print the page that `make` returns, and write it to `path` if there is one. Return the exit status.

    A RobustkitError becomes one line on standard error. script: the module's name, `scripts.studies.maps.page`.
    """
    try:
        written = make()
    except RobustkitError as error:
        print(f"{script}: {error}", file=sys.stderr)
        return error.exit_code
    print(written)
    if path:
        write_page(path, written)
    return 0


def write_page(path: Path, text: str) -> None:
    """Write a page, and keep the findings that a person wrote under its title, if the page is there already.

    They begin with a line `<!-- found: … -->` and end with `<!-- /found -->`.
    """
    if path.exists() and (kept := _FOUND.search(path.read_text("utf-8"))):
        title, rest = text.split("\n\n", 1)
        text = f"{title}\n\n{kept[0]}\n\n{rest}"
    write_whole(path, text.encode())


def write_pages(folder: Path, pages: Mapping[str, str], check: bool = False) -> int:
    """Write the generated pages of a folder by their files' names, and delete its other ones. The exit status.

    check: write nothing; status 1 and a line where a page differs, is missing, or is left over.
    """
    stored = {path.name: path for path in folder.glob("*.md")}
    old = sorted(stored.keys() - pages.keys())
    changed = [name for name, text in pages.items() if name not in stored or stored[name].read_text("utf-8") != text]
    if check:
        for name in (*changed, *old):
            print(f"{folder.name}/{name} is out of date", file=sys.stderr)
        return int(bool(changed or old))
    folder.mkdir(parents=True, exist_ok=True)
    for name in changed:
        (folder / name).write_text(pages[name], "utf-8")
    for name in old:
        stored[name].unlink()
    return 0
