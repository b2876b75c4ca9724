"""Attacks in results: what each stage left standing, tables and sentences."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from ...common.figure import Figure
from ...common.finding import Finding
from ...common.intervals import share_of
from ...display.format import MISSING, amount, count, counted, figure_cell, number, percent, share
from ...display.svg import Plot, Style, brief_labels, dots, legend, list_some, panels, series_shift, shorten_name, style
from ...display.table import Section, Table, side_by_side
from ...protocol.condition import CLEAN, samples_named
from ...runs.folder import RunFolder
from ...runs.manifest import Claim, Manifest
from ..aggregate import Gatherer, RecordReader, Results, column_of
from ..condition import Clause, estimated, name_of, words_of
from ..estimation import support_grids, support_tables
from ..family import Aggregator, Presenter
from ..metrics import Cells, Metric, is_whole
from ..presenting import of_family
from . import BROKEN, TOP1, VOCABULARY, attack_parts, beneath, called_attack, starts_from
from .ranking import OrderOfAttacks, Sign, checks_of, checks_of_order, missing_evidence, raised_by

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.figure import Figure as Canvas

    from ..family import Looks


@dataclass(frozen=True)
class StageCounts:
    name: str
    standing: int
    forwards: int
    backwards: int


def is_stage_column(column: str) -> bool:
    return column in ("error", "broken_by", "cycle_at") or column.startswith(("forwards ", "backwards "))


def stages_of(read: pa.Table) -> list[StageCounts]:
    """Return the stages of an attack from the rows of samples that could be read; empty for one without stages."""
    names = [name.removeprefix("forwards ") for name in read.column_names if name.startswith("forwards ")]
    often = Counter(read["broken_by"].to_pylist() if names else ())
    standing, counts = len(read), []
    for name in names:
        standing -= often[name]
        passes = (int(np.nansum(column_of(read, f"{what} {name}"))) for what in ("forwards", "backwards"))
        counts.append(StageCounts(name, standing, *passes))
    return counts


def circles_of(read: pa.Table) -> list[Sign]:
    """Return how many samples that stand went in a circle under PGD, which has seen all that its steps will show."""
    if "cycle_at" not in read.column_names:  # of a segmenter
        return []
    cycle_at = np.array(read["cycle_at"].to_pylist(), float)
    standing = np.array([stage is None for stage in read["broken_by"].to_pylist()])
    if not np.isfinite(cycle_at).any() or not standing.any():
        return []
    open_ones, every = int((standing & ~np.isfinite(cycle_at)).sum()), int(standing.sum())
    rest = f"{open_ones} did not: take more steps" if open_ones else "more steps of this size lead to no other point"
    return [Sign("circles", f"{every - open_ones} of {every} that stand ended in a circle; {rest}")]


class Stages(Gatherer):
    """What stands after each stage of the attacks of a run: samples, stages and circles by checkpoint and condition."""

    def __init__(self, run: RunFolder) -> None:
        super().__init__(run)
        self.by_unit: dict[tuple[str, str], tuple[int, list[StageCounts], list[Sign]]] = {}

    def wants(self, checkpoint: str, condition: str) -> bool:
        return condition in self.manifest.claims or condition in self.manifest.evidence

    def needs(self, column: str) -> bool:
        return is_stage_column(column)

    def take(self, checkpoint: str, condition: str, read: pa.Table) -> None:
        self.by_unit[checkpoint, condition] = len(read), stages_of(read), circles_of(read)


def dossier_of(run: RunFolder, checkpoint: str, condition: str, n: int, stages: Sequence[StageCounts]) -> list[Sign]:
    """Return the checks of an attack on n samples, of which some stand after each stage; empty without evidence."""
    if condition not in run.manifest.evidence:
        return []
    figures = run.evidence(checkpoint, condition)
    if missing := missing_evidence(figures, run.manifest.arguments):
        return [missing]
    assert figures is not None
    standing = {stage.name: stage.standing for stage in stages}
    return checks_of(figures, standing, n, averaged="version=rand" in condition)


STRENGTH_HEADINGS = ("attack", "share % [95 %]", "broken by any")
STRENGTH = "Share of breakable {many} that each attack breaks"
STRENGTH_NOTE = (
    "Breakable: correct when clean, and broken by some attack of this run in the same norm within the radius."
)
STAGE_HEADINGS = ("stage", "still correct", "forwards", "backwards", "seconds")
Rows = Iterator[tuple[str, str, tuple[str, ...]]]  # checkpoint, condition, and texts of a row


def stage_rows(results: Results) -> Rows:
    """Yield a row under `STAGE_HEADINGS` for each stage of each attack in stages."""
    several = _in_stages(results)
    for (checkpoint, condition), (_, stages, _) in results.gathered(Stages).by_unit.items():
        if condition not in several:
            continue
        seconds = results.run.stage_seconds(checkpoint, condition) if stages else {}
        for stage in stages:
            spent = number(seconds[stage.name], 1) if stage.name in seconds else MISSING
            counts = count(stage.standing), count(stage.forwards, ","), count(stage.backwards, ",")
            yield checkpoint, condition, (stage.name, *counts, spent)


def strength_rows(results: Results) -> Rows:
    for row in results:
        if row.metric == BROKEN.name:
            yield row.checkpoint, row.condition, (figure_cell(row), counted(row))


def _parts_of(rows: Rows, headings: tuple[str, ...], manifest: Manifest, keys: int = 1) -> list[Table]:
    of: dict[str, list[tuple[str, ...]]] = {}
    for checkpoint, condition, texts in rows:
        of.setdefault(checkpoint, []).append((name_of(condition, "table", manifest), *texts))
    return [Table("", headings, tuple(lines), checkpoint=name, keys=keys) for name, lines in of.items()]


METRICS = {"top1": "accuracy", "miou": "mIoU"}
AFTER = "top1_after_"  # how the metric of what stands after a stage begins


@dataclass(frozen=True)
class Curve:
    """A checkpoint under one attack, `pgd, steps=20`, at several radii: (eps, figure) in the order of eps.

    The figure of the images that it changes is at 0, where that is known. start: what changed them before the attack;
    empty for clean images.
    """

    checkpoint: str
    attack: str
    norm: str
    points: tuple[tuple[float, Figure], ...]
    start: str = ""


def curves(results: Sequence[Figure], claims: Mapping[str, Claim]) -> list[Curve]:
    """Return a curve for each attack (with all parameters but eps alike) and each checkpoint that it attacked."""
    starts: dict[tuple[str, str], Figure] = {}
    by_curve: dict[tuple[str, str], dict[str, dict[float, Figure]]] = {}
    begun = dict[str, str]()
    for row in results:
        if row.metric not in METRICS or not row.is_finite:
            continue
        if (claim := claims.get(row.condition)) is None:
            starts[row.checkpoint, row.condition] = row
        else:
            name, _, inside = row.condition.removesuffix(")").partition("(")
            items = (item for item in inside.split(",") if item and not item.startswith(("eps=", "norm=")))
            attack = ", ".join([name, *items])
            begun[attack] = starts_from(row.condition)
            of_attack = by_curve.setdefault((attack, claim.norm), {})
            of_attack.setdefault(row.checkpoint, {})[float(claim.eps)] = row
    lines = []
    for (attack, norm), checkpoints in by_curve.items():
        for checkpoint, points in checkpoints.items():
            if (start := starts.get((checkpoint, begun[attack]))) is not None:
                points.setdefault(0.0, start)
            first = "" if begun[attack] == CLEAN.text else words_of(begun[attack]).label(begun[attack])
            lines.append(Curve(checkpoint, attack, norm, tuple(sorted(points.items())), first))
    return lines


def curve_figures(results: Results, looks: Looks, metric: str, section: str) -> Iterator[Plot]:
    lines = curves(results, results.manifest.claims)
    for norm in dict.fromkeys(line.norm for line in lines):
        alike = [line for line in lines if line.norm == norm]
        if len({eps for line in alike for eps, _ in line.points}) > 2:  # of fewer the first page says as much
            yield _curve_figure(alike, looks, metric, section, results.manifest)


def _curve_figure(
    lines: Sequence[Curve], looks: Mapping[str, Style], metric: str, section: str, manifest: Manifest
) -> Plot:
    """Return one figure of a norm: a panel for what the attacks start from, in it all of them."""
    norm, names, space = (
        lines[0].norm,
        brief_labels([*dict.fromkeys(line.checkpoint for line in lines)]),
        manifest.protocol.space,
    )
    called = {line.attack: _called(line.attack, manifest) for line in lines}
    starts: dict[str, list[Curve]] = {}
    for line in lines:
        starts.setdefault(line.start, []).append(line)
    unit = 255 if norm == "linf" and space != "sigma" else 1
    axis = "eps (linf) in 1/255" if unit == 255 else f"eps ({norm})"
    axis += {"sigma": ", in σ of each channel", "normalised": ", normalised units"}.get(space, "")
    # One checkpoint has a line for each attack; several have one for the strongest at each radius.
    alone = {attack: style(place) for place, attack in enumerate(called)} if len(names) == 1 else {}
    keys = {called[attack]: look for attack, look in alone.items()} or {names[name]: looks[name] for name in names}

    def paint(canvas: Canvas) -> None:
        grid = panels(canvas, len(starts), columns=min(2, len(starts)), sharex=True, sharey=True)
        for axes, (start, panel) in zip(grid, starts.items(), strict=True):
            series: list[tuple[Style, Sequence[tuple[float, Figure]], Sequence[tuple[float, Figure]]]] = []
            if alone:
                series += [(alone[line.attack], line.points, ()) for line in panel]
            for name in names if not alone else ():
                every = [point for line in panel if line.checkpoint == name for point in line.points]
                lowest = tuple(sorted(strongest(every).items()))
                series += [(looks[name], lowest, [point for point in every if point not in lowest])] if lowest else []
            for place, (look, line_points, others) in enumerate(series):
                shift = series_shift(place, len(series), 5)
                dots(axes, [unit * eps for eps, _ in line_points], [p for _, p in line_points], look, shift=shift)
                rest = [replace(point, low=math.nan, high=math.nan) for _, point in others]
                dots(axes, [unit * eps for eps, _ in others], rest, replace(look, line="none"), shift=shift, size=3)
            axes.set_title(_wrapped(start or "clean images") if len(starts) > 1 else "")
            axes.set_ylim(0, 104)
        for axes in grid[-2:]:
            axes.set_xlabel(axis)
        places = sorted({unit * eps for line in lines for eps, _ in line.points})
        widest = max(places) or 1
        if min((b - a for a, b in pairwise(places)), default=widest) >= 0.06 * widest:  # else they stand too close
            grid[0].set_xticks(places, [f"{place:.4g}" for place in places])
        grid[0].set_xlim(-0.06 * widest, 1.06 * widest)
        for axes in grid[::2]:
            axes.set_ylabel(f"{METRICS[metric]} in %")
        legend(canvas, keys)

    what, title = ("Accuracy", "Robust accuracy") if metric == "top1" else ("mIoU", "mIoU")
    sentences = " ".join(
        _description(text, [line for line in lines if line.attack == attack], names, space)
        for attack, text in called.items()
    )
    sizes = sorted({point.n for line in lines for _, point in line.points})
    counted = f"n = {sizes[0]}" if len(sizes) == 1 else f"n from {sizes[0]} to {sizes[-1]}"
    caption = f"{what} with 95 % intervals, {counted}, from unattacked samples (eps 0) on."
    if not alone:
        caption += " The lines take the strongest attack at each radius"
        caption += "; small markers are the other attacks." if len(called) > 1 else "."
    rows = -(-len(starts) // 2)
    height = 40 + 18 * -(-len(keys) // 2) + 260 * rows
    title = f"{title} against eps, {norm}"
    return Plot(section, title, height, paint, alt=f"{what} against eps. {sentences}", caption=caption, chief=True)


def strongest(points: Iterable[tuple[float, Figure]]) -> dict[float, Figure]:
    """Return the lowest figure at each radius; one of fewer samples counts where there is no other."""
    best: dict[float, Figure] = {}
    for eps, point in points:
        if eps not in best or (-point.n, point.value) < (-best[eps].n, best[eps].value):
            best[eps] = point
    return best


def _called(attack: str, manifest: Manifest) -> str:
    """Return what people call an attack without its radius: `PGD, 20 steps`."""
    name, _, inside = attack.partition(", ")
    return VOCABULARY.label(f"{name}({inside.replace(', ', ',')})", "table", manifest)


def _description(called: str, lines: Sequence[Curve], names: Mapping[str, str], space: str) -> str:
    sentences = []
    for line in lines:
        places = [f"at {amount(eps, line.norm, space)}" if eps else line.start or "clean" for eps, _ in line.points]
        values = [f"{percent(point.value)} {at}" for (_, point), at in zip(line.points, places, strict=True)]
        sentences.append(f"{names[line.checkpoint]} has {', '.join(values)}")
    return f"Under {shorten_name(called, 80)}: {list_some(sentences)}."


def _wrapped(text: str, width: int = 28) -> str:
    lines = [""]
    for item in shorten_name(text, 90).split(", "):
        if lines[-1] and len(lines[-1]) + len(item) + 2 > width:
            lines.append("")
        lines[-1] += f"{', ' if lines[-1] else ''}{item}"
    return "\n".join(lines)


def _in_stages(results: Iterable[Figure]) -> dict[str, dict[str, dict[str, Figure]]]:
    """Return what stands after each stage, by condition, checkpoint and stage; of attacks with several stages."""
    after: dict[str, dict[str, dict[str, Figure]]] = {}
    for row in results:
        if row.metric.startswith(AFTER) and row.is_finite:
            checkpoints = after.setdefault(row.condition, {})
            checkpoints.setdefault(row.checkpoint, {})[row.metric.removeprefix(AFTER)] = row
    return {
        condition: checkpoints
        for condition, checkpoints in after.items()
        if any(len(stages.keys() - {CLEAN.text}) > 1 for stages in checkpoints.values())
    }


def stage_figures(results: Results, looks: Mapping[str, Style]) -> Iterator[Plot]:
    """Yield a figure for each attack in stages: how many samples of every checkpoint stand after each."""
    for condition, after in _in_stages(results).items():
        yield _stage_figure(condition, after, looks, results.manifest)


def _stage_figure(
    condition: str, after: Mapping[str, Mapping[str, Figure]], looks: Mapping[str, Style], manifest: Manifest
) -> Plot:
    stages, names = list(dict.fromkeys(stage for points in after.values() for stage in points)), brief_labels([*after])

    def paint(canvas: Canvas) -> None:
        (axes,) = panels(canvas, 1)
        for place, (name, points) in enumerate(after.items()):
            places, shift = [stages.index(stage) for stage in points], series_shift(place, len(after), 7, 48)
            dots(axes, places, list(points.values()), looks[name], shift=shift)
        axes.set_xticks(range(len(stages)), stages)
        axes.set_xlim(-0.4, len(stages) - 0.6)
        axes.set_ylim(0, 104)
        axes.set_ylabel("still correct, %")
        legend(canvas, {names[name]: looks[name] for name in names})

    sentences = []
    for name, points in after.items():
        standing = ", ".join(f"{round(point.value * point.n)} after {stage}" for stage, point in points.items())
        sentences.append(f"of {next(iter(points.values())).n} samples of {names[name]} are still correct: {standing}")
    label, many = name_of(condition, "table", manifest), manifest.protocol.samples.many
    title, height = f"{shorten_name(label, 60)}: {many} still correct after each stage", 260 + 18 * -(-len(names) // 2)
    alt = f"{shorten_name(label, 90)}: {list_some(sentences)}."
    caption = f"Each stage attacks the {many} that earlier stages left correct; 95 % intervals."
    return Plot("stages", title, height, paint, alt=alt, caption=caption, name=condition)


LUCKY = "model/lucky-pass"


def _least(texts: Sequence[str], cells: Cells, manifest: Manifest, headline: Metric, of: str = "") -> Iterator[Clause]:
    """Yield the result of the strongest of these attacks, of equals the last. One that won by a lucky pass of a random
    model counts only where there is no other. of: whose images, if not clean."""
    attacked = [row for (condition, name), row in cells.items() if name == headline.name and condition in texts]
    attacked = [row for row in attacked if all(each.code != LUCKY for each in row.findings)] or attacked
    if not attacked:
        return
    row, clean = min(reversed(attacked), key=lambda row: row.value), cells.get((CLEAN.text, headline.name))
    claim, space = manifest.claims[row.condition], manifest.protocol.space
    radius = amount(float(claim.eps), claim.norm, space) + ("" if claim.norm == "linf" else f" ({claim.norm})")
    radius += " in normalised units" if space == "normalised" else ""
    on_all = clean is not None and row.n == clean.n
    call = f"{called_attack(*attack_parts(row.condition), manifest)} at {radius}{beneath(row.condition, manifest)}"
    leaves = f"leaves {share(row)}" + ("" if on_all else f" of {row.n} {manifest.protocol.samples.many}")
    if missing := sum(not is_whole(cells, condition, headline.name) for condition in texts):
        so_far = f"{', the least' if len(attacked) > 1 else ''} so far (unfinished attacks: {missing} of {len(texts)})"
        yield Clause(f"the attack{of} {call} {leaves}{so_far}", (row,))
    else:
        yield Clause(f"the {'strongest' if len(attacked) > 1 else 'only'} attack{of}, {call}, {leaves}", (row,))


def dossier_grids(results: Results) -> list[Table]:
    """Return the checks that found something, then, folded, the others; the rows of each check together."""
    flagged, passed = dict[str, list[tuple[str, ...]]](), dict[str, list[tuple[str, ...]]]()
    findings = {(row.checkpoint, row.condition): row.findings for row in results}
    for unit, (n, stages, circles) in results.gathered(Stages).by_unit.items():
        signs = *dossier_of(results.run, *unit, n, stages), *circles, *checks_of_order(findings.get(unit, ()))
        for check in signs:
            nothing = "not measured" if check.figure == "not measured" else "nothing found"
            label = name_of(unit[1], "table", results.manifest)
            row = (check.name, unit[0], label, check.figure, f"⚑ {check.finding.text}" if check.finding else nothing)
            (flagged if check.finding else passed).setdefault(check.name, []).append(row)
    headings = ("check", "checkpoint", "condition", "measured", "verdict")
    grids = []
    for what, checks in (("raised flags", flagged), ("without a flag", passed)):
        if rows := tuple(row for some in checks.values() for row in some):
            count = f"{len(rows)} check{'s' if len(rows) > 1 else ''}"
            grids.append(Table(f"{count} {what}", headings, rows, keys=3, folded=checks is passed))
    return grids


class AttacksAggregator(Aggregator):
    words = VOCABULARY
    overview = OrderOfAttacks

    def gatherers(self) -> Sequence[type[Gatherer]]:
        return (Stages,)

    def extras(self, reading: RecordReader, condition: str, read: pa.Table) -> tuple[list[Figure], list[Finding]]:
        stages, n, figures = stages_of(read), len(read), list[Figure]()
        findings = raised_by(dossier_of(reading.run, reading.checkpoint, condition, n, stages))
        broken_by = np.array(read["broken_by"].to_pylist(), object) if stages else None
        groups, standing = reading.groups(read["sample_id"]), np.ones(n, bool)
        for stage in stages:
            standing &= broken_by != stage.name
            figures.append(share_of(standing, groups).named(f"{AFTER}{stage.name}"))
        return figures, findings


class AttacksPresenter(Presenter):
    words = VOCABULARY

    def clauses(self, cells: Cells, manifest: Manifest, headline: Metric) -> Iterable[Clause]:
        """Yield the result of the attack that leaves least, then that of those on corrupted images.

        While records are missing, none is called the strongest. Attacks on a part of the samples count only where there
        are no others, and stages of an attack that is estimated as a whole do not.
        """
        wholes = filter(None, map(estimated, manifest.conditions))
        stages = tuple({f"{whole.removesuffix(')')},only=" for whole in wholes})
        whole = [text for text in manifest.claims if not text.startswith(stages)]
        every = [text for text in whole if not samples_named(text)] or whole
        on_clean = [text for text in every if starts_from(text) == CLEAN.text]
        on_corrupted = [text for text in every if text not in on_clean]
        yield from _least(on_clean, cells, manifest, headline)
        yield from _least(on_corrupted, cells, manifest, headline, " on corrupted images")

    def tables(self, results: Results) -> Iterable[Table]:
        """Yield those of a terminal; a page shows the same in other sections."""
        manifest, rows = results.manifest, [*stage_rows(results)]
        lines = [(f"{name}, {name_of(condition, 'table', manifest)}", *texts) for name, condition, texts in rows]
        if lines:
            title = "stages: each attacks what earlier stages left correct"
            table = Table(title, ("", *STAGE_HEADINGS), tuple(lines), places=("terminal",))
            yield table.under_heads([unit for unit, *_ in lines])
        if strengths := [
            (f"{name}, {name_of(condition, 'table', manifest)}", *texts)
            for name, condition, texts in strength_rows(results)
        ]:
            title, headings = STRENGTH.format(many=manifest.protocol.samples.many), ("", *STRENGTH_HEADINGS[1:])
            yield Table(title, headings, tuple(strengths), note=STRENGTH_NOTE, places=("terminal",))
        yield from support_tables(results, of_family(self.name))

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        curves = tuple(curve_figures(results, looks, TOP1.name, "attacks"))
        yield Section("attacks", "Robust accuracy against ε", figures=curves)
        manifest, staged = results.manifest, _in_stages(results)
        attack_names = {called_attack(*attack_parts(condition), manifest) for condition in staged}

        def in_stages() -> dict[str, list[Table]]:
            parts, headline = (
                _parts_of(stage_rows(results), ("attack", *STAGE_HEADINGS), manifest, 2),
                STAGE_HEADINGS[1],
            )
            samples = manifest.protocol.samples.many
            grids = side_by_side(f"{samples.capitalize()} after each stage", parts, headline=headline)
            parts, title = _parts_of(strength_rows(results), STRENGTH_HEADINGS, manifest), STRENGTH.format(many=samples)
            strengths = side_by_side(title, parts, headline=STRENGTH_HEADINGS[1], note=STRENGTH_NOTE)
            return {"grids": grids, "strengths": [*strengths, *support_grids(results, of_family(self.name))]}

        title = (
            f"{attack_names.pop() if len(attack_names) == 1 else 'Attacks'} by stage" if staged else "Attack strength"
        )
        yield Section("stages", title, in_stages, tuple(stage_figures(results, looks)))
        yield Section("doubts", "Can these numbers be trusted?", lambda: {"grids": dossier_grids(results)})
