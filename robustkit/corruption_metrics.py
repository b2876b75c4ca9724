"""Errors under corruption into the benchmark's figures: means over severities and named sets, mCE, relative mCE.

A figure of a set is given only where every one of its conditions was evaluated; what is lacking is said, and never
averaged over silently.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from .corrupting import Corrupted, parse_corrupted
from .corruption_sets import CORRUPTIONS, SETS
from .intervals import Floats, bootstrap

if TYPE_CHECKING:
    import pyarrow as pa

Row = tuple[str, str, float, int, float, float, list[str]]

ALEXNET: dict[str, float] = {
    "gaussian_noise": 0.886428,
    "shot_noise": 0.894468,
    "impulse_noise": 0.922640,
    "defocus_blur": 0.819880,
    "glass_blur": 0.826268,
    "motion_blur": 0.785948,
    "zoom_blur": 0.798360,
    "snow": 0.866816,
    "frost": 0.826572,
    "fog": 0.819324,
    "brightness": 0.564592,
    "contrast": 0.853204,
    "elastic_transform": 0.646056,
    "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}
"""AlexNet's error on ImageNet-C, mean over the severities (Hendrycks and Dietterich 2019)."""

ALEXNET_CLEAN = 0.4348
"""Its error on clean images, as robustness_metrics (Google 2020) has it."""


@dataclass(frozen=True)
class Outcome:
    """What a checkpoint did under one condition. wrong: 1 or 0 for each sample that was read, by id, in their order."""

    ids: pa.Array
    wrong: Floats
    nll: float
    ece: float
    whole: bool  # all samples of the data set were read

    @classmethod
    def of(cls, table: pa.Table, metrics: Mapping[str, float], expected: int) -> Outcome:
        read = table.filter(table["error"].is_null())
        wrong = 1.0 - read["correct"].to_numpy(zero_copy_only=False).astype(np.float64)
        return cls(read["sample_id"].combine_chunks(), wrong, metrics["nll"], metrics["ece"], len(read) == expected)

    @property
    def error(self) -> float:
        return float(self.wrong.mean())


def corruption_rows(outcomes: Mapping[str, Outcome], why_no_mce: str) -> Iterator[Row]:
    """Condition, metric, value, n, interval and flags of every mean that the outcomes of one checkpoint allow.

    outcomes: by the text of the condition, `clean` among them if it was evaluated.
    why_no_mce: why AlexNet's errors are no yardstick for these images; empty where they are.
    """
    parts = {text: part for text in outcomes if (part := parse_corrupted(text)) is not None}
    for example in {part.definition: part for part in parts.values()}.values():
        own = {
            (part.name, part.severity): outcomes[text]
            for text, part in parts.items()
            if part.definition == example.definition
        }
        yield from _of_corruptions(own, example, why_no_mce)
        for name, members in SETS.items():
            wanted = [(corruption, severity) for corruption, severities in members.items() for severity in severities]
            if all(key in own for key in wanted):
                yield from _of_set(name, own, outcomes.get("clean"), example, why_no_mce)


def _of_corruptions(own: Mapping[tuple[str, int], Outcome], example: Corrupted, why_no_mce: str) -> Iterator[Row]:
    for name in CORRUPTIONS:
        five = [own[name, severity] for severity in (1, 2, 3, 4, 5) if (name, severity) in own]
        if len(five) < 5:
            continue
        text = replace(example, name=name).mean.text
        yield _mean_error(text, [(0.2, outcome) for outcome in five])
        if name in ALEXNET and not why_no_mce:
            yield _weighted(text, "ce", [(0.2 / ALEXNET[name], outcome) for outcome in five])
        yield from _plain_means(text, [(0.2, outcome) for outcome in five])


def _of_set(
    name: str,
    own: Mapping[tuple[str, int], Outcome],
    clean: Outcome | None,
    example: Corrupted,
    why_no_mce: str,
) -> Iterator[Row]:
    text, members = name + example.definition, SETS[name]
    shares = [(1 / len(members) / len(members[c]), own[c, s], c) for c in members for s in members[c]]
    plain = [(share, outcome) for share, outcome, _ in shares]
    row = _mean_error(text, plain)
    if name != "in-c":
        yield row
        yield from _plain_means(text, plain)
        return
    yield (*row[:6], [f"no mCE: {why_no_mce}"] if why_no_mce else [])
    if not why_no_mce:
        yield _weighted(text, "mce", [(share / ALEXNET[c], outcome) for share, outcome, c in shares])
        if clean is not None:
            above = [(share / (ALEXNET[c] - ALEXNET_CLEAN), outcome) for share, outcome, c in shares]
            base = -sum(weight for weight, _ in above)
            yield _weighted(text, "relative_mce", [*above, (base, clean)])
    yield from _plain_means(text, plain)


def _mean_error(text: str, weighted: Sequence[tuple[float, Outcome]]) -> Row:
    return _weighted(text, "mean_error", weighted)


def _weighted(text: str, metric: str, weighted: Sequence[tuple[float, Outcome]]) -> Row:
    """A weighted sum of errors, with the interval of resampled samples: all conditions of a sample stay together."""
    value = sum(weight * outcome.error for weight, outcome in weighted)
    share = np.zeros(len(wrong := _of_common_samples([outcome for _, outcome in weighted])))
    for (weight, _), column in zip(weighted, wrong.T, strict=True):
        share += weight * column
    if not len(share):
        return text, metric, value, 0, math.nan, math.nan, []
    ((low, high),) = bootstrap(lambda counts: counts @ share / len(share), len(share))
    unread = sum(not outcome.whole for _, outcome in weighted)
    flags = [f"{unread} of {len(weighted)} conditions lack samples"] if unread else []
    return text, metric, value, len(share), low, high, flags


def _of_common_samples(outcomes: Sequence[Outcome]) -> Floats:
    """(n, conditions): wrong or not, of the samples that could be read under every condition."""
    first = outcomes[0].ids
    if all(outcome.ids.equals(first) for outcome in outcomes):
        return np.stack([outcome.wrong for outcome in outcomes], axis=1)
    rows = [dict(zip(outcome.ids.to_pylist(), outcome.wrong, strict=True)) for outcome in outcomes]
    common = sorted(set.intersection(*map(set, rows)))
    return np.array([[row[name] for row in rows] for name in common]).reshape(len(common), len(rows))


def _plain_means(text: str, weighted: Sequence[tuple[float, Outcome]]) -> Iterator[Row]:
    n = min(len(outcome.ids) for _, outcome in weighted)
    for metric in ("nll", "ece"):
        value = sum(weight * getattr(outcome, metric) for weight, outcome in weighted)
        yield text, metric, value, n, math.nan, math.nan, []


def why_no_mce(manifest: Mapping[str, Any]) -> str:
    """Why AlexNet's errors are no yardstick for a run's images; empty where they are."""
    data = manifest["data"]
    if data.get("layout") != "imagenet" or data.get("classes") != 1000:
        return f"AlexNet's errors are known for the 1000 ImageNet classes only, not for {data.get('name')}"
    return ""


def doubts(condition: str, input_size: Sequence[int], released_size: Sequence[int]) -> list[str]:
    """In what the images of a mean, `in-c(variant=bethgelab)`, differ from the benchmark's."""
    size = f"{input_size[1]}x{input_size[0]}"
    found = []
    if "source=released" in condition:
        if released_size and list(released_size) != list(input_size):
            found.append(f"released files of {released_size[1]}x{released_size[0]} were resized to {size}")
    elif "preset=cifar" not in condition and tuple(input_size) != (224, 224):
        found.append(f"corrupted at {size}; the benchmark's images are 224x224")
    if "variant=bethgelab" in condition:
        found.append("variant bethgelab: snow, frost and elastic_transform are not the benchmark's")
    return found
