"""The script for the day a GPU is there: rehearsed on the CPU and on the stand-in, with faults, and read out."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import stand_in
from places import ROOT

from corruptions import CORRUPTIONS
from scripts.gpu.machine import missing
from scripts.gpu.page import BEGIN, RULES, page, write_page
from scripts.gpu.steps import FAULT, FAULTS, STAND_IN, STEPS
from scripts.gpu.truth import EPS, REQUESTS, TRUTH, differences

Lines = list[dict[str, Any]]


def rehearse(out: Path, *words: str, **variables: str) -> tuple[int, Lines]:
    """Run the script in tiny sizes; return its exit status and what it measured."""
    command = [sys.executable, "-m", "scripts.gpu", "--rehearse", "--out", str(out), *words]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, **variables}, check=False, capture_output=True)
    return done.returncode, [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


def ended(lines: Lines) -> dict[str, str]:
    return {line["step"]: line["status"] for line in lines if "status" in line and line["step"] in STEPS}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("device", ["cpu", "stand-in"])
def test_a_rehearsal_carries_out_all_steps(device: str, tmp_path: Path) -> None:
    if device != "cpu" and (reason := stand_in.why_not()):
        pytest.skip(reason)
    on_device = () if device == "cpu" else ("--device", "cuda")
    variables = {} if device == "cpu" else {STAND_IN: "1"}
    status, lines = rehearse(tmp_path, "--minutes", "12", *on_device, **variables)
    assert (status, ended(lines)) == (0, dict.fromkeys(STEPS, "ok"))
    assert len([line for line in lines if line.get("what") == "truth"]) > 50
    assert len([line for line in lines if line.get("same_bytes")]) == 3
    assert {line["stage"] for line in lines if line.get("what") == "attack"} == {
        *("PGD-20", "APGD-CE", "APGD-T", "FAB-T", "Square")
    }
    corrupted = [line["kind"] for line in lines if line.get("what") == "corruption" and "failure" not in line]
    assert corrupted == list(CORRUPTIONS)
    text = page(lines)
    assert "A rehearsal, without a GPU" in text and all(rule.text in text for rule in RULES)


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_costs_only_its_step(fault: str, tmp_path: Path) -> None:
    words = ("--only", "machine,maps,memory", "--minutes", "3" if fault == "hang" else "8")
    status, lines = rehearse(tmp_path, *words, **{FAULT: f"maps={fault}"})
    expected = {"hang": "hung", "clock": "ok"}.get(fault, "failed")
    assert ended(lines) == {"machine": "ok", "maps": expected, "memory": "ok"}
    assert status == (expected != "ok")
    rates = [line["images_a_second"] for line in lines if "images_a_second" in line]
    if fault == "clock":
        assert len(rates) == len(CORRUPTIONS) + 2 and all(1 < rate < 1e7 for rate in rates)
    words_of = {"memory": "CUDA out of memory", "operator": "aten::linear", "raise": "illegal memory access"}
    (end,) = [line for line in lines if line["step"] == "maps" and "status" in line]
    assert words_of.get(fault, "") in end["why"]


def test_what_there_is_no_time_for_is_named(tmp_path: Path) -> None:
    status, lines = rehearse(tmp_path, "--only", "machine,doctor", "--minutes", "0.01")
    assert status == 1 and ended(lines) == {"machine": "skipped", "doctor": "skipped"}


def test_a_bare_machine_is_told_what_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing() == []
    monkeypatch.setattr("scripts.gpu.machine._version", lambda name: "" if name in ("msgspec", "timm") else "1")
    assert missing() == ["timm", "msgspec"]


def test_the_records_of_the_cpu_do_not_depend_on_the_batch_size() -> None:
    made = json.loads(TRUTH.read_text())
    assert set(made) == set(REQUESTS)
    assert max(part["between batch sizes"] for part in made.values()) < 2e-5  # of batches of 4 and of 16
    assert sum(len(rows) for part in made.values() for rows in part["records"].values()) == 1520


def test_records_are_close_enough_or_not() -> None:
    rows = {"0": {"prediction": 1, "correct": True, "nll": 0.5, "linf": 0.0}, "1": {"prediction": 2, "correct": False}}
    expected = {"net clean": rows, "net pgd(eps=2/255)": copy.deepcopy(rows)}

    def ok(text: str, **changed: Any) -> bool:
        found = {text: {"0": {**rows["0"], **changed}, "1": rows["1"]}}
        (line,) = differences(expected, found)
        assert line["samples"] == 2
        return bool(line["ok"])

    rows["0"]["class_abpc"] = 0.5
    assert ok("net clean", class_abpc=0.5099) and not ok("net clean", class_abpc=0.5101)
    assert ok("net clean", nll=0.50009) and not ok("net clean", nll=0.50011)
    assert not ok("net clean", prediction=3)
    assert ok("net pgd(eps=2/255)", prediction=3, nll=0.6) and not ok("net pgd(eps=2/255)", correct=False)
    assert ok("net pgd(eps=2/255)", linf=EPS + 9e-7) and not ok("net pgd(eps=2/255)", linf=EPS + 1.1e-6)
    assert not next(differences({}, {"net clean": rows}))["ok"]  # with nothing to compare


def rate(mode: str, rate: float, **more: Any) -> dict[str, Any]:
    described = {"step": "rates", "network": "vit", "mode": mode, "batch": 128}
    return {**described, "what": "attack", "stage": "PGD-20", "images_a_second": rate, "share_of_bare": 1.0, **more}


def verdict(mode: str, more: int, fewer: int = 0, stand: int = 100, step: str = "truth") -> dict[str, Any]:
    counts = {"stand": stand, "more_than_float32": more, "fewer": fewer}
    return {"step": step, "what": "verdicts", "network": "vit", "mode": mode, **counts}


def bare(mode: str, batch: int, passes: float, compiling: float | None = None, failure: str = "") -> dict[str, Any]:
    described = {"step": "rates", "what": "bare", "network": "vit", "mode": mode, "batch": batch}
    return {**described, "passes_a_second": passes, "seconds_to_compile": compiling, "failure": failure}


def test_rules_decide_on_either_side() -> None:
    low, compiled, tf32, larger = RULES
    plain = rate("float32", 100)
    for rule, mode in ((low, "bfloat16"), (tf32, "tf32")):
        assert rule.holds([plain, rate(mode, 131), verdict(mode, 0)]) is True
        assert rule.holds([plain, rate(mode, 129), verdict(mode, 0)]) is False
        assert rule.holds([plain, rate(mode, 131), verdict(mode, 1)]) is False
        assert rule.holds([plain, rate(mode, 131), verdict(mode, 0, fewer=1)]) is (rule is low)
        few = verdict(mode, 0, stand=99), verdict(mode, 0, stand=500, step="rates")  # random networks, which fall
        assert rule.holds([plain, rate(mode, 131), *few]) is (None if rule is low else True)
        assert rule.holds([plain, rate(mode, 131)]) is None and rule.holds([rate(mode, 131), verdict(mode, 0)]) is None

    def both(times: float, seconds: float = 59, failure: str = "") -> Lines:
        modes = ("float32, compiled", "bfloat16, compiled")
        return [
            plain,
            *(rate(mode, 100 * times) for mode in modes),
            *(bare(m, 128, 1, seconds, failure) for m in modes),
        ]

    assert compiled.holds(both(1.21)) is True and compiled.holds(both(1.19)) is False
    assert compiled.holds(both(1.21, 61)) is False and compiled.holds(both(1.21, failure="no")) is False
    assert compiled.holds([plain, *both(1.21)[1:2]]) is None
    assert larger.holds([bare("float32", 32, 100), bare("float32", 512, 106)]) is True
    assert larger.holds([bare("float32", 32, 100), bare("float32", 512, 104)]) is False
    assert larger.holds([bare("float32", 32, 100)]) is None


def test_the_section_of_a_page_is_replaced(tmp_path: Path) -> None:
    results, text = tmp_path / "results.jsonl", tmp_path / "page.md"
    results.write_text("".join(json.dumps(line) + "\n" for line in (rate("float32", 1234.5), verdict("float32", 0))))
    text.write_text("# Performance\n\nBefore.\n")
    write_page(results, text)
    once = text.read_text()
    assert once.startswith("# Performance\n\nBefore.\n\n" + BEGIN) and "1,234" in once and "A rehearsal" not in once
    text.write_text(once + "\nAfter.\n")
    write_page(results, text)
    assert text.read_text() == once + "\nAfter.\n"
