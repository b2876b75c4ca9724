"""What a run's log says about its attention, layer by layer, and the log as curves (compare QUEST, Figure A6)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from robustkit.attention import FORMULAS
from robustkit.errors import RobustkitError
from robustkit.evaluations.attention import evaluate as attention_watch

Row = dict[str, Any]


def watch(model: nn.Module, images: Tensor) -> dict[str, list[float]]:
    """Return, for each layer, over images, heads and tokens: the largest absolute attention logit (before softmax, the
    scale included), the mean l2 norm of queries and of keys (before the formula normalises them), and the mean entropy
    of attention in nats (log of the number of tokens where it is even).

    images: (B, 3, H, W), normalised.
    """
    _, seen = attention_watch.watch(model.eval(), images)
    heads = [layer.heads for layer in seen.layers]
    named = {"query_norm": "query_norms", "key_norm": "key_norms", "entropy": "attention_entropies"}
    columns = {"largest_logit": [part.max().item() for part in seen.values["largest_logits"].split(heads, dim=1)]}
    columns |= {
        name: [part.mean().item() for part in seen.values[column].split(heads, dim=1)] for name, column in named.items()
    }
    return {name: [round(value, 5) for value in values] for name, values in columns.items()}


def read_logs(work: Path) -> dict[str, list[Row]]:
    """Return the rows of all runs in a work folder, by the name of the run's folder, in the order of the formulas."""
    order = list(FORMULAS)

    def place(path: Path) -> tuple[str, int, str]:
        rest, _, seed = path.parent.name.rpartition("-seed")
        family, _, formula = rest.partition("-vit-")
        return family, (order.index(formula) if formula in order else len(order)), seed

    logs = {}
    for path in sorted(work.glob("*/log.jsonl"), key=place):
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        if rows:
            logs[path.parent.name] = rows
    return logs


def _epochs(rows: list[Row], key: str) -> list[float]:
    return [row[key] for row in rows if "probe" in row]


def _panels(layers: int) -> list[tuple[str, Callable[[list[Row]], dict[str, list[float]]]]]:
    """Return (title, rows -> named curves) of each row of the figure."""

    def probe(name: str) -> Callable[[list[Row]], dict[str, list[float]]]:
        return lambda rows: {
            f"layer {layer + 1}": [row["probe"][name][layer] for row in rows if "probe" in row]
            for layer in range(layers)
        }

    return [
        ("training loss", lambda rows: {"loss": _epochs(rows, "loss")}),
        (
            "accuracy, %",
            lambda rows: {
                "train": [100 * value for value in _epochs(rows, "train_accuracy_ema")],
                "test": [100 * value for value in _epochs(rows, "test_accuracy_ema")],
                "test, weights not averaged": [100 * value for value in _epochs(rows, "test_accuracy")],
            },
        ),
        ("largest |attention logit|", probe("largest_logit")),
        ("mean query norm", probe("query_norm")),
        ("mean key norm", probe("key_norm")),
        ("attention entropy, nats", probe("entropy")),
    ]


def plot(work: Path, out: Path) -> list[Path]:
    """Draw all runs in `work`, one figure per family, as FAMILY-curves.svg in `out`."""
    whole: dict[str, dict[str, list[Row]]] = {}
    for name, rows in read_logs(work).items():
        if any("probe" in row for row in rows):
            whole.setdefault(f"{name.partition('-vit-')[0]}-vit", {})[name] = rows
    if not whole:
        raise RobustkitError(f"{work}: no run with a whole epoch in it; train one first")
    out.mkdir(parents=True, exist_ok=True)
    return [_draw(runs, out / f"{family}-curves.svg") for family, runs in whole.items()]


def _draw(whole: dict[str, list[Row]], path: Path) -> Path:
    """Draw a column per run and a row per quantity."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    layers = max(len(row["probe"]["entropy"]) for rows in whole.values() for row in rows if "probe" in row)
    panels = _panels(layers)
    colours = [pyplot.get_cmap("viridis")(0.9 * layer / max(1, layers - 1)) for layer in range(layers)]
    plain = {"loss": "black", "train": "tab:orange", "test": "tab:blue", "test, weights not averaged": "tab:gray"}
    figure, axes = pyplot.subplots(
        len(panels),
        len(whole),
        figsize=(1.4 + 2.6 * len(whole), 1.9 * len(panels)),
        sharex="col",
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for column, (name, rows) in enumerate(whole.items()):
        axes[0, column].set_title(_title(name, rows), fontsize=10)
        axes[-1, column].set_xlabel("epoch", fontsize=9)
        for axis, (title, curves) in zip(axes[:, column], panels, strict=True):
            for place, (label, values) in enumerate(curves(rows).items()):
                colour = plain.get(label, colours[place % layers])
                axis.plot(_epochs(rows, "epoch"), values, color=colour, label=label, linewidth=1.4, marker=".", ms=3)
            axis.grid(alpha=0.25)
            axis.tick_params(labelsize=8)
            if column == 0:
                axis.set_ylabel(title, fontsize=9)
            if "logit" in title or "norm" in title:
                axis.set_yscale("log")
                axis.yaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
                axis.yaxis.set_minor_formatter(ticker.NullFormatter())
                axis.yaxis.set_major_locator(ticker.LogLocator(subs=(1, 2, 5)))
        axes[-1, column].xaxis.set_major_locator(ticker.MaxNLocator(integer=True))
    for axis in axes[1:3, -1]:
        axis.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    with pyplot.rc_context({"svg.hashsalt": "zoo"}):
        figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path


def _title(name: str, rows: list[Row]) -> str:
    return f"{name}\ndiverged at step {rows[-1]['step']}" if rows[-1].get("diverged") else name
