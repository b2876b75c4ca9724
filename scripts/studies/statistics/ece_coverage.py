"""How often 95 % intervals of the calibration error hold the true one, by simulation.

    python -m scripts.studies.statistics.ece_coverage --simulations 1000

For models whose confidence and calibration are known: the share of data sets whose interval holds the true error (over
the same 15 bins), the share whose interval holds its own estimate, and the mean width. After what RobustKit gives, the
intervals that are usual for a bootstrap: percentile, reflected (basic), and bias-corrected (BC, Efron 1981).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import numpy as np

from robustkit.common.intervals import BINS, Floats, calibration_error, calibration_gaps, calibration_interval

Generator = np.random.Generator
SIZES = (60, 200, 500, 1000, 2000)
_RESAMPLES = 500


def _logit(shrunk: float) -> Callable[[Floats], Floats]:
    """Return the probability of being right whose log odds are those of the confidence times a factor."""
    return lambda confidence: 1 / (1 + ((1 - confidence) / confidence) ** shrunk)


def _off(by: float) -> Callable[[Floats], Floats]:
    return lambda confidence: np.clip(confidence - by, 0, 1)


CONFIDENCE: dict[str, Callable[[Generator, int], Floats]] = {
    "broad": lambda stream, n: 0.1 + 0.8 * stream.beta(2, 2, n),
    "high": lambda stream, n: 1 - 0.9 * stream.beta(1, 6, n),
    "extreme": lambda stream, n: np.minimum(1 - 0.5 * stream.beta(0.3, 5, n), 1 - 1e-9),
}
RIGHT: dict[str, Callable[[Floats], Floats]] = {
    "calibrated": lambda confidence: confidence,
    "2 points too sure": _off(0.02),
    "10 points too sure": _off(0.1),
    "too sure (T = 2)": _logit(0.5),
    "too unsure (T = 0.7)": _logit(1 / 0.7),
    "5 points off, both ways": lambda c: np.clip(c + 0.05 * np.sign(np.sin(c * BINS * np.pi)), 0, 1),
}


def true_error(confidence: str, right: str) -> float:
    """Return the calibration error of a model, from two million samples without noise."""
    given = CONFIDENCE[confidence](np.random.default_rng(0), 2_000_000)
    return calibration_error(given, RIGHT[right](given))


def samples(confidence: str, right: str, n: int, stream: Generator) -> tuple[Floats, Floats]:
    """Return confidences and outcomes (n,) of a data set."""
    given = CONFIDENCE[confidence](stream, n)
    return given, (stream.random(n) < RIGHT[right](given)).astype(np.float64)


def usual(confidence: Floats, correct: Floats, stream: Generator) -> dict[str, tuple[float, float]]:
    """Return the intervals of a plain bootstrap."""
    from scipy.stats import norm

    n, estimate = len(confidence), calibration_error(confidence, correct)
    counts = stream.multinomial(n, np.full(n, 1 / n), _RESAMPLES)
    drawn = np.abs(counts @ calibration_gaps(confidence, correct) / n).sum(axis=1)
    low, high = np.percentile(drawn, [2.5, 97.5])
    below = np.clip((drawn < estimate).mean(), 0.5 / _RESAMPLES, 1 - 0.5 / _RESAMPLES)
    corrected = np.quantile(drawn, norm.cdf(2 * norm.ppf(below) + norm.ppf([0.025, 0.975])))
    return {
        "percentile": (low, high),
        "reflected": (2 * estimate - high, 2 * estimate - low),
        "BC": (corrected[0], corrected[1]),
    }


def measured(confidence: str, right: str, n: int, simulations: int, others: bool = True) -> dict[str, Floats]:
    """Return, for each kind of interval, the shares that hold the truth and the estimate, and the mean width."""
    true, stream = true_error(confidence, right), np.random.default_rng(n)
    covered: dict[str, list[tuple[bool, bool, float]]] = {}
    for _ in range(simulations):
        given = samples(confidence, right, n, stream)
        estimate = calibration_error(*given)
        ends = {"here": calibration_interval(*given)} | (usual(*given, stream) if others else {})
        for kind, (low, high) in ends.items():
            holds = max(low, 0) <= true <= max(high, 0)
            covered.setdefault(kind, []).append((holds, low <= estimate <= high, high - low))
    return {kind: np.mean(rows, axis=0) for kind, rows in covered.items()}


def lines(simulations: int) -> Iterator[str]:
    """Yield a line for each model and size."""
    for confidence in CONFIDENCE:
        for right in RIGHT:
            for n in SIZES:
                shares = measured(confidence, right, n, simulations)
                cells = (f"{kind} {100 * a:5.1f} {100 * b:5.1f} {100 * w:5.1f}" for kind, (a, b, w) in shares.items())
                yield f"{confidence:8}{right:25}{n:5} | " + " | ".join(cells)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=1000)
    print("confidence, model, n | of each kind: % that hold the truth, % that hold the estimate, width in points")
    for line in lines(parser.parse_args().simulations):
        print(line, flush=True)


if __name__ == "__main__":
    main()
