"""The vocabulary of a run: protocol cards and their parameters. Loads no torch."""

from typing import TYPE_CHECKING

import lazy_loader

if TYPE_CHECKING:
    from .card import Card as Card
    from .card import card_names as card_names
    from .card import load_card as load_card

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs={"card": ["Card", "card_names", "load_card"]})
