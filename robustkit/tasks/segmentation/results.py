"""Counts of label maps into results: of single conditions, of the worst case, of two segmenters.

An attack that makes several runs (SEA) keeps of each image the point by which fewest of its own pixels are right. The
mIoU is no mean over images, so another choice may lower it further: Croce, Singh and Hein (2024, arXiv:2306.12941)
choose image after image, and go on until nothing changes.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...common.differences import Difference, of_resamples
from ...common.figure import FEWEST, Figure
from ...common.finding import Finding
from ...common.groups import Groups
from ...common.intervals import NO_INTERVAL, Floats
from ...display.format import count, counted, percent, scaled
from ...display.svg import Plot, brief_labels, dots, labels, legend, list_some, panels, shorten_name, style
from ...display.table import CardPart, Table
from ...display.text import capital, code
from ...evaluations.attacks import starts_from
from ...evaluations.condition import in_means, is_over_groups, kind_of, name_of, shares_of, words_of
from ...evaluations.corruptions import BENCHMARK, possible_means
from ...evaluations.corruptions.results import merged_flags, quick_notes
from ...evaluations.corruptions.tables import retention_tables
from ...evaluations.metrics import LEFT_OUT, Cells, finite_or_none
from ...evaluations.records import CheckpointRecords, common_groups, common_ids, nothing_common
from ...protocol.condition import CLEAN
from ...runs.metadata import SampleGroups
from .. import metric_of
from ..task import ConditionTable
from .counts import BY_RUN, COLUMNS, METRICS, Counts, bootstrap_ends, is_biased, mean_known, weighted_mean

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.figure import Figure as Canvas

    from ...runs.manifest import Manifest


def of_runs(column: str) -> bool:
    return column.startswith(tuple(f"{name} " for name in BY_RUN))


def counts_of_runs(table: pa.Table, sample_groups: SampleGroups | None = None) -> list[Counts]:
    """Return the counts at the worst point of each run of an attack; none where it makes no several runs."""
    by_run = []
    for run in [name.partition(" ")[2] for name in table.column_names if name.startswith(f"{BY_RUN[0]} ")]:
        ours, names = table.drop_columns(list(BY_RUN)), {f"{column} {run}": column for column in BY_RUN}
        renamed = ours.rename_columns([names.get(name, name) for name in ours.column_names])
        by_run.append(Counts.of(renamed, (), sample_groups))
    return by_run


def worst_rows(condition: str, counts: Counts, runs: Sequence[Counts], names: Sequence[str]) -> Iterator[Figure]:
    """Yield the row of `miou_worst`; none without runs. Its interval takes the runs chosen on all images as given."""
    n = len(counts.ids)
    if n and runs:
        worst, notes = worst_case(counts, runs), _notes([counts, *runs], names).get("miou", [])
        bounds = worst.intervals[0] if worst.units >= FEWEST else NO_INTERVAL
        figure = worst.figure(float(worst.values[0]), n, bounds, float(worst.effects[0]))
        yield figure.of(condition, "miou_worst", [*counts.flags, *notes])


def worst_case(counts: Counts, runs: Sequence[Counts]) -> Counts:
    """Return the counts (n, K) of each image at the chosen point, of the record's and all runs'. From the record's
    points on, image after image takes the point that makes mIoU lowest, the first of equals, until a round changes
    nothing.
    """
    every = [counts, *runs]
    hits = np.stack([each.intersections for each in every]).astype(np.int64)
    unions = np.stack([each.predicted for each in every]) + counts.labelled.astype(np.int64) - hits
    images = np.arange(len(counts.ids))
    chosen = np.zeros(len(images), dtype=np.int64)
    both, either = hits[0].sum(axis=0), unions[0].sum(axis=0)
    changed = True
    while changed:
        changed = False
        for image in images:
            now = chosen[image]
            hit = both - hits[now, image] + hits[:, image]
            union = either - unions[now, image] + unions[:, image]
            with np.errstate(invalid="ignore", divide="ignore"):
                figures = mean_known(hit / union)
            best = int(np.argmin(np.where(np.isnan(figures), np.inf, figures)))
            if figures[best] < figures[now]:
                chosen[image], both, either, changed = best, hit[best], union[best], True
    predicted = np.stack([each.predicted for each in every])[chosen, images]
    return replace(counts, intersections=hits[chosen, images].astype(np.int32), predicted=predicted)


def _biased(value: float, resampled: Floats, n: int) -> list[Finding]:
    bad = n >= FEWEST and is_biased(value, resampled)
    return [Finding.of("segmentation/biased-interval")] if bad else []


_NAMED = 5  # classes that a flag names
_FALLING = 3  # classes that the summary names


def scene_rows(condition: str, counts: Counts, names: Sequence[str]) -> Iterator[Figure]:
    """Yield the rows of one condition. `iou(pole)`: for classes in some prediction or truth; n is those images."""
    n = len(counts.ids)
    if n == 0:
        return
    flags, notes = list(counts.flags), _notes([counts], names)
    values = counts.values.tolist()
    for place, metric in enumerate(METRICS):
        bounds = counts.intervals[place] if counts.units >= FEWEST else NO_INTERVAL
        doubt = _biased(values[place], counts.resampled[:, place], counts.units)
        figure = counts.figure(values[place], n, bounds, float(counts.effects[place]))
        yield figure.of(condition, metric, [*flags, *notes.get(metric, []), *doubt])
    for place, (name, seen) in enumerate(zip(_distinct(names), counts.seen.tolist(), strict=True), len(METRICS)):
        if seen:
            bounds = counts.intervals[place] if min(seen, counts.units) >= FEWEST else NO_INTERVAL
            figure = counts.figure(values[place], seen, bounds, float(counts.effects[place]))
            figure = replace(figure, groups=counts.groups_with(place - len(METRICS)))
            yield figure.of(condition, f"iou({name})", flags)
    for norm, largest in counts.largest.items():
        if largest > 0:
            yield Figure(largest, n).of(condition, f"{norm}_max", flags)


def scene_mean_rows(by_condition: Mapping[str, Counts], expected: int, names: Sequence[str]) -> Iterator[Figure]:
    """Yield the rows of every mean that the conditions allow: by corruption, and by set: `METRICS`; `retention`, mIoU
    over the clean one; of sets each class's IoU. Only images read under all of the mean, and clean, count. expected: of
    the data set.
    """
    for mean in possible_means(by_condition):
        shares = shares_of(mean)
        if all(text in by_condition for text in shares):
            texts = [*shares, *([CLEAN.text] if CLEAN.text in by_condition else [])]
            yield from _mean(mean, shares, {text: by_condition[text] for text in texts}, expected, names)


def _mean(
    mean: str, shares: Mapping[str, float], by_condition: Mapping[str, Counts], expected: int, names: Sequence[str]
) -> Iterator[Figure]:
    ids = common_ids([counts.ids for counts in by_condition.values()])
    n, same = len(ids), {text: counts.of_samples(ids) for text, counts in by_condition.items()}
    if n == 0:
        return
    members, clean = [same[text] for text in shares], same.get(CLEAN.text)
    lack = [Finding.of("data/lacks-conditions", count=expected - n, expected=expected)] if n < expected else []
    flags = merged_flags(members) + lack + quick_notes(mean)
    _, values, resampled = weighted_mean(zip(shares.values(), members, strict=True))
    figures = {metric: (values[place], resampled[:, place]) for place, metric in enumerate(METRICS)}
    notes = _notes(members, names)
    if clean is not None:
        with np.errstate(invalid="ignore", divide="ignore"):
            figures["retention"] = values[0] / clean.values[0], resampled[:, 0] / clean.resampled[:, 0]
        notes["retention"] = [flag for flag in merged_flags([clean]) if flag not in flags]
        notes["retention"] += _notes([*members, clean], names)["miou"]
    for metric, (value, drawn) in figures.items():
        units = members[0].units
        bounds = bootstrap_ends(drawn, units, float(value)) if units >= FEWEST else NO_INTERVAL
        doubt = _biased(float(value), drawn, units)
        figure = members[0].figure(float(value), n, bounds)
        yield figure.of(mean, metric, [*flags, *notes.get(metric, []), *doubt])
    if not is_over_groups(mean):
        return
    fewest = np.min([counts.seen for counts in members], axis=0).tolist()
    for name, iou, seen in zip(_distinct(names), values[len(METRICS) :].tolist(), fewest, strict=True):
        if seen:
            yield Figure(iou, seen).of(mean, f"iou({name})", flags)


def _notes(conditions: Sequence[Counts], names: Sequence[str]) -> dict[str, list[Finding]]:
    """Return by metric which classes its means over classes leave out, under all of the conditions or under some."""
    absent = np.sum([counts.seen == 0 for counts in conditions], axis=0)
    unlabelled, where = conditions[0].labelled.max(axis=0) == 0, "in neither prediction nor truth"
    sometimes = _naming((absent > 0) & (absent < len(conditions)), names, f"{where} under some of its conditions")
    return {
        "miou": _naming(absent == len(conditions), names, where) + sometimes,
        "mean_accuracy": _naming(unlabelled, names, "without labelled pixels"),
    }


def _naming(which: NDArray[np.bool_], names: Sequence[str], where: str) -> list[Finding]:
    """Return `the mean is over 9 of 11 classes: pole, sign are in neither prediction nor truth`."""
    left_out = [name for name, yes in zip(_distinct(names), which.tolist(), strict=True) if yes]
    if not left_out:
        return []
    verb = "is" if len(left_out) == 1 else "are"
    values = {"left": len(names) - len(left_out), "classes": len(names), "verb": verb, "where": where}
    return [Finding.of(LEFT_OUT, names=_first(left_out), **values)]


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


def class_clauses(cells: Cells) -> Iterator[str]:
    """Yield which classes are never right, or else which is weakest, clean; and which fall most under corruption."""
    by_condition: dict[str, dict[str, Figure]] = {}
    for (text, metric), row in cells.items():
        if metric.startswith("iou("):
            by_condition.setdefault(text, {})[metric[4:-1]] = row
    clean = by_condition.get(CLEAN.text, {})
    if never := [name for name, row in clean.items() if row.value == 0]:
        verb = "is" if len(never) == 1 else "are"
        yield f"{len(never)} of {len(clean)} classes {verb} never predicted right, clean: {_first(never)}"
    elif clean:
        name, row = min(clean.items(), key=lambda item: item[1].value)
        images = f"{row.n} {'image' if row.n == 1 else 'images'}"
        yield f"its weakest class is {name} with IoU {percent(row.value)} in {images}, clean"
    sets = [text for text in by_condition if is_over_groups(text)]
    single = [text for text in by_condition if in_means(text) and text != CLEAN.text and (text, "miou") in cells]
    worst = sorted(single, key=lambda text: cells[text, "miou"].value)
    for text in ([text for text in sets if kind_of(text) == BENCHMARK] or sets or worst)[:1]:
        both = [(name, clean[name].value, row.value) for name, row in by_condition[text].items() if name in clean]
        fallen = sorted((each for each in both if each[2] < each[1]), key=lambda each: each[2] - each[1])
        if falls := [f"{name} from {percent(before)} to {percent(after)}" for name, before, after in fallen[:_FALLING]]:
            yield f"under corruption ({words_of(text).label(text)}) the IoU falls most for {', '.join(falls)}"


def _distinct(names: Sequence[str]) -> list[str]:
    """Return the names, with the number of the class where several share a name."""
    often = Counter(names)
    return [name if often[name] == 1 else f"{name} {place}" for place, name in enumerate(names)]


@dataclass(frozen=True)
class Scenes:
    """What was read from a record of scenes: (n,) ids, (4 + K,) figures and (R, 4) of resampled images (`Counts`)."""

    ids: pa.Array
    values: Floats
    resampled: Floats
    sample_groups: SampleGroups | None = None
    """Those that were resampled."""

    @classmethod
    def of(cls, counts: Counts) -> Scenes:
        if not len(counts.ids):
            return cls(counts.ids, np.empty(0), np.empty((0, 0)), counts.sample_groups)
        return cls(counts.ids, counts.values, counts.resampled, counts.sample_groups)


def scene_ids(side: CheckpointRecords, condition: str) -> pa.Array:
    """Return the images that could be read under a condition, in their order. Raises RunError without records."""
    if ("ids", condition) not in side.memo:
        counts = Counts.of(side.table(condition, list(COLUMNS)), (), side.sample_groups)
        scenes = side.memo["scenes", condition] = Scenes.of(counts)
        side.memo["ids", condition] = scenes.ids
    return side.memo["ids", condition]


def scenes_of(side: CheckpointRecords, condition: str, ids: pa.Array, sample_groups: SampleGroups | None) -> Scenes:
    """Return the figures under a condition of the images with these ids, all of which it has. sample_groups:
    which are resampled as a whole."""
    scenes: Scenes | None = side.memo.get(("scenes", condition))
    if scenes is None or not scenes.ids.equals(ids) or scenes.sample_groups is not sample_groups:
        counts = Counts.of(side.table(condition, list(COLUMNS)), (), sample_groups)
        scenes = side.memo["scenes", condition] = Scenes.of(counts.of_samples(ids))
    return scenes


def recorded_difference(first: CheckpointRecords, second: CheckpointRecords, condition: str, metric: str) -> Difference:
    """Return the second's figure less the first's, under a condition or mean. Raises RunError without common images."""
    shares = shares_of(condition)
    ids = common_ids([scene_ids(side, text) for side in (first, second) for text in shares])
    if not len(ids):
        raise nothing_common(first, second, condition)
    groups, sample_groups = common_groups(first, second, ids), first.sample_groups or second.sample_groups
    before, after = (
        [(share, scenes_of(side, text, ids, sample_groups)) for text, share in shares.items()]
        for side in (first, second)
    )
    return scene_difference(before, after, metric, groups)


def scene_difference(
    first: Iterable[tuple[float, Counts | Scenes]],
    second: Iterable[tuple[float, Counts | Scenes]],
    metric: str = "miou",
    groups: Groups | None = None,
) -> Difference:
    """Return how the second's figure differs. first, second: shares and counts, all of the same images, resampled by
    the same groups."""
    place = METRICS.index(metric)
    (n, before, drawn_before), (_, after, drawn_after) = weighted_mean(first), weighted_mean(second)
    with np.errstate(invalid="ignore"):
        resampled = drawn_after[:, place] - drawn_before[:, place]
    return of_resamples(float(before[place]), float(after[place]), resampled, n, FEWEST, groups)


LONGEST = 40  # the longest table of classes that a terminal shows, in rows


def scene_tables(results: Sequence[Figure], manifest: Manifest | None = None) -> list[Table]:
    """Return the tables about corruptions and about classes; none where no condition has an mIoU. manifest: of the run,
    for what people call its conditions."""
    tables, by_checkpoint = list[Table](), dict[str, dict[tuple[str, str], Figure]]()
    for row in results:
        by_checkpoint.setdefault(row.checkpoint, {})[row.condition, row.metric] = row
    for checkpoint, cells in by_checkpoint.items():
        if any(metric == "miou" for _, metric in cells):
            tables += [*retention_tables(checkpoint, cells, metric_of("miou")), *_classes(checkpoint, cells, manifest)]
    return tables


def _classes(checkpoint: str, cells: Cells, manifest: Manifest | None) -> Iterator[Table]:
    """Yield the IoU of each class under everything but single corruptions; images: those that have it when clean."""
    texts = dict.fromkeys(text for text, _ in cells)
    columns = [text for text in texts if words_of(text).in_results or is_over_groups(text)]
    if not columns:
        return
    names = dict.fromkeys(metric for condition, metric in cells if condition in columns and metric.startswith("iou("))
    rows = []
    for metric in names:
        fractions = [finite_or_none(cells, condition, metric) for condition in columns]
        first = cells.get((columns[0], metric))
        rows.append((metric[4:-1], count(0) if first is None else counted(first), *map(scaled, fractions)))
    labels = [name_of(text, "table", manifest) if manifest else text for text in columns]
    title = f"{checkpoint}: IoU in % by class; images: with the class in prediction or truth, {labels[0]}"
    note = "--classes FILE names the classes." if rows and all(row[0].isdigit() for row in rows) else ""
    headings = ("class", "images", *labels)
    yield Table(title, headings, tuple(rows), note=note, checkpoint=checkpoint, shaded=tuple(labels))


def terminal_scenes(tables: Sequence[Table]) -> Iterator[Table]:
    """Yield the tables for a terminal; of a long one about classes only where to find it."""
    for table in tables:
        if table.headings[0] == "class" and len(table.rows) > LONGEST:
            yield Table(f"{table.title}: {len(table.rows)} classes; see the report", (), ())
        else:
            yield replace(table, spare=("NLL", "pixel acc. %", "mean acc. %"))


def card_parts(checkpoint: str, table: ConditionTable, others: Sequence[Table]) -> Iterator[CardPart]:
    """Yield the tables of a checkpoint, except those of many classes, which are in results.json."""
    if not table.figures and not others:
        return
    cells = [table.cells(key) | {"condition": code(key[1])} for key in table.figures]
    rows = [tuple(row.values()) for row in cells]
    parts = [Table("", tuple(cells[0]), tuple(rows))] if cells else []
    for other in others:
        title = other.title.removeprefix(f"{checkpoint}: ")
        if len(other.rows) <= LONGEST:
            parts.append(replace(other, title=capital(title)))
    yield CardPart("Segmentation", "95 % intervals in brackets; n is the number of images.", parts)


MOST = 24  # classes that are drawn
_TOGETHER = 4  # checkpoints in a figure


Points = Mapping[str, Mapping[str, Figure]]  # the IoU of each class of a checkpoint, by condition


def class_ious(results: Sequence[Figure], claims: Mapping[str, Any]) -> dict[str, Points]:
    """Return the IoU of the classes of every checkpoint: clean, under the worst attack, and under `in-c` if it was
    evaluated whole, else under each set that was.
    """
    by_checkpoint: dict[str, dict[str, dict[str, Figure]]] = {}
    miou: dict[str, dict[str, float]] = {}
    for row in results:
        if not row.is_finite:
            continue
        if row.metric == "miou":
            miou.setdefault(row.checkpoint, {})[row.condition] = row.value
        elif row.metric.startswith("iou("):
            by_condition = by_checkpoint.setdefault(row.checkpoint, {}).setdefault(row.condition, {})
            by_condition[row.metric[4:-1]] = row
    return {
        checkpoint: {condition: points[condition] for condition in _drawn(points, miou.get(checkpoint, {}), claims)}
        for checkpoint, points in by_checkpoint.items()
    }


def _drawn(by_condition: Mapping[str, Any], miou: Mapping[str, float], claims: Mapping[str, Any]) -> list[str]:
    attacks = (text for text in by_condition if text in claims and starts_from(text) == CLEAN.text)
    attacked = [text for text in attacks if math.isfinite(miou.get(text, math.nan))]
    sets = [condition for condition in by_condition if is_over_groups(condition)]
    whole = [condition for condition in sets if kind_of(condition) == BENCHMARK]
    chosen = [*([CLEAN.text] if CLEAN.text in by_condition else []), *(whole or sets)]
    return [*chosen, *([min(attacked, key=lambda condition: miou[condition])] if attacked else [])]


def class_figures(entries: Mapping[str, Points], manifest: Manifest) -> Iterator[Plot]:
    """Yield figures of a few checkpoints each, one panel per checkpoint; classes by the first one's clean IoU."""
    if not entries:
        return
    conditions = list(dict.fromkeys(condition for entry in entries.values() for condition in entry))
    every = list(dict.fromkeys(name for entry in entries.values() for points in entry.values() for name in points))
    checkpoints = list(entries)
    first = entries[checkpoints[0]].get(conditions[0], {})
    order = sorted(every, key=lambda name: first[name].value if name in first else math.inf)
    chosen = order[:MOST]
    classes, keys = labels(chosen, 20), {text: name_of(text, "table", manifest) for text in conditions}
    looks = {condition: style(place) for place, condition in enumerate(conditions)}
    for start in range(0, len(entries), _TOGETHER):
        group = checkpoints[start : start + _TOGETHER]
        names = brief_labels(group, 22)

        def paint(canvas: Canvas, group: Sequence[str] = group, names: Mapping[str, str] = names) -> None:
            grid = panels(canvas, len(group), sharex=True, sharey=True)
            for axes, checkpoint in zip(grid, group, strict=True):
                for condition, points in entries[checkpoint].items():
                    rows = [row for row, name in enumerate(chosen) if name in points]
                    bare = [Figure(points[chosen[row]].value, points[chosen[row]].n) for row in rows]
                    dots(axes, rows, bare, looks[condition], across=True)
                axes.set_title(names[checkpoint])
                axes.set_xlim(-3, 103)
            for axes in grid[-2:]:
                axes.set_xlabel("IoU in %")
            for axes in grid[::2]:
                axes.set_yticks(range(len(chosen)), [classes[name] for name in chosen])
                axes.set_ylim(len(chosen) - 0.5, -0.5)
            legend(canvas, {keys[name]: look for name, look in looks.items()}, lines=False)

        several = f", checkpoints {start + 1} to {start + len(group)}" if len(entries) > _TOGETHER else ""
        lowest = f" The {MOST} of {len(every)} classes that are lowest." if len(every) > MOST else ""
        yield Plot(
            "segmentation",
            f"IoU by class{several}",
            20 + 18 * -(-len(keys) // 2) + (58 + 17 * len(chosen)) * -(-len(group) // 2),
            paint,
            alt=f"IoU by class. {list_some([_in_words(entries[name], names[name]) for name in group])}.",
            caption=f"Classes by the IoU of {shorten_name(checkpoints[0], 40)}, "
            f"{keys[conditions[0]]}, lowest first.{lowest}",
            name=" ".join(group),
        )


def _in_words(entry: Points, name: str) -> str:
    sentences = []
    for condition, points in entry.items():
        low = sorted((point.value, class_name) for class_name, point in points.items())[:2]
        classes = " and ".join(f"{shorten_name(class_name, 40)} with {percent(value)}" for value, class_name in low)
        sentences.append(f"{shorten_name(condition, 60)} lowest {classes}")
    return f"{name}: {', '.join(sentences)}"
