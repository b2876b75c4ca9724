"""Policies drafted from a run: what they pin, with which margins, and that the run passes them."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from gate_runs import PGD, make, right, verdicts

from robustkit.cli import app as cli
from robustkit.common.finding import Finding
from robustkit.common.intervals import wilson
from robustkit.errors import NothingEvaluated
from robustkit.gate.output import advice
from robustkit.gate.policy import parse_policy
from robustkit.gate.verdicts import judge
from robustkit.report.run import Run
from robustkit.slices.draft import draft, is_of_setup

NASTY = "a\"b'<img src=x onerror=alert(1)>]]>&|`*_[l](http://x)\x00\x1b[31m\n\u202e" + "x" * 300


def call(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["robustkit", "check", *map(str, words)])
    with pytest.raises(SystemExit) as status:
        cli.main()
    return int(str(status.value.code))


def test_the_command_writes_a_policy_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run = make(tmp_path / "run", {"vit": {"clean": right(60, 100), PGD: right(30, 100)}})
    for every, name in (([], "policy.toml"), (["--all", "--policy", "all.toml"], "all.toml")):
        assert call(monkeypatch, run.path, "--init", *every) == 0
        text = Path(name).read_text(encoding="utf-8")
        assert text == draft(run, every=bool(every))
        rules = text.count("\n[[rule]]")
        then = f"review them, then run: robustkit check {run.path} --policy {name}"
        assert capsys.readouterr().out == f"{name}: {rules} rules; {then}\n"
        assert call(monkeypatch, run.path, "--init", *every) == 2 and Path(name).read_text("utf-8") == text
        assert f"{name} exists and is not overwritten; choose another file" in capsys.readouterr().err
    assert call(monkeypatch, run.path) == 0 and ", 0 fail, 0 inconclusive, of " in capsys.readouterr().out
    others = ("--junit", "b.xml", "--baseline", run.path, "--details")
    assert call(monkeypatch, run.path, "--init", "--policy", "b.toml", *others) == 2
    wrong = "--junit, --baseline, --details: --init writes a policy and checks nothing; leave out one of them"
    assert wrong in capsys.readouterr().err
    assert not Path("b.toml").exists() and not Path("b.xml").exists()


def test_a_run_without_results_has_no_draft(tmp_path: Path) -> None:
    with pytest.raises(NothingEvaluated, match="there are no results to check"):
        draft(make(tmp_path / "empty", {"vit": {}}))


def test_what_was_guessed_is_not_accepted() -> None:
    codes = ("setup/unchecked", "labels/other-order", "setup/elsewhere", "setup/other-attention", "attack/exceeds-eps")
    assert [is_of_setup(Finding(code, "")) for code in codes] == [True, True, False, False, False]


def test_a_drafted_policy_has_margins_and_passes_at_once(tmp_path: Path) -> None:
    corrupted = {
        f"corruption({name},severity={s})": right(80 - 10 * s, 100)
        for name in ("gaussian_noise", "shot_noise", "impulse_noise", "fog")
        for s in (1, 2, 3, 4, 5)
    }
    found = {"clean": right(90, 100), PGD: right(30, 100), "fgsm(eps=8/255)": right(1, 100)} | corrupted
    run = make(tmp_path / "run", {"vit": found})
    text = draft(run, every=True)
    requires = [rule.require for rule in parse_policy(text, "p").rules]
    low = math.floor(100 * wilson(30, 100)[0]) / 100
    assert requires[:2] == ['protocol == "standard@1:0"', 'data digest == "d1"']
    assert {"n under clean >= 100", 'attention == "quest"', f"top1 under {PGD} >= {low:.2f}"} <= set(requires)
    assert "no rule, since every run would meet it" in text and not any("8/255" in rule for rule in requires)
    means = [rule.split(" <= ")[0] for rule in requires if rule.startswith("mean_error")]
    assert sorted(means) == ["mean_error under corruption(fog)", "mean_error under noise"]
    assert not any("severity" in rule for rule in requires)
    bound = next(float(rule.split(" <= ")[1]) for rule in requires if "noise" in rule)
    assert 0.5 < bound < 0.62  # the mean error is 0.5
    assert judge(parse_policy(text, "p"), run).passed
    assert "unfinished" not in text
    worse = {condition: right(sum(values) * 6 // 10, 100) for condition, values in found.items()}
    assert not judge(parse_policy(text, "p"), make(tmp_path / "worse", {"vit": worse})).passed
    assert np.all([line.startswith("#") for line in text.split("# To compare with a release")[1].splitlines()[1:]])


def test_the_draft_of_an_unfinished_run_says_so_and_does_not_accept_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = "robustkit audit vit.pth --data-dir 'my images'"
    found = {"vit": {"clean": right(90, 100), PGD: right(30, 100)}, "late": {"clean": right(90, 100)}}
    partial = make(tmp_path / "partial", found, command=command)
    said = f"unfinished: 1 of 4 units are missing; to complete it: {command}"
    for every in (False, True):
        text = draft(partial, every)
        assert f"\n# This run is {said}\n" in text and "incomplete" not in text
        (stopped,) = filter(None, map(advice, judge(parse_policy(text, "p"), partial).verdicts))
        assert stopped == (
            f"run the audit again to compute the missing results: {command}; then check the remaining findings"
        )
    for words in (["--init"], []):
        assert call(monkeypatch, partial.path, *words) == (0 if words else 1)
        assert f"⚑ {partial.path}: {said}\n" in capsys.readouterr().out


def test_a_draft_pins_how_images_are_shown(tmp_path: Path) -> None:
    def entry(name: str, **shown: object) -> dict[str, object]:
        windows = {key: shown.pop(key) for key in ("windows", "preprocessing_source") if key in shown}
        return {"name": name, "preprocessing": shown} | windows

    def rules(name: str, *entries: dict[str, object]) -> tuple[Run, dict[str, str]]:
        found = {str(entry["name"]): {"clean": right(9, 10)} for entry in entries}
        run = make(tmp_path / name, found, checkpoints=entries)
        every, short = (parse_policy(draft(run, all_of_them), "p") for all_of_them in (True, False))
        shown = [rule for rule in short.rules if rule.require.startswith("preprocessing")]
        reported = {rule.checkpoint: rule.require.partition(" == ")[2].strip('"') for rule in shown}
        assert judge(short, run).passed and judge(every, run).passed
        assert sum("preprocessing ==" in rule.require for rule in every.rules) == len(entries)
        return run, reported

    usual = "224x224 pixels, bicubic, crop 0.875, center, mean 0.5, std 0.5"
    mean = [0.48145466, 0.4578275, 0.40821073]
    released, reported = rules("released", entry("a"), entry("b"))
    assert reported == {"*": usual}
    policy = parse_policy(draft(released), "p")
    source = {"mean": "option", "crop_pct": "architecture"}
    apart, reported = rules("apart", entry("a"), entry("b", mean=mean, crop_pct=0.9, preprocessing_source=source))
    clip = "224x224 pixels, bicubic, crop 0.9, center, mean 0.48145466 0.4578275 0.40821073, std 0.5"
    assert reported == {"a": usual, "b": clip}
    (found,) = (verdict for verdict in judge(policy, apart).verdicts if verdict.state != "pass")
    assert (found.checkpoint, found.state) == ("b", "FAIL") and "(--mean, --std, --crop-pct" in advice(found)
    assert found.reason == (
        "preprocessing is crop 0.9 (assumed from timm's configuration of vit), expected crop 0.875; "
        "mean 0.48145466 0.4578275 0.40821073 (by the user), expected mean 0.5"
    )
    few, many = "224x224  pixels,bicubic", f"{usual}, more"
    for expected, said in ((few, "std 0.5, expected nothing"), (many, "preprocessing is nothing, expected more")):
        (verdict,) = verdicts(released, f"preprocessing == '{expected}'", more="checkpoint = 'a'").verdicts
        assert verdict.state == "FAIL" and verdict.reason.endswith(said)

    windows = {"size": [64, 64], "stride": [32, 48], "short_side": None, "batch": 16, "resize": "ade20k"}
    _, reported = rules("scenes", entry("a", windows=windows), entry("b", windows=None))
    assert reported == {
        "a": "windows 64x64 every 32x48, resize ade20k, mean 0.5, std 0.5",
        "b": "whole images at their own size, mean 0.5, std 0.5",
    }


@pytest.mark.parametrize("name", [NASTY, "a\x7fb", 'a"\x7fb', 'it\'s "a"', "a\\b", "a\x85\u2028b"])
def test_a_draft_names_any_checkpoint(tmp_path: Path, name: str) -> None:
    run = make(tmp_path / "run", {name: {"clean": right(9, 10)}})
    drafted = parse_policy(draft(run, every=True), "p")
    assert {rule.checkpoint for rule in drafted.rules} == {"*", name} and judge(drafted, run).passed
    short = judge(parse_policy(draft(run), "p"), run)
    assert short.passed and len(short.verdicts) == 9


@pytest.mark.slow
def test_a_short_draft_has_what_matters_and_fails_for_that_reason(tmp_path: Path) -> None:
    fgsm, far = "fgsm(eps=1/255)", ("fgsm(eps=4/255)", "pgd(eps=4/255,steps=20)")
    noise = [f"corruption(gaussian_noise,severity={severity})" for severity in (1, 2, 3, 4, 5)]

    def run_of(name: str, **hits: dict[str, int]) -> Run:
        return make(tmp_path / name, {key: {t: right(k, 100) for t, k in own.items()} for key, own in hits.items()})

    shown = {"clean": 90, fgsm: 60, PGD: 50, far[0]: 30, far[1]: 10} | dict.fromkeys(noise, 70)
    policy = parse_policy(draft(run_of("one", vit=shown)), "p")
    rules = [rule.require.rpartition(" ")[0] for rule in policy.rules]
    assert rules[2:] == [
        'settings == "seed 0, dtype float32, engine',
        *(
            "attention ==",
            "arch ==",
            'preprocessing == "224x224 pixels, bicubic, crop 0.875, center, mean 0.5, std',
            "no findings except",  # that samples look grouped, since those that are right come first
        ),
        *("n under clean >=", "top1 under clean >=", f"top1 under {PGD} >="),
        *(f"top1 under {far[1]} >=", "mean_error under corruption(gaussian_noise) <="),
    ]
    assert all(rule.checkpoint == "*" for rule in policy.rules)
    worse = ((PGD, 5, f"top1 under {PGD}"), ("clean", 70, "top1 under clean"), (noise[0], 5, "mean_error"))
    for text, hits, broken in worse:
        outcome = judge(policy, run_of(f"worse {broken}".replace("/", "-"), vit=shown | {text: hits}))
        failed = [verdict for verdict in outcome.verdicts if verdict.state != "pass"]
        assert [verdict.rule.require.startswith(broken) for verdict in failed] == [True], broken

    # Of several checkpoints the weakest sets the bound; one that is clearly better has its own.
    several = run_of("several", weak=shown, alike=shown | {"clean": 88}, strong=shown | {PGD: 80, fgsm: 85})
    text = draft(several)
    policy = parse_policy(text, "p")
    under = {(rule.require.rpartition(" ")[0], rule.checkpoint): rule for rule in policy.rules}
    assert [key for key in under if PGD in key[0]] == [
        (f"top1 under {PGD} >=", "*"),
        (f"top1 under {PGD} >=", "strong"),
    ]
    assert judge(policy, several).passed and "clean top-1: alike, 0.88" in text
    fallen = run_of("fallen", weak=shown, alike=shown, strong=shown)
    (failed,) = (verdict for verdict in judge(policy, fallen).verdicts if verdict.state != "pass")
    assert (failed.checkpoint, failed.condition) == ("strong", PGD)
