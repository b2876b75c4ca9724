"""Figures of label maps against torchmetrics, plain loops and literals worked out by hand; means, pairs and tables."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pytest
import torch
from manifests import whole
from scene_records import NONE, by_key, counts, draws, random_rows, record, slow, table
from scipy import stats
from torch import Tensor

from robustkit.common.differences import Difference
from robustkit.common.intervals import percentiles
from robustkit.errors import DataError, ModelError, RunError
from robustkit.evaluations.corruptions import shares_of
from robustkit.results.pairing import Side, paired_difference
from robustkit.runs.manifest import Manifest
from robustkit.tasks.segmentation.counts import Counts, class_counts, is_biased
from robustkit.tasks.segmentation.results import scene_difference, scene_mean_rows, scene_rows

pytestmark = pytest.mark.usefixtures("one_thread")

# counts


def looped(found: Tensor, truth: Tensor, classes: int) -> list[list[list[int]]]:
    totals = [[[0] * classes for _ in found] for _ in range(3)]
    for i in range(len(found)):
        for f, t in zip(found[i].flatten().tolist(), truth[i].flatten().tolist(), strict=True):
            if t < 0:
                continue
            totals[0][i][t] += f == t
            totals[2][i][t] += 1
            if f >= 0:
                totals[1][i][f] += 1
    return totals


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_counts_are_those_of_a_loop_over_pixels(device: str, request: pytest.FixtureRequest) -> None:
    if device == "cuda":
        request.getfixturevalue("cuda")  # skips, with a reason, where there is none
    generator = torch.Generator().manual_seed(0)
    truth = torch.randint(-2, 4, (3, 5, 7), generator=generator)  # class 4 is never labelled
    found = torch.randint(-1, 5, (3, 5, 7), generator=generator)
    found[truth < 0] = 99  # whatever is there does not count
    truth[1] = -1
    expected = looped(found, truth, 5)
    for kind in (torch.int64, torch.int16):
        made = class_counts(found.to(device, kind), truth.to(device, torch.int16), 5)
        assert [part.tolist() for part in made] == expected
        assert all(part.dtype == torch.int64 and part.device.type == device for part in made)
    assert sum(map(sum, expected[1])) < sum(map(sum, expected[2]))  # pixels of no prediction
    assert class_counts(found[:0], truth[:0], 5)[0].shape == (0, 5)


def test_what_is_no_class_is_refused() -> None:
    good = torch.zeros(1, 2, 2, dtype=torch.int64)
    bad = good.clone()
    bad[0, 1, 1] = 255
    line = "label 255: expected a class from 0 to 149, or a negative number where the pixel is ignored"
    with pytest.raises(DataError, match=line):
        class_counts(good, bad, 150)
    with pytest.raises(
        ModelError, match="prediction 255: expected a class from 0 to 254, or a negative number for none"
    ):
        class_counts(bad, good, 255)
    with pytest.raises(ModelError, match=r"of shapes \(1, 2, 2\) and \(2, 2\); expected \(B, H, W\) of both"):
        class_counts(good, good[0], 3)
    with pytest.raises(ModelError, match=r"of shapes \(2, 2\) and \(2, 2\); expected \(B, H, W\) of both"):
        class_counts(good[0], good[0], 3)


def test_figures_equal_torchmetrics_with_ignored_pixels_and_absent_classes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages that it loads
        classification = pytest.importorskip("torchmetrics.functional.classification")
    generator = torch.Generator().manual_seed(3)
    truth = torch.randint(-1, 5, (4, 9, 8), generator=generator)  # 5 is predicted, never labelled; 6 is nowhere
    found = torch.where(
        torch.rand(4, 9, 8, generator=generator) < 0.6, truth, torch.randint(0, 6, (4, 9, 8), generator=generator)
    )
    found[found < 0] = 2
    parts = zip(*class_counts(found, truth, 7), strict=True)
    own = by_key(scene_rows("clean", counts(*(record(str(i), part) for i, part in enumerate(parts))), "0123456"))
    known = {"num_classes": 7, "ignore_index": -1}
    jaccard = classification.multiclass_jaccard_index
    assert own["clean", "miou"][0] == pytest.approx(float(jaccard(found, truth, average="macro", **known)))
    each = jaccard(found, truth, average="none", **known).tolist()
    assert [own["clean", f"iou({k})"][0] for k in range(6)] == pytest.approx(each[:6])
    assert ("clean", "iou(6)") not in own and own["clean", "iou(5)"][0] == 0
    recall = classification.multiclass_accuracy(found, truth, average="none", **known)
    assert own["clean", "mean_accuracy"][0] == pytest.approx(float(recall[:5].mean()))
    overall = classification.multiclass_accuracy(found, truth, average="micro", **known)
    assert own["clean", "pixel_accuracy"][0] == pytest.approx(float(overall))


# one condition


def test_figures_by_hand() -> None:
    # road: 8 right of 12, predicted 9 times; car: 1 of 2, predicted 4 times; sky: predicted only; pole: nowhere.
    first = record("a", ([6, 1, 0, 0], [7, 3, 0, 0], [8, 2, 0, 0]), nll=0.2)
    second = record("b", ([2, 0, 0, 0], [2, 1, 1, 0], [4, 0, 0, 0]), nll=1.6)
    third = record("c", ([0] * 4, [0] * 4, [0] * 4), nll=None)  # every pixel is ignored
    names = ("road", "car", "sky", "pole")
    own = by_key(scene_rows("clean", counts(first, second, third, flags=("in part",)), names))
    road, car = 8 / 13, 1 / 5
    assert own["clean", "miou"][:2] == (pytest.approx((road + car + 0) / 3), 3)
    assert own["clean", "pixel_accuracy"][:2] == (pytest.approx(9 / 14), 3)
    assert own["clean", "mean_accuracy"][:2] == (pytest.approx((8 / 12 + 1 / 2) / 2), 3)
    assert own["clean", "nll"][:2] == (pytest.approx((10 * 0.2 + 4 * 1.6) / 14), 3)
    assert [own["clean", f"iou({name})"][:2] for name in names[:3]] == [
        (pytest.approx(road), 2),
        (pytest.approx(car), 2),
        (0, 1),
    ]
    assert len(own) == 7 and all(row[2:4] == NONE for row in own.values())  # three images are too few for intervals
    absent = "the mean is over 3 of 4 classes: pole is in neither prediction nor truth"
    assert own["clean", "miou"][4] == ["in part", absent]
    unlabelled = "the mean is over 2 of 4 classes: sky, pole are without labelled pixels"
    assert own["clean", "mean_accuracy"][4] == ["in part", unlabelled]
    assert own["clean", "nll"][4] == own["clean", "iou(sky)"][4] == ["in part"]


def test_classes_that_are_not_judged_are_in_no_mean_and_no_flag() -> None:
    whole = counts(*(record(str(i), ([6, 0, 1], [7, 0, 3], [8, 0, 2])) for i in range(2)))
    own = by_key(scene_rows("clean", whole.of_classes([0, 2]), ("road", "car")))
    assert own["clean", "iou(car)"][0] == pytest.approx(1 / 4) and own["clean", "miou"][4] == []
    assert own["clean", "miou"][0] == pytest.approx((6 / 9 + 1 / 4) / 2)


def test_long_lists_of_absent_classes_are_cut_and_equal_names_kept_apart() -> None:
    alone = counts(record("a", ([3] + [0] * 8, [3] + [0] * 8, [3] + [0] * 8)))
    own = by_key(scene_rows("clean", alone, ("wall", "door", "door", *"abcdef")))
    (flag,) = own["clean", "miou"][4]
    assert flag.startswith("the mean is over 1 of 9 classes: door 1, door 2, a, b, c and 3 more are in neither")
    both = counts(record("a", ([3, 1], [3, 1], [3, 1])))
    assert ("clean", "iou(door 1)") in by_key(scene_rows("clean", both, ("door", "door")))


def test_a_perturbation_is_shown_with_its_largest_size_and_logits_that_are_not_finite_give_no_nll() -> None:
    rows = [record(str(i), ([3], [3], [4]), 0.1, linf=i / 1020, l2=i / 4) for i in range(12)]
    rows[4]["nll"] = math.inf
    own = by_key(scene_rows("pgd(eps=4/255,steps=3)", Counts.of(table(rows), ()), ("a",)))
    assert own["pgd(eps=4/255,steps=3)", "linf_max"][:2] == (pytest.approx(11 / 1020), 12)
    assert own["pgd(eps=4/255,steps=3)", "l2_max"][:2] == (2.75, 12)
    value, _, *bounds, _ = own["pgd(eps=4/255,steps=3)", "nll"]
    assert not math.isfinite(value) and tuple(bounds) == NONE
    assert own["pgd(eps=4/255,steps=3)", "miou"][2:4] == (0.75, 0.75)
    unknown = [row | {"linf": None, "l2": None} for row in rows]  # released corrupted files
    assert {metric for _, metric in by_key(scene_rows("x", Counts.of(table(unknown), ()), ("a",)))} == {
        *("miou", "pixel_accuracy", "mean_accuracy", "nll", "iou(a)")
    }


def test_intervals_are_those_of_a_loop_over_resamples() -> None:
    rows = random_rows(0, 14, 5, rare=2)  # 2 lacks in the third of resamples that has no first image; 4 is nowhere
    own = by_key(scene_rows("clean", Counts.of(table(rows), ()), "01234"))
    resampled = [slow(rows, drawn) for drawn in draws(14)]
    assert 200 < sum("iou(2)" not in one for one in resampled) < 500
    whole = slow(rows, range(14))
    for metric in ("miou", "pixel_accuracy", "mean_accuracy", "nll", "iou(0)", "iou(1)", "iou(3)"):
        value, n, *bounds, _ = own["clean", metric]
        assert (value, n) == (pytest.approx(whole[metric], rel=1e-6), 13 if metric.startswith("iou") else 14)
        expected = np.percentile([one[metric] for one in resampled], percentiles(14))
        assert bounds == pytest.approx(expected.tolist(), rel=1e-6)
    value, n, *bounds, _ = own["clean", "iou(2)"]
    assert (value, n) == (pytest.approx(whole["iou(2)"]), 1) and tuple(bounds) == NONE  # of one image


def test_a_resample_without_any_pixel_does_not_count() -> None:
    rows = [record(str(i), ([0], [0], [0]), None) for i in range(10)]
    rows[0] = record("0", ([3], [3], [4]), 0.25)
    own = by_key(scene_rows("clean", counts(*rows), "0"))
    assert own["clean", "miou"][2:4] == (0.75, 0.75) and own["clean", "nll"][2:4] == (0.25, 0.25)


def test_it_is_said_where_classes_in_few_images_bias_an_interval() -> None:
    often = [record(f"{i:02}", ([9, *[0] * 20], [9, *[0] * 20], [10, *[0] * 20])) for i in range(20)]
    names = [str(k) for k in range(21)]
    (flag,) = by_key(scene_rows("clean", counts(*often), names))["clean", "miou"][4]
    assert "in neither prediction nor truth" in flag  # and nothing else
    for k in range(1, 21):  # each of these is in one image, and wrong there: a third of resamples leaves it out
        often[k - 1]["labelled"][k] = 9
    found = {"clean": counts(*often)} | {text: counts(*often) for text in shares_of("corruption(fog)")}
    line = "too few images of some classes: the interval is off by over a quarter of a standard error"
    own = by_key([*scene_rows("clean", found["clean"], names), *scene_mean_rows(found, 20, names)])
    figures = [slow(often, drawn)["miou"] for drawn in draws(20)]
    assert np.mean(figures) - own["clean", "miou"][0] > np.std(figures) / 4
    assert np.percentile(figures, 2.5) > own["clean", "miou"][0]  # nearly all resamples lack some of them
    for condition in ("clean", "corruption(fog)"):
        value, _, low, high, _ = own[condition, "miou"]
        assert low == value < high  # an interval holds its own figure
        assert own[condition, "miou"][4] == own[condition, "mean_accuracy"][4] == [line]
        assert own[condition, "pixel_accuracy"][4] == own[condition, "nll"][4] == []
    assert own["corruption(fog)", "retention"][4] == []
    spread = np.array([0.0, 2.0, math.nan])  # about 1, by 1
    assert [is_biased(value, spread) for value in (1.0, 1.24, 1.26, 0.74)] == [False, False, True, True]
    few = by_key(scene_rows("clean", counts(*often[:9]), names))["clean", "miou"][4]
    assert line not in few  # there is no interval


def test_the_order_of_records_and_the_unreadable_change_nothing() -> None:
    rows = random_rows(1, 12, 4)
    damaged = [{"sample_id": "0055", "error": "damaged"}, {"sample_id": "zzz", "error": "no mask"}]
    plain = list(scene_rows("clean", Counts.of(table(rows), ()), "0123"))
    shuffled = Counts.of(pa.concat_tables([table(damaged + rows[:4:-1]), table(rows[:5])]), ())
    assert list(scene_rows("clean", shuffled, "0123")) == plain
    assert list(scene_rows("clean", Counts.of(table(damaged), ()), "0123")) == []


# pairs


class Recorded:
    """Stands for a run: tables by checkpoint and condition."""

    path, grouping = Path("somewhere"), None
    manifest: ClassVar[Manifest] = whole(
        {"protocol": {"task": "segmentation"}, "checkpoints": [{"name": "a"}, {"name": "b"}]}
    )

    def __init__(self, tables: dict[tuple[str, str], list[dict[str, Any]]]) -> None:
        self.tables = tables

    def table(self, checkpoint: str, condition: str, columns: list[str]) -> pa.Table:
        return table(self.tables[checkpoint, condition]).select(columns)

    def read_bytes(self, path: Path) -> bytes:
        raise FileNotFoundError(path)  # it has no metadata


def compared(
    tables: dict[tuple[str, str], list[dict[str, Any]]], condition: str, metric: str, names: str = "ab"
) -> Difference:
    first, second = (Side(Recorded(tables), name) for name in names)  # type: ignore[arg-type]
    return paired_difference(first, second, condition, metric)


def test_a_difference_by_hand() -> None:
    # Of images 1 and 2, which both have: a is right on 2 + 4 of 10 + 10 pixels, b on 5 + 4; predicted as nothing else.
    first = [record(str(i), ([hit], [hit], [10])) for i, hit in enumerate((9, 2, 4))]
    second = [record(str(i), ([hit], [hit], [10])) for i, hit in enumerate((1, 5, 4))][::-1]
    second[2] = {"sample_id": "0", "error": "damaged"}
    tables = {("a", "clean"): first, ("b", "clean"): second}
    for metric in ("miou", "pixel_accuracy", "mean_accuracy"):
        found = compared(tables, "clean", metric)
        assert (found.value, found.n) == (pytest.approx(3 / 20), 2)
        assert np.isnan([found.ci_low, found.ci_high, found.p_value]).all()  # two images tell nothing of others
    assert compared(tables, "clean", "miou", "ba").value == pytest.approx(-3 / 20)
    tables["b", "clean"] = second[2:]
    with pytest.raises(RunError, match="a and b have no common sample under clean; audit both again"):
        compared(tables, "clean", "miou")
    many = [record(f"{i:02}", ([hit], [hit], [10])) for i, hit in enumerate((9, 2, 4) * 4)]
    same = compared({("a", "clean"): many, ("b", "clean"): many}, "clean", "miou")
    assert (same.value, same.n, same.ci_low, same.ci_high, same.p_value) == (0, 12, 0, 0, 1)
    assert math.isnan(compared({("a", "clean"): many[:9], ("b", "clean"): many[:9]}, "clean", "miou").p_value)
    assert compared({("a", "clean"): many[:10], ("b", "clean"): many[:10]}, "clean", "miou").p_value == 1


@pytest.mark.parametrize(
    ("condition", "metric"),
    [
        ("clean", "mean_accuracy"),
        ("corruption(fog,severity=1+2+3)", "miou"),
        ("corruption(fog,severity=1+2+3)", "pixel_accuracy"),
    ],
)
def test_a_difference_is_of_paired_resamples(condition: str, metric: str) -> None:
    texts = list(shares_of(condition))
    rows = {(name, text): random_rows(10 * i + j, 12, 4) for i, name in enumerate("ab") for j, text in enumerate(texts)}
    gaps = [
        sum(slow(rows["b", text], drawn)[metric] - slow(rows["a", text], drawn)[metric] for text in texts) / len(texts)
        for drawn in [range(12), *draws(12)]
    ]
    found = compared(rows, condition, metric)
    assert (found.value, found.n) == (pytest.approx(gaps[0]), 12)
    error = np.std(gaps[1:], ddof=1)
    assert (found.ci_low, found.ci_high) == pytest.approx(stats.norm.interval(0.95, gaps[0], error))
    assert (found.p_value < 0.05) == (found.ci_low > 0 or found.ci_high < 0)
    assert found.p_value == pytest.approx(2 * stats.norm.sf(abs(gaps[0]) / np.std(gaps[1:], ddof=1)))
    first, second = ([(1 / len(texts), Counts.of(table(rows[name, text]), ())) for text in texts] for name in "ab")
    assert scene_difference(first, second, metric) == found


def test_losses_that_are_not_finite_have_no_difference() -> None:
    endless = counts(*(record(str(i), ([3], [3], [4]), math.inf) for i in range(3)))
    found = scene_difference([(1.0, endless)], [(1.0, endless)], "nll")
    assert np.isnan([found.value, found.ci_low, found.ci_high, found.p_value]).all() and found.n == 3
