"""A run as a page and as a terminal table, from its records alone."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING, Any

from .metrics import bad_images, pixels, write_summary
from .records import Run, write_whole

if TYPE_CHECKING:
    from rich.table import Table

HEADINGS = ("checkpoint", "attention", "condition", "n", "top-1 % [95 %]", "top-5 %", "NLL", "ECE %", "largest |δ|")


def refresh(run: Run) -> list[dict[str, Any]]:
    """Make summary.json, summary.csv and report.html anew from the records; returns the summary's rows."""
    manifest = run.manifest
    bad = bad_images(run)
    if bad != manifest["bad_images"]:
        run.write_manifest(manifest | {"bad_images": bad})
    rows = write_summary(run)
    write_report(run, rows)
    return rows


def table_rows(run: Run, results: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """One row of texts for each checkpoint and condition, under `HEADINGS`; flags come last, joined."""
    attention = {c["name"]: c["attention"] for c in run.manifest["checkpoints"]}
    cells: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in results:
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
                f"{100 * metric['top5']['value']:.1f}",
                f"{metric['nll']['value']:.3f}",
                f"{100 * metric['ece']['value']:.1f}",
                pixels(largest["value"], norm) if largest else "0",
                "; ".join(top1["flags"]),
            )
        )
    return rows


def terminal_table(run: Run, results: Sequence[dict[str, Any]]) -> Table:
    """The results as a rich table; flags under it are printed by the caller."""
    from rich.table import Table
    from rich.text import Text

    manifest = run.manifest
    table = Table(
        title=f"protocol {manifest['protocol']['tag']}: {manifest['protocol']['summary']}", title_justify="left"
    )
    for heading in HEADINGS:
        right = heading not in HEADINGS[:3]
        table.add_column(heading, justify="right" if right else "left", overflow="fold", no_wrap=right)
    table.add_column("", no_wrap=True)
    previous = ""
    for row in table_rows(run, results):
        if previous and row[0] != previous:
            table.add_section()
        name = "" if row[0] == previous else row[0]
        table.add_row(Text(name), Text("" if not name else row[1]), *map(Text, row[2:9]), Text("⚑" if row[9] else ""))
        previous = row[0]
    return table


def flag_lines(run: Run, results: Sequence[dict[str, Any]]) -> list[str]:
    """`⚑ checkpoint, condition: flag` for each flag."""
    return [f"⚑ {row[0]}, {row[2]}: {row[9]}" for row in table_rows(run, results) if row[9]]


def write_report(run: Run, results: Sequence[dict[str, Any]]) -> None:
    """Write report.html: one self-contained page, all text escaped."""
    from jinja2 import Environment, StrictUndefined

    source = (resources.files("robustkit") / "templates" / "report.html.j2").read_text(encoding="utf-8")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    groups: dict[str, list[tuple[str, ...]]] = {}
    for row in table_rows(run, results):
        groups.setdefault(row[0], []).append(row)
    page = environment.from_string(source).render(
        manifest=run.manifest, headings=HEADINGS, groups=groups, folder=run.path.name
    )
    write_whole(run.path / "report.html", page.encode())
