"""Conditions that keep the books of attention's logits: `ledger(pgd(eps=1/255,steps=20))`."""

from __future__ import annotations

from ...protocol.condition import Condition


def ledger_condition(under: Condition) -> Condition:
    """The condition of why logits change from the clean images to those of another condition."""
    return Condition("ledger", f"ledger({under.text})", under=under, released=under.released)


def under_of(condition: str) -> str | None:
    """Return the condition on whose images the books are kept; None for other conditions."""
    return condition[7:-1] if condition.startswith("ledger(") and condition.endswith(")") else None
