"""The action's shell steps run as they stand, pass and fail as the gate does, and run nothing of their inputs."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
import yaml
from gate_runs import make, right
from places import ROOT
from workflow_steps import Runner, installed

AUDIT = ("Audit", "Gate")
GATHER = "Gather the run, the verdicts and the policy"
SMALL = {
    "checkpoint": "zoo:shapes-vit-quest",
    "data": "embedded:shapes",
    "arguments": "--limit\n4\n--attacks\nnone\n--batch-size=4",
}
SHOWN = ROOT / "docs" / "how-to"
FLOWS = [*(ROOT / ".github" / "workflows").glob("*.yml"), *(SHOWN / "ci").glob("*.yml"), ROOT / "action.yml"]


@pytest.mark.slow
def test_a_gate_that_passes_and_one_that_fails(tmp_path: Path) -> None:
    installed(tmp_path)
    first = Runner(tmp_path, {**SMALL, "init": "true"}).run(AUDIT)
    assert first.done == {"Audit": 0, "Gate": 0}, first.said
    assert first.outputs == {"run": "runs/robustkit", "status": "0"}
    assert "::warning::the policy was drafted" in first.said
    assert "<testsuite" in (tmp_path / "robustness.xml").read_text() and (tmp_path / "robustness.json").is_file()
    assert (tmp_path / "work" / "runs" / "robustkit" / "report.html").is_file() and "RobustKit" in first.summary

    (tmp_path / "work" / "policy.toml").write_text('[[rule]]\nrequire = "n under clean >= 5000"\n')
    second = Runner(tmp_path, SMALL).run(("Gate",))
    assert second.done == {"Gate": 1} and second.outputs["status"] == "1", second.said
    assert (
        "drafted" not in second.said
        and "FAIL" in second.said
        and "failure" in (tmp_path / "robustness.xml").read_text()
    )


GOOD = '[[rule]]\nrequire = "n under clean >= 1"\n'


@pytest.mark.parametrize(
    ("inputs", "text", "status", "said"),
    [
        ({}, None, 2, "policy policy.toml: No such file"),
        ({"policy": "rules/polcy.toml"}, GOOD, 2, "policy rules/polcy.toml: No such file"),
        ({"policy": ""}, GOOD, 2, "it is empty"),
        ({"policy": "."}, GOOD, 2, "policy .: "),
        ({}, "", 2, "no rules, so nothing would be checked"),
        ({"init": "yes"}, None, 2, "::error::init is yes; expected true or false"),
        ({"init": "true"}, GOOD, 2, "policy.toml exists and is not overwritten"),
        ({}, GOOD, 0, "meets policy.toml"),
        ({"init": ""}, GOOD, 0, "meets policy.toml"),
    ],
    ids=("missing", "mistyped", "no-path", "folder", "no-rules", "init-yes", "init-twice", "good", "init-empty"),
)
def test_the_action_passes_only_by_a_policy_that_is_there(
    tmp_path: Path, inputs: dict[str, str], text: str | None, status: int, said: str
) -> None:
    """Only `init: true` drafts; a second run of what fails does not pass either."""
    installed(tmp_path)
    make(tmp_path / "work" / "runs" / "robustkit", {"vit": {"clean": right(9, 10)}})
    policy = tmp_path / "work" / "policy.toml"
    if text is not None:
        policy.write_text(text)
    for _ in range(2 if status and text is None else 1):
        made = Runner(tmp_path, {**SMALL, **inputs}).run(("Gate",))
        assert made.done == {"Gate": status} and said in made.said, made.said
        assert policy.exists() is (text is not None) and "drafted" not in made.said


GH = """#!/bin/sh
printf '%s ' "$@" >> {calls}
echo >> {calls}
case "$*" in
  *--jq*) [ -f {posted} ] && echo 42 || true ;;
  *) for word in "$@"; do case "$word" in body=@*) cp "${{word#body=@}}" {posted} ;; esac; done ;;
esac
"""


def test_a_pull_request_has_one_comment_that_each_run_writes_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installed(tmp_path)
    for name, hits in (("robustkit", (9, 10)), ("main", (10, 10))):
        make(tmp_path / "work" / "runs" / name, {"vit": {"clean": right(*hits)}})
    (tmp_path / "work" / "policy.toml").write_text('[[rule]]\nrequire = "n under clean >= 5000"\n')
    calls, posted, command = tmp_path / "calls", tmp_path / "posted.md", tmp_path / "bin" / "gh"
    command.parent.mkdir()
    command.write_text(GH.format(calls=calls, posted=posted))
    command.chmod(0o755)
    monkeypatch.setenv("PATH", f"{command.parent}:{os.environ['PATH']}")
    inputs = {**SMALL, "token": "t", "baseline": "runs/main", "artifact": "rob$(ust)ness"}
    gate = Runner(tmp_path, inputs).run(("Gate",))
    assert gate.done == {"Gate": 1} and "n under clean" in gate.summary  # the summary of the job has it, too
    for _ in range(2):
        outcome = Runner(tmp_path, inputs).run(("Comment on the pull request",))
        assert outcome.done == {"Comment on the pull request": 0}, outcome.said
    for _ in range(2):  # what a former run left is not kept
        assert Runner(tmp_path, inputs).run((GATHER,)).done[GATHER] == 0
    kept = tmp_path / "robustkit-artifact"
    assert {path.name for path in kept.iterdir()} == {"run", "robustness.xml", "robustness.json", "policy.toml"}
    assert (kept / "run" / "run.json").is_file()  # as docs/how-to/gate.md reads it
    text = posted.read_text("utf-8")
    assert text.startswith("<!-- robustkit: robustness -->\n") and "n under clean" in text
    assert "vit of runs/robustkit against vit of runs/main" in text and text.count("```") == 2
    first, posting, again, patching = calls.read_text().splitlines()
    assert first == again and first.startswith("api repos/o/r/issues/7/comments --paginate --jq")
    assert posting.startswith("api --silent repos/o/r/issues/7/comments -F body=@")
    assert patching.startswith("api --silent -X PATCH repos/o/r/issues/comments/42 -F body=@")
    (tmp_path / "verdicts.md").unlink()
    Runner(tmp_path, inputs).run(("Comment on the pull request",))
    assert "came to no verdict" in posted.read_text("utf-8")
    steps = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))["runs"]["steps"]
    (condition,) = (step["if"] for step in steps if step.get("name") == "Comment on the pull request")
    assert "inputs.token != ''" in condition and "github.event_name == 'pull_request'" in condition


def test_the_workflow_of_the_tutorial_gives_the_action_what_it_takes() -> None:
    """Comments and the runs of main need a permission each; the baseline is where the artifact of main has the run."""
    text = (SHOWN / "gate.md").read_text("utf-8").partition("```yaml\n")[2].partition("```")[0]
    flow, action = yaml.safe_load(text), yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))
    assert flow["permissions"] == {"contents": "read", "actions": "read", "pull-requests": "write"}
    *_, fetched, gate = flow["jobs"]["robustness"]["steps"]
    assert {*gate["with"]} <= {*action["inputs"]} and "released/run'" in gate["with"]["baseline"]
    assert f"--name {action['inputs']['artifact']['default']} --dir released" in fetched["run"]
    assert f"--workflow {flow['name']}.yml" in fetched["run"] and "GH_TOKEN" in fetched["env"]


def test_the_workflow_drafts_only_when_it_is_asked_to() -> None:
    flow = yaml.safe_load((SHOWN / "ci" / "robustness.yml").read_text("utf-8"))
    steps = flow["jobs"]["robustness"]["steps"]
    drafts = [step for step in steps if "--init" in step.get("run", "")]
    assert [step["if"] for step in drafts] == ["inputs.init"]
    assert flow[True]["workflow_dispatch"]["inputs"]["init"]["default"] is False  # YAML reads `on` as true


def test_inputs_are_words(tmp_path: Path) -> None:
    """Neither a shell nor the runner's files read what stands in an input; lines are words where several may stand."""
    hostile = "\"; touch pwned; $(touch pwned) `touch pwned` -x'"
    made = Runner(tmp_path, dict.fromkeys(("checkpoint", "data", "arguments", "out", "policy", "baseline"), hostile))
    command, words = tmp_path / "robustkit" / "bin" / "robustkit", tmp_path / "words"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" >> {words}\n")
    command.chmod(0o755)
    made.run(AUDIT)
    audit = ["audit", f"--data-dir={hostile}", f"--out={hostile}", hostile, "--", hostile]
    files = [f"--{kind}={tmp_path}/robustness.{name}" for kind, name in (("junit", "xml"), ("json", "json"))]
    checked = ["check", f"--policy={hostile}", *files, f"--baseline={hostile}", "--", hostile]
    assert words.read_text().splitlines() == [*audit, *checked]
    assert not list(tmp_path.rglob("pwned*")) and made.outputs == {"run": hostile, "status": "0"}
    Runner(tmp_path, {"checkpoint": "a", "data": "b", "out": "x\nstatus=0"}, made.outputs).run(("Audit",))
    assert made.outputs["run"] == "x status=0" and made.outputs["status"] == "0"


@pytest.mark.parametrize("path", FLOWS, ids=lambda path: path.name)
def test_no_script_holds_an_expression(path: Path) -> None:
    flow = yaml.safe_load(path.read_text("utf-8"))
    jobs = flow["jobs"].values() if "jobs" in flow else [flow["runs"]]
    steps = [step for job in jobs for step in job["steps"]]
    assert steps and all("run" in step or "uses" in step for step in steps)
    for step in steps:
        # Matrix values are the workflow's own.
        assert "${{" not in step.get("run", "").replace("${{ matrix.", ""), step


def test_every_action_is_pinned_by_commit_and_each_by_one() -> None:
    """Tags and branches move; a comment says which tag named the commit."""
    commits: dict[str, set[str]] = {}
    for path in (*FLOWS, SHOWN / "gate.md", SHOWN / "attest.md"):
        for line in re.findall(r"^ *-? *uses: (.*)$", path.read_text("utf-8"), re.MULTILINE):
            if line.endswith("@COMMIT"):  # what a reader fills in
                continue
            pinned = re.fullmatch(r"([\w.-]+/[\w.-]+)@([0-9a-f]{40}) # v\d+\.\d+\.\d+", line)
            assert pinned, f"{path.name}: {line}"
            commits.setdefault(pinned[1], set()).add(line)
    assert len(commits) == 7 and all(len(lines) == 1 for lines in commits.values()), commits


@pytest.mark.parametrize(("system", "status"), [("Linux", 0), ("macOS", 0), ("Windows", 1)])
def test_windows_is_refused_in_one_line(tmp_path: Path, system: str, status: int) -> None:
    made = Runner(tmp_path, SMALL, system=system).run(("Refuse Windows",))
    assert made.done == {"Refuse Windows": status}
    assert made.said == status * (
        "::error::this action runs on Linux and macOS, not on Windows; give the job runs-on: ubuntu-latest\n"
    )
    steps = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))["runs"]["steps"]
    assert steps[0]["name"] == "Refuse Windows"


def test_each_input_is_used_and_each_use_is_an_input() -> None:
    text = (ROOT / "action.yml").read_text("utf-8")
    action = yaml.safe_load(text)
    for name in action["inputs"]:
        assert f"inputs.{name} }}}}" in text, name
    ids = {step.get("id") for step in action["runs"]["steps"]}
    assert all(output["value"].split(".")[1] in ids for output in action["outputs"].values())


def test_the_release_publishes_only_what_was_tested_and_attested() -> None:
    flow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8"))
    jobs = flow["jobs"]
    assert jobs["test"]["needs"] == "build" and jobs["publish"]["needs"] == "test" and "permissions" not in jobs["test"]
    assert flow["permissions"] == {"contents": "read"} and jobs["publish"]["permissions"]["id-token"] == "write"
    used = [step["uses"].partition("@")[0] for step in jobs["publish"]["steps"]]
    assert used == ["actions/download-artifact", "actions/attest-build-provenance", "pypa/gh-action-pypi-publish"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_step_that_installs(tmp_path: Path) -> None:
    """With PyPI as torch's index, which is the one that a test's machine can be trusted to reach."""
    made = Runner(tmp_path, {**SMALL, "torch-index": "https://pypi.org/simple", "init": "true"}).run(
        ("Install", *AUDIT)
    )
    assert made.done == {"Install": 0, "Audit": 0, "Gate": 0}, made.said
