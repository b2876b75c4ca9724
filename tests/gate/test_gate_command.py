"""The command `check`: JUnit, names that mean harm, exit codes, the workflow."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from functools import partial
from pathlib import Path
from urllib.parse import unquote
from xml.etree import ElementTree as Tree

import pytest
from gate_runs import make, right, verdicts
from places import ROOT
from small_audit import audit, furnish

import robustkit
from robustkit.cli import app as cli
from robustkit.common.figure import Figure
from robustkit.errors import ProtocolError, RobustkitError, RunError
from robustkit.gate.output import advice, by_urgency, figure_text, github_lines, junit, markdown, sentence, to_json
from robustkit.gate.policy import parse_policy
from robustkit.gate.verdicts import Outcome, judge
from robustkit.pipeline.request import ClassificationRequest, SegmentationRequest
from robustkit.report.run import Run

NASTY = "a\"b'<img src=x onerror=alert(1)>]]>&|`*_[l](http://x)\x00\x1b[31m\n\u202e" + "x" * 300


def test_junit_says_what_failed(run: Run) -> None:
    found = verdicts(run, "top1 under clean >= 0.5", "top1 under pgd(eps=1/255) >= 0.35", "mce <= 1")
    assert junit(found, "r").decode() == (
        "<?xml version='1.0' encoding='utf-8'?>\n"
        '<testsuites tests="3" failures="2" errors="0" skipped="0" time="0">\n'
        '  <testsuite name="r" tests="3" failures="2" errors="0" skipped="0" time="0">\n'
        '    <testcase classname="vit" name="top1 under clean &gt;= 0.5" time="0">\n'
        "      <system-out>top1 under clean &gt;= 0.5: 60.0 % [50.2, 69.1], n 100</system-out>\n"
        "    </testcase>\n"
        '    <testcase classname="vit" name="top1 under pgd(eps=1/255) &gt;= 0.35" time="0">\n'
        '      <failure message="top1 under pgd(eps=1/255) &gt;= 0.35: 30.0 % [21.9, 39.6], n 100 under '
        'pgd(eps=1/255,steps=20), bound &gt;= 35 %, missed by 5.0 points" type="fail">vit\n'
        "top1 under pgd(eps=1/255) &gt;= 0.35: 30.0 % [21.9, 39.6], n 100 under pgd(eps=1/255,steps=20), "
        "bound &gt;= 35 %, missed by 5.0 points\n"
        "the interval contains the bound, so the miss is not significant: audit more samples, or see what "
        "changed with "
        "robustkit compare RELEASED RUN</failure>\n"
        "    </testcase>\n"
        '    <testcase classname="vit" name="mce &lt;= 1" time="0">\n'
        '      <failure message="mce &lt;= 1: in-c was not evaluated; evaluate it with: robustkit audit vit.pth '
        "--data-dir val "
        "--limit 30 --num-classes 3 --mean '0.5 0.5 0.5' --corruptions in-c --out "
        f'{run.path}" type="inconclusive">vit\n'
        "mce &lt;= 1: in-c was not evaluated; evaluate it with: robustkit audit vit.pth --data-dir val "
        "--limit 30 --num-classes 3 --mean '0.5 0.5 0.5' --corruptions in-c --out "
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
    reported = list(github_lines(found))
    assert [line.partition(" ")[0] for line in reported] == ["::error", "::error", "::warning"]
    for line in reported:
        assert "\n" not in line and "\x1b" not in line and line.count("::") == 2
        assert line.split(" ", 1)[1].startswith("file=a%2Cb%3Ac%25%0D%0A.toml,line=")
        assert len(unquote(line.partition("title=")[2].partition("::")[0])) <= 300
    assert reported[2].endswith(
        "::top1 under clean >= 90 %25: 50.0 %25 [23.7, 76.3], n 10, bound >= 90 %25, missed by 40.0 points"
    )
    page = markdown(found, NASTY)
    failed, passed = page.split("<details><summary>1 passed</summary>\n\n")
    for text, rows, bars in ((failed, 5, 5), (passed, 3, 3)):
        table = [line for line in text.splitlines() if line.startswith("|")]
        assert len(table) == rows and all(line.replace("\\|", "").count("|") == bars for line in table)
    assert "<img" not in page and "[l](" not in page and "\x1b" not in page and "\u202e" not in page
    read = json.loads(to_json(found, NASTY, None))
    assert read["run"] == NASTY and [one["stops"] for one in read["verdicts"]] == [True, True, False, False]
    assert (read["passed"], read["verdicts"][2]["value"], read["verdicts"][2]["n"]) == (False, 0.5, 10)
    assert (read["verdicts"][0]["bound"], read["verdicts"][0]["verdict"]) == (0.9, "fail")


def test_figures_are_told_from_bounds_and_odd_names_survive_in_json(tmp_path: Path) -> None:
    def shown(rule: str, value: float, *ends: float) -> str:
        statement = parse_policy(f"[[rule]]\nrequire = '{rule}'", "p").rules[0].statement
        return figure_text(Figure(value, 9, *ends), statement)

    assert shown("top1 under clean >= 30 %", 0.299996, 0.1, 0.5) == "29.9996 % [10.0, 50.0]"
    assert shown("top1 under clean >= 30 %", 0.3) == "30.0 %"
    assert shown("nll under clean <= 0.3", 0.299996, 0.1, 0.5) == "0.299996 [0.1, 0.5]"
    assert shown("drop in top1 against baseline <= 0.02", 0.12, 0.02037, 0.2152) == "12.0 points [2.0, 21.5]"
    assert shown("drop against baseline <= 2 %", -0.0312) == "−3.1 points"
    assert shown("churn under clean against baseline <= 0.1", 0.25) == "25.0 %"
    assert shown("rise in nll against baseline <= 0.1", 0.25) == "0.25"
    assert figure_text(Figure(0.299996, 9, 0.1, 0.5)) == "0.3 [0.1, 0.5]"
    odd = parse_policy("[[rule]]\nrequire = 'no findings'", "\udc80.toml")
    assert json.loads(to_json(Outcome(odd), "r", None))["policy"] == "\udc80.toml"


def call(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    monkeypatch.setattr(sys, "argv", ["robustkit", "check", *map(str, words)])
    with pytest.raises(SystemExit) as status:
        cli.main()
    return int(str(status.value.code))


def test_no_file_is_written_over_the_policy_or_another(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rules, twice = tmp_path / "policy.toml", tmp_path / "twice.json"
    rules.write_text("[[rule]]\nrequire = 'top1 under clean >= 0.5'\n")
    monkeypatch.chdir(tmp_path)
    for option in ("--junit", "--json"):
        assert call(monkeypatch, run.path, option, rules) == 2  # found without --policy, by another path
        assert f"{option} {rules}: is also the file of --policy; give another one" in capsys.readouterr().err
    assert call(monkeypatch, run.path, "--junit", twice, "--json", "twice.json") == 2
    assert "--json twice.json: is also the file of --junit" in capsys.readouterr().err
    kept = run.path / "run.json"
    before = kept.read_bytes()
    assert call(monkeypatch, run.path, "--json", kept) == 2 and kept.read_bytes() == before
    assert f"--json {kept}: is also the file of {run.path}; give another one" in capsys.readouterr().err
    assert not twice.exists() and rules.read_text().startswith("[[rule]]")


def test_exit_codes_and_files(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    assert call(monkeypatch, run.path) == 2
    assert "no --policy, and no policy.toml here" in capsys.readouterr().err
    fine = ("top1 under clean >= 0.5", "n under clean >= 100", "no findings", "arch == 'vit'")
    Path("policy.toml").write_text("".join(f'[[rule]]\nrequire = "{rule}"\n' for rule in fine), encoding="utf-8")
    assert call(monkeypatch, run.path) == 0
    assert capsys.readouterr().out.startswith("pass: 4 of 4; --details lists them\n")
    assert call(monkeypatch, run.path, "--details") == 0
    said = capsys.readouterr().out
    rules = said.partition("────\n")[2].partition("\n\n")[0].splitlines()
    assert rules[0].startswith("pass ") and sum(" == " in line or " >= " in line for line in rules) == 3
    assert "no findings" in said and "FAIL" not in said and "--details" not in said
    assert call(monkeypatch, run.path, "--all") == 2
    assert "--all: only for a draft; give --init" in capsys.readouterr().err
    Path("strict.toml").write_text("[[rule]]\nrequire = 'top1 under clean >= 0.7'\n", encoding="utf-8")
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(tmp_path / "summary.md"))
    Path("summary.md").write_text("before\n", encoding="utf-8")
    capsys.readouterr()
    files = ("--junit", "out/robustness.xml", "--json", "out/robustness.json")
    assert call(monkeypatch, run.path, "--policy", "strict.toml", *files) == 1
    reported = capsys.readouterr()
    assert "FAIL     vit         top1 under clean >= 0.7  60.0 % [50.2, 69.1]  100  10.0 points\n" in reported.out
    assert "\n         → see what changed with robustkit compare RELEASED RUN\n" in reported.out
    assert "\n::error file=strict.toml,line=2,title=vit%3A top1 under clean >= 0.7 fails::top1" in reported.out
    assert "does not meet strict.toml: 0 pass, 1 fail, 0 inconclusive, of 1 verdicts" in reported.err
    summary = Path("summary.md").read_text(encoding="utf-8")
    assert summary.startswith("before\n### RobustKit: run fails strict.toml\n\n0 pass, 1 fail, 0 inconclusive")
    assert "| ❌ fail | vit | top1 under clean &gt;= 0.7: 60.0 % \\[50.2, 69.1\\], n 100, bound" in summary
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
    assert call(monkeypatch, run.path.parent, "--policy", "strict.toml") == 2
    assert "but holds some: run; give one of them, such as " in capsys.readouterr().err
    assert call(monkeypatch, run.path, "--policy", "strict.toml", "--baseline", tmp_path / "none") == 2
    empty = make(tmp_path / "empty", {"vit": {}})
    assert call(monkeypatch, empty.path, "--policy", "strict.toml") == 3


def test_a_check_without_a_verdict_leaves_no_older_one(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is wrong: words, policy, run, or baseline."""
    monkeypatch.chdir(tmp_path)
    Path("policy.toml").write_text("[[rule]]\nrequire = 'top1 under clean >= 0.5'\n", encoding="utf-8")
    Path("bad.toml").write_text("[[rule]]\nrequire = 'top1 under clean >= 0'\n", encoding="utf-8")
    names = {"--junit": "a.xml", "--json": "a.json"}
    files = [word for pair in names.items() for word in pair]
    empty = make(tmp_path / "empty", {"vit": {}})
    for words, status in (
        (["none"], 2),
        ([run.path, "--policy", "bad.toml"], 2),
        ([run.path, "--policy", "none.toml"], 2),
        ([run.path, "--baseline", "none"], 2),
        ([run.path, "--bogus"], 2),
        ([run.path, run.path], 2),
        ([empty.path], 3),
    ):
        assert call(monkeypatch, run.path, *files) == 0 and all(map(os.path.exists, names.values()))
        assert call(monkeypatch, *words, *(f"{option}={name}" for option, name in names.items())) == status, words
        assert not any(map(os.path.exists, names.values())), words
    Path("a.json").write_text('{"mine": 1}', encoding="utf-8")  # what no check wrote stays
    assert call(monkeypatch, "none", "--json", "a.json") == 2 and Path("a.json").exists()
    assert call(monkeypatch, run.path, "--json=policy.toml") == 2 and Path("policy.toml").exists()


def test_an_audit_that_was_refused_is_told_by_the_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that is finished is judged with a note, one that is not is an error, until an audit comes to its end."""
    root, out = furnish(tmp_path), tmp_path / "run"
    whole = partial(audit, root, out, attacks="none", setup_check=False)
    policy = parse_policy("[[rule]]\nrequire = 'n under clean >= 1'", "p")
    found = whole()
    assert judge(policy, found).passed and not found.refusal_path.exists()
    for more, said in (({"data_dir": root / "none"}, "none"), ({"seed": 3}, "seed is 0 there and 3 here")):
        with pytest.raises(RobustkitError):
            whole(**more)
        outcome = judge(policy, found)
        assert outcome.passed and len(outcome.notes) == 1 and said in outcome.notes[0]
    record = found.shard_path(found.manifest.names[0], "clean", 0)
    content = record.read_bytes()
    record.unlink()
    with pytest.raises(RunError, match=r"refused, and it is not finished.*seed is 0.*or delete .*refused\.json"):
        judge(policy, found)
    record.write_bytes(content)
    whole()
    assert judge(policy, found).passed and not judge(policy, found).notes
    rules = tmp_path / "policy.toml"
    rules.write_text("[[rule]]\nrequire = 'n under clean >= 1'\n", encoding="utf-8")
    for words in (["--bogus"], ["--eps", "1/255"], ["--limit", "0"], ["--data-dir"]):
        monkeypatch.setattr(
            sys, "argv", ["robustkit", "audit", "net.pth", "--attacks", "none", "--out", str(out), *words]
        )
        with pytest.raises(SystemExit, match="2"):
            cli.main()
        capsys.readouterr()
        assert call(monkeypatch, out, "--policy", rules) == 0
        assert f"note: a later audit into {out} was refused" in " ".join(capsys.readouterr().out.split())
        found.refusal_path.unlink()


def test_a_request_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether or not it is understood, and whether or not its folder is named."""
    monkeypatch.chdir(tmp_path)
    for folder in ("A", "runs/x"):
        make(tmp_path / folder, {"vit": {"clean": [1]}})
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    asked = {"checkpoints": ["x.pth"], "data_dir": "d"}
    for wrong in ({"limit": 0}, {"dtype": "float8"}, {"part": "4/3"}, {"ray": "?"}, {"preset": "huge"}, {"out": " "}):
        for where in ({"out": "A"}, {}):
            with pytest.raises(RobustkitError):
                ClassificationRequest(**{**asked, **where, **wrong})
    for kind in (ClassificationRequest, SegmentationRequest):
        kind(**asked, out="A")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(("bound", "missed"), [(0.55, "5.0 points"), (0.5996, "0.04 points"), (0.5994, "0.1 points")])
def test_a_miss_has_one_decimal_or_what_is_needed(run: Run, bound: float, missed: str) -> None:
    (verdict,) = verdicts(run, f"top1 under clean <= {bound}").verdicts
    assert sentence(verdict).endswith(f", missed by {missed}")


def test_what_fails_comes_first_and_says_what_to_do(run: Run) -> None:
    rules = ["top1 under clean >= 0.5", "mce <= 1", "top1 under clean >= 0.59 with 95 % confidence", "arch == 'resnet'"]
    rules += ["top1 under clean >= 0.9", "n under clean >= 500", "no findings", "attention == 'quest'"]
    found = verdicts(run, *rules)
    urgent, passed = by_urgency(found)
    assert [verdict.rule.require for verdict in urgent] == [rules[k] for k in (3, 4, 5, 1, 2)]
    assert [verdict.rule.require for verdict in passed] == [rules[k] for k in (0, 6, 7)]
    said = {verdict.rule.require: advice(verdict) for verdict in found.verdicts}
    assert said[rules[3]].startswith("audit the intended checkpoint") and not any(said[r.rule.require] for r in passed)
    assert said[rules[4]] == "see what changed with robustkit compare RELEASED RUN"
    assert said[rules[5]] == "audit that many samples (--limit 500)"
    assert sentence(urgent[2]) == "n under clean >= 500: n is 100, bound >= 500, missed by 400"
    assert (
        re.fullmatch(r"audit that many samples \(--limit \d+\), or relax the bound", said[rules[2]])
        and said[rules[1]] == ""
    )


@pytest.mark.parametrize("failing", [9, 10, 11, 30])
def test_github_gets_the_worst_first_and_is_told_how_many_follow(run: Run, failing: int) -> None:
    """An undecided rule, which stands first in the policy, comes after all that fail."""
    rules = [f"top1 under clean >= 0.{k}" for k in range(71, 71 + failing - 1)]
    lines = [*github_lines(verdicts(run, "mce <= 1", "top1 under clean >= 0.5", *rules))]
    assert len(lines) == min(failing, 10)
    levels = [line.split(" ")[0] for line in lines]
    assert "top1 under clean >= 0.71 fails" in lines[0]
    if failing <= 10:
        assert set(levels) == {"::error"} and "mce <= 1 is inconclusive" in lines[-1]
    else:
        assert lines[-1].endswith(f"::{failing - 9} more follow; the log and the job summary list them")
        assert not any("inconclusive" in line for line in lines)


def test_the_workflow_is_valid_and_names_what_it_keeps() -> None:
    yaml = pytest.importorskip("yaml")
    text = (ROOT / "docs" / "how-to" / "ci" / "robustness.yml").read_text(encoding="utf-8")
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
    assert "pip install robustkit" not in text + (ROOT / "docs" / "reference" / "policies.md").read_text(
        encoding="utf-8"
    )


def test_python_takes_rules_as_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make(tmp_path / "run", {"vit": {"clean": right(60, 100)}})
    one = robustkit.check(run, "top1 under clean >= 50 %")
    assert repr(one).startswith(f"Checked({str(run.path)!r}: 1 pass")
    assert one.passed and [verdict.rule.name for verdict in one.verdicts] == ["top1 under clean >= 50 %"]
    two = robustkit.check(run, ["top1 under clean >= 50 %", "n under clean >= 200"])
    assert not two.passed and [verdict.state for verdict in two.verdicts] == ["pass", "FAIL"]
    monkeypatch.chdir(tmp_path)
    Path("my rules").write_text("[[rule]]\nrequire = 'top1 under clean >= 70 %'\n", "utf-8")
    for path in ("my rules", Path("my rules")):  # a file of that name
        assert not robustkit.check(run, path).passed
    with pytest.raises(ProtocolError, match=r"policy other rules\.toml: No such file"):
        robustkit.check(run, "other rules.toml")
    with pytest.raises(ProtocolError, match="unknown metric 'top9'"):
        robustkit.check(run, ["top9 under clean >= 50 %"])
