"""Conditions that watch attention: `attention(clean)`."""

from __future__ import annotations

from ...protocol.condition import Condition


def attention_condition(under: Condition) -> Condition:
    """The condition of what the model's attention does on the images of another condition."""
    return Condition("attention", attention_text(under.text), under=under, released=under.released)


def attention_text(under: str) -> str:
    """Return the text of what the attention does on the images of another condition."""
    return f"attention({under})"


def under_of(condition: str) -> str | None:
    """Return the condition whose images the attention is watched on; None for other conditions."""
    return condition[10:-1] if condition.startswith("attention(") and condition.endswith(")") else None
