"""Draw the logit ledger: for each layer the shares of what makes logits change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from ...common.intervals import Floats
from ...display.svg import Figure, draw, labels, legend, plain, roomy, style
from ..kinds import words_of
from .measures import LISTS, SHARES
from .summary import Books

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

_COLUMNS = 2  # checkpoints in a figure
_WORDS = tuple(metric.label.removeprefix("change by ").removesuffix(", %") for metric in SHARES)


def ledger_figures(first: Mapping[str, tuple[str, Books]]) -> Iterator[Figure]:
    """Yield figures with a panel for each checkpoint. first: a condition of each, and its books."""
    names, entries = labels(first, 30), list(first.items())
    for start in range(0, len(entries), _COLUMNS):
        group = entries[start : start + _COLUMNS]

        def paint(canvas: Canvas, group: list[tuple[str, tuple[str, Books]]] = group) -> None:
            roomy(canvas)
            grid = canvas.subplots(1, len(group), squeeze=False, sharey=True)
            for axes, (checkpoint, (_, books)) in zip(grid[0], group, strict=True):
                for place, shares in enumerate(_by_layer(books)):
                    look = style(place)
                    axes.plot(shares, color=look.colour, marker=look.marker, linestyle=look.line, markersize=4)
                axes.set_title(names[checkpoint])
                axes.set_xlabel("layer")
                axes.xaxis.get_major_locator().set_params(integer=True)
            grid[0, 0].set_ylabel("share of the change, %")
            legend(canvas, {word: style(place) for place, word in enumerate(_WORDS)}, columns=3)

        condition = group[0][1][0]
        label = words_of(condition).label(condition)
        said = (f"{names[checkpoint]}: {_description(books)}" for checkpoint, (_, books) in group)
        yield draw(
            "logits",
            f"What makes logits change, layer by layer, under {label}",
            260,
            paint,
            alt=plain("; ".join(said), 600) + ".",
            caption=f"Under {label}: how much of the change of the attention scores is due to norms of queries, norms "
            "of keys, and directions of both; means over the heads of a layer.",
            name=", ".join(names[checkpoint] for checkpoint, _ in group),
        )


def _by_layer(books: Books) -> list[Floats]:
    """Return for each factor its share in each layer, in percent; nan where nothing changes."""
    lines = []
    for name in LISTS[1:]:
        layers = [values[np.isfinite(values)] for values in books.by_layer(name)]
        lines.append(np.array([100 * values.mean() if len(values) else np.nan for values in layers]))
    return lines


def _description(books: Books) -> str:
    means = [float(np.nanmean(shares)) if np.isfinite(shares).any() else 0.0 for shares in _by_layer(books)]
    return ", ".join(f"{word} {mean:.0f} %" for word, mean in zip(_WORDS, means, strict=True))
