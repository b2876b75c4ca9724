"""Sentences about runs, and tables of weak classes, against numbers made by hand."""

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from figures import figure, noted
from manifests import whole
from sealing import put, seal

from robustkit.common.figure import Figure
from robustkit.common.finding import Finding
from robustkit.common.intervals import wilson
from robustkit.evaluations.aggregate import Results
from robustkit.report.page import Headline, verdicts
from robustkit.report.run import Run
from robustkit.tasks.labelled.metrics import WeakClasses
from robustkit.tasks.labelled.subject import CLASSIFICATION

PGD, FGSM = "pgd(eps=4/255,steps=20)", "fgsm(eps=1/255)"
CLAIMS = {FGSM: {"eps": 1 / 255, "norm": "linf"}, PGD: {"eps": 4 / 255, "norm": "linf"}}


def row(condition: str, metric: str, value: float | None, *interval: float, n: int = 60, **more: Any) -> Figure:
    low, high = interval or (None, None)
    base = {"checkpoint": "a", "condition": condition, "metric": metric, "value": value, "n": n, "flags": []}
    return figure(base | {"ci_low": low, "ci_high": high, "protocol": "standard@1"} | more)


CLEAN = row("clean", "top1", 0.9333, 0.841, 0.974)


def make_run(folder: Path, **manifest: Any) -> Run:
    run = Run(folder)
    base = {
        "checkpoints": [{"name": "a"}],
        "protocol": {"tag": "standard@1"},
        "conditions": ["clean"],
        "claims": CLAIMS,
    }
    run.write_manifest(whole(base | {"data": {"n": 4}} | manifest))
    return run


def sentence(folder: Path, *rows: Figure, **manifest: Any) -> str:
    (found,) = verdicts(make_run(folder, **manifest), list(rows))
    return found.sentence


def test_a_classifier_in_one_sentence(tmp_path: Path) -> None:
    rows = [
        CLEAN,
        row("clean", "nll", 0.1),
        row(FGSM, "top1", 0.7, 0.6, 0.78),
        row(PGD, "top1", 0.1333, 0.069, 0.242),
        row("corruption(fog,severity=5)", "top1", 0.5, 0.4, 0.6),
        row("corruption(gaussian_noise,severity=5)", "top1", 0.4, 0.3, 0.5),
        row("corruption(gaussian_noise,severity=5)", "nll", 0.1),
        row("corruption(gaussian_noise)", "mean_error", 0.9, 0.8, 0.95),
        row("blur", "mean_error", 0.1, 0.0, 0.2),
        row("noise", "mean_error", 0.234, 0.167, 0.308),
        row("noise", "nll", 4.0),
        row("cam(agcam)", "abpc_over_control", 0.1, 0.02, 0.18, flags=["best control: centre [maps/best-control]"]),
        row(
            "cam(agcam,mode=mask)",
            "cam_iou_over_control",
            0.1,
            0.0,
            0.18,
            flags=["best control: centre [maps/best-control]"],
        ),
        row(
            "cam(agcam,mode=box)",
            "cam_iou_over_control",
            0.1,
            0.02,
            0.18,
            flags=["best control: centre [maps/best-control]"],
        ),
        row(
            "cam(agcam,mode=box)",
            "cam_dice_over_control",
            0.1,
            0.02,
            0.18,
            flags=["best control: full [maps/best-control]"],
        ),
        row("cam(rollout)", "abpc_over_control", -0.1, -0.2, -0.01, flags=["best control: random [maps/best-control]"]),
    ]
    assert sentence(tmp_path, *rows) == (
        "93.3 % [84.1, 97.4] right on 60 clean images; the strongest attack, PGD at 4/255, leaves 13.3 % [6.9, 24.2]; "
        "its error under corruption is 23.4 % [16.7, 30.8] (mean over noise, the worst set), most under gaussian noise "
        "at severity 5 with 60.0 %; "
        "AG-CAM beats a centred Gaussian on ABPC and IoU of boxes, cannot be distinguished from a centred Gaussian "
        "on IoU of pixels; rollout is behind a random map on ABPC."
    )


def test_of_equally_strong_attacks_the_last_is_named(tmp_path: Path) -> None:
    tied = [row(FGSM, "top1", 0.5, 0.4, 0.6), row(PGD, "top1", 0.5, 0.4, 0.6)]
    assert "; the strongest attack, PGD at 4/255, leaves 50.0 %" in sentence(tmp_path, CLEAN, *tied)


def test_the_benchmarks_own_mean_goes_before_a_higher_one(tmp_path: Path) -> None:
    means = [row("noise", "mean_error", 0.5, 0.4, 0.6), row("in-c(preset=cifar)", "mean_error", 0.25, 0.2, 0.3)]
    worst = row("corruption(snow,severity=1,preset=cifar)", "top1", 0.75, 0.7, 0.8)
    for order in (means, means[::-1]):
        said = sentence(tmp_path, CLEAN, *order, worst)
        mean = "its error under corruption is 25.0 % [20.0, 30.0] (in-c(preset=cifar)), "
        assert mean + "most under snow at severity 1 with 25.0 %;" in said
    said = sentence(tmp_path, CLEAN, worst)
    assert said.endswith(
        "; its error under corruption is largest under snow at severity 1 with 25.0 %; no attacks were evaluated."
    )


def test_it_says_what_cannot_be_said(tmp_path: Path) -> None:
    assert sentence(tmp_path) == "Nothing was evaluated."
    assert sentence(tmp_path, row("clean", "top1", None)) == "Nothing was evaluated."
    clean = "93.3 % [84.1, 97.4] right on 60 clean images; "
    assert sentence(tmp_path, CLEAN) == clean + "no attacks and no corruptions were evaluated."
    wide = "; no corruptions were evaluated; intervals are wider than 20 points: too few samples to tell more."
    attacked = row(PGD, "top1", 0.3, 0.2, 0.41, n=50)
    only = clean + "the only attack, PGD at 4/255, leaves 30.0 % [20.0, 41.0] of 50 images"
    alone = {"claims": {PGD: CLAIMS[PGD]}}
    assert sentence(tmp_path, CLEAN, attacked, **alone) == only + wide
    assert sentence(tmp_path, CLEAN, replace(attacked, high=0.39), **alone) == only.replace(
        "41.0", "39.0"
    ) + wide.split(";")[0] + ("; no corruptions were evaluated.")
    few = sentence(tmp_path, replace(CLEAN, low=math.nan, high=math.nan))
    assert few.startswith("93.3 % right on 60") and few.endswith("; too few samples for intervals.")
    # A checkpoint without rows says so, the others are not touched by it.
    two = verdicts(make_run(tmp_path, checkpoints=[{"name": "b"}, {"name": "a"}]), [CLEAN])
    assert [v.checkpoint for v in two] == ["b", "a"] and two[0] == Headline("b", "Nothing was evaluated.", ())
    lead = row("cam(agcam)", "abpc_over_control", 0.1, flags=["best control: full [maps/best-control]"])
    assert "AG-CAM has too few maps to compare with the all-ones map on ABPC" in sentence(tmp_path, lead)


def test_an_unfinished_run_has_no_strongest_attack_and_no_worst_corruption(tmp_path: Path) -> None:
    part = (Finding.of("run/incomplete", have=3, expected=4),)
    weak, strong = row(FGSM, "top1", 0.7, 0.6, 0.78), row(PGD, "top1", 0.1333, 0.069, 0.242)
    start = "93.3 % [84.1, 97.4] right on 60 clean images; the attack "
    for rows, said in (
        ([weak], "FGSM at 1/255 leaves 70.0 % [60.0, 78.0] so far (unfinished attacks: 1 of 2); no corr"),
        (
            [replace(strong, findings=part), weak],
            "PGD at 4/255 leaves 13.3 % [6.9, 24.2], the least so far (unfinished att",
        ),
        (
            [replace(strong, findings=part)],
            "PGD at 4/255 leaves 13.3 % [6.9, 24.2] so far (unfinished attacks: 2 of 2); no c",
        ),
    ):
        assert sentence(tmp_path, CLEAN, *rows).startswith(start + said)
    fog, snow = (row(f"corruption({name},severity=5)", "top1", 0.5, 0.4, 0.6) for name in ("fog", "snow"))
    asked = {"conditions": [fog.condition, snow.condition]}
    noise = row("noise", "mean_error", 0.5, 0.4, 0.6)
    for rows, said in (
        ([fog], "corruption is so far largest under fog at severity 5 with 50.0 %;"),
        (
            [fog, replace(snow, findings=part), noise],
            "(mean over noise, the worst set so far), so far most under fog at sev",
        ),
        ([fog, snow, noise], "(mean over noise, the worst set), most under fog at sev"),
    ):
        assert said in sentence(tmp_path, CLEAN, *rows, **asked)
    segmentation = {"tag": "segmentation@1", "task": "segmentation"}
    left = row("noise", "retention", 0.5, 0.4, 0.6), replace(fog, metric="miou")
    assert "(noise), so far worst fog at" in sentence(tmp_path, *left, **asked, protocol=segmentation)
    assert "Under corruption it is so far lowest under" in sentence(tmp_path, left[1], **asked, protocol=segmentation)


def test_radii_are_said_in_their_norm_and_units(tmp_path: Path) -> None:
    claims = {"pgd(eps=0.5,norm=l2)": {"eps": 0.5, "norm": "l2"}}
    assert "PGD at 0.5 (l2)," in sentence(tmp_path, row("pgd(eps=0.5,norm=l2)", "top1", 0.1, 0.1, 0.2), claims=claims)
    normalised = {"tag": "quest@1", "space": "normalised"}
    said = sentence(tmp_path, row(FGSM, "top1", 0.1, 0.1, 0.2), protocol=normalised, claims={FGSM: CLAIMS[FGSM]})
    assert said.startswith(
        "The only attack, FGSM at 1/255 in normalised units, leaves 10.0 % [10.0, 20.0] of 60 images;"
    )


def test_a_segmenter_in_one_sentence(tmp_path: Path) -> None:
    rows = [
        row("clean", "miou", 0.645, 0.554, 0.7, n=40),
        row("clean", "iou(pole)", 0.032, n=1),
        row("clean", "iou(car)", 0.9, n=40),
        row(PGD, "iou(car)", 0.01, n=40),
        row(PGD, "miou", 0.5, 0.4, 0.55, n=40),
        row(FGSM, "miou", 0.6, 0.5, 0.65, n=40),
        row("noise", "retention", 0.436, 0.386, 0.483, n=40),
        row("blur", "retention", 0.8, 0.7, 0.9, n=40),
        row("corruption(fog)", "retention", 0.1, 0.0, 0.2, n=40),
        row("corruption(fog,severity=5)", "miou", 0.09, 0.0, 0.2, n=40),
        row("corruption(fog,severity=1+2+3)", "miou", 0.01, 0.0, 0.2, n=40),
    ]
    segmentation = {"tag": "segmentation@1", "task": "segmentation"}
    assert sentence(tmp_path, *rows, protocol=segmentation) == (
        "mIoU 64.5 % [55.4, 70.0] on 40 clean images; the strongest attack, PGD at 4/255, leaves 50.0 % [40.0, 55.0]; "
        "corruption leaves 43.6 % [38.6, 48.3] of it (noise), worst fog at severity 5 with mIoU 9.0 %; its weakest "
        "class is pole with IoU 3.2 % in 1 image, clean."
    )
    whole = [row("in-c", "retention", 0.9, 0.8, 1.01, n=40), *rows]
    assert "leaves 90.0 % [80.0, 101.0] of it (in-c)" in sentence(tmp_path, *whole, protocol=segmentation)
    assert sentence(tmp_path, *whole, protocol=segmentation).endswith("too few samples to tell more.")
    assert "no corruptions" not in sentence(tmp_path, whole[0], protocol=segmentation)
    only = "Under corruption it is lowest under fog at severity 5 with mIoU 9.0 %; no attacks were evaluated."
    assert sentence(tmp_path, rows[-2], protocol=segmentation) == only
    assert "no attacks and no corruptions" in sentence(tmp_path, rows[0], protocol=segmentation)


def test_doubts_are_given_once_with_what_bears_them(tmp_path: Path) -> None:
    doubt, other = "exceeds eps [attack/exceeds-eps]", "incomplete: 3 of 4 samples [run/incomplete]"
    rows = [CLEAN.having(noted(other)), row(FGSM, "top1", 0.5, flags=[doubt]), row(FGSM, "nll", 0.5, flags=[doubt])]
    rows += [
        row(PGD, "top1", None, flags=[other]),
        row("cam(agcam)", "x", 0.5, flags=["best control: full [maps/best-control]"]),
    ]
    (found,) = verdicts(make_run(tmp_path), rows)
    assert found.flags == (f"{other} (2 conditions)", f"{doubt} (fgsm(eps=1/255))")


def write(run: Run, condition: str, label: Any, prediction: Any, checkpoint: str = "a", **more: Any) -> None:
    label, prediction = np.asarray(label), np.asarray(prediction)
    n = len(label)
    base: dict[str, Any] = {name: [None] * n for name in CLASSIFICATION.names}
    base |= {"sample_id": [f"s{i:05d}" for i in range(n)], "label": label, "prediction": prediction}
    put(run, checkpoint, condition, pa.table(base | {"correct": label == prediction} | more, schema=CLASSIFICATION))
    seal(run)


LABELS = [0] * 6 + [1] * 5 + [2] * 5 + [3] * 4 + [4] * 5
CLEANLY = [0] * 5 + [2] + [1, 1, 2, 2, 0] + [2] * 5 + [0] * 4 + [4] * 5
"""Class 0: 5 of 6, one for 2. 1: 2 of 5, two for 2, one for 0. 2: all. 3: too few samples. 4: all."""


def test_weak_classes_clean(tmp_path: Path) -> None:
    run = make_run(tmp_path, data={"n": 25, "class_names": ["ant", "bee", "cat", "dog", "eel"]})
    write(run, "clean", LABELS, CLEANLY)
    (table,) = Results(run, []).gathered(WeakClasses).tables
    assert table.title == "a: classes with the lowest clean accuracy"
    assert table.headings == ("class", "n", "right % [95 %]", "most often mistaken for")
    low, high = wilson(2, 5)
    assert table.rows == (
        ("bee", "5", f"40.0 [{100 * low:.1f}, {100 * high:.1f}]", "cat (2 of 3)"),
        ("ant", "6", "83.3 [43.6, 97.0]", "cat (1 of 1)"),
    )
    assert table.note == (
        "Each interval is for its class alone: the lowest of many classes are low partly by chance. "
        "1 class with fewer than 5 samples left out."
    )


def test_a_last_class_of_which_none_is_right_counts(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write(run, "clean", [0] * 5 + [1] * 5, [0] * 10)
    (table,) = Results(run, []).gathered(WeakClasses).tables
    assert [row[:2] + row[3:] for row in table.rows] == [("1", "5", "0 (5 of 5)")]


def test_largest_drops_are_of_the_samples_that_both_have(tmp_path: Path) -> None:
    run = make_run(tmp_path, conditions=["clean", PGD])
    write(run, "clean", LABELS, CLEANLY)
    # Class 0 falls from 5 to 2 of 6, for 3 and 4 alike; 1 gains; 2 falls from 5 to 1 of 5, but one of it was not read;
    # 4 loses one of 5.
    after = np.array([0, 0, 3, 3, 4, 4, 1, 1, 1, 1, 1, 2, 0, 0, 3, 4, 3, 3, 3, 3, 4, 4, 4, 4, 1])
    write(run, PGD, LABELS, after, error=[("broken" if i == 11 else None) for i in range(25)])
    clean, attacked = Results(run, []).gathered(WeakClasses).tables
    assert [clean.rows[0][0], attacked.title] == ["1", f"a: classes with the largest drop under {PGD}"]
    assert attacked.headings == ("class", "n", "clean %", "right % [95 %]", "points", "most often mistaken for")
    assert attacked.rows == (
        ("0", "6", "83.3", "33.3 [9.7, 70.0]", "−50.0", "3, 4 (2 of 4 each)"),
        ("4", "5", "100.0", "80.0 [37.6, 96.4]", "−20.0", "1 (1 of 1)"),
    )
    assert attacked.note.endswith("2 classes with fewer than 5 samples left out.")


def test_what_has_no_label_or_was_not_read_does_not_count(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write(run, "clean", [-1] * 9, [0] * 9, correct=[None] * 9)
    assert Results(run, []).gathered(WeakClasses).tables == []
    write(run, "clean", [0] * 6, [1] * 6, error=["broken"] * 6)
    assert Results(run, []).gathered(WeakClasses).tables == []
    write(run, "clean", [0] * 6, [0] * 6)
    assert Results(run, []).gathered(WeakClasses).tables == []  # nothing is wrong


def test_only_the_eight_weakest_in_time_for_many_samples(tmp_path: Path) -> None:
    n, classes = 50_000, 1000
    run = make_run(tmp_path, conditions=["clean", FGSM, PGD, "corruption(fog,severity=1)"])
    label = np.arange(n) % classes
    draws = np.random.Generator(np.random.PCG64(0)).random(n)
    shares_wrong = {"clean": 0.1, FGSM: 0.5, PGD: 0.9, "corruption(fog,severity=1)": 0.9}
    for condition, share in shares_wrong.items():
        write(run, condition, label, np.where(draws < share, (label + 1) % classes, label))
    before = time.process_time()
    tables = Results(run, []).gathered(WeakClasses).tables
    assert time.process_time() - before < 2
    assert [len(table.rows) for table in tables] == [8, 8, 8]
    assert tables[0].note.startswith("The 8 lowest of ") and tables[1].note.startswith("The 8 largest of 1000 classes")
    shares = [float(cells[2].split()[0]) for cells in tables[0].rows]
    wrong = np.bincount(label[draws < 0.1], minlength=classes)
    assert shares == pytest.approx(sorted(100 - 2.0 * wrong)[:8])
