"""What the numbers of watched attention are."""

from dataclasses import replace

from ..metric import Metric
from ..term import Term

_MEANS = (
    Metric("largest_logit", "largest |logit|", least=0, better=-1, paired=True),
    Metric("query_norm", "query norm", least=0, better=-1, paired=True),
    Metric("key_norm", "key norm", least=0, better=-1, paired=True),
    Metric("attention_entropy", "entropy", least=0, better=1, paired=True),
    Metric("entropy_share", "share of the largest entropy", least=0, most=1, better=1, paired=True),
    Metric("strongest_key", "strongest key", least=0, most=1, better=-1, paired=True),
    Metric("softmax_slope", "softmax slope", least=0, paired=True),
)
METRICS = (
    *_MEANS,
    *(
        replace(metric, name=f"{metric.name}_change", paired=False, least=low, most=high)
        for metric in _MEANS
        for low, high in [metric.difference_ends]
    ),
)
TERMS = (
    Term(
        "largest |logit|",
        "The largest size of an attention score before softmax, over all heads. Above 100 it is flagged as an "
        "explosion.",
    ),
    Term("query norm", "The length of the query vectors as they are projected, a mean over heads and tokens."),
    Term("key norm", "The length of the key vectors as they are projected, a mean over heads and tokens."),
    Term(
        "entropy",
        "How widely a query spreads its attention over N keys: log N where it is even, 0 where all of it goes to one "
        "key. As a share of log N, models with other numbers of tokens compare.",
        ("share of the largest entropy", "% of log N"),
    ),
    Term("strongest key", "The share of a query's attention that goes to the key with most of it."),
    Term(
        "softmax slope",
        "How much a query's attention can change where its logits change: the spectral norm of softmax's Jacobian, a "
        "mean over queries. 0.5 where two keys share all attention, 0 where one key has it and no gradient of a logit "
        "is left.",
    ),
    Term("entropy collapse", "A mean entropy below 1 % of log N (Zhai et al. 2023): each query attends to one key."),
)
