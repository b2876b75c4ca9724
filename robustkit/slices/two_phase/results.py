"""Estimate what a whole attack leaves standing from its first stages on all samples and the rest on a few."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from scipy.special import betaincinv

from ...common.figure import INVERTED, Figure
from ...common.finding import Finding
from ...common.intervals import Floats, Interval, Z, bootstrapped, share_of, wilson
from ...display.format import count, counted, figure_cell, share
from ...display.table import Table, of_tables
from ...evaluations.aggregate import RecordReader, Results, column_of, readable_rows
from ...evaluations.attacks import attack_name, stages_of
from ...evaluations.attacks.results import LUCKY, is_stage_column
from ...evaluations.condition import FIRST, SHORT, BriefRow, Clause, kind_of, name_of
from ...evaluations.family import Aggregator, Presenter, Summary, family_of
from ...evaluations.metrics import Cells, Metric
from ...evaluations.presenting import short_names
from . import ESTIMATE, RIGHT, VOCABULARY, phases_of

if TYPE_CHECKING:
    import pyarrow as pa

    from ...display.table import Section
    from ...evaluations.family import Looks
    from ...runs.manifest import Manifest

_FEW, _HALVINGS = 5, 60


def two_phase_share(n: int, standing: int, drawn: int, right: int) -> tuple[float, Interval]:
    """Return (standing / n) · (kept / drawn), the estimated share of all samples that stand, and its 95 % interval.

    Of n samples `standing` stand after the first phase; `drawn` of those, picked at random, went through the second,
    and `right` still stand. Both phases are samples of the same population, so the interval inverts the score test of
    the product of two proportions (Cochran 1977, chapter 12, has the design). It holds what leaving out costs and what
    n costs: with drawn = standing it is Wilson's of kept out of n. Where fewer than five of those drawn went one way,
    it is recovered from Wilson's interval of the first phase and the exact one of the second (Clopper and Pearson
    1934), whose distances from the estimates add up in squares (MOVER: Zou and Donner 2008, Statistics in Medicine 27).
    """
    if drawn == standing:
        return right / n, wilson(right, n)
    first, second = standing / n, right / drawn
    share = first * second
    if min(right, drawn - right) < _FEW:
        ends = zip(wilson(standing, n), clopper_pearson(right, drawn), strict=True)
        low, high = (math.hypot(second * (first - one), first * (second - other)) for one, other in ends)
        return share, (max(share - low, 0.0), min(share + high, 1.0))

    def end(bound: float) -> float:
        """Return the share that is just not refuted between the estimate and a bound."""
        inside, outside = share, bound
        for _ in range(_HALVINGS):
            middle = (inside + outside) / 2
            refuted = _score(middle, n, standing, drawn, right) > Z**2
            inside, outside = (inside, middle) if refuted else (middle, outside)
        return inside

    return share, (end(0.0), end(1.0))


def _score(share: float, n: int, standing: int, drawn: int, right: int) -> float:
    """Return the score statistic of a share, chi-squared with one degree of freedom where it is the truth.

    The likeliest share that stands after the first phase, given `share` after both, solves a quadratic equation.
    """
    a, b, c = n - right, standing - right + share * (n - drawn), share * (standing - drawn)
    first = min(max((b + math.sqrt(max(b * b - 4 * a * c, 0.0))) / (2 * a), share), 1.0)
    return _off(standing, n, first) + _off(right, drawn, share / first)


def _off(count: int, n: int, share: float) -> float:
    """Return how far a count is from its mean, squared, over its variance."""
    variance = n * share * (1 - share)
    if variance <= 0:
        return 0.0 if math.isclose(count, n * share, abs_tol=1e-9) else math.inf
    return (count - n * share) ** 2 / variance


def clopper_pearson(successes: int, n: int) -> Interval:
    """Return the exact 95 % interval of a proportion (Clopper and Pearson 1934)."""
    low = 0.0 if successes == 0 else float(betaincinv(successes, n - successes + 1, 0.025))
    return low, 1.0 if successes == n else float(betaincinv(successes + 1, n - successes, 0.975))


class TwoPhaseSummary(Summary):
    def __init__(self, reading: RecordReader) -> None:
        self.reading = reading

    def add(self, condition: str) -> list[Figure]:
        phases = phases_of(condition)
        assert phases is not None
        attack = family_of(kind_of(phases.attack)).aggregator
        columns = ("sample_id", "error", "correct", "drawn", "linf", "l2", "passes", "passes_right")
        shards = self.reading.shards(condition, lambda name: name in columns or is_stage_column(name))
        table, notes = self.reading.joined(shards)
        read = readable_rows(table)
        if not len(read):
            return []
        second = read.filter(read["drawn"])
        n, drawn = len(read), len(second)
        fallen = n - read["correct"].null_count - drawn
        if fallen < n and not drawn:
            return []  # the shards of those that were drawn are still to come
        losses = table.drop_columns("correct")  # losses are of those drawn
        claimed = f"{phases.attack.removesuffix(')')},only={phases.first})"  # the phase that all samples go through
        flags = [*self.reading.findings(condition, losses, claimed), *notes]
        flags += attack.extras(self.reading, claimed, second)[1]
        table, notes = self.reading.joined(self.reading.shards(claimed, ("sample_id", "error", "linf", "l2")))
        flags = list(dict.fromkeys([*flags, *self.reading.findings(claimed, table), *notes]))
        right = int(column_of(second, "correct").sum()) if drawn else 0
        if "passes" in second.column_names and "version=rand" not in phases.attack:
            flags.append(Finding.of(LUCKY, attack=attack_name(kind_of(phases.attack))))
        if "version=fast" in phases.attack and right < drawn:
            flags.append(
                Finding.of("attack/fast-misses", broken=drawn - right, drawn=drawn, first=stages_of(phases.first))
            )
        estimate, ends = two_phase_share(n, n - fallen, drawn, right)
        figure, groups = Figure(estimate, n, *ends, INVERTED), self.reading.groups(read["sample_id"])
        if groups is not None:
            figure = bootstrapped(partial(_estimates, read), n, estimate, groups)
        rows = [figure.of(condition, ESTIMATE.name, flags)]
        if drawn:
            share = share_of(column_of(second, "correct"), self.reading.groups(second["sample_id"]))
            rows.append(share.of(condition, RIGHT.name, flags))
        return rows


def _estimates(read: pa.Table, counts: Floats) -> Floats:
    """Return the estimate of each resample, (R,); counts: how often each sample is drawn, (R, n)."""
    drawn, known = column_of(read, "drawn"), ~np.isnan(column_of(read, "correct"))
    right = np.where(known, np.nan_to_num(column_of(read, "correct")), 0.0)
    standing = np.where(known, drawn, 1.0)  # those that were drawn, and those not decided
    with np.errstate(invalid="ignore", divide="ignore"):
        shares: Floats = (counts @ standing) / counts.sum(axis=1) * (counts @ (drawn * right)) / (counts @ drawn)
    return shares


_NOTE = (
    "Two-phase: all n samples go through the first phase; at most m of those still correct, drawn at random, go "
    "through the rest of the attack. The interval of the estimate covers the uncertainty of both phases."
)


class TwoPhaseAggregator(Aggregator):
    words = VOCABULARY
    summary = TwoPhaseSummary


class TwoPhasePresenter(Presenter):
    words = VOCABULARY

    def clauses(self, cells: Cells, manifest: Manifest, headline: Metric) -> Iterable[Clause]:
        rows = [row for (_, name), row in cells.items() if name == ESTIMATE.name]
        if rows := [row for row in rows if all(each.code != LUCKY for each in row.findings)]:
            row = min(rows, key=lambda row: row.value)
            text = f"{name_of(row.condition, 'table', manifest)}, leaves an estimated {share(row)}"
            yield Clause(text, (row,))

    def brief(self, keys: Sequence[tuple[str, str]], manifest: Manifest, headline: Metric) -> Iterable[BriefRow]:
        for text in dict.fromkeys(text for text, _ in keys):
            label = name_of(text, "table", manifest)
            yield BriefRow(self.name, f"{label}: {ESTIMATE.label}", text, ESTIMATE, (*SHORT, *FIRST))
            yield BriefRow(self.name, f"{label}: {RIGHT.label}", text, RIGHT)

    def tables(self, results: Results) -> Sequence[Table]:
        names, rows = short_names(results.manifest.names), []
        for row in results:
            phases = phases_of(row.condition)
            if phases is None or row.metric != ESTIMATE.name:
                continue
            right = results.cells[row.checkpoint].get((row.condition, RIGHT.name))  # none where nobody was drawn
            rows.append(
                {
                    "checkpoint": names[row.checkpoint],
                    "attack": name_of(row.condition, "table", results.manifest),
                    "n": counted(row),
                    "first phase": phases.first,
                    "drawn": count(0 if right is None else right.n),
                    f"{RIGHT.label} [95 %]": figure_cell(right),
                    f"{ESTIMATE.label} [95 %]": figure_cell(row),
                }
            )
        lines = tuple(tuple(row.values()) for row in rows)
        return [Table("two-phase attacks", tuple(rows[0]), lines, note=_NOTE)] if rows else []

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        if tables := self.tables(results):
            yield of_tables("two-phases", "Two-phase attacks", tuple(tables))
