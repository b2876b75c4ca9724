"""Segment images: record rows hold counts by class, which every figure is computed from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from ...common.differences import Difference
from ...common.figure import Figure
from ...display.format import share
from ...display.table import CardPart, Section, Table, join_tables, of_tables, tables_for, with_flags
from ...evaluations.attacks.results import curve_figures
from ...evaluations.condition import Clause, in_means, words_of
from ...evaluations.corruptions.tables import level_figures, retention_levels
from ...evaluations.family import families_of, summary_of
from ...evaluations.metrics import Cells, Metric, mean_share
from ...evaluations.presenting import card_parts_of, finding_lines, left_out_lines, of_family, tables_of_families
from ...evaluations.records import CheckpointRecords, Pairings, common_ids
from ..task import CHANGE, ConditionTable, Task
from .counts import COLUMNS, Counts
from .results import (
    card_parts,
    class_clauses,
    class_figures,
    class_ious,
    counts_of_runs,
    of_runs,
    recorded_difference,
    scene_ids,
    scene_mean_rows,
    scene_rows,
    scene_tables,
    terminal_scenes,
    worst_rows,
)

if TYPE_CHECKING:
    import pyarrow as pa

    from ...evaluations.aggregate import Parts, RecordReader, Results
    from ...evaluations.family import AnyFamily, Looks, Summary
    from ...runs.folder import RunFolder
    from ...runs.manifest import DataEntry


METRICS = (
    replace(mean_share("miou", "mIoU %", drafted=True, hub=("mean_iou", "mIoU")), also=("iou", "jaccard")),
    Metric("miou_worst", "worst-case mIoU %", 100, 1, share=True),
    replace(
        mean_share("pixel_accuracy", "pixel accuracy %", hub=("pixel_accuracy", "pixel accuracy")), short="pixel acc. %"
    ),
    replace(
        mean_share("mean_accuracy", "mean accuracy %", hub=("mean_accuracy", "mean class accuracy")),
        short="mean acc. %",
    ),
    Metric("nll", "NLL", better=-1, paired=True, least=0, bare=True),
    Metric("retention", "retention %", 100, 1, hub=("retention", "share of clean mIoU"), least=0),
    Metric("iou(", "IoU % of a class", 100, 1, share=True, parametric=True),
)


_FIGURES = ("miou", "pixel_accuracy", "mean_accuracy")


def _judged(data: DataEntry) -> list[int]:
    return [place for place in range(len(data.class_names)) if place not in (data.unjudged or ())]


class Segmentation(Task):
    """One class per pixel."""

    name, headline, metrics = "segmentation", "miou", METRICS
    compared = Pairings(shown=_FIGURES, ended=_FIGURES, groups=(), sets=_FIGURES)
    paired: ClassVar[Mapping[str, str]] = {"nll": "nll"}
    shows_compared = True
    command, card, hub = "segment", "segmentation", "image-segmentation"

    def rows(self, reading: RecordReader, conditions: Sequence[str]) -> Parts:
        data = reading.manifest.data
        judged, columns = _judged(data), (*COLUMNS, "shifted")
        names = [data.class_names[place] for place in judged]
        rows, by_condition = list[Figure](), dict[str, Counts]()
        summaries: dict[AnyFamily, Summary | None] = {}
        for condition in conditions:
            if (summary := summary_of(condition, reading, summaries)[1]) is not None:
                rows += reading.figures(summary.add(condition))
                continue
            table, notes = reading.joined(reading.shards(condition, lambda name: name in columns or of_runs(name)))
            flags = [*reading.findings(condition, table), *notes]
            counts = Counts.of(table, flags, reading.sample_groups).of_classes(judged)
            flags += reading.dependence(condition, counts.ids, counts.accuracies)
            counts = replace(counts, flags=tuple(flags))
            runs = [each.of_classes(judged) for each in counts_of_runs(table, reading.sample_groups)]
            rows += reading.figures(scene_rows(condition, counts, names))
            rows += reading.figures(worst_rows(condition, counts, runs, names))
            if in_means(condition):
                by_condition[condition] = counts
        of_families = (row for summary in summaries.values() if summary for row in summary.finish())
        return rows, reading.figures(scene_mean_rows(by_condition, data.n, names)), reading.figures(of_families)

    def brief(self, run: RunFolder, checkpoint: str, condition: str) -> float | None:
        counts = Counts.of(run.table(checkpoint, condition, COLUMNS), ()).of_classes(_judged(run.manifest.data))
        return float(counts.values[0]) if len(counts.ids) else None

    def difference(
        self, first: CheckpointRecords, second: CheckpointRecords, condition: str, metric: str
    ) -> Difference:
        if metric in _FIGURES:
            return recorded_difference(first, second, condition, metric)
        return super().difference(first, second, condition, metric)

    def ids(self, side: CheckpointRecords, condition: str) -> pa.Array:
        return scene_ids(side, condition)

    def other_truth(self, first: CheckpointRecords, second: CheckpointRecords, condition: str) -> tuple[int, str]:
        tables = [side.table(condition, ["sample_id", "labelled", "error"]) for side in (first, second)]
        read = [table.filter(table["error"].is_null()) for table in tables]
        ids = common_ids([table["sample_id"].combine_chunks() for table in read]).to_pylist()
        masks = [dict(zip(t["sample_id"].to_pylist(), t["labelled"].to_pylist(), strict=True)) for t in read]
        if first.described.preprocessing != second.described.preprocessing:
            masks = masks[:1] * 2  # counts at other image sizes say nothing
        return len(ids), next((f"the mask of {name} differs" for name in ids if masks[0][name] != masks[1][name]), "")

    def clean_clause(self, row: Figure) -> str:
        return f"mIoU {share(row)} on {row.n} clean images"

    def last_clauses(self, cells: Cells) -> Iterable[Clause]:
        yield from map(Clause, class_clauses(cells))

    def card_parts(self, checkpoint: str, results: Results) -> Iterable[CardPart]:
        table = ConditionTable.of(self, results, results.manifest)
        yield from card_parts(checkpoint, table, scene_tables(results, results.manifest))
        yield from card_parts_of(checkpoint, results)

    def terminal(self, results: Results) -> Iterable[Table]:
        table = ConditionTable.of(self, results, results.manifest)
        if table.figures:
            yield table.terminal(("mean_accuracy", "pixel_accuracy", CHANGE, "nll"))
        yield from terminal_scenes(scene_tables(results, results.manifest))
        yield from tables_of_families(results)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        from .pictures import sheet_uri

        run, manifest = results.run, results.manifest
        headline = self.headline_metric
        left = f"{headline.word} retained under corruption"
        plots = [
            *curve_figures(results, looks, headline.name, self.name),
            *class_figures(class_ious(results, manifest.claims), manifest),
            *level_figures(retention_levels(results), looks, self.name, left, "retention"),
        ]

        def values() -> dict[str, Any]:
            flags = finding_lines(results, lambda text: words_of(text).in_results)
            return {
                "conditions": ConditionTable.of(self, results, manifest).grids(flags),
                "grids": with_flags(
                    join_tables(scene_tables(results, manifest)), finding_lines(results, of_family("corruptions"))
                ),
                "examples": sheet_uri(run),
                "left_out": left_out_lines(run),
            }

        yield Section("segmentation", "Segmentation", values, tuple(plots))
        yield Section("corruptions", "Corruptions", lambda: {"grids": [], "left_out": left_out_lines(run)})
        for family in families_of(results.manifest, results):
            if not family.words.in_results and family.name != "corruptions":  # those have sections above
                yield from family.presenter.sections(results, looks)
            elif tables := tuple(tables_for("page", family.presenter.tables(results))):
                yield of_tables(family.name, family.name.capitalize(), tables)


TASK = Segmentation()
