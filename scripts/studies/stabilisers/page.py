"""Write what the runs of `train.py` show: curves, a table, and how to use the stabilisers.

    python -m scripts.studies.stabilisers.page --work DIR [--markdown PAGE]

Reads logs only, and draws the figure next to the page. Runs that are not there, or are not over, are left out and
counted.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustkit.errors import RobustkitError
from scripts.pages.writing import markdown, write_page

from .train import FAMILY, METHODS, PRESET, RATES, SEEDS, Method

STUCK = math.log(FAMILY.classes) / 2
"""Half of the loss of guessing, in nats."""
NAMES = (
    ("stabiliser", "what it does", "source"),
    (
        "`quack(tau=1,norm=frobenius)`",
        "the learning rates of a head's queries and keys follow the norm of the other",
        "QuacK, Algorithms 1 and 2",
    ),
    ("`fixed-rates(factor=0.1)`", "they are smaller by a fixed factor", "the ablation of the same paper"),
    (
        "`qk-clip(threshold=100)`",
        "after a step, queries and keys of heads with larger logits shrink",
        "Kimi K2 (MuonClip)",
    ),
    ("`sigma-reparam`", "weights of linear layers are γ times a matrix of spectral norm 1", "Zhai 2023"),
    ("`--attention 'softcap(cap=50)'`", "logits are bent to cap · tanh(logits / cap), at inference too", "Gemma 2"),
    ("`--attention quest`, `qknorm-ln`, …", "keys, or both, are normalised, at inference too", "QUEST; Dehghani 2023"),
)
PYTHON = """\
```python
import timm
import torch
from robustkit.slices.optim.stabilisers import QuacK

model = timm.create_model("vit_tiny_patch16_224")
optimiser = QuacK(torch.optim.AdamW(model.parameters(), lr=3e-3), model, tau=0.5, norm="frobenius")
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=1000)
```"""


def guide() -> Iterator[str]:
    """Yield what there is and how to use it, as paragraphs."""
    yield (
        "Attention logits can run away in training at high rates: large keys amplify every step of the queries, and "
        "the other way round, until attention is all but one-hot and no longer learns. Against it there are"
    )
    yield markdown(NAMES)
    yield (
        "`python -m scripts.zoo.train --attention standard --stabiliser 'quack(tau=0.5)' --preset shapes --work DIR` "
        "trains with one; a "
        "checkpoint says by which it was stabilised, and loads as any other. In Python, QuacK, fixed rates and QK clip "
        "are optimisers around an optimiser, with schedulers, `GradScaler`, `state_dict()` and `load_state_dict()`:"
    )
    yield PYTHON
    yield (
        "QuacK knows the attention of timm's ViTs (in fused qkv weights, the change of each head's rows is scaled "
        "after the optimiser's step) and of CrossViT, `nn.MultiheadAttention`, and "
        "`robustkit.attention.layers.LatentAttention`, to which Algorithm 2 applies. The scaled step is the step at "
        "the scaled rate where steps are multiples of the rate, as those of nearly all optimisers of torch are; "
        "`robustkit.slices.optim.projections` says for which they are not."
    )


def setting() -> str:
    """Return what was trained, and what the words of the tables mean."""
    tokens = (FAMILY.side // FAMILY.patch) ** 2 + 1
    return (
        f"A ViT of width {FAMILY.width}, depth {FAMILY.depth} and {FAMILY.heads} heads on {PRESET.train_images} "
        f"generated shapes of {FAMILY.side} pixels, {PRESET.epochs} epochs at batch {PRESET.batch}: AdamW at a "
        f"constant rate after a warm-up of {PRESET.warm_up:.0%} of the steps, no clipping of gradients, no label "
        "smoothing, mixup or drop path, bfloat16 autocast. Runs differ in rate, method and seed alone. A run is "
        f"*stuck* where the mean loss of its last epoch is above {STUCK:.2f}, half of what guessing gives, or is no "
        "number; one that is not may still have learned less than others. The largest logit is that of any layer, and "
        "the entropy that of the layer where it is lowest, over held-out images at the end; even attention has "
        f"{math.log(tokens):.2f} nats. Of several seeds: the median, and from the lowest to the highest."
    )


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
        raise RobustkitError(f"{work}: no finished run; start with scripts/studies/stabilisers/train.py --work {work}")
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
        f"Made by `{command}` from the logs of `python -m scripts.studies.stabilisers.train`; do not edit.",
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
    parser.add_argument("--work", type=Path, required=True, help="where train.py left its runs")
    parser.add_argument("--markdown", type=Path, default=Path("scripts/studies/stabilisers/README.md"))
    options = parser.parse_args(arguments)
    try:
        outcomes = collect(options.work)
    except RobustkitError as error:
        print(f"scripts.studies.stabilisers.page: {error}", file=sys.stderr)
        return error.exit_code
    draw(outcomes, options.markdown.parent / "curves.svg")
    command = "python -m scripts.studies.stabilisers.page --work DIR"
    write_page(options.markdown, page(outcomes, command, "curves.svg"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
