"""The numbers of models of one class a sample, and how records give them; weak classes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ...common.differences import holm, hypergeometric_tail
from ...common.figure import BOOTSTRAP, INVERTED, Figure
from ...common.finding import Finding
from ...common.groups import Groups
from ...common.intervals import Floats, bootstrap, calibration_error, calibration_interval, mean_of, share_of
from ...display.format import Cell, count, figure_cell, p_value, scaled
from ...display.table import Table
from ...errors import PluginError
from ...evaluations.aggregate import Gatherer, Parts, RecordReader, column_of, readable_rows
from ...evaluations.attacks import attack_name, attack_parts
from ...evaluations.attacks.results import LUCKY, is_stage_column
from ...evaluations.condition import family_object, kind_of, name_of, stops_early
from ...evaluations.family import AnyFamily, Family, Summary, families_of, summary_of
from ...evaluations.metrics import Metric, mean_share, metric_named, of_samples
from ...protocol.condition import CLEAN
from .parity import AGREEMENT, agreement_results

if TYPE_CHECKING:
    import pyarrow as pa

    from ...runs.folder import RunFolder


OF_PASSES = ("passes", "passes_right")
_AVERAGED = 10  # passes whose mean one lucky pass does not turn
ACCURACY = ("acc", "top_1", "clean_accuracy", "robust_accuracy", "adversarial_accuracy")
LOSS = ("loss", "cross_entropy", "log_loss", "negative_log_likelihood")
METRICS = (
    replace(of_samples("top1", "top-1 %", True, ("accuracy", "top-1 accuracy")), noun="accuracy", also=ACCURACY),
    replace(of_samples("top5", "top-5 %", hub=("top5_accuracy", "top-5 accuracy")), bare=True),
    Metric("nll", "NLL", better=-1, paired=True, least=0, also=LOSS, bare=True),
    Metric("ece", "ECE %", 100, -1, least=0, most=1, also=("calibration_error", "calibration"), bare=True),
    Metric("linf_max", "largest linf |δ|", least=0),
    Metric("l2_max", "largest l2 |δ|", least=0),
    AGREEMENT,
    replace(mean_share("right_on_average", "right on average %"), paired=False),
    replace(of_samples("right_in_all", "right in all passes %"), paired=False),
    replace(mean_share("shape_bias", "shape bias %"), paired=False),
    Metric("top1_after_", "top-1 % after a stage", 100, 1, binary=True, parametric=True),
)


_READ = {"sample_id", "error", "correct", "top5", "nll", "confidence", "tied", "linf", "l2", *OF_PASSES}


def classification_rows(reading: RecordReader, conditions: Sequence[str]) -> Parts:
    """Return the rows of a checkpoint: of single conditions, of means over corruptions, and of several maps."""
    rows: list[Figure] = []
    summaries: dict[AnyFamily, Summary | None] = {}
    every = (family.aggregator.overview(reading) for family in families_of(reading.manifest))
    overviews = [overview for overview in every if overview is not None]
    for condition in conditions:
        family, summary = summary_of(condition, reading, summaries)
        if summary is not None:
            rows += reading.figures(summary.add(condition))
            continue
        takers = [gatherer for gatherer in reading.gatherers.values() if gatherer.wants(reading.checkpoint, condition)]
        table, notes = reading.joined(
            reading.shards(condition, partial(_is_wanted, family, condition, takers, _has_cues(reading)))
        )
        read = readable_rows(table)
        for taker in takers:
            taker.take(reading.checkpoint, condition, read)
        figures, findings = family.aggregator.extras(reading, condition, read)
        flags = [*reading.findings(condition, table), *notes, *findings]
        if len(read) and "label" in read.column_names:
            flags += reading.dependence(
                condition, read["sample_id"], column_of(read, "correct"), column_of(read, "label")
            )
        early, extras = stops_early(condition, reading.manifest), figures if len(read) else []
        groups = reading.groups(read["sample_id"])
        of_passes, more = passes_figures(read, condition, early, groups)
        flags += more
        of_cues, of_names = ([], []) if early else shape_bias(read, groups)
        flags += of_names
        figures = [*_classification(read, early, groups), *of_cues, *of_passes]
        figures += checked_figures(family, condition, extras)
        rows += reading.figures(figure.of(condition, figure.metric, flags) for figure in figures)
        for overview in overviews if figures else ():
            overview.take(condition, read, flags)
    rows += reading.figures(agreement_results(reading, conditions))
    means = [row for overview in overviews for row in reading.figures(overview.rows())]
    for overview in overviews:
        odd = overview.findings()
        rows, means = ([row.having(odd.get(row.condition, ())) for row in some] for some in (rows, means))
    return rows, means, [row for summary in summaries.values() if summary for row in reading.figures(summary.finish())]


def passes_figures(
    read: pa.Table, condition: str, early: bool, groups: Groups | None
) -> tuple[list[Figure], list[Finding]]:
    """Return what samples of a model with random outputs get over further passes, and findings; nothing of others.

    early: as of `_classification`. An attack that ends at the first wrong pass keeps the luckiest of them: its figures
    are none of the model's, unless it averages passes.
    """
    if not len(read) or not {*OF_PASSES} <= {*read.column_names} or read["passes"].null_count:
        return [], []
    passes, right = (column_of(read, name) for name in OF_PASSES)
    mixed = bool(((right > 0) & (right < passes)).any())
    findings = [Finding.of("model/random-outputs", k=int(passes[0]))] if mixed else []
    parameters = attack_parts(condition)[1]
    if early and mixed and parameters.get("version") != "rand" and int(parameters.get("eot", "1")) < _AVERAGED:
        return [], [*findings, Finding.of(LUCKY, attack=attack_name(kind_of(condition)))]
    on_average, in_all = mean_of(right / passes, groups), share_of(right == passes, groups)
    return [on_average.named("right_on_average"), in_all.named("right_in_all")], findings


def checked_figures(family: AnyFamily, condition: str, figures: Iterable[Figure]) -> Iterator[Figure]:
    """Yield the figures of a family. Raise PluginError for one that is not its own."""
    for figure in figures:
        name = figure.metric if isinstance(figure, Figure) else ""
        its_own = metric_named(family.words.metrics, name) is not None and metric_named(METRICS, name) is None
        if family_object(kind_of(condition)) is not None and not its_own:
            raise PluginError(
                f"the family of {condition} gives {name or figure!r}; expected a Figure of one of the metrics of its "
                "words, with a name that no task has"
            )
        yield figure


def _has_cues(reading: RecordReader) -> bool:
    """Whether a label map finds a second cue's class in the names of samples, which the records then have."""
    (entry,) = (each for each in reading.manifest.checkpoints if each.name == reading.checkpoint)
    return isinstance(entry.label_map, Mapping) and "conflict" in entry.label_map


def shape_bias(read: pa.Table, groups: Groups | None) -> tuple[list[Figure], list[Finding]]:
    """Return the share of decisions for the shape among those for shape or texture, of samples whose cues conflict
    (Geirhos et al. 2019), and a finding where names state no cue; nothing of other samples."""
    if not len(read) or "cue" not in read.column_names:
        return [], []
    texture = column_of(read, "cue")
    shape, prediction = column_of(read, "label"), column_of(read, "prediction")
    decided = (texture >= 0) & (texture != shape) & ((prediction == shape) | (prediction == texture))
    lacking = int((texture < 0).sum())
    findings = [Finding.of("labels/no-cue", count=lacking, n=len(read))] if lacking else []
    if not decided.any():
        return [], findings
    of_decided = None if groups is None else groups.only(decided)
    return [share_of((prediction == shape)[decided], of_decided).named("shape_bias")], findings


def _is_wanted(family: AnyFamily, condition: str, takers: Sequence[Gatherer], has_cues: bool, column: str) -> bool:
    """Whether results of a condition whose images the task scores, or a gatherer of its records, need a column."""
    if has_cues and column in ("label", "prediction", "cue"):
        return True
    of_family = isinstance(family, Family) and column in family.columns
    if column == "label" and condition == CLEAN.text:  # what classes explain is no dependence
        return True
    return column in _READ or is_stage_column(column) or of_family or any(taker.needs(column) for taker in takers)


def _classification(read: pa.Table, early: bool, groups: Groups | None) -> list[Figure]:
    """Return the figures of a condition. early: samples left at their first wrong prediction: only top-1 counts.
    groups: of the samples."""
    n = len(read)
    if n == 0:
        return []
    correct = column_of(read, "correct")
    rows = []
    for name, column in (("top1", "correct"), ("top5", "top5")):
        if not read[column].null_count:  # as it is where predictions alone are known
            rows.append(share_of(column_of(read, column), groups).named(name))
    rows = rows[:1] if early else [*rows, *(_losses(read, correct, groups) if not read["nll"].null_count else ())]
    for norm in ("linf", "l2"):
        largest = float(column_of(read, norm).max())
        if largest > 0:
            rows.append(Figure(largest, n, metric=f"{norm}_max"))
    return rows


def _losses(read: pa.Table, correct: Floats, groups: Groups | None) -> list[Figure]:
    n, confidence, nll = len(read), column_of(read, "confidence"), column_of(read, "nll")
    finite = np.isfinite(confidence)
    sure, right = confidence[finite], correct[finite]
    loss, error = float(nll.mean()), calibration_error(sure, right)
    if groups is not None:
        of_finite = groups.only(finite)
        ends = calibration_interval(sure, right, of_finite)
        return [
            mean_of(nll, groups).named("nll"),
            Figure(error, n, *ends, INVERTED, metric="ece", groups=groups.count),
        ]

    def resampled(counts: Floats) -> Floats:
        with np.errstate(invalid="ignore"):  # 0 times an infinite loss is not a number
            return counts @ nll / n

    return [
        Figure(loss, n, *bootstrap(resampled, n, [loss])[0], BOOTSTRAP, metric="nll"),
        Figure(error, n, *calibration_interval(sure, right), INVERTED, metric="ece"),
    ]


MOST = 8  # classes in a table
FEWEST = 5  # classes with fewer samples are left out
LEVEL = 0.05  # p-values below which a class is in it
_COLUMNS = ("sample_id", "label", "prediction", "correct", "error")
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ClassTally:
    """The predictions of samples under one condition; arrays are (n,)."""

    ids: pa.ChunkedArray
    label: Ints
    prediction: Ints
    correct: NDArray[np.bool_]

    @classmethod
    def of(cls, table: pa.Table) -> ClassTally:
        """Return the tally of a condition's records; samples that were not read or have no label are left out."""
        import pyarrow.compute as pc

        labelled = pc.greater_equal(pc.fill_null(table["label"], -1), 0)
        read = table.filter(pc.and_(table["error"].is_null(), pc.and_(table["correct"].is_valid(), labelled)))
        label, prediction = (read[name].to_numpy().astype(np.int64) for name in ("label", "prediction"))
        return cls(read["sample_id"], label, prediction, read["correct"].to_numpy().astype(bool))

    def shared(self, other: ClassTally) -> tuple[ClassTally, ClassTally]:
        """Return this tally and the other on the samples that both have, in one order."""
        if self.ids.equals(other.ids):
            return self, other
        import pyarrow.compute as pc

        places = pc.index_in(self.ids, value_set=other.ids.combine_chunks())
        mine = np.flatnonzero(places.is_valid().to_numpy())
        return self.take(mine), other.take(places.drop_null().to_numpy().astype(np.int64))

    def take(self, rows: Ints) -> ClassTally:
        return ClassTally(self.ids.take(rows), self.label[rows], self.prediction[rows], self.correct[rows])

    def share(self, label: int) -> Cell:
        """Return the share of a class that is right."""
        return figure_cell(share_of(self.correct[self.label == label]))

    def mistaken(self, label: int) -> list[tuple[int, int]]:
        """Return what samples of a class are mistaken for and how often, most often first."""
        taken = self.prediction[(self.label == label) & ~self.correct]
        which, often = np.unique(taken, return_counts=True)
        return sorted(zip(which.tolist(), often.tolist(), strict=True), key=lambda pair: (-pair[1], pair[0]))


class WeakClasses(Gatherer):
    """One table for each checkpoint on clean images and for each attack, of the classes that do significantly worse
    than all others; none where there is no such class, or samples are not independent."""

    def __init__(self, run: RunFolder) -> None:
        super().__init__(run)
        self.tables: list[Table] = []
        self._clean: dict[str, ClassTally] = {}
        self._names = self.manifest.data.class_names or ()

    def wants(self, checkpoint: str, condition: str) -> bool:
        return self.sample_groups is None and (condition == CLEAN.text or condition in self.manifest.claims)

    def needs(self, column: str) -> bool:
        return column in _COLUMNS

    def take(self, checkpoint: str, condition: str, read: pa.Table) -> None:
        tally, clean = ClassTally.of(read), None
        if condition == CLEAN.text:
            self._clean = {checkpoint: tally}  # the others are no longer needed
        elif checkpoint in self._clean:
            clean, tally = self._clean[checkpoint].shared(tally)
        else:
            return
        title = f"{checkpoint}: classes significantly below the rest {name_of(condition, 'sentence', self.manifest)}"
        self.tables += filter(None, [_weak(title, checkpoint, tally, clean, self._names)])


def _weak(
    title: str, checkpoint: str, tally: ClassTally, clean: ClassTally | None, names: Sequence[str]
) -> Table | None:
    """Return the classes that Fisher's exact test, one-sided and Holm-corrected over all classes, tells from all other
    samples. clean: the same samples without an attack, for one more column."""
    n = np.bincount(tally.label)
    wrong = np.bincount(tally.label[~tally.correct], minlength=len(n))
    judged = [place for place, size in enumerate(n.tolist()) if size >= FEWEST]
    tails = {size: hypergeometric_tail(len(tally.label), int(wrong.sum()), size) for size in {*n[judged].tolist()}}
    p_values = dict(zip(judged, holm([float(tails[n[place]][wrong[place]]) for place in judged]), strict=True))
    weak = sorted((p, place) for place, p in p_values.items() if p < LEVEL)
    rows = []
    for p, place in weak[:MOST]:
        before = [scaled(float(clean.correct[clean.label == place].mean()))] if clean else []
        cells = (*before, tally.share(place), p_value(p), _taken(tally, place, names))
        rows.append((class_name_of(place, names), count(int(n[place])), *cells))
    headings = ("class", "n", *(["clean %"] if clean else []), "accuracy % [95 %]", "p", "most often mistaken for")
    rare = int(((n > 0) & (n < FEWEST)).sum())
    parts = [
        f"The first {MOST} of {len(weak)}." if len(weak) > MOST else "",
        f"p: against all other samples (Fisher's exact test, one-sided), Holm-corrected over {len(judged)} classes.",
        f"{rare} {'class' if rare == 1 else 'classes'} with fewer than {FEWEST} samples left out." if rare else "",
    ]
    note = " ".join(filter(None, parts))
    return Table(title, headings, tuple(rows), (), note, checkpoint=checkpoint) if rows else None


def class_name_of(label: int, names: Sequence[str]) -> str:
    return str(names[label]) if 0 <= label < len(names) else str(label)


def _taken(tally: ClassTally, label: int, names: Sequence[str]) -> str:
    """Return `ring (3 of 4)`: the class predicted most often instead, how often, and all wrong predictions."""
    pairs = tally.mistaken(label)
    often, wrong = pairs[0][1], sum(count for _, count in pairs)
    most = [class_name_of(which, names) for which, count in pairs if count == often]
    classes = ", ".join(most[:2]) + (f" and {len(most) - 2} more" if len(most) > 2 else "")
    return f"{classes} ({often} of {wrong}{' each' if len(most) > 1 else ''})"
