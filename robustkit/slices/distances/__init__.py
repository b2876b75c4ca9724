"""The family of attacks that look for the smallest change that misleads a model.

This module has their words and numbers, and loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import ClassVar

from ...evaluations.attacks import attack_name, attack_norm, attack_parts
from ...evaluations.condition import UNDER_ATTACK, Named, Place, PublishedNames, Vocabulary, kind_of, parsed
from ...evaluations.family import LazyFamily
from ...evaluations.metrics import Metric, mean_share
from ...protocol.condition import CLEAN, Condition, ConditionPattern, Value

MEDIAN = Metric("median_distance", "median distance", better=1, least=0)
AREA = mean_share("distance_area", "area under the curve %")
_NEAREST = "distance to the nearest adversarial example"
RATIO = Metric("ln_distance", "ln distance", better=1, paired=True, by_rank=True, noun=_NEAREST)
ACCURACY = Metric("accuracy_at(", "accuracy at a radius, %", 100, 1, binary=True, parametric=True)
OPTIMALITY = Metric("optimality", "optimality %", 100, share=True)
CORRELATION = Metric("slope_correlation", "slope correlation", least=-1, most=1)
OF_HEAD = Metric("slope_correlation(", "slope correlation of a head", parametric=True, least=-1, most=1)
BY_CHANCE = Metric("slope_correlation_by_chance", "slope correlation by chance", least=-1, most=1)

RADII = {  # of the curve that summaries have, by norm: pixels in [0, 1], for l0 values that change
    "linf": tuple(f"{levels}/255" for levels in ("0.25", "0.5", "1", "2", "3", "4", "6", "8", "12", "16")),
    "l2": ("0.1", "0.25", "0.5", "0.75", "1", "1.5", "2", "3"),
    "l1": ("1", "2", "5", "10", "20", "50", "100"),
    "l0": ("1", "2", "5", "10", "20", "50", "100", "200"),
}
FURTHEST = {"linf": 16 / 255, "l2": 3.0, "l1": 100.0, "l0": 200.0}  # where the area under the curve ends


WATCHED = f"attention({CLEAN.text})"  # the condition whose records have softmax slopes on clean images


USUAL: Mapping[str, Value] = {"norm": "linf", "engine": "robustkit"}


class DistanceWords(Vocabulary):
    name = "distances"
    claims = UNDER_ATTACK._replace(
        compared="ln distance: the logarithm of the distance to the nearest adversarial example, over the samples that "
        "both classify correctly; baseline and value are medians, the difference is the median shift of a sample, by "
        "Wilcoxon's test."
    )
    parameters: ClassVar[Mapping[str, Value]] = {"steps": 100, "alpha": 1.0, "gamma": 0.05, **USUAL}
    by_queries: ClassVar[Mapping[str, Value]] = {"queries": 5000, "directions": 30, **USUAL}
    metrics = (MEDIAN, AREA, RATIO, ACCURACY, OPTIMALITY, CORRELATION, OF_HEAD, BY_CHANCE)
    published = PublishedNames(is_fixed=lambda name: name.startswith(("fmn(", "ddn(", "hopskipjump(")))

    def label(self, text: str, place: Place = "axis", manifest: Named | None = None) -> str:
        name, parameters = attack_parts(text)
        budget = next((parameters.pop(key) for key in ("steps", "queries") if key in parameters), "")
        words = [f"{attack_name(name)}-{budget}" if budget else attack_name(name), attack_norm(text)]
        return " ".join(words + [f"{key} {value}" for key, value in parameters.items() if key != "norm"])

    def parse(self, text: str) -> Condition:
        return parsed(text, self.by_queries if budget_of(text) == "queries" else self.parameters)

    def needs(self, text: str, metric: str, conditions: Iterable[str]) -> list[str]:
        return [text, *([WATCHED] if metric.startswith(CORRELATION.name) else [])]

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        yield from ("--attacks", pattern.text)


def budget_of(text: str) -> str:
    """Return what limits the attack of a condition: `steps` or `queries`."""
    return "queries" if kind_of(text) == "hopskipjump" else "steps"


VOCABULARY = DistanceWords()
FAMILY = LazyFamily(VOCABULARY)
