"""Watched attention: what each head does on images, and why its logits change from one image to another.

A condition is `attention(clean)`. This module loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import ClassVar

from ...errors import ProtocolError
from ...evaluations.condition import Named, Place, Vocabulary, kind_of, shows, vocabulary_of
from ...evaluations.family import LazyFamily
from ...evaluations.metrics import Metric
from ...protocol.condition import Condition, ConditionPattern

COLUMN_NAMES = (
    *("largest_logit", "query_norm", "key_norm"),
    *("attention_entropy", "entropy_share", "strongest_key", "softmax_slope"),
)
"""A figure per sample: the largest |logit| of all heads, else means over all heads of all layers; entropy in nats and
as a share of log N of N keys, the softmax slope the spectral norm of softmax's Jacobian, a mean over queries."""

LISTS = ("largest_logits", "query_norms", "key_norms", "attention_entropies", "strongest_keys", "softmax_slopes")
"""The same for each head of each layer: means over its tokens, and the largest logit."""


def attention_condition(under: Condition) -> Condition:
    return Condition("attention", f"attention({under.text})", under=under, released=under.released)


def under_of(condition: str, kind: str = "attention") -> str | None:
    """Return the condition whose images the attention is watched on; None for other conditions."""
    return condition[len(kind) + 1 : -1] if condition.startswith(f"{kind}(") and condition.endswith(")") else None


MEANS = (
    Metric("largest_logit", "largest |logit|", least=0, better=-1, paired=True),
    Metric("query_norm", "query norm", least=0, better=-1, paired=True),
    Metric("key_norm", "key norm", least=0, better=-1, paired=True),
    Metric("attention_entropy", "entropy", least=0, better=1, paired=True),
    Metric("entropy_share", "share of the largest entropy", least=0, most=1, better=1, paired=True),
    Metric("strongest_key", "strongest key", least=0, most=1, better=-1, paired=True),
    Metric("softmax_slope", "softmax slope", least=0, paired=True),
)
METRICS = (
    *MEANS,
    *(
        replace(metric, name=f"{metric.name}_change", paired=False, least=low, most=high)
        for metric in MEANS
        for low, high in [metric.difference_ends]
    ),
)


class UnderWords(Vocabulary):
    """Conditions of one word on the images of another condition. kind: the word. usual: the text that messages name."""

    kind: ClassVar[str]
    usual: ClassVar[str]

    def label(self, text: str, place: Place = "axis", manifest: Named | None = None) -> str:
        under = under_of(text, self.kind) or text
        return vocabulary_of(kind_of(under)).label(under)

    def read(self, text: str, read: Callable[[str], ConditionPattern]) -> ConditionPattern | None:
        if (under := under_of(text, self.kind)) is None:
            return None
        inner = read(under).text
        return ConditionPattern(f"{self.kind}({inner})", self.kind, "", (("under", inner),))

    def takes(self, under: str) -> bool:
        return shows(under)

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        under = pattern.given.get("under") or self.kind
        if not self.takes(under):
            raise ProtocolError(f"condition {text!r}: expected such as {self.kind}({self.usual})")
        other(under)

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        under = other(pattern.given.get("under", self.usual.partition("(")[0]))
        yield from vocabulary_of(under.name).command(under, other)
        yield "--watch-attention"


class AttentionWords(UnderWords):
    """What heads do on the images of another condition."""

    name = kind = "attention"
    usual = "clean"
    metrics = METRICS

    def needs(self, text: str, metric: str, conditions: Iterable[str]) -> list[str]:
        return [text, *(["attention(clean)"] if metric.endswith("_change") else [])]


VOCABULARY = AttentionWords()
FAMILY = LazyFamily(VOCABULARY)
