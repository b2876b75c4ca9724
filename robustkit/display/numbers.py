"""Write numbers as people read them."""

from __future__ import annotations

ROUNDING = 3e-5
"""How far a difference of pixels in float32 may be from the number that it stands for, in units of 1/255."""


def amount(value: float, norm: str, space: str) -> str:
    """Return the size of a perturbation with its unit: `1/255` or `0.5` of pixels; `0.1 σ` where the card's space is
    `sigma`, whose unit is the standard deviation of a channel.
    """
    return f"{value:.4g} σ" if space == "sigma" else pixels(value, norm)


def pixels(value: float, norm: str) -> str:
    """Return a perturbation's size as people say it: `1/255` for linf, `0.5` for l2.

    A number within half a thousandth of a whole one is that one, so that a measured 7.9999/255 reads as the 8/255 that
    was asked for; any other has three decimals, unless fewer say the same.
    """
    if norm != "linf":
        return f"{value:.4g}"
    units = 255 * value
    if not 0.001 <= abs(units) < 1e6:
        return f"{units:.3g}/255"
    near = abs(units - round(units, 2)) <= ROUNDING or abs(units - round(units)) < 0.0005
    text = f"{units:.3f}"
    return f"{text.rstrip('0').rstrip('.') if near else text}/255"
