"""AutoAttack in two phases compared with the whole, on the same images: estimate, interval, passes through the network.

    python -m scripts.bench.two_phase CHECKPOINT --data-dir IMAGES --eps 2/255 --limit 500 --second 40,60 --out runs/two

Each is a run folder under --out, and the same command continues where it was stopped. Passes are counted rows of
records: forwards and backwards of each sample. Standing samples and intervals are those of the summary.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import robustkit
from robustkit.results.run import Run
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


def figure(run: Run, metric: str) -> dict[str, Any]:
    """Return the row of the attack as a whole."""
    rows = [row for row in run.summary() if row["metric"] == metric and row["condition"] != "clean"]
    return rows[-1]


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
    whole: tuple[float, int] | None = None
    for second in (None, *map(int, options.second.split(","))):
        attack, metric = (
            ("autoattack", "top1") if second is None else (f"autoattack(second={second})", "estimated_top1")
        )
        run = robustkit.audit(options.checkpoint, attacks=attack, out=options.out / (f"{second or 'whole'}"), **shared)
        row, (forwards, backwards) = figure(run, metric), passes(run)
        width, work = row["ci_high"] - row["ci_low"], forwards + backwards
        whole = whole or (width, work)
        rows.append(
            (
                f"`{attack}`",
                str(run.manifest.data.n),
                f"{100 * row['value']:.1f} [{100 * row['ci_low']:.1f}, {100 * row['ci_high']:.1f}]",
                f"{width / whole[0]:.2f}",
                str(forwards),
                str(backwards),
                f"1/{whole[1] / work:.1f}",
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
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shard-size", type=int, help="samples that a stop loses at most; default: robustkit audit's")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="float32", help="what the attacks search in; float32 judges")
    options = parser.parse_args(arguments)
    return deliver("scripts.bench.two_phase", lambda: table(options), None)


if __name__ == "__main__":
    sys.exit(main())
