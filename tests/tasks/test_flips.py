"""Predictions that changed: counted by hand, in compare, on the page and in rules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from compared_runs import run_of
from gate_runs import PGD, make, verdict

from robustkit.common.intervals import proportion, wilson
from robustkit.errors import ProtocolError, RunError
from robustkit.gate.policy import Change, parse_statement
from robustkit.gate.verdicts import FAIL, PASS, UNDECIDED
from robustkit.report.page import write_report
from robustkit.report.run import Run
from robustkit.results.compared import compare
from robustkit.results.pairing import Side
from robustkit.results.survey import survey
from robustkit.tasks.labelled.flips import flipped_grid, flips_of

BEFORE = [1] * 12 + [0] * 8
NOW = [1] * 9 + [0] * 3 + [1] * 1 + [0] * 7  # three that were right are wrong, one that was wrong is right


def test_flips_are_counted_by_sample_with_their_intervals(tmp_path: Path) -> None:
    old, new = make(tmp_path / "old", {"vit": {"clean": BEFORE}}), make(tmp_path / "new", {"vit": {"clean": NOW}})
    found = flips_of(Side(old, "vit"), Side(new, "vit"), "clean")
    negative, positive, churn = found.kinds.values()
    assert negative.ids == ("009.png", "010.png", "011.png") and positive.ids == ("012.png",)
    assert (negative.share.value, positive.share.value, churn.share.value) == (0.15, 0.05, 0.2)
    assert found.kinds["negative"].share == proportion(3, 20)
    assert [found.before[name] for name in found.kinds["negative"].ids] == [0] * 3
    assert [found.now[name] for name in found.kinds["negative"].ids] == [1] * 3
    back = flips_of(Side(new, "vit"), Side(old, "vit"), "clean")
    assert (back.kinds["negative"], back.kinds["positive"]) == (found.kinds["positive"], found.kinds["negative"])


def test_compare_and_the_page_show_them(tmp_path: Path) -> None:
    run = make(tmp_path / "run", {"vit": {"clean": BEFORE, PGD: BEFORE}, "next": {"clean": NOW, PGD: BEFORE}})
    found = compare(run)
    table = found.tables[-1]
    low, high = (100 * end for end in wilson(3, 20))
    assert table.title == "next against vit: predictions that changed; n = 20"
    assert table.rows[0][:2] == ("clean", f"15.0 [{low:.1f}, {high:.1f}]") and table.rows[1][1].startswith("0.0 [")
    (clean, attacked) = found.to_dict()["pairs"][0]["flips"]
    assert (clean["negative"]["ids"], attacked["churn"]["value"]) == (["009.png", "010.png", "011.png"], 0.0)
    write_report(run, survey(run))
    page = (run.path / "report.html").read_text("utf-8")
    assert "Predictions that changed from vit" in page and "Negative flips of next" in page and "009.png" in page


def test_rules_on_flips(tmp_path: Path) -> None:
    old = make(tmp_path / "old", {"vit": {"clean": BEFORE, PGD: BEFORE}})
    new = make(tmp_path / "new", {"other": {"clean": NOW}, "vit": {"clean": NOW, PGD: BEFORE}})
    states = {
        "negative flips under clean against baseline <= 15 %": PASS,
        "negative flips under clean against baseline < 15 %": FAIL,
        "negative flips under pgd against baseline <= 1 %": PASS,
        "negative flips under pgd against baseline <= 10 % with 95 % confidence": UNDECIDED,
        "negative flips under clean against baseline <= 4 % with 95 % confidence": FAIL,
        "positive flips under clean against baseline >= 5 %": PASS,
        "churn under clean against baseline <= 0.19": FAIL,
    }
    for rule, state in states.items():
        found = verdict(new, rule, old, more="checkpoint = 'vit'")
        assert (found.state, found.figure and found.figure.n) == (state, 20), rule
    rule = "negative flips under clean against baseline <= 1 %"
    assert "there is no baseline" in verdict(old, rule).reason
    assert "this same checkpoint" in verdict(old, rule, old).reason


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        ("negative flips against baseline <= 1 %", "under CONDITION, such as negative flips under clean"),
        ("churn under clean <= 1 %", "expected against baseline"),
        ("negative flips under clean against baseline <= 100 %", "can never fail"),
        ("positive flips under clean against baseline >= 5", "500 % of positive flips"),
    ],
)
def test_rules_on_flips_that_are_misread(rule: str, said: str) -> None:
    with pytest.raises(ProtocolError, match=said):
        parse_statement(rule)


def test_a_rule_on_flips_is_a_change() -> None:
    rule = "negative flips under clean against baseline <= 1 % with 95 % confidence except 'weights'"
    found = parse_statement(rule)
    assert isinstance(found, Change)
    assert (found.metric, found.compare, found.bound, found.sure) == ("negative flips", "<=", 0.01, True)


def predicted(
    place: Path,
    rows: dict[str, list[tuple[bool | None, int | None]]],
    names: Sequence[str] = (),
    outputs: Sequence[str] | None = None,
) -> Run:
    """A run whose clean samples were right, or not, or have no label, and were predicted so; by checkpoint."""
    records = {
        (name, "clean"): [
            {"sample_id": f"{place:03}", "label": 0, "correct": right, "prediction": said, "nll": 0.5, "error": None}
            for place, (right, said) in enumerate(own)
        ]
        for name, own in rows.items()
    }

    def name(manifest: dict[str, Any]) -> None:
        manifest["data"].update(class_names=list(names))
        for entry in manifest["checkpoints"] if outputs else ():
            entry["class_names"] = list(outputs or ())

    return run_of(place, records, name)


def test_samples_without_a_label_on_either_side_are_left_out(tmp_path: Path) -> None:
    before = [(True, 0), (None, 0), (True, 0), (False, 1), (True, None), (False, 1), (True, 2), (True, 0)]
    now = [(False, 1), (False, 1), (None, 1), (None, 2), (True, 0), (False, 2), (True, 2), (False, 0)]
    run = predicted(tmp_path / "run", {"plain": before, "other": now})
    found = flips_of(Side(run, "plain"), Side(run, "other"), "clean")
    negative, positive, churn = found.kinds.values()
    assert (negative.ids, positive.ids, churn.ids) == (("000", "007"), (), ("000", "004", "005"))
    assert (found.n, negative.share.n, negative.share.value, churn.share.value) == (5, 5, 2 / 5, 3 / 5)
    assert found.before == {"000": 0, "005": 1, "007": 0}  # None is no class; the last has another label now
    assert found.now == {"000": 1, "004": 0, "005": 2, "007": 0}
    none = predicted(tmp_path / "none", {"plain": [(None, 0), (True, 0)], "other": [(True, 0), (None, 1)]})
    with pytest.raises(RunError, match="no labelled sample is common under clean; expected the same labelled data"):
        flips_of(Side(none, "plain"), Side(none, "other"), "clean")


@pytest.mark.parametrize("count", [20, 21])
def test_the_first_negative_flips_are_listed_by_the_names_of_their_classes(tmp_path: Path, count: int) -> None:
    wrong: list[tuple[bool | None, int | None]] = [(False, 1), (False, 2), (False, None), (False, -1)]
    now = (wrong * 6)[:count]
    run = predicted(tmp_path / "run", {"plain": [(True, 0)] * count, "other": now}, ["cat", "dog"])
    side = Side(run, "other")
    found = flips_of(Side(run, "plain"), side, "clean")
    grid = flipped_grid(side, [found])
    assert grid is not None and len(grid.rows) == 20 and grid.note == "At most 20 samples of each condition."
    assert [row[1:] for row in grid.rows[:4]] == [
        ("000", "cat", "dog"),
        ("001", "cat", "2"),  # a class without a name
        ("002", "cat", "–"),
        ("003", "cat", "-1"),
    ]
    assert grid.keys == 2 and grid.folded and grid.title == "Negative flips of other"
    own = predicted(tmp_path / "own", {"plain": [(True, 0)], "other": [(False, 1)]}, ["cat", "dog"], ["Katze", "Hund"])
    pair = Side(own, "plain"), Side(own, "other")
    named = flipped_grid(pair[1], [flips_of(*pair, "clean")])
    assert named is not None and named.rows[0][2:] == ("Katze", "Hund")  # as the checkpoint calls its outputs
    back = flips_of(side, Side(run, "plain"), "clean")
    assert flipped_grid(Side(run, "plain"), [back]) is None and back.kinds["negative"].share == proportion(0, count)
