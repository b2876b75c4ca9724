"""Figures: what they show, from rows and records made by hand; and that their markup is fit for any page."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pyarrow as pa
import pytest
from figures import figure
from manifests import whole
from sealing import put, seal

from robustkit.common.figure import Figure
from robustkit.common.intervals import calibration_error
from robustkit.display.svg import (
    INK,
    PALETTE,
    Plot,
    brief_labels,
    dots,
    labels,
    list_some,
    panels,
    shorten_name,
    style,
)
from robustkit.evaluations.aggregate import Results, readable_rows
from robustkit.evaluations.attacks.results import Curve, curves, strongest
from robustkit.evaluations.corruptions.tables import accuracy_levels, level_figures, retention_levels
from robustkit.evaluations.maps.tables import map_scores
from robustkit.report.page import sections_of
from robustkit.report.run import Run
from robustkit.runs.manifest import Claim
from robustkit.tasks.labelled.subject import CLASSIFICATION
from robustkit.tasks.labelled.tables import Reliabilities, reliability
from robustkit.tasks.segmentation.results import MOST, class_ious

pytestmark = pytest.mark.usefixtures("whole_figures")

PGD_CALLED = "PGD, 4/255, 20 steps"
PGD, LONG, FGSM = "pgd(eps=4/255,steps=20)", "pgd(eps=4/255,steps=100)", "fgsm(eps=1/255)"
NASTY = "<script>alert('x')</script>&amp;\"$\\frac{a}{b}$_^ \u202e日本\x00\n" + "x" * 300


def figures(run: Run, rows: Any) -> list[Plot]:
    """Return all figures of a run, in the order of a page."""
    return [figure for section in sections_of(run, rows) for figure in section.figures]


def row(condition: str, metric: str, value: float | None, **others: Any) -> Figure:
    low, high = (None, None) if value is None else (value - 0.125, value + 0.0625)
    base = {"checkpoint": "a", "condition": condition, "metric": metric, "value": value, "n": 40, "flags": []}
    return figure(base | {"ci_low": low, "ci_high": high, "protocol": "standard@1"} | others)


def point(value: float, n: int = 40) -> Figure:
    """Return what such a row is drawn as."""
    return Figure(value, n, value - 0.125, value + 0.0625)


def bare(found: Figure | None) -> Figure | None:
    return found and Figure(found.value, found.n, found.low, found.high)


def claim(eps: float, norm: str = "linf", early_stop: bool = False) -> dict[str, Any]:
    return {"eps": eps, "norm": norm, "early_stop": early_stop}


CLAIMS = {FGSM: claim(1 / 255), PGD: claim(4 / 255), LONG: claim(4 / 255)}


def make_run(folder: Path, names: Sequence[str] = ("a",), task: str = "", **manifest: Any) -> Run:
    run = Run(folder)
    protocol = {"tag": "standard@1", "space": "pixels"} | ({"task": task} if task else {})
    base = {"checkpoints": [{"name": name} for name in names], "protocol": protocol, "conditions": ["clean"]}
    run.write_manifest(whole(base | {"data": {"n": 4}} | manifest))
    return run


def write(run: Run, condition: str, columns: dict[str, list[Any]], checkpoint: str = "a") -> None:
    n = len(next(iter(columns.values())))
    base = {name: [None] * n for name in CLASSIFICATION.names} | {"sample_id": [f"s{i}" for i in range(n)]}
    table = pa.table(base | columns, schema=CLASSIFICATION)
    put(run, checkpoint, condition, table)
    seal(run)


def test_colours_can_be_told_from_both_papers_and_lines_without_colours() -> None:
    def luminance(colour: str) -> float:
        parts = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ [0.2126, 0.7152, 0.0722])

    for colour in PALETTE:
        assert (
            1.05 / (luminance(colour) + 0.05) >= 3 and (luminance(colour) + 0.05) / (luminance("#15171b") + 0.05) >= 3
        )
    looks = [style(place) for place in range(28)]
    assert len({(look.marker, look.line) for look in looks}) == 28
    assert len({look.colour for look in looks[: len(PALETTE)]}) == len(PALETTE)


def test_names_become_short_single_lines_that_stay_distinct() -> None:
    assert (
        shorten_name("vit\n small\t2") == "vit small 2"
        and shorten_name("a\x00b\u202ec\ud800") == "a\ufffdb\ufffdc\ufffd"
    )
    assert shorten_name("0123456789", 10) == "0123456789" and shorten_name("0123456789a", 10) == "01234…789a"[:10]
    assert len(shorten_name("x" * 300)) == 28
    assert shorten_name("autoattack(eps=8/255,version=standard)", 32) == "autoattack(eps=…rsion=standard)"  # no "8/"
    assert shorten_name("fgsm(eps=16/255)", 12) == "fgsm(e…)"
    long = ["m" * 40 + "1" + "m" * 40, "m" * 40 + "2" + "m" * 40, "short"]
    found = labels(long, 12)
    assert list(found) == long and len(set(found.values())) == 3 and all(len(label) <= 12 for label in found.values())
    assert found[long[1]] == "…mmmm2mmmmm…" and found["short"] == "short"
    assert list(labels(["a\x00", "a\x01", "a\x02"]).values()) == ["a\ufffd", "a\ufffd (2)", "a\ufffd (3)"]
    assert list(labels(["x" * 30 + "\x00", "x" * 30 + "\x01"], 12).values()) == ["…xxx\ufffd", "…xxx\ufffd (2)"]
    assert list_some(list("abcdefgh")) == "a; b; c; d; e; f; g; h"
    assert list_some(list("abcdefghij")).endswith("h; and 2 more, which the tables have")


def test_a_curve_is_an_attack_with_its_other_parameters_from_clean_through_its_radii() -> None:
    rows = [
        row(PGD, "top1", 0.25, n=38),
        row("clean", "top1", 0.75),
        row("pgd(eps=1/255,steps=20)", "top1", 0.5),
        row(LONG, "top1", 0.125),
        row("pgd(eps=0.5,steps=20,norm=l2)", "top1", 0.4),
        row(FGSM, "top1", 0.6, checkpoint="b"),
        row(PGD, "nll", 3.0),
        row("corruption(fog,severity=1)", "top1", 0.1),
        row(FGSM, "top1", None),
    ]
    claims = CLAIMS | {"pgd(eps=1/255,steps=20)": claim(1 / 255), "pgd(eps=0.5,steps=20,norm=l2)": claim(0.5, "l2")}
    clean = point(0.75)
    half, quarter = point(0.5), point(0.25, 38)
    found = curves(rows, {text: Claim(**values) for text, values in claims.items()})
    drawn = [replace(curve, points=tuple((eps, bare(at)) for eps, at in curve.points)) for curve in found]
    assert drawn == [
        Curve("a", "pgd, steps=20", "linf", ((0.0, clean), (1 / 255, half), (4 / 255, quarter))),
        Curve("a", "pgd, steps=100", "linf", ((0.0, clean), (4 / 255, point(0.125)))),
        Curve("a", "pgd, steps=20", "l2", ((0.0, clean), (0.5, point(0.4)))),
        Curve("b", "fgsm", "linf", ((1 / 255, point(0.6)),)),
    ]


def test_the_curves_figures_say_their_numbers(tmp_path: Path) -> None:
    rows = [row("clean", "top1", 0.933), row(PGD, "top1", 0.267), row(LONG, "top1", 0.2, n=30)]
    two = {f"pgd(eps={eps},norm=l2)": claim(eps, "l2") for eps in (0.5, 1.0)}
    rows += [row(text, "top1", 0.4, checkpoint="b") for text in two]
    run = make_run(tmp_path, "ab", claims=CLAIMS | two)
    assert figures(run, rows) == []  # two radii, of which one is 0, say no more than the first page
    rows += [row(FGSM, "top1", 0.5), row("clean", "top1", 0.9, checkpoint="b")]
    linf, l2 = figures(run, rows)
    assert (linf.section, linf.title) == ("attacks", "Robust accuracy against eps, linf")
    assert linf.alt == (
        "Accuracy against eps. Under PGD, 20 steps: a has 93.3 % clean, 26.7 % at 4/255. "
        "Under PGD, 100 steps: a has 93.3 % clean, 20.0 % at 4/255. Under FGSM: a has 93.3 % clean, 50.0 % at 1/255."
    )
    assert "n from 30 to 40" in linf.caption and "n = 40" in l2.caption
    assert l2.alt == "Accuracy against eps. Under PGD: b has 90.0 % clean, 40.0 % at 0.5, 40.0 % at 1."
    assert {"eps (linf) in 1/255", "accuracy in %", "4"} <= set(texts(linf))
    assert {"eps (l2)", "0.5"} <= set(texts(l2))
    normalised = make_run(tmp_path, protocol={"tag": "quest@1", "space": "normalised"}, claims=CLAIMS)
    assert "eps (linf) in 1/255, normalised units" in texts(figures(normalised, [*rows[:2], rows[-2]])[0])


def test_the_line_of_several_checkpoints_takes_the_strongest_attack_at_each_radius() -> None:
    weak, strong, few = point(0.6), point(0.4), point(0.1, 12)
    assert strongest([(0.1, weak), (0.1, few), (0.1, strong), (0.1, weak), (0.2, few)]) == {0.1: strong, 0.2: few}
    assert strongest([]) == {}


def texts(figure: Figure) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(figure.svg).iter() if element.tag.endswith("text")]


@pytest.mark.parametrize("across", [False, True])
def test_markers_and_intervals_stand_where_the_numbers_are(across: bool) -> None:
    points = [Figure(0.0, 9, 0.0, 0.5), Figure(0.25, 9, 0.25, 0.5), Figure(1.0, 9)]

    def paint(canvas: Any) -> None:
        (axes,) = panels(canvas, 1)
        dots(axes, [0, 1, 4], points, style(0), across=across)
        axes.set(xlim=(0, 100) if across else (0, 4), ylim=(0, 4) if across else (0, 100))

    root = ElementTree.fromstring(Plot("attacks", "t", 300, paint, alt="", caption="").svg)
    found = [(float(e.get("x", 0)), float(e.get("y", 0))) for e in root.iter() if e.tag.endswith("use")]
    marks = found[-3:]  # the ticks come first
    along, up = (1, 0) if across else (0, 1)
    steps = [mark[along] - marks[0][along] for mark in marks]
    heights = [mark[up] - marks[0][up] for mark in marks]
    assert steps[1] / steps[2] == pytest.approx(0.25, abs=2e-3) and heights[1] / heights[2] == pytest.approx(
        0.25, abs=2e-3
    )
    assert (steps[2] < 0, heights[2] > 0) == ((True, True) if across else (False, False))  # y goes down
    bars = [e.get("d", "") for e in root.iter() if PALETTE[0] in e.get("style", "") and "1.4" in e.get("style", "")]
    ends = [[float(n) for n in re.findall(r"-?[\d.]+", path)] for path in bars if path]
    lengths = [abs(end[up + 2] - end[up]) for end in ends[:2]]
    assert lengths == pytest.approx([abs(heights[2]) / 2, abs(heights[2]) / 4], abs=0.05)


def test_series_at_one_place_are_drawn_apart_by_what_was_asked() -> None:
    def paint(canvas: Any) -> None:
        (axes,) = panels(canvas, 1)
        for place in range(2):
            dots(axes, [1], [Figure(0.5, 9, 0.4, 0.6)], style(place), shift=7 * place)
        axes.set(xlim=(0, 2), ylim=(0, 100))

    root = ElementTree.fromstring(Plot("attacks", "t", 300, paint, alt="", caption="").svg)
    first, second = [(float(e.get("x", 0)), float(e.get("y", 0))) for e in root.iter() if e.tag.endswith("use")][-2:]
    assert (second[0] - first[0], second[1] - first[1]) == (pytest.approx(7, abs=0.02), 0)


def test_stages_in_their_order(tmp_path: Path) -> None:
    aa = "autoattack(eps=4/255,version=standard)"
    rows = [
        row(aa, f"top1_after_{stage}", value) for stage, value in (("clean", 0.9), ("apgd-ce", 0.2), ("square", 0.1))
    ]
    (figure,) = figures(make_run(tmp_path), rows)
    assert (figure.section, figure.title) == ("stages", "AutoAttack, 4/255: images still correct after each stage")
    assert figures(make_run(tmp_path / "one"), rows[:2]) == []  # one stage
    assert (
        figure.alt
        == "AutoAttack, 4/255: of 40 samples of a are still correct: 36 after clean, 8 after apgd-ce, 4 after square."
    )


def test_levels_are_of_accuracy_over_all_severities_or_say_over_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [
        row("clean", "top1", 0.9),
        *(row(f"corruption(fog,severity={s})", "top1", s / 10) for s in (1, 2, 3, 4, 5)),
        row("corruption(fog)", "mean_error", 0.7, ci_low=0.6, ci_high=0.75),
        row("corruption(fog)", "nll", 9.0),
        row("corruption(snow,severity=3)", "top1", 0.4),
        row("corruption(frost,severity=1)", "top1", 0.6, n=40),
        row("corruption(frost,severity=5)", "top1", 0.2, n=39),
        row("corruption(fog,severity=1,preset=cifar)", "top1", 0.1, checkpoint="b"),
    ]
    ours, other = accuracy_levels(rows)
    assert ours.checkpoint == "a" and bare(ours.clean) == point(0.9)
    fog, over = ours.means["fog"]
    assert over == "" and (fog.value, fog.low, fog.high) == pytest.approx((0.3, 0.25, 0.4))
    snow, over = ours.means["snow"]
    assert bare(snow) == point(0.4) and over == "3"
    frost, over = ours.means["frost"]
    assert over == "1,5" and frost.value == pytest.approx(0.4) and math.isnan(frost.low) and frost.n == 39
    assert (other.checkpoint, other.definition, other.clean) == ("b", "(preset=cifar)", None)
    plots = [f for f in figures(make_run(tmp_path, "ab"), rows) if f.section == "corruptions"]
    (only,) = plots  # one corruption alone, of the other definition, has no figure
    assert only.title == "Accuracy under corruption"
    rows_drawn = [text for text in texts(only) if text in ("clean", "fog", "snow (3)", "frost (1,5)")]
    assert rows_drawn == ["clean", "fog", "frost (1,5)", "snow (3)"]  # the hardest first
    assert only.alt.startswith("Accuracy by corruption. a: 90.0 % clean, lowest 30.0 % under fog, ")
    assert "mean over severities" in only.caption
    below = [replace(each, checkpoint="b") for each in rows if each.checkpoint == "a"]
    pair = [f for f in figures(make_run(tmp_path / "pair", "ab"), [*rows, *below]) if f.section == "corruptions"]
    shifts = list[float]()
    with monkeypatch.context() as patch:
        patch.setattr("robustkit.evaluations.corruptions.tables.dots", lambda *_, shift, **__: shifts.append(shift))
        assert pair[0].svg
    assert len(shifts) == 2 and shifts[0] == -shifts[1] > 0  # the first of the legend is above
    at_three = [row(f"corruption({name},severity=3)", "top1", 0.4) for name in ("fog", "snow")]
    (only,) = [f for f in figures(make_run(tmp_path / "three"), at_three) if f.section == "corruptions"]
    assert {"fog", "snow"} <= set(texts(only)) and ", severity 3, " in only.caption


def test_retention_of_all_severities_goes_before_that_of_some() -> None:
    some = "corruption(gaussian_noise,severity=1+2+3)"
    rows = [
        row(some, "retention", 0.8),
        row("corruption(gaussian_noise)", "retention", 0.5),
        row("noise", "retention", 0.4),
    ]
    for order in (rows, rows[::-1]):
        (levels,) = retention_levels(order)
        ((name, (kept, over)),) = levels.means.items()
        assert (name, bare(kept), over, levels.clean) == ("gaussian_noise", point(0.5), "", None)
    (levels,) = retention_levels(rows[:1])
    assert levels.means["gaussian_noise"][1] == "1–3"


@pytest.mark.parametrize(("value", "furthest"), [(1.0, "100"), (1.25, "120")])
def test_dots_of_a_retention_above_all_of_it_are_within_their_axis(value: float, furthest: str) -> None:
    levels = retention_levels([row("corruption(fog)", "retention", value), row("corruption(snow)", "retention", 0.5)])
    (plot,) = level_figures(levels, {"a": style(0)}, "corruptions", "t", "retention")
    ticks = [text for text in texts(plot) if text.isdecimal()]
    assert ticks[0] == "0" and ticks[-1] == furthest


def test_reliability_by_hand(tmp_path: Path) -> None:
    # Of 15 bins 0.06 is in the first, 0.5 and 0.52 are in the eighth; one sample could not be read, one is nan.
    run = make_run(tmp_path)
    confidence = [0.06, 0.5, 0.52, 1.0, math.nan, 0.99]
    correct = [False, True, False, True, True, True]
    write(run, "clean", {"confidence": confidence, "correct": correct, "error": [None] * 5 + ["broken"]})
    found = reliability("a", "clean", readable_rows(run.table("a", "clean")))
    assert found is not None and found.left_out == 1
    assert {place: n for place, n in enumerate(found.counts) if n} == {0: 1, 7: 2, 14: 1}
    # Of fewer than 500 samples at most eight bins of as many samples: here of one each.
    assert found.confidence == pytest.approx([0.06, 0.5, 0.52, 1.0])
    assert [each.value for each in found.accuracy] == [0.0, 1.0, 0.0, 1.0]
    sure = np.array(confidence[:4], dtype=np.float32).astype(float)
    assert found.error == calibration_error(sure, np.array([0.0, 1, 0, 1]))
    assert found.error == pytest.approx((0.06 + 0.02 + 0) / 4, abs=1e-6)
    (figure,) = figures(run, [])
    assert figure.alt == (
        "Reliability of a. clean: calibration error 2.0 % of 4 samples; accuracy 0.0 % at a mean confidence of 6.0 %, "
        "100.0 % at 100.0 %; 1 without a finite confidence are left out."
    )


@pytest.mark.parametrize("n", [499, 500])
def test_bins_have_equal_counts_below_500_samples(tmp_path: Path, n: int) -> None:
    run = make_run(tmp_path, data={"n": n})
    confidence = np.linspace(0.1, 0.999, n)
    write(run, "clean", {"confidence": confidence, "correct": [i % 2 == 0 for i in range(n)]})
    levels = reliability("a", "clean", readable_rows(run.table("a", "clean")))
    assert levels is not None
    parts = (
        np.array_split(confidence, 8)
        if n < 500
        else [inside for place in range(15) if len(inside := confidence[np.ceil(confidence * 15) == place + 1])]
    )
    assert levels.confidence == pytest.approx([part.mean() for part in parts], abs=1e-6)
    assert [each.n for each in levels.accuracy] == [len(part) for part in parts]


def test_reliability_is_of_clean_and_the_first_attack_whose_losses_mean_something(tmp_path: Path) -> None:
    aa = "autoattack(eps=1/255,version=standard)"
    conditions = ["clean", aa, "corruption(fog,severity=1)", PGD, FGSM]
    run = make_run(tmp_path, conditions=conditions, claims=CLAIMS | {aa: claim(1 / 255, early_stop=True)})
    for condition in conditions:
        write(run, condition, {"confidence": [0.9], "correct": [True]})
    assert [one.condition for one in Results(run, []).gathered(Reliabilities).entries] == [
        "clean",
        PGD_CALLED,
    ]
    write(run, "clean", {"confidence": [0.9], "correct": [None]})  # without a label
    assert [one.condition for one in Results(run, []).gathered(Reliabilities).entries] == [PGD_CALLED]


def test_scores_of_maps_stand_beside_their_controls(tmp_path: Path) -> None:
    rows = [
        row("cam(centre)", "deletion_auc", 0.3),
        row("cam(random)", "deletion_auc", 0.2),
        row("cam(agcam)", "deletion_auc", 0.1),
        row("cam(agcam)", "abpc", 0.5),
        row("cam(full)", "abpc", 0.25, ci_low=None, ci_high=None),
        row("cam(centre)", "abpc", 0.375),
        row("cam(agcam,mode=box)", "cam_iou", 0.7),
        row("cam(agcam,mode=box)", "cam_dice", 0.9),
        row("cam(agcam)", "abpc_over_control", 0.1),
        row("cam(agcam,threshold=0.3,mode=mask)", "cam_iou", 0.6),
        row(f"stability(agcam,under={FGSM})", "map_iou", 0.6),
    ]
    found = map_scores(rows)
    assert [(one.kind, one.score, list(one.points)) for one in found] == [
        ("threshold=0.3", "IoU of pixels", ["agcam"]),
        ("", "IoU of boxes", ["agcam"]),
        ("", "ABPC", ["agcam"]),
        ("", "deletion ↓", ["agcam"]),
    ]
    assert found[2].controls == {"full": 0.25, "centre": 0.375} and bare(found[2].points["agcam"]) == point(0.5)
    assert figures(make_run(tmp_path), rows) == []  # of one method the table says as much
    mixed_kind, plain_kind = figures(make_run(tmp_path), [*rows, row("cam(rollout)", "abpc", 0.25)])
    assert mixed_kind.title == "Scores of maps (threshold=0.3)" and "↓" not in mixed_kind.caption
    assert plain_kind.alt == (
        "IoU of boxes. a: agcam 70.0. ABPC. a: agcam 0.500, rollout 0.250, best control centre 0.375. "
        "deletion, lower is better. a: agcam 0.100, best control random 0.200."
    )


def test_classes_of_a_segmenter_clean_attacked_and_corrupted(tmp_path: Path) -> None:
    conditions = {"clean": 0.8, PGD: 0.5, FGSM: 0.3, "noise": 0.4, "blur": 0.6, "corruption(fog,severity=1)": 0.7}
    rows = [row(condition, "miou", value) for condition, value in conditions.items()]
    rows += [row(condition, "iou(pole)", value / 2, n=3) for condition, value in conditions.items()]
    (found,) = class_ious(rows, CLAIMS).values()
    assert list(found) == ["clean", "noise", "blur", FGSM]
    assert bare(found[FGSM]["pole"]) == point(0.15, 3)
    whole = [*rows, row("in-c", "miou", 0.5), row("in-c", "iou(pole)", 0.2)]
    assert list(next(iter(class_ious(whole, CLAIMS).values()))) == ["clean", "in-c", FGSM]
    many = [row("clean", f"iou({i:03d})", i / 100) for i in range(MOST + 6)]
    run = make_run(tmp_path, task="segmentation", claims=CLAIMS)
    _, figure = figures(run, [*rows, *many])
    assert figure.alt.startswith(
        "IoU by class. a: clean lowest 000 with 0.0 % and 001 with 1.0 %, noise lowest pole with"
    )
    assert (
        figure.caption
        == f"Classes by the IoU of a, clean, lowest first. The {MOST} of {MOST + 7} classes that are lowest."
    )
    assert "000" in texts(figure) and f"{MOST + 5:03d}" not in texts(figure)
    assert {f.section for f in figures(run, rows)} == {"segmentation"}


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, list[Figure]]:
    """A run with all kinds of results, of two checkpoints with names that attack."""
    names, aa = (
        [NASTY, NASTY[:99] + "y" + NASTY, "_hidden", "<b>&amp;</b> $x$"],
        "autoattack(eps=1/255,version=standard)",
    )
    claims = CLAIMS | {aa: claim(1 / 255, early_stop=True)}
    run = make_run(tmp_path_factory.mktemp("run"), names, conditions=["clean", PGD], claims=claims)
    rows = []
    for name in names:
        for condition in ("clean", PGD):
            write(run, condition, {"confidence": [0.9, 0.3], "correct": [True, False]}, name)
        corrupted = (f"corruption({name},severity=2)" for name in ("fog", "snow"))
        own = [row(condition, "top1", 0.5) for condition in ("clean", *claims, *corrupted)]
        own += [row(aa, f"top1_after_{stage}", 0.4) for stage in ("clean", "apgd-ce", "square")]
        own += [row(f"cam({method})", "abpc", 0.4) for method in ("agcam", "rollout", "random")]
        rows += [replace(one, checkpoint=name) for one in own]
    return run, rows


def test_figures_are_fit_for_any_page(everything: tuple[Run, list[Figure]]) -> None:
    found = figures(*everything)
    assert [f.section for f in found] == ["attacks", "corruptions", *["calibration"] * 4, "stages", "maps"]
    ids: list[str] = []
    for drawn in found:
        root = ElementTree.fromstring(drawn.svg)
        assert drawn.svg.startswith("<svg ") and "<!" not in drawn.svg and "<?" not in drawn.svg
        tags = {element.tag.rpartition("}")[2] for element in root.iter()}
        assert tags <= {"svg", "g", "defs", "path", "use", "clipPath", "rect", "text", "tspan"}
        assert root.get("role") == "img" and root.get("aria-label") == shorten_name(drawn.alt, 10_000) != ""
        assert (
            root.get("width") == "100%"
            and root.get("height") is None
            and root.get("viewBox", "").startswith("0 0 480 ")
        )
        own = [element.get("id", "") for element in root.iter() if "id" in element.attrib]
        ids += own
        for element in root.iter():
            for key, value in element.attrib.items():
                if "href" in key or "url(" in value:
                    wanted = re.findall(r"#([^)\s;\"]+)", value) if "url(" in value else [value.removeprefix("#")]
                    assert wanted and set(wanted) <= set(own)
        assert "currentColor" in drawn.svg and INK not in drawn.svg and "DejaVu" not in drawn.svg
        assert (
            "fill: #ffffff" not in drawn.svg and "onload" not in drawn.svg and "http://www.w3.org/1999" not in drawn.svg
        )
    assert len(ids) == len(set(ids)) > 10
    shown = texts(found[0])
    assert "_hidden" in shown  # which matplotlib would leave out of a legend
    assert "<b>&amp;</b> $x$" in shown and len(set(shown[-4:])) == 4
    assert all(len(figure.title) < 100 and len(figure.caption) < 400 for figure in found)


def test_the_same_results_are_the_same_bytes_whatever_a_user_has_set(
    everything: tuple[Run, list[Figure]],
) -> None:
    run, rows = everything
    chosen = [one for one in rows if "_after_" in one.metric or one.condition == PGD]
    once = figures(run, chosen)
    with matplotlib.rc_context({"axes.grid": False, "svg.fonttype": "path", "font.size": 30, "lines.linewidth": 9}):
        before = dict(matplotlib.rcParams)
        again = figures(run, [Figure.from_plain(one.to_plain()) for one in chosen])
        assert dict(matplotlib.rcParams) == before
    assert once == again
    with_nan = [replace(one, value=math.nan, condition=FGSM) for one in chosen if one.metric == "top1"]
    assert figures(run, [*chosen, *with_nan]) == once


def test_where_there_is_nothing_there_is_no_figure(tmp_path: Path) -> None:
    assert figures(make_run(tmp_path), []) == []
    assert figures(make_run(tmp_path, task="segmentation"), []) == []


def test_text_is_text_and_figures_of_one_title_have_ids_of_their_own() -> None:
    def paint(canvas: Any) -> None:
        (axes,) = panels(canvas, 1)
        axes.plot([0, 1], marker="o", color=PALETTE[0])
        axes.set_title("a_b^c $x$ #010203 'DejaVu Sans'")

    one = Plot("attacks", "t", 200, paint, alt='a <b> & "c"', caption="", name="1")
    assert "a_b^c $x$ #010203 'DejaVu Sans'" in texts(one) and 'aria-label="a &lt;b&gt; &amp; &quot;c&quot;"' in one.svg
    other = Plot("attacks", "t", 200, paint, alt="", caption="", name="2")
    assert not set(_ids(one)) & set(_ids(other)) and set(_ids(one))
    assert "system-ui" in one.svg


def _ids(figure: Figure) -> Iterator[str]:
    return (e.attrib["id"] for e in ElementTree.fromstring(figure.svg).iter() if "id" in e.attrib)


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (
            ["shapes-vit-standard", "shapes-vit-quest", "shapes-vit-elliptical-quest"],
            ["standard", "quest", "elliptical-quest"],
        ),
        (["vit", "vit-quest"], ["vit", "vit-quest"]),  # nothing would be left of one
        (["vit-", "vit-quest"], ["vit-", "vit-quest"]),
        (["vitality", "vit-quest"], ["vitality", "vit-quest"]),  # a word is not cut
        (["a.b_c/d", "a.b_c/e"], ["d", "e"]),
        (["shapes-vit-quest"], ["shapes-vit-quest"]),
        (["x-a", "x-a"], ["a"]),
    ],
)
def test_names_are_shown_without_the_words_with_which_all_begin(names: list[str], expected: list[str]) -> None:
    assert list(brief_labels(names).values()) == expected
