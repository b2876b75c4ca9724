"""Slices stand alone: deleting the folder of one takes its command, and nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from places import ROOT

import robustkit
from robustkit.cli.app import cli
from robustkit.common import plugins

SLICES = [path.parent for path in sorted((ROOT / "robustkit" / "slices").glob("*/entry_points.txt"))]
COMMANDS = {
    folder.name: " ".join(
        re.findall(r"^(\S+) = ", text.partition("[robustkit.commands]\n")[2].partition("\n[")[0], re.M)
    )
    for folder in SLICES
    if (text := (folder / "entry_points.txt").read_text("utf-8"))
}
TASKS = [folder.name for folder in SLICES if "[robustkit.tasks]" in (folder / "entry_points.txt").read_text("utf-8")]
WITHOUT = """
import sys
from click.testing import CliRunner
import robustkit
from robustkit.cli.app import cli
from robustkit.common.plugins import GROUPS, built_in, every_plugin
from robustkit.errors import ProtocolError
from robustkit.evaluations.attacks.evaluate import parse_condition
from robustkit.evaluations.condition import EVERY_FAMILY
from robustkit.evaluations.family import families
from robustkit.protocol.card import card_names, load_card
from robustkit.results.published import read_published, reference_names
from robustkit.runs.description import making_commands
from robustkit.tasks import metrics
from robustkit.tasks.task import task_named

def said(*words, status=0):
    done = CliRunner().invoke(cli, words)
    assert done.exit_code == status, done.output
    return done.output

gone, left, kinds, every = (names.split() for names in sys.argv[1:])
assert not every_plugin() and sorted(cli.commands) == sorted(set(every) - set(gone))
for name in gone:
    assert not hasattr(robustkit, name) and name not in dir(robustkit)
    assert f"No such command '{name}'" in said(name, status=2)
    assert f"\\n  {name} " not in said("--help")
    try:
        task_named(name)
    except ProtocolError as fault:
        assert f"unknown task '{name}'" in str(fault)
for name in left:
    assert name in dir(robustkit) and f"\\n  {name} " in said("--help") and name in making_commands()
    assert "--protocol" in said(name, "--help")
for kind in kinds:
    assert kind not in EVERY_FAMILY
    try:
        parse_condition(kind, load_card("standard"))
    except ProtocolError as fault:
        assert f"unknown attack '{kind}'" in str(fault)
    else:
        raise AssertionError(kind)
assert {load_card(name).task for name in card_names()} == {"classification", "segmentation", *left}
if not built_in("clusters"):
    try:
        robustkit.audit(["zoo:shapes-vit-quest"], data_dir="embedded:shapes", limit=4, ray="local", out="cluster")
    except ProtocolError as fault:
        assert "--ray: this installation is without the slice robustkit/slices/cluster" in str(fault)
    else:
        raise AssertionError("ray")
assert families() and "top1" in metrics()
assert all(read_published(name).figures for name in reference_names())
if left:
    sys.exit()
from robustkit import *
from robustkit.pipeline.plan import plan_of
from robustkit.pipeline.request import ClassificationRequest

request = ClassificationRequest(checkpoints=["zoo:shapes-vit-quest"], data_dir="embedded:shapes", limit=4)
assert [condition.name for condition in plan_of(request).conditions] == ["clean", "fgsm", "pgd"]
"""


def copy_of(root: Path) -> Path:
    """The package without its tests."""
    for package in ("attacks", "cam", "corruptions"):
        (root / package).symlink_to(ROOT / package)
    left_out = shutil.ignore_patterns("__pycache__", "embedded")
    shutil.copytree(ROOT / "robustkit", root / "robustkit", ignore=left_out)
    (root / "robustkit" / "embedded").symlink_to(ROOT / "robustkit" / "embedded")
    return root


@pytest.mark.parametrize(
    "gone",
    [pytest.param([name], marks=pytest.mark.slow, id=name) for name in COMMANDS]
    + [pytest.param(list(COMMANDS), id="all")],
)
def test_deleting_a_slice_takes_its_command_and_nothing_else(gone: list[str], tmp_path: Path) -> None:
    left = [name for name in TASKS if name not in gone]
    places = [ROOT / "robustkit" / "slices" / name / "entry_points.txt" for name in gone]
    kinds = re.findall(r"^(\S+) = \S+:FAMILY$", "\n".join(place.read_text("utf-8") for place in places), re.MULTILINE)
    words = [COMMANDS[name] for name in gone], left, kinds, cli.commands
    run_without(gone, tmp_path, WITHOUT, *map(" ".join, words))


def run_without(gone: list[str], folder: Path, code: str, *words: str) -> None:
    """Run code where slices are deleted."""
    root = copy_of(folder)
    for name in gone:
        shutil.rmtree(root / "robustkit" / "slices" / name)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ROBUSTKIT_")}
    environment = kept | {"PYTHONPATH": str(root), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


REFUSED = """
import sys
from pathlib import Path
import robustkit
from robustkit.cli.app import cli
from robustkit.common.plugins import of_slice
from robustkit.errors import RobustkitError
from robustkit.results.published import read_published

Path("folder").mkdir()
Path("folder", "open_clip_config.json").write_text("{}")
Path("theirs.json").write_text("{}")
Path("a.toml").write_text('[[rule]]\\nrequire = "top1 under clean >= 0.5"\\n')
TWO = ["zoo:shapes-vit-standard", "zoo:shapes-vit-quest"]
UNTIL = "check --until-decided --policy a.toml --data-dir embedded:shapes --out run"

def audit(checkpoints, **options):
    given = {"data_dir": "embedded:shapes", "limit": 4, "attacks": "fgsm", "setup_check": False, "out": "run"}
    return robustkit.audit(checkpoints, **(given | options))

def check(words, *more):
    cli.main([*words.split(), *more], standalone_mode=False)

for code, text in zip(sys.argv[1::2], sys.argv[2::2]):
    try:
        eval(code)
    except RobustkitError as fault:
        assert text in str(fault) and "\\n" not in str(fault), (code, fault)
    else:
        raise SystemExit(f"{code} is not refused")
"""
WITHOUT_IT = "this installation is without the slice that does it; install RobustKit again"
REFUSALS = {  # by slice, what it did, and the line that is left of it
    "graphs": {"robustkit.load('onnx:net.onnx')": "no such file, and unknown kind of checkpoint 'onnx'"},
    "open_clip": {"robustkit.load('hf:folder')": "no config.json in it; expected the layout of timm or tr"},
    "exports": {
        "robustkit.Run('run').export('csv')": WITHOUT_IT,
        "read_published('theirs.json')": WITHOUT_IT,
        "of_slice('logging_to', '--log x')": WITHOUT_IT,
    },
    "predictions": {"audit(['predictions:theirs.csv'])": f"predictions:FILE: {WITHOUT_IT}"},
    "transfer": {"audit(TWO, transfer=True)": f"--transfer: {WITHOUT_IT}"},
    "engines": {"audit(TWO, engine='torchattacks')": f"engine torchattacks: {WITHOUT_IT}"},
    "two_phase": {"audit(TWO, attacks='autoattack(second=2)')": "unknown parameter of autoattack 'second'"},
    "evidence": {"audit(TWO, evidence='quick')": f"--evidence quick: {WITHOUT_IT}"},
    "watching": {
        "audit(TWO, watch_attention=True)": WITHOUT_IT,
        "robustkit.inspect(TWO[0], 'embedded:shapes', stability=True)": WITHOUT_IT,
    },
    "draft": {"[audit(TWO[:1]), check('check run --init --policy b.toml')]": f"--init: {WITHOUT_IT}"},
    "attestation": {
        "[audit(TWO[:1]), check('check run --policy a.toml --attestation', 'b.json')]": f"--attestation: {WITHOUT_IT}",
        "check(UNTIL, '--attestation', 'b.json', TWO[0])": f"--attestation: {WITHOUT_IT}",
        "check('check', TWO[0], '--verify-attestation', 'b.json')": f"--verify-attestation: {WITHOUT_IT}",
    },
}


@pytest.mark.slow
def test_what_deleted_slices_did_is_refused_in_a_line(tmp_path: Path) -> None:
    pairs = [word for calls in REFUSALS.values() for pair in calls.items() for word in pair]
    run_without([*REFUSALS], tmp_path, REFUSED, *pairs)


def test_without_the_slice_nothing_is_audited_until_it_is_decided(tmp_path: Path) -> None:
    run_without(["until_decided"], tmp_path, REFUSED, "check(UNTIL, TWO[0])", f"--until-decided: {WITHOUT_IT}")


UNEXAMINED = """
import sys
import robustkit
from robustkit.report.refresh import refresh

def codes(results):
    return {finding.code for figure in results for finding in figure.findings if finding.code.startswith("evidence/")}

run = robustkit.audit("zoo:shapes-vit-standard", data_dir="embedded:shapes", limit=4, attacks="fgsm", out="run")
assert not run.evidence("shapes-vit-standard", "fgsm(eps=1/255)") and codes(run.summary()) == {"evidence/declined"}
other = robustkit.Run(sys.argv[1])
assert codes(refresh(other)) == {"evidence/failed"}
"""


@pytest.mark.slow
def test_attacks_without_the_slice_of_evidence_are_flagged(tmp_path: Path) -> None:
    """An audit takes none, and a run that has some is read without its judgement."""
    examined = tmp_path / "examined"
    robustkit.audit("zoo:shapes-vit-standard", data_dir="embedded:shapes", limit=4, attacks="fgsm", out=examined)
    (tmp_path / "package").mkdir()
    run_without(["evidence"], tmp_path / "package", UNEXAMINED, str(examined))


def test_slices_are_no_plug_ins() -> None:
    assert list(plugins.built_in("tasks")) == sorted(TASKS) and not plugins.every_plugin()
    assert {*plugins.built_in("commands")} == {*" ".join(COMMANDS.values()).split()} and not plugins.built_in("nothing")
