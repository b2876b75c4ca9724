"""Draw figures for a page, as SVG that reads the same on light and dark pages, with a text alternative.

Text and axes are in `currentColor` without a background; series differ by colour, marker and line at once. The bytes
depend only on what is drawn, and ids carry a digest of the figure's name, so that one page can hold many.
"""

from __future__ import annotations

import hashlib
import io
import math
import re
import textwrap
import unicodedata
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Literal
from xml.etree import ElementTree

from ..common.figure import Figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

WIDTH = 480
"""Width of every figure, in its own units. Its smallest text has 9 pixels at a width of 360 pixels, 16 at `WIDEST`."""
WIDEST = "40rem"
SMALL, TITLE = 12, 13
_IN_TITLE = 54  # characters of a line of a title in `plot`
INK = "#010203"  # stands for currentColor while matplotlib draws
PALETTE = ("#0090d9", "#f25100", "#bf009f", "#70837f", "#a100f2", "#a66342")
"""Each at least 3:1 against white and #15171b, and apart for the three kinds of colour blindness."""
Line = Literal["-", "--", "-.", ":", "none"]
_MARKERS = "osD^vPX"
_LINES: tuple[Line, ...] = ("-", "--", "-.", ":")
_FRACTION = re.compile(r"\d+/\d+")
_SPOKEN = 8  # checkpoints that a text alternative describes

_SETTINGS: dict[str, Any] = {
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    **dict.fromkeys(("axes.edgecolor", "axes.labelcolor", "text.color", "xtick.color", "ytick.color"), INK),
    "grid.color": INK,
    "grid.alpha": 0.18,
    "font.sans-serif": ["DejaVu Sans"],  # one of its own: each text is looked up in all of them
    **dict.fromkeys(("font.size", "axes.labelsize", "xtick.labelsize", "ytick.labelsize", "legend.fontsize"), SMALL),
    "axes.titlesize": TITLE,
    "axes.titlelocation": "left",
    "axes.titlepad": 7,
    "legend.frameon": False,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "text.parse_math": False,
    "svg.fonttype": "none",
}


@dataclass(frozen=True)
class Plot:
    """A drawing, made when it is asked for. section: of the page. title, alt, caption: plain texts, to be escaped where
    they are shown; alt has the numbers that matter. paint: draws it, `height` units high, on an empty canvas. name:
    what distinguishes it from the other figures of a page, where the title does not. chief: whether `plot` shows it."""

    section: str
    title: str
    height: float
    paint: Callable[[Canvas], None] = field(compare=False)
    alt: str
    caption: str
    name: str = ""
    chief: bool = False

    @cached_property
    def svg(self) -> str:
        """Safe markup, with the text alternative, whatever a user's matplotlibrc says."""
        named = f"{self.section}\n{self.title}\n{self.name}"
        digest = hashlib.sha256(named.encode(errors="replace")).hexdigest()[:10]
        return _tidy(painted(self.height, self.paint, digest), f"f{digest}", self.alt)


@dataclass(frozen=True)
class Style:
    """What distinguishes one series from another."""

    colour: str
    marker: str
    line: Line


def style(place: int) -> Style:
    """Return the style of the series at this place, from 0; no two of the first 28 are alike, even without colours."""
    return Style(PALETTE[place % len(PALETTE)], _MARKERS[place % len(_MARKERS)], _LINES[place % len(_LINES)])


def shorten_name(text: object, limit: int = 28) -> str:
    """Return an untrusted name on one line; `…` stands for what is left out in its middle, a fraction as a whole."""
    line = " ".join("".join("\ufffd" if _is_odd(sign) else sign for sign in str(text)).split())
    if len(line) <= limit:
        return line
    start, end = limit // 2, len(line) - (limit - limit // 2 - 1)
    return f"{line[: _outside(line, start, 0)]}…{line[_outside(line, end, 1) :]}"


def _outside(line: str, place: int, side: int) -> int:
    """Return a place in a line; of one inside a fraction, the place where that begins (side 0) or ends (1)."""
    spans = (match.span() for match in _FRACTION.finditer(line))
    return next((span[side] for span in spans if span[0] < place < span[1]), place)


def _is_odd(sign: str) -> bool:
    """Whether it has no place in a line of text: control, surrogate, unassigned, or turning the direction of text."""
    return unicodedata.category(sign).startswith("C") and sign not in "\t\n\r"


def labels(names: Iterable[str], limit: int = 28) -> dict[str, str]:
    """Return names as labels, `shorten_name` and distinct: where only the part left out differs, that part is kept."""
    texts = {name: shorten_name(name, limit) for name in dict.fromkeys(names)}
    groups: dict[str, list[str]] = {}
    for name, label in texts.items():
        groups.setdefault(label, []).append(name)
    taken: set[str] = set()
    for group in groups.values():
        lines = [shorten_name(name, 10_000) for name in group]
        alike_to = sum(1 for _ in takewhile(lambda signs: len(set(signs)) == 1, zip(*lines, strict=False)))
        start = max(0, alike_to - 4) if len(group) > 1 else 0
        for name, line in zip(group, lines, strict=True):
            rest = f"…{line[start:]}" if start else ""
            label = _cut(rest, limit) if rest else texts[name]
            number = 2
            while label in taken:
                label, number = f"{_cut(rest or line, limit - len(str(number)) - 3)} ({number})", number + 1
            texts[name] = label
            taken.add(label)
    return texts


def brief_labels(names: Sequence[str], limit: int = 28) -> dict[str, str]:
    """Return the same of names without the words with which all begin: `quest` for `shapes-vit-quest`."""
    first, last = (min(names), max(names)) if len(names) > 1 else ("", "")  # which share what all share
    alike = sum(1 for _ in takewhile(lambda signs: signs[0] == signs[1], zip(first, last, strict=False)))
    ended = re.match(r".*[-_./ ]", first[:alike])
    start = ended.end() if ended and all(len(name) > ended.end() for name in names) else 0
    short = labels((name[start:] for name in names), limit)
    return {name: short[name[start:]] for name in names}


def _cut(line: str, limit: int) -> str:
    return line if len(line) <= limit else f"{line[: _outside(line, limit - 1, 0)]}…"


def list_some(sentences: Sequence[str]) -> str:
    """Return the first of many sentences about checkpoints, and how many more there are."""
    more = len(sentences) - _SPOKEN
    return "; ".join(sentences[:_SPOKEN]) + (f"; and {more} more, which the tables have" if more > 0 else "")


def painted(height: float, paint: Callable[[Canvas], None], salt: str) -> bytes:
    """Return what `paint` draws as an SVG file: most of the time of a page, which tests leave out. salt: of its ids."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    buffer = io.BytesIO()
    with _canvas(height, {"svg.hashsalt": salt}) as canvas:
        page: Any = FigureCanvasSVG(canvas)
        paint(canvas)
        if engine := canvas.get_layout_engine():  # `savefig` would draw all of it once more to lay it out
            engine.execute(canvas)
        canvas.set_layout_engine("none")
        page.print_svg(buffer, metadata=dict.fromkeys(("Creator", "Date", "Format", "Type")))
    return buffer.getvalue()


@contextmanager
def _canvas(height: float, settings: Mapping[str, Any], dpi: int = 72, width: float = WIDTH) -> Iterator[Canvas]:
    """Give an empty canvas, and inside the style of these figures, whatever a user's matplotlibrc says."""
    import matplotlib
    from matplotlib.figure import Figure as Canvas

    with matplotlib.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # the reader's fonts have the glyph
        matplotlib.rcdefaults()
        ours: Any = matplotlib.rcParams
        ours.update({**_SETTINGS, **settings})
        yield Canvas(figsize=(width / 72, height / 72), dpi=dpi, layout="constrained")


_PAPER = 7  # points of the letters of a figure for a paper


def plot(figures: Sequence[Plot], size: float | None = None, font: str = "sans-serif") -> Canvas:
    """Return figures below each other as one of matplotlib, on white. A notebook shows it; `savefig` writes it. size:
    the width in mm of a figure for a paper, which has no titles. Raises ValueError for an impossible one."""
    if size is not None and not 20 <= size <= 1000:
        raise ValueError(f"size={size}: expected a width in mm, 20 to 1000")
    settings: dict[str, Any] = {"figure.facecolor": "white", "font.family": font}
    scale, width, dpi = 1.0, float(WIDTH), 144
    if size is not None:
        letters = ("font.size", "axes.labelsize", "axes.titlesize", "xtick.labelsize", "ytick.labelsize")
        settings |= dict.fromkeys((*letters, "legend.fontsize"), _PAPER)
        scale, width, dpi = _PAPER / SMALL, size / 25.4 * 72, 300
    titles = ["" if size is not None else textwrap.fill(each.title, _IN_TITLE) for each in figures]
    heights = [
        height
        for title, each in zip(titles, figures, strict=True)
        for height in (1.5 * TITLE * (title.count("\n") + 1) + TITLE / 2 if title else 0.1, scale * each.height)
    ]
    with _canvas(sum(heights), settings, dpi, width) as canvas:
        parts: Any = canvas.subfigures(len(heights), height_ratios=heights, squeeze=False).flat
        for title, strip, part, each in zip(titles, parts[::2], parts[1::2], figures, strict=True):
            strip.text(0.01, 0.5, title, fontsize=TITLE + 1, weight="bold", va="center")
            each.paint(part)
    vars(canvas)["_repr_png_"] = partial(_png, canvas)  # where pyplot, which a notebook knows, was never asked for
    return canvas


def _png(canvas: Canvas) -> bytes:
    buffer = io.BytesIO()
    canvas.savefig(buffer, format="png", dpi=96)
    return buffer.getvalue()


def _tidy(source: bytes, prefix: str, alt: str) -> str:
    """Return matplotlib's file as markup for a page: no prolog, ids of its own, no rule that would reach beyond it."""
    root = ElementTree.fromstring(source)
    for parent in list(root.iter()):
        for child in [child for child in parent if child.tag.endswith(("}style", "}metadata"))]:
            parent.remove(child)
    for element in root.iter():
        element.tag = element.tag.partition("}")[2]
        for key in list(element.attrib):
            element.attrib[key.rpartition("}")[2]] = _attribute(key, element.attrib.pop(key), prefix)
    used = set(re.findall(rf"#({prefix}-[\w.-]+)", " ".join(v for e in root.iter() for v in e.attrib.values())))
    for element in root.iter():
        if element.get("id") not in used:
            element.attrib.pop("id", None)
    box = root.attrib["viewBox"]
    root.attrib.clear()
    look = f"max-width: {WIDEST}; overflow: visible; stroke-linejoin: round; stroke-linecap: butt"
    root.attrib |= {"xmlns": "http://www.w3.org/2000/svg", "viewBox": box, "width": "100%", "style": look}
    root.attrib |= {"role": "img", "aria-label": shorten_name(alt, 10_000)}
    return ElementTree.tostring(root, encoding="unicode")


def _attribute(key: str, value: str, prefix: str) -> str:
    if key == "id":
        return f"{prefix}-{value}"
    value = re.sub(r"(url\(#|^#)(?=[A-Za-z])", rf"\g<1>{prefix}-", value) if "#" in value and key != "style" else value
    if key == "style":
        value = re.sub(r"'DejaVu Sans'(, [^;]*)?|(?<=px )sans-serif", "system-ui, sans-serif", value)
        return value.replace(INK, "currentColor").replace("url(#", f"url(#{prefix}-")
    return re.sub(r"-?\d+\.\d{3,}(e-\d+)?", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), value)


def space_panels(canvas: Canvas) -> None:
    engine: Any = canvas.get_layout_engine()
    engine.set(wspace=0.05, hspace=0.03, w_pad=0.03, h_pad=0.05)


def panels(canvas: Canvas, count: int, columns: int = 2, **options: Any) -> list[Axes]:
    """Return axes in rows of at most `columns`. options: of matplotlib's `subplots`."""
    rows = max(1, math.ceil(count / columns))
    space_panels(canvas)
    every: list[Axes] = list(canvas.subplots(rows, min(columns, max(1, count)), squeeze=False, **options).flat)
    for place, axes in enumerate(every):
        axes.tick_params(length=0)
        axes.set_visible(place < count)
        if count - columns <= place < count:  # the lowest of its column, also if the last row is not full
            axes.tick_params(labelbottom=True)
    return every[:count]


def dots(
    axes: Axes,
    places: Sequence[float],
    points: Sequence[Figure],
    look: Style,
    *,
    shift: float = 0,
    across: bool = False,
    scale: float = 100,
    size: float = 5.5,
) -> None:
    """Draw markers with intervals: values upwards at places, or `across`; the caller sets limits. scale: 100 for
    percent. shift: in units of the figure, so that series at the same places do not hide each other. size: of markers,
    in the same units."""
    from matplotlib.transforms import ScaledTranslation

    move = ScaledTranslation(0 if across else shift / 72, shift / 72 if across else 0, axes.figure.dpi_scale_trans)
    values, lows, highs = ([scale * getattr(p, end) for p in points] for end in ("value", "low", "high"))
    lines = axes.hlines if across else axes.vlines
    lines(places, lows, highs, colors=look.colour, linewidth=1.4, transform=axes.transData + move)
    x, y = (values, places) if across else (places, values)
    drawn: dict[str, Any] = {"marker": look.marker, "markersize": size, "linestyle": "none" if across else look.line}
    axes.plot(x, y, color=look.colour, linewidth=1.6, transform=axes.transData + move, **drawn)


def series_shift(place: int, count: int, step: float, most: float = 24) -> float:
    """Return the shift of one of `count` series, so that together they are at most `most` wide."""
    return (place - (count - 1) / 2) * min(step, most / max(count, 1))


def legend(canvas: Canvas, looks: Mapping[str, Style], lines: bool = True, columns: int = 2) -> None:
    """Draw above the panels what each series is."""
    from matplotlib.lines import Line2D

    handles = [
        Line2D([], [], color=look.colour, marker=look.marker, markersize=5.5, linestyle=look.line if lines else "none")
        for look in looks.values()
    ]
    # Texts are set afterwards: matplotlib leaves out labels that begin with an underscore.
    box = canvas.legend(handles, ["?"] * len(handles), loc="outside upper left", ncols=columns, handlelength=2.6)
    for text, label in zip(box.get_texts(), looks, strict=True):
        text.set_text(label)
