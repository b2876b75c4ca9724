"""Compare methods, each of several trainings: whether another seed and other images would say the same.

The figure of a method is the mean over its trainings. Trainings and images are both samples of more of their kind, and
crossed: every training is asked about the same images. So variances come from the mean squares of a table without
replication, and Student's t has the degrees of freedom of Hillis (2007, Statistics in Medicine 26), as for readers and
cases in radiology: near those of trainings where these spread. Figures that are no mean over images, such as mIoU, add
the spread over trainings to the error of their images. Where the trainings of two methods have the same seeds, they are
paired by seed as well as by image.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, cast
from weakref import WeakKeyDictionary

import numpy as np
from msgspec.structs import replace as replace_field
from scipy.special import stdtr, stdtrit

from ..common.differences import STUDENT, Difference, rare_share_bound
from ..common.figure import STUDENT as OF_STUDENT
from ..common.figure import Figure
from ..common.groups import Groups, cluster_variance, count_units
from ..common.intervals import Floats, error_of_parts
from ..common.plugins import plugin_session
from ..data.metadata import Grouping
from ..display.format import counted, figure_cell, p_equals, p_value, scaled
from ..display.html import as_html
from ..display.table import Table
from ..display.text import finite_json
from ..errors import DamagedRecord, ProtocolError, RunError, unknown
from ..evaluations.aggregate import Results
from ..evaluations.condition import name_of
from ..evaluations.metrics import Cells, is_finite
from ..evaluations.records import align, common_groups, common_ids
from ..protocol.condition import split_list
from ..runs.folder import RunFolder
from ..runs.manifest import same_training
from ..tasks import metric_of
from ..tasks.task import task_of
from .comparison import (
    HEADINGS,
    MOST,
    Asked,
    Comparison,
    ComparisonRow,
    Pair,
    Tested,
    asked_results,
    by_mid_p,
    compared_keys,
    correct_together,
    pair_tests,
)
from .pairing import Side, intended_differences, paired_difference, refuse_incomparable
from .survey import written_results

if TYPE_CHECKING:
    import pandas as pd

Key = tuple[str, str]
"""A condition and a metric."""
_SEED = re.compile(r"(?:^|[-_./ ])(?:seed|s)[-_=]?(\d+)(?=$|[-_./ ])", re.IGNORECASE)
_NORMAL = 1.959963984540054


SINGLE = "One training of each method: a difference may be one of seeds."


@dataclass(frozen=True)
class Method(Side):
    """A method, called as a checkpoint, and its trainings, one or more. run: of the first of these."""

    sides: tuple[Side, ...] = ()

    @classmethod
    def of(cls, name: str, sides: Sequence[Side]) -> Method:
        return cls(sides[0].run, name, tuple(sides))

    @property
    def name(self) -> str:
        return self.checkpoint

    @property
    def trainings(self) -> str:
        """How many there are: `3 trainings`."""
        return f"{len(self.sides)} training{'s' * (len(self.sides) > 1)}"

    def forget(self) -> None:
        for side in self.sides:
            side.forget()

    @cached_property
    def seeds(self) -> tuple[int, ...] | None:
        """The seed of each training; None where one has none, or two have the same."""
        seeds = [_seed_of(side) for side in self.sides]
        distinct = tuple(seed for seed in seeds if seed is not None)
        return distinct if len({*distinct}) == len(self.sides) else None

    def ordered(self) -> Method:
        """Return it with its trainings in the order of their seeds."""
        if self.seeds is None:
            return self
        order = sorted(range(len(self.sides)), key=self.seeds.__getitem__)
        return Method.of(self.name, [self.sides[place] for place in order])

    def row(self, side: Side, key: Key) -> Figure | None:
        return next((row for row in side.results if row.key == key), None)

    def values(self, key: Key) -> list[float]:
        """Return the figure of each training, nan where one has none."""
        rows = [self.row(side, key) for side in self.sides]
        return [math.nan if row is None else row.value for row in rows]

    def figure(self, key: Key) -> Figure | None:
        """Return the mean over trainings, with an interval for other images and other trainings; that of one training
        is its own. None where a training has no such figure."""
        rows = [row for side in self.sides if (row := self.row(side, key)) is not None]
        if len(rows) < len(self.sides):
            return None
        if len(rows) == 1:
            return rows[0]
        findings = tuple(dict.fromkeys(finding for row in rows for finding in row.findings))
        mean = replace(rows[0], value=float(np.mean([row.value for row in rows])), low=math.nan, high=math.nan)
        mean = replace(mean, checkpoint=self.name, findings=findings, interval=OF_STUDENT, effect=math.nan)
        if (columns := sample_columns(self.sides, key)) is not None:
            values, groups = columns
            error, freedom = crossed_error([values], groups)
            value, reach = float(values.mean()), float(stdtrit(freedom, 0.975)) * error
            if not error > 0:  # all samples of all trainings are alike, as where an attack leaves nothing
                reach = rare_share_bound(count_units(groups, len(values))) if _is_share(key[1]) else math.nan
            least, most = metric_of(key[1]).ends
            low, high = max(value - reach, least), min(value + reach, most)  # nan stays where it is the first
            return replace(mean, value=value, n=len(values), low=low, high=high)
        errors = [(row.high - row.low) / 2 / _NORMAL for row in rows if row.has_interval]
        if len(errors) < len(rows):
            return mean
        error, freedom = error_of_parts(
            [_spread(self.values(key)), (float(np.mean(np.square(errors))), rows[0].n - 1.0)]
        )
        reach = float(stdtrit(freedom, 0.975)) * error if error else math.nan
        return replace(mean, low=mean.value - reach, high=mean.value + reach)

    def less(self, other: Method, key: Key) -> Difference:
        """Return how its figure differs from another method's. Raises RunError where the two cannot be paired."""
        paired = other.seeds is not None and self.seeds is not None and sorted(other.seeds) == sorted(self.seeds)
        first, second = (other.ordered(), self.ordered()) if paired else (other, self)
        if len(first.sides) == len(second.sides) == 1:
            return paired_difference(first.sides[0], second.sides[0], *key)
        if (columns := sample_columns((*first.sides, *second.sides), key)) is not None:
            values, groups = columns
            found = crossed(values[:, : len(first.sides)], values[:, len(first.sides) :], groups, paired)
            if found.value or not math.isnan(found.ci_low) or not _is_share(key[1]):
                return found
            reach = rare_share_bound(count_units(groups, len(values)))
            return replace(found, ci_low=-reach, ci_high=reach)
        pairs = [(one, two) for one in first.sides for two in second.sides]
        if paired:
            pairs = list(zip(first.sides, second.sides, strict=True))
        differences = [paired_difference(one, two, *key) for one, two in pairs]
        errors = [(each.ci_high - each.ci_low) / 2 / _NORMAL for each in differences]
        by_training = (
            [[each.value for each in differences]] if paired else [each.values(key) for each in (first, second)]
        )
        spreads = [_spread(values) for values in by_training]
        before, after = (float(np.mean(method.values(key))) for method in (first, second))
        error, freedom = error_of_parts([*spreads, (float(np.mean(np.square(errors))), differences[0].n - 1.0)])
        value, sides = after - before, (before, after, STUDENT, differences[0].groups)
        if not error > 0:
            return Difference(value, differences[0].n, math.nan, math.nan, math.nan, *sides)
        reach, p = float(stdtrit(freedom, 0.975)) * error, 2 * float(stdtr(freedom, -abs(value) / error))
        return Difference(value, differences[0].n, value - reach, value + reach, p, *sides)


def _is_share(metric: str) -> bool:
    return metric_of(metric).ends == (0.0, 1.0)


def crossed_error(parts: Sequence[Floats], groups: Groups | None = None) -> tuple[float, float]:
    """Return the standard error of a mean over images and trainings, and its degrees of freedom. parts: (n, T), of the
    same images; of two, the error of the second mean less the first. groups: of the images."""
    n, seeds, rests, freedoms = len(parts[0]), list[float](), list[float](), list[float]()
    for part in parts:
        count = part.shape[1]
        by_image, by_training = part.mean(axis=1), part.mean(axis=0)
        rest = np.square(part - by_image[:, None] - by_training + part.mean()).sum() / ((n - 1) * (count - 1))
        of_seeds = max(n * float(by_training.var(ddof=1)), float(rest))  # no variance of trainings is below 0
        seeds.append(of_seeds / (n * count))
        rests.append(float(rest) / (n * count))
        freedoms.append(count - 1.0)
    image = parts[0].mean(axis=1) if len(parts) == 1 else parts[1].mean(axis=1) - parts[0].mean(axis=1)
    of_images = float(image.var(ddof=1)) / n if groups is None else cluster_variance(image, groups)
    squared = sum(seeds) + max(of_images - sum(rests), 0.0)
    below = sum(each**2 / freedom for each, freedom in zip(seeds, freedoms, strict=True))
    return math.sqrt(squared), squared**2 / below if below else math.inf


def crossed(before: Floats, after: Floats, groups: Groups | None, paired: bool) -> Difference:
    """Return how the mean of figures (n, T) differs from that of others, (n, U), of the same images; paired: by
    training, too."""
    parts = [after - before] if paired else [before, after]
    error, freedom = crossed_error(parts, groups)
    means = float(before.mean()), float(after.mean())
    value, sides = means[1] - means[0], (*means, STUDENT, groups.count if groups else 0)
    if not error > 0:
        return Difference(value, len(before), math.nan, math.nan, math.nan if value else 1.0, *sides)
    reach, p = float(stdtrit(freedom, 0.975)) * error, 2 * float(stdtr(freedom, -abs(value) / error))
    return Difference(value, len(before), value - reach, value + reach, p, *sides)


def _spread(values: Sequence[float]) -> tuple[float, float]:
    """Return the squared error of a mean of trainings, and its degrees of freedom."""
    return float(np.var(values, ddof=1)) / len(values), len(values) - 1.0


def sample_columns(sides: Sequence[Side], key: Key) -> tuple[Floats, Any] | None:
    """Return the figure of each sample of each training, (n, T), and the groups of samples; None where the figure is no
    mean over samples, or not finite."""
    condition, metric = key
    task = task_of(sides[0].manifest)
    try:
        read = [task.per_sample(side, condition, metric) for side in sides]
    except DamagedRecord:
        raise
    except RunError:
        return None
    ids = common_ids([each for each, _ in read])
    if not len(ids):
        return None
    values = np.stack([align(each, figures, ids) for each, figures in read], axis=1)
    return (values, common_groups(sides[0], sides[-1], ids)) if np.isfinite(values).all() else None


def _seed_of(side: Side) -> int | None:
    seed = side.described.to_plain()["metadata"].get("seed")
    if isinstance(seed, int | str) and str(seed).isdecimal():
        return int(seed)
    numbers = _SEED.findall(f"{side.run.path.name}/{side.checkpoint}")
    return int(numbers[-1]) if numbers else None


def read_methods(texts: Sequence[str]) -> dict[str, list[str]]:
    """Return the patterns by method of `quest=quest-s*,other`. Raises ProtocolError for another form."""
    methods: dict[str, list[str]] = {}
    for text in texts:
        name, equals, patterns = text.partition("=")
        some = [each.strip() for each in patterns.split(",") if each.strip()]
        if not (equals and name.strip() and some):
            raise ProtocolError(f"--method {text}: expected NAME=CHECKPOINTS, such as quest=quest-s*")
        methods.setdefault(name.strip(), []).extend(some)
    return methods


def methods_of(runs: Sequence[RunFolder], given: Mapping[str, str | Sequence[str]]) -> list[Method]:
    """Return methods of the checkpoints of runs. given: by name, patterns for names of checkpoints, or of their run
    folders. Raises ProtocolError where a pattern fits none, a checkpoint is in two methods, a file twice in one, or
    trainings are of one method only."""
    if not isinstance(given, Mapping) or not all(given.values()):
        raise ProtocolError("methods: expected names of checkpoints by method, such as {'quest': 'quest-s*'}")
    every = [Side(run, name) for run in runs for name in run.manifest.names]
    taken: dict[int, str] = {}
    methods = []
    for name, patterns in given.items():
        chosen: dict[int, Side] = {}
        for pattern in split_list(patterns):
            fitting = {id(side): side for side in every if _fits(side, pattern)}
            if not fitting:
                names = dict.fromkeys(side.checkpoint for side in every)
                raise ProtocolError(f"--method {name}: {unknown('checkpoint', pattern, names)}")
            chosen |= fitting
        for key, side in chosen.items():
            if taken.setdefault(key, name) != name:
                raise ProtocolError(f"{side.checkpoint} is of {taken[key]} and of {name}; expected one method")
        if same := same_training(replace_field(side.described, method=name) for side in chosen.values()):
            raise ProtocolError(f"{same} are the same file, which is no second training; leave one out")
        methods.append(Method.of(name, [*chosen.values()]))
    single = [method.name for method in methods if len(method.sides) == 1]
    if single and len(single) < len(methods):
        several = next(method for method in methods if len(method.sides) > 1)
        what = f"{single[0]} has one training and {several.name} {len(several.sides)}"
        raise ProtocolError(f"{what}: how much trainings of {single[0]} differ is unknown; give two or more of each")
    return methods


def _fits(side: Side, pattern: str) -> bool:
    path = side.run.path.as_posix()
    texts = side.checkpoint, path, f"{path}/{side.checkpoint}"
    return pattern in texts or any(fnmatchcase(text, pattern) for text in texts)


@dataclass(frozen=True)
class ComparedMethods:
    """Methods and how all differ from the first. unpaired: lines on what could not be compared."""

    methods: tuple[Method, ...]
    comparison: Comparison
    unpaired: tuple[str, ...] = ()
    all_pairs: bool = True

    @property
    def rows(self) -> tuple[ComparisonRow, ...]:
        """The tests of each method with the first."""
        return self.comparison.rows

    @property
    def single(self) -> bool:
        """Whether each method has one training."""
        return all(len(method.sides) == 1 for method in self.methods)

    @property
    def trainings(self) -> str:
        """How many trainings methods have: `3 trainings each`, or `2 to 5 trainings each`."""
        counts = sorted({len(method.sides) for method in self.methods})
        count = " to ".join(dict.fromkeys((str(counts[0]), str(counts[-1]))))
        return f"{count} training{'s' * (count != '1')} each"

    @property
    def sentence(self) -> str:
        """Which method is better under what, and whether seeds are part of it."""
        significant, every = [row for row in self.rows if row.verdict], len(self.rows) + len(self.comparison.others)
        if self.single:
            return SINGLE
        if not significant:
            names = [method.name for method in self.methods]
            those = " and ".join(names) if len(names) == 2 else f"{len(names)} methods"
            return f"No significant difference between {those} in {every} tests over trainings and images."
        row = min(significant, key=lambda each: each.p_value)
        metric, manifest = metric_of(row.key[1]), row.second.manifest
        size = scaled(abs(row.difference.value), metric.scale)
        where = name_of(row.key[0], "sentence", manifest)
        rest = f"; {len(significant)} of {every} tests are significant" if len(significant) > 1 else ""
        unit = " points" if metric.scale == 100 else ""
        what = f"{metric.word} {size}{unit}, {p_equals(row.p_value)}"
        return f"{row.second.checkpoint} is {row.verdict} than {row.first.checkpoint} {where} ({what}){rest}."

    @property
    def tables(self) -> list[Table]:
        """A table of differences for each method but the first, and one of all trainings."""
        base, *others = self.methods
        every = len(self.rows) + len(self.comparison.others)
        tables = []
        for method in others:
            headings = (*HEADINGS[:3], base.name, f"{method.name} [95 %]", *HEADINGS[5:])
            rows = tuple(_cells(row) for row in self.rows if row.second is method)
            title = f"{method.name} against {base.name}: {_trainings(base, method)}"
            tests = ", ".join(dict.fromkeys(row.difference.test for row in self.rows if row.difference.test))
            note = f"{_OF_FILES if self.single else _OF_TRAININGS} {_NOTE.format(tests, every)}"
            tables.append(Table(title, headings, rows, (), note, method.name, ("p", "n", "p (Holm)")).said_once("n"))
        keys = dict.fromkeys(row.key for row in self.rows)
        lines = tuple(line for key in keys for line in self._trainings_of(key))
        names = (f"{each.name}: {', '.join(side.checkpoint for side in each.sides)}" for each in self.methods)
        of_each = ("condition", "figure", "method", "mean [95 %]", "trainings")
        return [*tables, Table(f"Trainings ({'; '.join(names)})", of_each, lines, keys=2)]

    def _trainings_of(self, key: Key) -> Iterator[tuple[str, ...]]:
        manifest, metric = self.methods[0].sides[0].manifest, metric_of(key[1])
        for method in self.methods:
            each = ", ".join(scaled(value, metric.scale) if is_finite(value) else "–" for value in method.values(key))
            cell = figure_cell(method.figure(key), metric.scale)
            yield name_of(key[0], "table", manifest), metric.label or metric.name, method.name, cell, each

    def to_dict(self) -> dict[str, Any]:
        """Return what the file of `robustkit compare --method … --json` holds."""
        return {
            "methods": {
                m.name: [{"run": str(s.run.path), "checkpoint": s.checkpoint} for s in m.sides] for m in self.methods
            },
            "rows": [_plain(row) for row in self.rows],
            "sentence": self.sentence,
            "unpaired": list(self.unpaired),
        }

    def to_json(self) -> str:
        """Return the same as JSON."""
        return finite_json(self.to_dict())

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each difference."""
        import pandas as pd

        return pd.DataFrame([_plain(row) for row in self.rows])

    def _repr_html_(self) -> str:
        return as_html(self.tables, (self.sentence, *self.unpaired))


_OF_TRAININGS = "Means over trainings; intervals and tests are for other images and other trainings, which are crossed."
_OF_FILES = "One training of each: intervals and tests are for other images only."
_NOTE = (
    "The difference is value minus the first method's, in points where they are in %. p is from {}; Holm's p corrects "
    "for {} tests."
)


def _trainings(base: Method, method: Method) -> str:
    same = len(base.sides) == len(method.sides)
    counts = f"{base.trainings} each" if same else f"{len(method.sides)} and {base.trainings}"
    paired = base.seeds is not None and method.seeds is not None and sorted(base.seeds) == sorted(method.seeds)
    return f"{counts}, paired by image{' and by seed' if paired and len(base.sides) > 1 else ''}"


def _cells(row: ComparisonRow) -> tuple[str, ...]:
    metric, difference = metric_of(row.key[1]), row.difference
    gap = Figure(difference.value, difference.n, difference.ci_low, difference.ci_high)
    label = name_of(row.key[0], "table", row.second.manifest)
    figures = (
        figure_cell(cast(Method, row.second).figure(row.key), metric.scale),
        figure_cell(gap, metric.scale, sign="+"),
    )
    tested = p_value(difference.p_value), p_value(row.p_value), row.verdict
    first = scaled(difference.first, metric.scale)
    return (label, metric.label or metric.name, counted(difference), first, *figures, *tested)


def _plain(row: ComparisonRow) -> dict[str, Any]:
    columns = {"first": "first_value", "second": "second_value"}
    figures = {columns.get(name, name): value for name, value in row.to_dict().items() if name != "published"}
    return {"first": row.first.checkpoint, "second": row.second.checkpoint} | figures


@plugin_session()
def compare_methods(
    *runs: RunFolder | str | Path,
    methods: Mapping[str, str | Sequence[str]] | None = None,
    groups: str | None = None,
    groups_from: str | None = None,
    mid_p: bool = False,
) -> ComparedMethods:
    """Compare methods, each of several trainings, on the same images: from records only.

    Args:
        *runs: run folders that hold the checkpoints.
        methods: by name, the names of its checkpoints, or patterns for them or for their run folders, such as
            `{"quest": "quest-s*", "standard": ["standard-s0", "standard-s1"]}`; if left out, as the runs name them. All
            differ from the first.
        groups: a column of the runs' metadata: samples of one value may resemble each other.
        groups_from: a regular expression that finds the group of a sample in its id.
        mid_p: as of `robustkit.compare`, where methods have one training each.

    Returns:
        Tables of differences and of all trainings; a notebook shows them.

    Raises:
        ProtocolError: a pattern that fits no checkpoint, one method, or trainings of one method only.
        RunError: no run, or runs that cannot be compared.

    Example:
        >>> files = ["zoo:shapes-vit-standard", "zoo:shapes-vit-quest"]
        >>> options = dict(attacks="none", limit=8, setup_check=False, out="runs/pair")
        >>> run = robustkit.audit(files, "embedded:shapes", **options)
        >>> robustkit.compare_methods(run, methods={"standard": "*-standard", "quest": "*-quest"}).sentence
        'One training of each method: a difference may be one of seeds.'
    """
    grouping = Grouping.of(groups, groups_from)
    folders = [RunFolder.opened(each, grouping) for each in runs]
    if methods is None and not (methods := name_methods(folders)):
        where = ", ".join(str(run.path) for run in folders)
        raise ProtocolError(f"{where}: not each checkpoint has a method; give --method NAME=CHECKPOINTS twice or more")
    found = _compared(methods_of(folders, methods), asked_results(written_results(folders[0])))
    if mid_p and not found.single:
        raise ProtocolError("--mid-p: methods of several trainings have no McNemar's test; leave it out")
    return replace(found, comparison=by_mid_p(found.comparison)) if mid_p else found


def name_methods(runs: Iterable[RunFolder | Path]) -> dict[str, list[str]]:
    """Return the checkpoints by method that runs name; none where one has no method, all have the same, or one method
    has a single training and another several, since how much trainings of the one differ is unknown."""
    methods: dict[str, list[str]] = {}
    for run in (each if isinstance(each, RunFolder) else RunFolder.existing(each) for each in runs):
        if len(run.manifest.names) > sum(map(len, run.manifest.methods.values())):
            return {}
        for name, checkpoints in run.manifest.methods.items():
            methods.setdefault(name, []).extend(f"{run.path.as_posix()}/{each}" for each in checkpoints)
    uneven = {1} < {len(checkpoints) for checkpoints in methods.values()}
    return methods if len(methods) > 1 and not uneven else {}


def _compared(methods: Sequence[Method], front: Sequence[Asked]) -> ComparedMethods:
    """Return all tests of methods: of each with the first, and of all other pairs by what the first page shows."""
    if len(methods) < 2:
        names = ", ".join(method.name for method in methods)
        raise ProtocolError(f"one method, {names}; expected two or more: give --method again")
    base, left_out, pairs = methods[0], dict[str, None](), list[Pair]()

    def tests(first: Method, second: Method, keys: Iterable[Key]) -> Iterator[ComparisonRow]:
        for key in keys:
            try:
                yield ComparisonRow(first, second, *key, second.less(first, key))
            except DamagedRecord:
                raise
            except RunError as fault:
                left_out[str(fault)] = None
            first.forget()
            second.forget()

    for method in methods[1:]:
        for side in (*base.sides[1:], *method.sides):
            if common := [text for text in base.sides[0].conditions if text in side.conditions]:
                refuse_incomparable(base.sides[0], side, common)
            else:  # as while an audit runs
                left_out[f"{base.sides[0].checkpoint} and {side.checkpoint} have no condition in common"] = None
        rows = tests(base, method, compared_keys(base.sides[0], method.sides[0]))
        pairs.append(Pair(base, method, tuple(rows)))
    paired = {row.key for pair in pairs for row in pair.rows}
    keys = [entry.key for entry in front if entry.key in paired]
    for first, side in ((method.sides[0], side) for method in methods for side in method.sides[1:]):
        changes = intended_differences(first.described, side.described)
        if odd := [text for name, text in changes.items() if name != "weights"]:
            left_out[f"{first.checkpoint} and {side.checkpoint} are of one method: {', '.join(odd)}"] = None
    all_pairs = len(methods) <= MOST
    others = [row for two in combinations(methods[1:], 2) for row in tests(*two, keys)] if all_pairs else []
    return ComparedMethods(tuple(methods), correct_together(pairs, None, others), tuple(left_out), all_pairs)


@dataclass(frozen=True)
class MethodResults(Results):
    """Results of a run whose checkpoints are trainings of methods, as if each method were a checkpoint."""

    kind: ClassVar[str] = "methods"

    compared: ComparedMethods = field(kw_only=True)

    @property
    def names(self) -> list[str]:
        return [method.name for method in self.compared.methods]

    @cached_property
    def cells(self) -> Mapping[str, Cells]:
        return {method.name: _MethodCells(method) for method in self.compared.methods}


class _MethodCells(Mapping[Key, Figure]):
    """The figures of a method, each made when it is asked for."""

    def __init__(self, method: Method) -> None:
        self.method, self.made = method, dict[Key, Figure | None]()

    def __getitem__(self, key: Key) -> Figure:
        if key not in self.made:
            self.made[key] = self.method.figure(key)
            self.method.forget()
        if (figure := self.made[key]) is None:
            raise KeyError(key)
        return figure

    def __iter__(self) -> Iterator[Key]:
        return (row.key for row in self.method.sides[0].results if row.key in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)


_BY_METHOD: WeakKeyDictionary[RunFolder, MethodResults] = WeakKeyDictionary()


def by_method(results: Results) -> Results:
    """Return the results of a run by the methods that it names; of a run without two of them the same."""
    view, methods_of_run = _BY_METHOD.get(results.run), results.manifest.methods
    if not name_methods([results.run]) or isinstance(results, MethodResults):
        return results
    if view is None or list(view.rows) != list(results.rows):
        methods = [Method.of(name, [Side(results.run, each) for each in some]) for name, some in methods_of_run.items()]
        compared = _compared(methods, asked_results(results))
        view = MethodResults(results.run, results.rows, results.unread, results.gatherers, compared=compared)
        _BY_METHOD[results.run] = view
    return view


def tests_of(results: Results) -> Tested:
    """Return the tests of a run's checkpoints, or of its methods."""
    if not isinstance(results, MethodResults):
        return pair_tests(results)
    comparison = results.compared.comparison
    return Tested(comparison, (*comparison.rows, *comparison.others), results.compared.all_pairs)


def compare_named(runs: Sequence[Path], texts: Sequence[str], **options: Any) -> ComparedMethods:
    """Compare the methods of `robustkit compare --method`. Raises ProtocolError for an option that means nothing."""
    if idle := [f"--{name}" for name in ("checkpoints", "against", "reference") if options.pop(name)]:
        raise ProtocolError(f"{', '.join(idle).replace('checkpoints', 'checkpoint')} with --method: leave one out")
    return compare_methods(*runs, methods=read_methods(texts) or None, **options)
