"""Attacks that look for the smallest change: their words and numbers. Loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import ClassVar

from ....protocol.condition import CLEAN, ConditionPattern, Value
from ...condition import Named, Place, PublishedNames, Vocabulary, words_of
from ...metrics import Metric, Term, mean_share
from ..condition import attack_parts

MEDIAN = Metric("median_distance", "median distance", better=1, least=0)
AREA = mean_share("distance_area", "area under the curve %")
_NEAREST = "distance to the nearest wrong point"
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
TERMS = (
    Term(
        "optimality",
        "How near an attack that looks for the smallest change comes to the best that all attacks of the run in its "
        "norm found: 100 % where no other found a smaller change of any sample, 0 % where it found nothing within the "
        "best curve. It is the area between the clean accuracy and the attack's curve of accuracy against radius, over "
        "that between the clean accuracy and the best curve, up to the radius where the best curve ends (AttackBench, "
        "Cinà et al. 2024). It says nothing of what all attacks of the run missed.",
    ),
    Term(
        "median distance",
        "The size of the smallest change found that misleads the model, for the sample in the middle: half of the "
        "samples take more. 0 for a sample that is predicted wrong as it is; no end where no wrong point was found.",
    ),
    Term(
        "area under the curve",
        "The mean robust accuracy over all radii from 0 to the end of the curve: 16/255 in linf, 3 in l2, 100 in l1, "
        "200 values in l0.",
    ),
    Term(
        "accuracy at a radius",
        "The share of samples without a wrong point nearer than the radius, as far as the attack found any.",
        ("accuracy at a radius, %",),
    ),
    Term(
        "ln distance",
        "The natural logarithm of the distance to the nearest wrong point. A difference is the logarithm of a ratio: "
        "0.1 means about 10 % further. It is the Hodges-Lehmann estimate, with Wilcoxon's signed-rank test and the "
        "interval that goes with it, over the samples that both predict right.",
    ),
    Term(
        "slope correlation",
        "Spearman's rank correlation of the softmax slope on the clean image with the distance to the nearest wrong "
        "point, over the samples that are right as they are. Below 0, samples are easier to mislead where attention "
        "can change more. The largest of many heads is large by chance, too; 95 % of shuffles stay below the figure "
        "next to it.",
        ("slope correlation of a head", "slope correlation by chance"),
    ),
)


WATCHED = f"attention({CLEAN.text})"  # the condition whose records have softmax slopes on clean images


class DistanceWords(Vocabulary):
    name = "distances"
    defaults: ClassVar[Mapping[str, str]] = {"norm": "linf", "engine": "robustkit"}
    parameters: ClassVar[Mapping[str, Value]] = {"steps": 100, "alpha": 1.0, "gamma": 0.05, **defaults}
    metrics = (MEDIAN, AREA, RATIO, ACCURACY, OPTIMALITY, CORRELATION, OF_HEAD, BY_CHANCE)
    terms = TERMS
    published = PublishedNames(is_fixed=lambda name: name.startswith(("fmn(", "ddn(")))

    def label(self, text: str, place: Place = "axis", manifest: Named | None = None) -> str:
        name, given = attack_parts(text)
        words = [name.upper() + (f"-{given['steps']}" if "steps" in given else ""), norm_of(text)]
        return " ".join(words + [f"{key} {value}" for key, value in given.items() if key not in ("steps", "norm")])

    def needs(self, text: str, metric: str, conditions: Iterable[str]) -> list[str]:
        return [text, *([WATCHED] if metric.startswith(CORRELATION.name) else [])]

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        yield from ("--attacks", pattern.text)


def norm_of(text: str) -> str:
    return attack_parts(text)[1].get("norm", "linf")


def distance_norm(text: str) -> str:
    """Return the norm of the `distance` in a condition's records; empty where they have none."""
    return norm_of(text) if words_of(text) is VOCABULARY else ""


VOCABULARY = DistanceWords()
