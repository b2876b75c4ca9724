"""Errors under corruption into mean error, mCE and relative mCE, of sets that were evaluated under all conditions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...common.figure import BOOTSTRAP, INCOMPLETE, Figure
from ...common.finding import Finding
from ...common.intervals import Floats, bootstrap, calibration_error, mean_of
from ...runs.manifest import Manifest
from ...runs.metadata import SampleGroups
from ..aggregate import RecordReader
from ..condition import kind_of, words_of
from ..family import Aggregator, Overview
from ..records import CheckpointRecords, Pairings, PerSample, common_ids, common_places
from . import (
    CORRUPTIONS,
    QUICK,
    SETS,
    TILED,
    VOCABULARY,
    Corrupted,
    by_definition,
    conditions_of,
    corruption_names,
    parse_corrupted,
    set_of,
    sets_at,
    shares_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

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
}  # its mean error over the severities of ImageNet-C (Hendrycks and Dietterich 2019)

ALEXNET_CLEAN = 0.4348  # its error on clean images, as in robustness_metrics (Google 2020)


@dataclass(frozen=True)
class CorruptionSample:
    """A condition's predictions, (n,) each, of the samples that were read; floats as in the records."""

    ids: pa.Array
    wrong: NDArray[np.bool_]
    nll: NDArray[np.floating]
    confidence: NDArray[np.floating]
    flags: tuple[Finding, ...] = ()
    sample_groups: SampleGroups | None = None
    """The groups of the run's samples."""

    @classmethod
    def of(
        cls,
        read: pa.Table,
        flags: Sequence[Finding],
        like: CorruptionSample | None = None,
        sample_groups: SampleGroups | None = None,
    ) -> CorruptionSample:
        """Return the sample of records. like: another, whose ids are reused where they are the same."""
        ids = read["sample_id"].combine_chunks()
        nll, confidence = (read[name].to_numpy(zero_copy_only=False) for name in ("nll", "confidence"))
        wrong = ~read["correct"].to_numpy(zero_copy_only=False).astype(bool)
        same = like is not None and like.ids.equals(ids)
        return cls(like.ids if like is not None and same else ids, wrong, nll, confidence, tuple(flags), sample_groups)

    @property
    def calibration(self) -> float:
        finite = np.isfinite(self.confidence)
        return calibration_error(self.confidence[finite].astype(np.float64), 1.0 - self.wrong[finite])

    def take(self, rows: NDArray[np.int64]) -> CorruptionSample:
        ids = self.ids if len(rows) == len(self.ids) else self.ids.take(rows)
        return CorruptionSample(
            ids, self.wrong[rows], self.nll[rows], self.confidence[rows], self.flags, self.sample_groups
        )


def corruption_rows(outcomes: Mapping[str, CorruptionSample], expected: int, why_no_mce: str) -> Iterator[Figure]:
    """Yield every mean that outcomes (by condition, maybe `clean`, too) allow, over the samples read under all of its
    conditions. expected: samples of the data set. why_no_mce: empty where AlexNet is a yardstick."""
    seen = set[str]()
    for example, members in by_definition(outcomes):
        samples = {key: outcomes[replace(example, name=key[0], severity=key[1]).text] for key in members}
        rows = [*_of_corruptions(samples, expected, example, why_no_mce)]
        for text in sets_at(samples, example.definition, example.textures):
            rows += _of_set(text, samples, outcomes.get("clean"), expected, why_no_mce)
        yield from (row for row in rows if row.condition not in seen)
        seen.update(row.condition for row in rows)  # those without textures are the same for each texture


def _of_corruptions(
    samples: Mapping[tuple[str, int], CorruptionSample], expected: int, example: Corrupted, why_no_mce: str
) -> Iterator[Figure]:
    for name in corruption_names():
        five = [samples[name, severity] for severity in (1, 2, 3, 4, 5) if (name, severity) in samples]
        if len(five) == 5:
            ce = {"ce": [0.2 / ALEXNET[name]] * 5} if name in ALEXNET and not why_no_mce else {}
            text = replace(example, name=name).mean.text
            yield from _means(text, five, {"mean_error": [0.2] * 5} | ce, expected)


def _of_set(
    text: str,
    samples: Mapping[tuple[str, int], CorruptionSample],
    clean: CorruptionSample | None,
    expected: int,
    why_no_mce: str,
) -> Iterator[Figure]:
    name, some, _ = set_of(text) or (text, (), "")
    members = {corruption: some or severities for corruption, severities in SETS[name].items()}
    keys = [(corruption, severity) for corruption, severities in members.items() for severity in severities]
    shares = [1 / len(members) / len(members[corruption]) for corruption, _ in keys]
    weights, conditions = {"mean_error": shares}, [samples[key] for key in keys]
    why_no_mce = why_no_mce or ("AlexNet's errors are means over all five severities" if some else "")
    if name != "in-c" or why_no_mce:
        yield from _means(text, conditions, weights, expected, why_no_mce if name == "in-c" else "")
        return
    weights["mce"] = [share / ALEXNET[key[0]] for share, key in zip(shares, keys, strict=True)]
    yield from _means(text, conditions, weights, expected)
    if clean is not None:
        above = [share / (ALEXNET[key[0]] - ALEXNET_CLEAN) for share, key in zip(shares, keys, strict=True)]
        relative = {"relative_mce": [*above, -sum(above)]}
        yield from _means(text, [*conditions, clean], relative, expected, losses=False)


def _means(
    text: str,
    conditions: Sequence[CorruptionSample],
    weights: Mapping[str, Sequence[float]],
    expected: int,
    reason: str = "",
    losses: bool = True,
) -> Iterator[Figure]:
    """Yield a row for each weighting of the conditions' errors, and their mean NLL and calibration error."""
    conditions = _of_common_samples(conditions)
    n = len(conditions[0].wrong)
    if n == 0:
        return
    flags = merged_flags(conditions)
    if n < expected:
        flags.append(Finding.of("data/lacks-conditions", count=expected - n, expected=expected))
    reasons = [Finding.of("corruptions/no-mce", why=reason)] if reason else []
    sample_groups = conditions[0].sample_groups
    groups = None if sample_groups is None else sample_groups.of(conditions[0].ids)
    for metric, weighting in weights.items():
        # All conditions of a sample stay together when samples are resampled.
        share: Floats = np.zeros(n)
        for weight, condition in zip(weighting, conditions, strict=True):
            share += weight * condition.wrong
        if groups is not None:
            yield mean_of(share, groups).of(text, metric, [*flags, *reasons])
            continue
        value = float(share.mean())
        ends = bootstrap(lambda counts, share=share: counts @ share / n, n, [value])[0]  # type: ignore[misc]
        yield Figure(value, n, *ends, BOOTSTRAP).of(text, metric, [*flags, *reasons])
    if losses:
        shares = next(iter(weights.values()))
        nll = sum(w * float(c.nll.astype(np.float64).mean()) for w, c in zip(shares, conditions, strict=True))
        ece = sum(w * c.calibration for w, c in zip(shares, conditions, strict=True))
        yield Figure(nll, n).of(text, "nll", flags)
        yield Figure(ece, n).of(text, "ece", flags)


def merged_flags(conditions: Iterable[Any]) -> list[Finding]:
    """Return the flags of conditions, each once; missing samples are counted over all conditions."""
    every = dict.fromkeys(flag for condition in conditions for flag in condition.flags)
    return [flag for flag in every if flag.code not in (INCOMPLETE, "data/unreadable")]


def _of_common_samples(conditions: Sequence[CorruptionSample]) -> list[CorruptionSample]:
    """Return the conditions with the samples that could be read under every one of them, in one order."""
    first = conditions[0].ids
    if all(condition.ids is first or condition.ids.equals(first) for condition in conditions):
        return list(conditions)
    places = common_places([condition.ids for condition in conditions])
    return [condition.take(place) for condition, place in zip(conditions, places, strict=True)]


def why_no_mce(manifest: Manifest) -> str:
    """Return why AlexNet's errors are not a yardstick for a run's images; empty where they are."""
    data = manifest.data
    is_imagenet = data.layout == "imagenet" and data.classes == 1000
    return "" if is_imagenet else f"AlexNet's errors are known only for the 1000 ImageNet classes, not for {data.name}"


def tree_doubts(
    condition: str, input_size: Sequence[int], released: Sequence[Mapping[str, Any]], compared: bool = True
) -> list[Finding]:
    """Return how a mean's images differ from the benchmark's. input_size: zeros where predictions were computed
    elsewhere. released: what run.json says about its trees. compared: whether published figures are of such images."""
    size = f"{input_size[1]}x{input_size[0]}"
    doubts = list[Finding]()
    if "source=released" in condition:
        odd = {tuple(image) for tree in released for image in tree["image_sizes"] if list(image) != list(input_size)}
        of = "corruptions/released-resized"
        doubts += [Finding.of(of, width=width, height=height, size=size) for height, width in sorted(odd)]
        roots = sorted({str(tree["root"]) for tree in released})
        if len(roots) > 1:
            doubts.append(Finding.of("corruptions/several-trees", roots=", ".join(roots)))
    elif compared and "preset=cifar" not in condition and any(input_size) and tuple(input_size) != (224, 224):
        doubts.append(Finding.of("corruptions/other-size", size=size))
    if "texture=own" in condition:
        of_tiles = any(name in TILED for name in SETS.get(kind_of(condition), condition[11:].split(",")[:1]))
        doubts.append(Finding.of("corruptions/own-tiles" if of_tiles else "corruptions/own-frost"))
    if "preset=cifar" in condition:
        doubts.append(Finding.of("corruptions/cifar-constants"))
    if "variant=bethgelab" in condition:
        doubts.append(Finding.of("corruptions/variant"))
    if quick := QUICK.get(name := kind_of(condition)):
        elsewhere = f"{quick.elsewhere:.1f} points" if quick.elsewhere else "not measured"
        doubts.append(Finding.of("corruptions/quick-set", name=name, **asdict(quick) | {"elsewhere": elsewhere}))
    return doubts


def quick_notes(condition: str) -> list[Finding]:
    """Return that a quick set was not measured for other figures than the error of classifiers."""
    name = kind_of(condition)
    return [Finding.of("corruptions/quick-elsewhere", name=name, of=QUICK[name].of)] if name in QUICK else []


class MeanErrors(Overview):
    def __init__(self, reading: RecordReader) -> None:
        self.reading, self.outcomes = reading, dict[str, CorruptionSample]()

    def take(self, condition: str, read: pa.Table, flags: Sequence[Finding]) -> None:
        if condition == "clean" or parse_corrupted(condition):
            like = next(iter(self.outcomes.values()), None)
            self.outcomes[condition] = CorruptionSample.of(read, flags, like, self.reading.sample_groups)

    def rows(self) -> Iterator[Figure]:
        manifest = self.reading.manifest
        size = manifest.checkpoint(self.reading.checkpoint).preprocessing.input_size
        trees = manifest.corrupted.released
        for row in corruption_rows(self.outcomes, manifest.data.n, why_no_mce(manifest)):
            released = [trees[text] for text in conditions_of(row.condition) if text in trees]
            yield row.having(tree_doubts(row.condition, size, released, compared=not why_no_mce(manifest)))


class CorruptionsAggregator(Aggregator):
    words = VOCABULARY
    overview = MeanErrors

    def compared(
        self, first: CheckpointRecords, second: CheckpointRecords, common: Sequence[str], compared: Pairings
    ) -> Iterator[tuple[str, str]]:
        """Yield the means that `common` allows, then the single severities that are in none of them; those of a mean
        would only weaken the correction."""
        averaged = set[str]()
        for example, members in by_definition(common):
            means = dict.fromkeys(sets_at(members, example.definition, example.textures), compared.sets)
            means |= {replace(example, name=name).mean.text: compared.groups for name in CORRUPTIONS if compared.groups}
            for mean, metrics in means.items():
                if set(conditions_of(mean)) <= set(common):
                    averaged.update(conditions_of(mean))
                    yield from ((mean, metric) for metric in metrics)
        single = (text for text in common if words_of(text) is VOCABULARY and text not in averaged)
        yield from ((text, compared.shown[0]) for text in single)

    def per_sample(self, side: CheckpointRecords, condition: str, metric: str) -> PerSample | None:
        if metric != "mean_error":
            return None
        shares = shares_of(condition)
        ids = common_ids([side.samples(text, ["correct"]).ids for text in shares])
        errors = np.zeros(len(ids))
        for text, part in shares.items():
            errors += part * (1 - side.samples(text, ["correct"]).of("correct", ids))
        return ids, errors
