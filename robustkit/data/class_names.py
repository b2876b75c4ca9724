"""Names of a model's outputs, and the class that a user means by a word."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from ..errors import ModelError
from .class_lists import WNID, descriptions, synsets


def class_names(names: Sequence[str] | None, count: int) -> tuple[str, ...]:
    """Return readable names in the order of the outputs, or numbers where no names are given."""
    if names and not all(WNID.fullmatch(name) for name in names):
        return tuple(names)
    if names:
        return descriptions(tuple(names))
    if count == 1000:
        return descriptions(synsets(1000))
    return tuple(map(str, range(count)))


def class_name(given: Sequence[str], index: int, count: int = 0) -> str:
    """Return the first word of a class's name."""
    names = class_names(given, count or len(given))
    return names[index].split(",")[0] if index < len(names) else str(index)


def target_of(text: str, names: Sequence[str]) -> int:
    """Return the class that a person means, by number, whole name or one of its synonyms.

    Raises:
        ModelError: no class or several classes fit; the line has the nearest names.
    """
    if re.fullmatch(r"-?[0-9]{1,9}", text.strip()):
        number = int(text)
        if not 0 <= number < len(names):
            raise ModelError(f"target {number}: the model has {len(names)} classes, 0 to {len(names) - 1}")
        return number
    wanted = text.strip().casefold()
    synonyms = {index: [part.strip().casefold() for part in name.split(",")] for index, name in enumerate(names)}
    exact = [index for index, parts in synonyms.items() if wanted in parts or wanted == names[index].casefold()]
    if len(exact) == 1:
        return exact[0]
    if exact:
        raise ModelError(f"target {text!r} names classes {', '.join(map(str, exact))}; give the number")
    every = {part: names[index].split(",")[0] for index, parts in synonyms.items() for part in parts}
    near = list(dict.fromkeys(every[match] for match in difflib.get_close_matches(wanted, every, n=3, cutoff=0.5)))
    guess = f"did you mean {', '.join(near)}?" if near else f"expected a name or a number from 0 to {len(names) - 1}"
    raise ModelError(f"no class {text!r} among the model's {len(names)}; {guess}")
