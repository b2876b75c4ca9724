from .card import Card as Card
from .card import card_names as card_names
from .card import load_card as load_card
