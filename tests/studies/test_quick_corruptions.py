"""The choice of quick sets on tables with a known answer, the numbers that the product states, and the two pages."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from places import ROOT

import robustkit
from robustkit.common.figure import Figure
from robustkit.evaluations.corruptions import QUICK, SETS
from scripts.studies.quick_corruptions import page
from scripts.studies.quick_corruptions.choice import (
    SEVERITIES,
    Choice,
    Errors,
    Miss,
    chosen,
    judged,
    of_other_data,
    ranked,
    root_mean_square,
)

KINDS = ("a", "b", "c", "d", "e")
STUDY = page.FOLDER


def drawn(name: str, data: str, seed: int, apart: bool = False) -> Errors:
    counts = np.random.default_rng(seed).integers(0, 101, (len(KINDS), len(SEVERITIES)))
    return Errors(data, name, 100, dict(zip(KINDS, counts.tolist(), strict=True)), apart)


def built(name: str, data: str, level: int) -> Errors:
    """Return errors with the mean `level`, which b, c and e have at severity 4 as well, and no other three at one."""
    fourth = {"a": 0, "b": level - 9, "c": level + 13, "d": 2 * level, "e": level - 4}
    return Errors(data, name, 1000, {kind: [0, 0, 0, count, 4 * level] for kind, count in fourth.items()})


def test_the_choice_is_the_one_that_was_built_in() -> None:
    checkpoints = [built("x", "one", 90), built("y", "one", 120), built("z", "two", 200)]
    assert [round(each.mean(KINDS), 9) for each in checkpoints] == [9, 12, 20]
    (score, first), (second, _) = ranked(checkpoints, KINDS)[:2]
    assert (score, first) == (0, Choice(("b", "c", "e"), 4)) and second > 0.1
    assert [miss.points for miss in judged(checkpoints, KINDS)] == pytest.approx([0, 0, 0])
    assert [miss.points for miss in of_other_data(checkpoints, KINDS)] == pytest.approx([0, 0, 0])
    assert of_other_data(checkpoints[:2], KINDS) == []


def test_all_choices_are_scored_as_a_slow_loop_does_and_data_sets_weigh_the_same() -> None:
    checkpoints = [drawn("x", "one", 1), drawn("y", "one", 2), drawn("z", "two", 3)]
    slow = {}
    for severity in (1, 2, 3, 4, 5):
        for kinds in combinations(KINDS, 3):
            misses = []
            for each in checkpoints:
                whole = sum(sum(each.wrong[kind]) for kind in KINDS) / 25
                misses.append(sum(each.wrong[kind][severity - 1] for kind in kinds) / 3 - whole)
            slow[kinds, severity] = math.sqrt((misses[0] ** 2 + misses[1] ** 2) / 4 + misses[2] ** 2 / 2)
    scores = ranked(checkpoints, KINDS)
    assert len(scores) == 50 and [score for score, _ in scores] == sorted(score for score, _ in scores)
    assert {(each.kinds, each.severity): score for score, each in scores} == pytest.approx(slow, abs=1e-8)
    twice = [*checkpoints, Errors("two", "again", 100, checkpoints[2].wrong)]
    assert ranked(twice, KINDS) == scores
    assert root_mean_square(checkpoints, [1, 1, 3]) == pytest.approx(math.sqrt(5))


def test_no_checkpoint_is_judged_by_a_choice_that_saw_it() -> None:
    checkpoints = [drawn("x", "one", 0), drawn("y", "one", 4), drawn("z", "two", 10)]
    every = [*checkpoints, drawn("apart", "two", 12, apart=True)]
    assert chosen(every, KINDS) == chosen(checkpoints, KINDS)
    assert chosen([*checkpoints, drawn("apart", "two", 12)], KINDS) != chosen(checkpoints, KINDS)
    assert judged(every, KINDS)[3].choice == chosen(checkpoints, KINDS)
    for place, miss in enumerate(judged(every, KINDS)[:3]):
        choice = chosen([*checkpoints[:place], *checkpoints[place + 1 :]], KINDS)
        assert miss.choice == choice != chosen(checkpoints, KINDS) and miss.points == pytest.approx(
            checkpoints[place].mean(choice.kinds, [choice.severity]) - checkpoints[place].mean(KINDS)
        )
    others = {miss.checkpoint.name: miss.choice for miss in of_other_data(every, KINDS)}
    assert others["apart"] == others["z"] == chosen(checkpoints[:2], KINDS)
    assert others["x"] == others["y"] == chosen(checkpoints[2:], KINDS)


def off(misses: Sequence[Miss]) -> float:
    return round(root_mean_square([miss.checkpoint for miss in misses], [miss.points for miss in misses]), 1)


def test_the_product_has_what_the_stored_errors_say() -> None:
    errors, means = page.load(ROOT / STUDY)
    assert {quick.of for quick in QUICK.values()} == set(page.FULL)
    for name, quick in QUICK.items():
        kinds, mine = list(SETS[quick.of]), page.of_set(errors, quick.of)
        assert name == f"{quick.of}-quick" and Choice(quick.kinds, quick.severity) == chosen(mine, kinds)
        misses, elsewhere = judged(mine, kinds), of_other_data(mine, kinds)
        assert quick.count == len(misses) and quick.most == round(max(abs(miss.points) for miss in misses), 1)
        assert (quick.off, quick.elsewhere) == (off(misses), off(elsewhere) if elsewhere else 0)
        for each in mine:  # the counts are those behind the means of the runs
            assert each.mean(kinds) == pytest.approx(100 * means[each.data, each.name][quick.of].value, abs=1e-3)


def test_the_page_that_helps_to_choose_states_the_same_figures() -> None:
    text = " ".join((ROOT / "docs" / "how-to" / "which-corruptions.md").read_text("utf-8").split())
    for name, quick in QUICK.items():
        assert f"`{name}` {quick.off} ({quick.count}; {quick.most})" in text
    elsewhere = sorted(quick.elsewhere for quick in QUICK.values() if quick.elsewhere)
    assert f"on other data sets by {elsewhere[0]} to {elsewhere[-1]}" in text
    rows = [*page.next_to_each(page.load(ROOT / STUDY)[0])]
    preset, middle = (
        next(row[3] for row in rows if row[0] == "`in-c`" and each in row[1]) for each in ("preset", "=3")
    )
    assert f"`--preset quick` were off by {preset} for `in-c`, and `in-c(severity=3)` by {middle}" in text


def test_the_page_next_to_imagenet_c_is_of_the_stored_errors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = Path("docs/pictures/corruption-sets.svg")
    shutil.copytree(ROOT / STUDY, tmp_path / STUDY)
    (tmp_path / page.PAGE.parent).mkdir(parents=True)
    (tmp_path / picture.parent).mkdir(parents=True)
    shutil.copy(ROOT / page.PAGE, tmp_path / page.PAGE)
    monkeypatch.chdir(tmp_path)
    assert page.main([]) == 0
    for path in (page.PAGE, STUDY / "README.md"):
        assert (tmp_path / path).read_text("utf-8") == (ROOT / path).read_text("utf-8")
    assert (tmp_path / picture).read_text("utf-8").count("<use") == (ROOT / picture).read_text("utf-8").count("<use")


def test_the_sentences_next_to_imagenet_c_are_what_the_errors_say() -> None:
    text = " ".join((ROOT / page.PAGE).read_text("utf-8").split())
    _, means = page.load(ROOT / STUDY)
    more, laion = dict[str, list[float]](), dict[str, list[float]]()
    for (data, name), figures in means.items():
        if bar := figures.get("in-c-bar", figures.get("cifar-c-bar")):
            kind = "shapes" if data == "shapes" else "robust" if "robust" in page.NAMES.get(name, "") else "others"
            more.setdefault(kind, []).append(round(100 * (bar.value - figures["in-c"].value), 1))
        if "laion-c" in figures:
            laion.setdefault(data, []).append(100 * figures["laion-c"].value)
    assert max(map(abs, (*more["robust"], *more["others"]))) < 4 and "its errors are within 4 points" in text
    assert "no two checkpoints that both sets distinguish change places" in text
    assert {row[-1] for row in list(page.agreement(means))[1:]} == {"0"}
    assert f"for robust networks, by {min(more['robust'])} to {max(more['robust'])} points" in text
    assert f"all others by at most {max(more['others'])}" in text
    assert max(more["shapes"]) < 0 and "on shapes they are lower" in text
    every = [value for values in laion.values() for value in values]
    assert f"far harder, {min(every):.0f} to {max(every):.0f} % wrong" in text
    assert f"on ImageNet {min(laion['ImageNet']):.0f} to {max(laion['ImageNet']):.0f} %" in text


def test_ranks_and_pairs_that_both_sets_tell_apart() -> None:
    assert page.rank_agreement([("one", 1, 2), ("one", 2, 3), ("one", 3, 1), ("two", 1, 2), ("two", 2, 3)]) == {
        "one": pytest.approx(-1 / 3)
    }

    def at(value: float) -> Figure:
        return Figure(value, 9, value - 0.05, value + 0.05)

    sides = {"x": (0.1, 0.5), "y": (0.3, 0.4), "z": (0.31, 0.2), "w": (0.5, 0.9)}
    means = {("shapes", name): {"in-c": at(one), "in-c-bar": at(other)} for name, (one, other) in sides.items()}
    means["CIFAR-10", "v"] = {"in-c": at(0.1), "laion-c": at(0.9)}  # in no count: it is not the benchmark
    rows = list(page.agreement(means))
    # x, y and z are in the other order; x and y overlap under the newer set, y and z under IN-C
    assert rows[1:] == [("shapes", "C-bar", "4", "0.00", "3 of 6", "1")]


def test_errors_are_gathered_from_run_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"data_dir": "embedded:shapes", "attacks": "none", "evidence": "none", "limit": 3, "browse": 0}
    run = robustkit.audit(
        "zoo:shapes-vit-quest", out=tmp_path / "run", corruptions="laion-c,in-c(severity=3)", **options
    )
    (tmp_path / "kept").mkdir()
    page.gather([run.path], tmp_path / "kept")
    errors, means = page.load(tmp_path / "kept")
    (checkpoint,) = errors
    assert (checkpoint.data, checkpoint.name, checkpoint.n) == ("shapes", "shapes-vit-quest", 3)
    top1 = {row.condition: row.value for row in run.summary() if row.metric == "top1"}
    assert checkpoint.wrong["vertical_lines"] == [
        round(3 * (1 - top1[f"corruption(vertical_lines,severity={severity})"])) for severity in SEVERITIES
    ]
    assert set(checkpoint.wrong) == set(SETS["laion-c"])  # others are of one severity
    (figures,) = means.values()
    assert set(figures) == {"clean", "laion-c"}  # not in-c(severity=3)
    assert figures["laion-c"].value == pytest.approx(checkpoint.mean(list(SETS["laion-c"])) / 100, abs=1e-6)
    assert (figures["clean"].low, figures["clean"].high) == pytest.approx((0, 0.561497), abs=1e-3)
    monkeypatch.setattr(page, "PRESET", {"shapes": "cifar"})
    page.gather([run.path], tmp_path / "kept")
    assert page.load(tmp_path / "kept") == ([], means)  # with other constants the mean alone counts
    monkeypatch.chdir(tmp_path)
    assert page.main(["nothing"]) == 2
