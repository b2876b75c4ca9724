"""AutoAttack in two phases compared with the whole, on the same images: estimate, interval, passes through the network.

    python -m scripts.studies.attack_strength.two_phase CHECKPOINT --data-dir IMAGES --eps 2/255 --limit 500
        --second 40,60 --out runs/two

Each is a run folder under --out, and the same command continues where it was stopped. Passes are counted rows of
records: forwards and backwards of each sample. Standing samples and intervals are those of the summary. What a stage
does to a sample is the same in both, so with --from-whole the rows of two phases are made from the records of the
whole, without a run.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

import robustkit
from robustkit.common.determinism import draw_samples
from robustkit.common.figure import Figure
from robustkit.evaluations.aggregate import readable_rows
from robustkit.report.run import Run
from robustkit.slices.two_phase.results import two_phase_share
from scripts.pages.writing import deliver, markdown


def passes(run: Run) -> tuple[int, int]:
    """Return the forwards and backwards of all attacked samples of a run, clean images left out."""
    total = [0, 0]
    for checkpoint, condition in run.units():
        if condition != "clean":
            table = run.table(checkpoint, condition, ["forwards", "backwards"])
            for place, name in enumerate(("forwards", "backwards")):
                total[place] += sum(value or 0 for value in table[name].to_pylist())
    return total[0], total[1]


def figure(run: Run, metric: str) -> Figure:
    """Return the row of the attack as a whole."""
    rows = [row for row in run.summary() if row.metric == metric and row.condition != "clean"]
    return rows[-1]


@dataclass(frozen=True)
class Line:
    """What an attack found on n samples, with its interval, and what it asked of the network."""

    value: float
    low: float
    high: float
    n: int
    forwards: int
    backwards: int


def measured(run: Run, metric: str) -> Line:
    """Return the line of a run."""
    row = figure(run, metric)
    return Line(row.value, row.low, row.high, run.manifest.data.n, *passes(run))


def from_whole(run: Run, second: int) -> Line:
    """Return what two phases would find, of which the first is APGD on cross-entropy, from the records of the whole."""
    ((checkpoint, condition),) = (u for u in run.units() if u[1].startswith("autoattack(") and "only=" not in u[1])
    rest = [f"{way} {stage}" for stage in ("apgd-t", "fab-t", "square") for way in ("forwards", "backwards")]
    of_first = [f"{way} {stage}" for stage in ("clean", "apgd-ce") for way in ("forwards", "backwards")]
    names = ["sample_id", "error", "correct", "broken_by", *of_first, *rest]
    records = readable_rows(run.table(checkpoint, condition, names))
    early = pc.fill_null(pc.is_in(records["broken_by"], pa.array(["clean", "apgd-ce"])), False)
    standing = records.filter(pc.invert(early))
    chosen = draw_samples(standing["sample_id"].to_pylist(), second, seed=run.manifest.seed, purpose="second phase")
    some = standing.filter(pc.is_in(standing["sample_id"], pa.array(sorted(chosen))))
    kept = sum(some["correct"].to_pylist())
    share, (low, high) = two_phase_share(len(records), len(standing), len(some), kept)

    def asked(way: str) -> int:
        first = sum(sum(records[name].to_pylist()) for name in of_first if name.startswith(way))
        return int(first) + sum(sum(some[name].to_pylist()) for name in rest if name.startswith(way))

    again = len(some)  # the second phase asks for clean logits once more
    return Line(share, low, high, len(records), asked("forwards") + again, asked("backwards"))


def table(options: argparse.Namespace) -> str:
    """Run what is not there yet, and return the rows."""
    shared: dict[str, Any] = {
        "data_dir": options.data_dir,
        "eps": options.eps,
        "limit": options.limit,
        "shard_size": options.shard_size,
        "device": options.device,
        "dtype": options.dtype,
        "model": {"arch": options.arch} if options.arch else None,
        "browse": 0,
        "say": lambda text: print(text, file=sys.stderr),
    }

    def run_of(attack: str, name: str) -> Run:
        return robustkit.audit(options.checkpoint, attacks=attack, out=options.out / name, **shared)

    whole = run_of("autoattack", "whole")
    lines = {"autoattack": measured(whole, "top1")}
    for second in map(int, options.second.split(",")):
        attack = f"autoattack(second={second})"
        if options.from_whole:
            lines[attack] = from_whole(whole, second)
        else:
            lines[attack] = measured(run_of(attack, str(second)), "estimated_top1")
    rows: list[tuple[str, ...]] = [
        (
            "attack",
            "n",
            "robust accuracy %",
            "interval, of the whole's",
            "forwards",
            "backwards",
            "passes, of the whole's",
        )
    ]
    of_all = lines["autoattack"]
    for attack, line in lines.items():
        rows.append(
            (
                f"`{attack}`",
                str(line.n),
                f"{100 * line.value:.1f} [{100 * line.low:.1f}, {100 * line.high:.1f}]",
                f"{(line.high - line.low) / (of_all.high - of_all.low):.2f}",
                str(line.forwards),
                str(line.backwards),
                f"1/{(of_all.forwards + of_all.backwards) / (line.forwards + line.backwards):.1f}",
            )
        )
    return markdown(rows)


def main(arguments: list[str] | None = None) -> int:
    """Print the table. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--arch")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--eps", required=True)
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--second", default="60", help="samples of the second phase, several with commas")
    parser.add_argument(
        "--from-whole", action="store_true", help="make the rows of two phases from the whole's records"
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shard-size", type=int, help="samples that a stop loses at most; default: robustkit audit's")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32", help="what the attacks search in; float32 judges")
    options = parser.parse_args(arguments)
    return deliver("scripts.studies.attack_strength.two_phase", lambda: table(options), None)


if __name__ == "__main__":
    sys.exit(main())
