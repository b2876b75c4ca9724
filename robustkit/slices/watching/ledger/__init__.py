"""What makes logits change under an attack or a corruption, and which of it makes predictions change.

A condition is `ledger(pgd(…))`. This module loads no torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ....evaluations.condition import kind_of
from ....evaluations.family import LazyFamily
from ....evaluations.metrics import Metric
from ....protocol.condition import Condition
from .. import UnderWords


def ledger_condition(under: Condition) -> Condition:
    return Condition("ledger", f"ledger({under.text})", under=under, released=under.released)


CHANGE = Metric("logit_change", "change of logits", paired=True)
SHARES = tuple(
    Metric(f"{factor}_share", f"change by {name}, %", 100, paired=True)
    for factor, name in (("query_norm", "query norms"), ("key_norm", "key norms"), ("angle", "directions"))
)
BACK = tuple(
    Metric(f"back_with_{swap}", f"back: {name}, %", 100, paired=True)
    for swap, name in (
        *(("query_norms", "query norms"), ("key_norms", "key norms")),
        *(("norms", "norms"), ("angles", "directions")),
    )
)
METRICS = (CHANGE, *SHARES, *BACK)
ANSWERS = (SHARES[1], BACK[2])  # in comparisons: all would weaken their correction for each other
LISTS = ("logit_changes", "query_norm_shares", "key_norm_shares", "angle_shares")  # of each head of each layer


class LedgerWords(UnderWords):
    name = kind = "ledger"
    usual = "pgd(eps=1/255,steps=20)"
    metrics = METRICS

    def extend(self, conditions: Sequence[Condition], data: Any) -> Sequence[Condition]:
        """Follow each condition under which attention is watched by what changed since the clean image."""
        every = list[Condition]()
        for each in conditions:
            every.append(each)
            if each.name == "attention" and each.under is not None and self.takes(each.under.text):
                every.append(ledger_condition(each.under))
        return every

    def takes(self, under: str) -> bool:
        return kind_of(under) != "clean" and super().takes(under)


VOCABULARY = LedgerWords()
FAMILY = LazyFamily(VOCABULARY)
