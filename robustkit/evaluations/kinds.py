"""Which family a condition is of, by the first word of its text. Loads no torch.

A package that is installed beside this one adds a family by entry points of the group `robustkit.families`: the name
is a kind of condition, the value a package with `vocabulary.py` and `family.py`, as the folders here have them.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points

from .vocabulary import Vocabulary

GROUP = "robustkit.families"
FOLDERS = {
    "clean": "clean",
    "corruption": "corruptions",
    **dict.fromkeys(("in-c", "in-c-extra", "segformer-16", "fan-19"), "corruptions"),
    **dict.fromkeys(("noise", "blur", "weather", "digital"), "corruptions"),
    "cam": "maps",
    "stability": "maps",
    "attention": "attention",
}
"""The folder of the family of each kind of condition, of means in results, too."""
_ATTACKS = "attacks"


@cache
def packages() -> dict[str, str]:
    """Return the package of the family of each kind of condition but attacks, those of other distributions last."""
    own = {kind: f"{__package__}.{folder}" for kind, folder in FOLDERS.items()}
    added = {entry.name: entry.value for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name)}
    return own | {kind: package for kind, package in added.items() if kind not in own}


def package_of(kind: str) -> str:
    """Return the package of the family of a kind of condition; a kind that no family has taken is an attack."""
    return packages().get(kind, f"{__package__}.{_ATTACKS}")


def kind_of(text: str) -> str:
    """Return the kind of a condition by its text: the first word."""
    return text.partition("(")[0]


def vocabulary_of(kind: str) -> Vocabulary:
    """Return the words of the conditions of a kind, such as `cam`."""
    words: Vocabulary = import_module(f"{package_of(kind)}.vocabulary").VOCABULARY
    return words


def vocabularies() -> list[Vocabulary]:
    """Return the words of every family once."""
    return list(dict.fromkeys(map(vocabulary_of, (*packages(), ""))))


def words_of(text: str) -> Vocabulary:
    """Return the words of the family of a condition."""
    return vocabulary_of(kind_of(text))


def shares_of(text: str) -> dict[str, float]:
    """Return the conditions whose records a result is a mean over, and the share of each."""
    return words_of(text).shares(text)


def is_over_groups(text: str) -> bool:
    """Whether a result is a mean over several groups of conditions, such as corruptions."""
    words = words_of(text)
    return len({words.group(share) for share in words.shares(text)}) > 1


def by_words(texts: Iterable[str]) -> list[tuple[Vocabulary, list[str]]]:
    """Return conditions by family, in the order of families; only those that have some."""
    own: dict[Vocabulary, list[str]] = {words: [] for words in vocabularies()}
    for text in texts:
        own[words_of(text)].append(text)
    return [(words, some) for words, some in own.items() if some]
