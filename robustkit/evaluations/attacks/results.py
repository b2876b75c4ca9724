"""Attacks in results: what each stage left standing, tables and sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from ...common.intervals import wilson
from ...display.grid import Grid, Part, side_by_side
from ...display.table import Section, TextTable
from ...display.text import amount
from ...protocol.condition import CLEAN, part_of
from ...runs.folder import RunFolder
from ...runs.manifest import Manifest
from ..aggregate import Gatherer, Number, Results, column_of, readable
from ..estimation import support_grids, support_tables
from ..family import Aggregator, Overview, Presenter
from ..interface import Clause, share
from ..metrics import Cells, Metric, interval_cell, is_whole
from ..registry import words_of
from .condition import FOUND, VOCABULARY, alone, beneath, parts_of
from .figures import curve_figures, curves, stage_figures, standings
from .gradient_masking import NO_EVIDENCE, Doubt, findings
from .on_corrupted import starts_from
from .ranking import OrderOfAttacks, findings_of

if TYPE_CHECKING:
    import pyarrow as pa

    from ..aggregate import Reading
    from ..family import Looks


@dataclass(frozen=True)
class StageCounts:
    """A stage of an attack: samples that stand after it, and the total of its passes."""

    name: str
    standing: int
    forwards: int
    backwards: int
    seconds: float | None = None


def is_stage_column(column: str) -> bool:
    return column in ("error", "broken_by") or column.startswith(("forwards ", "backwards "))


def stages(run: RunFolder, checkpoint: str, condition: str) -> list[StageCounts]:
    """Return the stages of an attack, with the seconds of each where known; empty for an attack without stages."""
    counts = stages_of(readable(run.table(checkpoint, condition, is_stage_column)))
    seconds = run.stage_seconds(checkpoint, condition) if counts else {}
    return [replace(stage, seconds=seconds.get(stage.name)) for stage in counts]


def stages_of(read: pa.Table) -> list[StageCounts]:
    names = [name.removeprefix("forwards ") for name in read.column_names if name.startswith("forwards ")]
    often = Counter(read["broken_by"].to_pylist() if names else ())
    standing, counts = len(read), []
    for name in names:
        standing -= often[name]
        passes = (int(np.nansum(column_of(read, f"{what} {name}"))) for what in ("forwards", "backwards"))
        counts.append(StageCounts(name, standing, *passes))
    return counts


def stage_numbers(read: pa.Table) -> Iterator[Number]:
    """Yield the share of samples that stands after each stage, for the results."""
    n = len(read)
    for stage in stages_of(read):
        yield f"top1_after_{stage.name}", stage.standing / n, n, *wilson(stage.standing, n)


class Stages(Gatherer):
    """What stands after each stage of the attacks of a run; attacks without stages have an empty list.

    by_unit: by checkpoint and condition, the number of samples and the stages.
    """

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(manifest)
        self.by_unit: dict[tuple[str, str], tuple[int, list[StageCounts]]] = {}

    def wants(self, checkpoint: str, condition: str) -> bool:
        return condition in self.manifest.claims or condition in self.manifest.evidence

    def needs(self, column: str) -> bool:
        return is_stage_column(column)

    def take(self, checkpoint: str, condition: str, read: pa.Table) -> None:
        self.by_unit[checkpoint, condition] = len(read), stages_of(read)


def dossier(run: RunFolder, checkpoint: str, condition: str) -> list[Doubt]:
    """Return what speaks for and against the result of an attack; empty where no evidence was asked for."""
    read = readable(run.table(checkpoint, condition, is_stage_column))
    return dossier_of(run, run.manifest, checkpoint, condition, len(read), stages_of(read))


def dossier_of(
    run: RunFolder,
    manifest: Manifest,
    checkpoint: str,
    condition: str,
    n: int,
    stages: Sequence[StageCounts],
) -> list[Doubt]:
    """Return the same for n samples, of which some stand after each stage."""
    if condition not in manifest.evidence:
        return []
    figures = run.evidence(checkpoint, condition)
    if figures is None:
        return [NO_EVIDENCE]
    standing = {stage.name: stage.standing for stage in stages}
    return findings(figures, standing, n=n, averaged="version=rand" in condition)


STRENGTH_HEADINGS = ("condition", "found of all broken % [95 %]", "broken by any")
STRENGTH_NOTE = (
    "Of the samples right when clean that any attack of the run in the same norm broke within the radius, the share "
    "that this attack broke itself."
)
STAGE_HEADINGS = ("stage", "standing", "forwards", "backwards", "seconds")


def stage_tables(results: Results) -> list[tuple[str, str, list[tuple[str, ...]]]]:
    """Return the checkpoint, condition and rows of texts under `STAGE_HEADINGS` of each attack in stages."""
    tables = []
    for (checkpoint, condition), (_, stages) in results.gathered(Stages).by_unit.items():
        seconds = results.run.stage_seconds(checkpoint, condition) if stages else {}
        rows: list[tuple[str, ...]] = [
            (
                *(stage.name, str(stage.standing), f"{stage.forwards:,}", f"{stage.backwards:,}"),
                f"{seconds[stage.name]:.1f}" if stage.name in seconds else "–",
            )
            for stage in stages
        ]
        if rows:
            tables.append((checkpoint, condition, rows))
    return tables


def strength_rows(results: Results) -> dict[str, list[tuple[str, ...]]]:
    """Return the rows of texts under `STRENGTH_HEADINGS`, by checkpoint, of attacks that have others to compare."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    for row in results:
        if row["metric"] == FOUND.name:
            rows.setdefault(row["checkpoint"], []).append((row["condition"], interval_cell(row), str(row["n"])))
    return rows


def dossiers(results: Results) -> list[tuple[str, str, list[Doubt]]]:
    """Return the evidence on attacks, doubtful or not: checkpoint, condition, findings."""
    flags = {(row["checkpoint"], row["condition"]): row["flags"] for row in results}
    rows = []
    for unit, (n, stages) in results.gathered(Stages).by_unit.items():
        doubts = [*dossier_of(results.run, results.manifest, *unit, n, stages), *findings_of(flags.get(unit, []))]
        if doubts:
            rows.append((*unit, doubts))
    return rows


def terminal_stages(results: Results) -> Iterator[TextTable]:
    """Yield the stages of all attacks that have any as one table, and how much of what was broken each attack found."""
    every = [(checkpoint, condition, row) for checkpoint, condition, rows in stage_tables(results) for row in rows]
    if every:
        title = "stages: each works on what the ones before left standing"
        rows = tuple((f"{checkpoint}, {condition}", *row) for checkpoint, condition, row in every)
        yield TextTable(title, ("", *STAGE_HEADINGS), rows).under_heads([row[0] for row in rows])
    if found := strength_rows(results):
        lines = [(f"{checkpoint}, {row[0]}", *row[1:]) for checkpoint, rows in found.items() for row in rows]
        yield TextTable("how strong the attacks were", ("", *STRENGTH_HEADINGS[1:]), tuple(lines), note=STRENGTH_NOTE)
    yield from support_tables(results, lambda text: words_of(text) is VOCABULARY)


def clauses(cells: Cells, manifest: Manifest, headline: Metric) -> Iterator[Clause]:
    """Yield the result of the attack that leaves least: `the strongest attack, pgd at 4/255, leaves 13.3 %`; then that
    of those on corrupted images.

    While records of some attack are missing, none is called the strongest or the only one. Attacks on a part of the
    samples count only where there are no others, and stages of an attack that is estimated as a whole do not.
    """
    whole = [text for text in manifest.claims if not text.startswith(_parts_of_estimated(manifest))]
    every = [text for text in whole if not part_of(text)] or whole
    on_clean = [text for text in every if starts_from(text) == CLEAN.text]
    on_corrupted = [text for text in every if text not in on_clean]
    yield from _least(on_clean, cells, manifest, headline)
    yield from _least(on_corrupted, cells, manifest, headline, " on corrupted images")


def _parts_of_estimated(manifest: Manifest) -> tuple[str, ...]:
    """Return how the texts of stages begin that ran for the estimate of a whole attack, which has its own clause."""
    named = ((text, metric.name) for text in manifest.conditions for metric in words_of(text).metrics)
    estimated = (words_of(text).estimated(text, name) for text, name in named)
    return tuple(dict.fromkeys(f"{attack.removesuffix(')')},only=" for attack in estimated if attack))


def _least(texts: Sequence[str], cells: Cells, manifest: Manifest, headline: Metric, of: str = "") -> Iterator[Clause]:
    """Yield the result of one of these attacks, of equally strong ones the last. of: whose images they change, where
    those are not clean.
    """
    attacked = [row for (condition, name), row in cells.items() if name == headline.name and condition in texts]
    if not attacked:
        return
    claims = manifest.claims
    row, clean = min(reversed(attacked), key=lambda row: float(row["value"])), cells.get((CLEAN.text, headline.name))
    norm, eps = claims[row["condition"]].norm, float(claims[row["condition"]].eps)
    space = manifest.protocol.space
    radius = amount(eps, norm, space) + ("" if norm == "linf" else f" ({norm})")
    if space == "normalised":
        radius += " in normalised units"
    of_others = (
        "" if clean is not None and row["n"] == clean["n"] else f" of {row['n']} {manifest.protocol.samples.many}"
    )
    name, given = parts_of(row["condition"])
    stages = f" with {alone(given['only'])}" if "only" in given else ""
    call = f"{name}{stages} at {radius}{beneath(row['condition'], manifest)}"
    leaves = f"leaves {share(row)}{of_others}"
    missing = sum(not is_whole(cells.get((condition, headline.name))) for condition in texts)
    if missing:
        so_far = f"{', the least' if len(attacked) > 1 else ''} so far (unfinished attacks: {missing} of {len(texts)})"
        yield Clause(f"the attack{of} {call} {leaves}{so_far}", (row,))
    else:
        yield Clause(f"the {'strongest' if len(attacked) > 1 else 'only'} attack{of}, {call}, {leaves}", (row,))


def stage_grids(results: Results) -> list[Grid]:
    """Return what stands after each stage, all checkpoints side by side."""
    rows: dict[str, list[tuple[str, ...]]] = {}
    for checkpoint, condition, stages in stage_tables(results):
        rows.setdefault(checkpoint, []).extend((condition, *row) for row in stages)
    headings = ("condition", *STAGE_HEADINGS)
    parts = [Part(checkpoint, headings, tuple(lines)) for checkpoint, lines in rows.items()]
    return side_by_side("Samples that stand after each stage", parts, keys=2, headline=STAGE_HEADINGS[1])


def strength_grids(results: Results) -> list[Grid]:
    """Return how much of what all attacks broke each broke itself, and the figures of attacks on a part of the samples
    that others support, all checkpoints side by side.
    """
    parts = [Part(name, STRENGTH_HEADINGS, tuple(rows)) for name, rows in strength_rows(results).items()]
    title = "How strong the attacks were"
    strengths = side_by_side(title, parts, headline=STRENGTH_HEADINGS[1], note=STRENGTH_NOTE)
    return [*strengths, *support_grids(results, lambda text: words_of(text) is VOCABULARY)]


def dossier_grids(results: Results) -> list[Grid]:
    """Return the checks that found something, then, folded, the others."""
    flagged, passed = list[tuple[str, ...]](), list[tuple[str, ...]]()
    for checkpoint, condition, found in dossiers(results):
        for finding in found:
            said = "" if finding.flag else "not measured" if finding.figure == "not measured" else "nothing found"
            row = (finding.check, checkpoint, condition, finding.figure)
            (flagged if finding.flag else passed).append((*row, f"⚑ {finding.flag}" if finding.flag else said))
    return [*_grid("Checks that found something", flagged), *_grid("Checks that found nothing", passed, folded=True)]


def _grid(title: str, rows: Sequence[tuple[str, ...]], folded: bool = False) -> list[Grid]:
    headings = ("check", "checkpoint", "condition", "measured", "verdict")
    names = list(dict.fromkeys(row[0] for row in rows))
    ordered = tuple(sorted(rows, key=lambda row: names.index(row[0])))
    return [Grid(f"{title}: {len(rows)}", headings, ordered, 3, folded=folded)] if rows else []


class AttacksAggregator(Aggregator):
    """Records of attacks into results."""

    words = VOCABULARY

    def overview(self, reading: Reading) -> Overview:
        return OrderOfAttacks(reading)

    def gatherers(self) -> Sequence[type[Gatherer]]:
        return (Stages,)

    def doubts(self, reading: Reading, condition: str, read: pa.Table) -> list[str]:
        of = reading.run, reading.manifest, reading.checkpoint, condition
        dossier = dossier_of(*of, len(read), stages_of(read))
        return [finding.flag for finding in dossier if finding.flag]

    def numbers(self, read: pa.Table) -> Iterable[Number]:
        return stage_numbers(read)


AGGREGATOR = AttacksAggregator()


class AttacksPresenter(Presenter):
    """Results of attacks for people."""

    words = VOCABULARY

    def clauses(self, cells: Cells, manifest: Manifest, headline: Metric) -> Iterable[Clause]:
        return clauses(cells, manifest, headline)

    def terminal(self, results: Results) -> Iterable[TextTable]:
        return terminal_stages(results)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        claims, space = results.manifest.claims, results.manifest.protocol.space
        drawn = tuple(curve_figures(curves(results, claims), looks, "top1", "attacks", space))
        yield Section("attacks", "Robust accuracy against ε", figures=drawn)
        yield Section(
            "stages",
            "Attacks in stages",
            lambda: {"grids": stage_grids(results), "strengths": strength_grids(results)},
            tuple(stage_figures(standings(results), looks)),
        )
        yield Section("doubts", "Can these numbers be trusted?", lambda: {"grids": dossier_grids(results)})


PRESENTER = AttacksPresenter()
