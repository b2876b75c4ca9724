"""The gate: verdicts worked out by hand on small runs, what CI servers get, and exit codes."""

from __future__ import annotations

import math
import shlex
import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from gate_runs import PGD, make, right, verdict, verdicts
from msgspec.structs import replace
from sealing import seal

import robustkit
from robustkit.cli import app as cli
from robustkit.common.figure import Figure
from robustkit.common.finding import Finding
from robustkit.common.intervals import wilson
from robustkit.errors import ProtocolError
from robustkit.evaluations.condition import pattern_of
from robustkit.evaluations.corruptions import conditions_of
from robustkit.gate.output import advice, sentence
from robustkit.gate.policy import Value, parse_policy
from robustkit.gate.verdicts import FAIL, PASS, UNDECIDED, decide, judge
from robustkit.report.run import Run

pytestmark = pytest.mark.usefixtures("pageless")


@pytest.mark.parametrize(
    ("rule", "state"),
    [
        ("top1 under clean >= 0.60", PASS),
        ("top1 under clean > 0.60", FAIL),
        ("top1 under clean >= 3/5", PASS),
        ("top1 under clean >= 61 %", FAIL),
        ("top1 under clean <= 0.60", PASS),
        ("top1 under clean < 0.60", FAIL),
        ("top1 under clean < 0.61", PASS),
        ("top1 under pgd(eps=1/255) >= 0.30", PASS),
        ("top1 under pgd(eps=1/255) >= 0.31", FAIL),
        ("nll under clean <= 0.5", PASS),
        ("nll under clean <= 0.49", FAIL),
        ("linf_max under pgd <= 1/255", PASS),
        ("linf_max under pgd <= 0.5/255", FAIL),
        ("n under clean >= 100", PASS),
        ("n under clean >= 101", FAIL),
        ('attention == "quest"', PASS),
        ('attention == "standard"', FAIL),
        ('arch == "vit"', PASS),
        (f'checkpoint sha256 == "{0:064d}"', PASS),
        ('checkpoint sha256 == "0"', FAIL),
        ('protocol == "standard@1:0"', PASS),
        ('protocol == "standard@1:1"', FAIL),
        ('data digest == "D1"', PASS),
        ("no findings", PASS),
        # Wilson's interval of 60 in 100 is [0.5020, 0.6906].
        ("top1 under clean >= 0.50 with 95 % confidence", PASS),
        ("top1 under clean >= 0.51 with 95 % confidence", UNDECIDED),
        ("top1 under clean >= 0.69 with 95 % confidence", UNDECIDED),
        ("top1 under clean >= 0.70 with 95 % confidence", FAIL),
        ("top1 under clean <= 0.70 with 95 % confidence", PASS),
        ("top1 under clean <= 0.69 with 95 % confidence", UNDECIDED),
        ("top1 under clean <= 0.50 with 95 % confidence", FAIL),
        ("linf_max under pgd <= 1 with 95 % confidence", UNDECIDED),
        ("top1 under spsa(eps=1/255) >= 0.1", UNDECIDED),
        ("mce <= 1", UNDECIDED),
        ("drop against baseline <= 1 %", UNDECIDED),
    ],
)
def test_every_kind_of_rule_passes_fails_or_cannot_tell(run: Run, rule: str, state: str) -> None:
    assert verdict(run, rule).state == state


@pytest.mark.parametrize("bound", [0.51, 0.55, 0.65, 0.69])
def test_the_samples_needed_are_the_fewest_whose_interval_leaves_the_bound(run: Run, bound: float) -> None:
    found = verdict(run, f"top1 under clean >= {bound} with 95 % confidence")
    needed = found.needed or 0
    assert f"about {needed} samples would settle it" in found.reason

    def holds(n: float) -> bool:  # Wilson's score test of the bound, at a share of 0.6
        return abs(0.6 - bound) <= 1.959963984540054 * math.sqrt(bound * (1 - bound) / n)

    assert needed > 100 and holds(needed - 1) and not holds(needed)
    low, high = wilson(round(0.6 * needed), needed)
    assert (low if bound < 0.6 else 1 - high) == pytest.approx(bound if bound < 0.6 else 1 - bound, abs=2 / needed)


def test_the_samples_needed_of_a_mean_shrink_its_interval_to_the_bound(run: Run) -> None:
    found = verdict(run, "nll under clean <= 0.52 with 95 % confidence")  # 0.5 with an error of 0.05
    figure = found.figure
    assert figure is not None and figure.high == pytest.approx(0.5 + 1.96 * 0.05, abs=0.02)
    assert found.needed == math.ceil(100 * ((figure.high - 0.5) / 0.02) ** 2) > 1500
    below = verdict(run, "nll under clean >= 0.48 with 95 % confidence")
    assert below.needed == math.ceil(100 * ((0.5 - figure.low) / 0.02) ** 2)
    uneven = Figure(0.5, 100, 0.4, 0.8)
    assert decide(Value("nll", pattern_of("clean"), ">=", 0.45, True), uneven, "nll")[2] == 400
    assert decide(Value("nll", pattern_of("clean"), "<=", 0.6, True), uneven, "nll")[2] == 900
    equal = verdict(run, "nll under clean <= 0.5 with 95 % confidence")
    assert (equal.state, equal.needed) == (UNDECIDED, None) and "no number of samples would settle it" in equal.reason
    assert verdict(run, "nll under clean <= 0.7 with 95 % confidence").state == PASS
    assert verdict(run, "nll under clean <= 0.3 with 95 % confidence").state == FAIL


def test_what_is_no_number_fails_and_never_passes() -> None:
    for value in (math.nan, math.inf, -math.inf):
        for compare in (">=", "<="):
            for sure in (False, True):
                found = decide(Value("nll", pattern_of("clean"), compare, 0.0, sure), Figure(value, 9, 0.0, 0.0), "nll")
                assert found == (FAIL, "nan is not a number to compare", None)


def test_a_condition_that_fits_twice_is_refused_unless_one_is_meant_exactly(tmp_path: Path, run: Run) -> None:
    message = (
        r"^p\.toml: line 2, column 14: fgsm is ambiguous: the run has fgsm\(eps=1/255\) and fgsm\(eps=2/255\); "
        "write one of them in full$"
    )
    for rule in ("top1 under fgsm > 0", "n under fgsm > 0"):
        with pytest.raises(ProtocolError, match=message):
            verdict(run, rule)
    twice = {PGD: [1] * 10, "pgd(eps=1/255,steps=20,restarts=2)": [0] * 10}
    both = make(tmp_path / "run", {"vit": twice})
    assert verdict(both, f"top1 under {PGD} >= 1").state == PASS
    assert verdict(both, "top1 under pgd(restarts=2) <= 0").state == PASS


def test_more_samples_of_a_part_are_asked_for_by_the_part(tmp_path: Path) -> None:
    """--limit would change what is drawn from, and not how many are."""
    run = make(tmp_path / "run", {"vit": {"clean": right(8, 10), "pgd(eps=1/255,steps=20,on=10)": right(6, 10)}})
    part, whole = "pgd(eps=1/255,on=10)", "clean"
    for condition, option in ((part, "on={}, with as many in the data"), (whole, "--limit {}")):
        found = verdict(run, f"top1 under {condition} >= 0.5 with 95 % confidence")
        assert f"audit that many samples ({option.format(found.needed)})" in advice(found)
    assert "audit that many samples (on=20, with" in advice(verdict(run, f"n under {part} >= 20"))


def test_a_rule_is_not_decided_by_one_of_two_protocols(tmp_path: Path) -> None:
    """Released and computed corruptions in one run: only a rule that states the source is decided."""
    released, computed = "corruption(fog,severity=3,source=released)", "corruption(snow,severity=3)"
    both = make(tmp_path / "both", {"vit": {text: right(6, 10) for text in ("clean", released, computed)}})
    for written in ("fog(severity=3)", "corruption(snow,severity=3)"):
        found = verdict(both, f"top1 under {written} >= 0.5")
        assert found.state == UNDECIDED and "so the run has two protocols; audit all in one way" in found.reason
    for written in ("fog(severity=3,source=released)", "snow(severity=3,source=memory)", "clean"):
        assert verdict(both, f"top1 under {written} >= 0.5").state == PASS
    for text in (released, computed):
        alone = make(tmp_path / text[:16], {"vit": {"clean": right(6, 10), text: right(6, 10)}})
        written = text.removeprefix("corruption(").replace(",", "(", 1).replace(",source=released", "")
        assert verdict(alone, f"top1 under {written} >= 0.5").state == PASS


def test_a_rule_of_a_mean_that_a_larger_one_holds_is_told_of_that(tmp_path: Path) -> None:
    texts = conditions_of("in-c(preset=cifar)")
    whole = make(tmp_path / "whole", {"vit": {text: right(6, 10) for text in texts}})
    decision = verdict(whole, "mean_error of in-c-quick <= 0.9")
    assert (decision.state, decision.reason) == (
        UNDECIDED,
        "the run has in-c(preset=cifar), which holds all of in-c-quick; state the rule of in-c(preset=cifar)",
    )
    assert "which holds all of in-c(severity=3)" in verdict(whole, "mean_error of in-c(severity=3) <= 0.9").reason
    assert verdict(whole, "mean_error of laion-c-quick <= 0.9").reason == "laion-c-quick was not evaluated"
    quick = make(tmp_path / "quick", {"vit": {text: right(6, 10) for text in conditions_of("in-c-quick")}})
    assert verdict(quick, "mean_error of in-c-quick <= 0.9").state == PASS
    assert verdict(quick, "mean_error of in-c <= 0.9").reason == "in-c was not evaluated"


def test_some_stages_of_an_attack_are_not_the_attack(tmp_path: Path) -> None:
    """The first phase of an attack in two leaves more standing than the whole; a rule means it only by its name."""
    stages = "autoattack(eps=1/255,version=standard,only=apgd-ce)"
    first = make(tmp_path / "first", {"vit": {stages: right(6, 10)}})
    found = verdict(first, "top1 under autoattack(eps=1/255) >= 0.5")
    assert (found.state, found.reason) == (UNDECIDED, "autoattack(eps=1/255) was not evaluated")
    assert verdict(first, "top1 under autoattack(only=apgd-ce) >= 0.5").state == PASS
    both = make(tmp_path / "both", {"vit": {stages: right(6, 10), stages.replace(",only=apgd-ce", ""): right(3, 10)}})
    assert verdict(both, "top1 under autoattack >= 0.5").state == FAIL


def test_what_was_not_evaluated_cannot_be_told_and_the_command_is_given(run: Run, tmp_path: Path) -> None:
    found = verdict(run, "top1 under spsa(eps=1/255) >= 0.1")
    assert found.why == (
        "spsa(eps=1/255) was not evaluated; evaluate it with: robustkit audit vit.pth --data-dir val "
        "--limit 30 --num-classes 3 --mean '0.5 0.5 0.5' --attacks 'spsa(eps=1/255)' "
        f"--out {shlex.quote(str(run.path))}"
    )
    asked, other = run.manifest.arguments, tmp_path / "other"
    for more in ({"--arch": "evil.py:f"}, {"--plugin": ["evil.py"]}, {"--trust-config": True, "--config": "evil.toml"}):
        code = make(other, {"vit": {"clean": [1] * 10}}, arguments={**asked, "options": {**asked["options"], **more}})
        for rule in ("nll under in-c <= 1", "no findings under fgsm"):
            option = next(iter(more))
            assert "evil" not in verdict(code, rule).why and f"({option}); review that code" in verdict(code, rule).why
        shutil.rmtree(other)
    held = {**asked, "checkpoints": ["memory:Net"], "options": {"--data-dir": "memory:data"}}
    in_memory = make(other, {"vit": {"clean": [1] * 10}}, arguments=held, command="notebook.py")
    assert (
        "it was made by a program, not by the command line; rerun that program"
        in verdict(in_memory, "nll under in-c <= 1").why
    )
    for odd in ({}, {"options": "--limit 3", "checkpoints": []}, {"options": {}, "checkpoints": 3}):
        altered = make(tmp_path / f"odd{len(str(odd))}", {"vit": {"clean": [1] * 10}}, arguments=odd)
        assert verdict(altered, "nll under in-c <= 1").why == "in-c was not evaluated"
    assert "there is no mce under clean; there are top1" in verdict(run, "mce under clean <= 1").reason
    assert "no such checkpoint in the run; it has vit" in verdict(run, "no findings", more="checkpoint = 'v'").reason


@pytest.fixture(scope="module")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A shipped checkpoint on 4 clean images, with a seed of its own."""
    out = tmp_path_factory.mktemp("shapes") / "run"
    return robustkit.audit(
        ["zoo:shapes-vit-quest"], data_dir="embedded:shapes", attacks="none", limit=4, seed=3, out=out, device="cpu"
    )


@pytest.mark.parametrize(
    "rule",
    [
        "top1 under pgd(eps=4/255,steps=2) <= 0.99",
        "mean_error under corruption(contrast) <= 0.99",
        "rank_correlation under stability(agcam,under=corruption(contrast,severity=3)) >= -0.99",
        "largest_logit under attention(corruption(contrast,severity=3)) <= 100",
    ],
)
@pytest.mark.usefixtures("one_thread")
def test_the_command_that_is_given_evaluates_it(shapes: Run, monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    found = verdict(shapes, rule)
    assert found.state == UNDECIDED
    monkeypatch.setattr(sys, "argv", shlex.split(found.command))
    with pytest.raises(SystemExit) as status:
        cli.main()
    assert status.value.code == 0
    after = verdict(shapes, rule)
    assert after.state == PASS and after.figure is not None and after.figure.n > 0


def test_a_condition_of_which_no_sample_counts_is_a_finding(tmp_path: Path) -> None:
    run = make(tmp_path / "run", {"vit": {"clean": [1] * 10, PGD: [1] * 10}})
    assert verdict(run, "no findings").state == PASS
    (path,) = run.shard_path("vit", PGD, 0).parent.glob("*.parquet")
    for count, expected in ((9, PASS), (10, FAIL)):
        errors = pa.array([*["unreadable"] * count, *[None] * (10 - count)], pa.string())
        table = pq.read_table(path)
        run.write_shard(path, table.set_column(table.column_names.index("error"), "error", errors))
        found = verdict(seal(run), "no findings except data/unreadable")
        assert found.state == expected, found.reason
    assert found.reason.startswith(f"1 finding: {PGD}: there are records but no figure")
    assert verdict(run, "no findings under clean").state == PASS
    assert verdict(run, "no findings except run/no-figure").state == PASS


def test_findings_fail_unless_they_are_excepted_and_are_told_beside_figures(tmp_path: Path) -> None:
    found = {"vit": {"clean": [1] * 10, PGD: [1] * 8}, "late": {"clean": [1] * 10}}
    run = make(tmp_path / "run", found, command="robustkit audit vit.pth")
    of_vit = "checkpoint = 'vit'"
    assert "1 finding: pgd(eps=1/255,steps=20): incomplete: 8 of 10" in verdict(run, "no findings", more=of_vit).reason
    assert verdict(run, "no findings", more=of_vit).state == FAIL
    excepted = verdict(run, 'no findings except "incomplete: "', more=of_vit)
    assert (excepted.state, excepted.reason) == (PASS, "no other findings; 'incomplete: ' is run/incomplete")
    assert verdict(run, "no findings except run/incomplete", more=of_vit).state == PASS
    assert verdict(run, "no findings except run/no-records", more=of_vit).state == FAIL
    assert verdict(run, "no doubts", more=of_vit).reason == "no doubts"  # but a limit
    assert verdict(run, 'no findings except "elsewhere"', more=of_vit).state == FAIL
    assert verdict(run, "no findings under clean", more=of_vit).state == PASS
    assert verdict(run, "no findings under fgsm", more=of_vit).state == UNDECIDED
    part = verdict(run, "top1 under pgd >= 0.01", more=of_vit)
    assert part.state == UNDECIDED and "bound >= 1 %; incomplete: 8 of 10" in sentence(part)
    assert advice(part) == f"run the audit again to compute the missing results: {run.manifest.command}"
    hostile = make(tmp_path / "hostile", found, command="robustkit audit vit.pth; rm -r .")
    said = advice(verdict(hostile, "top1 under pgd >= 0.01", more=of_vit))
    assert "; rm" not in said and "its command is hidden because run.json records it in a form" in said
    assert verdict(run, "n under pgd >= 8", more=of_vit).state == PASS
    assert "incomplete: no records" in verdict(run, "no findings", more="checkpoint = 'late'").reason
    beyond = make(tmp_path / "beyond", {"vit": {PGD: [1]}}, claims={PGD: {"norm": "linf", "eps": 0.5 / 255}})
    assert "doubt: exceeds eps" in sentence(verdict(beyond, "top1 under pgd >= 0.01"))
    manifest = beyond.manifest
    unprintable = Finding.of("data/unprintable-names", line="left out 9 images whose names are not printable")
    reported = ["layout folders: 1 images", str(unprintable)]
    data = replace(manifest.data, notes=tuple(reported))
    beyond.write_manifest(replace(manifest, claims={}, data=data))  # which decide nothing
    assert verdict(beyond, "no findings").reason == f"1 finding: data: {unprintable}"
    left_out = make(tmp_path / "left", {"vit": {"clean": [1]}}, corrupted={"left_out": {"corruption(fog)": "no fog"}})
    assert verdict(left_out, "no findings").state == FAIL


def test_globs_name_checkpoints_and_a_name_comes_before_a_glob(tmp_path: Path) -> None:
    names = ("vit-a", "vit-b", "vit-[ab]", "net")
    run = make(tmp_path / "run", {name: {"clean": [1] * 5} for name in names})

    def judged(pattern: str) -> list[str]:
        found = verdicts(run, "no findings", more=f"checkpoint = '{pattern}'").verdicts
        return [verdict.checkpoint for verdict in found]

    assert judged("vit-?") == ["vit-a", "vit-b"]
    assert judged("vit-[ab]") == ["vit-[ab]"]
    assert judged("*") == list(names)


def test_undecided_passes_where_it_may_but_never_what_was_not_measured(run: Run) -> None:
    text = "undecided = 'pass'\n[[rule]]\nrequire = 'top1 under {} >= 0.55 with 95 % confidence'\n"
    assert judge(parse_policy(text.format("clean"), "p"), run).passed
    assert not judge(parse_policy(text.format("clean").partition("\n")[2], "p"), run).passed
    assert not judge(parse_policy(text.format("spsa"), "p"), run).passed
    assert verdicts(run, "top1 under clean >= 1", more="severity = 'warning'").passed
