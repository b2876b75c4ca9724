"""Show results of classifiers: classes, reliability diagrams."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ...common.figure import Figure
from ...common.groups import Groups, chosen_groups
from ...common.intervals import calibration_error, calibration_gaps, share_of
from ...display.format import percent
from ...display.svg import INK, Plot, Style, dots, shorten_name, space_panels
from ...display.table import Table
from ...display.text import capital
from ...evaluations.aggregate import Gatherer
from ...evaluations.condition import name_of
from ...protocol.condition import CLEAN

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from ...runs.folder import RunFolder


def stacked_grids(tables: Sequence[Table], several: bool) -> list[Table]:
    """Return tables whose titles differ in the checkpoint alone as one grid, its rows one checkpoint after the other;
    all but the first are folded. several: whether rows name their checkpoint."""
    groups: dict[str, list[Table]] = {}
    for table in tables:
        groups.setdefault(table.title.removeprefix(f"{table.checkpoint}: "), []).append(table)
    grids = []
    for title, some in groups.items():
        headings = (*(["checkpoint"] if several else []), *some[0].headings)
        rows = tuple((*([table.checkpoint] if several else []), *row) for table in some for row in table.rows)
        note = " ".join(dict.fromkeys(table.note for table in some))
        grids.append(Table(capital(title), headings, rows, note=note, keys=1 + several))
    return [grids[0], *(replace(grid, folded=True) for grid in grids[1:])] if grids else []


MANY, FEW_BINS = 500, 8


@dataclass(frozen=True)
class Reliability:
    """The reliability under a condition. counts: samples in each bin of the calibration error. confidence, accuracy: of
    these bins without the empty ones; of fewer than `MANY` samples, of at most `FEW_BINS` bins of as many samples each.
    error: calibration error. left_out: samples of no finite confidence. condition: what people call it.
    """

    checkpoint: str
    condition: str
    counts: tuple[int, ...]
    confidence: tuple[float, ...]
    accuracy: tuple[Figure, ...]
    error: float
    left_out: int


def reliability(checkpoint: str, condition: str, read: pa.Table, groups: Groups | None = None) -> Reliability | None:
    """Return the reliability on the samples that could be read; None if none of them has a label and a confidence.
    groups: theirs."""
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
    groups, bins = chosen_groups(groups, finite), [*(calibration_gaps(sure, sure - 1).T > 0)]
    counts = tuple(int(inside.sum()) for inside in bins)
    if len(sure) < MANY:
        places = np.argsort(np.argsort(sure, kind="stable"), kind="stable")
        bins = [np.isin(places, part) for part in np.array_split(np.arange(len(sure)), FEW_BINS)]
    bins = [inside for inside in bins if inside.any()]
    means = tuple(float(sure[inside].mean()) for inside in bins)
    accuracy = tuple(share_of(right[inside], chosen_groups(groups, inside)) for inside in bins)
    error, left_out = calibration_error(sure, right), int((~finite).sum())
    return Reliability(checkpoint, condition, counts, means, accuracy, error, left_out)


class Reliabilities(Gatherer):
    """The reliability of every checkpoint, clean and under the first attack whose losses mean something."""

    def __init__(self, run: RunFolder) -> None:
        super().__init__(run)
        self.entries: list[Reliability] = []
        self._attacked: set[str] = set()

    def wants(self, checkpoint: str, condition: str) -> bool:
        claim = self.manifest.claims.get(condition)
        whole = claim is not None and not claim.early_stop
        return condition == CLEAN.text or (whole and checkpoint not in self._attacked)

    def needs(self, column: str) -> bool:
        return column in ("sample_id", "correct", "confidence", "error")

    def take(self, checkpoint: str, condition: str, read: pa.Table) -> None:
        if condition != CLEAN.text:
            self._attacked.add(checkpoint)
        groups = None if self.sample_groups is None else self.sample_groups.of(read["sample_id"])
        if (entry := reliability(checkpoint, name_of(condition, "table", self.manifest), read, groups)) is not None:
            self.entries.append(entry)


def calibration_figures(entries: Sequence[Reliability], looks: Mapping[str, Style]) -> Iterator[Plot]:
    for checkpoint in dict.fromkeys(entry.checkpoint for entry in entries):
        panels = [entry for entry in entries if entry.checkpoint == checkpoint]

        def paint(canvas: Canvas, panels: Sequence[Reliability] = panels, look: Style = looks[checkpoint]) -> None:
            space_panels(canvas)
            grid = canvas.subplots(2, len(panels), squeeze=False, sharex=True, height_ratios=(3.2, 1))
            for column, entry in enumerate(panels):
                _diagram(grid[0, column], grid[1, column], entry, look)
            grid[0, 0].set_ylabel("right, %")
            grid[1, 0].set_ylabel("samples")

        yield Plot(
            "calibration",
            f"Reliability of {shorten_name(checkpoint, 60)}",
            300,
            paint,
            alt=f"Reliability of {shorten_name(checkpoint, 60)}. {' '.join(map(_in_words, panels))}",
            caption="Accuracy by confidence with 95 % intervals, in 15 bins of confidence, for fewer than "
            f"{MANY} samples in {FEW_BINS} of equal counts. Below the dashed line the model is overconfident. "
            "Bottom: samples by confidence.",
            name=checkpoint,
        )


def _diagram(upper: Axes, lower: Axes, entry: Reliability, look: Style) -> None:
    bins = len(entry.counts)
    upper.plot([0, 100], [0, 100], color=INK, linestyle="--", linewidth=1.1)
    dots(
        upper,
        [100 * confidence for confidence in entry.confidence],
        entry.accuracy,
        Style(look.colour, look.marker, "none"),
    )
    upper.set_title(f"{shorten_name(entry.condition, 30)}\nECE {percent(entry.error)}, n = {sum(entry.counts)}")
    upper.set_xlim(-2, 102)
    upper.set_ylim(-2, 104)
    lower.bar([100 * (place + 0.5) / bins for place in range(bins)], entry.counts, width=90 / bins, color=look.colour)
    most = max(entry.counts)
    lower.set_yticks([0, most])
    lower.set_xlabel("confidence, %")
    for axes in (upper, lower):
        axes.tick_params(length=0)


def _in_words(entry: Reliability) -> str:
    least, most = entry.accuracy[0], entry.accuracy[-1]
    n = sum(entry.counts)
    sentence = (
        f"{shorten_name(entry.condition, 80)}: calibration error {percent(entry.error)} of {n} samples; "
        f"accuracy {percent(least.value)} at a mean confidence of {percent(entry.confidence[0])}, "
        f"{percent(most.value)} at {percent(entry.confidence[-1])}"
    )
    return sentence + (f"; {entry.left_out} without a finite confidence are left out." if entry.left_out else ".")
