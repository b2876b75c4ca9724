"""How strong attacks were: by hand, against curves integrated step by step, and where there is nothing to say."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from manifests import whole

from robustkit.evaluations.aggregate import RecordReader
from robustkit.evaluations.attacks.ranking import Strengths
from robustkit.evaluations.attacks.results import circles_of
from robustkit.runs.folder import RunFolder

FMN, WEAK, PGD, FGSM = "fmn(steps=9)", "fmn(steps=1)", "pgd(eps=2/255,steps=20)", "fgsm(eps=2/255)"
FOG = "pgd(eps=2/255,steps=20,under=fog,severity=3)"
NEAR, L2 = "pgd(eps=1/255,steps=20)", "pgd(eps=0.5,norm=l2,steps=20)"
CLAIMS = {
    text: {"norm": norm, "eps": eps, "early_stop": False}
    for text, norm, eps in (
        (PGD, "linf", 2 / 255),
        (FOG, "linf", 2 / 255),
        (FGSM, "linf", 2 / 255),
        (NEAR, "linf", 1 / 255),
        (L2, "l2", 0.5),
    )
}
CLEAN = [True] * 5 + [False]
Column = list[float | None]


def table(text: str, found: Column, backwards: bool = False) -> pa.Table:
    """found: in 1/255 how large the change was, None where the sample stands."""
    ids, sizes = [f"s{place}" for place in range(len(found))], [math.nan if v is None else v / 255 for v in found]
    if backwards:
        ids, sizes, found = ids[::-1], sizes[::-1], found[::-1]
    columns: dict[str, Any] = {"sample_id": ids}
    if text.startswith("fmn"):
        columns["distance"] = sizes
    else:  # where an attack fails it has gone as far as it may
        columns["correct"] = [v is None for v in found]
        columns |= {norm: [2 / 255 if v is None else v / 255 for v in found] for norm in ("linf", "l2")}
    return pa.table(columns)


def strengths(found: dict[str, Column], clean: list[bool] = CLEAN, space: str = "pixels") -> Strengths:
    manifest = whole(
        {
            "conditions": ["clean", *found],
            "claims": {text: CLAIMS[text] for text in found if text in CLAIMS},
            "protocol": {"space": space},
            "checkpoints": [{"name": "net"}],
        }
    )
    ours = Strengths(RecordReader(RunFolder("nowhere"), manifest, "net", {}))
    ours.take("clean", table("clean", [None if right else 0 for right in clean]))
    for place, (text, column) in enumerate(found.items()):
        ours.take(text, table(text, column, backwards=bool(place % 2)))
    return ours


HAND: dict[str, Column] = {
    FMN: [1, 3, None, 4, None, 0],
    PGD: [2, None, 2, None, None, None],
    FGSM: [None, 1.5, None, None, None, 2],
}


def test_by_hand() -> None:
    """The best curve has 1, 1.5, 2, 4 and one sample that stands; it ends at 4/255. The last sample is wrong clean."""
    ours = strengths(HAND)
    (best,) = ours.optimality(FMN)
    assert best.value == pytest.approx((3 + 1) / (3 + 2.5 + 2)) and best.n == 5 and not best.interval
    for text, broke in ((PGD, 2), (FGSM, 1)):
        (share,) = ours.broken(text)
        assert (share.value, share.n) == (broke / 3, 3) and share.low < share.value < share.high


def area(sizes: list[float], end: float) -> float:
    """Of the curve of accuracy against radius, from 0 to where it ends, radius by radius where it falls."""
    radii = sorted({0.0, end, *(size for size in sizes if size < end)})
    return sum((b - a) * sum(size > a for size in sizes) / len(sizes) for a, b in itertools.pairwise(radii))


@pytest.mark.parametrize("seed", range(4))
def test_optimality_is_the_ratio_of_areas_of_curves(seed: int) -> None:
    draw = np.random.Generator(np.random.PCG64(seed))
    right = [bool(one) for one in draw.random(40) < 0.8]
    near: Column = [None if draw.random() < 0.2 else float(size) for size in draw.gamma(2, 2, 40)]
    found: dict[str, Column] = {
        FMN: near,
        WEAK: [None if size is None else size * (1 + draw.random()) for size in near],
        PGD: [float(draw.uniform(0.5, 2)) if draw.random() < 0.3 else None for _ in near],
    }
    for text in (FMN, WEAK):
        found[text] = [size if is_right else 0 for size, is_right in zip(found[text], right, strict=True)]
    ours = strengths(found, right)
    sizes = {
        text: [math.inf if v is None else v for v, is_right in zip(column, right, strict=True) if is_right]
        for text, column in found.items()
    }
    best = [min(some) for some in zip(*sizes.values(), strict=True)]
    end = max(size for size in best if size < math.inf)
    values = {}
    for text in (FMN, WEAK):
        (ratio,) = ours.optimality(text)
        assert ratio.value == pytest.approx((end - area(sizes[text], end)) / (end - area(best, end)), abs=1e-9)
        assert ratio.n == sum(right) and ratio.low <= ratio.value <= ratio.high
        values[text] = ratio.value
    assert 0 < values[WEAK] < values[FMN] < 1
    broken = [min(some) <= 2 for some in zip(*sizes.values(), strict=True)]
    (share,) = ours.broken(PGD)
    assert share.n == sum(broken) and share.value == pytest.approx(
        sum(size < math.inf for size in sizes[PGD]) / share.n
    )


def test_nothing_is_said_where_nothing_stands_beside() -> None:
    assert not [*strengths({FMN: HAND[FMN]}).optimality(FMN)]
    assert not [*strengths({FMN: HAND[FMN], L2: HAND[PGD]}).optimality(FMN)]
    assert not [*strengths({FMN: HAND[FMN], FOG: HAND[PGD]}).optimality(FMN)]  # other images
    assert not [*strengths({PGD: HAND[PGD], NEAR: [1, *[None] * 5]}).broken(PGD)]  # another radius says too little
    assert not [*strengths(HAND, space="normalised").broken(PGD)]
    assert not [*strengths(HAND, clean=[False] * 6).optimality(FMN)]
    none: Column = [None] * 6
    assert not [*strengths({PGD: none, FGSM: none}).broken(PGD)]
    (share,) = strengths({PGD: HAND[PGD], FGSM: HAND[FGSM], NEAR: [None] * 4 + [1, None]}).broken(PGD)
    assert (share.value, share.n) == (2 / 4, 4)  # but what it broke counts


@pytest.mark.parametrize(
    ("broken_by", "cycle_at", "said"),
    [
        ([None, None, "pgd"], [30, None, 25], "1 of 2 that stand ended in a circle; 1 did not: take more steps"),
        (
            [None, None, "pgd"],
            [30, 21, None],
            "2 of 2 that stand ended in a circle; more steps of this size lead to no other point",
        ),
        ([None, "pgd"], [None, 25], "0 of 1 that stand ended in a circle; 1 did not: take more steps"),
        (["pgd", "clean"], [30, 21], ""),  # nothing stands
        ([None, "pgd"], [None, None], ""),  # too few steps to look
        ([None, "pgd"], None, ""),  # another attack, or an older run
    ],
)
def test_circles_are_counted_of_what_stands(
    broken_by: list[str | None], cycle_at: list[int | None] | None, said: str
) -> None:
    columns = {"id": broken_by} if cycle_at is None else {"broken_by": broken_by, "cycle_at": cycle_at}
    assert [(sign.figure, sign.finding) for sign in circles_of(pa.table(columns))] == ([(said, None)] if said else [])
