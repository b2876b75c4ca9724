"""What a checkpoint does not say is said by each command that loads it."""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from safetensors.torch import load_file, save_file

import robustkit
from robustkit.cli.app import main
from robustkit.models.specs import embedded_file

pytestmark = pytest.mark.usefixtures("one_thread", "pageless")
NET = """
import timm
def build():
    sizes = {"img_size": 64, "patch_size": 8, "embed_dim": 96, "depth": 4, "num_heads": 3, "num_classes": 10}
    return timm.create_model("vit_tiny_patch16_224", **sizes)
"""


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint of QUEST attention that records nothing, a picture, and the folder of both as the current one."""
    tensors = load_file(embedded_file("shapes-vit-quest"))
    save_file({name: tensor.float() for name, tensor in tensors.items()}, tmp_path / "bare.safetensors")
    (tmp_path / "net.py").write_text(NET)
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "p.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    monkeypatch.setattr(sys, "argv", ["robustkit", *words.split()])
    with warnings.catch_warnings(), pytest.raises(SystemExit) as end:
        main()
    return int(end.value.code or 0), capsys.readouterr().err


ASSUMED = "attention 'standard', mean=[0.5, 0.5, 0.5], std=[0.5, 0.5, 0.5] assumed"


@pytest.mark.parametrize(
    ("command", "lines"),
    [
        ("cam bare.safetensors p.png --arch net.py:build --out maps.png", 1),
        ("cam bare.safetensors p.png --arch net.py:build --attention quest --mean .5 --std .5 --out maps.png", 0),
        ("cam zoo:shapes-vit-quest p.png --out maps.png", 0),
        ("inspect bare.safetensors --arch net.py:build", 0),  # which has a line on each
    ],
)
def test_each_command_says_what_it_assumes(
    command: str, lines: int, bare: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status, printed = run(command, monkeypatch, capsys)
    assert (status, printed.count(ASSUMED)) == (0, lines)
    if command.startswith("cam"):  # it says where each value comes from, as an audit does
        assert re.search(
            r": input: 64x64 pixels .*mean 0\.5, std 0\.5 \((assumed|by the user|by the checkpoint)", printed
        )
        assert ("WARNING: the file does not record its attention formula" in printed) == bool(lines)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        robustkit.load("bare.safetensors", arch="net.py:build")
    assert [str(each.message).count(ASSUMED) for each in seen] == [1]  # Python hears the same
