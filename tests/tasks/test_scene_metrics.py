"""Figures of label maps against torchmetrics, plain loops and literals worked out by hand; means, pairs and tables."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from rich.console import Console
from scipy import stats
from torch import Tensor

from robustkit.errors import DataError, ModelError, RunError
from robustkit.evaluations.corruptions.sets import CORRUPTIONS, SETS
from robustkit.evaluations.corruptions.shares import shares_of
from robustkit.results.paired import Difference, Side, paired_difference, scene_difference
from robustkit.tasks.segmentation.columns import SCENES
from robustkit.tasks.segmentation.metrics import Counts, biased, class_counts, scene_mean_rows, scene_rows
from robustkit.tasks.segmentation.tables import LONGEST, SceneTable, scene_tables, terminal_scenes

pytestmark = pytest.mark.usefixtures("one_thread")
NONE = pytest.approx((math.nan, math.nan), nan_ok=True)
Found = dict[tuple[str, str], tuple[Any, ...]]


def record(sample: str, counts: Any, nll: float | None = 0.5, **more: Any) -> dict[str, Any]:
    """counts: intersections, predicted and labelled by class."""
    intersections, predicted, labelled = (np.asarray(part).tolist() for part in counts)
    told = {"intersections": intersections, "predicted": predicted, "labelled": labelled, "pixels": sum(labelled)}
    return {"sample_id": sample, "nll": nll, "linf": 0.0, "l2": 0.0} | told | more


def table(rows: Iterable[dict[str, Any]]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), schema=SCENES)


def counts(*rows: dict[str, Any], flags: tuple[str, ...] = ()) -> Counts:
    return Counts.of(table(rows), flags)


def random_rows(seed: int, n: int, classes: int, rare: int | None = None) -> list[dict[str, Any]]:
    """Records of random maps: the last class is nowhere, `rare` in the first image only, one image has no pixel."""
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randint(-1, classes - 1, (n, 5, 6), generator=torch.Generator().manual_seed(7))
    found = torch.where(
        torch.rand(n, 5, 6, generator=generator) < 0.5,
        truth,
        torch.randint(0, classes - 1, (n, 5, 6), generator=generator),
    )
    truth[3 % n] = -1
    if rare is not None:
        truth[1:][truth[1:] == rare], found[1:][found[1:] == rare] = -1, 0
    losses = torch.rand(n, generator=generator).tolist()
    parts = zip(*class_counts(found, truth, classes), losses, strict=True)
    return [record(f"{i:03}", part[:3], loss if sum(part[2]) else None) for i, (*part, loss) in enumerate(parts)]


def by_key(rows: Iterable[tuple[Any, ...]]) -> Found:
    found = {}
    for row in rows:
        assert (row[0], row[1]) not in found
        found[row[0], row[1]] = row[2:]
    return found


def slow(rows: list[dict[str, Any]], drawn: Iterable[int]) -> dict[str, float]:
    """The figures of the images drawn, image by image and class by class."""
    chosen = [rows[i] for i in drawn]
    classes = len(rows[0]["labelled"])
    ious, accuracies, right, pixels, loss = {}, [], 0, 0, 0.0
    for k in range(classes):
        hit, found, there = (sum(row[name][k] for row in chosen) for name in ("intersections", "predicted", "labelled"))
        if found + there - hit:
            ious[f"iou({k})"] = hit / (found + there - hit)
        if there:
            accuracies.append(hit / there)
        right, pixels = right + hit, pixels + there
    for row in chosen:
        loss += sum(row["labelled"]) * (row["nll"] or 0)
    means = {"miou": sum(ious.values()) / len(ious), "pixel_accuracy": right / pixels}
    return means | {"mean_accuracy": sum(accuracies) / len(accuracies), "nll": loss / pixels} | ious


def draws(n: int) -> list[np.ndarray]:
    generator = np.random.Generator(np.random.PCG64(0))
    return [generator.integers(0, n, n) for _ in range(1000)]


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


GPU = pytest.param(
    "cuda",
    marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")],
)


@pytest.mark.parametrize("device", ["cpu", GPU])
def test_counts_are_those_of_a_loop_over_pixels(device: str) -> None:
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
    absent = "1 of 4 classes is in neither prediction nor truth, left out of the mean: pole"
    assert own["clean", "miou"][4] == ["in part", absent]
    unlabelled = "2 of 4 classes are without labelled pixels, left out of the mean: sky, pole"
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
    assert flag.startswith("8 of 9 classes are in neither") and flag.endswith(": door 1, door 2, a, b, c and 3 more")
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
        expected = np.percentile([one[metric] for one in resampled], [2.5, 97.5])
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
    line = "classes in few images bias its interval by over a quarter of a standard error; evaluate more images"
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
    assert [biased(value, spread) for value in (1.0, 1.24, 1.26, 0.74)] == [False, False, True, True]
    few = by_key(scene_rows("clean", counts(*often[:9]), names))["clean", "miou"][4]
    assert line not in few  # there is no interval


def test_the_order_of_records_and_the_unreadable_change_nothing() -> None:
    rows = random_rows(1, 12, 4)
    damaged = [{"sample_id": "0055", "error": "damaged"}, {"sample_id": "zzz", "error": "no mask"}]
    plain = list(scene_rows("clean", Counts.of(table(rows), ()), "0123"))
    shuffled = Counts.of(pa.concat_tables([table(damaged + rows[:4:-1]), table(rows[:5])]), ())
    assert list(scene_rows("clean", shuffled, "0123")) == plain
    assert list(scene_rows("clean", Counts.of(table(damaged), ()), "0123")) == []


# means


def share(part: float, n: int = 1, ids: str = "abcdefghijklmnop", flags: tuple[str, ...] = ()) -> Counts:
    """One class with that IoU in each of n images of 30 pixels: what is wrong is predicted as nothing."""
    hit = round(30 * part)
    return counts(*(record(ids[i], ([hit], [hit], [30]), nll=1 - part) for i in range(n)), flags=flags)


def all_of(members: dict[str, tuple[int, ...]], part: float, suffix: str = "") -> dict[str, Counts]:
    return {f"corruption({c},severity={s}{suffix})": share(part) for c, which in members.items() for s in which}


def means(found: dict[str, Counts], expected: int = 1, names: str = "0") -> Found:
    return by_key(scene_mean_rows(found, expected, names))


def test_severities_count_alike_then_corruptions_and_retention_is_of_the_clean_miou() -> None:
    own = all_of(SETS["in-c"], 0.6) | {"clean": share(0.8)}
    own["corruption(fog,severity=4)"] = share(0.1)
    found = means(own)
    assert found["corruption(fog)", "miou"][:2] == (pytest.approx(0.5), 1)
    assert found["corruption(fog)", "retention"][0] == pytest.approx(0.5 / 0.8)
    assert found["weather", "miou"][0] == pytest.approx(0.6 - 0.1 / 4)
    assert found["blur", "miou"][0] == pytest.approx(0.6)
    for metric, sign in (("miou", 1), ("pixel_accuracy", 1), ("mean_accuracy", 1), ("iou(0)", 1), ("nll", -1)):
        value = 0.6 - 0.1 / 15
        assert found["in-c", metric][0] == pytest.approx(value if sign == 1 else 1 - value)
    assert found["in-c", "retention"][0] == pytest.approx((0.6 - 0.1 / 15) / 0.8)
    assert found["corruption(fog,severity=1+2+3)", "miou"][0] == pytest.approx(0.6)
    without = means({text: one for text, one in own.items() if text != "clean"})
    assert without["in-c", "miou"][0] == found["in-c", "miou"][0]
    assert not {metric for _, metric in without} & {"retention"}


def test_means_over_three_and_five_severities_are_kept_apart() -> None:
    own = all_of(SETS["segformer-16"], 1.0)
    own["corruption(shot_noise,severity=3)"] = own["corruption(spatter,severity=5)"] = share(0.0)
    found = means(own)
    assert found["segformer-16", "miou"][0] == pytest.approx(1 - (1 / 3 + 1 / 5) / 16)
    assert found["corruption(shot_noise,severity=1+2+3)", "miou"][0] == pytest.approx(2 / 3)
    assert found["corruption(spatter)", "miou"][0] == pytest.approx(4 / 5)
    assert ("corruption(shot_noise)", "miou") not in found
    assert {condition for condition, _ in found if condition in SETS} == {"segformer-16", "weather"}
    every = means(all_of(dict.fromkeys(CORRUPTIONS, (1, 2, 3, 4, 5)), 1.0))
    assert {condition for condition, _ in every if condition in SETS} == set(SETS)
    assert sum(condition.startswith("corruption(") for condition, metric in every if metric == "miou") == 2 * 19


def test_what_a_result_is_over() -> None:
    assert shares_of("clean") == {"clean": 1.0}
    assert shares_of("pgd(eps=1/255,steps=20)") == {"pgd(eps=1/255,steps=20)": 1.0}
    assert shares_of("corruption(fog,severity=2)") == {"corruption(fog,severity=2)": 1.0}
    assert shares_of("corruption(fog,severity=1+3,preset=cifar)") == {
        "corruption(fog,severity=1,preset=cifar)": 0.5,
        "corruption(fog,severity=3,preset=cifar)": 0.5,
    }
    assert shares_of("corruption(snow,source=released)") == {
        f"corruption(snow,severity={s},source=released)": 0.2 for s in (1, 2, 3, 4, 5)
    }
    found = shares_of("segformer-16(preset=cifar)")
    assert len(found) == 72 and sum(found.values()) == pytest.approx(1)
    assert found["corruption(shot_noise,severity=1,preset=cifar)"] == pytest.approx(1 / 48)
    assert found["corruption(fog,severity=5,preset=cifar)"] == pytest.approx(1 / 80)


def test_definitions_are_not_mixed() -> None:
    found = means(all_of(SETS["noise"], 0.9) | all_of(SETS["noise"], 0.3, ",source=released"))
    assert found["noise", "miou"][0] == pytest.approx(0.9)
    assert found["noise(source=released)", "miou"][0] == pytest.approx(0.3)
    some = "corruption(shot_noise,severity=1+2+3,source=released)"
    assert found[some, "miou"][0] == found["corruption(shot_noise,source=released)", "miou"][0] == pytest.approx(0.3)


def test_intervals_of_means_keep_the_conditions_of_an_image_together_and_leave_out_what_some_lack() -> None:
    rows = {s: random_rows(s, 13, 5) for s in range(6)}
    rows[3] = [*rows[3][:7], {"sample_id": "007", "error": "damaged"}, *rows[3][:7:-1]]
    part = "weights in part"
    told = {1: (part,), 2: (part,), 3: ("1 of 13 images could not be read; left out",), 0: (part, "of clean")}
    texts = {s: f"corruption(fog,severity={s})" if s else "clean" for s in rows}
    found = means({texts[s]: Counts.of(table(rows[s]), told.get(s, ())) for s in rows}, 13, "01234")
    kept = {
        s: sorted((row for row in rows[s] if row["sample_id"] != "007"), key=lambda row: row["sample_id"]) for s in rows
    }
    means_of, ratios = [], []
    for drawn in [range(12), *draws(12)]:
        figures = {s: slow(kept[s], drawn) for s in kept}
        means_of.append(
            {name: sum(figures[s][name] for s in range(1, 6)) / 5 for name in ("miou", "nll", "mean_accuracy")}
        )
        ratios.append(means_of[-1]["miou"] / figures[0]["miou"])
    lines = [part, "1 of 13 samples lack some of its conditions; left out"]
    for metric, expected in {name: [one[name] for one in means_of] for name in means_of[0]}.items():
        value, n, *bounds, flags = found["corruption(fog)", metric]
        assert (value, n, flags[:2]) == (pytest.approx(expected[0], rel=1e-6), 12, lines)
        assert bounds == pytest.approx(np.percentile(expected[1:], [2.5, 97.5]).tolist(), rel=1e-6)
    value, n, *bounds, flags = found["corruption(fog)", "retention"]
    assert (value, n, flags[:3]) == (pytest.approx(ratios[0]), 12, [*lines, "of clean"])
    assert bounds == pytest.approx(np.percentile(ratios[1:], [2.5, 97.5]).tolist())
    clean = means({text: share(0.5, 9) for text in texts.values()}, 9)["corruption(fog)", "retention"]
    assert clean[:2] == (1, 9) and clean[2:4] == NONE  # nine are too few
    own = {text: share(0.5, 2, ids="xy" if "4" in text else "ab") for text in texts.values()}
    assert {key[0] for key in means(own, 2)} == {"corruption(fog,severity=1+2+3)"}  # no image is in all five


def test_classes_that_a_mean_leaves_out_are_named() -> None:
    here, gone = ([3, 2, 0], [3, 2, 0], [5, 2, 0]), ([3, 0, 0], [3, 0, 0], [5, 0, 0])
    own = {text: counts(record("a", here)) for text in shares_of("noise")}
    (flag,) = means(own, 1, "rst")["noise", "miou"][4]
    assert flag == "1 of 3 classes is in neither prediction nor truth, left out of the mean: t"
    own["corruption(shot_noise,severity=2)"] = counts(record("a", gone))
    found = means(own | {"clean": counts(record("a", gone))}, 1, "rst")
    some = "1 of 3 classes is in neither prediction nor truth under some of its conditions, left out of the mean: s"
    assert found["noise", "miou"][4] == [flag, some] and found["corruption(impulse_noise)", "miou"][4] == [flag]
    assert found["corruption(impulse_noise)", "retention"][4] == [flag, some]
    assert found["noise", "mean_accuracy"][4][0].startswith("1 of 3 classes is without labelled pixels")
    assert ("noise", "iou(s)") not in found and found["noise", "iou(r)"][:2] == (pytest.approx(3 / 5), 1)
    assert ("corruption(impulse_noise)", "iou(r)") not in found  # of sets only


# pairs


class Recorded:
    """Stands for a run: tables by checkpoint and condition."""

    path = Path("somewhere")

    def __init__(self, tables: dict[tuple[str, str], list[dict[str, Any]]]) -> None:
        self.tables = tables

    def table(self, checkpoint: str, condition: str, columns: list[str]) -> pa.Table:
        return table(self.tables[checkpoint, condition]).select(columns)


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
    with pytest.raises(RunError, match="a and b have no sample in common under clean; audit both again"):
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


# tables

MANIFEST = {
    "checkpoints": [{"name": "seg", "attention": "quest"}, {"name": "conv", "attention": "none"}],
    "claims": {
        "pgd(eps=4/255,steps=3)": {"norm": "linf", "eps": 4 / 255},
        "pgd(eps=1,steps=3,norm=l2)": {"norm": "l2", "eps": 1.0},
    },
    "protocol": {"tag": "segmentation@1:00", "summary": "pixels"},
}
KEYS = ("condition", "metric", "value", "n", "ci_low", "ci_high", "flags")


def summary(found: dict[str, Counts], n: int, names: str, checkpoint: str = "seg") -> list[dict[str, Any]]:
    rows = [row for text, one in found.items() for row in scene_rows(text, one, names)]
    rows += scene_mean_rows(found, n, names)
    return [{"checkpoint": checkpoint} | dict(zip(KEYS, row, strict=True)) for row in rows]


def test_tables_by_hand() -> None:
    pgd = "pgd(eps=4/255,steps=3)"
    own = {"clean": share(0.8, 10), pgd: replace(share(0.2, 10, flags=("half",)), largest={"linf": 4 / 255, "l2": 1.0})}
    own |= {f"corruption({c},severity={s})": share(0.1 * s, 10) for c in SETS["noise"] for s in (1, 2, 3, 4, 5)}
    own |= {f"corruption(fog,severity={s})": share(0.5, 10) for s in (1, 2, 3)} | {
        "corruption(snow,severity=5)": share(0, 10)
    }
    second = {"clean": share(0.5), "pgd(eps=1,steps=3,norm=l2)": replace(share(0.5), largest={"linf": 0.1, "l2": 0.75})}
    results = summary(own, 10, "0") + summary(second, 1, "0", "conv")
    assert (results[0]["condition"], results[0]["metric"]) == ("clean", "miou")
    results[0] |= {"ci_low": 0.71, "ci_high": 0.89}
    plain, severities, sets, classes, other = scene_tables(results, MANIFEST)
    assert plain.title == "protocol segmentation@1:00: pixels" and plain.ends == (1, 3)
    cell = "80.0 [80.0, 80.0]"
    assert plain.rows[0] == ("seg", "quest", "clean", "10", "80.0 [71.0, 89.0]", cell, cell, "0.200", "0")
    assert plain.rows[1][2:5] == (pgd, "10", "20.0 [20.0, 20.0]") and plain.rows[1][7:] == ("0.800", "4/255")
    assert plain.rows[2] == ("conv", "no", "clean", "1", "50.0", "50.0", "50.0", "0.500", "0")
    assert plain.rows[3][2:4] == ("pgd(eps=1,steps=3,norm=l2)", "1") and plain.rows[3][8] == "0.75"
    assert plain.flags == (f"seg, {pgd}: half",)
    noise = ("10.0", "20.0", "30.0", "40.0", "50.0", "30.0", "37.5")
    assert severities.headings == ("corruption", "1", "2", "3", "4", "5", "mean", "retention %")
    assert severities.rows[:3] == tuple((name, *noise) for name in SETS["noise"])
    assert severities.rows[3] == ("mean of noise", *noise)
    assert severities.rows[4:] == (
        ("snow", "–", "–", "–", "–", "0.0", "0.0 (5)", "0.0 (5)"),
        ("fog", "50.0", "50.0", "50.0", "–", "–", "50.0 (1–3)", "62.5 (1–3)"),
    )
    assert severities.ends == (3, 5) and severities.values[0] == pytest.approx((0.1, 0.2, 0.3, 0.4, 0.5, 0.3, 0.375))
    assert severities.values[4][:5] == (None,) * 4 + (0,)
    assert sets.rows == (("noise", "10", "30.0 [30.0, 30.0]", "37.5 [37.5, 37.5]", "30.0", "30.0", "0.700"),)
    assert classes.headings == ("class", "images", "clean", pgd, "noise")
    assert classes.rows == (("0", "10", "80.0", "20.0", "30.0"),)
    assert classes.values == ((None, *(pytest.approx(value) for value in (0.8, 0.2, 0.3))),)
    assert other.title.startswith("conv: IoU") and other.rows == (("0", "1", "50.0", "50.0"),)
    assert scene_tables([row for row in results if row["metric"] == "nll"], MANIFEST) == []


def test_tables_of_a_definition_and_their_flags() -> None:
    here, gone = ([3, 2, 0], [3, 2, 0], [5, 2, 0]), ([3, 0, 0], [3, 0, 0], [5, 0, 0])
    texts = [*shares_of("noise(source=released)"), "corruption(fog,severity=2,source=released)", "clean"]
    own = {text: counts(record("a", here), flags=("half",)) for text in texts}
    own[texts[0]] = counts(record("a", gone))
    own["clean"] = counts(record("a", here, nll=math.inf))
    plain, severities, sets, classes = scene_tables(summary(own, 1, "rst"), MANIFEST)
    assert severities.title == "seg: mIoU in % by corruption and severity, released files (source=released)"
    # One of 15 conditions sees the road only: 3/5; the others 3/5 and 2/2, which are 5 of 7 pixels.
    assert plain.rows[0][4:8] == ("80.0", "71.4", "80.0", "nan")
    assert sets.rows[0] == ("noise(source=released)", "1", "78.7", "98.3", "70.7", "78.7", "0.500")
    assert classes.headings[2:] == ("clean", "noise(source=released)") and classes.rows[1][2:] == ("100.0", "–")
    always = "1 of 3 classes is in neither prediction nor truth, left out of the mean: t"
    lines = [line for line in severities.flags if "labelled" not in line]
    assert lines[0] == "seg, corruption(gaussian_noise,severity=2,source=released) and 21 more: half"
    # Single conditions with a mean do not say again what it says; fog has none.
    assert f"seg, corruption(fog,severity=2,source=released) and 7 more: {always}" in lines
    assert len(lines) == 3 and lines[2].startswith("seg, corruption(gaussian_noise,source=released) and 2 more: 1 of 3")
    assert plain.flags[0] == f"seg, clean: {always}"


def test_a_terminal_shows_the_tables_but_not_the_longest() -> None:
    own = {f"corruption({c},severity={s})": share(0.1 * s) for c in SETS["noise"] for s in (1, 2, 3, 4, 5)}
    tables = scene_tables(summary(own | {"clean": share(0.8)}, 1, "0"), MANIFEST)
    long = SceneTable("many", ("class", "images", "clean"), (("[red]wall", "1", "2"),) * (LONGEST + 1))
    console = Console(width=150, record=True, file=io.StringIO())
    for part in terminal_scenes([*tables, long, replace(long, rows=long.rows[1:])]):
        console.print(part)
    text = console.export_text()
    assert "seg: mIoU in % by corruption and severity" in text and "37.5" in text and "80.0" in text
    assert f"{LONGEST + 1} classes; see the report" in text and text.count("[red]wall") == LONGEST
