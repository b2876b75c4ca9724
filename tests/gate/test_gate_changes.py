"""Rules on changes against a baseline: paired, of the worst condition, and where runs cannot be paired."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from figures import said_of
from gate_runs import PGD, make, right, verdict, verdicts
from paired_oracles import interval_of

from robustkit.common.differences import of_outcomes, rare_share_bound
from robustkit.errors import ProtocolError
from robustkit.evaluations.condition import pattern_of
from robustkit.gate.policy import Change, Value, parse_policy
from robustkit.gate.verdicts import FAIL, PASS, UNDECIDED, Figure, decide, judge, judged_figure
from robustkit.report.run import Run


def test_a_drop_is_paired_and_positive_where_the_run_is_worse(tmp_path: Path) -> None:
    """Of 200 samples 6 get lost and 2 are won: 2 % of drop."""
    before = make(tmp_path / "before", {"vit": {"clean": [1] * 150 + [0] * 50}}, {"clean": [0.5] * 200})
    after = make(
        tmp_path / "after",
        {"vit": {"clean": [0] * 6 + [1] * 144 + [1] * 2 + [0] * 48}},
        {"clean": [0.75, 0.5] * 100},
        checkpoints=[{**before.manifest.checkpoints[0].to_plain(), "sha256": "other"}],
    )
    rule = "drop in top1 under clean against baseline"
    assert verdict(after, f"{rule} <= 0.02", before).state == PASS
    assert verdict(after, f"{rule} < 0.02", before).state == FAIL
    assert verdict(after, f"{rule} <= 1.9 %", before).state == FAIL
    assert verdict(before, f"{rule} <= -0.02", after).state == PASS
    unsure = verdict(after, f"{rule} <= 0.03 with 95 % confidence", before)
    figure = unsure.figure
    assert figure is not None and unsure.state == UNDECIDED
    assert (figure.value, figure.n) == (pytest.approx(0.02), 200)
    gaps = np.repeat([1.0, -1.0, 0.0], [6, 2, 192])
    assert (figure.low, figure.high) == pytest.approx(interval_of(gaps, binary=True))
    assert unsure.needed == math.ceil(200 * ((figure.high - 0.02) / 0.01) ** 2)
    assert verdict(after, f"{rule} <= 0.06 with 95 % confidence", before).state == PASS
    assert verdict(after, f"{rule} <= -0.02 with 95 % confidence", before).state == FAIL
    rises = "rise in nll under clean against baseline"
    assert verdict(after, f"{rises} <= 0.125", before).state == PASS
    assert verdict(after, f"{rises} <= 0.124", before).state == FAIL
    assert verdict(after, f"{rises} <= 0.2 with 95 % confidence", before).state == PASS


def test_few_samples_without_a_change_are_no_proof(tmp_path: Path) -> None:
    before = make(tmp_path / "before", {"vit": {"clean": right(30, 40)}})
    other = [{**before.manifest.checkpoints[0].to_plain(), "sha256": "other"}]
    after = make(tmp_path / "after", {"vit": {"clean": right(30, 40)}}, checkpoints=other)
    rule = "drop against baseline <= 0.01 with 95 % confidence"
    unsure = verdict(after, rule, before)
    assert unsure.figure is not None and unsure.figure.value == 0
    assert unsure.figure.high == of_outcomes(0, 0, 40)[1] == rare_share_bound(40)
    assert unsure.figure.low == -unsure.figure.high
    assert unsure.state == UNDECIDED and unsure.needed == 381
    assert of_outcomes(0, 0, 381)[1] <= 0.01 < of_outcomes(0, 0, 380)[1]
    itself = verdict(before, rule, before)  # the same weights cannot differ, so that no rule about it could fail
    assert (itself.state, itself.short_of_samples) == (UNDECIDED, False) and "this same checkpoint" in itself.reason
    assert verdict(after, "rise in nll under clean against baseline <= 0.1 with 95 % confidence", before).state == (
        UNDECIDED
    )


def test_an_interval_without_width_is_as_wide_as_few_samples_allow(tmp_path: Path) -> None:
    fog = {f"corruption(fog,severity={severity})": [1] * 20 for severity in (1, 2, 3, 4, 5)}
    run = make(tmp_path / "run", {"vit": {"clean": [1] * 20} | fog})
    found = verdict(run, "mean_error of corruption(fog) <= 0.1 with 95 % confidence")
    assert found.state == UNDECIDED and found.figure is not None and found.figure.high == rare_share_bound(20) > 0.16
    assert verdict(run, "mean_error of corruption(fog) <= 0.17 with 95 % confidence").state == PASS
    assert "the figure has no interval" in verdict(run, "nll under clean <= 9 with 95 % confidence").reason
    row = Figure(0.2, 20, 0.2, 0.2)
    assert judged_figure(row.of("cam(agcam)", "cam_iou")).high == 0.2 + rare_share_bound(20)
    for value, ends in ((1.0, (1 - rare_share_bound(20), 1.0)), (0.0, (0.0, rare_share_bound(20)))):  # of a share
        judged = judged_figure(Figure(value, 20, value, value).of("cam(agcam)", "cam_iou"))
        assert (judged.low, judged.high) == pytest.approx(ends)
    assert math.isnan(judged_figure(row.of("cam(agcam)", "cam_iou_over_control")).high)  # a difference, not a share


def test_bounds_are_met_within_rounding_and_samples_needed_are_more_than_there_are() -> None:
    clean = pattern_of("clean")
    assert decide(Value("nll", clean, ">", 0.3), Figure(0.1 + 0.2, 9), "nll")[0] == FAIL
    assert decide(Value("nll", clean, ">=", 0.1 + 0.2), Figure(0.3, 9), "nll")[0] == PASS
    touching = Figure(0.5, 100, 0.4, 0.6)
    assert decide(Value("nll", clean, ">", 0.4, True), touching, "nll")[::2] == (UNDECIDED, 101)
    # However narrow the interval: 381 samples without a change are the fewest that show less than 1 %.
    drop = Change(True, "top1", clean, "<=", 0.01, True)
    assert decide(drop, Figure(0.0, 50, -0.01, 0.02), "top1")[::2] == (UNDECIDED, 381)
    assert decide(replace(drop, bound=1.0), Figure(0.0, 2, -1.5, 1.5), "top1")[::2] == (UNDECIDED, 5)


def test_a_drop_under_all_shared_conditions_is_that_of_the_worst(tmp_path: Path) -> None:
    before = make(tmp_path / "b", {"vit": {"clean": right(9, 10), PGD: right(8, 10), "fgsm(eps=1/255)": right(5, 10)}})
    spsa = {"spsa(eps=1/255,steps=3)": right(9, 10)}
    after = make(tmp_path / "a", {"vit": {"clean": right(9, 10), PGD: right(5, 10)} | spsa})
    found = verdict(after, "drop against baseline <= 0.2", before)
    assert found.state == FAIL and found.condition == PGD
    assert found.figure is not None and found.figure.value == pytest.approx(0.3)
    gone = "conditions of the baseline that were not evaluated here: 1, the first: fgsm(eps=1/255)"
    assert found.reason == f"{gone}; 1 of 2 shared conditions fail, the worst: {PGD}"
    fewer = make(tmp_path / "f", {"vit": {"clean": right(9, 10), PGD: right(8, 10)}})  # the baseline may have fewer
    assert verdict(after, "drop against baseline <= 0.31", fewer).state == PASS
    assert verdict(after, "drop against baseline <= 0.31", fewer).condition == PGD
    assert verdict(after, "drop against baseline >= 0", fewer).condition == "clean"
    (cut,) = verdicts(fewer, "drop against baseline <= 0.31", baseline=before, more="checkpoint = 'vit'").verdicts
    assert (cut.state, cut.short_of_samples) == (UNDECIDED, False) and cut.reason.startswith(gone)
    assert verdict(after, "drop in top1 under spsa against baseline <= 0.5", before).state == UNDECIDED


@pytest.mark.parametrize("rule", [f"drop in top1 under {PGD} against baseline <= 0.5", "drop against baseline <= 0.5"])
def test_a_change_names_the_command_that_makes_what_one_of_the_runs_lacks(tmp_path: Path, rule: str) -> None:
    found = {"whole": {"vit": {"clean": [1] * 10, PGD: [1] * 10}}, "part": {"vit": {"clean": [1] * 10, PGD: [1] * 8}}}
    found["late"] = {"vit": {"clean": [1] * 10}, "other": {PGD: [1] * 10}}  # no record of vit under PGD
    runs = {name: make(tmp_path / name, own, command=f"robustkit audit {name}") for name, own in found.items()}
    short = ["part", "late"] if rule == "drop against baseline <= 0.5" else ["part"]
    for first, second in (pair for name in short for pair in (("whole", name), (name, "whole"))):
        judged = verdict(runs[second], rule, runs[first], more="checkpoint = 'vit'")
        lacking = first if second == "whole" else second
        assert (judged.state, judged.completes) == (UNDECIDED, f"robustkit audit {lacking}"), judged.reason
    assert verdict(runs["whole"], rule, runs["whole"]).completes == ""


def test_of_conditions_one_that_fails_is_worse_than_one_undecided_and_that_than_one_that_passes(tmp_path: Path) -> None:
    """Of 100 samples none is lost clean, 4 under FGSM and 80 under PGD, where each may be 5."""
    fgsm = "fgsm(eps=1/255)"
    had = {"clean": right(90, 100), fgsm: right(90, 100), PGD: right(90, 100)}
    has = {"clean": right(90, 100), fgsm: right(86, 100), PGD: right(10, 100)}
    before = make(tmp_path / "before", {"vit": had})
    changes: dict[str, Any] = {"checkpoints": [{**before.manifest.checkpoints[0].to_plain(), "sha256": "other"}]}
    after = make(tmp_path / "after", {"vit": has}, **changes)
    rule = "drop against baseline <= 0.05 with 95 % confidence"
    worst = verdict(after, rule, before)
    assert (worst.state, worst.condition) == (FAIL, PGD)
    assert worst.reason == f"1 of 3 shared conditions fail, the worst: {PGD}"
    milder = make(tmp_path / "milder", {"vit": {name: has[name] for name in ("clean", fgsm)}}, **changes)
    worst = verdict(milder, rule, before)
    assert (worst.state, worst.condition) == (UNDECIDED, fgsm) and not worst.short_of_samples
    assert worst.reason.endswith(f"; 1 of 2 shared conditions are inconclusive, the worst: {fgsm}")
    assert worst.reason.startswith(f"conditions of the baseline that were not evaluated here: 1, the first: {PGD}; ")
    other_files = make(tmp_path / "files", {"vit": has | {PGD: had[PGD]}}, corrupted={"digests": {PGD: "x"}}, **changes)
    worst = verdict(other_files, rule, before)  # what was not measured is worse than what was measured too little
    assert (worst.state, worst.condition, worst.short_of_samples) == (UNDECIDED, PGD, False)
    losses = {"clean": [0.0] * 100, fgsm: [math.inf] * 100}  # whose difference is not a number, and worse than any
    first = make(tmp_path / "first", {"vit": {"clean": had["clean"], fgsm: had[fgsm]}}, losses)
    then = make(tmp_path / "then", {"vit": {"clean": had["clean"], fgsm: had[fgsm]}}, losses | {"clean": [9.0] * 100})
    worst = verdict(then, "rise in nll against baseline <= 0", first)
    assert (worst.state, worst.condition) == (FAIL, fgsm)


def test_a_change_says_where_the_runs_were_computed_otherwise(tmp_path: Path, run: Run) -> None:
    other = make(tmp_path / "other", {"vit": {"clean": [1] * 100}}, deciding={"compile": True}, robustkit="7")
    rule = "drop in top1 under clean against baseline <= 0.5"
    figure = verdict(run, rule, other).figure
    assert figure is not None and said_of(figure) == [
        "baseline: compile differs: True and False",
        "baseline: version of robustkit differs: 7 and 0",
    ]
    half = make(tmp_path / "half", {"vit": {"clean": [1] * 100}}, deciding={"dtype": "bfloat16"})
    assert (found := verdict(run, rule, half)).state == UNDECIDED
    assert found.reason.startswith(
        "the baseline has a different set-up: dtype differs: bfloat16 and float32; audit both"
    )
    accepted = verdict(run, f"{rule} except 'dtype differs'", half)
    assert accepted.state == PASS and accepted.figure is not None
    assert said_of(accepted.figure) == ["set-up: dtype differs: bfloat16 and float32, which the rule accepts"]


@pytest.mark.parametrize("key", ["data digest", "seed"])
def test_runs_that_cannot_be_paired_are_not(tmp_path: Path, run: Run, key: str) -> None:
    deciding = {key: 7 if key == "seed" else "7"}
    other = make(tmp_path / "other", {"vit": {"clean": [1] * 100}}, deciding=deciding)
    found = verdict(run, "drop against baseline <= 0.5", other)
    here = run.manifest.deciding.to_plain()[key]
    assert (found.state, found.figure) == (UNDECIDED, None)
    of_data = "…", ": images, labels or their selection (--limit, --ids, --seed) differ"
    cut, why = of_data if key == "data digest" else ("", "")
    what = f"{key} is 7{cut} in the baseline and {str(here)[:12] if cut else here}{cut} here{why}"
    assert found.reason == f"the runs cannot be paired: {what}; audit both in the same way"


def test_the_baselines_checkpoint_is_of_the_same_name_or_its_only_one(tmp_path: Path, run: Run) -> None:
    only = make(tmp_path / "only", {"released": {"clean": [1] * 100}})
    found = verdict(run, "drop in top1 under clean against baseline <= 0.4", only)
    assert found.state == PASS and found.figure is not None and found.figure.value == pytest.approx(0.4)
    several = make(tmp_path / "several", {"a": {"clean": [1] * 100}, "b": {"clean": [1] * 100}})
    assert "it has a, b" in verdict(run, "drop against baseline <= 0.5", several).reason
    same = make(tmp_path / "same", {"a": {"clean": [1] * 100}, "vit": {"clean": right(60, 100)}})
    found = verdict(run, "drop against baseline <= 0.5", same)
    assert found.figure is not None and found.figure.value == 0
    files = make(tmp_path / "files", {"vit": {"clean": [1] * 100}}, corrupted={"digests": {"clean": "x"}})
    assert "reads different files here" in verdict(run, "drop against baseline <= 0.5", files).reason


def test_a_policy_may_take_the_mid_p_form(tmp_path: Path) -> None:
    """Of 40 samples 1 is right now only, and 7 were before: mid-p .039, exact p .070."""
    outcomes = [1] * 20 + [0] * 20, [1] * 13 + [0] * 7 + [1] + [0] * 19
    before = make(tmp_path / "before", {"vit": {"clean": outcomes[0]}})
    other = [{**before.manifest.checkpoints[0].to_plain(), "sha256": "other"}]
    after = make(tmp_path / "after", {"vit": {"clean": outcomes[1]}}, checkpoints=other)
    rule = "[[rule]]\nrequire = 'drop against baseline <= 0 % with 95 % confidence'\n"
    exact, mid = (judge(parse_policy(head + rule, "p.toml"), after, before) for head in ("", "mid_p = true\n"))
    assert (exact.verdicts[0].state, mid.verdicts[0].state) == (UNDECIDED, FAIL)
    assert "mid-p" in mid.notes[0] and not exact.notes
    figure = mid.verdicts[0].figure
    assert figure is not None and -figure.low == pytest.approx(of_outcomes(1, 7, 40, mid=True)[1])
    with pytest.raises(ProtocolError, match=r"line 1, column 1: mid_p 'yes'; expected true or false"):
        parse_policy("mid_p = 'yes'\n" + rule, "p.toml")
