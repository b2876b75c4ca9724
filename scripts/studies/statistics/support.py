"""What a cheap condition on all samples adds to an expensive one on few, on records of both: widths, errors, coverage.

    python -m scripts.studies.statistics.support RUN 'autoattack(eps=2/255,version=standard)'
        --by RUN 'pgd(eps=2/255,steps=20)' --drawn 50,100,200

Both conditions must have been evaluated on the same samples, so that what the few estimate is known. As often as
--draws says, m of them are drawn, and the expensive figure of the others is hidden. Compared are the plain figure of
the m and the supported one (docs/concepts/definitions/comparisons.md).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from robustkit.common.intervals import Z, wilson
from robustkit.errors import RunError
from robustkit.evaluations.estimation import supported_mean
from robustkit.report.run import Run
from scripts.pages.writing import deliver, markdown

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Found:
    """Over all draws of m. errors: root mean squared, of the figure of all samples. held: how often the intervals hold
    it. width: of the supported interval, as a share of the plain one's. weight: the mean of lambda.
    """

    m: int
    width: float
    weight: float
    errors: tuple[float, float]
    held: tuple[float, float]


def column(run: Run, checkpoint: str, condition: str, name: str) -> dict[str, float]:
    """Return a column of records by sample, without samples that have none."""
    rows = run.table(checkpoint, condition, ["sample_id", name]).to_pylist()
    return {row["sample_id"]: float(row[name]) for row in rows if row[name] is not None}


def plain(values: Floats, binary: bool) -> tuple[float, float, float]:
    """Return a mean with the interval that a run gives it: Wilson's of shares, the normal one of others."""
    mean = float(values.mean())
    if binary:
        return mean, *wilson(int(values.sum()), len(values))
    reach = Z * float(values.std(ddof=1)) / len(values) ** 0.5
    return mean, mean - reach, mean + reach


def draws(expensive: Floats, cheap: Floats, sizes: list[int], times: int, seed: int = 0) -> Iterator[Found]:
    """Yield what is found for each m. expensive, cheap: (n,) of the same samples."""
    rng = np.random.default_rng(seed)
    binary = set(np.unique(expensive)) | set(np.unique(cheap)) <= {0.0, 1.0}
    truth = float(expensive.mean())
    for m in sizes:
        widths, weights, off, held = [], [], [], []
        for _ in range(times):
            order = rng.permutation(len(expensive))
            few, rest = order[:m], order[m:]
            before = plain(expensive[few], binary)
            after, weight = supported_mean(expensive[few], cheap[few], cheap[rest], binary)
            widths.append((after.high - after.low) / (before[2] - before[1]))
            weights.append(weight)
            off.append((before[0] - truth, after.value - truth))
            held.append((before[1] <= truth <= before[2], after.low <= truth <= after.high))
        errors = np.sqrt((np.array(off) ** 2).mean(axis=0))
        kept = np.array(held).mean(axis=0)
        first, second = float(errors[0]), float(errors[1])
        yield Found(
            m, float(np.mean(widths)), float(np.mean(weights)), (first, second), (float(kept[0]), float(kept[1]))
        )


def table(options: argparse.Namespace) -> str:
    """Return what is compared in a line, and a row for each m. Raises RunError for too few samples."""
    runs = [Run(options.run), Run(options.by[0])]
    name = runs[0].manifest.names[0]
    conditions = (options.condition, options.by[1])
    sides = [column(r, name, c, f) for r, c, f in zip(runs, conditions, options.figures, strict=True)]
    both = sorted(sides[0].keys() & sides[1].keys())
    sizes = [int(text) for text in options.drawn.split(",")]
    if len(both) <= max(sizes):
        raise RunError(f"{len(both)} samples have both figures; expected more than --drawn {max(sizes)}")
    expensive, cheap = (np.array([side[sample] for sample in both]) for side in sides)
    widths = ("width, of the plain", "error, of the plain", "as good as plain with")
    rows: list[tuple[str, ...]] = [("drawn", "λ", *widths, "holds the figure of all %, plain")]
    for found in draws(expensive, cheap, sizes, options.draws):
        ratio = found.errors[1] / found.errors[0]
        # With n samples in all, the error of m drawn falls with (1/m - 1/n).
        equal = 1 / (1 / len(both) + ratio**2 * (1 / found.m - 1 / len(both)))
        held = f"{100 * found.held[1]:.1f}, {100 * found.held[0]:.1f}"
        rows.append(
            (str(found.m), f"{found.weight:.2f}", f"{found.width:.2f}", f"{ratio:.2f}", f"{equal:.0f} samples", held)
        )
    together = np.corrcoef(expensive, cheap)[0, 1]
    means = f"mean {expensive.mean():.3f} by {cheap.mean():.3f}, correlation {together:.2f}"
    return f"{len(both)} samples, {means}\n\n{markdown(rows)}"


def main(arguments: list[str] | None = None) -> int:
    """Print the table. Return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("condition", help="the expensive one")
    parser.add_argument("--by", nargs=2, required=True, metavar=("RUN", "CONDITION"), help="the cheap one")
    parser.add_argument("--figures", nargs=2, default=["correct", "correct"], help="their columns; abpc confidence")
    parser.add_argument("--drawn", default="50,100,200")
    parser.add_argument("--draws", type=int, default=2000)
    options = parser.parse_args(arguments)
    return deliver("scripts.studies.statistics.support", lambda: table(options), None)


if __name__ == "__main__":
    sys.exit(main())
