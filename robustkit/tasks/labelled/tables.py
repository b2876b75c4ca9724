"""Show results of classifiers: tables, grids, model card, reliability diagrams."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ...common.intervals import calibration_error, calibration_gaps, wilson
from ...display.grid import Grid, Part, side_by_side, with_flags
from ...display.svg import INK, Figure, Point, Style, dots, draw, percent, plain, roomy
from ...display.table import CardPart, TextTable
from ...display.text import Made, amount, code
from ...evaluations.aggregate import Gatherer, Results
from ...evaluations.presenting import flag_lines
from ...evaluations.registry import words_of
from ...protocol.condition import CLEAN

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from ...runs.manifest import Manifest

HEADINGS = ("checkpoint", "attention", "condition", "n", "top-1 % [95 %]", "top-5 %", "NLL", "ECE %", "largest |δ|")


def table_rows(results: Results) -> list[tuple[str, ...]]:
    """Return one row of texts under `HEADINGS` per checkpoint and condition of this table; flags come last, joined.

    A dash stands where samples left an attack at their first wrong prediction, so that the figure would mean nothing.
    """
    protocol = results.manifest.protocol
    words = {"none": "no", "other": "other"}  # shown in place of a formula where there is none
    attention = {c.name: words.get(c.attention, c.attention) for c in results.manifest.checkpoints}
    cells: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = {}
    for row in results:
        if not words_of(row["condition"]).in_results:
            continue
        cells.setdefault((row["checkpoint"], row["condition"]), {})[row["metric"]] = row
    rows: list[tuple[str, ...]] = []
    for (checkpoint, condition), metric in cells.items():
        top1 = metric["top1"]
        norm = results.manifest.norm(condition)
        largest = metric.get(f"{norm}_max")
        rows.append(
            (
                checkpoint,
                attention[checkpoint],
                condition,
                str(top1["n"]),
                f"{100 * top1['value']:.1f} [{100 * top1['ci_low']:.1f}, {100 * top1['ci_high']:.1f}]",
                f"{100 * metric['top5']['value']:.1f}" if "top5" in metric else "–",
                _figure(metric.get("nll"), 1, ".3f"),
                _figure(metric.get("ece"), 100, ".1f"),
                amount(largest["value"], norm, protocol.space) if largest else "0",
                "; ".join(top1["flags"]),
            )
        )
    return rows


def _figure(row: Mapping[str, Any] | None, scale: float, form: str) -> str:
    """Return a value as text; a dash where there is none, nan where it is not finite (None in summary.json)."""
    if row is None:
        return "–"
    return "nan" if row["value"] is None else format(scale * row["value"], form)


def terminal_table(results: Results) -> TextTable:
    """Return the results for a terminal, each checkpoint above its conditions; the caller prints the flags under it."""
    protocol = results.manifest.protocol
    rows = table_rows(results)
    shown = tuple((row[0], *row[2:9]) for row in rows)
    marked = any(row[9] for row in rows)
    headings = (HEADINGS[0], *HEADINGS[2:], *(["flag"] if marked else []))
    if marked:
        shown = tuple((*cells, "⚑" if row[9] else "") for cells, row in zip(shown, rows, strict=True))
    title = f"protocol {protocol.tag}: {protocol.summary}"
    table = TextTable(title, headings, shown, spare=(HEADINGS[5], HEADINGS[7], HEADINGS[8], "n"))
    return table.said_once("n").under_heads([f"{row[0]}, {row[1]} attention" for row in rows])


_TOP1 = HEADINGS[4]


def result_grids(results: Results) -> list[Grid]:
    """Return top-1 of all checkpoints side by side, then every figure."""
    by_checkpoint: dict[str, list[tuple[str, ...]]] = {}
    for row in table_rows(results):
        by_checkpoint.setdefault(row[0], []).append(row)
    parts = [_part(name, rows) for name, rows in by_checkpoint.items()]
    flags = flag_lines(results, lambda condition: words_of(condition).in_results)
    return with_flags(side_by_side("Clean and attacked", parts, headline=_TOP1), flags)


def _part(checkpoint: str, rows: Sequence[tuple[str, ...]]) -> Part:
    values: Mapping[tuple[int, int], float] = {
        (place, 2): float(row[4].split()[0]) / 100 for place, row in enumerate(rows)
    }
    return Part(checkpoint, HEADINGS[2:], tuple(row[2:9] for row in rows), values)


def class_grids(tables: Sequence[TextTable]) -> list[Grid]:
    """Return the weak classes of all checkpoints together: one table when clean, one for each attack."""
    groups: dict[str, list[TextTable]] = {}
    for table in tables:
        groups.setdefault(table.title.removeprefix(f"{table.checkpoint}: "), []).append(table)
    grids = []
    for title, some in groups.items():
        several = len(some) > 1
        headings = (*(["checkpoint"] if several else []), *some[0].headings)
        rows = tuple((*([table.checkpoint] if several else []), *row) for table in some for row in table.rows)
        note = " ".join(dict.fromkeys(table.note for table in some))
        grids.append(Grid(title[:1].upper() + title[1:], headings, rows, 1 + several, note=note))
    return [grids[0], *(replace(grid, folded=True) for grid in grids[1:])] if grids else []


CARD_HEADINGS = ("condition", "n", "top-1 % [95 %]", "top-5 % [95 %]", "NLL [95 %]", "ECE % [95 %]", "largest change")
_SCALES = (("top1", 100), ("top5", 100), ("nll", 1), ("ece", 100))


def card_parts(results: Results) -> Iterator[CardPart]:
    """Yield a table of the conditions that are in the table of results."""
    if rows := list(_conditions(results)):
        called = results.manifest.protocol.samples.many
        note = f"In brackets 95 % intervals, n is the number of {called}; ⚑ marks what is flagged above."
        yield CardPart("Clean and under attack", note, [("", CARD_HEADINGS, rows)])


def _conditions(results: Results) -> Iterator[tuple[str, ...]]:
    metrics: dict[str, dict[str, Mapping[str, Any]]] = {}
    for row in results:
        if words_of(row["condition"]).in_results:
            metrics.setdefault(row["condition"], {})[row["metric"]] = row
    for condition, metric in metrics.items():
        norm = results.manifest.norm(condition)
        largest = metric.get(f"{norm}_max")
        flagged = " ⚑" if any(row["flags"] for row in metric.values()) else ""
        yield (
            Made(code(condition) + flagged),
            str(next(iter(metric.values()))["n"]),
            *(_card_figure(metric.get(name), scale) for name, scale in _SCALES),
            amount(largest["value"], norm, results.manifest.protocol.space)
            if largest and largest["value"] is not None
            else "0",
        )


def _card_figure(row: Mapping[str, Any] | None, scale: int) -> str:
    """Return `75.0 [74.2, 75.8]`; a dash where there is no finite figure."""
    if row is None or row["value"] is None:
        return "–"
    form = ".1f" if scale == 100 else ".3f"
    text = format(scale * row["value"], form)
    if row["ci_low"] is None or row["ci_high"] is None:
        return text
    return f"{text} [{scale * row['ci_low']:{form}}, {scale * row['ci_high']:{form}}]"


@dataclass(frozen=True)
class Reliability:
    """The reliability of a checkpoint under a condition, over the bins of the calibration error.

    counts: samples by bin. confidence: their mean, nan without any. accuracy: with Wilson's interval. error: the
    expected calibration error. left_out: samples whose confidence is not finite.
    """

    checkpoint: str
    condition: str
    counts: tuple[int, ...]
    confidence: tuple[float, ...]
    accuracy: tuple[Point, ...]
    error: float
    left_out: int


def reliability(checkpoint: str, condition: str, read: pa.Table) -> Reliability | None:
    """Return the reliability on the samples that could be read; None if none of them has a label and a confidence."""
    if not len(read) or read["correct"].null_count:
        return None
    confidence, correct = (
        read[name].to_numpy(zero_copy_only=False).astype(np.float64) for name in ("confidence", "correct")
    )
    finite = np.isfinite(confidence)
    sure, right = confidence[finite], correct[finite]
    if not len(sure):
        return None
    # A gap of 1 counts a sample where the calibration error bins it.
    counts = calibration_gaps(sure, sure - 1).sum(axis=0).round().astype(int).tolist()
    total = calibration_gaps(sure, np.zeros_like(sure)).sum(axis=0)
    hits = (total - calibration_gaps(sure, right).sum(axis=0)).round().astype(int).tolist()
    means = [float(share) / n if n else math.nan for share, n in zip(total, counts, strict=True)]
    accuracy = [
        Point(hit / n, *wilson(hit, n), n) if n else Point(math.nan, math.nan, math.nan, 0)
        for hit, n in zip(hits, counts, strict=True)
    ]
    error, left_out = calibration_error(sure, right), int((~finite).sum())
    return Reliability(checkpoint, condition, tuple(counts), tuple(means), tuple(accuracy), error, left_out)


class Reliabilities(Gatherer):
    """The reliability of every checkpoint, clean and under the first attack whose losses mean something."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(manifest)
        self.entries: list[Reliability] = []
        self._attacked: set[str] = set()

    def wants(self, checkpoint: str, condition: str) -> bool:
        claim = self.manifest.claims.get(condition)
        whole = claim is not None and not claim.early_stop
        return condition == CLEAN.text or (whole and checkpoint not in self._attacked)

    def needs(self, column: str) -> bool:
        return column in ("correct", "confidence", "error")

    def take(self, checkpoint: str, condition: str, read: pa.Table) -> None:
        if condition != CLEAN.text:
            self._attacked.add(checkpoint)
        if (entry := reliability(checkpoint, condition, read)) is not None:
            self.entries.append(entry)


def reliabilities(results: Results) -> list[Reliability]:
    """Return the reliabilities of a run."""
    return results.gathered(Reliabilities).entries


def calibration_figures(entries: Sequence[Reliability], looks: Mapping[str, Style]) -> Iterator[Figure]:
    """Yield a figure for each checkpoint."""
    for checkpoint in dict.fromkeys(entry.checkpoint for entry in entries):
        shown = [entry for entry in entries if entry.checkpoint == checkpoint]

        def paint(canvas: Canvas, shown: Sequence[Reliability] = shown, look: Style = looks[checkpoint]) -> None:
            roomy(canvas)
            grid = canvas.subplots(2, len(shown), squeeze=False, sharex=True, height_ratios=(3.2, 1))
            for column, entry in enumerate(shown):
                _diagram(grid[0, column], grid[1, column], entry, look)
            grid[0, 0].set_ylabel("right, %")
            grid[1, 0].set_ylabel("samples")

        yield draw(
            "calibration",
            f"Reliability of {plain(checkpoint, 60)}",
            300,
            paint,
            alt=f"Reliability of {plain(checkpoint, 60)}. {' '.join(map(_in_words, shown))}",
            caption="Accuracy by confidence in 15 bins, with 95 % intervals; on the dashed line confidence equals "
            "accuracy, below it confidence is too high. Below: samples in each bin.",
            name=checkpoint,
        )


def _diagram(upper: Axes, lower: Axes, entry: Reliability, look: Style) -> None:
    filled = [place for place, n in enumerate(entry.counts) if n]
    bins = len(entry.counts)
    upper.plot([0, 100], [0, 100], color=INK, linestyle="--", linewidth=1.1)
    dots(
        upper,
        [100 * entry.confidence[place] for place in filled],
        [entry.accuracy[place] for place in filled],
        Style(look.colour, look.marker, "none"),
    )
    upper.set_title(f"{plain(entry.condition, 30)}\nECE {percent(entry.error)}, n = {sum(entry.counts)}")
    upper.set_xlim(-2, 102)
    upper.set_ylim(-2, 104)
    lower.bar([100 * (place + 0.5) / bins for place in range(bins)], entry.counts, width=90 / bins, color=look.colour)
    most = max(entry.counts)
    lower.set_yticks([0, most])
    lower.set_xlabel("confidence, %")
    for axes in (upper, lower):
        axes.tick_params(length=0)


def _in_words(entry: Reliability) -> str:
    """Return the error in words, with the fullest bin as an example."""
    fullest = max(range(len(entry.counts)), key=lambda place: entry.counts[place])
    said = (
        f"{plain(entry.condition, 80)}: calibration error {percent(entry.error)} of {sum(entry.counts)} samples; "
        f"the {entry.counts[fullest]} of mean confidence {percent(entry.confidence[fullest])} "
        f"are right {percent(entry.accuracy[fullest].value)} of the time"
    )
    return said + (f"; {entry.left_out} without a finite confidence are left out." if entry.left_out else ".")
