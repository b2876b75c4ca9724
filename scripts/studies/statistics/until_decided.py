"""How often rules that are looked at after every sample are decided wrongly, and how many samples they take.

    python -m scripts.studies.statistics.until_decided
    python -m scripts.studies.statistics.until_decided --run runs/candidate --baseline runs/released

Without a run: of a share of samples that are right, the exact probabilities, since the capital of the bettors depends
on the counts alone; of paired differences, simulations. Next to them the n with 90 % power where it is fixed before,
by the normal approximation, which must know the gap.

With a run that has all its records, and a baseline: how many samples rules would have taken, over random orders of the
samples.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.stats import norm

from robustkit.common.intervals import Floats, Z
from robustkit.report.run import Run
from robustkit.results.pairing import Side
from robustkit.slices.until_decided.sequential import BETS, SHARES, SequentialTest
from robustkit.tasks.task import task_of
from scripts.pages.writing import markdown

POWER = 0.9
_LOOK = 256  # samples that a simulated test takes at once
_NEGLIGIBLE = 1e-18  # a probability
_BOUNDS = (0.1, 0.3, 0.55, 0.8, 0.95)
_GAPS = ((0.55, 0.57), (0.55, 0.6), (0.55, 0.65), (0.55, 0.75), (0.55, 0.5), (0.9, 0.93), (0.1, 0.15), (0.02, 0.05))
_CHANGES = ((0.02, 0.0, 0.0), (0.02, 0.02, 0.02), (0.02, 0.06, 0.02), (0.02, 0.1, 0.02), (0.05, 0.03, 0.02))
"""Bound on the drop, shares of samples that only the baseline gets right, and that only the candidate does."""


def decided(share: float, bound: float, error: float, most: int) -> tuple[Floats, Floats]:
    """Return the probability of saying above, and of saying below, at each number of samples up to `most`."""
    up, down = _gains(bound), _gains(1 - bound)[:, ::-1]
    enough, first = -math.log(error), 0  # of the counts of right samples that are still open
    open_, said = np.ones(1), np.zeros((2, most))
    for n in range(1, most + 1):
        open_ = np.append(0, open_) * share + np.append(open_, 0) * (1 - share)
        right = first + np.arange(len(open_))
        counts = np.stack([right, n - right])
        for side, gains in enumerate((up, down)):
            logs = np.logaddexp.reduce(np.log(SHARES)[:, None] + gains @ counts, axis=0)
            said[side, n - 1] = open_[logs >= enough].sum()
            open_ = np.where(logs >= enough, 0, open_)
        kept = np.flatnonzero(open_ > _NEGLIGIBLE)
        if not len(kept):
            break
        first, open_ = first + int(kept[0]), open_[kept[0] : kept[-1] + 1]
    return said[0], said[1]


def peeked(share: float, most: int) -> float:
    """Return the probability that Wilson's 95 % interval leaves the truth out at some of the looks from 10 samples on:
    what it costs to look again and again at an interval for an n that is fixed before.
    """
    open_, lost = np.ones(1), 0.0
    for n in range(1, most + 1):
        open_ = np.append(0, open_) * share + np.append(open_, 0) * (1 - share)
        if n >= 10:
            out = np.abs(np.arange(n + 1) - n * share) > Z * math.sqrt(n * share * (1 - share))
            lost, open_ = lost + float(open_[out].sum()), np.where(out, 0, open_)
    return lost


def _gains(bound: float) -> Floats:
    """Return what each bettor on `above` gains by a right sample and by a wrong one, as logarithms: (K, 2)."""
    return np.log1p(BETS[:, None] / bound * np.array([1 - bound, -bound]))


def fixed(gap: float, variances: tuple[float, float], error: float) -> int:
    """Return the n that shows a gap with a power of 90 %. variances: of a sample at the bound, and of the truth."""
    at_bound, true = map(math.sqrt, variances)
    return math.ceil(((norm.ppf(1 - error) * at_bound + norm.ppf(POWER) * true) / gap) ** 2)


@dataclass(frozen=True)
class Taken:
    """How many samples tests took: their mean and median, and by how many 90 % of them were decided."""

    mean: float
    median: int
    most: int

    @classmethod
    def of(cls, chances: Floats) -> Taken:
        """chances: the probability of ending at 1, 2, … samples."""
        reached = np.cumsum(chances)
        mean = float(chances @ np.arange(1, len(chances) + 1) / reached[-1])
        return cls(mean, *(int(np.searchsorted(reached, share)) + 1 for share in (0.5, POWER)))

    @property
    def cells(self) -> tuple[str, ...]:
        return f"{self.mean:.0f}", str(self.median), str(self.most)


def ends(values: Floats, bound: float, error: float) -> tuple[int, int]:
    """Return what a test says about values, and after how many."""
    test = SequentialTest(bound, error)
    for start in range(0, len(values), _LOOK):
        test.take(values[start : start + _LOOK])
        if test.decision:
            break
    return test.decision, test.taken


def changes(down: float, up: float, n: int, stream: np.random.Generator) -> Floats:
    """Return drops of n samples, as shares: 1 where only the baseline is right, 0 where only the candidate is."""
    drawn = stream.random(n)
    return np.where(drawn < down, 1.0, np.where(drawn < down + up, 0.0, 0.5))


def wrong_shares(error: float, most: int) -> Iterator[tuple[str, ...]]:
    """Yield a row for each bound that the truth lies on: how often each wrong side is said."""
    yield "truth and bound", "says above, %", "says below, %", "Wilson's interval leaves it out, %"
    for bound in _BOUNDS:
        shares = *(side.sum() for side in decided(bound, bound, error, most)), peeked(bound, most)
        yield f"{bound:g}", *(f"{100 * share:.2f}" for share in shares)


def taken_shares(error: float) -> Iterator[tuple[str, ...]]:
    """Yield a row for each truth: the n that is fixed before, and what a test takes."""
    yield "bound", "truth", "fixed n", "mean", "median", "90 % by", "says the wrong side, %"
    for bound, share in _GAPS:
        planned = fixed(share - bound, (bound * (1 - bound), share * (1 - share)), error)
        sides = decided(share, bound, error, 8 * planned)
        right, wrong = sides if share > bound else sides[::-1]
        yield f"{bound:g}", f"{share:g}", str(planned), *Taken.of(right + wrong).cells, f"{100 * wrong.sum():.3f}"


def taken_changes(error: float, simulations: int, most: int) -> Iterator[tuple[str, ...]]:
    """Yield a row for each drop, simulated: what tests take, and how often they say what is wrong."""
    yield "bound", "drop", "change, %", "fixed n", "mean", "median", "90 % by", "says the wrong side, %"
    stream = np.random.default_rng(0)
    for bound, down, up in (*_CHANGES, *((bound, bound + 0.02, 0.02) for bound in (0.0, 0.02, 0.05))):
        drop, shown = down - up, [f"{bound:g}", f"{down - up:g}", f"{100 * (down + up):g}"]
        every = [ends(changes(down, up, most, stream), (bound + 1) / 2, error) for _ in range(simulations)]
        if math.isclose(drop, bound):  # where each of the two sides is the wrong one for some rule
            wrong = max(sum(said == side for said, _ in every) for side in (1, -1))
            yield *shown, *["–"] * 4, f"{100 * wrong / simulations:.2f}"
            continue
        wrong = sum(said == (1 if drop < bound else -1) for said, _ in every)
        spread = down + up - drop**2
        planned = fixed(drop - bound, (spread, spread), error) if spread else 0
        taken = Taken.of(np.bincount([n - 1 for _, n in every]) / simulations)
        yield *shown, str(planned or "–"), *taken.cells, f"{100 * wrong / simulations:.2f}"


def replayed(run: Path, baseline: Path | None, rules: tuple[float, float], orders: int) -> Iterator[tuple[str, ...]]:
    """Yield a row for each attack of a run: what a rule on its top-1, and one on its drop, take over random orders.

    rules: the bounds of both.
    """
    whole, error = Run(run), 0.05 / (1 if baseline is None else 2)
    task, name = task_of(whole.manifest), whole.manifest.names[0]
    stream = np.random.default_rng(0)
    yield "rule", "of all", "pass, FAIL, open, %", "fixed n", "mean", "median", "90 % by"
    for condition in whole.manifest.conditions:
        _, right = task.per_sample(Side(whole, name), condition, "top1")
        values = {f"top1 under {condition} >= {rules[0]:g}": (right, rules[0], 1)}
        if baseline is not None:
            before = Run(baseline)
            _, released = task.per_sample(Side(before, before.manifest.names[0]), condition, "top1")
            drop = f"drop in top1 under {condition} against baseline <= {rules[1]:g}"
            values[drop] = ((released - right + 1) / 2, (rules[1] + 1) / 2, -1)
        for rule, (figures, bound, passes) in values.items():
            every = [ends(stream.permutation(figures), bound, error) for _ in range(orders)]
            shares = [sum(said == side for said, _ in every) / orders for side in (passes, -passes, 0)]
            scale = 1 if passes == 1 else 2
            mean = scale * float(figures.mean()) - (scale - 1)
            variance = float(figures.var())
            at_bound = bound * (1 - bound) if passes == 1 else variance
            planned = fixed(float(figures.mean()) - bound, (at_bound, variance), error)
            taken = Taken.of(np.bincount([n - 1 for _, n in every]) / orders)
            outcomes = ", ".join(f"{100 * share:.1f}" for share in shares)
            yield rule, f"{mean:.4f}", outcomes, str(planned), *taken.cells


def main() -> None:
    """Compute and print tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--error", type=float, default=0.05)
    parser.add_argument(
        "--most", type=int, default=10_000, help="samples that are looked at where the truth is the bound"
    )
    parser.add_argument("--simulations", type=int, default=2000)
    parser.add_argument("--run", type=Path)
    parser.add_argument("--baseline", type=Path)
    parser.add_argument("--rules", type=float, nargs=2, default=(0.55, 0.0), help="bounds on top1 and on its drop")
    given = parser.parse_args()
    if given.run is not None:
        print(markdown([*replayed(given.run, given.baseline, tuple(given.rules), given.simulations)]))
        return
    for rows in (
        wrong_shares(given.error, given.most),
        taken_shares(given.error),
        taken_changes(given.error, given.simulations, given.most),
    ):
        print(markdown([*rows]), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
