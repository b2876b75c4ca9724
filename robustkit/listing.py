"""What `robustkit list KIND` shows: (name, one line) pairs."""

from __future__ import annotations

from collections.abc import Callable

LISTINGS = ("models", "attacks", "attentions", "protocols", "datasets")


def listing(kind: str) -> list[tuple[str, str]]:
    """The entries of one kind."""
    known: dict[str, Callable[[], list[tuple[str, str]]]] = {
        "models": _models,
        "attacks": _attacks,
        "attentions": _attentions,
        "protocols": _protocols,
        "datasets": _datasets,
    }
    return known[kind]()


def _models() -> list[tuple[str, str]]:
    from .models import zoo_models

    return [(f"zoo:{name}", text) for name, text in zoo_models()]


def _attacks() -> list[tuple[str, str]]:
    from .condition import ATTACKS, parse_condition
    from .protocol import load_card

    card = load_card("standard")
    rows = []
    for name, kind in ATTACKS.items():
        condition = parse_condition(name, card)
        parameters = ", ".join(f"{key}={value}" for key, value in condition.parameters)
        rows.append((condition.text, f"{(kind.__doc__ or '').splitlines()[0]} Parameters: {parameters}"))
    return rows


def _attentions() -> list[tuple[str, str]]:
    from .attention import FORMULAS

    return [(name, (formula.summary or "")) for name, formula in FORMULAS.items()]


def _protocols() -> list[tuple[str, str]]:
    from .protocol import card_names, load_card

    return [(card.tag, card.summary) for card in map(load_card, card_names())]


def _datasets() -> list[tuple[str, str]]:
    from .data import LAYOUTS

    return list(LAYOUTS.items())
