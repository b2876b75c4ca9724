"""Features as a task: what simple heads make of them, and what its numbers are."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from ...common.differences import Difference, of_draws, of_means
from ...common.figure import BOOTSTRAP, FEWEST, INCOMPLETE, STUDENT, Figure
from ...common.finding import Finding
from ...common.groups import Groups
from ...common.intervals import Floats, bootstrap, draws_interval, mean_of, share_of
from ...display.format import amount, count, counted, figure_cell, number, scaled, share
from ...display.table import CardPart, Section, Table, side_by_side, with_flags
from ...display.text import Made, code
from ...evaluations.aggregate import Parts, RecordReader, Results, column_of, readable_rows
from ...evaluations.condition import in_means, is_over_groups, shares_of, words_of
from ...evaluations.corruptions import possible_means
from ...evaluations.metrics import Cells, Metric, finite_or_none, mean_share, of_samples
from ...evaluations.presenting import finding_lines
from ...evaluations.records import (
    CheckpointRecords,
    Pairings,
    PerSample,
    align,
    common_groups,
    common_ids,
    not_paired,
    nothing_common,
)
from ...protocol.card import SampleWords
from ...protocol.condition import CLEAN
from ...runs.manifest import CheckpointEntry, Manifest
from ...tasks import find_metric
from ...tasks.task import Task

if TYPE_CHECKING:
    import pyarrow as pa

    from ...evaluations.family import Looks
    from ...runs.folder import RunFolder

_NAMED = re.compile(r"(knn|few_shot)\((\d+)\)")
_FEW_SHOT = re.compile(r"few_shot (\d+) \d+")
_KNN = re.compile(r"knn \d+")
_NONE = math.nan, math.nan
ConditionFigures = tuple["pa.Array", dict[str, Floats], list[Finding]]
"""Ids, figures by metric, and flags of the images under one condition."""


def few_shot(shots: int, draw: int) -> str:
    """Return the name of a few-shot head, and of its column in records."""
    return f"few_shot {shots} {draw}"


def columns_behind(metric: str, draws: int) -> list[str]:
    """Return the columns that a metric is made of; none where there is no such metric. draws: of few-shot heads."""
    if metric in ("knn", "probe"):
        return ["label", metric]
    if metric in ("retrieval", "moved"):
        return [{"retrieval": "precision"}.get(metric, metric)]
    if (match := _NAMED.fullmatch(metric)) is None:
        return []
    if match[1] == "knn":
        return ["label", f"knn {match[2]}"]
    return ["label", *(few_shot(int(match[2]), draw) for draw in range(draws))]


def per_image(columns: Mapping[str, Floats]) -> Floats:
    """Return the figure (n,) of each image from the columns of `columns_behind`; (n, D) for D few-shot draws."""
    if "label" not in columns:
        (only,) = columns.values()
        return only
    right = [values == columns["label"] for name, values in columns.items() if name != "label"]
    is_drawn = any(_FEW_SHOT.fullmatch(name) for name in columns)
    shares: Floats = np.stack(right, axis=1).astype(np.float64) if is_drawn else right[0].astype(np.float64)
    return shares


def metrics_of(columns: Iterable[str]) -> list[str]:
    """Return the metrics that records with these columns have, in the order of tables."""
    names = list(columns)
    sweep = [name.replace(" ", "(") + ")" for name in names if _KNN.fullmatch(name)]
    shots = dict.fromkeys(f"few_shot({match[1]})" for name in names if (match := _FEW_SHOT.fullmatch(name)))
    return ["knn", "probe", "retrieval", "moved", *sweep, *shots]


def feature_rows(reading: RecordReader, conditions: Sequence[str]) -> Parts:
    draws = few_shot_draw_count(reading.manifest.checkpoint(reading.checkpoint).heads)
    rows, by_condition = list[Figure](), dict[str, ConditionFigures]()
    for condition in conditions:
        table, notes = reading.joined(reading.shards(condition, _is_wanted))
        read = readable_rows(table)
        if not len(read):
            continue
        flags = [*reading.findings(condition, table), *notes]
        if odd := int((column_of(read, "knn") < 0).sum()):
            flags.append(Finding.of("features/non-finite", count=odd, n=len(read)))
        values = {
            metric: per_image({name: column_of(read, name) for name in columns_behind(metric, draws)})
            for metric in metrics_of(read.column_names)
            if metric != "moved" or condition != CLEAN.text
        }
        rows += _rows(condition, values, flags, reading.groups(read["sample_id"]))
        for norm in ("linf", "l2"):
            if (largest := float(column_of(read, norm).max())) > 0:
                rows.append(Figure(largest, len(read)).of(condition, f"{norm}_max", flags))
        if in_means(condition):
            by_condition[condition] = read["sample_id"].combine_chunks(), values, flags
    return reading.figures(rows), reading.figures(_means(by_condition, reading)), []


def few_shot_draw_count(heads: object) -> int:
    draws = heads.get("draws") if isinstance(heads, Mapping) else None
    return draws if isinstance(draws, int) else 0


def _is_wanted(column: str) -> bool:
    plain = {"sample_id", "error", "label", "knn", "probe", "precision", "moved", "linf", "l2"}
    return column in plain or bool(_KNN.fullmatch(column) or _FEW_SHOT.fullmatch(column))


def _rows(
    condition: str, values: Mapping[str, Floats], flags: list[Finding], groups: Groups | None, single: bool = True
) -> Iterator[Figure]:
    """Yield the rows of a condition. single: it is no mean over several, so that an image is right or wrong, and the
    spread of few-shot heads over their draws is given. groups: of the images.
    """
    if groups is not None:
        for metric, each in values.items():
            yield from (figure.of(condition, metric, flags) for figure in _of_groups(metric, each, groups, single))
        yield from _spreads(condition, values, flags) if single else ()
        return
    shares = {metric: each[np.isfinite(each)] if each.ndim == 1 else each for metric, each in values.items()}
    many = [metric for metric in shares if not (single and is_binary(metric)) and len(shares[metric]) >= FEWEST]
    resampled = [metric for metric in many if shares[metric].ndim == 1]
    ends = dict.fromkeys(shares, _NONE)
    ends |= {metric: draws_interval(shares[metric]) for metric in many if shares[metric].ndim > 1}
    for n in {len(shares[metric]) for metric in resampled}:
        alike = [metric for metric in resampled if len(shares[metric]) == n]
        every = np.stack([shares[metric] for metric in alike], axis=1)
        means = every.mean(axis=0)
        ends |= zip(alike, bootstrap(lambda counts, of=every, n=n: counts @ of / n, n, means), strict=True)  # type: ignore[misc]
    for metric, each in shares.items():
        if n := len(each):
            how = STUDENT if each.ndim > 1 else BOOTSTRAP
            share = (
                share_of(each) if single and is_binary(metric) else Figure(float(each.mean()), n, *ends[metric], how)
            )
            yield share.of(condition, metric, flags)
    yield from _spreads(condition, values, flags) if single else ()


def _of_groups(metric: str, each: Floats, groups: Groups, single: bool) -> Iterator[Figure]:
    if each.ndim > 1:
        ends = draws_interval(each, groups) if groups.count >= FEWEST else (math.nan, math.nan)
        yield Figure(float(each.mean()), len(each), *ends, STUDENT, groups=groups.count)
    elif len(finite := each[np.isfinite(each)]):
        some = groups.only(np.isfinite(each))
        yield share_of(finite, some) if single and is_binary(metric) else mean_of(finite, some)


def _spreads(condition: str, values: Mapping[str, Floats], flags: list[Finding]) -> Iterator[Figure]:
    for metric, each in values.items():
        if each.ndim > 1 and each.shape[1] > 1:
            spread = float(np.std(each.mean(axis=0), ddof=1))
            name = metric.replace("few_shot", "few_shot_spread")
            yield Figure(spread, len(each)).of(condition, name, flags)


def is_binary(metric: str) -> bool:
    definition = find_metric(metric)
    return definition is not None and definition.binary


def _means(single: Mapping[str, ConditionFigures], reading: RecordReader) -> Iterator[Figure]:
    expected = reading.manifest.data.n
    for mean in possible_means(single):
        shares = shares_of(mean)
        if not all(text in single for text in shares):
            continue
        ids = common_ids([single[text][0] for text in shares])
        if not len(ids):
            continue
        every = dict.fromkeys(flag for text in shares for flag in single[text][2])
        flags = [each for each in every if each.code not in (INCOMPLETE, "data/unreadable")]
        if len(ids) < expected:
            flags.append(Finding.of("data/lacks-conditions", count=expected - len(ids), expected=expected))
        sums = {metric: np.zeros((len(ids), *each.shape[1:])) for metric, each in single[next(iter(shares))][1].items()}
        for text, part in shares.items():
            present, values, _ = single[text]
            for metric in sums:
                sums[metric] += part * align(present, values[metric], ids)
        yield from _rows(mean, sums, flags, reading.groups(ids), single=False)


def recorded(side: CheckpointRecords, condition: str, metric: str) -> PerSample:
    """Return a figure of each image under a condition, or a mean over conditions; of few-shot heads for each draw."""
    columns, shares = columns_behind(metric, few_shot_draw_count(side.described.heads)), shares_of(condition)
    if not columns:
        raise not_paired(condition, metric, ["knn", "probe", "retrieval", "moved", "knn(K)", "few_shot(N)"])
    read = {text: side.samples(text, columns) for text in shares}
    ids = common_ids([each.ids for each in read.values()])
    parts = [part * per_image({name: read[text].of(name, ids) for name in columns}) for text, part in shares.items()]
    return ids, np.sum(parts, axis=0)


_MAIN = (("knn", "kNN % [95 %]"), ("probe", "linear probe % [95 %]"), ("retrieval", "retrieval mAP % [95 %]"))
_SWEPT = re.compile(r"knn\((\d+)\)|few_shot\((\d+)\)")
_HEADLINE = _MAIN[0][1]


def head_rows(cells: Cells, texts: Sequence[str], manifest: Manifest) -> list[tuple[str, ...]]:
    rows = []
    for text in texts:
        norm, knn = manifest.norm(text), cells[text, "knn"]
        largest, moved = finite_or_none(cells, text, f"{norm}_max"), cells.get((text, "moved"))
        rows.append(
            (
                *(text, counted(knn), *(figure_cell(cells.get((text, metric))) for metric, _ in _MAIN)),
                count(0) if moved is None or not moved.is_finite else number(moved.value),
                amount(largest, norm, manifest.protocol.space) if largest else count(0),
                "⚑" if knn.findings else "",
            )
        )
    return rows


HEADINGS = ("condition", "n", *(heading for _, heading in _MAIN), "features moved", "largest |δ|", "flag")


def _sweep(results: Results) -> list[str]:
    return [metric for metric in dict.fromkeys(row.metric for row in results) if _SWEPT.fullmatch(metric)]


def _swept(cells: Cells, texts: Sequence[str], metrics: Sequence[str]) -> list[tuple[str, ...]]:
    """Return a row for each condition: kNN at each k, and few-shot accuracy with its spread."""
    rows = []
    for text in texts:
        columns = []
        for metric in metrics:
            value = finite_or_none(cells, text, metric)
            spread = finite_or_none(cells, text, metric.replace("few_shot(", "few_shot_spread("))
            has_spread = spread is not None and metric.startswith("few")
            columns.append(scaled(value).followed_by(f" ± {scaled(spread)}" if has_spread else ""))
        rows.append((text, *columns))
    return rows


def _heading(metric: str) -> str:
    match = _SWEPT.fullmatch(metric)
    assert match is not None
    return f"kNN %, k {match[1]}" if match[1] else f"{match[2]}-shot %"


def _texts(cells: Cells, is_meant: Callable[[str], bool] = lambda text: True) -> list[str]:
    return [text for text in dict.fromkeys(text for text, metric in cells if metric == "knn") if is_meant(text)]


def _is_shown(text: str) -> bool:
    return words_of(text).in_results


def in_short(cells: Cells) -> list[str]:
    """Return the conditions that are not single severities of a mean."""
    every = _texts(cells)
    covered = {share for text in every if len(shares_of(text)) > 1 for share in shares_of(text)}
    sets = [text for text in every if is_over_groups(text)]
    return [text for text in every if _is_shown(text) or text in sets or (not sets and text not in covered)]


def heads_in_words(entry: CheckpointEntry) -> str:
    setup = entry.heads if isinstance(entry.heads, dict) else {}
    chosen = "chosen by cross-validation" if setup.get("probe") == "cv" else f"{setup.get('probe')}"
    return (
        f"{setup.get('images')} training images of {setup.get('classes')} classes; kNN with k {setup.get('k')}, "
        f"temperature {setup.get('temperature')}; strength of the probe {chosen}, of few-shot heads "
        f"{setup.get('few_shot')}, {setup.get('draws')} draws"
    )


def terminal_tables(results: Results) -> Iterator[Table]:
    manifest, rows, heads = results.manifest, list[tuple[str, ...]](), list[str]()
    swept, under, metrics = list[tuple[str, ...]](), list[str](), _sweep(results)
    for entry in manifest.checkpoints:
        cells = results.cells[entry.name]
        entries = head_rows(cells, in_short(cells), manifest)
        rows += [(entry.name, *row) for row in entries]
        heads += [f"{entry.name}, {entry.attention_words}"] * len(entries)
        more = _swept(cells, _texts(cells, _is_shown), metrics)
        swept += [(entry.name, *row) for row in more]
        under += [entry.name] * len(more)
    if rows:
        title = f"protocol {manifest.protocol.tag}: {heads_in_words(manifest.checkpoints[0])}"
        spare = (HEADINGS[6], HEADINGS[4], "n")
        yield Table(title, ("checkpoint", *HEADINGS), tuple(rows), spare=spare).said_once("n").under_heads(heads)
        title = "kNN by k, and few-shot accuracy ± its spread over draws"
        yield Table(title, ("checkpoint", "condition", *map(_heading, metrics)), tuple(swept)).under_heads(under)


def head_grids(results: Results) -> list[Table]:
    """Return clean and attacked, corrupted, and the figures of every head, of all checkpoints side by side."""
    manifest, note = results.manifest, f"{heads_in_words(results.manifest.checkpoints[0])}."
    grids = [
        *_grids(results, "Clean and under attack", _is_shown, note),
        *_grids(results, "Under corruption", lambda text: not _is_shown(text), ""),
    ]
    parts, metrics = [], _sweep(results)
    for entry in manifest.checkpoints:
        cells = results.cells[entry.name]
        rows = _swept(cells, _texts(cells), metrics)
        parts += [Table("", ("condition", *map(_heading, metrics)), tuple(rows), checkpoint=entry.name)] if rows else []
    grids += side_by_side("kNN by k, and few-shot accuracy ± its spread over draws", parts)
    return with_flags(grids, finding_lines(results, lambda text: True))


def _grids(results: Results, title: str, is_meant: Callable[[str], bool], note: str) -> list[Table]:
    parts = []
    for entry in results.manifest.checkpoints:
        cells = results.cells[entry.name]
        rows = head_rows(cells, _texts(cells, is_meant), results.manifest)
        parts += [Table("", HEADINGS[:-1], tuple(row[:-1] for row in rows), checkpoint=entry.name)] if rows else []
    return side_by_side(title, parts, headline=_HEADLINE, note=note)


METRICS = (
    of_samples("knn", "kNN %", True, ("accuracy", "accuracy of nearest neighbours")),
    of_samples("probe", "linear probe %", hub=("probe_accuracy", "accuracy of a linear probe")),
    mean_share("retrieval", "retrieval mAP %", hub=("map", "mAP of nearest-neighbour retrieval")),
    Metric("moved", "features moved", better=-1, paired=True, least=0),
    Metric("knn(", "kNN % at k", 100, 1, paired=True, binary=True, parametric=True),
    Metric("few_shot(", "few-shot %", 100, 1, paired=True, share=True, parametric=True),
    Metric("few_shot_spread(", "spread of few-shot %", 100, parametric=True, least=0, most=1),
)


_COMPARED = ("knn", "probe", "retrieval")


class Features(Task):
    """One class per image, which heads read from features."""

    name, headline, metrics = "features", "knn", METRICS
    compared = Pairings(shown=_COMPARED, ended=_COMPARED, groups=(), sets=_COMPARED)
    paired: ClassVar[Mapping[str, str]] = {}
    shows_compared = True
    command, card, hub = "features", "features", "image-feature-extraction"
    samples = SampleWords("image", "images")

    def rows(self, reading: RecordReader, conditions: Sequence[str]) -> Parts:
        return feature_rows(reading, conditions)

    def brief(self, run: RunFolder, checkpoint: str, condition: str) -> float | None:
        read = readable_rows(run.table(checkpoint, condition, ["label", "knn", "error"]))
        return float((column_of(read, "label") == column_of(read, "knn")).mean()) if len(read) else None

    def difference(
        self, first: CheckpointRecords, second: CheckpointRecords, condition: str, metric: str
    ) -> Difference:
        (first_ids, before), (second_ids, after) = (recorded(side, condition, metric) for side in (first, second))
        ids = common_ids([first_ids, second_ids])
        if not len(ids):
            raise nothing_common(first, second, condition)
        before, after = align(first_ids, before, ids), align(second_ids, after, ids)
        groups = common_groups(first, second, ids)
        if before.ndim > 1:
            return of_draws(before, after, groups)
        return of_means(before, after, is_binary(metric) and len(shares_of(condition)) == 1, groups)

    def per_sample(self, side: CheckpointRecords, condition: str, metric: str) -> PerSample:
        ids, each = recorded(side, condition, metric)
        return ids, each if each.ndim == 1 else each.mean(axis=1)

    def clean_clause(self, row: Figure) -> str:
        return f"nearest neighbours {share(row)} right on {row.n} clean images"

    def card_parts(self, checkpoint: str, results: Results) -> Iterable[CardPart]:
        cells, entry = results.cells[checkpoint], results.manifest.checkpoint(checkpoint)
        if rows := head_rows(cells, in_short(cells), results.manifest):
            parts = [(Made(code(row[0]) + (" ⚑" if row[-1] else "")), *row[1:-1]) for row in rows]
            note = f"95 % intervals in brackets; n is the number of images. {heads_in_words(entry)}."
            yield CardPart("Accuracy of heads on its features", note, [Table("", HEADINGS[:-1], tuple(parts))])

    def terminal(self, results: Results) -> Iterable[Table]:
        return terminal_tables(results)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        yield Section("results", "Results", lambda: {"grids": head_grids(results)}, template="features")


TASK = Features()
