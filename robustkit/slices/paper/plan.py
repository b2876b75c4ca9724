"""Say before a run how many images, or groups of them, or trainings it takes to show a difference, and what they cost.

A pilot of two checkpoints knows how often only one of the two is right, or how much a figure differs from image to
image. For what is right or wrong the number is that of McNemar's exact test, whose power is summed over all counts (no
normal approximation); for means that of Student's t. Of grouped images the variance is as many times larger as in the
pilot. With several trainings of two methods it is the number of these, on the images of the pilot: the power of
Student's t, with the degrees of freedom of trainings and images.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import bdtr, chdtri, ndtr, ndtri, stdtrit

from ...common.groups import Groups, cluster_variance
from ...common.intervals import Floats, error_of_parts, error_parts, wilson
from ...common.plugins import plugin_session
from ...data.metadata import Grouping
from ...display.format import Cell, count, number, scaled
from ...display.html import as_html
from ...display.table import Table
from ...errors import DamagedRecord, ProtocolError, RunError
from ...evaluations.condition import name_of, shares_of
from ...results.comparison import compare_sides
from ...results.methods import Key, Method, methods_of, name_methods, read_methods, sample_columns
from ...results.pairing import Side, checkpoint_pairs, pair_names
from ...runs.folder import RunFolder, folder_name
from ...tasks import metric_of

if TYPE_CHECKING:
    import pandas as pd

LEVEL, POWER = 0.05, 0.8
MOST = 1_000_000
"""Images, and trainings, above which nothing is planned."""
_WIDE = 8.0  # standard deviations of the number of changed images that power is summed over
_NEAR = 4  # counts around that of the normal approximation that are tried
_EVEN = (np.arange(2000) + 0.5) / 2000


def _critical(changed: NDArray[np.int64], level: float) -> Floats:
    """Return the largest count of one side with which McNemar's exact test of so many changed rejects, -1 for none:
    near that of the normal approximation."""
    near = np.floor((changed + ndtri(level / 2) * np.sqrt(changed)) / 2)
    edges = np.full(len(changed), -1.0)
    for step in range(-_NEAR, _NEAR + 1):
        counts = near + step
        rejects = (counts >= 0) & (2 * bdtr(np.maximum(counts, 0), changed, 0.5) < level)
        edges = np.where(rejects, counts, edges)
    return edges


def mcnemar_power(n: int, changed: float, difference: float, level: float = LEVEL) -> float:
    """Return how often McNemar's exact test of n images finds a difference. changed: the share of images that only one
    of two checkpoints predicts right, at least the difference."""
    sd = math.sqrt(n * changed * (1 - changed))
    first, last = max(0, math.floor(n * changed - _WIDE * sd)), min(n, math.ceil(n * changed + _WIDE * sd))
    m = np.arange(first, last + 1)
    below = bdtr(np.maximum(np.arange(first - 1, last + 1), 0), n, changed)
    below[np.arange(first - 1, last + 1) < 0] = 0.0
    mass = np.diff(below)
    edges = _critical(m, level)
    share = (1 + difference / changed) / 2
    tails = [bdtr(np.maximum(edges, 0), m, side) for side in (share, 1 - share)]
    return float(mass @ np.where(edges >= 0, tails[0] + tails[1], 0.0))


def images_needed(changed: float, difference: float, power: float = POWER, level: float = LEVEL) -> int | None:
    """Return how many images show a difference by McNemar's exact test; None where more than `MOST` do not."""
    changed = max(changed, difference)
    guess = (ndtri(1 - level / 2) * math.sqrt(changed) + ndtri(power) * math.sqrt(changed - difference**2)) ** 2
    low, high = 1, max(8, math.ceil(guess / difference**2))
    while high <= MOST and mcnemar_power(high, changed, difference, level) < power:
        low, high = high, high * 2
    if high > MOST:
        return None
    while high - low > max(1, high // 1000):
        middle = (low + high) // 2
        enough = mcnemar_power(middle, changed, difference, level) >= power
        low, high = (low, middle) if enough else (middle, high)
    return int(high)


def student_power(difference: float, error: float, freedom: float, level: float = LEVEL) -> float:
    """Return how often Student's t finds a difference whose estimate has this standard error."""
    if not error > 0:
        return 1.0
    edges = float(stdtrit(freedom, 1 - level / 2)) * np.sqrt(chdtri(freedom, 1 - _EVEN) / freedom)
    shift = abs(difference) / error
    return float((ndtr(shift - edges) + ndtr(-shift - edges)).mean())


def means_needed(sd: float, difference: float, power: float = POWER, level: float = LEVEL) -> int | None:
    """Return how many images show a difference of means by Student's t. sd: of the differences by image."""
    return _fewest(lambda n: student_power(difference, sd / math.sqrt(n), n - 1, level) >= power)


def trainings_needed(
    by_image: float, by_training: float, freedom: float, difference: float, power: float = POWER, level: float = LEVEL
) -> int | None:
    """Return how many trainings of each method show a difference; None where no number does. by_image: the squared
    error of images, of so many degrees of freedom. by_training: the variance of differences between trainings."""

    def enough(trainings: int) -> bool:
        error, many = error_of_parts([(by_image, freedom), (by_training / trainings, trainings - 1.0)])
        return student_power(difference, error, many, level) >= power

    return _fewest(enough)


def _fewest(enough: Any) -> int | None:
    low, high = 1, 2
    while not enough(high):
        low, high = high, high * 2
        if high > MOST:
            return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle, high)
    return high


@dataclass(frozen=True)
class Need:
    """What one figure needs. spread: the share of images that changed, or the standard deviation of differences.
    needed: images, with the ends of an interval of the spread; or trainings. seconds: of one image, for both
    checkpoints."""

    key: Key
    called: str
    n: int
    spread: float
    needed: tuple[int | None, int | None, int | None]
    groups: int = 0
    seconds: float = math.nan
    passes: float = math.nan


@dataclass(frozen=True)
class Planned:
    """A plan. difference: that is to be shown, in the unit of figures. of_trainings: what is counted."""

    names: tuple[str, str]
    difference: float
    power: float
    needs: tuple[Need, ...]
    of_trainings: bool = False
    n: int = 0

    @property
    def tables(self) -> list[Table]:
        """One table: what each figure needs."""
        size = scaled(self.difference)
        many = "trainings of each" if self.of_trainings else "images"
        title = f"{self.names[1]} against {self.names[0]}: {many} that show {size} points with a power of "
        title += f"{100 * self.power:.0f} %"
        spread = "spread of trainings" if self.of_trainings else "differ, %"
        rows = tuple(self._cells(need) for need in self.needs)
        if self.of_trainings:
            return [Table(title, ("condition", "figure", "images", spread, many), rows, note=_OF_TRAININGS)]
        headings: tuple[str, ...] = (
            "condition",
            "figure",
            "pilot",
            spread,
            "images [95 %]",
            "groups",
            "passes",
            "hours",
        )
        if not any(need.groups for need in self.needs):
            headings, rows = (*headings[:5], *headings[6:]), tuple((*row[:5], *row[6:]) for row in rows)
        return [Table(title, headings, rows, note=_OF_IMAGES)]

    def _cells(self, need: Need) -> tuple[str, ...]:
        metric, (needed, low, high) = metric_of(need.key[1]), need.needed
        first = need.called, metric.label or metric.name, count(need.n), scaled(need.spread)
        if needed is None:
            return (*first, Cell("none is enough"), *([] if self.of_trainings else [Cell("–")] * 3))
        text = Cell(f"{needed:,}", needed)
        if self.of_trainings:
            return *first, text
        ends = f" [{low:,}, {high:,}]" if low is not None and high is not None else ""
        groups = count(math.ceil(needed / (need.n / need.groups)), ",") if need.groups else Cell("–")
        passes = Cell("–") if math.isnan(need.passes) else Cell(f"{needed * need.passes:,.0f}")
        hours = Cell("–") if math.isnan(need.seconds) else number(needed * need.seconds / 3600, 2)
        return *first, text.followed_by(ends), groups, passes, hours

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each figure."""
        import pandas as pd

        rows = [{"condition": need.key[0], "metric": need.key[1], "needed": need.needed[0]} for need in self.needs]
        return pd.DataFrame(rows)

    def _repr_html_(self) -> str:
        return as_html(self.tables)


_OF_IMAGES = (
    "Differ: the share of the pilot's images that only one of the two predicts right (of means, the standard deviation "
    "of differences, times 100). In brackets: for the ends of its 95 % interval. Passes and hours are of both "
    "checkpoints, at the pilot's pace on its device. Each figure is planned alone, at a level of 0.05. The design "
    "effect of grouped images is taken to be that of the pilot."
)
_OF_TRAININGS = (
    "Spread: the standard deviation of differences between trainings, in points. Trainings are on the images of the "
    "pilot: where none are enough, take more images. Each figure is planned alone, at a level of 0.05."
)


@plugin_session()
def plan(
    *runs: RunFolder | str | Path,
    difference: float,
    power: float = POWER,
    methods: Mapping[str, str | Sequence[str]] | None = None,
    groups: str | None = None,
    groups_from: str | None = None,
) -> Planned:
    """Return how many images, or trainings, show a difference of two checkpoints, or methods, of a pilot.

    Args:
        *runs: the pilot: run folders as of `robustkit.compare`; 100 images are enough for an idea.
        difference: to be shown, in points: 2 of top-1 or of error.
        power: how often it is to be shown.
        methods: as of `robustkit.compare_methods`: trainings of each are planned, on the pilot's images.
        groups: a column of the runs' metadata: samples of one value may resemble each other.
        groups_from: a regular expression that finds the group of a sample in its id.

    Returns:
        A table of what each figure needs; a notebook shows it.

    Raises:
        ProtocolError: a difference or a power out of range.
        RunError: no run, one checkpoint, or nothing that can be planned.

    Example:
        >>> files = ["zoo:shapes-vit-standard", "zoo:shapes-vit-quest"]
        >>> options = dict(attacks="fgsm", limit=40, setup_check=False, evidence="none", out="runs/pilot")
        >>> run = robustkit.audit(files, "embedded:shapes", **options)
        >>> robustkit.plan(run, difference=5).to_frame().condition.tolist()
        ['clean', 'fgsm(eps=1/255)']
    """
    if not 0 < difference < 100:
        raise ProtocolError(f"a difference of {difference:g} points: expected more than 0 and less than 100")
    if not LEVEL < power < 1:
        raise ProtocolError(f"a power of {power:g}: expected a share of more than {LEVEL:g} and less than 1")
    grouping = Grouping.of(groups, groups_from)
    folders = [RunFolder.opened(each, grouping) for each in runs]
    if methods is None and len(by_name := name_methods(folders)) == 2:
        methods = by_name
    if methods:
        several = methods_of(folders, methods)
        if len(several) != 2 or any(len(method.sides) < 2 for method in several):
            counts = ", ".join(f"{method.name} has {len(method.sides)}" for method in several)
            raise ProtocolError(f"trainings: {counts}; expected two methods, each of two trainings or more")
        needs = list(_of_trainings(several[0], several[1], difference / 100, power))
        names = several[0].name, several[1].name
    else:
        first, second = checkpoint_pairs(folders)[0]
        needs, names = list(_of_images(first, second, difference / 100, power)), pair_names(first, second)
    if not needs:
        why = "no figure in per cent is a mean over samples of both"
        raise RunError(f"{folders[0].path}: {why}, so nothing can be planned; give a run of labelled images")
    return Planned(names, difference / 100, power, tuple(needs), bool(methods))


def _rows(first: Side, second: Side) -> Iterator[tuple[Key, str]]:
    """Yield the figures of a comparison that are in per cent, and what their conditions are called."""
    for row in compare_sides([(first, second)], None).pairs[0].rows:
        if metric_of(row.metric).scale == 100:
            yield (row.condition, row.metric), name_of(row.condition, "table", second.manifest)


def _of_images(first: Side, second: Side, difference: float, power: float) -> Iterator[Need]:
    for key, called in _rows(first, second):
        if (columns := sample_columns((first, second), key)) is None:
            continue
        values, groups = columns
        changes, n = values[:, 1] - values[:, 0], len(values)
        effect = _design_effect(changes, groups)
        if np.isin(values, (0, 1)).all():
            changed = int((changes != 0).sum())
            spreads = [changed / n, *wilson(changed, n)]
            needed = [images_needed(spread, difference, power) for spread in spreads]
        else:
            spread = float(changes.std(ddof=1))
            ends = [math.sqrt((n - 1) / chdtri(n - 1, share)) for share in (0.025, 0.975)]
            spreads = [spread, *(spread * end for end in ends)]
            needed = [means_needed(each, difference, power) for each in spreads]
        scaled_up = [None if each is None else math.ceil(each * effect) for each in needed]
        cost = _cost(first, second, key[0], n)
        of_groups = 0 if groups is None else groups.count
        yield Need(key, called, n, spreads[0], (scaled_up[0], scaled_up[1], scaled_up[2]), of_groups, *cost)


def _of_trainings(first: Method, second: Method, difference: float, power: float) -> Iterator[Need]:
    paired = first.seeds is not None and second.seeds is not None and sorted(first.seeds) == sorted(second.seeds)
    first, second = (first.ordered(), second.ordered()) if paired else (first, second)
    for key, called in _rows(first.sides[0], second.sides[0]):
        if (columns := sample_columns((*first.sides, *second.sides), key)) is None:
            continue
        values, groups = columns
        before, after = values[:, : len(first.sides)], values[:, len(first.sides) :]
        parts = [after - before] if paired else [before, after]
        by_training = sum(float(part.mean(axis=0).var(ddof=1)) for part in parts)
        by_image, freedom = error_parts(after.mean(axis=1) - before.mean(axis=1), groups)[0]
        needed = trainings_needed(by_image, by_training, freedom, difference, power)
        yield Need(key, called, len(values), math.sqrt(by_training), (needed, None, None))


def _design_effect(changes: Floats, groups: Groups | None) -> float:
    alone = float(changes.var(ddof=1)) / len(changes)
    return 1.0 if groups is None or not alone > 0 else max(1.0, cluster_variance(changes, groups) / alone)


def _cost(first: Side, second: Side, condition: str, n: int) -> tuple[float, float]:
    """Return the seconds and the passes of one image under a condition, or all of a mean, for both checkpoints; nan
    where they are not known."""
    seconds, passes = 0.0, 0.0
    for side in (first, second):
        for text in shares_of(condition):
            seconds += _seconds(side, text)
            passes += _passes(side, text)
    return seconds / n, passes


def _seconds(side: Side, condition: str) -> float:
    """Return the seconds of all units of a condition; nan where they are not known."""
    run, total = side.run, 0.0
    folder = run.path / "timings" / folder_name(side.checkpoint) / folder_name(condition)
    paths = sorted(folder.glob("*.json"))
    try:
        for path in paths:
            total += float(json.loads(run.read_text(path))["seconds"])
    except (OSError, ValueError, KeyError, TypeError):
        return math.nan
    return total if paths else math.nan


def _passes(side: Side, condition: str) -> float:
    """Return the forward and backward passes of one image; one forward pass where records do not say."""
    try:
        read = side.samples(condition, ("forwards", "backwards"))
    except DamagedRecord:
        raise
    except RunError:
        return 1.0
    total = float(sum(read.columns[name].mean() for name in ("forwards", "backwards")))
    return 1.0 if math.isnan(total) else total


def plan_named(runs: Sequence[Path], texts: Sequence[str], **options: Any) -> Planned:
    """Plan what `robustkit plan` asks for, and `robustkit compare --plan`."""
    return plan(*runs, methods=read_methods(texts) or None, **options)
