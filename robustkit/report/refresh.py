"""A run as a page and as a terminal table, from its records alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import NothingEvaluated
from ..evaluations.attention.metrics import under_of
from ..evaluations.attention.tables import attention_tables
from ..evaluations.corruptions.tables import corruption_tables, is_of_corruptions, left_out_lines
from ..evaluations.maps.tables import is_of_maps, map_tables
from ..results.summary import pixels, stages, survey, write_summary
from ..runs.folder import Run
from ..tasks.segmentation.tables import scene_tables

if TYPE_CHECKING:
    from rich.table import Table


HEADINGS = ("checkpoint", "attention", "condition", "n", "top-1 % [95 %]", "top-5 %", "NLL", "ECE %", "largest |δ|")

STAGE_HEADINGS = ("stage", "standing", "forwards", "backwards", "seconds")


def refresh(run: Run) -> list[dict[str, Any]]:
    """Make summary.json, summary.csv and report.html anew from the records; returns the summary's rows.

    Raises:
        NothingEvaluated: there is no row, because every image was unreadable or nothing was computed yet.
    """
    from .page import write_report

    manifest = run.manifest
    found = survey(run)
    bad = found.bad_images
    if bad != manifest["bad_images"]:
        run.write_manifest(manifest | {"bad_images": bad})
    rows = write_summary(run, found.rows)
    write_report(run, rows)
    if not rows:
        why = bad[0]["error"] if bad else "there are no records"
        raise NothingEvaluated(
            f"{run.path}: none of the {manifest['data']['n']} images was evaluated; the first: {why}"
        )
    return rows


def table_rows(run: Run, results: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """One row of texts for each checkpoint and condition, under `HEADINGS`; flags come last, joined. Corruptions have
    tables of their own.

    A dash stands where samples left an attack at their first wrong prediction, so that the figure would mean nothing.
    """
    words = {"none": "no", "other": "other"}  # what stands for a formula where there is none
    attention = {c["name"]: words.get(c["attention"], c["attention"]) for c in run.manifest["checkpoints"]}
    cells: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in () if is_of_scenes(run) else results:
        if not _is_of_results(row["condition"]):
            continue
        cells.setdefault((row["checkpoint"], row["condition"]), {})[row["metric"]] = row
    claims = run.manifest.get("claims", {})
    rows: list[tuple[str, ...]] = []
    for (checkpoint, condition), metric in cells.items():
        top1 = metric["top1"]
        norm = claims.get(condition, {}).get("norm", "linf")
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
                pixels(largest["value"], norm) if largest else "0",
                "; ".join(top1["flags"]),
            )
        )
    return rows


def _is_of_results(condition: str) -> bool:
    """Whether a condition stands in the first table: what has one of its own does not."""
    return not is_of_corruptions(condition) and not is_of_maps(condition) and under_of(condition) is None


def is_of_scenes(run: Run) -> bool:
    """Whether a run is of segmenters."""
    return bool(run.manifest["protocol"].get("task") == "segmentation")


def _figure(row: dict[str, Any] | None, scale: float, form: str) -> str:
    """A value as text; a dash where there is none, nan where it is not finite (None in summary.json)."""
    if row is None:
        return "–"
    return "nan" if row["value"] is None else format(scale * row["value"], form)


def terminal_table(run: Run, results: Sequence[dict[str, Any]]) -> Table:
    """The results as a rich table, a section for each checkpoint; the caller prints the flags under it."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    manifest = run.manifest
    title = f"protocol {manifest['protocol']['tag']}: {manifest['protocol']['summary']}"
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for heading in (HEADINGS[0], *HEADINGS[2:], ""):
        words = heading in ("checkpoint", "condition")
        table.add_column(heading, justify="left" if words else "right", overflow="fold", no_wrap=not words)
    rows = table_rows(run, results)
    for index, row in enumerate(rows):
        first = index == 0 or rows[index - 1][0] != row[0]
        last = index + 1 == len(rows) or rows[index + 1][0] != row[0]
        second = index > 0 and not first and (index == 1 or rows[index - 2][0] != row[0])
        name = row[0] if first else f"  {row[1]} attention" if second else ""
        cells = [f"{name}\n  {row[1]} attention" if first and last else name, *row[2:9], "⚑" if row[9] else ""]
        table.add_row(*map(Text, cells), end_section=last)
    return table


def stage_tables(run: Run) -> list[tuple[str, str, list[tuple[str, ...]]]]:
    """For each attack in stages its checkpoint, condition and rows of texts under `STAGE_HEADINGS`."""
    found = []
    for checkpoint, condition in run.units():
        if not _is_of_results(condition):
            continue  # nothing of these needs to be read
        rows: list[tuple[str, ...]] = [
            (
                stage.name,
                str(stage.standing),
                f"{stage.forwards:,}",
                f"{stage.backwards:,}",
                "–" if stage.seconds is None else f"{stage.seconds:.1f}",
            )
            for stage in stages(run, checkpoint, condition)
        ]
        if rows:
            found.append((checkpoint, condition, rows))
    return found


def terminal_stages(run: Run) -> Table | None:
    """The stages of all attacks that have some as one rich table; None if there are none."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    found = stage_tables(run)
    if not found:
        return None
    table = Table(title="stages: each works on what the ones before left standing", title_justify="left")
    table.box = box.SIMPLE_HEAD
    for heading in ("checkpoint", "condition", *STAGE_HEADINGS):
        words = heading in ("checkpoint", "condition", "stage")
        table.add_column(heading, justify="left" if words else "right", overflow="fold", no_wrap=not words)
    for checkpoint, condition, rows in found:
        for index, row in enumerate(rows):
            names = (checkpoint, condition) if index == 0 else ("", "")
            table.add_row(*map(Text, (*names, *row)), end_section=index + 1 == len(rows))
    return table


def flag_lines(run: Run, results: Sequence[dict[str, Any]]) -> list[str]:
    """`⚑ checkpoint, condition: flag` for each flag, and what was left out."""
    lines = [f"⚑ {row[0]}, {row[2]}: {row[9]}" for row in table_rows(run, results) if row[9]]
    if not is_of_scenes(run):
        lines += [f"⚑ {table.checkpoint}, {flag}" for table in corruption_tables(results) for flag in table.flags]
    lines += dict.fromkeys(f"⚑ {table.checkpoint}, {flag}" for table in map_tables(results) for flag in table.flags)
    lines += (f"⚑ {flag}" for table in attention_tables(results) for flag in table.flags)
    lines += (f"⚑ {flag}" for table in scene_tables(results, run.manifest) for flag in table.flags)
    return [*lines, *(f"⚑ {line}" for line in left_out_lines(run))]
