"""Turn counts of label maps into results: of single conditions, and means over conditions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...evaluations.cells import LEFT_OUT
from ...evaluations.kinds import by_words, is_over_groups, shares_of, words_of
from ...evaluations.recorded import common_ids
from ...evaluations.rows import FEWEST, Parts, Reading, Row
from ...protocol.condition import CLEAN
from .counts import COLUMNS, METRICS, NO_INTERVAL, Counts, averaged, biased, interval
from .worst import counts_of_runs, of_runs, worst_rows

BIASED = "classes in few images bias its interval by over a quarter of a standard error; evaluate more images"
_NAMED = 5  # classes that a flag names


def scene_rows(condition: str, counts: Counts, names: Sequence[str]) -> Iterator[Row]:
    """Yield condition, metric, value, n, interval and flags of every figure of one condition.

    `iou(pole)` is given for each class that is in the prediction or truth of some image; n is the number of these. As
    for scores of maps, a few images have no interval. names: of the K classes.
    """
    n = len(counts.ids)
    if n == 0:
        return
    flags, notes = list(counts.flags), _notes([counts], names)
    values = counts.values.tolist()
    for place, metric in enumerate(METRICS):
        bounds = counts.intervals[place] if n >= FEWEST else NO_INTERVAL
        doubt = [BIASED] * (n >= FEWEST and biased(values[place], counts.resampled[:, place]))
        yield condition, metric, values[place], n, *bounds, [*flags, *notes.get(metric, []), *doubt]
    for place, (name, seen) in enumerate(zip(_distinct(names), counts.seen.tolist(), strict=True), len(METRICS)):
        if seen:
            bounds = counts.intervals[place] if seen >= FEWEST else NO_INTERVAL
            yield condition, f"iou({name})", values[place], seen, *bounds, flags
    for norm, largest in counts.largest.items():
        if largest > 0:
            yield condition, f"{norm}_max", largest, n, *NO_INTERVAL, flags


def scene_mean_rows(by_condition: Mapping[str, Counts], expected: int, names: Sequence[str]) -> Iterator[Row]:
    """Yield condition, metric, value, n, interval and flags of every mean that a checkpoint's conditions allow.

    For each corruption at the severities that some set has of it, and for each set: `METRICS`, means over severities
    and then over corruptions; `retention`, that mIoU over the clean one; for sets also the IoU of each class, without
    an interval. Only images count that could be read under all conditions of the mean, and clean; without any, there is
    no row.

    by_condition: counts by the text of the condition, `clean` among them if it was evaluated. expected: images of the
    data set.
    """
    for words, conditions in by_words(by_condition):
        for mean in words.means(conditions):
            shares = shares_of(mean)
            if all(text in by_condition for text in shares):
                texts = [*shares, *([CLEAN.text] if CLEAN.text in by_condition else [])]
                yield from _mean(mean, shares, {text: by_condition[text] for text in texts}, expected, names)


def _mean(
    mean: str, shares: Mapping[str, float], by_condition: Mapping[str, Counts], expected: int, names: Sequence[str]
) -> Iterator[Row]:
    ids = common_ids([counts.ids for counts in by_condition.values()])
    n, same = len(ids), {text: counts.of_samples(ids) for text, counts in by_condition.items()}
    if n == 0:
        return
    members, clean = [same[text] for text in shares], same.get(CLEAN.text)
    lack = f"{expected - n} of {expected} samples lack some of its conditions; left out"
    flags = _merged(members) + [lack] * (n < expected)
    _, values, resampled = averaged(zip(shares.values(), members, strict=True))
    figures = {metric: (values[place], resampled[:, place]) for place, metric in enumerate(METRICS)}
    notes = _notes(members, names)
    if clean is not None:
        with np.errstate(invalid="ignore", divide="ignore"):
            figures["retention"] = values[0] / clean.values[0], resampled[:, 0] / clean.resampled[:, 0]
        notes["retention"] = [flag for flag in _merged([clean]) if flag not in flags]
        notes["retention"] += _notes([*members, clean], names)["miou"]
    for metric, (value, drawn) in figures.items():
        bounds = interval(drawn, n, float(value)) if n >= FEWEST else NO_INTERVAL
        doubt = [BIASED] * (n >= FEWEST and biased(value, drawn))
        yield mean, metric, float(value), n, *bounds, [*flags, *notes.get(metric, []), *doubt]
    if not is_over_groups(mean):
        return
    fewest = np.min([counts.seen for counts in members], axis=0).tolist()
    for name, iou, seen in zip(_distinct(names), values[len(METRICS) :].tolist(), fewest, strict=True):
        if seen:
            yield mean, f"iou({name})", iou, seen, *NO_INTERVAL, flags


def _merged(conditions: Sequence[Counts]) -> list[str]:
    """Return the flags of conditions, each once; missing images are counted over all conditions."""
    every = dict.fromkeys(flag for counts in conditions for flag in counts.flags)
    return [flag for flag in every if not flag.startswith("incomplete") and "could not be read" not in flag]


def _notes(conditions: Sequence[Counts], names: Sequence[str]) -> dict[str, list[str]]:
    """Return by metric which classes its means over classes leave out, under all of the conditions or under some."""
    absent = np.sum([counts.seen == 0 for counts in conditions], axis=0)
    unlabelled, where = conditions[0].labelled.max(axis=0) == 0, "in neither prediction nor truth"
    sometimes = _naming((absent > 0) & (absent < len(conditions)), names, f"{where} under some of its conditions")
    return {
        "miou": _naming(absent == len(conditions), names, where) + sometimes,
        "mean_accuracy": _naming(unlabelled, names, "without labelled pixels"),
    }


def _naming(which: NDArray[np.bool_], names: Sequence[str], where: str) -> list[str]:
    """Return `2 of 11 classes are in neither prediction nor truth, left out of the mean: pole, sign`."""
    said = [name for name, yes in zip(_distinct(names), which.tolist(), strict=True) if yes]
    if not said:
        return []
    more = f" and {len(said) - _NAMED} more" if len(said) > _NAMED else ""
    verb = "is" if len(said) == 1 else "are"
    return [f"{len(said)} of {len(names)} classes {verb} {where}, {LEFT_OUT}: {', '.join(said[:_NAMED])}{more}"]


def _distinct(names: Sequence[str]) -> list[str]:
    """Return the names, with the number of the class where several share a name."""
    often = Counter(names)
    return [name if often[name] == 1 else f"{name} {place}" for place, name in enumerate(names)]


def segmentation_rows(reading: Reading, conditions: Sequence[str]) -> Parts:
    """Return the rows of a checkpoint: of single conditions, and of means over corruptions."""
    data = reading.manifest.data
    every, expected = data.class_names, data.n
    judged = [place for place in range(len(every)) if place not in (data.unjudged or ())]
    names = [every[place] for place in judged]
    rows: list[dict[str, Any]] = []
    by_condition: dict[str, Counts] = {}
    for condition in conditions:
        table, odd = reading.joined(reading.shards(condition, lambda name: name in COLUMNS or of_runs(name)))
        counts = Counts.of(table, [*reading.flags(condition, table), *odd]).of_classes(judged)
        rows += reading.rows(scene_rows(condition, counts, names))
        if runs := [each.of_classes(judged) for each in counts_of_runs(table)]:
            rows += reading.rows(worst_rows(condition, counts, runs, _notes([counts, *runs], names).get("miou", [])))
        if words_of(condition).in_means:
            by_condition[condition] = counts
    return rows, reading.rows(scene_mean_rows(by_condition, expected, names)), []
