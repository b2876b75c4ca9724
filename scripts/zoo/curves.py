"""What a run's log says about its attention, layer by layer, and the log as curves (compare QUEST, Figure A6)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor, nn

from robustkit.errors import RobustkitError
from robustkit.slices.watching import evaluate as attention_watch

from .logs import Log, Row, plain, read_logs


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


def _of(key: str, scale: float = 1.0) -> Callable[[Row], float]:
    return lambda row: scale * float(row.get(key, np.nan))


def _layer(name: str, layer: int) -> Callable[[Row], float]:
    return lambda row: float(row["probe"][name][layer])


def _panels(layers: int) -> list[tuple[str, dict[str, Callable[[Row], float]]]]:
    """Return (title, named curves, each a figure of an epoch's row) of each row of the figure."""

    def probe(name: str) -> dict[str, Callable[[Row], float]]:
        return {f"layer {layer + 1}": _layer(name, layer) for layer in range(layers)}

    accuracies = {
        "train": _of("train_accuracy_ema", 100),
        "test": _of("test_accuracy_ema", 100),
        "test, weights not averaged": _of("test_accuracy", 100),
    }
    return [
        ("training loss", {"loss": _of("loss")}),
        ("accuracy, %", accuracies),
        ("largest |attention logit|", probe("largest_logit")),
        ("mean query norm", probe("query_norm")),
        ("mean key norm", probe("key_norm")),
        ("attention entropy, nats", probe("entropy")),
    ]


def plot(work: Path, out: Path) -> list[Path]:
    """Draw the trainings by presets themselves in `work`, one figure a family, as FAMILY-curves.svg in `out`."""
    whole = {
        family: {name: [log for log in logs if log.epochs] for name, logs in by_formula.items()}
        for family, by_formula in plain(read_logs(work)).items()
    }
    whole = {family: {name: logs for name, logs in found.items() if logs} for family, found in whole.items()}
    if not any(whole.values()):
        raise RobustkitError(f"{work}: no run with a whole epoch in it; train one first")
    out.mkdir(parents=True, exist_ok=True)
    return [_draw(found, out / f"{family}-curves.svg") for family, found in whole.items() if found]


def _draw(whole: dict[str, list[Log]], path: Path) -> Path:
    """Draw a column per formula and a row per quantity: the mean over seeds, and from the least to the most."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot, ticker

    layers = max(len(row["probe"]["entropy"]) for logs in whole.values() for log in logs for row in log.epochs)
    panels = _panels(layers)
    colours = [pyplot.get_cmap("viridis")(0.9 * layer / max(1, layers - 1)) for layer in range(layers)]
    plain_colours = {
        "loss": "black",
        "train": "tab:orange",
        "test": "tab:blue",
        "test, weights not averaged": "tab:gray",
    }
    figure, axes = pyplot.subplots(
        len(panels),
        len(whole),
        figsize=(1.4 + 2.6 * len(whole), 1.9 * len(panels)),
        sharex="col",
        sharey="row",
        squeeze=False,
        layout="constrained",
    )
    for column, (name, logs) in enumerate(whole.items()):
        axes[0, column].set_title(_title(name, logs), fontsize=10)
        axes[-1, column].set_xlabel("epoch", fontsize=9)
        for axis, (title, curves) in zip(axes[:, column], panels, strict=True):
            for place, (label, value) in enumerate(curves.items()):
                colour = plain_colours.get(label, colours[place % layers])
                epochs, values = _over_seeds(logs, value)
                if np.isnan(values).all():
                    continue
                axis.plot(
                    epochs, np.nanmean(values, axis=0), color=colour, label=label, linewidth=1.4, marker=".", ms=3
                )
                if len(logs) > 1:
                    low, high = np.nanmin(values, axis=0), np.nanmax(values, axis=0)
                    axis.fill_between(epochs, low, high, color=colour, alpha=0.25, linewidth=0)
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


def _over_seeds(logs: Sequence[Log], value: Callable[[Row], float]) -> tuple[list[int], np.ndarray]:
    """Return the epochs and a figure of each of them, (seeds, epochs), nan where a training had ended."""
    epochs = sorted({row["epoch"] for log in logs for row in log.epochs})
    rows = [{row["epoch"]: value(row) for row in log.epochs} for log in logs]
    return epochs, np.array([[found.get(epoch, np.nan) for epoch in epochs] for found in rows])


def _title(name: str, logs: Sequence[Log]) -> str:
    gone = [log.rows[-1]["step"] for log in logs if log.diverged]
    seeds = f"{name}, {len(logs)} seeds" if len(logs) > 1 else name
    return f"{seeds}\ndiverged at step {', '.join(map(str, gone))}" if gone else seeds
