"""Watched attention as curves over the layers: a column for each checkpoint, a panel for each figure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ...common.intervals import Floats
from ...display.panels import legend, roomy
from ...display.svg import INK, Figure, Style, draw, labels, plain, style
from ..kinds import words_of
from ..results import Results
from .condition import under_of
from .metrics import COLLAPSE, EXPLOSION, Heads, WatchedHeads

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

PANELS = (
    ("largest_logits", "largest |logit|", 1),
    ("query_norms", "query norm", 1),
    ("key_norms", "key norm", 1),
    ("entropy_shares", "entropy, % of log N", 100),
    ("strongest_keys", "strongest key, %", 100),
)
"""Of each panel the figure of a head, its name and factor, 100 for shares."""
COLUMNS = 2
"""Checkpoints in a figure."""
LINES = 6
"""Conditions in a panel: clean, and those under which entropy changes most."""
_WIDE_RANGE = 30  # from the lowest to the highest figure, above which an axis is logarithmic; not of shares


@dataclass(frozen=True)
class Watched:
    """The heads of a checkpoint under each condition, clean first where it is there."""

    checkpoint: str
    heads: Mapping[str, Heads]


def watched(results: Results) -> list[Watched]:
    """Return the heads of all checkpoints whose attention was watched."""
    found: dict[str, dict[str, Heads]] = {}
    for (checkpoint, condition), heads in results.gathered(WatchedHeads).found.items():
        found.setdefault(checkpoint, {})[under_of(condition) or ""] = heads
    return [
        Watched(name, dict(sorted(own.items(), key=lambda item: item[0] != "clean"))) for name, own in found.items()
    ]


def attention_figures(found: Sequence[Watched]) -> Iterator[Figure]:
    """Figures of at most `COLUMNS` checkpoints, all with the same axes."""
    if not found:
        return
    shown = _shown(found)
    looks = {condition: style(place) for place, condition in enumerate(shown)}
    limits = {name: _limits(_every(found, shown, name), factor) for name, _, factor in PANELS}
    names, said = labels((one.checkpoint for one in found), 30), _said(shown)
    lost = max(len(one.heads) for one in found) - len(shown)
    for start in range(0, len(found), COLUMNS):
        own = found[start : start + COLUMNS]

        def paint(canvas: Canvas, own: Sequence[Watched] = own) -> None:
            roomy(canvas)
            grid = canvas.subplots(len(PANELS), len(own), squeeze=False, sharey="row", sharex="col")
            for column, one in enumerate(own):
                for row, (name, title, factor) in enumerate(PANELS):
                    axes = grid[row, column]
                    for condition in shown:
                        if condition in one.heads:
                            _curve(axes, one.heads[condition].by_layer(name), factor, looks[condition].colour)
                    for condition in shown:
                        if condition in one.heads:
                            _line(axes, one.heads[condition].by_layer(name), factor, looks[condition])
                    _finish(axes, name, limits[name])
                    axes.set_xlim(-0.25, max(len(heads.layers) for heads in one.heads.values()) - 0.75)
                    axes.set_title(f"{names[one.checkpoint]}\n{title}" if row == 0 else title)
                grid[-1, column].set_xlabel("layer")
                grid[-1, column].xaxis.get_major_locator().set_params(integer=True)
            legend(canvas, {said[condition]: looks[condition] for condition in shown}, columns=2)

        several = ", ".join(names[one.checkpoint] for one in own)
        yield draw(
            "attention",
            f"Attention over the layers of {several}",
            50 + 17 * -(-len(shown) // 2) + 118 * len(PANELS),
            paint,
            alt=" ".join(_told(one, names[one.checkpoint]) for one in own),
            caption="Lines are means over the heads of a layer, bands reach from the lowest head to the highest. A "
            "head's logit is its largest over all samples, all else a mean over samples and tokens."
            + (" Dotted: where a head is flagged." if any(map(_bound, limits, limits.values())) else "")
            + (f" Of the other {lost} conditions the entropy changes less; the tables have them." if lost > 0 else ""),
            name=several,
        )


def _said(conditions: Sequence[str]) -> dict[str, str]:
    """Conditions as a legend names them: `fog, severity 3`, in full where two would be alike."""
    short = {text: words_of(text).label(text) for text in conditions}
    often = Counter(short.values())
    names = {text: name if often[name] == 1 else text for text, name in short.items()}
    cut = labels(names.values(), 34)
    return {text: cut[name] for text, name in names.items()}


def _shown(found: Sequence[Watched]) -> list[str]:
    """Clean, and the conditions with the largest change of entropy in any layer of any checkpoint, in their order."""
    every = dict.fromkeys(condition for one in found for condition in one.heads)
    moved = dict.fromkeys(every, 0.0)
    for one in found:
        clean = one.heads.get("clean")
        for condition, heads in one.heads.items():
            if clean is not None and clean.layers == heads.layers:
                change = np.abs(heads.shares - clean.shares)
                moved[condition] = max(moved[condition], float(np.nanmax(np.nan_to_num(change), initial=0.0)))
    ranked = sorted(every, key=lambda condition: (condition != "clean", -moved[condition]))[:LINES]
    return [condition for condition in every if condition in ranked]


def _every(found: Sequence[Watched], shown: Sequence[str], name: str) -> list[Floats]:
    return [one.heads[condition].figures(name) for one in found for condition in shown if condition in one.heads]


def _limits(values: Sequence[Floats], factor: int) -> tuple[float, float, bool]:
    """The lowest and highest finite figure with a margin, and whether the axis is logarithmic."""
    every = factor * np.concatenate(values)
    known = every[np.isfinite(every)]
    if not len(known):
        return 0.0, 1.0, False
    low, high = float(known.min()), float(known.max())
    if factor == 1 and low > 0 and high / low > _WIDE_RANGE:
        return low / 1.3, high * 1.3, True
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 0.05
    return low - pad, high + pad, False


def _curve(axes: Axes, layers: Sequence[Floats], factor: int, colour: str) -> None:
    """The band from the lowest head to the highest."""
    known = [(place, factor * one[np.isfinite(one)]) for place, one in enumerate(layers) if np.isfinite(one).any()]
    places = [place for place, _ in known]
    low, high = [float(one.min()) for _, one in known], [float(one.max()) for _, one in known]
    axes.fill_between(places, low, high, color=colour, alpha=0.12, linewidth=0)


def _line(axes: Axes, layers: Sequence[Floats], factor: int, look: Style) -> None:
    means = [factor * float(one[np.isfinite(one)].mean()) if np.isfinite(one).any() else math.nan for one in layers]
    axes.plot(
        range(len(means)),
        means,
        color=look.colour,
        marker=look.marker,
        linestyle=look.line,
        markersize=4,
        linewidth=1.4,
    )


def _finish(axes: Axes, name: str, limits: tuple[float, float, bool]) -> None:
    low, high, logarithmic = limits
    if logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")  # no formulas: the page's text is plain
        axes.yaxis.set_minor_formatter(lambda *_: "")
    axes.set_ylim(low, high)
    axes.tick_params(length=0, which="both")
    if bound := _bound(name, limits):
        axes.axhline(bound, color=INK, linestyle=":", linewidth=1.2)


def _bound(name: str, limits: tuple[float, float, bool]) -> float:
    """Where heads are flagged, if a panel shows that; else 0."""
    bound = {"largest_logits": EXPLOSION, "entropy_shares": 100 * COLLAPSE}.get(name, 0.0)
    return bound if limits[0] < bound < limits[1] else 0.0


def _told(one: Watched, name: str) -> str:
    said = []
    for condition, heads in list(one.heads.items())[:LINES]:
        logits, shares = heads.figures("largest_logits"), heads.shares
        parts = []
        if np.isfinite(logits).any():
            place = int(np.nanargmax(logits))
            parts.append(f"largest logit {logits[place]:.1f} in {heads.name(place)}")
        if np.isfinite(shares).any():
            place = int(np.nanargmin(shares))
            mean = 100 * float(np.nanmean(shares))
            parts.append(
                f"mean entropy {mean:.1f} % of log N, lowest {100 * shares[place]:.1f} % in {heads.name(place)}"
            )
        said.append(f"{plain(condition, 80)}: {', '.join(parts) or 'nothing finite'}")
    return f"{name}. {'; '.join(said)}."
