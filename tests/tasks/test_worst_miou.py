"""The worst case for the mIoU of all images: by hand, and against a slow replica and all choices."""

from __future__ import annotations

import itertools

import pytest
from scene_records import counts, miou_slowly, random_rows, record, worst_slowly

from robustkit.tasks.segmentation.results import worst_case


def test_a_choice_that_is_better_for_an_image_and_worse_for_all() -> None:
    """Ten pixels of the first class and two of the second: to lose the second costs fewer pixels, and half the mIoU."""
    most = [record("a", ([5, 2], [5, 2], [10, 2])), record("b", ([10, 0], [10, 0], [10, 0]))]
    rare = [record("a", ([10, 0], [10, 0], [10, 2])), record("b", ([9, 0], [9, 1], [10, 0]))]
    found = worst_case(counts(*most), [counts(*rare)])
    assert found.values[0] == pytest.approx((19 / 20 + 0) / 2)  # the first ones have (15 / 20 + 1) / 2
    assert found.intersections.tolist() == [[10, 0], [9, 0]] and found.predicted.tolist() == [[10, 0], [9, 1]]
    assert worst_case(counts(*rare), [counts(*most)]).values[0] == found.values[0]


@pytest.mark.parametrize("seed", [0, 1, 17, 21])  # the last two take a second round
def test_it_is_the_slow_one_and_between_the_records_and_the_best_of_all_choices(seed: int) -> None:
    every = [random_rows(100 * seed + run, 5, 5) for run in range(3)]  # masks are alike, predictions are not
    found = float(worst_case(counts(*every[0]), [counts(*rows) for rows in every[1:]]).values[0])
    lowest = min(
        miou_slowly([every[place][i] for i, place in enumerate(choice)])
        for choice in itertools.product(range(3), repeat=5)
    )
    assert found == pytest.approx(worst_slowly(every), abs=1e-12)
    assert lowest - 1e-12 <= found <= miou_slowly(every[0]) and found < lowest + 0.02
