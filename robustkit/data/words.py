"""Words and their numbers: the vocabulary of a word-level language model."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..errors import DataError

UNKNOWN = "<unk>"
"""What stands for a word that is not in the vocabulary, as in WikiText; its number is 0."""
MOST_WORDS, LONGEST = 1_000_000, 1000


class Words:
    """A vocabulary: each word has a number, its place in `words`, and all others have that of `<unk>`.

    words: the first is `<unk>`. Raises DataError for another first word, a word twice, one that is no text, one with a
    blank in it, or more than a million.
    """

    def __init__(self, words: Sequence[str]) -> None:
        if not words or words[0] != UNKNOWN:
            first = repr(words[0])[:80] if words else "none"
            raise DataError(f"the first word of a vocabulary is {first}; expected {UNKNOWN}")
        if len(words) > MOST_WORDS:
            raise DataError(f"a vocabulary of {len(words)} words; expected at most {MOST_WORDS}")
        for word in words:
            if not isinstance(word, str) or not 0 < len(word) <= LONGEST or word.split() != [word]:
                raise DataError(f"a vocabulary with {repr(word)[:80]}; expected words without blanks")
        self.words = tuple(words)
        self._numbers = {word: number for number, word in enumerate(self.words)}
        if len(self._numbers) < len(self.words):
            twice = next(word for word, count in Counter(self.words).items() if count > 1)
            raise DataError(f"a vocabulary with {twice!r} twice; expected each word once")

    @classmethod
    def most_frequent(cls, documents: Iterable[Iterable[str]], size: int) -> Words:
        """Return `<unk>` and the size - 1 most frequent words; of equally frequent ones the first by code points."""
        counts = Counter(word for document in documents for word in document if word != UNKNOWN)
        ranked = sorted(counts, key=lambda word: (-counts[word], word))
        return cls([UNKNOWN, *ranked[: size - 1]])

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self._numbers

    @property
    def digest(self) -> str:
        """The SHA-256 of the words in their order: two models with the same one can be compared word by word."""
        return hashlib.sha256("\n".join(self.words).encode()).hexdigest()

    def encode(self, words: Iterable[str]) -> Tensor:
        """Return the numbers of words, (T,) int64. A text is given as `text.split()`."""
        return torch.tensor([self._numbers.get(word, 0) for word in words], dtype=torch.int64)

    def decode(self, numbers: Tensor) -> list[str]:
        """Return the words of numbers (T,). Raises DataError for a number that no word has."""
        listed: list[int] = numbers.tolist()
        for number in listed:
            if not 0 <= number < len(self):
                raise DataError(f"word number {number} of a vocabulary of {len(self)}; is it of another one?")
        return [self.words[number] for number in listed]
