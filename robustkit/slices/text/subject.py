"""A language model under a card: how it is asked for the probability of a text.

With original targets the figure of a text is the sum over its words w of -log p(tokens of w | changed text before w):
the history is what was shown, the word to predict is the original. The tokens of one word follow each other as in the
original, since they are one event. Where a word has one token, shown and original, this takes one pass. Where a changed
word has more, its later tokens are asked in a branch: the changed text before the word, then the word's own tokens.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa
import torch
from torch import Tensor

from ...data.dataset import Dataset, Sample
from ...errors import BadImageError
from ...evaluations.subject import Batch, EvaluatedModel, Reader, Settings
from ...protocol.card import Card
from ...protocol.condition import Condition
from .documents import WORD, as_text, utf8_rows
from .language_model import LanguageModel
from .tokenizers import Tokenizer

TEXTS = pa.schema(
    {
        "sample_id": pa.string(),
        **dict.fromkeys(("tokens", "words", "bytes"), pa.int64()),
        "nll": pa.float64(),
        **dict.fromkeys(("right", "unknown", "changed"), pa.int64()),
        "error": pa.string(),
    }
)
"""One row per document.

tokens: how many were predicted; words, bytes: of the text that they are, without the first token where nothing comes
before it. nll: minus the natural logarithm of the probability of all these tokens, their sum. right: how many were the
likeliest; unknown: how many stand for what the vocabulary lacks. changed: words that a condition changed. error: why a
document could not be read; all but the id is null then.
"""


NONE = -1  # a place at which nothing is to be predicted


@dataclass(frozen=True)
class TokenLine:
    """Tokens that are read; targets[i] follows tokens[:i], from place `first` ≥ 1 on. branch: a text up to a word."""

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
    ends = [match.end() for match in WORD.finditer(text)]
    groups: list[list[int]] = [[] for _ in range(len(ends) + 1)]
    for token, end in zip(*tokenizer.encode(text), strict=True):
        groups[bisect_left(ends, end)].append(token)
    return groups


def lines(
    tokenizer: Tokenizer, original: Sequence[Sequence[int]], changed: Sequence[Sequence[int]], size: int
) -> Iterator[TokenLine]:
    """Yield the line of a text, and branches of words whose tokens it lacks, each after `size` tokens at most."""
    tokens = [] if tokenizer.begin is None else [tokenizer.begin]
    targets, branches = [NONE] * len(tokens), list[tuple[int, Sequence[int], int]]()
    for target, seen in zip(original, changed, strict=True):
        alike = next((k for k, pair in enumerate(zip(target, seen, strict=False)) if pair[0] != pair[1]), None)
        reached = min(len(target), len(seen)) if alike is None else alike + 1
        if reached < len(target):
            branches.append((len(tokens), target, reached))
        tokens += seen
        targets += [*target[:reached], *[NONE] * (len(seen) - reached)]
    yield TokenLine(tokens, targets)
    for start, target, reached in branches:
        branch = [*tokens[max(0, start - size) : start], *target]
        yield TokenLine(branch, branch, max(len(branch) - len(target) + reached, 1), branch=True)


def strided_windows(line: TokenLine, size: int, stride: int) -> Iterator[Window]:
    """Yield the windows that predict anything, as transformers' guide to perplexity: `size` tokens, targets among them,
    each `stride` further; places count in the first window that holds them. stride: below `size`.
    """
    done, start = line.first, 0
    while done < len(line.tokens):
        stop = min(start + size, len(line.tokens))
        targets = line.targets[max(done, start + 1) : stop]
        if any(target != NONE for target in targets):
            yield Window(line.tokens[start : stop - 1], targets)
        done, start = stop, start + stride


def full_windows(line: TokenLine, size: int, stride: int) -> Iterator[Window]:
    """Yield the windows that predict anything: `size` tokens (or all) before the last predicted, also in the last
    window; each predicts `stride` more.
    """
    start = line.first - 1  # the place after which the next target comes
    while start < len(line.tokens) - 1:
        stop = min(len(line.tokens) - 1, max(start + stride, size))
        targets = line.targets[start + 1 : stop + 1]
        if any(target != NONE for target in targets):
            yield Window(line.tokens[max(0, stop - size) : stop], targets)
        start = stop


_AT_ONCE = 1 << 27  # logits that are held at once, at most


@dataclass(frozen=True)
class TokenWindows:
    """How a model reads a text: `size` tokens, `stride` apart. changed: whether targets are, too. kind: of windows."""

    size: int
    stride: int
    changed: bool = False
    kind: str = "strided"

    @property
    def history(self) -> int:
        """Tokens before the last that a window predicts, at most."""
        return self.size if self.kind == "full" else self.size - 1

    def cut(self, line: TokenLine) -> Iterator[Window]:
        """Yield the windows of a line. A branch is no text of its own, and gets as much history as there may be."""
        if line.branch or self.kind == "full":
            return full_windows(line, self.history, self.stride)
        return strided_windows(line, self.size, self.stride)


class TextSubject(EvaluatedModel):
    """One language model under one card. Its inputs are (B, n) UTF-8 bytes of documents, filled up with zeros."""

    schema = TEXTS

    def __init__(self, model: LanguageModel, card: Card, settings: Settings, windows: TokenWindows) -> None:
        super().__init__(model, card, settings, None)
        self.tokenizer, self.windows = model.tokenizer, windows

    def inputs(self, raw: Tensor) -> Tensor:
        return raw

    def change(self, raw: Tensor, view: Tensor, inputs: Tensor) -> Tensor:
        return (inputs != raw.to(inputs.device)).float()

    def distance(self, change: Tensor | None, count: int) -> dict[str, list[Any]]:
        return {}  # a text has no distance in the units of an eps

    def unread(self, sample: Sample) -> dict[str, Any]:
        return {"sample_id": sample.id}

    def needs_truth(self, condition: Condition) -> bool:
        return False

    def answers(self, view: Tensor, batch: Batch) -> dict[str, list[Any]]:
        pairs = zip(map(as_text, batch.inputs), map(as_text, view), strict=True)
        rows = [self._row(original, changed) for original, changed in pairs]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        return {"sample_id": [sample.id for sample in batch.samples], **columns}

    def _row(self, original: str, view: str) -> dict[str, Any]:
        before, after = WORD.findall(original), WORD.findall(view)
        target = view if self.windows.changed else original
        seen = by_word(self.tokenizer, view)
        targets = seen if target == view else by_word(self.tokenizer, target)
        every = lines(self.tokenizer, targets, seen, self.windows.history)
        windows = (window for line in every for window in self.windows.cut(line))
        words, size = len(before), len(target.encode())
        if self.tokenizer.begin is None and (ends := self.tokenizer.encode(target)[1]):
            words -= len(targets[0]) == 1  # nothing comes before its one token
            size -= len(target[: ends[0]].encode())
        changed = sum(one != other for one, other in zip(before, after, strict=True))
        return {"words": words, "bytes": size, "changed": changed, **self._counted(windows)}

    def _counted(self, windows: Iterable[Window]) -> dict[str, int | float]:
        """Return what is counted in the tokens that windows predict, those of one shape asked together."""
        alike: dict[tuple[int, int], list[Window]] = {}
        sums = Counter[str]()
        for window in windows:
            shape = len(window.tokens), len(window.targets)
            alike.setdefault(shape, []).append(window)
            room = _AT_ONCE // (shape[1] * self.classifier.identity.num_classes)
            if len(alike[shape]) == max(1, min(self.settings.batch_size, room)):
                sums.update(self._scored(alike.pop(shape)))
        for some in alike.values():
            sums.update(self._scored(some))
        nll = float(sums["nll"])
        counts = {name: int(sums[name]) for name in ("tokens", "right", "unknown")}
        return {**counts, "nll": nll if math.isfinite(nll) else math.nan}

    def _scored(self, some: Sequence[Window]) -> dict[str, float]:
        """Return the same of windows of one shape."""
        device = self.settings.device
        tokens = torch.tensor([window.tokens for window in some]).to(device)
        targets = torch.tensor([window.targets for window in some]).to(device)
        unknown = NONE if self.tokenizer.unknown is None else self.tokenizer.unknown
        with torch.autocast(device.type, self.settings.dtype, enabled=self.settings.dtype != torch.float32):
            logits = self.fast.network(tokens, targets.shape[1])
        counts = targets != NONE
        chosen, expected = logits.float()[counts], targets[counts]
        losses = torch.nn.functional.cross_entropy(chosen, expected, reduction="none").double().sum()
        right, lacking = (int(hits.sum()) for hits in (chosen.argmax(dim=-1) == expected, expected == unknown))
        return {"tokens": len(expected), "nll": float(losses), "right": right, "unknown": lacking}


@dataclass(frozen=True)
class Documents:
    """The source of a document, (n,) uint8: its UTF-8 bytes."""

    dataset: Dataset

    def reader(self, condition: Condition) -> Reader:
        return self._read

    def _read(self, sample: Sample) -> Tensor:
        content = self.dataset.read(sample).removeprefix(b"\xef\xbb\xbf")
        if not content.split():
            raise BadImageError(f"{sample.id}: no words in it; expected text")
        return utf8_rows([content.decode()])[0]

    def locate(self, sample: Sample, inputs: Tensor) -> Any:
        return None
