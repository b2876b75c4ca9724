"""Write what the runs of `scripts/stability/train.py` show: curves, a table, and how to use the stabilisers.

    python -m scripts.stability.page --work docs/results/stabilisers/runs --markdown docs/results/stabilisers.md

Reads logs only, and draws the figure next to the page. Runs that are not there, or are not over, are left out and
counted.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustkit.errors import RobustkitError

from ..pages.writing import markdown
from .text import STUCK, guide, setting
from .train import METHODS, PRESET, RATES, SEEDS, Method


@dataclass(frozen=True)
class Trained:
    """One finished run. loss: of the last epoch; stuck: it is above half of what guessing gives, or no number."""

    rows: list[dict[str, Any]]

    @property
    def diverged(self) -> bool:
        return bool(self.rows[-1].get("diverged"))

    @property
    def loss(self) -> float:
        return math.nan if self.diverged else float(self.rows[-1]["loss"])

    @property
    def stuck(self) -> bool:
        return not self.loss <= STUCK

    @property
    def accuracy(self) -> float:
        return math.nan if self.diverged else float(self.rows[-1]["test_accuracy"])

    def curve(self, name: str) -> tuple[list[int], list[float]]:
        """Return (steps, values): the loss, the largest logit of all layers, or the lowest entropy of a layer."""
        rows = [row for row in self.rows if "probe" in row]
        pick = {"loss": None, "largest_logit": max, "entropy": min}[name]
        return [row["step"] for row in rows], [
            row["loss"] if pick is None else pick(row["probe"][name]) for row in rows
        ]


Found = dict[tuple[float, str], list[Trained]]


def collect(work: Path) -> Found:
    """Return the finished runs by rate and method's title, the seeds in order."""
    outcomes: Found = {}
    for rate in RATES:
        for method in METHODS:
            for seed in SEEDS:
                log = work / method.folder(rate, seed) / "log.jsonl"
                rows = [json.loads(line) for line in log.read_text("utf-8").splitlines()] if log.exists() else []
                if rows and (rows[-1].get("diverged") or rows[-1]["epoch"] == PRESET.epochs):
                    outcomes.setdefault((rate, method.title), []).append(Trained(rows))
    if not outcomes:
        raise RobustkitError(f"{work}: no finished run; start with scripts/stability/train.py --work {work}")
    return outcomes


def span(values: Sequence[float], form: str) -> str:
    """Return `0.71`, or the median with the lowest and the highest of several seeds."""
    if any(map(math.isnan, values)):
        return "no number"
    middle = format(statistics.median(values), form)
    return middle if len(values) == 1 else f"{middle} ({format(min(values), form)} to {format(max(values), form)})"


def table(outcomes: Found, rate: float) -> str:
    """Return what became of each method at a rate."""
    rows = [["method", "seeds", "stuck", "loss", "test accuracy, %", "largest logit", "lowest entropy, nats"]]
    for method in METHODS:
        runs = outcomes.get((rate, method.title), [])
        if not runs:
            continue
        whole = [run for run in runs if not run.diverged]
        ends = {name: [run.curve(name)[1][-1] for run in whole] for name in ("largest_logit", "entropy")}
        rows.append(
            [
                method.title,
                str(len(runs)),
                f"{sum(run.stuck for run in runs)} of {len(runs)}",
                span([run.loss for run in runs], ".2f"),
                span([100 * run.accuracy for run in runs], ".0f"),
                span(ends["largest_logit"], ".0f") if whole else "",
                span(ends["entropy"], ".2f") if whole else "",
            ]
        )
    return markdown(rows)


def in_short(outcomes: Found) -> str:
    """Return which methods were stuck at which rate."""
    lines = []
    for rate in sorted(RATES):
        counts = {
            method.title: (sum(run.stuck for run in runs), len(runs))
            for method in METHODS
            if (runs := outcomes.get((rate, method.title)))
        }
        if not counts:
            continue
        stuck = [f"{title} ({count} of {of})" for title, (count, of) in counts.items() if count]
        free = [title for title, (count, _) in counts.items() if not count]
        lines.append(
            f"- Rate {rate:g}: stuck {', '.join(stuck) or 'none'}; in no seed stuck {', '.join(free) or 'none'}."
        )
    return "\n".join(lines)


def draw(outcomes: Found, path: Path) -> None:
    """Draw a column per rate and a row per quantity, with a line per seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rates = sorted({rate for rate, _ in outcomes})
    panels = {"loss": "training loss", "largest_logit": "largest |logit|", "entropy": "lowest entropy, nats"}
    figure, axes = pyplot.subplots(
        len(panels),
        len(rates),
        figsize=(2.2 + 2.9 * len(rates), 6.6),
        sharex=True,
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for column, rate in enumerate(rates):
        axes[0, column].set_title(f"rate {rate:g}", fontsize=10)
        axes[-1, column].set_xlabel("step", fontsize=9)
        for axis, (name, title) in zip(axes[:, column], panels.items(), strict=True):
            for place, method in enumerate(METHODS):
                for seed, run in enumerate(outcomes.get((rate, method.title), [])):
                    axis.plot(*run.curve(name), **_line(place, method), label=None if seed else method.title)
            axis.grid(alpha=0.25)
            axis.tick_params(labelsize=8)
            if column == 0:
                axis.set_ylabel(title, fontsize=9)
            if name == "largest_logit":
                axis.set_yscale("log")
    named = {label: line for axis in axes[0] for line, label in zip(*axis.get_legend_handles_labels(), strict=True)}
    shown = [method.title for method in METHODS if method.title in named]
    figure.legend([named[title] for title in shown], shown, fontsize=8, loc="outside right center", frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    with pyplot.rc_context({"svg.hashsalt": "stability"}):
        figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _line(place: int, method: Method) -> dict[str, Any]:
    colours = ("black", "#0072b2", "#d55e00", "#e69f00", "#999999", "#cc79a7", "#009e73", "#56b4e9", "#7a5c00")
    first = place < 4  # the ones that the page is about
    return {"color": colours[place], "linewidth": 1.6 if first else 0.9, "linestyle": "-" if first else "--"}


def page(outcomes: Found, command: str, figure: str) -> str:
    """Return the whole page as Markdown."""
    done = sum(map(len, outcomes.values()))
    asked = len(RATES) * len(METHODS) * len(SEEDS)
    blind = f"{done} of {asked} runs are in it; the others were not trained." if done < asked else f"All {done} runs."
    texts = [
        "# Stabilisers",
        f"Made by `{command}` from the logs of `python -m scripts.stability.train`; do not edit.",
        *guide(),
        "## Where standard attention breaks",
        setting(),
        blind,
        "In short:",
        in_short(outcomes),
        f"![Training loss, largest attention logit and lowest attention entropy of each method at each rate, a line a "
        f"seed]({figure})",
    ]
    for rate in sorted({rate for rate, _ in outcomes}):
        texts += [f"Rate {rate:g}:", table(outcomes, rate)]
    return "\n\n".join(texts) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Read, draw and write. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="where scripts/stability/train.py left its runs")
    parser.add_argument("--markdown", type=Path, required=True, help="the page")
    options = parser.parse_args(arguments)
    try:
        outcomes = collect(options.work)
    except RobustkitError as error:
        print(f"scripts.stability.page: {error}", file=sys.stderr)
        return error.exit_code
    folder = options.markdown.with_suffix("")
    draw(outcomes, folder / "curves.svg")
    runs, page_of_them = "docs/results/stabilisers/runs", "docs/results/stabilisers.md"
    command = f"python -m scripts.stability.page --work {runs} --markdown {page_of_them}"
    options.markdown.write_text(page(outcomes, command, f"{folder.name}/curves.svg"), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
