"""Whole runs on a CUDA device, or the stand-in for one, against the same runs on the CPU."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import stand_in
import torch
from click.testing import CliRunner
from small_audit import pages

import robustkit
from robustkit.cli.app import cli

pytestmark = pytest.mark.gpu
EXPLAINED: dict[str, Any] = {
    "checkpoints": ["zoo:shapes-vit-quest"],
    "data_dir": "embedded:shapes",
    "attacks": "fgsm",
    "cams": "agcam,grad-cam,rollout,gradient",
    "watch_attention": True,
    "limit": 3,
}
CORRUPTED: dict[str, Any] = {
    "checkpoints": ["zoo:shapes-vit-elliptical"],
    "data_dir": "embedded:shapes",
    "attacks": "none",
    "corruptions": "in-c,-frost",
    "limit": 5,
}
SEGMENTER: dict[str, Any] = {
    "checkpoints": ["zoo:shapes-segmenter-quest"],
    "data_dir": "embedded:shapes",
    "attacks": "pgd(steps=2),segpgd(steps=2)",
    "corruptions": "in-c,-frost",
    "limit": 3,
}


def evaluate(device: str, out: Path, request: Mapping[str, Any]) -> Mapping[str, str]:
    run = robustkit.segment if "segmenter" in request["checkpoints"][0] else robustkit.audit
    run(**request, out=out, device=device)
    return pages(out)


def attacked(place: Path) -> dict[str, Any]:
    """Return a request for all attacks on a small network of one's own."""
    return {
        "checkpoints": [str(place / "net.pth")],
        "data_dir": str(place / "images"),
        "model": {"arch": f"{place / 'net.py'}:build", "num_classes": 3},
        "attacks": "fgsm,pgd(steps=3),spsa(steps=2,directions=4),square(queries=20),autoattack(steps=5,queries=20)",
        "eps": "8/255",
        "limit": 10,
        "batch_size": 4,
    }


@pytest.mark.skipif(bool(stand_in.why_not()), reason=stand_in.why_not() or "there is a stand-in")
@pytest.mark.parametrize("what", ["attacked", "explained", "corrupted", "segmenter"])
def test_records_are_those_of_the_cpu_to_the_byte(tmp_path: Path, place: Path, what: str) -> None:
    kinds = {"explained": EXPLAINED, "corrupted": CORRUPTED, "segmenter": SEGMENTER}
    request = kinds.get(what) or attacked(place)
    expected = evaluate("cpu", tmp_path / "cpu", request)
    with stand_in.devices() as seen:
        computed = evaluate("auto", tmp_path / "cuda", request)
        assert seen.launched > 1000  # it ran on the device
    assert expected and computed == expected


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "zoo:shapes-vit-quest", "--data-dir", "embedded:shapes", "--limit", "8"],
        ["inspect", "zoo:shapes-segmenter-quest", "--data-dir", "embedded:shapes", "--limit", "2"],
        ["cam", "zoo:shapes-vit-quest", "--data-dir", "embedded:shapes", "--limit", "2"],
        ["corrupt", "picture.png"],
        ["doctor"],
    ],
    ids=lambda words: "-".join(words[:2]).replace(":", "-"),
)
def test_commands_run_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cuda: torch.device, words: list[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if "picture.png" in words:
        from PIL import Image

        Image.new("RGB", (48, 40), (90, 120, 30)).save("picture.png")
    done = CliRunner().invoke(cli, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    if words == ["doctor"]:
        assert done.output.count("on cpu and cuda") == 9
    assert os.environ.get("CUBLAS_WORKSPACE_CONFIG") or words == ["doctor"]
