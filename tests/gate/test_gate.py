"""The gate: verdicts worked out by hand on small runs, what CI servers are told, exit codes, and drafted policies."""

from __future__ import annotations

import json
import math
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree as Tree

import numpy as np
import pyarrow as pa
import pytest
from places import ROOT
from sealing import seal

import robustkit
from robustkit.cli import app as cli
from robustkit.common.intervals import wilson
from robustkit.errors import NothingEvaluated, ProtocolError
from robustkit.gate.draft import draft
from robustkit.gate.measured import Figure, figure_of
from robustkit.gate.output import as_json, figure_text, github_lines, junit, markdown, sentence
from robustkit.gate.pattern import Wanted
from robustkit.gate.policy import parse_policy
from robustkit.gate.statements import Change, Value
from robustkit.gate.verdicts import FAIL, PASS, UNDECIDED, Outcome, Verdict, decide, judge
from robustkit.results.paired import unseen
from robustkit.results.run import Run

PGD = "pgd(eps=1/255,steps=20)"
NASTY = "a\"b'<img src=x onerror=alert(1)>]]>&|`*_[l](http://x)\x00\x1b[31m\n\u202e" + "x" * 300
Outcomes = Mapping[str, Sequence[Any]]


def make(path: Path, found: Mapping[str, Outcomes], nll: Outcomes | None = None, **changes: Any) -> Run:
    """A run of these checkpoints: by condition, whether each sample was right; `nll` by condition."""
    conditions = list(dict.fromkeys(condition for own in found.values() for condition in own))
    n = max((len(values) for own in found.values() for values in own.values()), default=0)
    size = math.gcd(*(len(values) for own in found.values() for values in own.values())) or 1  # whole shards
    deciding = {"seed": 0, "protocol": "standard@1:0", "data digest": "d1", "dtype": "float32", "compile": False}
    deciding |= changes.pop("deciding", {})
    manifest: dict[str, Any] = {
        "checkpoints": [
            {"name": name, "spec": f"{name}.pth", "sha256": f"{place:064d}", "arch": "vit", "attention": "quest"}
            | {"preprocessing": {"input_size": [224, 224], "std": [0.5] * 3}, "weights": "bare"}
            for place, name in enumerate(found)
        ],
        "conditions": conditions,
        "protocol": {"tag": deciding["protocol"], "name": "standard", "task": "classification", "space": "pixels"},
        "data": {"name": "few", "root": "val", "layout": "folders", "n": n, "classes": 3, "digest": "d1"},
        "deciding": deciding,
        "seed": 0,
        "claims": {PGD: {"norm": "linf", "eps": 1 / 255, "early_stop": False}},
        "bad_images": [],
        "shard_size": size,
        "arguments": {"data_dir": "val", "limit": 30, "model": {"num_classes": 3, "mean": [0.5, 0.5, 0.5]}},
    } | changes
    run = Run(path)
    run.write_manifest(json.loads(json.dumps(manifest)))
    for name, own in found.items():
        for condition, right in own.items():
            count, reach = len(right), 1 / 255 if condition == PGD else 0.0
            columns = {
                "sample_id": [f"{place:03d}.png" for place in range(count)],
                "label": [0] * count,
                "prediction": [0] * count,
                "correct": [bool(value) for value in right],
                "top5": [True] * count,
                "nll": [float(value) for value in (nll or {}).get(condition, [0.5] * count)],
                "confidence": [0.9] * count,
                "linf": [reach] * count,
                "l2": [reach] * count,
                "broken_by": pa.nulls(count, pa.string()),
                "error": pa.nulls(count, pa.string()),
            }
            table = pa.table(columns)
            for start in range(0, count, size):
                run.write_shard(run.shard_path(name, condition, start // size), table.slice(start, size))
    return seal(run)


def verdicts(run: Run, *rules: str, baseline: Run | None = None, more: str = "") -> Outcome:
    text = "".join(f"[[rule]]\nrequire = '''{rule}'''\n{more}\n" for rule in rules)
    return judge(parse_policy(text, "p.toml"), run, baseline)


def verdict(run: Run, rule: str, baseline: Run | None = None, more: str = "") -> Verdict:
    (found,) = verdicts(run, rule, baseline=baseline, more=more).verdicts
    return found


def right(hits: int, n: int) -> list[int]:
    return [1] * hits + [0] * (n - hits)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """60 of 100 right clean, 30 under PGD, 9 under FGSM of two radii; losses 0, 1, 0, 1, …"""
    found = {"clean": right(60, 100), PGD: right(30, 100), "fgsm(eps=1/255)": right(9, 100)}
    found["fgsm(eps=2/255)"] = right(9, 100)
    return make(tmp_path_factory.mktemp("gate") / "run", {"vit": found}, {"clean": [0, 1] * 50})


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
        ("no flags", PASS),
        # Wilson's interval of 60 in 100 is [0.5020, 0.6906].
        ("top1 under clean >= 0.50 with 95 % confidence", PASS),
        ("top1 under clean >= 0.51 with 95 % confidence", UNDECIDED),
        ("top1 under clean >= 0.69 with 95 % confidence", UNDECIDED),
        ("top1 under clean >= 0.70 with 95 % confidence", FAIL),
        ("top1 under clean <= 0.70 with 95 % confidence", PASS),
        ("top1 under clean <= 0.69 with 95 % confidence", UNDECIDED),
        ("top1 under clean <= 0.50 with 95 % confidence", FAIL),
        ("linf_max under pgd <= 1 with 95 % confidence", UNDECIDED),
        ("top1 under spsa(eps=1/255) >= 0", UNDECIDED),
        ("mce <= 1", UNDECIDED),
        ("drop against baseline <= 1", UNDECIDED),
    ],
)
def test_every_kind_of_rule_passes_fails_or_cannot_tell(run: Run, rule: str, state: str) -> None:
    assert verdict(run, rule).state == state


@pytest.mark.parametrize("bound", [0.51, 0.55, 0.65, 0.69])
def test_the_samples_needed_are_the_fewest_whose_interval_leaves_the_bound(run: Run, bound: float) -> None:
    found = verdict(run, f"top1 under clean >= {bound} with 95 % confidence")
    needed = found.needed or 0
    assert f"about {needed} samples would tell" in found.reason

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
    assert decide(Value("nll", Wanted.of("clean"), ">=", 0.45, True), uneven, "nll")[2] == 400
    assert decide(Value("nll", Wanted.of("clean"), "<=", 0.6, True), uneven, "nll")[2] == 900
    equal = verdict(run, "nll under clean <= 0.5 with 95 % confidence")
    assert (equal.state, equal.needed) == (UNDECIDED, None) and "no number of samples would tell" in equal.reason
    assert verdict(run, "nll under clean <= 0.7 with 95 % confidence").state == PASS
    assert verdict(run, "nll under clean <= 0.3 with 95 % confidence").state == FAIL


def test_what_is_no_number_fails_and_never_passes() -> None:
    for value in (math.nan, math.inf, -math.inf):
        for compare in (">=", "<="):
            for sure in (False, True):
                found = decide(Value("nll", Wanted.of("clean"), compare, 0.0, sure), Figure(value, 9, 0.0, 0.0), "nll")
                assert found == (FAIL, f"{value} is no figure to compare", None)


def test_a_condition_that_fits_twice_is_refused_unless_one_is_meant_exactly(tmp_path: Path, run: Run) -> None:
    message = (
        r"^p\.toml: line 2, column 14: fgsm is ambiguous: the run has fgsm\(eps=1/255\) and fgsm\(eps=2/255\); "
        "write one of them in full$"
    )
    for rule in ("top1 under fgsm >= 0", "n under fgsm >= 0"):
        with pytest.raises(ProtocolError, match=message):
            verdict(run, rule)
    twice = {PGD: [1] * 10, "pgd(eps=1/255,steps=20,restarts=2)": [0] * 10}
    both = make(tmp_path / "run", {"vit": twice})
    assert verdict(both, f"top1 under {PGD} >= 1").state == PASS
    assert verdict(both, "top1 under pgd(restarts=2) <= 0").state == PASS


def test_what_was_not_evaluated_cannot_be_told_and_the_command_is_given(run: Run) -> None:
    found = verdict(run, "top1 under spsa(eps=1/255) >= 0.1")
    assert found.reason == (
        "spsa(eps=1/255) was not evaluated; this does: robustkit audit vit.pth --data-dir val "
        "--attacks 'spsa(eps=1/255)' --limit 30 --num-classes 3 --mean '0.5 0.5 0.5' "
        f"--out {shlex.quote(str(run.path))}"
    )
    assert verdict(run, "nll under in-c <= 1").reason.count("--attacks none --corruptions in-c ") == 1
    assert "there is no mce under clean; there are top1" in verdict(run, "mce under clean <= 1").reason
    assert "no such checkpoint in the run; it has vit" in verdict(run, "no flags", more="checkpoint = 'v'").reason


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
        "top1 under pgd(eps=4/255,steps=2) >= 0",
        "mean_error under corruption(contrast) <= 1",
        "rank_correlation under stability(agcam,under=corruption(contrast,severity=3)) >= -1",
        "largest_logit under attention(corruption(contrast,severity=3)) <= 100",
    ],
)
@pytest.mark.usefixtures("one_thread")
def test_the_command_that_is_given_evaluates_it(shapes: Run, monkeypatch: pytest.MonkeyPatch, rule: str) -> None:
    found = verdict(shapes, rule)
    assert found.state == UNDECIDED
    monkeypatch.setattr(sys, "argv", shlex.split(found.reason.partition("this does: ")[2]))
    with pytest.raises(SystemExit) as status:
        cli.main()
    assert status.value.code == 0
    after = verdict(shapes, rule)
    assert after.state == PASS and after.figure is not None and after.figure.n > 0


def test_flags_fail_unless_they_are_excepted_and_are_told_beside_figures(tmp_path: Path) -> None:
    found = {"vit": {"clean": [1] * 10, PGD: [1] * 8}, "late": {"clean": [1] * 10}}
    run = make(tmp_path / "run", found)
    of_vit = "checkpoint = 'vit'"
    assert "1 flag: pgd(eps=1/255,steps=20): incomplete: 8 of 10" in verdict(run, "no flags", more=of_vit).reason
    assert verdict(run, "no flags", more=of_vit).state == FAIL
    assert verdict(run, 'no flags except "incomplete: "', more=of_vit).state == PASS
    assert verdict(run, 'no flags except "else"', more=of_vit).state == FAIL
    assert verdict(run, "no flags under clean", more=of_vit).state == PASS
    assert verdict(run, "no flags under fgsm", more=of_vit).state == UNDECIDED
    part = verdict(run, "top1 under pgd >= 0", more=of_vit)
    assert part.state == UNDECIDED and "bound >= 0; incomplete: 8 of 10" in sentence(part)
    assert verdict(run, "n under pgd >= 8", more=of_vit).state == PASS
    assert "incomplete: no records" in verdict(run, "no flags", more="checkpoint = 'late'").reason
    beyond = make(tmp_path / "beyond", {"vit": {PGD: [1]}}, claims={PGD: {"norm": "linf", "eps": 0.5 / 255}})
    assert "flag: exceeds eps" in sentence(verdict(beyond, "top1 under pgd >= 0"))
    manifest = beyond.manifest
    told = ["layout folders: 1 images", "left out 9 images whose names are not printable text; rename them"]
    beyond.write_manifest(manifest | {"claims": {}, "data": manifest["data"] | {"notes": told}})  # which decide nothing
    assert verdict(beyond, "no flags").reason == f"1 flag: data: {told[1]}"
    left_out = make(tmp_path / "left", {"vit": {"clean": [1]}}, corrupted={"left_out": {"corruption(fog)": "no fog"}})
    assert verdict(left_out, "no flags").state == FAIL


def test_globs_name_checkpoints_and_a_name_comes_before_a_glob(tmp_path: Path) -> None:
    names = ("vit-a", "vit-b", "vit-[ab]", "net")
    run = make(tmp_path / "run", {name: {"clean": [1] * 5} for name in names})

    def judged(pattern: str) -> list[str]:
        found = verdicts(run, "no flags", more=f"checkpoint = '{pattern}'").verdicts
        return [verdict.checkpoint for verdict in found]

    assert judged("vit-?") == ["vit-a", "vit-b"]
    assert judged("vit-[ab]") == ["vit-[ab]"]
    assert judged("*") == list(names)


def test_a_drop_is_paired_and_positive_where_the_run_is_worse(tmp_path: Path) -> None:
    """Of 200 samples 6 get lost and 2 are won: 2 % of drop."""
    before = make(tmp_path / "before", {"vit": {"clean": [1] * 150 + [0] * 50}}, {"clean": [0.5] * 200})
    after = make(
        tmp_path / "after",
        {"vit": {"clean": [0] * 6 + [1] * 144 + [1] * 2 + [0] * 48}},
        {"clean": [0.75, 0.5] * 100},
        checkpoints=[{**before.manifest["checkpoints"][0], "sha256": "other"}],
    )
    rule = "drop in top1 under clean against baseline"
    assert verdict(after, f"{rule} <= 0.02", before).state == PASS
    assert verdict(after, f"{rule} < 0.02", before).state == FAIL
    assert verdict(after, f"{rule} <= 1.9 %", before).state == FAIL
    assert verdict(before, f"{rule} <= -0.02", after).state == PASS
    unsure = verdict(after, f"{rule} <= 0.03 with 95 % confidence", before)
    figure = unsure.figure
    assert figure is not None and unsure.state == UNDECIDED
    error = math.sqrt((8 / 200 - 0.02**2) / 200)
    assert (figure.value, figure.n) == (pytest.approx(0.02), 200)
    assert (figure.low, figure.high) == (
        pytest.approx(0.02 - 1.96 * error, abs=0.005),
        pytest.approx(0.02 + 1.96 * error, abs=0.005),
    )
    assert unsure.needed == math.ceil(200 * ((figure.high - 0.02) / 0.01) ** 2)
    assert verdict(after, f"{rule} <= 0.06 with 95 % confidence", before).state == PASS
    assert verdict(after, f"{rule} <= -0.02 with 95 % confidence", before).state == FAIL
    rises = "rise in nll under clean against baseline"
    assert verdict(after, f"{rises} <= 0.125", before).state == PASS
    assert verdict(after, f"{rises} <= 0.124", before).state == FAIL
    assert verdict(after, f"{rises} <= 0.2 with 95 % confidence", before).state == PASS


def test_few_samples_without_a_change_are_no_proof(tmp_path: Path) -> None:
    before = make(tmp_path / "before", {"vit": {"clean": right(30, 40)}})
    other = [{**before.manifest["checkpoints"][0], "sha256": "other"}]
    after = make(tmp_path / "after", {"vit": {"clean": right(30, 40)}}, checkpoints=other)
    rule = "drop against baseline <= 0.01 with 95 % confidence"
    unsure = verdict(after, rule, before)
    assert unsure.figure is not None and unsure.figure.value == 0
    assert unsure.figure.high == pytest.approx(1 - 0.025 ** (1 / 40))
    assert unsure.figure.low == -unsure.figure.high
    assert unsure.state == UNDECIDED and unsure.needed == math.ceil(math.log(0.025) / math.log(0.99)) == 368
    assert unseen(368) <= 0.01 < unseen(367)
    assert verdict(before, rule, before).state == PASS  # the same weights cannot differ on other samples
    assert verdict(after, "rise in nll under clean against baseline <= 0.1 with 95 % confidence", before).state == (
        UNDECIDED
    )


def test_an_interval_without_width_is_as_wide_as_few_samples_allow(tmp_path: Path) -> None:
    fog = {f"corruption(fog,severity={severity})": [1] * 20 for severity in (1, 2, 3, 4, 5)}
    run = make(tmp_path / "run", {"vit": {"clean": [1] * 20} | fog})
    found = verdict(run, "mean_error of corruption(fog) <= 0.1 with 95 % confidence")
    assert found.state == UNDECIDED and found.figure is not None and found.figure.high == unseen(20) > 0.16
    assert verdict(run, "mean_error of corruption(fog) <= 0.17 with 95 % confidence").state == PASS
    assert "it has no interval" in verdict(run, "nll under clean <= 9 with 95 % confidence").reason
    row = {"value": 0.2, "n": 20, "ci_low": 0.2, "ci_high": 0.2, "flags": []}
    assert figure_of(row | {"metric": "cam_iou"}).high == 0.2 + unseen(20)
    assert math.isnan(figure_of(row | {"metric": "cam_iou_over_control"}).high)  # a difference, not a share


def test_bounds_are_met_within_rounding_and_samples_needed_are_more_than_there_are() -> None:
    clean = Wanted.of("clean")
    assert decide(Value("nll", clean, ">", 0.3), Figure(0.1 + 0.2, 9), "nll")[0] == FAIL
    assert decide(Value("nll", clean, ">=", 0.1 + 0.2), Figure(0.3, 9), "nll")[0] == PASS
    touching = Figure(0.5, 100, 0.4, 0.6)
    assert decide(Value("nll", clean, ">", 0.4, True), touching, "nll")[::2] == (UNDECIDED, 101)
    # However narrow the interval: 368 samples without a change are the fewest that show less than 1 %.
    drop = Change(True, "top1", clean, "<=", 0.01, True)
    assert decide(drop, Figure(0.0, 50, -0.01, 0.02), "top1")[::2] == (UNDECIDED, 368)
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
    assert verdict(after, "drop in top1 under spsa against baseline <= 1", before).state == UNDECIDED


def test_of_conditions_one_that_fails_is_worse_than_one_undecided_and_that_than_one_that_passes(tmp_path: Path) -> None:
    """Of 100 samples none is lost clean, 4 under FGSM and 80 under PGD, where each may be 5."""
    fgsm = "fgsm(eps=1/255)"
    had = {"clean": right(90, 100), fgsm: right(90, 100), PGD: right(90, 100)}
    has = {"clean": right(90, 100), fgsm: right(86, 100), PGD: right(10, 100)}
    before = make(tmp_path / "before", {"vit": had})
    changes: dict[str, Any] = {"checkpoints": [{**before.manifest["checkpoints"][0], "sha256": "other"}]}
    after = make(tmp_path / "after", {"vit": has}, **changes)
    rule = "drop against baseline <= 0.05 with 95 % confidence"
    worst = verdict(after, rule, before)
    assert (worst.state, worst.condition) == (FAIL, PGD)
    assert worst.reason == f"1 of 3 shared conditions fail, the worst: {PGD}"
    milder = make(tmp_path / "milder", {"vit": {name: has[name] for name in ("clean", fgsm)}}, **changes)
    worst = verdict(milder, rule, before)
    assert (worst.state, worst.condition) == (UNDECIDED, fgsm) and not worst.short_of_samples
    assert worst.reason.endswith(f"; 1 of 2 shared conditions cannot tell, the worst: {fgsm}")
    assert worst.reason.startswith(f"conditions of the baseline that were not evaluated here: 1, the first: {PGD}; ")
    other_files = make(tmp_path / "files", {"vit": has | {PGD: had[PGD]}}, corrupted={"digests": {PGD: "x"}}, **changes)
    worst = verdict(other_files, rule, before)  # what was not measured is worse than what was measured too little
    assert (worst.state, worst.condition, worst.short_of_samples) == (UNDECIDED, PGD, False)
    losses = {"clean": [0.0] * 100, fgsm: [math.inf] * 100}  # whose difference is no number, and worse than any
    first = make(tmp_path / "first", {"vit": {"clean": had["clean"], fgsm: had[fgsm]}}, losses)
    then = make(tmp_path / "then", {"vit": {"clean": had["clean"], fgsm: had[fgsm]}}, losses | {"clean": [9.0] * 100})
    worst = verdict(then, "rise in nll against baseline <= 0", first)
    assert (worst.state, worst.condition) == (FAIL, fgsm)


def test_a_change_says_where_the_runs_were_computed_otherwise(tmp_path: Path, run: Run) -> None:
    other = make(tmp_path / "other", {"vit": {"clean": [1] * 100}}, deciding={"dtype": "bfloat16", "compile": True})
    figure = verdict(run, "drop in top1 under clean against baseline <= 1", other).figure
    assert figure is not None and figure.flags == (
        "dtype is bfloat16 in the baseline and float32 here",
        "compile is True in the baseline and False here",
    )


@pytest.mark.parametrize("key", ["protocol", "data digest", "seed"])
def test_runs_that_cannot_be_paired_are_not(tmp_path: Path, run: Run, key: str) -> None:
    other = make(tmp_path / "other", {"vit": {"clean": [1] * 100}}, deciding={key: "7"})
    found = verdict(run, "drop against baseline <= 1", other)
    here = run.manifest["deciding"][key]
    assert (found.state, found.figure) == (UNDECIDED, None)
    assert found.reason == f"the runs cannot be paired: {key} is {here} here and 7 in the baseline; audit both alike"


def test_the_baselines_checkpoint_is_of_the_same_name_or_its_only_one(tmp_path: Path, run: Run) -> None:
    only = make(tmp_path / "only", {"released": {"clean": [1] * 100}})
    found = verdict(run, "drop in top1 under clean against baseline <= 0.4", only)
    assert found.state == PASS and found.figure is not None and found.figure.value == pytest.approx(0.4)
    several = make(tmp_path / "several", {"a": {"clean": [1] * 100}, "b": {"clean": [1] * 100}})
    assert "it has a, b" in verdict(run, "drop against baseline <= 1", several).reason
    same = make(tmp_path / "same", {"a": {"clean": [1] * 100}, "vit": {"clean": right(60, 100)}})
    found = verdict(run, "drop against baseline <= 1", same)
    assert found.figure is not None and found.figure.value == 0
    files = make(tmp_path / "files", {"vit": {"clean": [1] * 100}}, corrupted={"digests": {"clean": "x"}})
    assert "takes other files here" in verdict(run, "drop against baseline <= 1", files).reason


def test_undecided_passes_where_it_may_but_never_what_was_not_measured(run: Run) -> None:
    text = "undecided = 'pass'\n[[rule]]\nrequire = 'top1 under {} >= 0.55 with 95 % confidence'\n"
    assert judge(parse_policy(text.format("clean"), "p"), run).passed
    assert not judge(parse_policy(text.format("clean").partition("\n")[2], "p"), run).passed
    assert not judge(parse_policy(text.format("spsa"), "p"), run).passed
    assert verdicts(run, "top1 under clean >= 1", more="severity = 'warning'").passed


def test_junit_says_what_failed(run: Run) -> None:
    found = verdicts(run, "top1 under clean >= 0.5", "top1 under pgd(eps=1/255) >= 0.35", "mce <= 1")
    assert junit(found, "r").decode() == (
        "<?xml version='1.0' encoding='utf-8'?>\n"
        '<testsuites tests="3" failures="2" errors="0" skipped="0" time="0">\n'
        '  <testsuite name="r" tests="3" failures="2" errors="0" skipped="0" time="0">\n'
        '    <testcase classname="vit" name="top1 under clean &gt;= 0.5" time="0">\n'
        "      <system-out>top1 under clean &gt;= 0.5: 0.6 [0.502, 0.6906], n 100</system-out>\n"
        "    </testcase>\n"
        '    <testcase classname="vit" name="top1 under pgd(eps=1/255) &gt;= 0.35" time="0">\n'
        '      <failure message="top1 under pgd(eps=1/255) &gt;= 0.35: 0.3 [0.2189, 0.3958], n 100 under '
        'pgd(eps=1/255,steps=20), bound &gt;= 0.35" type="fail">vit\n'
        "top1 under pgd(eps=1/255) &gt;= 0.35: 0.3 [0.2189, 0.3958], n 100 under pgd(eps=1/255,steps=20), "
        "bound &gt;= 0.35</failure>\n"
        "    </testcase>\n"
        '    <testcase classname="vit" name="mce &lt;= 1" time="0">\n'
        '      <failure message="mce &lt;= 1: in-c was not evaluated; this does: robustkit audit vit.pth --data-dir '
        "val "
        "--attacks none --corruptions in-c --limit 30 --num-classes 3 --mean '0.5 0.5 0.5' --out "
        f'{run.path}" type="cannot-tell">vit\n'
        "mce &lt;= 1: in-c was not evaluated; this does: robustkit audit vit.pth --data-dir val "
        "--attacks none --corruptions in-c --limit 30 --num-classes 3 --mean '0.5 0.5 0.5' --out "
        f"{run.path}</failure>\n"
        "    </testcase>\n"
        "  </testsuite>\n"
        "</testsuites>\n"
    )


def test_no_name_breaks_or_injects_anything(tmp_path: Path) -> None:
    run = make(tmp_path / "run", {NASTY: {"clean": right(5, 10)}})
    rules = [
        {"require": "top1 under clean >= 0.9", "name": NASTY},
        {"require": "top1 under clean >= 0.9", "name": NASTY},
        {"require": "top1 under clean >= 0.5", "name": "fine"},
        {"require": "top1 under clean >= 90 %", "severity": "warning"},
    ]
    lines = [f"{key} = {json.dumps(value)}" for rule in rules for key, value in [("", ""), *rule.items()]]
    found = judge(parse_policy("\n".join(lines).replace(' = ""', "[[rule]]"), "a,b:c%\r\n.toml"), run)
    suite = Tree.fromstring(junit(found, NASTY))[0]
    cases = suite.findall("testcase")
    assert [case.find("failure") is not None for case in cases] == [True, True, False, False]
    assert [(case.get("name") or "")[-3:] for case in cases[:2]] == ["xxx", "(2)"]
    assert {case.get("classname") for case in cases} == {NASTY.replace("\x00", "\ufffd").replace("\x1b", "\ufffd")}
    assert suite.get("skipped") == "1" and (cases[3][0].get("message") or "").startswith("FAIL: ")
    told = list(github_lines(found))
    assert [line.partition(" ")[0] for line in told] == ["::error", "::error", "::warning"]
    for line in told:
        assert "\n" not in line and "\x1b" not in line and line.count("::") == 2
        assert line.split(" ", 1)[1].startswith("file=a%2Cb%3Ac%25%0D%0A.toml,line=")
        assert len(unquote(line.partition("title=")[2].partition("::")[0])) <= 300
    assert told[2].endswith("::top1 under clean >= 90 %25: 0.5 [0.2366, 0.7634], n 10, bound >= 0.9")
    page = markdown(found, NASTY)
    table = [line for line in page.splitlines() if line.startswith("|")]
    assert len(table) == 6 and all(line.replace("\\|", "").count("|") == 4 for line in table)
    assert "<img" not in page and "[l](" not in page and "\x1b" not in page and "\u202e" not in page
    read = json.loads(as_json(found, NASTY, None))
    assert read["run"] == NASTY and [one["stops"] for one in read["verdicts"]] == [True, True, False, False]
    assert (read["passed"], read["verdicts"][2]["value"], read["verdicts"][2]["n"]) == (False, 0.5, 10)
    assert (read["verdicts"][0]["bound"], read["verdicts"][0]["verdict"]) == (0.9, "fail")
    drafted = judge(parse_policy(draft(run), "p"), run)
    assert drafted.passed and len(drafted.verdicts) == 6


def test_figures_are_told_from_bounds_and_odd_names_survive_in_json(tmp_path: Path) -> None:
    assert figure_text(Figure(0.299996, 9, 0.1, 0.5), 0.3) == "0.299996 [0.1, 0.5], n 9"
    assert figure_text(Figure(0.3, 9), 0.3) == "0.3, n 9"
    odd = parse_policy("[[rule]]\nrequire = 'no flags'", "\udc80.toml")
    assert json.loads(as_json(Outcome(odd), "r", None))["policy"] == "\udc80.toml"


def call(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["robustkit", "check", *map(str, words)])
    with pytest.raises(SystemExit) as status:
        cli.main()
    return int(str(status.value.code))


def test_exit_codes_and_files(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    assert call(monkeypatch, run.path) == 2
    assert "no --policy, and no policy.toml here" in capsys.readouterr().err
    assert call(monkeypatch, run.path, "--init") == 0
    drafted = Path("policy.toml").read_text(encoding="utf-8")
    assert call(monkeypatch, run.path) == 0
    said = capsys.readouterr().out
    assert said.count("\npass ") + 1 == drafted.count("\n[[rule]]") + 1 and "FAIL" not in said
    assert call(monkeypatch, run.path, "--init") == 2
    assert "policy.toml exists and is not overwritten" in capsys.readouterr().err
    assert call(monkeypatch, run.path, "--init", "--policy", "b.toml", "--junit", "b.xml") == 2
    Path("strict.toml").write_text("[[rule]]\nrequire = 'top1 under clean >= 0.7'\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    Path("summary.md").write_text("before\n", encoding="utf-8")
    capsys.readouterr()
    files = ("--junit", "out/robustness.xml", "--json", "out/robustness.json")
    assert call(monkeypatch, run.path, "--policy", "strict.toml", *files) == 1
    told = capsys.readouterr()
    assert "FAIL         vit  top1 under clean >= 0.7: 0.6 [0.502, 0.6906], n 100, bound >= 0.7\n" in told.out
    assert "\n::error file=strict.toml,line=2,title=vit%3A top1 under clean >= 0.7 fails::top1" in told.out
    assert "does not meet strict.toml: 0 pass, 1 fail, 0 cannot tell, of 1 verdicts" in told.err
    summary = Path("summary.md").read_text(encoding="utf-8")
    assert summary.startswith("before\n### RobustKit: run fails strict.toml\n\n0 pass, 1 fail, 0 cannot tell")
    assert "| ❌ fail | vit | top1 under clean &gt;= 0.7: 0.6 \\[0.502, 0.6906\\], n 100, bound" in summary
    assert Tree.parse("out/robustness.xml").getroot().get("failures") == "1"
    assert json.loads(Path("out/robustness.json").read_text("utf-8"))["verdicts"][0]["verdict"] == "fail"
    assert call(monkeypatch, run.path, "--policy", "strict.toml", "--junit", "out") == 2
    assert "--junit out: is a folder" in capsys.readouterr().err
    assert call(monkeypatch, run.path, "--policy", "strict.toml", "--junit", "strict.toml/a.xml") == 2
    assert "choose another file with --junit" in capsys.readouterr().err
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path))
    assert call(monkeypatch, run.path, "--policy", "strict.toml") == 1
    assert f"note: the step summary {tmp_path} cannot be written: Is a directory" in capsys.readouterr().out
    Path("bad.toml").write_text("[[rule]]\nrequire = 'topp1 under clean >= 0.7'\n", encoding="utf-8")
    assert call(monkeypatch, run.path, "--policy", "bad.toml") == 2
    assert "bad.toml: line 2, column 12: unknown metric 'topp1'" in capsys.readouterr().err
    assert call(monkeypatch, tmp_path / "none", "--policy", "strict.toml") == 2
    assert call(monkeypatch, run.path, "--policy", "strict.toml", "--baseline", tmp_path / "none") == 2
    empty = make(tmp_path / "empty", {"vit": {}})
    assert call(monkeypatch, empty.path, "--policy", "strict.toml") == 3
    with pytest.raises(NothingEvaluated, match="there are no results to check"):
        draft(empty)


def test_a_drafted_policy_has_margins_and_passes_at_once(tmp_path: Path) -> None:
    corrupted = {
        f"corruption({name},severity={s})": right(80 - 10 * s, 100)
        for name in ("gaussian_noise", "shot_noise", "impulse_noise", "fog")
        for s in (1, 2, 3, 4, 5)
    }
    found = {"clean": right(90, 100), PGD: right(30, 100), "fgsm(eps=8/255)": right(1, 100)} | corrupted
    run = make(tmp_path / "run", {"vit": found})
    text = draft(run)
    requires = [rule.require for rule in parse_policy(text, "p").rules]
    low = math.floor(100 * wilson(30, 100)[0]) / 100
    assert requires[:2] == ['protocol == "standard@1:0"', 'data digest == "d1"']
    assert {"n under clean >= 100", 'attention == "quest"', f"top1 under {PGD} >= {low:.2f}"} <= set(requires)
    assert "no bound above 0" in text and not any("8/255" in rule for rule in requires)
    means = [rule.split(" <= ")[0] for rule in requires if rule.startswith("mean_error")]
    assert sorted(means) == ["mean_error under corruption(fog)", "mean_error under noise"]
    assert not any("severity" in rule for rule in requires)
    bound = next(float(rule.split(" <= ")[1]) for rule in requires if "noise" in rule)
    assert 0.5 < bound < 0.62  # the mean error is 0.5
    assert judge(parse_policy(text, "p"), run).passed
    partial = make(tmp_path / "partial", {"vit": found, "late": {"clean": right(90, 100)}})
    assert judge(parse_policy(draft(partial), "p"), partial).passed
    worse = {condition: right(sum(values) * 6 // 10, 100) for condition, values in found.items()}
    assert not judge(parse_policy(text, "p"), make(tmp_path / "worse", {"vit": worse})).passed
    assert np.all([line.startswith("#") for line in text.split("# Against a release")[1].splitlines()[1:]])


@pytest.mark.parametrize("name", ["a\x7fb", 'a"\x7fb', 'it\'s "a"', "a\\b", "a\x85\u2028b"])
def test_a_draft_names_any_checkpoint(tmp_path: Path, name: str) -> None:
    run = make(tmp_path / "run", {name: {"clean": right(9, 10)}})
    drafted = parse_policy(draft(run), "p")
    assert {rule.checkpoint for rule in drafted.rules} == {"*", name} and judge(drafted, run).passed


def test_the_workflow_is_valid_and_names_what_it_keeps() -> None:
    yaml = pytest.importorskip("yaml")
    text = (ROOT / "docs" / "ci" / "robustness.yml").read_text(encoding="utf-8")
    flow = yaml.safe_load(text)
    said = "\n".join(step.get("run", "") for step in flow["jobs"]["robustness"]["steps"])
    for name, value in flow["env"].items():
        said = said.replace(f"${name}", value)
    commands = [line for line in said.replace("\\\n", " ").splitlines() if "bin/robustkit " in line]
    assert len(commands) == 3 and "--junit robustness.xml" in commands[-1]
    for command in commands:
        name, *words = shlex.split(command.partition("bin/robustkit ")[2])
        with cli.cli.commands[name].make_context(name, words):  # an option that is not there is refused
            pass
    assert "pip install robustkit" not in text + (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
