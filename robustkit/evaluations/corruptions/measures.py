"""What the numbers of corruptions are."""

from dataclasses import replace

from ..metric import Metric, mean_share
from ..term import Term

BENCHMARK = "in-c"
"""The set of corruptions that a rule means where it names none."""
MOST_CE = 1 / 0.564592
"""The most that a corruption error can be: all wrong, where AlexNet's error is least (brightness)."""
METRICS = (
    replace(
        mean_share("mean_error", "mean error %", -1, True, ("mean_error", "mean error")),
        under=BENCHMARK,
        noun="error",
        also=("error_rate",),
    ),
    Metric("mce", "mCE %", 100, -1, under=BENCHMARK, drafted=True, hub=("mce", "mCE"), least=0, most=MOST_CE),
    Metric("relative_mce", "relative mCE %", 100, -1, under=BENCHMARK, hub=("relative_mce", "relative mCE")),
    Metric("ce", "CE %", 100, -1, least=0, most=MOST_CE, also=("corruption_error",)),
)
TERMS = (
    Term(
        "severity",
        "How strong a corruption is, from 1 (mild) to 5 (severe), with the constants of ImageNet-C (Hendrycks and "
        "Dietterich 2019).",
    ),
    Term(
        "mean error",
        "The share of images predicted wrong, averaged over the severities of each corruption and then over the "
        "corruptions of a set. It needs no other model to compare with.",
    ),
    Term(
        "CE",
        "Corruption error: the errors on one corruption, summed over its five severities, divided by those of AlexNet. "
        "100 % is as bad as AlexNet.",
    ),
    Term(
        "mCE",
        "Mean corruption error: the mean of CE over the 15 corruptions of ImageNet-C (Hendrycks and Dietterich 2019). "
        "Lower is better; AlexNet has 100 %.",
    ),
    Term(
        "relative mCE",
        "As mCE, but of the increase over the clean error: how much accuracy corruptions take away, relative to what "
        "they take from AlexNet. A model with a low clean accuracy can have a low relative mCE.",
    ),
    Term("in-c", "The 15 corruptions of ImageNet-C at all five severities: noise, blur, weather and digital changes."),
)
