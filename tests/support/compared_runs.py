"""Runs made by hand to be compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from click.testing import CliRunner
from manifests import whole
from sealing import seal

from robustkit.cli.app import cli
from robustkit.report.run import Run
from robustkit.results.comparison import Comparison, compare_sides
from robustkit.results.pairing import checkpoint_pairs

PGD, ENDED = "pgd(eps=1/255,steps=20)", "autoattack(eps=1/255,version=standard)"
FOG = [f"corruption(fog,severity={severity})" for severity in (1, 2, 3, 4, 5)]
NAMES = ("plain", "other")
N = 40
Rows = list[dict[str, Any]]
Change = Callable[[dict[str, Any]], None]


def rows_of(seed: int, n: int = N, **more: Any) -> Rows:
    """Records that are right or wrong at random."""
    generator = np.random.default_rng(seed)
    every = zip(generator.random(n) < 0.6, generator.random(n), strict=True)
    fixed = {"top5": True, "error": None, **more}
    return [
        {"sample_id": f"{i:03}", "label": i % 3, "correct": bool(right), "nll": float(loss), **fixed}
        for i, (right, loss) in enumerate(every)
    ]


def manifest_of(names: Sequence[str], conditions: Sequence[str], n: int = N) -> dict[str, Any]:
    size = {"input_size": [32, 32], "crop_pct": 1.0}
    formulas = {"plain": "standard", "other": "quest", "third": "elliptical"}
    return {
        "seed": 0,
        "protocol": {"tag": "standard@1:96fe6f4a", "task": "classification"},
        "conditions": list(conditions),
        "claims": {ENDED: {"early_stop": True}, PGD: {"early_stop": False}},
        "checkpoints": [
            {"name": k, "attention": formulas.get(k, "standard"), "arch": "vit", "sha256": f"{i}{k}" * 9}
            | {"num_classes": 3, "preprocessing": dict(size)}
            for i, k in enumerate(names)
        ],
        "data": {"name": "set", "n": n, "classes": 3, "digest": "d1" * 16},
        "arguments": {},
        "deciding": {"protocol": "standard@1:96fe6f4a", "seed": 0, "dtype": "float32", "compile": False},
        "bad_images": [],
    }


def run_of(folder: Path, records: Mapping[tuple[str, str], Rows], change: Change = lambda manifest: None) -> Run:
    """A run folder with these records by checkpoint and condition."""
    names, conditions = (list(dict.fromkeys(key[place] for key in records)) for place in (0, 1))
    run, manifest = Run(folder), manifest_of(names, conditions)
    change(manifest)
    run.write_manifest(whole(manifest))
    for (name, condition), rows in records.items():
        for shard in (0, 1):  # two files, whose order is not that of the ids
            part = rows[::-1][shard::2]
            table = pa.Table.from_pylist(part) if part else pa.Table.from_pylist(rows).slice(0, 0)
            at = table.schema.get_field_index("error")
            run.write_shard(
                run.shard_path(name, condition, shard), table.set_column(at, "error", table["error"].cast("string"))
            )
    seal(run).write_summary([])  # not from these records, which have few columns
    return run


def records_of(*conditions: str, names: Sequence[str] = NAMES) -> dict[tuple[str, str], Rows]:
    keys = [(name, condition) for condition in conditions for name in names]
    return {key: rows_of(seed) for seed, key in enumerate(keys)}


def figures(records: Mapping[tuple[str, str], Rows], name: str, condition: str, column: str) -> Any:
    return np.array([float(row[column]) for row in records[name, condition]])


def compared(*runs: Run, **options: Any) -> Comparison:
    return compare_sides(checkpoint_pairs(runs, **options))


def change_of(*path: str, to: Any) -> Change:
    def change(manifest: dict[str, Any]) -> None:
        place: Any = manifest
        for key in path[:-1]:
            place = place[0 if key == "0" else key]
        place[path[-1]] = to

    return change


def command(*words: object) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["compare", *map(str, words)])
    return done.exit_code, done.output
