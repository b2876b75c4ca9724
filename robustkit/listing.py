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
    from safetensors import safe_open

    from .specs import embedded

    rows = []
    for name, path in embedded().items():
        with safe_open(path, framework="numpy") as file:
            said = file.metadata() or {}
        text = ", ".join(
            f"{key} {said[key]}" for key in ("attention", "data", "accuracy", "recipe", "license") if key in said
        )
        rows.append((f"zoo:{name}", text))
    return rows


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

    return [(name, f"{formula.logits} ({formula.source})") for name, formula in FORMULAS.items()]


def _protocols() -> list[tuple[str, str]]:
    from .protocol import card_names, load_card

    return [(card.tag, card.summary) for card in map(load_card, card_names())]


def _datasets() -> list[tuple[str, str]]:
    from .data import EMBEDDED, LAYOUTS

    rows = [(name, f"the embedded set's {split} split, generated") for name, split in EMBEDDED.items()]
    return [*rows, *((f"--layout {name}", text) for name, text in LAYOUTS.items() if name != "embedded")]
