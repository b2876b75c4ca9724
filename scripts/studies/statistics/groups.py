"""How often 95 % intervals and tests are right where samples come in groups that resemble each other, by simulation.

    python -m scripts.studies.statistics.groups --simulations 2000

Groups of unequal sizes, from 1 to 19 samples; within a group, what decides about its samples correlates by so much (the
intraclass correlation). For each number of groups and correlation: in how many of 100 data sets the interval holds the
truth, of means, shares, mIoU and paired differences, whose test refutes in the others that there is no difference. A
rule that is looked at while samples come (the truth lies on its bound of 50 %) says the wrong side in the others, of
either side at most 5. In brackets the same, where samples are taken to be independent.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator

import numpy as np
from scipy.special import ndtri

from robustkit.common.differences import of_means
from robustkit.common.figure import Figure
from robustkit.common.groups import Groups
from robustkit.common.intervals import Floats, bootstrap, mean_of, share_of
from robustkit.slices.until_decided.sequential import SequentialTest, WholeGroups

Generator = np.random.Generator
COUNTS, CORRELATIONS, LARGEST = (10, 20, 50), (0.0, 0.2, 0.5), 19
PIXELS, CLASSES = 400, 3


def drawn_groups(stream: Generator, count: int) -> Groups:
    return Groups(np.repeat(np.arange(count), stream.integers(1, LARGEST + 1, count)), count)


def drawn_values(stream: Generator, groups: Groups, correlation: float) -> Floats:
    """Return standard normal values (n,) that correlate within groups."""
    of_group, of_sample = stream.standard_normal(groups.count), stream.standard_normal(len(groups.codes))
    return np.sqrt(correlation) * of_group[groups.codes] + np.sqrt(1 - correlation) * of_sample


def mean(stream: Generator, groups: Groups, correlation: float, used: Groups | None) -> tuple[Figure, float]:
    return mean_of(drawn_values(stream, groups, correlation), used), 0.0


def share_at(truth: float) -> Callable[[Generator, Groups, float, Groups | None], tuple[Figure, float]]:
    def share(stream: Generator, groups: Groups, correlation: float, used: Groups | None) -> tuple[Figure, float]:
        return share_of(drawn_values(stream, groups, correlation) < ndtri(truth), used), truth

    return share


def miou(stream: Generator, groups: Groups, correlation: float, used: Groups | None) -> tuple[Figure, float]:
    """Of images with so many pixels of each class, of which a share is found; both go along within groups."""
    n = len(groups.codes)
    latent = np.stack([drawn_values(stream, groups, correlation) for _ in range(2 * CLASSES)])
    unions = np.round(PIXELS * np.exp(latent[:CLASSES] / 2)).T
    hits = np.round(unions * (0.5 + 0.3 * np.tanh(latent[CLASSES:].T)))
    value = float((hits.sum(axis=0) / unions.sum(axis=0)).mean())
    ends = bootstrap(lambda counts: ((counts @ hits) / (counts @ unions)).mean(axis=1), n, [value], used)[0]
    return Figure(value, n, *ends), 0.5


def difference(stream: Generator, groups: Groups, correlation: float, used: Groups | None) -> tuple[Figure, float]:
    """Of two models that are right as often, on samples that are as hard for both."""
    hard = drawn_values(stream, groups, correlation)
    sides = [1.0 * (hard + drawn_values(stream, groups, correlation) < 1) for _ in range(2)]
    gap = of_means(*sides, binary=True, groups=used)
    return Figure(gap.value, gap.n, gap.ci_low, gap.ci_high), 0.0


KINDS = {
    "mean": mean,
    **{f"share, {100 * truth:.0f} %": share_at(truth) for truth in (0.5, 0.7, 0.9)},
    "mIoU": miou,
    "paired difference": difference,
}


RULE = "rule, one side"


def decided(stream: Generator, groups: Groups, correlation: float, grouped: bool) -> bool:
    """Return whether a rule says that half of the samples are more than half of all."""
    right = 1.0 * (drawn_values(stream, groups, correlation) < 0)
    test = SequentialTest(0.5, 0.05)
    if grouped:
        ids = [str(place) for place in range(len(right))]
        named = dict(zip(ids, map(str, groups.codes), strict=True))
        WholeGroups(test, named).take(ids, dict(zip(ids, right.tolist(), strict=True)))
    else:
        test.take(right)
    return test.decision == 1


def coverage(kind: str, count: int, correlation: float, simulations: int, grouped: bool = True) -> float:
    """Return the share of data sets whose interval holds the truth."""
    stream, held = np.random.default_rng(count), 0
    for _ in range(simulations):
        groups = drawn_groups(stream, count)
        if kind == RULE:
            held += not decided(stream, groups, correlation, grouped)
            continue
        figure, truth = KINDS[kind](stream, groups, correlation, groups if grouped else None)
        held += figure.low <= truth <= figure.high
    return held / simulations


def lines(simulations: int) -> Iterator[str]:
    """Yield the rows of a table of Markdown: of each kind, with as many groups as its columns say."""
    yield "| correlation | figure | " + " | ".join(f"{count} groups" for count in COUNTS) + " |"
    yield "|---|---|" + "---|" * len(COUNTS)
    for correlation in CORRELATIONS:
        for kind in (*KINDS, RULE):
            cells = (
                [100 * coverage(kind, count, correlation, simulations, grouped) for grouped in (True, False)]
                for count in COUNTS
            )
            yield f"| {correlation:g} | {kind} | " + " | ".join(f"{a:.1f} ({b:.1f})" for a, b in cells) + " |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulations", type=int, default=2000)
    for line in lines(parser.parse_args().simulations):
        print(line, flush=True)


if __name__ == "__main__":
    main()
