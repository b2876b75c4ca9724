"""Write numbers as people read them."""

from __future__ import annotations


def pixels(value: float, norm: str) -> str:
    """Return a perturbation's size as people say it: `1/255` for linf, `0.5` for l2."""
    return f"{value * 255:.4g}/255" if norm == "linf" else f"{value:.4g}"
