"""The check, before an audit, whether another normalisation or channel order fits better."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch
from small_audit import audit as small
from small_audit import furnish

import robustkit
from robustkit.evaluations.setup_flags import setup_flags, setup_notes
from robustkit.results.run import Run

VIT = "zoo:shapes-vit-standard"
WRONG = {"mean": (0.0,) * 3, "std": (1.0,) * 3}


def audit(out: Path, lines: list[str], **options: Any) -> Run:
    given = {"attacks": "none", "limit": 64, "device": "cpu", "browse": 0} | options
    return robustkit.audit([VIT], data_dir="embedded:shapes", out=out, say=lines.append, **given)


def records(run: Run) -> dict[str, bytes]:
    return {str(path.relative_to(run.path)): path.read_bytes() for path in run.path.rglob("*.parquet")}


def test_a_wrong_normalisation_is_announced_and_flagged_and_records_stay_as_they_are(tmp_path: Path) -> None:
    lines: list[str] = []
    run = audit(tmp_path / "wrong", lines, model=WRONG)
    (line,) = [line for line in lines if line.startswith("⚑ shapes-vit-standard: normalisation in use does not fit")]
    flags = {flag for flags in run.results()["flags"] for flag in flags}
    assert flags == {line.removeprefix("⚑ shapes-vit-standard: ")}
    assert "fits better than none, 0 to 1 (NLL lower by " in line and " images); give --mean '0." in line
    assert "; not distinguishable from it: " in line
    assert all(f"{name} (" in line or f"{name} fits better" in line for name in ("0.5 / 0.5", "127 / 128 of 255"))
    assert line.count("--mean '") == 1 + len(run.evidence("shapes-vit-standard", "clean")["setup"][0]["alike"])
    assert "does not fit the model" in (run.path / "report.html").read_text()
    evidence = run.evidence("shapes-vit-standard", "clean")
    assert evidence and [part["part"] for part in evidence["setup"]] == ["normalisation", "channels"]
    assert evidence["setup"][0]["losses"]["none, 0 to 1"][0] == len(evidence["sample_ids"]) == 64
    again: list[str] = []
    before = run.evidence_path("shapes-vit-standard", "clean").stat().st_mtime_ns
    audit(tmp_path / "wrong", again, model=WRONG)
    assert run.evidence_path("shapes-vit-standard", "clean").stat().st_mtime_ns == before
    assert not any(line.startswith("⚑") for line in again)
    off = audit(tmp_path / "off", [], model=WRONG, setup_check=False)
    assert records(off) == records(run) and not off.evidence_path("shapes-vit-standard", "clean").exists()
    assert not any(off.results()["flags"].map(bool))


def test_the_right_one_costs_sixteen_images_a_candidate_and_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines: list[str] = []
    caplog.set_level(logging.INFO, "robustkit.plan")
    run = audit(tmp_path / "right", lines)
    assert "set-up check: 1 time 10 + 0 or more, for 16 samples" in caplog.messages
    evidence = run.evidence("shapes-vit-standard", "clean")
    assert evidence and {part["verdict"] for part in evidence["setup"]} <= {"fits", "cannot-tell"}
    looked = sum(n for part in evidence["setup"] for n, _ in part["losses"].values())
    assert looked <= 16 * 11 + 2 * 48  # 127/128 may be ahead of 0.5 by a hair, and is then looked at on all
    assert not any("⚑" in line for line in lines) and not any(run.results()["flags"].map(bool))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limit": 9}, ["set-up check left out: 9 images, and fewer than 10 tell nothing"]),
        ({"limit": 12, "setup_check": False}, []),  # who asked for it knows
    ],
)
def test_what_is_not_looked_at_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any], said: list[str]
) -> None:
    caplog.set_level(logging.INFO, "robustkit.plan")
    run = audit(tmp_path / "few", [], model=WRONG, **options)
    assert not (run.path / "evidence").exists() and not any(run.results()["flags"].map(bool))
    assert [line for line in caplog.messages if "set-up" in line] == said


def test_images_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    lines: list[str] = []
    place = furnish(tmp_path)
    pictures = sorted((place / "images").rglob("*.png"))
    for picture in pictures[: len(pictures) - 9]:
        picture.write_bytes(b"none")
    run = small(place, tmp_path / "run", attacks="none", say=lines.append)
    said = f"net: set-up check left out: 9 of {len(pictures)} images could be read, and fewer than 10 tell nothing"
    assert said in lines and not run.evidence_path("net", "clean").exists()


def test_a_model_that_only_guesses_is_told_to_look_at_labels_and_not_at_chance(tmp_path: Path) -> None:
    """Of a random network that is sure of itself: another normalisation is ahead beyond chance, and none is right."""
    place, lines = furnish(tmp_path), list[str]()
    weights = torch.load(place / "net.pth")
    torch.save({name: value * 50 for name, value in weights.items()}, place / "net.pth")
    run = small(place, tmp_path / "run", attacks="none", say=lines.append)
    evidence = run.evidence("net", "clean")
    assert evidence
    (losses,) = (part["losses"] for part in evidence["setup"] if part["part"] == "normalisation")
    best = min(nll for n, nll in losses.values() if n == 30)
    assert evidence["setup"][0]["best"] != evidence["setup"][0]["in_use"] and evidence["setup"][0]["ci_low"] > 0
    (note,) = [line for line in lines if "cannot tell" in line]
    assert note.startswith(
        "net: set-up: cannot tell, under none that was tried is the loss lower than that of guessing "
    )
    assert f"(NLL {best:.2f}, guessing 1.10, 30 images); check the weights, and that the classes are in" in note


def part(verdict: str, **changes: Any) -> dict[str, Any]:
    texts = {"part": "normalisation", "in_use": "CLIP", "best": "ImageNet", "remedy": "give --mean '1'"}
    figures = {"n": 20, "difference": 0.3, "ci_low": -0.02, "ci_high": 0.61, "same": False}
    return {**texts, **figures, "verdict": verdict, "alike": [["CIFAR-10", "give --mean '2'"], 3, ["x"]]} | changes


def test_one_that_is_ahead_by_chance_is_noted_and_is_no_flag() -> None:
    open_one = {"setup": [part("cannot-tell")]}
    assert setup_flags(open_one) == [] and setup_notes(open_one) == [
        "normalisation: cannot tell CLIP (in use) from ImageNet, which is ahead: NLL lower by 0.300 [-0.020, 0.610], "
        "20 images, which chance may explain in the best of several; more images may tell"
    ]
    for quiet in (part("cannot-tell", same=True), part("cannot-tell", best="CLIP"), part("fits")):
        assert setup_notes({"setup": [quiet]}) == []
    believed, guessed = (part("cannot-tell", guessing=2.3, nll=nll) for nll in (2.2, 2.4))
    assert setup_notes({"setup": [believed, guessed]}) == setup_notes(open_one)
    (flag,) = setup_flags({"setup": [part("another-fits-better")]})
    assert "; give --mean '1'; not distinguishable from it: CIFAR-10 (give --mean '2') (robustkit inspect" in flag


def test_a_finished_run_is_not_looked_at_and_a_damaged_check_is_taken_away(tmp_path: Path) -> None:
    place = furnish(tmp_path)
    run = small(place, tmp_path / "run", attacks="none", setup_check=False)
    small(place, tmp_path / "run", attacks="none")
    path = run.evidence_path("net", "clean")
    assert not path.exists()
    small(place, tmp_path / "run", attacks="fgsm")  # more to compute, so it is worth it
    assert path.exists()
    path.write_text(path.read_text().replace("cannot-tell", "another-fits-better"))
    lines: list[str] = []
    small(place, tmp_path / "run", attacks="fgsm", say=lines.append)
    assert any("evidence: it was altered after it was written" in line for line in lines) and not path.exists()


@pytest.mark.parametrize(
    "evidence", [None, {}, {"setup": 3}, {"setup": [3, {"verdict": "another-fits-better"}]}, {"setup": [{"n": "x"}]}]
)
def test_what_has_another_shape_says_nothing(evidence: Any) -> None:
    assert setup_flags(json.loads(json.dumps(evidence))) == setup_notes(evidence) == []
