"""Write numbers, intervals, shares and p-values for people: no other module does."""

from __future__ import annotations

import math

from ..common.figure import Figure

MISSING, NOT_FINITE = "–", "nan"


def number(value: float, digits: int = 3, sign: str = "") -> str:
    """Return a number with some digits after the point, `−0.250`; sign: `+` for a change. Never `−0.0`."""
    if not math.isfinite(value):
        return NOT_FINITE
    return f"{round(value, digits) + 0.0:{sign}.{digits}f}".replace("-", "−")


def scaled(value: float | None, scale: float = 100, sign: str = "", digits: int = 3) -> str:
    """Return a value times its scale: in percent with one digit, else with `digits`; a dash where there is none."""
    return MISSING if value is None else number(scale * value, 1 if scale == 100 else digits, sign)


def interval(low: float, high: float, scale: float = 100, sign: str = "", digits: int = 3) -> str:
    """Return `[84.1, 97.4]`; empty where an end is not finite."""
    is_finite = math.isfinite(low) and math.isfinite(high)
    return f"[{scaled(low, scale, sign, digits)}, {scaled(high, scale, sign, digits)}]" if is_finite else ""


def figure_cell(
    figure: Figure | None, scale: float = 100, with_interval: bool = True, sign: str = "", digits: int = 3
) -> str:
    """Return `93.3 [84.1, 97.4]`, or `0.436 [0.410, 0.461]` if the scale is not 100; a dash where there is none."""
    if figure is None:
        return MISSING
    if not figure.is_finite:
        return NOT_FINITE
    ends = interval(figure.low, figure.high, scale, sign, digits) if with_interval else ""
    return f"{scaled(figure.value, scale, sign, digits)} {ends}".rstrip()


def loss_cell(figure: Figure | None) -> str:
    """Return `1.234`; a dash where there is none."""
    return MISSING if figure is None else number(figure.value)


def percent(value: float, digits: int = 1) -> str:
    """Return `93.3 %`."""
    return f"{number(100 * value, digits)} %"


def share(figure: Figure) -> str:
    """Return `93.3 % [84.1, 97.4]`."""
    return f"{percent(figure.value)} {interval(figure.low, figure.high)}".rstrip()


def p_value(value: float) -> str:
    """Return `0.011`, or `< 0.001`."""
    return "< 0.001" if value < 0.001 else number(value)


def p_equals(value: float) -> str:
    """Return `p = 0.011`, or `p < 0.001`."""
    return f"p {'' if value < 0.001 else '= '}{p_value(value)}"
