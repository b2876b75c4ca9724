"""Change words of a text: which ones, and into what, is a function of the draws of each place.

A word is what stands between blanks. Blanks stay, and no word vanishes or is split, so that the words of a changed text
are in line with those of the original.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ...evaluations.family import Evaluator
from ...evaluations.subject import Batch, EvaluatedModel, Shown
from . import VOCABULARY
from .documents import WORD, as_text, utf8_rows

if TYPE_CHECKING:
    from ...common.determinism import SampleRng
    from ...protocol.condition import Condition

SWAPPED = "AAA"  # what the published word swap puts in place of a word
_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")

Draws = Sequence[float]  # numbers in [0, 1) for one word: whether it changes, how, at which letter, and to what
DRAWS = 4


def change_text(text: str, draws: Sequence[Draws], share: float, change: Callable[[str, Draws], str]) -> str:
    """Return a text in which each word whose first draw is below `share` is changed. draws: (words, DRAWS)."""
    each = iter(draws)

    def replaced(match: re.Match[str]) -> str:
        drawn = next(each)
        return change(match[0], drawn) if drawn[0] < share else match[0]

    return WORD.sub(replaced, text)


def swapped(word: str, drawn: Draws) -> str:
    return SWAPPED


def mistyped(word: str, drawn: Draws) -> str:
    """Return a word with one Latin letter replaced by a QWERTY neighbour, dropped (never the only one) or doubled."""
    places = [place for place, letter in enumerate(word) if letter.lower() in NEIGHBOURS]
    if not places:
        return word
    place = places[int(drawn[2] * len(places))]
    kind, letter = int(drawn[1] * 3), word[place]
    if kind == 0 or (kind == 1 and len(word) == 1):
        near = NEIGHBOURS[letter.lower()]
        other = near[int(drawn[3] * len(near))]
        typed = other.upper() if letter.isupper() else other
    else:
        typed = "" if kind == 1 else 2 * letter
    return word[:place] + typed + word[place + 1 :]


def recased(word: str, drawn: Draws) -> str:
    """Return a word in capitals, or in small letters where it has capitals alone."""
    return word.lower() if word.isupper() else word.upper()


def _neighbours() -> dict[str, str]:
    """Return the letters next to each on a QWERTY keyboard, whose rows are each half a key further to the right."""
    near: dict[str, str] = {}
    for row, letters in enumerate(_ROWS):
        for place, letter in enumerate(letters):
            in_row = [(row, place - 1), (row, place + 1)]
            above, below = [(row - 1, place), (row - 1, place + 1)], [(row + 1, place - 1), (row + 1, place)]
            places = [(r, p) for r, p in (*in_row, *above, *below) if 0 <= r < len(_ROWS) and 0 <= p < len(_ROWS[r])]
            near[letter] = "".join(_ROWS[r][p] for r, p in places)
    return near


NEIGHBOURS = _neighbours()  # the letters next to each Latin letter
CHANGES: dict[str, Callable[[str, Draws], str]] = {"word-swap": swapped, "typo": mistyped, "case": recased}
"""By kind of condition."""


class PerturbationsEvaluator(Evaluator):
    """Documents in which some words are swapped, mistyped, or in another case."""

    words = VOCABULARY

    def show(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
        texts = [as_text(row) for row in batch.inputs]
        most = max(len(WORD.findall(text)) for text in texts)
        draws = rng.uniform((most, DRAWS), condition.name).tolist()
        share, change = float(dict(condition.parameters)["rate"]) / 100, CHANGES[condition.name]
        changed = [change_text(text, drawn, share, change) for text, drawn in zip(texts, draws, strict=True)]
        inputs = utf8_rows(changed).to(subject.settings.device)
        return Shown(inputs, lambda: inputs, None)
