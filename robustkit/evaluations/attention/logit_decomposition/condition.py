"""Why logits change: `ledger(pgd(…))`, its numbers and words. Loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ....errors import ProtocolError
from ....protocol.condition import Condition, ConditionPattern
from ...interface import Named, Place, Vocabulary
from ...metrics import Metric, Term
from ...registry import kind_of, shows, vocabulary_of


def ledger_condition(under: Condition) -> Condition:
    """The condition of why logits change from the clean images to those of another condition."""
    return Condition("ledger", f"ledger({under.text})", under=under, released=under.released)


def under_of(condition: str) -> str | None:
    """Return the condition on whose images the books are kept; None for other conditions."""
    return condition[7:-1] if condition.startswith("ledger(") and condition.endswith(")") else None


CHANGE = Metric("logit_change", "change of logits", paired=True)
SHARES = tuple(
    Metric(f"{factor}_share", f"change by {name}, %", 100, paired=True)
    for factor, name in (("query_norm", "query norms"), ("key_norm", "key norms"), ("angle", "directions"))
)
BACK = tuple(
    Metric(f"back_with_{swap}", f"back: {name}, %", 100, paired=True)
    for swap, name in (
        ("query_norms", "query norms"),
        ("key_norms", "key norms"),
        ("norms", "norms"),
        ("angles", "directions"),
    )
)
METRICS = (CHANGE, *SHARES, *BACK)
ANSWERS = (SHARES[1], BACK[2])
"""What comparisons show: all would weaken their correction for each other."""
LISTS = ("logit_changes", "query_norm_shares", "key_norm_shares", "angle_shares")
"""Of each head of each layer, one layer after the other."""
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


class LedgerWords(Vocabulary):
    """Why logits change from the clean images to those of another condition."""

    name = "ledger"
    metrics = METRICS
    terms = TERMS
    images_of_under = True

    def label(self, text: str, place: Place = "axis", manifest: Named | None = None) -> str:
        under = under_of(text) or text
        return vocabulary_of(under.partition("(")[0]).label(under)

    def read(self, text: str, read: Callable[[str], ConditionPattern]) -> ConditionPattern | None:
        under = under_of(text)
        if under is None:
            return None
        inner = read(under)
        return ConditionPattern(f"ledger({inner.text})", "ledger", "", (("under", inner.text),))

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        under = pattern.given.get("under") or "ledger"
        if kind_of(under) == "clean" or not shows(under):
            raise ProtocolError(f"condition {text!r}: expected such as ledger(pgd(eps=1/255,steps=20))")
        other(under)

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        under = other(pattern.given.get("under", "pgd"))
        yield from vocabulary_of(under.name).command(under, other)
        yield "--watch-attention"


VOCABULARY = LedgerWords()
