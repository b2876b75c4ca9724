"""Runs that someone copied, cut or mended: each command refuses them, computes again, or says what is missing.

A table: what was done to a whole run, and what `check`, `compare`, `report` and the audit make of it. `refused` is one
line and status 2, or 3 where nothing is left; `reported` a flag that the whole run has not, of `check` a failing gate;
`recomputed` the bytes of the whole run after a line on what was done; `same` the output for the whole run, where what
was altered has no part in it.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import small_audit
from alterations import (
    AUTO,
    EVIDENCE,
    FGSM,
    FIELDS,
    OTHERS,
    RECORDS,
    SAME,
    Alter,
    of_json,
    over_attack,
    read,
    record,
    records_from,
)
from click.testing import CliRunner, Result
from figures import said_of
from PIL import Image

from robustkit.cli.app import cli
from robustkit.errors import GateFailed, RobustkitError
from robustkit.report.run import Run
from robustkit.report.samples import Browser

OPTIONS: dict[str, Any] = {"attacks": f"fgsm,{AUTO}"}
OPTIONS |= {"browse": 12, "batch_size": 8}
COMMANDS = ("check", "compare", "report", "audit")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_audit.furnish(tmp_path_factory.mktemp("place"))


def audited(place: Path, out: Path, **options: Any) -> Run:
    return small_audit.audit(place, out, **OPTIONS | {"setup_check": False} | options)


@pytest.fixture(scope="module", autouse=True)
def few_and_plain(one_thread: None) -> Any:
    """Of the page only what reads the kept pictures: the rest is drawn from what the summary has read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("robustkit.report.page.write_report", lambda run, *_: list(Browser(run).samples()))
        yield


@pytest.fixture(scope="module")
def runs(place: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """A whole run, and others of which one thing is different."""
    root = tmp_path_factory.mktemp("runs")
    made = {"whole": audited(place, root / "whole"), "weights": audited(retrained(root), root / "weights")}
    for name, options in {
        "seed": {"seed": 1},
        "dtype": {"dtype": "bfloat16"},
        "limit": {"limit": 24},
        "shards": {"shard_size": 15},
        "eps": {"eps": "4/255"},
        "card": {"protocol": "quest-paper"},
        "data": {"data_dir": other_images(place, root)},
    }.items():
        made[name] = audited(place, root / name, **{"attacks": "fgsm", **options})
    return made


def retrained(root: Path) -> Path:
    """A factory and weights of the same names, and other values."""
    place = root / "retrained"
    place.mkdir()
    small_audit.furnish(place)
    import torch

    torch.save({k: v * 1.5 for k, v in torch.load(place / "net.pth").items()}, place / "net.pth")
    return place


def other_images(place: Path, root: Path) -> Path:
    """Images of the same names, one with a pixel changed."""
    shutil.copytree(place / "images", root / "images")
    path = min((root / "images").rglob("*.png"))
    with Image.open(path) as image:
        pixels = np.array(image)
    pixels[0, 0, 0] ^= 1
    Image.fromarray(pixels).save(path)
    return root / "images"


def policy(folder: Path, whole: Run) -> Path:
    """Rules that the whole run passes; its own findings are excepted."""
    found = sorted({text for row in whole.summary() for text in said_of(row)})
    excepted = f" except {', '.join(map(repr, found))}" if found else ""
    alike = "except 'net.py:build instead of'"  # another file, of another folder
    rules = [
        f"no findings{excepted}",
        f"drop against baseline <= 25 % {alike}",
        f"rise in nll against baseline <= 99 {alike}",
    ]
    rules += [f"top1 under {text} <= 99 %" for text in ("clean", FGSM, AUTO)]
    path = folder / "policy.toml"
    path.write_text("undecided = 'pass'\n" + "".join(f"[[rule]]\nrequire = {json.dumps(rule)}\n" for rule in rules))
    return path


def invoke(*words: Any) -> Result:
    return CliRunner().invoke(cli, list(map(str, words)), standalone_mode=False)


def outcome(
    command: str, run: Run, place: Path, runs: dict[str, Run], folder: Path, baseline: Run | None = None
) -> str:
    """One word on what a command makes of a run. The gate compares with a run of other weights: no run is its own
    baseline.
    """
    whole = runs["whole"]
    lines: list[str] = []
    if command == "audit":
        before = evidence(run)
        try:
            audited(place, run.path, say=lines.append)
        except RobustkitError as fault:
            return one_line(fault)
        assert small_audit.files(run.path).items() >= needed(whole).items()
        assert evidence(run) == evidence(whole)
        names = ("recomputed", "removed; the report", "were already done")
        reported = [line for line in lines if any(name in line for name in names)]
        alike = reported == ["12 units of work were already done and were not recomputed"]
        return "same" if alike and before == evidence(whole) else "recomputed"
    out = folder / "out.json"
    words = {
        "check": (
            "check",
            run.path,
            "--policy",
            policy(folder, whole),
            "--baseline",
            (baseline or runs["weights"]).path,
        ),
        "compare": ("compare", (baseline or whole).path, run.path),
        "report": ("report", run.path),
    }[command]
    words = words if command == "report" else (*words, "--json", out)
    made = invoke(*words)
    if isinstance(made.exception, GateFailed):
        return "reported"
    if made.exception is not None:
        assert isinstance(made.exception, RobustkitError), made.exc_info
        return one_line(made.exception)
    if command == "report":
        said = " ".join(made.output.split())  # a line may end anywhere
        signs = ("unfinished:", "incomplete", "no records", "evidence is missing")
        return "reported" if any(words in said for words in signs) else "same"
    if command == "compare":
        pairs = json.loads(out.read_text())["pairs"]
        flagged = [line for pair in pairs for line in (*pair["flags"], *pair["left_out"])]
        return (
            "reported"
            if any("incomplete" in line or "no records" in line or "missing" in line for line in flagged)
            else "same"
        )
    return "same"


def one_line(fault: RobustkitError) -> str:
    text = str(fault)
    assert "\n" not in text and "cannot be used (" not in text and fault.exit_code in (2, 3), text
    return "refused"


def needed(run: Run) -> dict[str, bytes]:
    """What the audit makes again: all but kept pictures."""
    return {name: data for name, data in small_audit.files(run.path).items() if not name.startswith("pictures")}


def evidence(run: Run) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in run.path.glob(EVIDENCE)}


def altered(whole: Run, to: Path, alter: Alter, runs: dict[str, Run]) -> Run:
    shutil.copytree(whole.path, to)
    run = Run(to)
    alter(run, runs)
    return run


@pytest.mark.parametrize("case", [*RECORDS, *OTHERS])
def test_no_altered_run_passes_for_whole(place: Path, runs: dict[str, Run], tmp_path: Path, case: str) -> None:
    alter, expected = (RECORDS | OTHERS)[case]
    found = []
    for command in COMMANDS:
        run = altered(runs["whole"], tmp_path / command, alter, runs)
        found.append(outcome(command, run, place, runs, tmp_path))
    assert " ".join(found) == expected


@pytest.mark.parametrize("field", FIELDS)
def test_no_field_of_run_json_can_be_edited_or_left_out(
    place: Path, runs: dict[str, Run], tmp_path: Path, field: str
) -> None:
    for way, change in {
        "edited": lambda parts: parts.update({field: FIELDS[field]}),
        "gone": lambda parts: parts.pop(field),
    }.items():
        run = altered(runs["whole"], tmp_path / way, of_json(change), runs)
        found = [outcome(command, run, place, runs, tmp_path) for command in COMMANDS]
        assert found == ["refused"] * 4, way
    assert set(FIELDS) == set(json.loads(runs["whole"].manifest_path.read_text()))


@pytest.mark.parametrize("case", [case for case, (_, words) in RECORDS.items() if words != SAME])
def test_nor_does_an_altered_baseline(place: Path, runs: dict[str, Run], tmp_path: Path, case: str) -> None:
    alter, expected = RECORDS[case]
    run = altered(runs["whole"], tmp_path / "baseline", alter, runs)
    found = [outcome(command, runs["weights"], place, runs, tmp_path, baseline=run) for command in COMMANDS[:2]]
    assert found == expected.split()[:2]


def test_a_candidate_cut_down_to_clean_is_undecided(place: Path, runs: dict[str, Run], tmp_path: Path) -> None:
    cut = audited(place, tmp_path / "cut", attacks="none")
    path = tmp_path / "p.toml"
    rule = "drop against baseline <= 25 % except 'net.py:build instead of'"
    path.write_text(f'undecided = "pass"\n[[rule]]\nrequire = "{rule}"\n')
    made = invoke("check", cut.path, "--policy", path, "--baseline", runs["weights"].path)
    assert isinstance(made.exception, GateFailed)
    assert f"conditions of the baseline that were not evaluated here: 2, the first: {AUTO}" in made.output
    made = invoke("check", runs["weights"].path, "--policy", path, "--baseline", cut.path)
    assert made.exception is None


def test_a_line_names_the_file_and_the_reason(place: Path, runs: dict[str, Run], tmp_path: Path) -> None:
    lines: list[str] = []
    run = altered(runs["whole"], tmp_path / "run", over_attack, runs)
    said = str(invoke("report", run.path).exception)
    path = record(run, AUTO, 0)
    assert said == (
        f"{path}: a record that does not belong to this run: its condition is clean instead of {AUTO}; rerun the same "
        "audit command to compute it again"
    )
    audited(place, run.path, say=lines.append)
    assert f"{path}: its condition is clean instead of {AUTO}; recomputed" in lines
    run = altered(runs["whole"], tmp_path / "other", records_from("weights"), runs)
    assert "its checkpoint sha256 is " in str(invoke("report", run.path).exception)


def test_what_a_record_says_of_itself(runs: dict[str, Run]) -> None:
    run = runs["whole"]
    known = pq.read_metadata(record(run, FGSM)).metadata
    of, manifest = json.loads(known[b"robustkit"]), run.manifest
    assert (of["condition"], of["shard"], of["seed"]) == (FGSM, 1, 0)
    assert (
        of["card digest"] == manifest.card_digest(FGSM)
        and "protocol" not in of
        and of["data digest"] == manifest.data.digest
    )
    assert of["checkpoint"]["sha256"] == manifest.checkpoints[0].sha256
    ids = read(record(run, FGSM))["sample_id"].to_pylist()
    assert ids == sorted(ids) and known[b"samples"].decode() == manifest.data.shards[1]
