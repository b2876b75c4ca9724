"""Why logits change: `ledger(pgd(…))`, its numbers and words. Loads no torch."""

from __future__ import annotations

from ....protocol.condition import Condition
from ...condition import kind_of
from ...metrics import Metric, Term
from ..condition import UnderWords


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
TERMS = (
    Term(
        "change of logits",
        "The root mean square, over all heads, queries and keys, of how much attention scores before softmax change "
        "from the clean image. What all keys of a query share is left out, since softmax does not see it.",
    ),
    Term(
        "change by query norms, key norms, directions",
        "How much of the change of logits is due to longer or shorter queries, to longer or shorter keys, and to other "
        "directions of both (Shapley values; they sum to 100 %, and one of them may be negative). A formula that "
        "normalises keys has exactly 0 % by key norms. In elliptical formulas M counts among the directions.",
        ("change by query norms", "change by key norms", "change by directions"),
    ),
    Term(
        "back: query norms, key norms, norms, directions",
        "Of the samples whose prediction changed, the share whose prediction comes back when queries, keys, or both "
        "get the norms, or the directions, that they have on the clean image, in every layer of one pass. All else "
        "stays as the attack or the corruption made it, M of elliptical formulas too.",
        ("back: query norms", "back: key norms", "back: norms", "back: directions"),
    ),
)


class LedgerWords(UnderWords):
    name = kind = "ledger"
    usual = "pgd(eps=1/255,steps=20)"
    metrics = METRICS
    terms = TERMS

    def takes(self, under: str) -> bool:
        return kind_of(under) != "clean" and super().takes(under)


VOCABULARY = LedgerWords()
