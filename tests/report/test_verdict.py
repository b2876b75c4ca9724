"""Sentences about runs, and tables of weak classes, against numbers made by hand."""

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from figures import figure
from manifests import whole
from scipy.stats import fisher_exact
from sealing import put, seal

from robustkit.common.figure import Figure
from robustkit.common.finding import Finding
from robustkit.common.intervals import wilson
from robustkit.display.text import capital
from robustkit.evaluations.aggregate import Results
from robustkit.report.run import Run
from robustkit.results.summary_text import clauses_of
from robustkit.results.survey import looks_of
from robustkit.runs.metadata import SampleGroups
from robustkit.tasks.labelled.metrics import WeakClasses
from robustkit.tasks.labelled.subject import CLASSIFICATION
from robustkit.tasks.task import task_of

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
    clauses = clauses_of(Results(make_run(folder, **manifest), list(rows)), "a")
    return f"{capital('; '.join(clauses))}."


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
        "Accuracy 93.3 % [84.1, 97.4] on 60 clean images; the strongest attack, PGD at 4/255, leaves 13.3 % [6.9, "
        "24.2]; its accuracy under corruption is 76.6 % [69.2, 83.3] (mean of noise, the worst set); lowest of all "
        "under gaussian noise at severity 5 with 40.0 %; "
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
        mean = "its accuracy under corruption is 75.0 % [70.0, 80.0] (in-c(preset=cifar)); "
        assert mean + "lowest of all under snow at severity 1 with 75.0 %." in said
    said = sentence(tmp_path, CLEAN, worst)
    assert said.endswith("; its accuracy under corruption is lowest under snow at severity 1 with 75.0 %.")


def test_only_what_is_finite_counts_and_few_samples_have_no_intervals(tmp_path: Path) -> None:
    assert sentence(tmp_path) == "." == sentence(tmp_path, row("clean", "top1", None))
    attacked = row(PGD, "top1", 0.3, 0.2, 0.41, n=50)
    only = "Accuracy 93.3 % [84.1, 97.4] on 60 clean images; the only attack, PGD at 4/255, leaves 30.0 % [20.0, 41.0]"
    assert sentence(tmp_path, CLEAN, attacked, claims={PGD: CLAIMS[PGD]}) == f"{only} of 50 images."
    assert sentence(tmp_path, replace(CLEAN, low=math.nan, high=math.nan)) == "Accuracy 93.3 % on 60 clean images."
    lead = row("cam(agcam)", "abpc_over_control", 0.1, flags=["best control: full [maps/best-control]"])
    assert "AG-CAM has too few maps (n = 60) to tell it from the all-ones map on ABPC" in sentence(tmp_path, lead)


def test_an_unfinished_run_has_no_strongest_attack_and_no_worst_corruption(tmp_path: Path) -> None:
    part = (Finding.of("run/incomplete", have=3, expected=4),)
    weak, strong = row(FGSM, "top1", 0.7, 0.6, 0.78), row(PGD, "top1", 0.1333, 0.069, 0.242)
    start = "Accuracy 93.3 % [84.1, 97.4] on 60 clean images; the attack "
    for rows, said in (
        ([weak], "FGSM at 1/255 leaves 70.0 % [60.0, 78.0] so far (unfinished attacks: 1 of 2)."),
        (
            [replace(strong, findings=part), weak],
            "PGD at 4/255 leaves 13.3 % [6.9, 24.2], the least so far (unfinished att",
        ),
        (
            [replace(strong, findings=part)],
            "PGD at 4/255 leaves 13.3 % [6.9, 24.2] so far (unfinished attacks: 2 of 2).",
        ),
    ):
        assert sentence(tmp_path, CLEAN, *rows).startswith(start + said)
    fog, snow = (row(f"corruption({name},severity=5)", "top1", 0.5, 0.4, 0.6) for name in ("fog", "snow"))
    asked = {"conditions": [fog.condition, snow.condition]}
    noise = row("noise", "mean_error", 0.5, 0.4, 0.6)
    for rows, said in (
        ([fog], "corruption is so far lowest under fog at severity 5 with 50.0 %."),
        (
            [fog, replace(snow, findings=part), noise],
            "(mean of noise, the worst set so far); lowest of all so far under fog at sev",
        ),
        ([fog, snow, noise], "(mean of noise, the worst set); lowest of all under fog at sev"),
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
        "The only attack, FGSM at 1/255 in normalised units, leaves 10.0 % [10.0, 20.0] of 60 images."
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
    falls = [
        row("clean", "iou(sky)", 0.5, n=9),
        row("noise", "iou(sky)", 0.5, n=9),
        row("noise", "iou(pole)", 0.1, n=9),
    ]
    falls += [row("noise", "iou(car)", 0.4, n=9), row("in-c", "iou(car)", 0.6, n=9), row("in-c", "iou(sky)", 0.1, n=9)]
    said = sentence(tmp_path, *rows, *falls, protocol=segmentation)
    assert said.endswith(
        "clean; under corruption (in-c) the IoU falls most for sky from 50.0 % to 10.0 %, car from 90.0 % to 60.0 %."
    )
    said = sentence(tmp_path, *rows, *falls[:4], protocol=segmentation)
    assert said.endswith("under corruption (noise) the IoU falls most for car from 90.0 % to 40.0 %.")
    none = [row("clean", f"iou({name})", 0.0, n=3) for name in "abcdef"]
    said = sentence(tmp_path, *rows, *none, protocol=segmentation)
    assert said.endswith("6 of 8 classes are never predicted right, clean: a, b, c, d, e and 1 more.")
    said = sentence(tmp_path, *rows, *none[:1], protocol=segmentation)
    assert said.endswith("1 of 3 classes is never predicted right, clean: a.")
    only = "Under corruption it is lowest under fog at severity 5 with mIoU 9.0 %."
    assert sentence(tmp_path, rows[-2], protocol=segmentation) == only


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


def fisher(wrong: int, n: int, all_wrong: int, every: int) -> float:
    """The one-sided p-value of a class against all other samples, by scipy."""
    rest = every - n - (all_wrong - wrong)
    return float(fisher_exact([[wrong, n - wrong], [all_wrong - wrong, rest]], alternative="greater").pvalue)


def test_weak_classes_are_those_significantly_below_the_rest(tmp_path: Path) -> None:
    """Class 1: 4 of 6 wrong, of 4 wrong in 25; class 3 has too few samples to be tested, 0, 2 and 4 are right."""
    run = make_run(tmp_path, data={"n": 25, "class_names": ["ant", "bee", "cat", "dog", "eel"]})
    labels = [0] * 6 + [1] * 6 + [2] * 5 + [3] * 3 + [4] * 5
    write(run, "clean", labels, [0] * 6 + [1, 1, 2, 2, 2, 0] + labels[12:])
    (table,) = Results(run, []).gathered(WeakClasses).tables
    assert table.title == "a: classes significantly below the rest on clean images"
    assert table.headings == ("class", "n", "accuracy % [95 %]", "p", "most often mistaken for")
    low, high = wilson(2, 6)
    p = 4 * fisher(4, 6, 4, 25)  # of four classes that are tested
    assert 0.001 < p < 0.05
    cells = ("bee", "6", f"33.3 [{100 * low:.1f}, {100 * high:.1f}]", f"{p:.3f}", "cat (3 of 4)")
    assert table.rows == (cells,)
    assert table.note == (
        "p: against all other samples (Fisher's exact test, one-sided), Holm-corrected over 4 classes. 1 class with "
        "fewer than 5 samples left out."
    )
    # One more mistake elsewhere, and one fewer here, could be chance.
    write(run, "clean", labels, [1] + [0] * 5 + [1, 1, 1, 2, 2, 0] + labels[12:])
    assert 4 * fisher(3, 6, 4, 25) > 0.05 and Results(run, []).gathered(WeakClasses).tables == []


@pytest.mark.parametrize(("names", "first"), [(["a"], "class"), (["a", "b"], "checkpoint")])
def test_of_several_checkpoints_a_weak_class_says_whose_it_is(tmp_path: Path, names: list[str], first: str) -> None:
    """Also where only one of them has any."""
    run = make_run(tmp_path, checkpoints=[{"name": name} for name in names])
    write(run, "clean", [0] * 5 + [1] * 5, [0] * 10)
    sections = {each.name: each for each in task_of(run.manifest).sections(Results(run, []), looks_of(run))}
    (grid,) = sections["classes"].values()["grids"]
    assert grid.headings[0] == first


def test_a_last_class_of_which_none_is_right_counts(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write(run, "clean", [0] * 5 + [1] * 5, [0] * 10)
    (table,) = Results(run, []).gathered(WeakClasses).tables
    assert [row[:2] + row[4:] for row in table.rows] == [("1", "5", "0 (5 of 5)")]


def test_classes_under_attack_are_of_the_samples_that_both_have(tmp_path: Path) -> None:
    run = make_run(tmp_path, conditions=["clean", PGD])
    labels = np.repeat([0, 1, 2], 8)
    write(run, "clean", labels, labels)
    after = labels.copy()
    after[:7] = [1, 1, 1, 2, 2, 2, 0]
    write(run, PGD, labels, after, error=[("broken" if i == 7 else None) for i in range(24)])
    (table,) = Results(run, []).gathered(WeakClasses).tables
    assert table.title == "a: classes significantly below the rest under PGD (4/255, 20 steps)"
    assert table.headings == ("class", "n", "clean %", "accuracy % [95 %]", "p", "most often mistaken for")
    (cells,) = table.rows
    p = 3 * fisher(6, 7, 6, 23)
    assert cells[:3] == ("0", "7", "100.0") and cells[4:] == (
        f"{p:.3f}" if p >= 0.001 else "< 0.001",
        "1, 2 (3 of 6 each)",
    )


def test_samples_in_groups_have_no_weak_classes(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    write(run, "clean", [0] * 5 + [1] * 5, [0] * 10)
    gatherer = WeakClasses(run)
    assert gatherer.wants("a", "clean")
    gatherer.sample_groups = SampleGroups("camera", pa.array(["s00000"]), np.zeros(1, np.int64))
    assert not gatherer.wants("a", "clean")


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
    shares_wrong = {"clean": 0.1, FGSM: 0.5, PGD: 0.3, "corruption(fog,severity=1)": 0.9}
    for condition, share in shares_wrong.items():
        wrong = (draws < share) | (label < 9)  # all of nine classes
        write(run, condition, label, np.where(wrong, (label + 1) % classes, label))
    before = time.process_time()
    tables = Results(run, []).gathered(WeakClasses).tables
    assert time.process_time() - before < 2
    assert [len(table.rows) for table in tables] == [8, 8, 8]
    assert [cells[0] for cells in tables[0].rows] == [*"01234567"]  # the same p-value: by their number
    assert tables[0].note.startswith("The first 8 of 9. p: ") and "over 1000 classes" in tables[0].note
