"""A table for a paper: checkpoints as rows, figures as columns; bold is what tests tell to be best.

Each figure's best checkpoint is tested against every other on the samples that both have. Which one is best is seen
after the fact, so Holm's correction counts all pairs that might have been tested, over all figures of the table.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from ...common.differences import holm
from ...common.figure import Figure
from ...common.finding import Finding
from ...common.plugins import plugin_session
from ...data.metadata import Grouping
from ...display.format import Cell, amount, figure_cell, scaled
from ...display.html import as_html
from ...display.table import Table, as_csv, as_latex, as_markdown
from ...display.text import capital, escape_markdown, finite_json
from ...errors import DamagedRecord, ProtocolError, RunError, unknown
from ...evaluations.aggregate import Results
from ...evaluations.condition import PUBLISHED_SETS, estimated, kind_of, matches, name_of, pattern_of
from ...evaluations.metrics import is_finite, scored_by
from ...evaluations.presenting import Concerned, raised_once
from ...evaluations.records import check_plugins
from ...protocol.condition import CLEAN, ON, samples_named, split_list
from ...results.comparison import HELD, LEVEL, Asked, asked_results
from ...results.methods import Method, methods_of, name_methods
from ...results.pairing import Side, comparison_findings, paired_difference, refuse_incomparable
from ...runs.folder import RunFolder
from ...tasks import metric_of, metrics
from ...tasks.task import task_of

if TYPE_CHECKING:
    import pandas as pd

SETS = {
    "quest": (
        "clean,fgsm,pgd,spsa,autoattack,in-c:mean_error,"
        "in-c:mce,cam(agcam,mode=box):cam_pixel_accuracy,cam(agcam,mode=box):cam_iou,cam(agcam,mode=box):cam_dice,"
        "cam(agcam,mode=box):cam_iou_over_control"
    )
}
"""Figures by the name of the published tables that have them; a run need not have all."""
FORMATS = ("latex", "markdown", "csv", "html")
_LINE = 88  # characters of a row that fit the line of a page
_DATA = {"cifar10-test": "CIFAR-10 test", "imagenet-val": "ImageNet validation"}


class PaperCell(Cell):
    """A figure in a table for a paper. p_value: Holm's, against the best of its kind; nan for the best, and where no
    test was made."""

    p_value: float = math.nan


@dataclass(frozen=True)
class PaperTable:
    """A table for a paper: checkpoints as rows and figures as columns, or turned. Its title is the caption; its flags
    are doubts about its figures, and how its runs differ, to be read before it is published."""

    table: Table
    intervals: bool = False
    """Whether its figures have their 95 % intervals."""

    @property
    def caption(self) -> str:
        """What the table shows, and how marks are read."""
        return self.table.title

    @property
    def flags(self) -> tuple[str, ...]:
        """Doubts about its figures."""
        return self.table.flags

    @property
    def headings(self) -> tuple[str, ...]:
        """The headings of its columns, without the first."""
        return self.table.headings[1:]

    @property
    def names(self) -> tuple[str, ...]:
        """What its rows are called."""
        return tuple(row[0] for row in self.table.rows)

    @property
    def cells(self) -> tuple[tuple[PaperCell, ...], ...]:
        """The figures of each row."""
        return tuple(tuple(cell for cell in row if isinstance(cell, PaperCell)) for row in self.table.rows)

    def turned(self) -> PaperTable:
        """Return the table with rows and columns exchanged."""
        headings, *rows = zip(("", *self.headings), *self.table.rows, strict=True)
        return replace(self, table=replace(self.table, headings=headings, rows=tuple(rows)))

    def to_latex(self, label: str = "tab:robustness") -> str:
        """Return a table environment with the rules of booktabs, scaled to the line where it is wide. label: for
        \\ref."""
        text = as_latex(self.table, label)
        widths = (max(map(len, column)) for column in zip(self.table.headings, *self.table.rows, strict=True))
        if sum(widths) + 2 * len(self.table.headings) <= _LINE:
            return text
        text = text.replace("\\begin{tabular}", "\\resizebox{\\linewidth}{!}{%\n\\begin{tabular}")
        text = text.replace("\\end{tabular}", "\\end{tabular}}")
        return text.replace("% \\usepackage{booktabs}", "% \\usepackage{booktabs}\n% \\usepackage{graphicx}", 1)

    def to_markdown(self) -> str:
        """Return a table of GitHub's Markdown, and its caption below."""
        return f"{as_markdown(self.table)}\n\n{escape_markdown(self.caption)}\n"

    def to_html(self) -> str:
        """Return a table element, without styles of its own."""
        return f"{as_html([replace(self.table, flags=())])}\n"

    _repr_html_ = to_html

    def to_csv(self) -> str:
        """Return headings and figures without marks, with the minus sign that programs read; with intervals, their ends
        in columns of their own."""
        return as_csv(self.table, self.intervals)

    def _records(self) -> list[dict[str, Any]]:
        every = ((cell, cell.figure) for row in self.cells for cell in row)
        return [
            {**figure.to_plain(), "p_holm": cell.p_value, "mark": cell.mark}
            for cell, figure in every
            if figure is not None
        ]

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each figure: that of `Run.results`, its p (Holm) against the best, and its mark."""
        import pandas as pd

        return pd.DataFrame(self._records())

    def to_json(self) -> str:
        """Return caption, flags and figures; None for what is not finite."""
        return finite_json({"caption": self.caption, "flags": self.flags, "figures": self._records()})

    def to(self, format: str) -> str:
        """Return the table in a format. Raises ProtocolError for one that is not of `FORMATS`."""
        if format not in FORMATS:
            raise ProtocolError(unknown("format", format, FORMATS))
        text: str = getattr(self, f"to_{format}")()
        return text


@dataclass(frozen=True)
class _Line:
    """A checkpoint, and its results by condition and metric; or a method, with one of its trainings."""

    name: str
    side: Side
    rows: Mapping[tuple[str, str], Figure]
    method: Method | None = None

    @classmethod
    def of_method(cls, method: Method) -> _Line:
        keys = dict.fromkeys(row.key for row in method.sides[0].results)
        rows = {key: row for key in keys if (row := method.figure(key)) is not None}
        return cls(method.name, method.sides[0], rows, method)

    def doubts(self, key: tuple[str, str]) -> tuple[Finding, ...]:
        return tuple(each for each in self.rows[key].findings if each.counts) if key in self.rows else ()


Axis = str | Iterable[str] | None


@plugin_session()
def table(
    *runs: RunFolder | str | Path,
    rows: Axis = None,
    columns: Axis = None,
    intervals: bool = False,
    turned: bool = False,
    mark: bool = False,
    groups: str | None = None,
    groups_from: str | None = None,
    methods: Mapping[str, str | Sequence[str]] | None = None,
) -> PaperTable:
    """Return a table for a paper: the checkpoints of runs by what they were evaluated under.

    Args:
        *runs: run folders, whose checkpoints follow each other.
        rows: what the rows are: `checkpoints` or some of their names, `conditions`, a set such as `quest`, or
            conditions as in a policy, each by its own figures or one of them: `pgd`, `in-c:mce`, `clean:iou` for all
            classes of a segmenter. Usually checkpoints.
        columns: likewise; what the rows are not.
        intervals: with 95 % intervals.
        turned: with rows and columns exchanged.
        mark: bold is the best of each figure, and underlined what no test tells from it.
        groups: a column of the runs' metadata: samples of one value may resemble each other.
        groups_from: a regular expression that finds the group of a sample in its id.
        methods: as of `robustkit.compare_methods`: rows are methods, means over their trainings. Left out, those that
            the runs name; `rows="checkpoints"` shows each training.

    Returns:
        A table, which `to_latex` and its siblings write.

    Raises:
        ProtocolError: rows and columns of the same kind, or a name that no run has.
        RunError: a folder that is no run, or damaged records.

    Example:
        >>> table = robustkit.table("runs/reference", columns="clean,fgsm")
        >>> table.headings, table.names
        (('clean', 'FGSM'), ('shapes-vit-quest',))
    """
    lines, front = list[_Line](), dict[tuple[str, str], Asked]()
    grouping = Grouping.of(groups, groups_from)
    for run in (RunFolder.opened(each, grouping) for each in runs):
        check_plugins(run.manifest)
        sides = [Side(run, name) for name in run.manifest.names]
        lines += (_Line(s.checkpoint, s, {(row.condition, row.metric): row for row in s.results}) for s in sides)
        results = Results(run, [row for side in sides for row in side.results])
        front = {entry.key: entry for entry in asked_results(results)} | front
    folders = list({id(line.side.run): line.side.run for line in lines}.values())
    if methods is None and "checkpoints" not in (rows, columns):
        methods = name_methods(folders)
    if methods:
        lines = [_Line.of_method(method) for method in methods_of(folders, methods)]
    several = [line.name for line in lines]
    lines = [
        replace(line, name=f"{line.name} ({line.side.run.path.name})") if several.count(line.name) > 1 else line
        for line in lines
    ]
    chosen = [_axis(option, given, lines, front) for option, given in (("rows", rows), ("columns", columns))]
    if len({type(axis) for axis in chosen}) == 1 and chosen[0] is not None:
        kind = "checkpoints" if isinstance(chosen[0], list) else "conditions"
        raise ProtocolError(f"rows and columns are both {kind}; expected checkpoints as one of them: leave one out")
    names = next((axis for axis in chosen if isinstance(axis, list)), None)
    figures = next((axis for axis in chosen if isinstance(axis, tuple)), tuple(front.values()))
    lines = lines if names is None else [line for name in names for line in lines if line.name == name]
    figures = tuple(entry for entry in figures if any(entry.key in line.rows for line in lines))
    if not figures:
        raise RunError("no figure is known of each training of a method; rerun the audit until it completes")
    table = _made(lines, figures, intervals, mark)
    return table.turned() if turned != (isinstance(chosen[0], tuple) or isinstance(chosen[1], list)) else table


def _axis(
    option: str, axis: Axis, lines: Sequence[_Line], front: Mapping[tuple[str, str], Asked]
) -> list[str] | tuple[Asked, ...] | None:
    """Return names of checkpoints as a list, or figures as a tuple; None where nothing is given."""
    if axis is None:
        return None
    items = split_list(axis)
    if not items:
        raise ProtocolError(f"--{option} is empty; name checkpoints or conditions, or leave it out")
    names = [line.name for line in lines]
    if items == ["checkpoints"]:
        return names
    if all(item in names and item not in SETS for item in items):
        return items
    if items == ["conditions"]:
        return tuple(front.values())
    sets = [item for item in items if item in SETS]
    of_sets = {item for name in sets for item in split_list(SETS[name])}
    figures = dict[tuple[str, str], Asked]()
    for item in (each for name in items for each in (split_list(SETS[name]) if name in SETS else [name])):
        some = {entry.key: entry for entry in _named(item, lines, front)}
        if not (some or item in of_sets):
            choices = {
                *names,
                *SETS,
                "checkpoints",
                "conditions",
                *(kind_of(text) for line in lines for text, _ in line.rows),
            }
            raise ProtocolError(f"--{option}: {unknown('checkpoint or condition', item, choices)}")
        figures |= some
    if not figures:
        members = ", ".join(SETS[name] for name in sets)
        raise ProtocolError(
            f"--{option} {items[0]}: the runs have none of {members}; audit one of these, or name others"
        )
    return tuple(figures.values())


def _named(item: str, lines: Sequence[_Line], front: Mapping[tuple[str, str], Asked]) -> Iterator[Asked]:
    """Yield the figures that an item names; of a condition without one those of the first page, else its first."""
    text, _, metric = item.rpartition(":")
    of_classes = metric == "iou"
    text, metric = (text, metric) if of_classes or metric in metrics() or metric.startswith("iou(") else (item, "")
    pattern, seen = pattern_of(text), set[str]()
    for line in lines:
        for key in line.rows:
            condition, figure = key
            whole = estimated(*key) or condition.replace(f",{ON}={samples_named(condition)}", "")
            if not (matches(pattern, whole) or matches(pattern, condition)):
                continue
            is_first = key in front or (condition not in seen and not any(condition == text for text, _ in front))
            is_named = figure.startswith("iou(") if of_classes else figure == metric
            if is_named if metric else is_first:
                seen.add(condition)
                yield front.get(key) or Asked(*key, name_of(condition, "table", line.side.manifest))


# Cells


@dataclass
class _Tests:
    """What paired tests say: of a checkpoint's figure its mark, and Holm's p against the best. count: of all pairs that
    might have been tested. left: the figures whose checkpoints cannot be paired by sample."""

    marks: dict[tuple[str, tuple[str, str]], tuple[Literal["best", "close", ""], float]]
    count: int = 0
    left: list[Asked] = field(default_factory=list)

    @classmethod
    def of(cls, lines: Sequence[_Line], figures: Sequence[Asked], may_test: bool) -> _Tests:
        tests, raw = cls({}), dict[tuple[str, tuple[str, str]], float]()
        for entry in figures:
            key, better = entry.key, metric_of(entry.metric).better
            present = [line for line in lines if key in line.rows and is_finite(line.rows[key].value)]
            if len(present) < 2 or not better:
                continue
            values = [better * line.rows[key].value for line in present]
            best = present[values.index(max(values))]
            others = [line for line, value in zip(present, values, strict=True) if value < max(values)]
            tests.marks |= {(line.name, key): ("best", math.nan) for line in present if line not in others}
            p_values = {line.name: _p_value(best, line, key) if may_test else math.nan for line in others}
            if any(map(math.isfinite, p_values.values())):
                tests.count += math.comb(len(present), 2)
                raw |= {(name, key): p_value for name, p_value in p_values.items()}
            elif others:
                tests.left.append(entry)
            if sum(line.side.manifest.data.n for line in present) > HELD:
                for line in present:
                    line.side.forget()
        adjusted = holm([*raw.values(), *[math.nan] * (tests.count - len(raw))])
        for place, p_value in zip(raw, adjusted, strict=False):
            tests.marks[place] = ("close" if p_value >= LEVEL else "", p_value)
        return tests

    def keep_significant(self) -> None:
        """Mark only the best of figures in which it is significantly better than some other."""
        beaten = {key for (_, key), (_, p_value) in self.marks.items() if p_value < LEVEL}
        for (name, key), (mark, p_value) in self.marks.items():
            self.marks[name, key] = ("best" if mark == "best" and key in beaten else "", p_value)


def _p_value(first: _Line, second: _Line, key: tuple[str, str]) -> float:
    """Return the p-value of a difference; nan where its samples cannot be paired."""
    try:
        if first.method is not None and second.method is not None:
            return second.method.less(first.method, key).p_value
        return paired_difference(first.side, second.side, *key).p_value
    except DamagedRecord:
        raise
    except RunError:
        return math.nan


def _apart(lines: Sequence[_Line]) -> Iterator[tuple[str, bool]]:
    """Yield how the runs of the table differ, besides in their checkpoints, and whether that forbids a test."""
    first, *others = (line.side for line in lines)
    for other in (side for side in others if side.run is not first.run):
        common = [condition for condition in first.conditions if condition in other.conditions]
        try:
            refuse_incomparable(first, other, common)
        except RunError as fault:
            yield f"not tested: {str(fault).partition(';')[0]}", True
        else:
            who = f"{other.run.path.name} and {first.run.path.name}"
            yield from ((f"{who}: {line}", False) for line in comparison_findings(first, other, common))


def _made(lines: Sequence[_Line], figures: Sequence[Asked], intervals: bool, mark: bool) -> PaperTable:
    apart = list(dict.fromkeys(_apart(lines)))
    tests = _Tests.of(lines, figures, not any(forbidden for _, forbidden in apart))
    if not mark:
        tests.keep_significant()
    cells, flagged = list[tuple[PaperCell, ...]](), list[Concerned]()
    for line in lines:
        doubts = {entry.key: line.doubts(entry.key) for entry in figures if entry.key in line.rows}
        shared = set[str]().union(*doubts.values()).intersection(*doubts.values())
        cells.append(
            tuple(
                _cell(line, entry.key, tests, bool({*doubts.get(entry.key, ())} - shared), intervals)
                for entry in figures
            )
        )
        flagged += (
            Concerned(line.name, condition, flags, line.side.manifest) for (condition, _), flags in doubts.items()
        )
    names = tuple(line.name for line in lines)
    flags = [flag.line for flag in raised_once(flagged, dict(zip(names, names, strict=True)))]
    headings = _headings(lines, figures)
    caption = _caption(lines, headings, tests, cells, intervals, mark)
    if trainings := {len(line.method.sides) for line in lines if line.method is not None}:
        counts = " to ".join(map(str, sorted({min(trainings), max(trainings)})))
        ends = "intervals" if intervals else "± (half of the 95 % interval)"
        many = f" Means over {counts} trainings; {ends} and tests are for other images and other trainings."
        caption += (
            many if max(trainings) > 1 else " One training of each; intervals and tests are for other images only."
        )
    whole = tuple((name, *row) for name, row in zip(names, cells, strict=True))
    kind = "method" if trainings else "checkpoint"
    doubts_apart = (*(doubt for doubt, _ in apart), *flags)
    return PaperTable(Table(caption, (kind, *headings.values()), whole, doubts_apart), intervals)


def _cell(line: _Line, key: tuple[str, str], tests: _Tests, flagged: bool, intervals: bool) -> PaperCell:
    row, scale = line.rows.get(key), metric_of(key[1]).scale
    text = figure_cell(row, scale, intervals, sign="+" if scored_by(key[1]) else "")
    several = line.method is not None and len(line.method.sides) > 1
    if several and not intervals and row is not None and row.has_interval:
        text = text.followed_by(f" ± {scaled((row.high - row.low) / 2, scale)}")
    cell = PaperCell(text, text.value, row, text.ends)
    cell.flagged = flagged
    cell.mark, cell.p_value = tests.marks.get((line.name, key), ("", math.nan))
    return cell


def _headings(lines: Sequence[_Line], figures: Sequence[Asked]) -> dict[Asked, str]:
    """Return what each figure is called: an attack without its radius where that is everyone's."""
    manifests = {entry: next(line.side.manifest for line in lines if entry.key in line.rows) for entry in figures}
    alone, headings = len(_radii(lines, figures)) == 1, dict[Asked, str]()
    for entry, manifest in manifests.items():
        claim, metric = manifest.claims.get(entry.condition), metric_of(entry.metric)
        heading = name_of(entry.condition, "badge", manifest) if claim is not None else entry.called
        if attack := estimated(*entry.key):
            headings[entry] = f"{', '.join(name_of(attack, 'table', manifest).split(', ')[: 2 - alone])}, estimated"
            continue
        if claim is not None and alone:
            heading = heading.replace(f" {amount(claim.eps, claim.norm, manifest.protocol.space)}", "", 1)
        label = (metric.short or metric.label or metric.name).removesuffix(" %")
        figure = label.removeprefix("mean ") + " ↓" * (metric.better < 0)
        if (kind := kind_of(entry.condition)) in PUBLISHED_SETS:
            heading = heading.replace(name_of(kind, "table", manifest), PUBLISHED_SETS[kind][0])
        if entry.metric.startswith("iou("):
            figure = f"IoU {entry.metric[4:-1]}"
            heading = "" if entry.condition == CLEAN.text else heading
        headings[entry] = heading if entry.metric == task_of(manifest).headline else f"{heading} {figure}".strip()
    return headings


def _radii(lines: Sequence[_Line], figures: Iterable[Asked]) -> list[str]:
    """Return the radii of attacks, each with its norm."""
    radii = dict[str, None]()
    for manifest, entry in ((line.side.manifest, entry) for line in lines for entry in figures):
        if (claim := manifest.claims.get(entry.condition)) is not None:
            norm = {"linf": "ℓ∞", "l2": "ℓ2"}.get(claim.norm, claim.norm)
            radii[f"{norm}, ε = {amount(claim.eps, claim.norm, manifest.protocol.space)}"] = None
    return list(radii)


def _caption(
    lines: Sequence[_Line],
    headings: Mapping[Asked, str],
    tests: _Tests,
    cells: Sequence[Sequence[PaperCell]],
    intervals: bool,
    mark: bool,
) -> str:
    manifests = [line.side.manifest for line in lines]
    headline, samples = task_of(manifests[0]).headline_metric, manifests[0].protocol.samples
    every = [cell for row in cells for cell in row]
    of = [cell.figure for cell in every if cell.figure and cell.figure.metric == headline.name]
    counts, groups = sorted({int(figure.n) for figure in of}), max((figure.groups for figure in of), default=0)
    n = "–".join(dict.fromkeys(map(str, (counts[0], counts[-1])))) if counts else str(manifests[0].data.n)
    radii, tags = _radii(lines, headings), dict.fromkeys(manifest.protocol.tag for manifest in manifests)
    data = ", ".join(_DATA.get(name, name) for name in dict.fromkeys(manifest.data.name for manifest in manifests))
    what = {"top1": "Top-1 accuracy (%)", "miou": "mIoU (%)"}.get(headline.name, capital(headline.heading))
    words = [data, f"n = {n} {samples.many}{f' in {groups} groups' * bool(groups)}", *radii]
    text = f"{what} unless stated otherwise. {', '.join(words)}; protocol {', '.join(tags)}."
    basis = f"paired tests, Holm-corrected over {tests.count} pair{'s' * (tests.count > 1)}"
    if tests.count and mark:
        text += f" Best in bold; underlined: not significantly different from the best ({basis})."
    elif any(cell.mark for cell in every):
        text += " Best in bold." if mark else f" Bold: the best, where significantly better than another ({basis})."
    if tests.count and tests.left:
        text += f" Not tested: {', '.join(headings[entry] for entry in tests.left)}."
    text += " [low, high]: 95 % intervals." * intervals
    text += " ↓: lower is better." * any("↓" in heading for heading in headings.values())
    return text + " †: flagged; see the report." * any(cell.flagged for cell in every)
