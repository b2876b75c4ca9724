"""`robustkit compare`: show paired differences of runs as tables in a terminal, and as JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..display.console import print_as_it_is, print_line, print_tables
from ..errors import RunError
from ..results.compared import compare
from ..results.tables import flip_tables, tables

if TYPE_CHECKING:
    from rich.console import Console


def compare_runs(runs: Sequence[Path], *, json_file: Path | None = None, console: Console, **options: Any) -> None:
    """Compare checkpoints of runs as `compare`, show the result, and write it to a file if asked."""
    compared = compare(*runs, **options)
    print_tables(console, [table.said_once("n") for table in tables(compared.comparison)], "the --json file")
    for line in compared.unpaired:
        print_line(console, f"⚑ {line}")
    more = (*flip_tables(compared.comparison), *compared.placed)
    print_tables(console, [table.said_once("n") for table in more], "the --json file")
    if json_file is not None:
        _write(json_file, compared.to_dict())
        print_as_it_is(console, f"json: {json_file}")


def _write(path: Path, content: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    except OSError as fault:
        remedy = "choose a file in a folder that exists with --json"
        raise RunError(f"cannot write {path}: {fault.strerror or fault}; {remedy}") from None
