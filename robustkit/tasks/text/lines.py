"""Line up a changed text with its original: what a model reads, and what it is to predict at each place.

With original targets the figure of a text is the sum over its words w of -log p(tokens of w | changed text before w):
the history is what was shown, the word to predict is the original. The tokens of one word follow each other as in the
original, since they are one event. Where a word has one token, shown and original, this takes one pass. Where a changed
word has more, its later tokens are asked in a branch: the changed text before the word, then the word's own tokens.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...data.documents import WORD
from ...models.tokenizers import Tokenizer

NONE = -1
"""A place at which nothing is to be predicted."""


@dataclass(frozen=True)
class Line:
    """Tokens that are read, what each place should have been, and the first place that counts.

    targets[i] is to be predicted from tokens[:i], from place `first` on, which is at least 1. branch: whether it holds
    the end of a text up to a word, and not the whole text.
    """

    tokens: Sequence[int]
    targets: Sequence[int]
    first: int = 1
    branch: bool = False


class Window(NamedTuple):
    """Some tokens at once, and what is to follow the last of them, `NONE` where that does not count."""

    tokens: Sequence[int]
    targets: Sequence[int]


def by_word(tokenizer: Tokenizer, text: str) -> list[list[int]]:
    """Return the tokens of each word of a text, with the blanks before it; last, those of the blanks at the end."""
    ends = [found.end() for found in WORD.finditer(text)]
    groups: list[list[int]] = [[] for _ in range(len(ends) + 1)]
    for token, end in zip(*tokenizer.encode(text), strict=True):
        groups[bisect_left(ends, end)].append(token)
    return groups


def lines(
    tokenizer: Tokenizer, original: Sequence[Sequence[int]], shown: Sequence[Sequence[int]], size: int
) -> Iterator[Line]:
    """Yield the line of a whole text, and the branches of words whose tokens it does not hold.

    original, shown: the tokens by word, of as many words. size: tokens before a word that its branch holds.
    """
    tokens = [] if tokenizer.begin is None else [tokenizer.begin]
    targets, branches = [NONE] * len(tokens), list[tuple[int, Sequence[int], int]]()
    for wanted, seen in zip(original, shown, strict=True):
        alike = next((k for k, pair in enumerate(zip(wanted, seen, strict=False)) if pair[0] != pair[1]), None)
        reached = min(len(wanted), len(seen)) if alike is None else alike + 1
        if reached < len(wanted):
            branches.append((len(tokens), wanted, reached))
        tokens += seen
        targets += [*wanted[:reached], *[NONE] * (len(seen) - reached)]
    yield Line(tokens, targets)
    for start, wanted, reached in branches:
        branch = [*tokens[max(0, start - size) : start], *wanted]
        yield Line(branch, branch, max(len(branch) - len(wanted) + reached, 1), branch=True)


def strided(line: Line, size: int, stride: int) -> Iterator[Window]:
    """Yield the windows of a line that predict anything, as in the guide of transformers to perplexity: each holds
    `size` tokens, those to predict among them, and begins `stride` after the one before; the last may be shorter. Each
    place counts in the first window that holds it. stride: below `size`, or first tokens of windows would not count.
    """
    done, start = line.first, 0
    while done < len(line.tokens):
        stop = min(start + size, len(line.tokens))
        wanted = line.targets[max(done, start + 1) : stop]
        if any(target != NONE for target in wanted):
            yield Window(line.tokens[start : stop - 1], wanted)
        done, start = stop, start + stride


def full(line: Line, size: int, stride: int) -> Iterator[Window]:
    """Yield the windows of a line that predict anything: each holds `size` tokens before the last that it predicts, or
    all that there are; the last window, too. The next predicts `stride` more, and each place counts in the first window
    that predicts it.
    """
    start = line.first - 1  # the place after which the next target comes
    while start < len(line.tokens) - 1:
        stop = min(len(line.tokens) - 1, max(start + stride, size))
        wanted = line.targets[start + 1 : stop + 1]
        if any(target != NONE for target in wanted):
            yield Window(line.tokens[max(0, stop - size) : stop], wanted)
        start = stop
