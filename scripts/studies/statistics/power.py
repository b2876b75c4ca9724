"""How many images tell two checkpoints apart: distances by Wilcoxon's test, accuracy at one radius by McNemar's.

    robustkit audit zoo:shapes-vit-standard zoo:shapes-vit-quest --data-dir embedded:shapes --limit 200 \\
        --attacks fmn --out runs/distances
    python -m scripts.studies.statistics.power runs/distances

Samples of a run are drawn with replacement, 200 times for each number of images; the fewest are shown at which p is
below 0.05 four times out of five. Accuracy at a radius is that of the same distances, so both see the same attack.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from robustkit.common.differences import of_means, of_ranks
from robustkit.protocol.card import parse_number
from robustkit.runs.folder import RunFolder

_COUNTS = (10, 15, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1400, 2000)
_DRAWS, _POWER = 200, 0.8
Floats = NDArray[np.float64]


def wilcoxon(first: Floats, second: Floats) -> float:
    """Return p of a shift of ln distances, over the samples that both predict right."""
    both = (first > 0) & (second > 0)
    return of_ranks(np.log(first[both]), np.log(second[both])).p_value if both.any() else 1.0


def mcnemar(eps: float) -> Callable[[Floats, Floats], float]:
    """Return the test of accuracy at a radius."""
    return lambda first, second: of_means((first > eps).astype(float), (second > eps).astype(float), True).p_value


def fewest(first: Floats, second: Floats, test: Callable[[Floats, Floats], float]) -> str:
    """Return how many images are enough, or that none of the counts is."""
    random = np.random.Generator(np.random.PCG64(0))
    for count in _COUNTS:
        drawn = (random.integers(0, len(first), count) for _ in range(_DRAWS))
        if sum(test(first[rows], second[rows]) < 0.05 for rows in drawn) >= _POWER * _DRAWS:
            return str(count)
    return f"> {_COUNTS[-1]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--condition", default="fmn(steps=100)")
    parser.add_argument("--radii", default="1/255,2/255,4/255")
    options = parser.parse_args()
    run = RunFolder(options.run)
    distances: dict[str, Floats] = {}
    for name in run.manifest.names:
        table = run.table(name, options.condition).to_pandas().set_index("sample_id").sort_index()
        found = table["distance"].to_numpy(float)
        distances[name] = np.where(np.isnan(found), np.inf, found)
    radii = options.radii.split(",")
    print(f"| pair | p, {run.manifest.data.n} images | Wilcoxon | {' | '.join(f'McNemar {text}' for text in radii)} |")
    print("|" + "---|" * (3 + len(radii)))
    for one, other in combinations(distances, 2):
        pair = distances[one], distances[other]
        tests = [wilcoxon, *(mcnemar(float(parse_number(text))) for text in radii)]
        cells = [f"{wilcoxon(*pair):.2g}", *(fewest(*pair, test) for test in tests)]
        print(f"| {one}, {other} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
