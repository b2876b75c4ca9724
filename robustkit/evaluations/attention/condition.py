"""Conditions that watch attention: `attention(clean)`."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    pass


def under_of(condition: str) -> str | None:
    """The condition whose images the attention is watched on; None for other conditions."""
    return condition[10:-1] if condition.startswith("attention(") and condition.endswith(")") else None
