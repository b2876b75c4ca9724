"""Draw a badge, a small SVG with a label and a value, for a released checkpoint, and choose its figure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any
from xml.sax.saxutils import escape, quoteattr

from PIL import ImageFont

from ...evaluations.family import family_of
from ...evaluations.kinds import kind_of, words_of
from ...protocol.condition import CLEAN
from ...runs.manifest import Manifest
from ...tasks.task import task_of

MADE_BY = "robustkit card"
"""The mark of each file of a card, so that only files with it are ever overwritten."""
LABEL, VALUE, INK = "#3b3f46", "#2b5c8a", "#ffffff"
"""The backgrounds of both halves, whatever the value: a figure is shown, not judged."""
SIZE, HEIGHT, PADDING = 11, 20, 7
_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")  # in XML 1.0


def headline(manifest: Manifest, rows: Sequence[Mapping[str, Any]], gap: str = "") -> tuple[str, str, str]:
    """Return label, value and description for the strongest attack on clean images, or for these alone where there is
    none. What was estimated of an attack counts where the whole of it was not carried out.

    rows: of one checkpoint, as in summary.json. gap: what its run lacks, since a stronger attack may be missing.
    """
    claims, task = manifest.claims, task_of(manifest)
    known = [row for row in rows if row["value"] is not None]
    measured = [row for row in known if row["metric"] == task.headline]
    attacked = [row for row in measured if row["condition"] in claims and _starts_clean(row["condition"])]
    attacked += [row for row in known if _estimated(row) not in {"", *(whole["condition"] for whole in measured)}]
    chosen = min(reversed(attacked), key=lambda row: row["value"]) if attacked else None
    if chosen is None:
        chosen = next((row for row in measured if row["condition"] == CLEAN.text), None)
    if chosen is None:
        return "robustkit", "–", f"no figure of clean or attacked {task.samples.many} was measured"
    name = family_of(kind_of(chosen["condition"])).title(chosen["condition"], manifest)
    label = f"{name} {task.badge_word(is_clean=not attacked)}".strip()
    what = f"{'estimated ' if _estimated(chosen) else ''}{task.headline_metric.word}"
    value = task.headline_metric.said(chosen["value"])
    bounds = ""
    if chosen["ci_low"] is not None and chosen["ci_high"] is not None:
        low, high = (task.headline_metric.said(chosen[end]) for end in ("ci_low", "ci_high"))
        bounds = f", 95 % interval {low.removesuffix(' %')} to {high}"
    flags = "".join(f"; {flag}" for flag in [*filter(None, [gap]), *chosen["flags"]])
    where = f"under {chosen['condition']}" if attacked else f"on clean {task.samples.many}"
    description = f"{what} {where}: {value}{bounds}, n = {chosen['n']}, protocol {chosen['protocol']}{flags}"
    return label, value + (" (unfinished)" if gap else " (flagged)" if flags else ""), description


def _estimated(row: Mapping[str, Any]) -> str:
    """Return the text of the attack whose figure a row estimates; empty where it was measured."""
    return words_of(row["condition"]).estimated(row["condition"], row["metric"])


def _starts_clean(text: str) -> bool:
    """Whether an attack changes clean images."""
    return words_of(text).starts_from(text) == CLEAN.text


def badge(label: str, value: str, description: str) -> str:
    """Return the SVG's text. description: the tooltip."""
    label, value, description = (_ILLEGAL.sub("\ufffd", text) for text in (label, value, description))
    left, right = (math.ceil(_length(text)) for text in (label, value))
    middle, width = left + 2 * PADDING, left + right + 4 * PADDING
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}" viewBox="0 0 {width} {HEIGHT}" '
        f'role="img" aria-label={quoteattr(f"{label}: {value}")}>',
        f"<!-- {MADE_BY} --><title>{escape(description)}</title>",
        f'<clipPath id="r"><rect width="{width}" height="{HEIGHT}" rx="3"/></clipPath>',
        f'<g clip-path="url(#r)"><rect width="{middle}" height="{HEIGHT}" fill="{LABEL}"/>',
        f'<rect x="{middle}" width="{width - middle}" height="{HEIGHT}" fill="{VALUE}"/></g>',
        f'<g fill="{INK}" font-family="DejaVu Sans,Verdana,sans-serif" font-size="{SIZE}">',
        _text(PADDING, left, label),
        _text(middle + PADDING, right, value),
        "</g></svg>\n",
    ]
    return "".join(parts)


def _text(x: int, length: int, text: str) -> str:
    """Return text that keeps the measured width, whatever font is available."""
    return f'<text x="{x}" y="14" textLength="{length}" lengthAdjust="spacingAndGlyphs">{escape(text)}</text>'


@lru_cache(maxsize=1)
def _face() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(SIZE)


def _length(text: str) -> float:
    return float(_face().getlength(text)) * 1.1  # the faces named above are wider than Pillow's
