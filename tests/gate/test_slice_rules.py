"""Rules on slices: each must be on the right side of the bound, few samples decide nothing, and why is said."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as Tree

import pytest
from gate_runs import PGD, right, verdict, verdicts
from sliced import run_of

from robustkit.common.intervals import simultaneous_z, wilson
from robustkit.errors import ProtocolError
from robustkit.gate.output import advice, github_lines, junit, markdown, sentence, to_json, verdict_table
from robustkit.gate.policy import Value, parse_policy, parse_statement
from robustkit.gate.verdicts import FAIL, PASS, UNDECIDED, judge
from robustkit.report.run import Run
from robustkit.slices.until_decided.sequential import options_asked

CELLS = {"camera": ["a"] * 100 + ["b"] * 50 + ["c"] * 30 + ["d"] * 10, "light": ["day", "night"] * 95}
CLEAN = [*right(90, 100), *right(40, 50), *right(18, 30), *right(10, 10)]  # 90, 80, 60 and 100 %


@pytest.fixture(scope="module")
def sliced(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return run_of(tmp_path_factory.mktemp("sliced"), CELLS, {"clean": CLEAN, PGD: [0] * 190})


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Without the camera of ten samples."""
    cells = {name: texts[:180] for name, texts in CELLS.items()}
    return run_of(tmp_path_factory.mktemp("large"), cells, {"clean": CLEAN[:180]})


@pytest.mark.parametrize(
    ("rule", "state", "slice"),
    [
        ("top1 under clean by camera >= 0.6", PASS, "camera = c"),
        ("top1 under clean by camera > 60 %", FAIL, "camera = c"),
        ("top1 under clean by camera >= 85 %", FAIL, "camera = c"),
        ("worst slice of top1 by camera >= 60 %", PASS, "camera = c"),
        ("worst slice of top1 under clean by camera >= 0.61", FAIL, "camera = c"),
        ("top1 under clean by camera <= 85 %", FAIL, "camera = a"),
        ("nll under clean by camera <= 0.5", PASS, "camera = a"),
        ("worst slice of nll by camera <= 0.4", FAIL, "camera = a"),
        ("top1 under clean by light >= 0.8", PASS, "light = day"),
        ("top1 under clean by camera,light >= 0.99", FAIL, "camera = b, light = day"),  # those of c are too few
    ],
)
def test_every_slice_must_meet_the_bound(large: Run, rule: str, state: str, slice: str) -> None:
    found = verdict(large, rule)
    assert (found.state, found.slice) == (state, slice), found.reason


def test_the_worst_slice_is_named_and_those_that_fail_are_counted(large: Run) -> None:
    found = verdict(large, "top1 under clean by camera >= 85 %")
    assert found.figure is not None and (found.figure.value, found.figure.n) == (0.6, 30)
    assert (found.figure.low, found.figure.high) == wilson(18, 30)
    assert found.reason == "2 of 3 slices fail, the worst: camera = c"
    assert sentence(found).startswith("top1 under clean by camera >= 85 %: 60.0 % [42.3, 75.4], n 30, bound >= 85 %, ")
    assert advice(found) == "see all slices with robustkit report RUN --by camera"
    assert verdict(large, "top1 under clean by camera >= 1/2").reason == "3 of 3 slices pass, the worst: camera = c"
    odd = verdict(large, "top1 under clean by camera >= 0.7 ")
    assert "so the miss is not significant" in advice(odd) and "--by camera" in advice(odd)


def test_a_slice_of_few_samples_decides_nothing_unless_another_fails(sliced: Run) -> None:
    found = verdict(sliced, "top1 under clean by camera >= 0.5")
    few = "10 samples of the slice; expected 20 or more; 1 of 4 slices are inconclusive, the worst: camera = d"
    assert (found.state, found.reason, found.slice) == (UNDECIDED, few, "camera = d")
    assert found.figure is not None and found.figure.n == 10 and found.needed == 380  # 20 of it, at its share
    assert found.short_of_samples and "--limit 380" in advice(found)
    assert verdict(sliced, "top1 under clean by camera >= 0.7").reason == "1 of 4 slices fail, the worst: camera = c"
    text = "undecided = '{}'\n[[rule]]\nrequire = 'top1 under clean by camera >= 0.5'"
    assert [judge(parse_policy(text.format(word), "p"), sliced).passed for word in ("pass", "fail")] == [True, False]


def test_with_confidence_the_intervals_of_all_slices_hold_together(large: Run) -> None:
    """Three intervals of 98.33 % each: worked out by hand for 18 of 30."""
    z = simultaneous_z(3)
    assert math.isclose(z, 2.3939797998185104)
    share, n = 0.6, 30
    reach = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    low = (share + z * z / (2 * n)) / (1 + z * z / n) - reach
    plain = wilson(18, 30)[0]
    assert low < plain - 0.03
    between = (low + plain) / 2  # a bound that the interval of one slice alone would clear
    rule = "top1 under clean by camera >= {:.6f} with 95 % confidence"
    found = verdict(large, rule.format(between))
    assert found.state == UNDECIDED and found.figure is not None and math.isclose(found.figure.low, low)
    assert verdict(large, rule.format(low - 1e-4)).state == PASS
    assert verdict(large, rule.format(0.9)).state == FAIL
    needed = math.ceil(z**2 * between * (1 - between) / (0.6 - between) ** 2)
    assert f"about {needed} samples of the slice would settle it" in found.reason
    assert found.needed == math.ceil(180 * needed / 30)


def test_an_unknown_column_is_inconclusive_and_says_what_there_is(large: Run) -> None:
    found = verdict(large, "top1 under clean by camera,'time of day' >= 0.5")
    assert (found.state, found.figure, found.short_of_samples) == (UNDECIDED, None, False)
    assert found.reason == (
        "there is no column 'time of day'; there are camera, light, class, difficulty; robustkit report RUN --metadata "
        "FILE.csv adds others"
    )
    early = verdict(large, "top1 under pgd by camera >= 0.5")
    assert (early.state, early.reason) == (UNDECIDED, "pgd was not evaluated")


def test_the_outputs_have_the_slice(sliced: Run) -> None:
    rules = ("top1 under clean by camera >= 0.7", "top1 under clean by light >= 0.5", "worst slice of top1 by x >= 0.1")
    found = verdicts(sliced, *rules)
    plain: dict[str, Any] = json.loads(to_json(found, "r", None))
    assert [each["slice"] for each in plain["verdicts"]] == ["camera = c", "light = day", None]
    assert [each["n"] for each in plain["verdicts"]] == [30, 95, None]
    suite = Tree.fromstring(junit(found, "r"))
    assert [case.find("failure") is not None for case in suite.iter("testcase")] == [True, False, True]
    assert "the worst: camera = c" in str(Tree.tostring(suite)) and "camera = c" in markdown(found, "r")
    assert "camera = c" in "".join(github_lines(found)) and "camera = c" in str(verdict_table(found.verdicts).below)


def test_a_rule_is_read() -> None:
    found = parse_statement("worst slice of top1 by 'time of day', camera >= 60 % with 95 % confidence")
    assert isinstance(found, Value) and found.condition.text == "clean"
    assert (found.by, found.bound, found.sure) == (("time of day", "camera"), 0.6, True)
    assert parse_statement("top5 of pgd(eps=1/255) by class >= 0.1").by == ("class",)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("worst slice of top1 under clean >= 0.6", "column 33: expected by COLUMN, such as top1 under clean by camera"),
        ("top1 by camera >= 0.6", "expected under CONDITION, such as top1 under clean"),
        ("top1 under clean by >= 0.6", "expected a column such as camera, or its name in quotes"),
        ("top1 under clean by camera, >= 0.6", "expected a column such as camera"),
        ("top1 under clean by camera,camera >= 0.6", "column 'camera' is named twice"),
        ("worst slice of top1 by camera <= 0.6", "expected >= or >, as the worst top1 is the lowest"),
        ("worst slice of nll by camera >= 0.6", "expected <= or <, as the worst nll is the highest"),
        ("top1 under clean by camera >= 0", "can never fail"),
        ("top1 under clean by camera >= 70", "7000 % of top1"),
        ("n under clean by camera >= 20", "n is no mean over samples"),
        ("ece under clean by camera <= 0.1", "ece is no mean over samples that slices have"),
        ("nll under clean by camera <= 1 with 95 % confidence", "no intervals of nll that hold together"),
    ],
)
def test_rules_that_are_misread(rule: str, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        parse_statement(rule)


def test_such_a_rule_needs_the_whole_run() -> None:
    policy = parse_policy("[[rule]]\nrequire = 'top1 under clean by camera >= 0.7'", "p.toml")
    with pytest.raises(ProtocolError, match="cannot be decided sequentially: slices are judged on complete records"):
        options_asked(policy)


def test_records_that_are_missing_decide_nothing(tmp_path: Path) -> None:
    run = run_of(tmp_path, {"camera": ["a", "b"] * 30}, {"clean": [1] * 60, PGD: [1] * 30})
    found = verdict(run, "top1 under pgd by camera >= 0.5")
    assert found.state == UNDECIDED and found.completes and found.reason.startswith("incomplete: 30 of 60 samples")
