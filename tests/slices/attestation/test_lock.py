"""A lock says before the run what decides its verdicts, and a check says whether the run is so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

import robustkit
from robustkit.cli.app import cli
from robustkit.errors import RobustkitError

RULE = '[[rule]]\nrequire = "top1 under clean >= 10 %"\n'
DATA = ("--data-dir", "embedded:shapes")


def said(*words: str) -> str:
    done = CliRunner().invoke(cli, ["check", *words])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return " ".join(done.output.split())


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.toml").write_text(RULE, "utf-8")
    ids = [f"test/{place:05}" for place in range(24)]
    (tmp_path / "ids.txt").write_text("\n".join(ids), "utf-8")
    return tmp_path


def locked(*more: str) -> str:
    model = "zoo:shapes-vit-quest"
    return said(model, "--policy", "policy.toml", "--lock", "lock.json", *DATA, "--ids", "ids.txt", *more)


def audited(out: str, **more: object) -> None:
    options = {"ids": "ids.txt", "attacks": "none", "setup_check": False, "out": out, **more}
    robustkit.audit("zoo:shapes-vit-quest", "embedded:shapes", **options)  # type: ignore[arg-type]


def test_a_run_is_as_it_was_locked_and_its_attestation_carries_the_lock(place: Path) -> None:
    assert locked("--groups-from", r"^(.*)\d") == "lock: lock.json"
    before = json.loads(Path("lock.json").read_text("utf-8"))
    assert before["about"].endswith("embedded:shapes, 24 samples") and before["groups"]
    audited("run", groups_from=r"^(.*)\d")
    check = ("run", "--policy", "policy.toml", "--lock", "lock.json")
    text = said(*check, "--attestation", "a.json")
    assert "note: locked before the run, as lock.json says" in text
    assert "policy, card, data, samples, seed, groups" in text
    configuration = json.loads(Path("a.json").read_text("utf-8"))["predicate"]["configuration"]
    assert {"name": "lock lock.json", "digest": {"sha256": before["digest"]}} in configuration
    same = said(*check, "--groups-from", r"(.*)\d$")  # the same groups by another expression
    assert "locked before the run" in same


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"seed": 1}, "seed 1 instead of 0"),
        ({"protocol": "quest-paper"}, "card "),
        ({"groups_from": r"^(.*)\d"}, "groups "),
    ],
)
def test_what_differs_is_said(place: Path, change: dict[str, object], line: str) -> None:
    locked()
    audited("run", **change)
    text = said("run", "--policy", "policy.toml", "--lock", "lock.json", "--attestation", "a.json")
    assert "note: not as locked in lock.json (" in text and f": {line}" in text
    assert "lock.json" not in Path("a.json").read_text("utf-8")


def test_another_policy_and_other_samples_are_said(place: Path) -> None:
    locked()
    (place / "ids.txt").write_text("test/00000\ntest/00001", "utf-8")
    audited("run")
    Path("policy.toml").write_text(RULE + "\n", "utf-8")
    text = said("run", "--policy", "policy.toml", "--lock", "lock.json")
    assert "policy " in text and "; data " in text and "; samples " in text


def test_an_altered_or_strange_lock_is_refused_in_a_line(place: Path) -> None:
    locked()
    audited("run")
    check = ("run", "--policy", "policy.toml", "--lock", "lock.json")
    whole = Path("lock.json").read_text("utf-8")
    content = json.loads(whole)
    flipped = content["data"][:-1] + ("0" if content["data"][-1] != "0" else "1")
    for text, line in (
        (whole.replace(content["data"], flipped), "lock.json: was altered after it was written"),
        (whole.replace(content["digest"], "0" * 64), "lock.json: was altered after it was written"),
        ("{}", "lock.json: no lock; expected a file that check --lock wrote"),
        ("[1]", "lock.json: no lock"),
        ("nonsense", "lock.json: cannot be read"),
    ):
        Path("lock.json").write_text(text, "utf-8")
        with pytest.raises(RobustkitError) as caught:
            said(*check)
        assert line in str(caught.value) and "\n" not in str(caught.value)
