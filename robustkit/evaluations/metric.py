"""Everything about a metric, in one place."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A number of the results.

    name: in summary.json and in rules. label: for people, with its unit. scale: the factor of the value there. better:
    1 if more is better, -1 if less is, 0 if neither is. paired: a mean over samples, or a segmentation metric, so that
    two runs can be paired by sample. binary: each sample is right or wrong, hence Wilson's interval. share: between 0
    and 1, so that n samples bound its certainty. of_sets: over several conditions; a rule that names none means in-c.
    parametric: the name ends with a parameter, such as a class.
    """

    name: str
    label: str = ""
    scale: float = 1.0
    better: int = 0
    paired: bool = False
    binary: bool = False
    share: bool = False
    of_sets: bool = False
    parametric: bool = False


def of_samples(name: str, label: str) -> Metric:
    """Return a metric for which each sample is right or wrong, in percent."""
    return Metric(name, label, 100, 1, paired=True, binary=True)


def mean_share(name: str, label: str = "", better: int = 1) -> Metric:
    """Return a metric that is a mean over samples of shares between 0 and 1, in percent."""
    return Metric(name, label, 100, better, paired=True, share=True)
