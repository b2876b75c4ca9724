"""What the numbers of watched attention are."""

from dataclasses import replace

from ..metric import Metric

_MEANS = (
    Metric("largest_logit", "largest |logit|", better=-1, paired=True),
    Metric("query_norm", "query norm", better=-1, paired=True),
    Metric("key_norm", "key norm", better=-1, paired=True),
    Metric("attention_entropy", "entropy", better=1, paired=True),
    Metric("entropy_share", "share of the largest entropy", better=1, paired=True),
    Metric("strongest_key", "strongest key", better=-1, paired=True),
)
METRICS = (*_MEANS, *(replace(metric, name=f"{metric.name}_change", paired=False) for metric in _MEANS))
