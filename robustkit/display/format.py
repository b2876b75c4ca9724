"""Write numbers, intervals, shares and p-values for people: no other module does."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from ..common.figure import Figure

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..common.differences import Difference


class Cell(str):
    """The text of a number in a table, which keeps the number.

    value: in its own unit, 0.933 for `93.3`; nan where there is none. figure: it with its interval, if it has one.
    ends: those of the interval as the text has them, empty where it has none. mark: whether it is the best of its kind,
    or no test tells it from the best. flagged: whether a doubt is about it.
    """

    value: float
    figure: Figure | None
    ends: tuple[str, str]
    mark: Literal["best", "close", ""] = ""
    flagged: bool = False

    def __new__(
        cls, text: str, value: float = math.nan, figure: Figure | None = None, ends: tuple[str, str] = ("", "")
    ) -> Self:
        cell = super().__new__(cls, text)
        cell.value, cell.figure, cell.ends = value, figure, ends
        return cell

    @property
    def alone(self) -> str:
        """The text without its interval."""
        return self.removesuffix(f" [{', '.join(self.ends)}]")

    def followed_by(self, note: str) -> Cell:
        """Return it with its marks and a note after it, `62.0 (1–3)`; an interval is a part of its text then."""
        cell = Cell(f"{self}{note}", self.value, self.figure)
        cell.mark, cell.flagged = self.mark, self.flagged
        return cell


MISSING, NOT_FINITE = Cell("–"), Cell("nan")


def number(value: float, digits: int = 3, sign: str = "") -> Cell:
    """Return a number with some digits after the point, `−0.250`; sign: `+` for a change. Never `−0.0`."""
    if not math.isfinite(value):
        return NOT_FINITE
    return Cell(f"{round(value, digits) + 0.0:{sign}.{digits}f}".replace("-", "−"), value)


def wide_number(value: float, digits: int, sign: str = "") -> Cell:
    """Return a number as `number` does; from 1000 on as `12,300`, from 1e6 on as `1.23e+06`."""
    if not math.isfinite(value) or abs(value) < 1e3:
        return number(value, digits, sign)
    text = f"{value:{sign}.3g}" if abs(value) >= 1e6 else f"{value:{sign},.0f}"
    return Cell(text.replace("-", "−"), value)


def significant(value: float, digits: int = 4) -> Cell:
    """Return a number with that many digits that count, `0.0421`, `−1.2e-05`."""
    return Cell(f"{value + 0.0:.{digits}g}".replace("-", "−", value < 0), value)


def count(value: int, group: str = "") -> Cell:
    """Return a count, `1200`; group: `,` for `1,200`."""
    return Cell(f"{value:{group}}", value)


def counted(of: Figure | Difference) -> Cell:
    """Return how many samples a figure is of: `133`, or `133 in 27 groups`."""
    return Cell(f"{of.n} in {of.groups} groups" if of.groups else f"{of.n}", of.n)


def scaled(value: float | None, scale: float = 100, sign: str = "", digits: int = 3) -> Cell:
    """Return a value times its scale: in percent with one digit, else with `digits`; a dash where there is none."""
    return MISSING if value is None else Cell(number(scale * value, 1 if scale == 100 else digits, sign), value)


def interval(low: float, high: float, scale: float = 100, sign: str = "", digits: int = 3) -> str:
    """Return `[84.1, 97.4]`; empty where an end is not finite."""
    is_finite = math.isfinite(low) and math.isfinite(high)
    return f"[{scaled(low, scale, sign, digits)}, {scaled(high, scale, sign, digits)}]" if is_finite else ""


def figure_cell(
    figure: Figure | None, scale: float = 100, with_interval: bool = True, sign: str = "", digits: int = 3
) -> Cell:
    """Return `93.3 [84.1, 97.4]`, or `0.436 [0.410, 0.461]` if the scale is not 100; a dash where there is none."""
    if figure is None:
        return MISSING
    if not figure.is_finite:
        return NOT_FINITE
    text, ends = scaled(figure.value, scale, sign, digits), (figure.low, figure.high)
    if not (with_interval and all(map(math.isfinite, ends))):
        return Cell(text, figure.value, figure)
    low, high = (scaled(end, scale, sign, digits) for end in ends)
    return Cell(f"{text} [{low}, {high}]", figure.value, figure, (low, high))


def loss_cell(figure: Figure | None) -> Cell:
    """Return `1.234`; a dash where there is none."""
    return MISSING if figure is None else number(figure.value)


def percent(value: float, digits: int = 1) -> Cell:
    """Return `93.3 %`."""
    return Cell(f"{number(100 * value, digits)} %", value)


def share(figure: Figure) -> str:
    """Return `93.3 % [84.1, 97.4]`."""
    return f"{percent(figure.value)} {interval(figure.low, figure.high)}".rstrip()


def p_value(value: float) -> Cell:
    """Return `0.011`, or `< 0.001`."""
    return Cell("< 0.001", value) if value < 0.001 else number(value)


def p_equals(value: float) -> str:
    """Return `p = 0.011`, or `p < 0.001`."""
    return f"p {'' if value < 0.001 else '= '}{p_value(value)}"


ROUNDING = 3e-5
"""How far a difference of pixels in float32 may be from the number that it stands for, in units of 1/255."""


def amount(value: float, norm: str, space: str) -> Cell:
    """Return the size of a perturbation with its unit: as `pixels`, or `0.1 σ` (of a channel) in the space `sigma`."""
    return Cell(f"{value:.4g} σ", value) if space == "sigma" else size_text(value, norm)


def size_text(value: float, norm: str) -> Cell:
    """Return a size as people say it: `1/255` for linf, `0.5` for l2. Within half a thousandth of a whole number it is
    that one, so that a measured 7.9999/255 reads as the 8/255 asked for; else it has up to three decimals."""
    if norm != "linf":
        return Cell(f"{value:.4g}", value)
    units = 255 * value
    if not 0.001 <= abs(units) < 1e6:
        return Cell(f"{units:.3g}/255", value)
    near = abs(units - round(units, 2)) <= ROUNDING or abs(units - round(units)) < 0.0005
    text = f"{units:.3f}"
    return Cell(f"{text.rstrip('0').rstrip('.') if near else text}/255", value)


def clock_time(seconds: float) -> str:
    """Return `1:02` or `1:02:03`."""
    whole = max(0, round(seconds))
    hours, minutes = divmod(whole // 60, 60)
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def about(seconds: float) -> str:
    """Return `40 s`, `36 min` or `3.5 h`."""
    if seconds < 99.5:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 99.5 * 60 else f"{seconds / 3600:.1f} h"
