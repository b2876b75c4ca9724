"""The command that a check prints for a missing condition is that of the run: it adds this and changes nothing else."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import series_files
import texts
import torch
from PIL import Image
from torch import nn

import robustkit
from robustkit.cli import app as cli
from robustkit.common.figure import Figure
from robustkit.errors import RunError
from robustkit.gate.policy import parse_policy
from robustkit.gate.verdicts import Outcome, judge
from robustkit.report.run import Run
from robustkit.runs.description import why_not_repeated

pytestmark = pytest.mark.usefixtures("one_thread", "pageless", "unexamined")
VIT, SHAPES = "zoo:shapes-vit-standard", ("--data-dir", "embedded:shapes")
FEW = (*SHAPES, "--limit", "8", "--no-setup-check")
CLEAN_ONLY = ("--attacks", "none")


def transfer(root: Path) -> list[str]:
    pair = (VIT, "zoo:shapes-vit-quest")
    return ["audit", *pair, *FEW, "--attacks", "fgsm", "--eps", "2/255", "--transfer", "--seed", "3"]


def maps(root: Path) -> list[str]:
    return ["audit", VIT, *FEW, *CLEAN_ONLY, "--cams", "agcam", "--keep-misclassified", "--faithfulness", "none"]


def scenes(root: Path) -> list[str]:
    """Masks of 0 to 10, of which two are ignored, in a folder apart."""
    draws = np.random.default_rng(0)
    for number in range(5):
        mask = draws.integers(0, 11, (4, 4), dtype=np.uint8).repeat(16, axis=0).repeat(16, axis=1)
        for folder, pixels in (("images", draws.integers(0, 256, (64, 64, 3), dtype=np.uint8)), ("masks", mask)):
            (root / folder).mkdir(exist_ok=True)
            Image.fromarray(pixels).save(root / folder / f"{number}.png")
    data = ("--data-dir", str(root / "images"), "--masks", str(root / "masks"), "--ignore", "0,3", "--limit", "4")
    return ["segment", "zoo:shapes-segmenter-quest", *data, *CLEAN_ONLY, "--no-setup-check", "--examples", "0"]


def released(root: Path) -> list[str]:
    tree = root / "tree"
    typed(
        "corrupt",
        "--write",
        str(tree),
        *SHAPES,
        "--limit",
        "8",
        *("--img-size", "64", "--crop-pct", "1"),
        "--corruptions",
        "contrast,brightness",
    )
    return ["audit", VIT, *FEW, *CLEAN_ONLY, "--corrupted-dir", str(tree), "--corruptions", "brightness(severity=2)"]


def words(root: Path) -> list[str]:
    texts.word_model(root / "words.safetensors")
    (root / "two.txt").write_text(texts.PAGE)
    some = ("--window", "8", "--stride", "4", "--perturbations", "case(rate=5)")
    return ["text", str(root / "words.safetensors"), "--data", str(root / "two.txt"), *some]


def series(root: Path) -> list[str]:
    return [*series_files.furnish(root), *CLEAN_ONLY, "--disturbances", "warp", "--limit", "9"]


def features(root: Path) -> list[str]:
    heads = ("--neighbours", "1,5", "--shots", "1", "--probe", "0.01")
    train = ("--train", "embedded:shapes-train", "--train-limit", "40")
    return ["features", VIT, *SHAPES, "--limit", "10", *train, *heads, *CLEAN_ONLY]


def exported(root: Path) -> list[str]:
    pytest.importorskip("robustkit.slices.graphs")
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: pip install .[onnx]")
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed: pip install .[onnx]")
    torch.manual_seed(0)
    network = nn.Sequential(nn.Conv2d(3, 4, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 15 * 15, 10)).eval()
    shapes = ({0: torch.export.Dim("rows")},)
    options: dict[str, Any] = {"dynamo": True, "verbose": False, "external_data": False, "dynamic_shapes": shapes}
    torch.onnx.export(network, (torch.rand(3, 3, 64, 64),), root / "net.onnx", **options)
    own = ("--mean", "0.5, 0.4, 0.3", "--std", "0.25", "--crop-pct", "0.9", "--interpolation", "bilinear")
    return ["audit", f"onnx:{root / 'net.onnx'}", *FEW, *own, "--attacks", "square(queries=5)"]


def typed(*words: str) -> None:
    """Run a command in this process, as the console script does."""
    before, sys.argv = sys.argv, ["robustkit", *words]
    try:
        cli.cli.main(list(words), prog_name="robustkit", standalone_mode=False)
    finally:
        sys.argv = before


def from_python(root: Path) -> list[str]:
    """Options as Python has them, in a run that another command then fills: numbers, tuples, and what is off."""
    model = {"mean": (0.5, 0.5, 0.5), "std": [0.25, 0.3, 0.25], "crop_pct": 0.9, "pixels": False}
    out = root / "the run"
    asked: dict[str, Any] = {"attacks": ["fgsm"], "eps": 2 / 255, "norm": "linf", "evidence": "none", "shuffle": True}
    asked |= {"limit": 8, "seed": 2, "setup_check": False, "model": model, "data": {"layout": None}, "progress": False}
    robustkit.audit(VIT, "embedded:shapes", out=out, **asked)
    return []


def judged(run: Path, rule: str) -> Outcome:
    return judge(parse_policy(f"[[rule]]\nrequire = '{rule}'\n", "p.toml"), Run(run))


def figures(run: Path) -> dict[tuple[str, str, str], Figure]:
    return {(row.checkpoint, *row.key): row for row in Run(run).summary()}


KINDS: dict[str, tuple[Callable[[Path], list[str]], str]] = {
    "transfer": (transfer, "top1 under pgd(eps=2/255,steps=2) >= 0.01"),
    "maps": (maps, "cam_iou under cam(rollout,mode=mask) >= 0.01"),
    "scenes": (scenes, "miou under corruption(contrast,severity=3) >= 0.01"),
    "classes": (scenes, "class_energy under cam(gradient,of=2,over=true) >= 0.01"),
    "released": (released, "top1 under corruption(contrast,severity=3) >= 0.01"),
    "text": (words, "nll under typo(rate=5) <= 100"),
    "series": (series, "top1 under jitter(sigma=0.5) >= 0.01"),
    "features": (features, "probe under corruption(contrast,severity=3) >= 0.01"),
    "python": (from_python, "top1 under pgd(eps=2/255,steps=2) >= 0.01"),
    "exported": (exported, "top1 under corruption(contrast,severity=2) >= 0.01"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_printed_command_adds_the_condition_and_changes_no_figure(kind: str, tmp_path: Path) -> None:
    furnish, rule = KINDS[kind]
    out = tmp_path / "the run"
    if words := furnish(tmp_path):
        typed(*words, "--out", str(out), "--quiet")
    before = figures(out)
    (missing, *_) = judged(out, rule).verdicts
    assert missing.figure is None and missing.reason.endswith("was not evaluated")
    command = shlex.split(missing.command)
    assert command[0] == "robustkit" and (why_not_repeated(missing.command) == "" or "--arch" in command)
    typed(*command[1:])
    outcome = judged(out, rule)
    assert outcome.verdicts and all(verdict.figure is not None for verdict in outcome.verdicts) and not outcome.notes
    after = figures(out)
    assert {key: after.get(key) for key in before} == before and len(after) > len(before)
    again = judged(out, rule.replace(">= 0.01", ">= 0.02")).verdicts
    assert not any(verdict.command for verdict in again)


def test_what_others_predicted_has_no_command(tmp_path: Path) -> None:
    (tmp_path / "theirs.csv").write_text("sample_id,label,prediction\na,0,0\nb,1,1\n")
    out = tmp_path / "run"
    typed("audit", f"predictions:{tmp_path / 'theirs.csv'}", "--out", str(out), "--quiet")
    (missing,) = judged(out, "top1 under fgsm >= 0.01").verdicts
    assert not missing.command and "theirs come from another system: predict its samples under it" in missing.reason


def test_other_use_of_wrong_predictions_is_refused_and_is_kept_without_maps(tmp_path: Path) -> None:
    """In either direction; an audit without maps leaves the scores as they are, and so does one with the option."""
    for number, (first, second) in enumerate((((), ("--keep-misclassified",)), (("--keep-misclassified",), ()))):
        out = tmp_path / f"run{number}"
        begun = ("audit", VIT, *FEW, "--out", str(out), "--quiet")
        maps_of = (*CLEAN_ONLY, "--faithfulness", "none", "--cams")
        typed(*begun, *maps_of, "agcam", *first)
        before = figures(out)
        with pytest.raises(RunError, match=r"use of maps of wrong predictions \(--keep-misclassified\), which changes"):
            typed(*begun, *maps_of, "rollout", *second)
        typed(*begun, *CLEAN_ONLY, "--corruptions", "contrast(severity=1)")
        after = figures(out)
        assert {key: after[key] for key in before} == before
        typed(*begun, *maps_of, "rollout", *first)
