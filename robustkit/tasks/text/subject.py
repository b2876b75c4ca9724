"""A language model under a card: how it is asked for the probability of a text."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...data.dataset import Sample
from ...data.documents import WORD, as_text
from ...evaluations.subject import Batch, Settings, Subject
from ...models.language_model import LanguageModel
from ...protocol.card import Card
from ...protocol.condition import Condition
from .columns import TEXTS
from .lines import NONE, Line, Window, by_word, full, lines, strided

_AT_ONCE = 1 << 27
"""Logits that are held at once, at most."""


@dataclass(frozen=True)
class Windows:
    """How a model reads a text: windows of `size` tokens, `stride` apart. changed: whether what is to be predicted is
    changed with what is read. kind: `strided` or `full`, the functions of `lines`.
    """

    size: int
    stride: int
    changed: bool = False
    kind: str = "strided"

    @property
    def history(self) -> int:
        """Tokens before the last that a window predicts, at most."""
        return self.size if self.kind == "full" else self.size - 1

    def cut(self, line: Line) -> Iterator[Window]:
        """Yield the windows of a line. A branch is no text of its own, and gets as much history as there may be."""
        if line.branch or self.kind == "full":
            return full(line, self.history, self.stride)
        return strided(line, self.size, self.stride)


class TextSubject(Subject):
    """One language model on its device under one card; rows of `TEXTS`. Its inputs are (B, n) UTF-8 bytes of documents,
    filled up with zeros.
    """

    schema = TEXTS

    def __init__(
        self, model: LanguageModel, card: Card, settings: Settings, shown: Windows, reused: Container[str] = ()
    ) -> None:
        super().__init__(model, card, settings, None, reused)
        self.tokenizer, self.shown = model.tokenizer, shown

    def inputs(self, raw: Tensor) -> Tensor:
        return raw

    def change(self, raw: Tensor, shown: Tensor, inputs: Tensor) -> Tensor:
        return (inputs != raw.to(inputs.device)).float()

    def distance(self, change: Tensor | None, count: int) -> dict[str, list[Any]]:
        return {}  # a text has no distance in the units of an eps

    def unread(self, sample: Sample) -> dict[str, Any]:
        return {"sample_id": sample.id}

    def needs_truth(self, condition: Condition) -> bool:
        return False

    def answers(self, shown: Tensor, batch: Batch) -> dict[str, list[Any]]:
        pairs = zip(map(as_text, batch.inputs), map(as_text, shown), strict=True)
        rows = [self._row(original, changed) for original, changed in pairs]
        columns = {name: [row[name] for row in rows] for name in rows[0]}
        return {"sample_id": [sample.id for sample in batch.samples], **columns}

    def _row(self, original: str, shown: str) -> dict[str, Any]:
        """Return what is counted in a document as it is shown."""
        before, after = WORD.findall(original), WORD.findall(shown)
        target = shown if self.shown.changed else original
        seen = by_word(self.tokenizer, shown)
        wanted = seen if target == shown else by_word(self.tokenizer, target)
        found = (
            window
            for line in lines(self.tokenizer, wanted, seen, self.shown.history)
            for window in self.shown.cut(line)
        )
        words, size = len(before), len(target.encode())
        if self.tokenizer.begin is None and (ends := self.tokenizer.encode(target)[1]):
            words -= len(wanted[0]) == 1  # nothing comes before its one token
            size -= len(target[: ends[0]].encode())
        changed = sum(one != other for one, other in zip(before, after, strict=True))
        return {"words": words, "bytes": size, "changed": changed, **self._counted(found)}

    def _counted(self, found: Iterable[Window]) -> dict[str, int | float]:
        """Return what is counted in the tokens that windows predict, those of one shape asked together."""
        alike: dict[tuple[int, int], list[Window]] = {}
        sums = Counter[str]()
        for window in found:
            shape = len(window.tokens), len(window.targets)
            alike.setdefault(shape, []).append(window)
            if len(alike[shape]) == self._at_once(shape[1]):
                sums.update(self._scored(alike.pop(shape)))
        for some in alike.values():
            sums.update(self._scored(some))
        nll = float(sums["nll"])
        counts = {name: int(sums[name]) for name in ("tokens", "right", "unknown")}
        return {**counts, "nll": nll if math.isfinite(nll) else math.nan}

    def _at_once(self, keep: int) -> int:
        room = _AT_ONCE // (keep * self.classifier.identity.num_classes)
        return max(1, min(self.settings.batch_size, room))

    def _scored(self, some: Sequence[Window]) -> dict[str, float]:
        """Return the same of windows of one shape."""
        device = self.settings.device
        tokens = torch.tensor([window.tokens for window in some]).to(device)
        targets = torch.tensor([window.targets for window in some]).to(device)
        unknown = NONE if self.tokenizer.unknown is None else self.tokenizer.unknown
        with torch.autocast(device.type, self.settings.dtype, enabled=self.settings.dtype != torch.float32):
            logits = self.fast.network(tokens, targets.shape[1])  # type: ignore[call-arg]
        counts = targets != NONE
        chosen, wanted = logits.float()[counts], targets[counts]
        losses = torch.nn.functional.cross_entropy(chosen, wanted, reduction="none").double().sum()
        return {
            "tokens": len(wanted),
            "nll": float(losses),
            "right": int((chosen.argmax(dim=-1) == wanted).sum()),
            "unknown": int((wanted == unknown).sum()),
        }
