"""Checkpoints beside each other: which pairs, whether they may be paired, and all their differences as tables.

Rows are top-1 and NLL of clean images and of each attack (top-1 alone where samples leave at their first wrong
prediction), mean errors of corruptions and of their sets, and scores of maps; of segmenters mIoU and accuracies, of
corruptions those of sets. Single severities, controls, precision and recall of maps, and what attention does are left
out: they follow other rows so closely that they would only weaken Holm's correction, which is over all rows of all
pairs.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..display.table import TextTable
from ..errors import DamagedRecord, RunError
from ..evaluations.attention.condition import under_of
from ..evaluations.corruptions.condition import parse_corrupted
from ..evaluations.corruptions.metrics import conditions_of
from ..evaluations.corruptions.sets import CORRUPTIONS, sets_at
from ..evaluations.corruptions.shares import shares_of
from ..evaluations.maps.condition import PLAIN, MapSpec, parse_explained
from ..evaluations.maps.measures import STABILITY
from ..evaluations.maps.metrics import of_mode
from ..runs.folder import RunFolder
from ..tasks.measures import METRICS
from .paired import Difference, Side, holm, is_same_model, map_columns, paired_difference, widened
from .pairing import changed, doubts, flags_of, names_of, pairs, refuse, task_of, unpaired
from .published import Published

HEADINGS = ("condition", "figure", "n", "baseline", "value", "difference [95 %]", "p", "p, Holm", "at 0.05")
_SCENES = ("miou", "pixel_accuracy", "mean_accuracy")
_LOCALISED = ("cam_pixel_accuracy", "cam_iou", "cam_dice")
_LEVEL = 0.05


__all__ = ["Comparison", "ComparisonRow", "Pair", "compare", "pairs", "report_tables", "tables", "unpaired"]


@dataclass(frozen=True)
class ComparisonRow:
    """A difference of a pair. p_value: Holm's, over all rows of the comparison.

    published: the published figure of `second` less that of `first`, or, where both have the same attention, that
    figure itself; None where there is none. Not paired, and of other models and images.
    """

    first: Side
    second: Side
    condition: str
    metric: str
    difference: Difference
    p_value: float = math.nan
    published: float | None = None

    @property
    def significant(self) -> bool:
        """Whether the p-value after Holm is below 0.05; not where there is none."""
        return self.p_value < _LEVEL

    @property
    def verdict(self) -> str:
        """`better` or `worse` where the difference is significant, `higher` or `lower` of what is neither; else ''."""
        if not self.significant:
            return ""
        words = {1: ("worse", "better"), -1: ("better", "worse"), 0: ("lower", "higher")}[METRICS[self.metric].better]
        return words[self.difference.value > 0]


@dataclass(frozen=True)
class Pair:
    """What one checkpoint, `second`, has more than another, `first`.

    changed: in what they differ by intent, such as their attention. flags: what raises a doubt. left_out: lines on
    conditions that are in no row.
    """

    first: Side
    second: Side
    rows: tuple[ComparisonRow, ...]
    changed: tuple[str, ...] = ()
    flags: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, str]:
        """Of first and second, with their runs where these differ."""
        return names_of(self.first, self.second)


@dataclass(frozen=True)
class Comparison:
    """All pairs, and the published figures beside them if any."""

    pairs: tuple[Pair, ...]
    reference: Published | None = None

    @property
    def rows(self) -> tuple[ComparisonRow, ...]:
        """Of all pairs."""
        return tuple(row for pair in self.pairs for row in pair.rows)

    @property
    def flags(self) -> tuple[str, ...]:
        """Of all pairs, each once."""
        return tuple(dict.fromkeys(flag for pair in self.pairs for flag in pair.flags))

    @property
    def left_out(self) -> tuple[str, ...]:
        """Of all pairs, each once."""
        return tuple(dict.fromkeys(line for pair in self.pairs for line in pair.left_out))


def compare(pairs: Sequence[tuple[Side, Side]], reference: Published | None = None) -> Comparison:
    """All differences of these pairs; reference: published figures to put beside them.

    Raises:
        RunError: a pair has other tasks, classes or labels, or no condition or sample in common.
    """
    resolved = None if reference is None else reference.resolved()
    found = []
    for place, (first, second) in enumerate(pairs):
        found.append(_paired(first, second, resolved))
        later = {id(side) for pair in pairs[place + 1 :] for side in pair}
        for side in (first, second):
            if id(side) not in later:
                side.forget()
    return _corrected(found, reference)


def report_tables(run: RunFolder, results: Sequence[Mapping[str, Any]]) -> list[TextTable]:
    """The checkpoints of one run against its first, for its report; those that cannot be paired yet are not there."""
    names = run.manifest.names
    if len(names) < 2 or not results:
        return []
    found = []
    base = Side(run, names[0])
    for name in names[1:]:
        second = Side(run, name)
        try:
            pair = _paired(base, second, None)
        except RunError:  # records of one of them are not there yet
            continue
        second.forget()
        alike = tuple(flag for flag in pair.flags if "same file" in flag)  # the others stand beside the results
        found.append(replace(pair, flags=alike))
    return tables(_corrected(found, None))


def _corrected(found: Sequence[Pair], reference: Published | None) -> Comparison:
    p_values = iter(holm([row.difference.p_value for pair in found for row in pair.rows]))
    rows = [tuple(replace(row, p_value=next(p_values)) for row in pair.rows) for pair in found]
    return Comparison(tuple(replace(pair, rows=own) for pair, own in zip(found, rows, strict=True)), reference)


def _paired(first: Side, second: Side, reference: Published | None) -> Pair:
    common = [condition for condition in first.conditions if condition in second.conditions]
    refuse(first, second, common)
    rows, left_out, same = list[ComparisonRow](), list[str](), is_same_model(first, second)
    for condition, metric in _wanted(first, second, common):
        try:
            difference = paired_difference(first, second, condition, metric)
        except DamagedRecord:
            raise
        except RunError as fault:
            left_out.append(str(fault))
            continue
        if not same:
            low, high = widened(difference, metric)
            difference = replace(difference, ci_low=low, ci_high=high)
        published = None if reference is None else _published(reference, first, second, condition, metric)
        rows.append(ComparisonRow(first, second, condition, metric, difference, published=published))
    left_out += _left_out(first, second, common, [row.condition for row in rows])
    flags = [*doubts(first, second, common), *flags_of(first, second, {(row.condition, row.metric) for row in rows})]
    if reference is not None and any(row.published is not None for row in rows):
        tags = dict.fromkeys(side.manifest.protocol.tag for side in (first, second))
        here = [tag.partition("@")[0] for tag in tags if not reference.is_of(tag)]
        flags += [f"published under {reference.protocol}, here {name}" for name in here]
    differ = tuple(changed(first.described, second.described))
    return Pair(first, second, tuple(rows), differ, tuple(dict.fromkeys(flags)), tuple(dict.fromkeys(left_out)))


# Which rows


def _wanted(first: Side, second: Side, common: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Conditions and metrics in the order of the run, corruptions and then maps last."""
    scenes = task_of(first) == "segmentation"
    parts = {text: part for text in common if (part := parse_corrupted(text)) is not None}
    maps = {text: explained for text in common if (explained := parse_explained(text)) is not None}
    for condition in common:
        if condition not in parts and condition not in maps and under_of(condition) is None:
            early = any(side.manifest.stops_early(condition) for side in (first, second))
            if not scenes:
                _read_at_once(first, second, condition, ["correct", "nll"])
            yield from ((condition, m) for m in (_SCENES if scenes else ("top1",) if early else ("top1", "nll")))
    for example in {part.definition: part for part in parts.values()}.values():
        own = [(part.name, part.severity) for part in parts.values() if part.definition == example.definition]
        sets = sets_at(own, example.definition)
        single = [] if scenes else [replace(example, name=name).mean.text for name in CORRUPTIONS]
        for mean in (*sets, *single):
            if all(text in parts for text in conditions_of(mean)):
                yield from ((mean, metric) for metric in (_SCENES if scenes else ("mean_error",)))
    for explained in maps.values():
        if not explained.is_control:
            yield from _scores(first, second, explained)


def _scores(first: Side, second: Side, explained: MapSpec) -> Iterator[tuple[str, str]]:
    """The scores of a map that some sample of either side has; what was not asked is null in all of a record."""
    own = [metric.name for metric in STABILITY] if explained.under else PLAIN.values()
    wanted = [(explained.text, metric) for metric in own]
    if not explained.under:
        wanted = [*((of_mode(explained, m), name) for m in ("box", "mask") for name in _LOCALISED), *wanted]
    read = {key: map_columns(*key)[1:] for key in wanted}
    _read_at_once(first, second, explained.text, [name for names in read.values() for name in names])
    for key, (column, right) in read.items():
        with contextlib.suppress(RunError):
            found = [side.samples(explained.text, [column, right]).columns[column] for side in (first, second)]
            if not all(np.isnan(figures).all() for figures in found):
                yield key


def _read_at_once(first: Side, second: Side, condition: str, columns: Sequence[str]) -> None:
    """So that no file is opened twice; a column that is not there is said to be lacking later."""
    for side in (first, second):
        with contextlib.suppress(RunError):
            side.samples(condition, columns)


def _published(reference: Published, first: Side, second: Side, condition: str, metric: str) -> float | None:
    before, after = (side.described.attention for side in (first, second))
    told = reference.figure(after, condition, metric)
    if told is None or before == after:
        return told
    beside = reference.figure(before, condition, metric)
    return None if beside is None else told - beside


def _left_out(first: Side, second: Side, common: Sequence[str], shown: Iterable[str]) -> Iterator[str]:
    """Lines on the conditions that are in no row: that the other has, or that its own run.json names."""
    names = names_of(first, second)
    for side, other, name in ((second, first, names[1]), (first, second, names[0])):
        wanted = dict.fromkeys([*other.conditions, *side.manifest.conditions])
        if lacking := _merged([text for text in wanted if text not in side.conditions], common):
            yield f"{name} has no records under {', '.join(lacking)}"
    told = {text for condition in dict.fromkeys(shown) for text in shares_of(condition)}
    if single := [text for text in common if text.startswith("corruption(") and text not in told]:
        yield f"single severities that make no mean are left out: {', '.join(single)}"


def _merged(lacking: Sequence[str], common: Sequence[str]) -> list[str]:
    """The texts of conditions; of a corruption that is lacking at all severities that of the corruption."""
    parts = {text: parse_corrupted(text) for text in (*lacking, *common)}
    partly = {part.mean for text in common if (part := parts[text]) is not None}
    means = (text if (part := parts[text]) is None or part.mean in partly else part.mean.text for text in lacking)
    return list(dict.fromkeys(means))


# Texts


def tables(comparison: Comparison) -> list[TextTable]:
    """A table for each pair. What speaks against the baseline's own results stands under the first of its pairs."""
    told: set[str] = set()
    found = []
    for pair in comparison.pairs:
        flags = [line for line in (*pair.flags, *pair.left_out) if line not in told]
        told.update(line for line in flags if line.startswith(f"{pair.names[0]}, "))
        title = "; ".join([f"{pair.names[1]} against {pair.names[0]}, paired by image", *pair.changed])
        beside = comparison.reference is not None
        headings = (*HEADINGS, *(["published, not paired"] if beside else []))
        rows = tuple(_cells(row, beside) for row in pair.rows)
        found.append(TextTable(title, headings, rows, tuple(flags), _note(comparison)))
    return found


def _note(comparison: Comparison) -> str:
    """What the columns mean."""
    every = comparison.rows
    notes = ["The difference is value minus baseline, in points where they are in %."]
    exact = "McNemar's exact test for top-1, else " if any(row.metric == "top1" for row in every) else ""
    notes.append(f"p: {exact}a normal approximation; Holm's is for all {len(every)} rows.")
    if any(row.condition.startswith(("cam(", "stability(")) for row in every):
        notes.append("Maps are of images that both predict right.")
    sides = (side for pair in comparison.pairs for side in (pair.first, pair.second))
    if any(under_of(condition) is not None for side in sides for condition in side.conditions):
        notes.append("Watched attention is not compared here: its figures are in each report and summary.json.")
    if (known := comparison.reference) is not None:
        what = "their difference, or the figure where both have the same attention"
        notes.append(f"Published: {what}; {known.summary}, on {known.data} ({known.source}).")
    return " ".join(notes)


def _cells(row: ComparisonRow, beside: bool) -> tuple[str, ...]:
    metric = METRICS[row.metric]
    name, factor = metric.label, metric.scale
    digits, found = 2 if factor == 100 else 3, row.difference

    def told(value: float, sign: str = "") -> str:
        return f"{factor * value:{sign}.{digits}f}" if math.isfinite(value) else "nan"

    bounds = f" [{told(found.ci_low, '+')}, {told(found.ci_high, '+')}]" if math.isfinite(found.ci_low) else ""
    cells = (row.condition, name, str(found.n), told(found.first), told(found.second))
    same = row.first.described.attention == row.second.described.attention
    published = "–" if row.published is None else told(row.published, "" if same else "+")
    figures = (told(found.value, "+") + bounds, p_text(found.p_value), p_text(row.p_value), row.verdict)
    return (*cells, *figures, *([published] if beside else []))


def p_text(value: float) -> str:
    """A p-value as text."""
    return "nan" if not math.isfinite(value) else "< 0.001" if value < 0.001 else f"{value:.3f}"
