"""Detection as a task: records into figures, of one detector and of two, and how they are shown."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ...common.differences import Difference, of_resamples
from ...common.figure import BOOTSTRAP, FEWEST, Figure
from ...common.finding import Finding
from ...common.groups import Groups, chosen_groups
from ...common.intervals import NO_INTERVAL, Floats, basic_ends, resampled_figures
from ...display.format import count, counted, scaled, share
from ...display.table import CardPart, Section, Table, join_tables, of_tables
from ...display.text import capital, code
from ...evaluations.condition import is_over_groups, kind_of, name_of, shares_of, words_of
from ...evaluations.corruptions import BENCHMARK, SETS, parse_corrupted, possible_means, span
from ...evaluations.corruptions.results import merged_flags, quick_notes
from ...evaluations.corruptions.tables import level_figures, retention_levels, retention_tables
from ...evaluations.metrics import Cells, Metric, finite_or_none, mean_share
from ...evaluations.presenting import card_parts_of, finding_lines, left_out_lines
from ...evaluations.records import (
    CheckpointRecords,
    Pairings,
    common_groups,
    common_ids,
    not_paired,
    nothing_common,
)
from ...protocol.card import SampleWords
from ...protocol.condition import CLEAN
from ...runs.metadata import SampleGroups
from ...tasks.task import CHANGE, ConditionTable, Task
from .matching import AREAS
from .scores import COLUMNS, FIGURES, Detections

if TYPE_CHECKING:
    import pyarrow as pa

    from ...evaluations.aggregate import Parts, RecordReader, Results
    from ...evaluations.family import Looks
    from ...runs.folder import RunFolder
    from ...runs.manifest import Manifest

MAP = replace(mean_share("map", "mAP %", drafted=True, hub=("mean_average_precision", "mAP")), noun="mAP")
_SIZES = tuple(f"map_{area}" for area in AREAS if area != "all")
METRICS = (
    MAP,
    mean_share("map50", "mAP50 %"),
    mean_share("map75", "mAP75 %"),
    mean_share("ar100", "AR100 %"),
    *(Metric(name, f"mAP {name[4:]} %", 100, 1, share=True, bare=True) for name in _SIZES),
    replace(mean_share("mpc", "mPC %"), under=BENCHMARK),
    Metric("rpc", "rPC %", 100, 1, under=BENCHMARK, least=0),
    Metric("retention", "retention %", 100, 1, least=0),
    Metric("ap(", "AP %", 100, 1, paired=True, share=True, parametric=True),
)
_PUBLISHED = {"mpc": MAP.name, "rpc": "retention"}  # what papers call two figures of the benchmark
_NOTE = f"Over {BENCHMARK}, mAP is mPC and retention is rPC (Michaelis et al. 2019)."
_LONGEST = 40  # the longest table of categories that a terminal or a card shows, in rows


@dataclass(frozen=True)
class Scored:
    """The figures of n images under a condition, or a mean. values: (7 + K,) of FIGURES, by size, and of categories.
    resampled: (R, 4) of FIGURES, or (R, 5) where a category was asked for, which is last. ends: (4 + K,) intervals.
    seen: for each category, how many images have it, and their groups."""

    ids: pa.Array
    values: Floats
    resampled: Floats
    ends: Sequence[tuple[float, float]]
    seen: Sequence[tuple[int, Groups | None]]
    groups: Groups | None
    flags: tuple[Finding, ...]

    @classmethod
    def of(cls, detections: Detections, flags: Sequence[Finding] = (), category: int | None = None) -> Scored:
        n, groups, ones = len(detections.ids), detections.groups, np.ones((1, len(detections.ids)))
        values, drawn = detections.figures(ones)[0], resampled_figures(detections.figures, n, groups)
        seen = [(int(which.sum()), chosen_groups(groups, which)) for which in detections.has]
        every = zip(drawn.T, values.tolist(), [(n, groups)] * len(FIGURES) + seen, strict=True)
        ends = [basic_ends(column, value, its_groups, count) for column, value, (count, its_groups) in every]
        sizes = [detections.figures(ones, name[4:])[0, 0] for name in _SIZES]
        values = np.concatenate([values[: len(FIGURES)], sizes, values[len(FIGURES) :]])
        counts = [count for count, _ in seen if count]
        rare = sum(count < FEWEST for count in counts)
        few = [Finding.of("detection/rare-categories", count=rare, of=len(counts))] if rare else []
        columns = [*range(len(FIGURES)), *([] if category is None else [len(FIGURES) + category])]
        return cls(detections.ids, values, drawn[:, columns], ends, seen, groups, (*flags, *few))

    @classmethod
    def mean(cls, parts: Iterable[tuple[float, Scored]]) -> Scored:
        """Return a weighted mean of the figures of the same images; categories have no intervals."""
        weights, members = zip(*parts, strict=True)
        first: Scored = members[0]
        values = sum(weight * each.values for weight, each in zip(weights, members, strict=True))
        drawn = sum(weight * each.resampled for weight, each in zip(weights, members, strict=True))
        n, pairs = len(first.ids), zip(drawn.T[: len(FIGURES)], values[: len(FIGURES)].tolist(), strict=True)
        ends = [basic_ends(column, value, first.groups, n) for column, value in pairs] + [NO_INTERVAL] * len(first.seen)
        return replace(first, values=values, resampled=drawn, ends=ends, flags=tuple(merged_flags(members)))

    def left(self, clean: Scored) -> tuple[float, Floats]:
        """Return which share of the clean mAP is left, of all images and of (R,) resamples."""
        with np.errstate(invalid="ignore", divide="ignore"):
            return float(self.values[0] / clean.values[0]), self.resampled[:, 0] / clean.resampled[:, 0]

    def rows(self, condition: str, categories: Sequence[str], more: Sequence[Finding] = ()) -> Iterator[Figure]:
        """Yield the rows of the condition; none where no image has an object. more: findings of mAP alone."""
        names = (*FIGURES, *_SIZES, *(f"ap({category})" for category in categories))
        ends = [*self.ends[: len(FIGURES)], *[NO_INTERVAL] * len(_SIZES), *self.ends[len(FIGURES) :]]
        samples = [(len(self.ids), self.groups)] * len((*FIGURES, *_SIZES)) + [*self.seen]
        for name, value, its, (n, groups) in zip(names, self.values.tolist(), ends, samples, strict=False):
            if not math.isnan(value):
                flags = [*self.flags, *(more if name == MAP.name else ())]
                yield figure_of(value, its, n, groups).of(condition, name, flags)


def figure_of(value: float, ends: tuple[float, float], n: int, groups: Groups | None) -> Figure:
    return Figure(value, n, *ends, BOOTSTRAP, groups=groups.count if groups else 0)


def mean_rows(every: Mapping[str, Scored], categories: Sequence[str]) -> Iterator[Figure]:
    """Yield the rows of every mean that conditions of the same images allow: over severities, and over sets of
    corruptions, where `map` of the benchmark's is mPC; `retention` is the share of the clean mAP, there rPC."""
    clean = every.get(CLEAN.text)
    for text in possible_means(every):
        shares = shares_of(text)
        members = [every[part] for part in shares if part in every]
        if len(members) < len(shares) or not all(each.ids.equals(members[0].ids) for each in members):
            continue
        mean = Scored.mean(zip(shares.values(), members, strict=True))
        mean = replace(mean, flags=(*mean.flags, *quick_notes(text)))
        rows = [*mean.rows(text, categories if is_over_groups(text) else ())]
        if clean is not None and clean.ids.equals(mean.ids):
            value, drawn = mean.left(clean)
            ends = basic_ends(drawn, value, mean.groups, len(mean.ids), math.inf)
            rows.append(
                figure_of(value, ends, len(mean.ids), mean.groups).of(text, "retention", merged_flags([mean, clean]))
            )
        yield from rows
        if kind_of(text) == BENCHMARK:
            yield from (row.named(name) for row in rows for name, of in _PUBLISHED.items() if row.metric == of)


def why_no_mpc(texts: Collection[str]) -> str:
    """Return what mPC lacks; empty where there are no corruptions at all, or it lacks nothing."""
    severities = dict[str, set[int]]()
    for part in filter(None, map(parse_corrupted, texts)):
        severities.setdefault(part.name, set()).add(part.severity)
    if not severities or any(kind_of(text) == BENCHMARK for text in possible_means(texts)):
        return ""
    if missing := [name for name in SETS[BENCHMARK] if name not in severities]:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        return f"{', '.join(missing[:3])}{more} of the 15 corruptions of {BENCHMARK} have no results"
    (first, some), *others = ((name, severities[name]) for name in SETS[BENCHMARK])
    name, other = next(((name, each) for name, each in others if each != some), ("", some))
    uneven = f"{first} has severity {span(some)} and {name} {span(other)}"
    return f"{uneven}; expected the same of all 15" if name else "the corruptions have several definitions"


class Detection(Task):
    """Boxes or masks of objects."""

    name, headline, metrics = "detection", MAP.name, METRICS
    compared = Pairings(("map", "map50"), ("map",), sets=("map", "retention"))
    paired: ClassVar[Mapping[str, str]] = {}
    truth: ClassVar[Sequence[str]] = ("truth",)
    differs: ClassVar[str] = "the annotations of {} differ, or boxes are compared with masks"
    shows_compared = True
    command, card, hub = "detection", "detection", "object-detection"
    samples = SampleWords("image", "images")

    def rows(self, reading: RecordReader, conditions: Sequence[str]) -> Parts:
        names, every = reading.manifest.data.class_names, dict[str, Scored]()
        for text in conditions:
            table, notes = reading.joined(reading.shards(text, COLUMNS))
            where = f"{reading.run.path}: {reading.checkpoint} under {text}"
            detections = Detections.of(table, len(names), where, reading.sample_groups)
            if len(detections.ids):
                every[text] = Scored.of(detections, [*reading.findings(text, table), *notes])
        why = why_no_mpc(every)
        of_clean = {CLEAN.text: [Finding.of("detection/no-mpc", why=why)]} if why else {}
        single = (row for text, each in every.items() for row in each.rows(text, names, of_clean.get(text, ())))
        return reading.figures(single), reading.figures(mean_rows(every, names)), []

    def brief(self, run: RunFolder, checkpoint: str, condition: str) -> float | None:
        table, classes = run.table(checkpoint, condition, COLUMNS), len(run.manifest.data.class_names)
        detections = Detections.of(table, classes, f"{run.path}: {checkpoint} under {condition}")
        value = float(detections.figures(np.ones((1, len(detections.ids))))[0, 0]) if len(detections.ids) else math.nan
        return None if math.isnan(value) else value

    def difference(
        self, first: CheckpointRecords, second: CheckpointRecords, condition: str, metric: str
    ) -> Difference:
        name, shares, categories = _PUBLISHED.get(metric, metric), shares_of(condition), first.manifest.data.class_names
        of_categories = [f"ap({each})" for each in categories]
        category = of_categories.index(name) if name in of_categories else None
        if name not in (*FIGURES, "retention") and category is None:
            raise not_paired(condition, metric, [*FIGURES, "retention", *_PUBLISHED, *of_categories])
        texts = [*shares, *[CLEAN.text] * (name == "retention")]
        ids = common_ids([_scored(side, text).ids for side in (first, second) for text in texts])
        if not len(ids):
            raise nothing_common(first, second, condition)
        groups, of_both = common_groups(first, second, ids), first.sample_groups or second.sample_groups

        def figure(side: CheckpointRecords) -> tuple[float, Floats, tuple[int, Groups | None]]:
            parts = ((weight, _scored(side, text, ids, of_both, category)) for text, weight in shares.items())
            mean = Scored.mean(parts)
            if name == "retention":
                return *mean.left(_scored(side, CLEAN.text, ids, of_both)), (len(ids), groups)
            if category is not None:
                value = float(mean.values[len(FIGURES) + len(_SIZES) + category])
                return value, mean.resampled[:, -1], mean.seen[category]
            place = FIGURES.index(name)
            return float(mean.values[place]), mean.resampled[:, place], (len(ids), groups)

        (before, drawn, (n, its_groups)), (after, drawn_after, _) = figure(first), figure(second)
        with np.errstate(invalid="ignore"):
            return of_resamples(before, after, drawn_after - drawn, n, FEWEST, its_groups)

    def clean_clause(self, row: Figure) -> str:
        return f"mAP {share(row)} on {row.n} clean images"

    def card_parts(self, checkpoint: str, results: Results) -> Iterable[CardPart]:
        table = ConditionTable.of(self, results, results.manifest)
        cells = [table.cells(key) | {"condition": code(key[1])} for key in table.figures]
        parts = (
            [Table("", tuple(cells[0]), tuple(tuple(row.values()) for row in cells)).without_empty()] if cells else []
        )
        for other in tables_of(results):
            title = capital(other.title.removeprefix(f"{checkpoint}: "))
            parts += [replace(other, title=title)] if len(other.rows) <= _LONGEST else []
        yield CardPart("Detection", "95 % intervals in brackets; n is the number of images.", parts)
        yield from card_parts_of(checkpoint, results)

    def terminal(self, results: Results) -> Iterable[Table]:
        table = ConditionTable.of(self, results, results.manifest)
        if table.figures:
            yield table.terminal((*_SIZES, "ar100", CHANGE)).without_empty()
        for other in tables_of(results):
            if other.headings[0] == "category" and len(other.rows) > _LONGEST:
                yield Table(f"{other.title}: {len(other.rows)} categories; see the report", (), ())
            else:
                yield other

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        grids = ConditionTable.of(self, results, results.manifest).grids(finding_lines(results))
        clean = (replace(each, title=each.title.replace("Clean and attacked", "Clean images")) for each in grids)
        tables = [*(each.without_empty() for each in clean), *join_tables(tables_of(results))]
        left = "mAP retained under corruption"
        plots = level_figures(retention_levels(results), looks, self.name, left, "retention")
        yield of_tables(self.name, "Detection", tuple(tables), tuple(plots))
        yield Section("corruptions", "Corruptions", lambda: {"grids": [], "left_out": left_out_lines(results.run)})


def _scored(
    side: CheckpointRecords,
    text: str,
    ids: pa.Array | None = None,
    groups: SampleGroups | None = None,
    category: int | None = None,
) -> Scored:
    """Return the figures under a condition: of the images with these ids, all of which it has, resampled by groups; by
    default of all. category: whose resamples are kept, too. Raises RunError without records."""
    key = (f"scored {category}", text)
    scored: Scored | None = side.memo.get(key)
    whole = ids is None
    if scored is None or not (whole or scored.ids.equals(ids)) or not (whole or groups is side.sample_groups):
        where = f"{side.run.path}: {side.checkpoint} under {text}"
        table, classes = side.table(text, list(COLUMNS)), len(side.manifest.data.class_names)
        detections = Detections.of(table, classes, where, side.sample_groups if whole else groups)
        scored = side.memo[key] = Scored.of(detections if whole else detections.of_samples(ids), (), category)
    return scored


def tables_of(results: Results) -> Iterator[Table]:
    """Yield the tables about corruptions and about categories, by checkpoint."""
    for checkpoint, cells in results.cells.items():
        for table in retention_tables(checkpoint, cells, MAP, "corrupted elsewhere"):
            of_sets = table.headings[0] == "mean over"
            yield replace(table, note=_NOTE) if of_sets else table
        yield from _categories(checkpoint, cells, results.manifest)


def _categories(checkpoint: str, cells: Cells, manifest: Manifest) -> Iterator[Table]:
    """Yield the average precision of each category, clean and as means over corruptions; images: that have it."""
    columns = [
        text for text in dict.fromkeys(text for text, _ in cells) if words_of(text).in_results or is_over_groups(text)
    ]
    names = dict.fromkeys(metric for text, metric in cells if text in columns and metric.startswith("ap("))
    rows = []
    for metric in names:
        first = cells.get((columns[0], metric))
        values = [scaled(finite_or_none(cells, text, metric)) for text in columns]
        rows.append((metric[3:-1], count(0) if first is None else counted(first), *values))
    if rows:
        labels = tuple(name_of(text, "table", manifest) for text in columns)
        title = f"{checkpoint}: average precision in % by category; images: with it"
        yield Table(title, ("category", "images", *labels), tuple(rows), checkpoint=checkpoint, shaded=labels)


TASK = Detection()
