"""Conditions that watch attention: `attention(clean)`."""

from __future__ import annotations

from ...protocol.condition import Condition


def attention_condition(under: Condition) -> Condition:
    """Return the condition of what the model's attention does on the images of another condition."""
    return Condition("attention", f"attention({under.text})", under=under, released=under.released)


def under_of(condition: str) -> str | None:
    """Return the condition whose images the attention is watched on; None for other conditions."""
    return condition[10:-1] if condition.startswith("attention(") and condition.endswith(")") else None
