"""What is kept of the trainings of time series: their logs, and accuracies under noise, gaps, warps and PGD."""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from robustkit.common.files import write_whole
from robustkit.errors import RobustkitError
from robustkit.pipeline.scheduler import run
from robustkit.pipeline.series import SeriesRequest

GRID: Mapping[str, tuple[str, Sequence[str]]] = {
    "jitter": ("sigma", ("0.25", "0.5", "1", "2")),
    "drop-steps": ("share", ("0.1", "0.2", "0.4", "0.6")),
    "drop-channels": ("share", ("0.25", "0.5")),
    "warp": ("sigma", ("0.25", "0.5", "1")),
    "rescale": ("sigma", ("0.25", "0.5", "1")),
}
ATTACK, RADII = "pgd", ("0.1", "0.3")
LIMIT = {"Handwriting": 200}
"""Series that are attacked and disturbed, where all would take hours on one core; the clean figures are of all."""

Log = dict[str, Any]
Kept = dict[tuple[str, str, str], dict[int, float]]
"""Accuracies by data set, condition, formula and seed."""


def audited(work: Path, data: Path, out: Path, logs: Sequence[Log]) -> Iterator[list[str]]:
    """Audit all models of each data set; yield data set, formula, seed, condition and accuracy."""
    asked = [f"{kind}({name}={value})" for kind, (name, values) in GRID.items() for value in values]
    for problem in dict.fromkeys(log["data"] for log in logs):
        mine = [log for log in logs if log["data"] == problem]
        names = {_name(log): log for log in mine}
        done = run(
            SeriesRequest(
                checkpoints=[work / f"{name}.safetensors" for name in names],
                data_dir=data / f"{problem}_TEST.ts",
                attacks=ATTACK,
                eps=",".join(RADII),
                disturbances=asked,
                limit=LIMIT.get(problem),
                out=out / problem,
            ),
            say=print,
        )
        for row in done.summary():
            if row["metric"] == "top1":
                log = names[row["checkpoint"]]
                yield [problem, log["attention"], str(log["seed"]), row["condition"], f"{row['value']:.6f}"]


def _name(log: Log) -> str:
    return f"{log['data'].lower()}-{log['attention']}-{log['seed']}"


def gather(work: Path, data: Path | None, out: Path, folder: Path) -> None:
    """Write the logs and accuracies of all finished trainings next to the page. Raises RobustkitError without any."""
    logs = [json.loads(path.read_text("utf-8")) for path in sorted(work.glob("*.json"))]
    if not logs:
        raise RobustkitError(f"{work}: no finished training; start with python -m scripts.series.train --out {work}")
    folder.mkdir(parents=True, exist_ok=True)
    if data is not None:
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(["data", "attention", "seed", "condition", "accuracy"])
        writer.writerows(audited(work, data, out, logs))
        write_whole(folder / "accuracies.csv", table.getvalue().encode())
    lines = (json.dumps(log, separators=(",", ":")) for log in logs)
    write_whole(folder / "trainings.jsonl", ("\n".join(lines) + "\n").encode())


def kept(folder: Path) -> tuple[list[Log], Kept]:
    """Return what `gather` wrote."""
    logs = [json.loads(line) for line in (folder / "trainings.jsonl").read_text("utf-8").splitlines()]
    values: Kept = defaultdict(dict)
    if not (folder / "accuracies.csv").exists():
        return logs, values
    with (folder / "accuracies.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            values[row["data"], row["condition"], row["attention"]][int(row["seed"])] = float(row["accuracy"])
    return logs, values
