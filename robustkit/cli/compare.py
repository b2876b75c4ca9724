"""`robustkit compare`: show paired differences of runs as tables in a terminal, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..display.console import print_as_it_is, print_line, print_tables
from ..errors import RunError
from ..evaluations.metrics import is_finite
from ..evaluations.records import check_plugins
from ..results.comparison import Comparison, ComparisonRow, compare, own_flags
from ..results.pairing import Side, checkpoint_pairs, unpaired_lines
from ..results.published import read_published
from ..results.tables import Among, among_tables, found_among, sides_of, tables
from ..runs.folder import RunFolder

if TYPE_CHECKING:
    from rich.console import Console


def compare_runs(
    runs: Sequence[Path],
    *,
    checkpoints: Sequence[str] = (),
    against: str | None = None,
    reference: str | None = None,
    json_file: Path | None = None,
    console: Console,
) -> None:
    """Compare checkpoints of runs (`checkpoint_pairs` says which), show the result, and write it to a file if asked."""
    opened = [RunFolder.existing(path) for path in runs]
    published = None if reference is None else read_published(reference)
    single = published is not None and len(opened) == 1 and len(opened[0].manifest.names) == 1
    if single:  # a checkpoint by itself has nothing to be paired with, and a place among published ones
        check_plugins(opened[0].manifest)
    comparison = (
        Comparison((), published) if single else compare(checkpoint_pairs(opened, checkpoints, against), published)
    )
    alone = [] if single else unpaired_lines(opened, checkpoints, against)
    print_tables(console, [table.said_once("n") for table in tables(comparison)], "the file of --json")
    for line in alone:
        print_line(console, f"⚑ {line}")
    sides = [] if published is None else sides_of(opened, checkpoints)
    if published is not None:
        found = among_tables(sides, published)
        if single and not found:
            remedy = "audit a condition of it, or give another run"
            raise RunError(f"{opened[0].path} has no figure that {published.name} has; {remedy}")
        print_tables(console, [table.said_once("n") for table in found], "the file of --json")
    if json_file is not None:
        placed = [_among(side, each) for side in sides if published for each in found_among(side, published)]
        _write(json_file, as_json(comparison) | {"unpaired": alone, "among": placed})
        print_as_it_is(console, f"json: {json_file}")


def _among(side: Side, each: Among) -> dict[str, Any]:
    named = {name: each.row[name] for name in ("condition", "metric", "n")}
    finite = each.row["value"] if is_finite(each.row["value"]) else None
    published = {"published": each.levels, "spread": each.spreads, "places": each.places}
    return {"checkpoint": side.checkpoint, **named, "value": finite, **published}


def as_json(comparison: Comparison) -> dict[str, Any]:
    """Return all that the tables say, and where each side comes from; values that are not finite are None."""
    reference = comparison.reference
    fields = ("name", "summary", "source", "data", "protocol")
    plain = [
        {
            "first": _side(pair.first),
            "second": _side(pair.second),
            "changed": list(pair.changed),
            "flags": [*pair.flags, *own_flags([pair])],
            "left_out": list(pair.left_out),
            "rows": [_row(row) for row in pair.rows],
        }
        for pair in comparison.pairs
    ]
    return {"pairs": plain, "reference": reference and {name: getattr(reference, name) for name in fields}}


def _side(side: Side) -> dict[str, Any]:
    described, manifest = side.described, side.manifest
    return {
        "run": str(side.run.path),
        "checkpoint": side.checkpoint,
        "sha256": described.sha256,
        "attention": described.attention,
        "protocol": manifest.protocol.tag,
        "seed": manifest.seed,
        "dtype": manifest.deciding.dtype,
        "data": manifest.data.name,
        "data_digest": manifest.data.digest,
    }


def _row(row: ComparisonRow) -> dict[str, Any]:
    difference = row.difference
    figures = {
        "first": difference.first,
        "second": difference.second,
        "difference": difference.value,
        "ci_low": difference.ci_low,
        "ci_high": difference.ci_high,
        "p": difference.p_value,
        "p_holm": row.p_value,
        "published": row.published,
    }
    named = {"condition": row.condition, "metric": row.metric, "n": difference.n}
    finite = {key: value if is_finite(value) else None for key, value in figures.items()}
    return named | finite | {"significant": row.significant, "verdict": row.verdict}


def _write(path: Path, content: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as fault:
        remedy = "choose a file in a folder that exists with --json"
        raise RunError(f"cannot write {path}: {fault.strerror or fault}; {remedy}") from None
