"""Means of scenes over severities, corruptions and conditions: by hand, kept apart, with their intervals."""

from __future__ import annotations

import numpy as np
import pytest
from figures import noted
from scene_records import NONE, Found, by_key, counts, draws, random_rows, record, share, slow, table

from robustkit.common.intervals import percentiles
from robustkit.evaluations.corruptions import CORRUPTIONS, QUICK, SETS, shares_of
from robustkit.tasks.segmentation.counts import Counts
from robustkit.tasks.segmentation.results import scene_mean_rows

pytestmark = pytest.mark.usefixtures("one_thread")


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
    assert {condition for condition, _ in every if condition in SETS} == set(SETS) - set(QUICK)
    assert (
        sum(condition.startswith("corruption(") for condition, metric in every if metric == "miou") == 2 * 19 + 21
    )  # over five severities, and over the three of segmenters


def test_a_quick_set_says_that_it_was_measured_for_another_figure() -> None:
    rows = [
        *scene_mean_rows(all_of(SETS["in-c-quick"], 0.6), 1, "0"),
        *scene_mean_rows(all_of(SETS["in-c"], 0.6), 1, "0"),
    ]
    noted = {
        row.condition: [one.text for one in row.findings if one.code == "corruptions/quick-elsewhere"] for row in rows
    }
    assert noted["in-c-quick"] == [
        "in-c-quick estimates in-c from three kinds; how near it comes was measured for the error of classifiers alone"
    ]
    assert not any(texts for condition, texts in noted.items() if condition != "in-c-quick")


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
    reported = {
        1: (part,),
        2: (part,),
        3: ("1 of 13 images could not be read; excluded [data/unreadable]",),
        0: (part, "of clean"),
    }
    texts = {s: f"corruption(fog,severity={s})" if s else "clean" for s in rows}
    found = means({texts[s]: Counts.of(table(rows[s]), noted(*reported.get(s, ()))) for s in rows}, 13, "01234")
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
    lines = [part, "1 of 13 samples lack some of its conditions; excluded"]
    for metric, expected in {name: [one[name] for one in means_of] for name in means_of[0]}.items():
        value, n, *bounds, flags = found["corruption(fog)", metric]
        assert (value, n, flags[:2]) == (pytest.approx(expected[0], rel=1e-6), 12, lines)
        assert bounds == pytest.approx(np.percentile(expected[1:], percentiles(12)).tolist(), rel=1e-6)
    value, n, *bounds, flags = found["corruption(fog)", "retention"]
    assert (value, n, flags[:3]) == (pytest.approx(ratios[0]), 12, [*lines, "of clean"])
    assert bounds == pytest.approx(np.percentile(ratios[1:], percentiles(12)).tolist())
    clean = means({text: share(0.5, 9) for text in texts.values()}, 9)["corruption(fog)", "retention"]
    assert clean[:2] == (1, 9) and clean[2:4] == NONE  # nine are too few
    own = {text: share(0.5, 2, ids="xy" if "4" in text else "ab") for text in texts.values()}
    assert {key[0] for key in means(own, 2)} == {"corruption(fog,severity=1+2+3)"}  # no image is in all five


def test_classes_that_a_mean_leaves_out_are_named() -> None:
    here, gone = ([3, 2, 0], [3, 2, 0], [5, 2, 0]), ([3, 0, 0], [3, 0, 0], [5, 0, 0])
    own = {text: counts(record("a", here)) for text in shares_of("noise")}
    (flag,) = means(own, 1, "rst")["noise", "miou"][4]
    assert flag == "the mean is over 2 of 3 classes: t is in neither prediction nor truth"
    own["corruption(shot_noise,severity=2)"] = counts(record("a", gone))
    found = means(own | {"clean": counts(record("a", gone))}, 1, "rst")
    some = "the mean is over 2 of 3 classes: s is in neither prediction nor truth under some of its conditions"
    assert found["noise", "miou"][4] == [flag, some] and found["corruption(impulse_noise)", "miou"][4] == [flag]
    assert found["corruption(impulse_noise)", "retention"][4] == [flag, some]
    assert found["noise", "mean_accuracy"][4][0].endswith("t is without labelled pixels")
    assert ("noise", "iou(s)") not in found and found["noise", "iou(r)"][:2] == (pytest.approx(3 / 5), 1)
    assert ("corruption(impulse_noise)", "iou(r)") not in found  # of sets only
