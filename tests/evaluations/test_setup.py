"""The check, before an audit, whether another normalisation or channel order fits better."""

import json
import logging
import math
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from figures import raised
from manifests import whole
from small_audit import audit as small
from small_audit import furnish

import robustkit
from robustkit.common.finding import Finding
from robustkit.errors import ModelError
from robustkit.evaluations.setup_findings import (
    guessing,
    setup_findings,
    setup_notes,
    setup_parts,
)
from robustkit.report.refresh import refresh
from robustkit.report.run import Run

VIT = "zoo:shapes-vit-standard"
UNCHECKED = Finding.of("setup/unchecked", why="--no-setup-check was given")
WRONG = {"mean": (0.0,) * 3, "std": (1.0,) * 3}


def audit(out: Path, lines: list[str], **options: Any) -> Run:
    given = {"attacks": "none", "limit": 64, "device": "cpu", "browse": 0} | options
    return robustkit.audit([VIT], data_dir="embedded:shapes", out=out, say=lines.append, **given)


def records(run: Run) -> dict[str, bytes]:
    return {str(path.relative_to(run.path)): path.read_bytes() for path in run.path.rglob("*.parquet")}


def test_a_wrong_normalisation_is_announced_and_flagged_and_records_stay_as_they_are(tmp_path: Path) -> None:
    lines: list[str] = []
    run = audit(tmp_path / "wrong", lines, model=WRONG)
    (line,) = [line for line in lines if line.startswith("⚑ shapes-vit-standard: normalisation does not fit")]
    (finding,) = raised(run.results())
    assert (finding.code, line) == ("setup/another-fits-better", f"⚑ shapes-vit-standard: {finding}")
    evidence = run.evidence("shapes-vit-standard", "clean")
    assert evidence and [part["part"] for part in evidence["setup"]] == ["attention", "normalisation", "channels"]
    found = evidence["setup"][1]
    assert "fits better than none, 0 to 1 (NLL lower by " in line and " images); give --mean '0." in line
    assert "; as good, as far as these images tell: " in line
    names = [found["best"], *(name for name, _ in found["alike"])]
    assert {"0.5 / 0.5", "127 / 128 of 255"} <= {*names} and line.count("--mean '") == 1
    assert line.split(" tell: ")[1].startswith(", ".join(names[1:3]))
    assert "normalisation does not fit" in (run.path / "report.html").read_text()
    assert found["losses"]["none, 0 to 1"][0] == len(evidence["sample_ids"]) == 64
    again: list[str] = []
    before = run.evidence_path("shapes-vit-standard", "clean").stat().st_mtime_ns
    audit(tmp_path / "wrong", again, model=WRONG)
    assert run.evidence_path("shapes-vit-standard", "clean").stat().st_mtime_ns == before
    assert not any(line.startswith("⚑") for line in again)
    off = audit(tmp_path / "off", [], model=WRONG, setup_check=False)
    assert records(off) == records(run) and not off.evidence_path("shapes-vit-standard", "clean").exists()
    assert raised(off.results()) == {UNCHECKED}


def test_the_right_one_costs_sixteen_images_a_candidate_and_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lines: list[str] = []
    caplog.set_level(logging.INFO, "robustkit.plan")
    run = audit(tmp_path / "right", lines)
    assert "set-up check: 1 time at least 15 + 0 passes, for 16 samples" in caplog.messages
    evidence = run.evidence("shapes-vit-standard", "clean")
    assert evidence and {part["verdict"] for part in evidence["setup"]} <= {"fits", "inconclusive"}
    looked = sum(n for part in evidence["setup"] for n, _ in part["losses"].values())
    assert evidence["forwards"] <= looked <= 16 * 17 + 5 * 48  # who is ahead on 16 images is looked at on 64
    assert not any("⚑" in line for line in lines) and not any(run.results()["flags"].map(bool))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"limit": 9}, ["set-up check skipped: 9 images; at least 10 are needed"]),
        ({"limit": 12, "setup_check": False}, []),  # who asked for it knows
    ],
)
def test_what_is_not_looked_at_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any], said: list[str]
) -> None:
    caplog.set_level(logging.INFO, "robustkit.plan")
    run = audit(tmp_path / "few", [], model=WRONG, **options)
    found = {finding for finding in raised(run.results()) if finding.code != "labels/no-better-than-chance"}
    assert not (run.path / "evidence").exists()
    assert found == (set() if said else {UNCHECKED})
    assert [line for line in caplog.messages if "set-up" in line] == said


def test_images_that_cannot_be_read_are_counted(tmp_path: Path) -> None:
    lines: list[str] = []
    place = furnish(tmp_path)
    pictures = sorted((place / "images").rglob("*.png"))
    for picture in pictures[: len(pictures) - 9]:
        picture.write_bytes(b"none")
    run = small(place, tmp_path / "run", attacks="none", say=lines.append)
    said = f"net: set-up check skipped: 9 of {len(pictures)} images could be read; at least 10 are needed"
    assert said in lines and not run.evidence_path("net", "clean").exists()


def test_a_model_that_only_guesses_is_flagged_by_its_records(tmp_path: Path) -> None:
    """Of a random network that is sure of itself: another normalisation is ahead beyond chance, and none is right."""
    place, lines = furnish(tmp_path), list[str]()
    weights = torch.load(place / "net.pth")
    torch.save({name: value * 50 for name, value in weights.items()}, place / "net.pth")
    run = small(place, tmp_path / "run", attacks="none", say=lines.append)
    evidence = run.evidence("net", "clean")
    assert evidence and not any(part["verdict"] == "another-fits-better" for part in evidence["setup"])
    results = run.results()
    nll = float(results[results["metric"] == "nll"]["value"].iloc[0])
    (finding,) = raised(results)
    assert finding.text.startswith(
        f"no better than chance on clean data: NLL {nll:.2f}, chance 1.10; check the weights"
    )
    assert finding.code == "labels/no-better-than-chance"
    run.evidence_path("net", "clean").unlink()  # nobody can take this finding away by deleting a file
    refreshed = Run.existing(run.path)
    refresh(refreshed)
    assert finding in raised(refreshed.results())


@pytest.mark.usefixtures("pageless", "unexamined")
def test_a_card_may_decide_the_options_of_a_formula_and_each_result_says_so(tmp_path: Path) -> None:
    """Published figures of Elliptical Attention are of other options than those of training."""
    names, lines = ["zoo:shapes-vit-elliptical", "zoo:shapes-vit-quest"], list[str]()
    asked: Any = {"data_dir": "embedded:shapes", "limit": 6, "attacks": "fgsm", "setup_check": False}
    median = {"attention": "elliptical(average=median)"}
    told = "evaluated with attention elliptical(average=median), trained with elliptical"
    other = Finding("setup/other-attention", told).to_plain()
    run = robustkit.audit(names, out=tmp_path / "card", protocol="elliptical-images", say=lines.append, **asked)
    elliptical, quest = run.manifest.checkpoints
    assert (elliptical.attention, elliptical.attention_source) == ("elliptical(average=median)", "card")
    assert quest.attention == "quest" and not quest.trained_attention
    assert (
        "shapes-vit-elliptical: attention elliptical(average=median) from the card in the place of elliptical" in lines
    )
    plain = robustkit.audit(names[:1], out=tmp_path / "plain", protocol="quest-paper", **asked)
    option = robustkit.audit(names[:1], out=tmp_path / "option", protocol="quest-paper", model=median, **asked)
    figures = {}
    for made in (run, plain, option):
        rows = made.results()
        for name in rows["checkpoint"].unique():
            said = {other in flags for flags in rows[rows["checkpoint"] == name]["flags"]}
            assert said == {made is not plain and name == elliptical.name}
        own = rows[(rows["checkpoint"] == elliptical.name) & (rows["metric"] == "nll")]
        figures[made.path.name] = dict(zip(own["condition"], own["value"], strict=True))
    assert figures["card"] == figures["option"] and len(figures["card"]) == 2
    assert all(abs(figures["card"][text] - value) > 1e-4 for text, value in figures["plain"].items())
    (tmp_path / "own.toml").write_text(
        'name = "own"\nversion = 1\n[threat]\n[attacks.fgsm]\n[attention]\nelliptical = "eliptical"\n'
    )
    with pytest.raises(ModelError, match="unknown attention 'eliptical'; did you mean 'elliptical'"):
        robustkit.audit(names[:1], out=tmp_path / "own", protocol=str(tmp_path / "own.toml"), **asked)


def part(verdict: str, **changes: Any) -> dict[str, Any]:
    texts = {"part": "normalisation", "in_use": "CLIP", "best": "ImageNet", "remedy": "give --mean '1'"}
    figures = {"n": 20, "difference": 0.3, "ci_low": -0.02, "ci_high": 0.61, "same": False}
    return {**texts, **figures, "verdict": verdict, "alike": [["CIFAR-10", "give --mean '2'"], 3, ["x"]]} | changes


def found(evidence: Any, checkpoint: dict[str, Any] | None = None, **more: Any) -> list[tuple[str, str]]:
    """The codes and texts of the findings."""
    entry = {"name": "net", "preprocessing_source": {"mean": "option", "std": "option"}} | (checkpoint or {})
    run = {"checkpoints": [entry], "conditions": ["clean"], "data": {"n": 50}, "arguments": {"setup_check": True}}
    return [(each.code, each.text) for each in setup_findings(whole(run | more), "net", evidence)]


def test_one_that_is_ahead_by_chance_is_noted_and_is_no_finding() -> None:
    open_one = {"setup": [part("inconclusive")]}
    assert found(open_one) == [] and setup_notes(open_one) == [
        "normalisation: inconclusive, ImageNet is ahead of CLIP (in use): NLL lower by 0.300 [-0.020, 0.610], "
        "20 images, not significant for the best of several; more images may settle it"
    ]
    for quiet in (part("inconclusive", same=True), part("inconclusive", best="CLIP"), part("fits")):
        assert setup_notes({"setup": [quiet]}) == []
    believed, guessed = (part("inconclusive", guessing=2.3, nll=nll) for nll in (2.2, 2.4))
    assert setup_notes({"setup": [believed, guessed]}) == setup_notes(open_one)
    ((code, text),) = found({"setup": [part("another-fits-better")]})
    assert code == "setup/another-fits-better" and text == (
        "normalisation does not fit: ImageNet fits better than CLIP (NLL lower by 0.300 [-0.020, 0.610], 20 images); "
        "give --mean '1'; as good, as far as these images tell: CIFAR-10"
    )
    three = part("another-fits-better") | {"alike": [[name, "give"] for name in ("a", "b", "c")]}
    assert found({"setup": [three]})[0][1].endswith("as far as these images tell: a, b and 1 more")


@pytest.mark.parametrize(
    ("source", "size", "said"),
    [
        (
            "family",
            [64, 64],
            ["image size 64 x 64 was assumed, as usual for CLIP; give --img-size 64 if that is right"],
        ),
        ("family", [64, 32], ["image size 64 x 32 was assumed, as usual for CLIP; give one whose config states it"]),
        ("network", [64, 64], []),
    ],
)
def test_an_assumed_size_is_a_finding(source: str, size: list[int], said: list[str]) -> None:
    sources = {"mean": "option", "std": "option", "input_size": source}
    more = {"arch": "CLIP", "preprocessing_source": sources, "preprocessing": {"input_size": size}}
    assert found({"setup": [part("fits")]}, more) == [("setup/size-assumed", text) for text in said]


SAID = {"mean": "trainer", "std": "option"}
ASSUMED = {"attention": "quest", "attention_source": "name", "preprocessing_source": SAID}
ATTENTION, NORMALISATION = "attention (quest) was assumed: ", "normalisation (mean 0.5, std 0.5) was assumed: "
GONE = "the evidence on the set-up is missing or could not be taken; rerun the same command to take it"
Said = list[tuple[str, str]]
"""Codes, and how texts begin."""
CODES = "setup/attention-assumed", "setup/normalisation-assumed"


def assumed(why: str) -> Said:
    texts = f"{ATTENTION}{why}; give --attention quest if", f"{NORMALISATION}{why}; give --mean '0.5' --std '0.5' if"
    return list(zip(CODES, texts, strict=True))


def said_alike(given: list[tuple[str, str]], said: Said) -> bool:
    return [code for code, _ in given] == [code for code, _ in said] and all(
        text.startswith(start) for (_, text), (_, start) in zip(given, said, strict=True)
    )


@pytest.mark.parametrize(
    ("verdicts", "said"),
    [
        (("fits", "fits"), []),
        (
            ("fits", "inconclusive"),
            [(CODES[1], f"{NORMALISATION}not confirmed on 20 images (ImageNet is ahead); give")],
        ),
        (("inconclusive", "inconclusive"), assumed("not confirmed on 20 images (ImageNet is ahead)")),
        (
            ("another-fits-better", "fits"),
            [
                (
                    "setup/another-fits-better",
                    "attention was assumed and does not fit: ImageNet fits better than CLIP (NLL lower by 0.300",
                )
            ],
        ),
    ],
)
def test_what_is_assumed_is_confirmed_or_a_finding(verdicts: tuple[str, str], said: Said) -> None:
    names = ("attention", "normalisation")
    evidence = {"setup": [part(verdict, part=name) for verdict, name in zip(verdicts, names, strict=True)]}
    assert said_alike(found(evidence, ASSUMED), said)
    statuses = {"fits": "confirmed", "inconclusive": "assumed", "another-fits-better": "contradicted"}
    parts = setup_parts(whole({"checkpoints": [{"name": "net"} | ASSUMED]}).checkpoints[0], evidence)
    assert [each.status for each in parts] == [statuses[verdict] for verdict in verdicts]


TEXT, LOOK = "setup/text-assumed", "; robustkit inspect CHECKPOINT --data-dir DIR shows what fits"
LOST, OPEN = ("setup/evidence-missing", GONE), "not confirmed on 20 images"


def text_assumed(form: str, why: str) -> tuple[str, str]:
    return TEXT, f"text ({form}) was assumed: {why}; give --text {form} if that is right{LOOK}"


@pytest.mark.parametrize(
    ("source", "form", "verdict", "best", "said"),
    [
        ("option", "canonical", "inconclusive", "written", []),
        ("family", "canonical", "fits", "canonical", []),
        ("family", "canonical", "inconclusive", "canonical", [text_assumed("canonical", OPEN)]),
        ("family", "canonical", "inconclusive", "written", [text_assumed("canonical", f"{OPEN} (written is ahead)")]),
        ("family", "", "inconclusive", "written", [text_assumed("written", OPEN)]),
        (
            "family",
            "canonical",
            "another-fits-better",
            "written",
            [("setup/another-fits-better", "text was assumed and does not fit: written fits better than canonical")],
        ),
        ("family", "canonical", "", "", [text_assumed("canonical", "not checked, its evidence is missing"), LOST]),
        ("option", "canonical", "", "", [LOST]),
    ],
)
def test_a_form_of_text_that_nobody_stated_is_confirmed_or_a_finding(
    source: str, form: str, verdict: str, best: str, said: Said
) -> None:
    """A run that names none has texts as they are written. Without a verdict there is no evidence."""
    sources = {"mean": "option", "std": "option", "text": source}
    checkpoint = {"arch": "SigLIP", "preprocessing_source": sources, "metadata": {"text": form} if form else {}}
    checked = {"setup": [part("fits"), part(verdict, part="text", in_use=form or "written", best=best)]}
    given = found(checked if verdict else None, checkpoint)
    assert said_alike(given, said) and all(each in said for each in given if each[0] == TEXT)


@pytest.mark.parametrize(
    ("run", "checkpoint", "said"),
    [
        ({}, ASSUMED, [*assumed("not checked, its evidence is missing"), ("setup/evidence-missing", GONE)]),
        ({}, {}, [("setup/evidence-missing", GONE)]),
        ({"data": {"n": 9}}, {}, []),
        ({"data": {"n": 9}}, ASSUMED, assumed("not checked, fewer than 10 labelled images")),
        ({"arguments": {"setup_check": False}}, {}, [(UNCHECKED.code, UNCHECKED.text)]),
        ({"arguments": {"setup_check": False}}, ASSUMED, assumed("not checked, --no-setup-check was given")),
        ({"arguments": {}}, {}, []),  # a run of an earlier version, or of a task that has no check
        ({"arguments": {}}, ASSUMED, assumed("not checked, it has no evidence")),
        (
            {"conditions": ["fog"]},
            {},
            [(UNCHECKED.code, "the set-up was not checked: clean images were not evaluated")],
        ),
    ],
)
def test_missing_evidence_is_a_finding(run: dict[str, Any], checkpoint: dict[str, Any], said: Said) -> None:
    assert said_alike(found(None, checkpoint, **run), said)


def test_evidence_that_is_deleted_or_damaged_is_a_finding_and_taken_again(tmp_path: Path) -> None:
    place = furnish(tmp_path)
    run = small(place, tmp_path / "run", attacks="none", setup_check=False)
    assert UNCHECKED in raised(run.results())
    small(place, tmp_path / "run", attacks="none")
    path = run.evidence_path("net", "clean")
    whole_evidence = path.read_bytes()
    path.unlink()
    refresh(run)
    assert Finding("setup/evidence-missing", GONE, "limit") in raised(run.results())
    small(place, tmp_path / "run", attacks="none")
    assert path.read_bytes() == whole_evidence
    path.write_text(path.read_text().replace("inconclusive", "another-fits-better"))
    lines: list[str] = []
    small(place, tmp_path / "run", attacks="none", say=lines.append)
    assert any("evidence: it was modified after it was written" in line for line in lines)
    assert path.read_bytes() == whole_evidence


@pytest.mark.parametrize(
    "evidence", [None, {}, {"setup": 3}, {"setup": [3, {"verdict": "another-fits-better"}]}, {"setup": [{"n": "x"}]}]
)
def test_what_has_another_shape_says_nothing(evidence: Any) -> None:
    assert found(json.loads(json.dumps(evidence)), arguments={}) == setup_notes(evidence) == []


def clean_records(predictions: list[int], nll: float, labels: list[int]) -> pa.Table:
    return pa.table({"label": labels, "prediction": predictions, "nll": [nll] * len(labels)})


@pytest.mark.parametrize(
    ("hits", "labelled", "shifted", "reduced", "remedy"),
    [
        (
            [1, 1, 0],
            [0, 60, 40],
            90,
            False,
            "90.0% of pixels would be right if masks store class k as k + 1, with 0 for",
        ),
        ([1, 1, 0], [50, 60, 40], 90, False, "90.0% of pixels would be right"),  # pixels of label 0 would not count
        ([1, 1, 0], [0, 60, 40], 69, False, "69.0% of pixels would be right"),
        ([1, 1, 0], [0, 60, 40], 68, False, ""),  # hardly more than of class 0 everywhere
        ([60, 30, 0], [0, 60, 40], 90, False, ""),  # as it is stored as much is right
        ([1, 1, 0], [60, 40, 0], 90, True, "if masks store class k as k; leave out --reduce-zero-label"),
        ([1, 1, 0], [60, 40, 0], 68, True, ""),
        ([1, 1, 0], [0, 60, 40], 90, None, ""),  # of a command without this option
    ],
)
def test_masks_that_fit_by_one_are_told_with_their_remedy(
    hits: list[int], labelled: list[int], shifted: int, reduced: bool | None, remedy: str
) -> None:
    arguments = {} if reduced is None else {"reduce_zero_label": reduced}
    columns = {"intersections": [hits], "labelled": [labelled], "shifted": [shifted]}
    usual = "check the weights, attention, normalisation, and that labels are in the order of the outputs"
    (finding,) = guessing(pa.table({"nll": [3.0], **columns}), 3, arguments)
    assert finding.code == "labels/no-better-than-chance" and finding.text.startswith("no better than chance")
    assert remedy in finding.text if remedy else finding.text.endswith(usual)


def test_masks_that_fit_by_one_are_told_although_the_network_beats_chance() -> None:
    columns = {"nll": [0.1], "intersections": [[0, 61, 0]], "labelled": [[0, 60, 40]]}
    for shifted, count in ((61, 0), (90, 1)):
        findings = guessing(pa.table({**columns, "shifted": [shifted]}), 3, {"reduce_zero_label": False})
        assert [finding.code for finding in findings] == ["labels/shifted"] * count
        assert all(finding.text.startswith("90.0% of pixels would be right") for finding in findings)


def test_clean_records_tell_of_guessing_and_of_labels_in_another_order() -> None:
    labels = [place % 5 for place in range(40)]
    moved = [(label + 2) % 5 for label in labels]
    assert guessing(clean_records(labels, 0.4, labels), 5) == []
    assert guessing(clean_records(labels, math.log(5) - 1e-6, labels), 5) == []
    guess, order = guessing(clean_records(moved, 7.99, labels), 5)
    assert (guess.code, order.code) == ("labels/no-better-than-chance", "labels/other-order")
    assert guess.text.startswith("no better than chance on clean data: NLL 7.99, chance 1.61; check the weights")
    assert order.text.startswith(
        "labels may be in a different order: 100 % of the samples are predicted as the rest of their class, and 0 % "
        "as their label (label 0 as 2, 1 as 3, 2 as 4, 3 as 0, …); give --labels FILE.csv with the model's own numbers"
    )
    assert guessing(clean_records(moved, 7.99, labels), 5, {"data": {}}) == [guess, order]
    (named,) = guessing(clean_records(moved, 0.4, labels), 5, {"classes": None})
    assert named.code == order.code and named.text.endswith(
        "; give --classes FILE with the names of the classes in the order of the model's outputs"
    )
    counts = {"nll": [1.0, 1.0], "intersections": [[3, 1], [2, 0]], "labelled": [[5, 3], [3, 1]]}
    (frequent,) = guessing(pa.table(counts), 3)  # 6 of 12 pixels are right, class 0 alone has 8
    assert frequent.code == "labels/most-frequent-class"
    assert "most frequent class everywhere: 50.0% of pixels are correct, that class covers 66.7%" in frequent.text
