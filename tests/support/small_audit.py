"""A small audit for tests: a factory of one's own, its weights, 30 images of three classes."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import robustkit
from robustkit.report.run import Run
from robustkit.runs.manifest import digest_of_pages

FACTORY = """
import torch
from torch import nn

def build(num_classes=3):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.GELU(), nn.Flatten(), nn.Linear(4 * 8 * 8, 3))
    net.default_cfg = {"mean": (0.5, 0.4, 0.3), "std": (0.25, 0.2, 0.5), "input_size": (3, 8, 8), "crop_pct": 1.0}
    return net
"""

UNCHECKED = "the set-up was not checked: --no-setup-check was given"
"""The finding of audits that skip the check because a test is not about it."""


def furnish(root: Path) -> Path:
    """Write a factory, its weights and 30 images of three classes into a folder."""
    (root / "net.py").write_text(FACTORY)
    scope: dict[str, Any] = {}
    exec(FACTORY, scope)
    torch.save(scope["build"]().state_dict(), root / "net.pth")
    pixels = np.random.Generator(np.random.PCG64(0)).integers(0, 256, (30, 8, 8, 3), dtype=np.uint8)
    for index, image in enumerate(pixels):
        folder = root / "images" / "abc"[index % 3]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / f"{index:02d}.png")
    return root


def command(place: Path, out: Path, *extra: str) -> list[str]:
    return [
        *(sys.executable, "-m", "robustkit", "audit", str(place / "net.pth"), "--arch", f"{place / 'net.py'}:build"),
        *("--data-dir", str(place / "images"), "--num-classes", "3", "--out", str(out), "--device", "cpu", *extra),
    ]


def audit(place: Path, out: Path, **options: Any) -> Run:
    arguments = {"attacks": "fgsm,pgd(steps=3),spsa(steps=2,directions=4)", "eps": "8/255", "shard_size": 8} | options
    model = {"arch": f"{place / 'net.py'}:build", "num_classes": 3} | arguments.pop("model", {})
    data_dir = arguments.pop("data_dir", place / "images")
    return robustkit.audit([place / "net.pth"], data_dir=data_dir, out=out, device="cpu", model=model, **arguments)


def files(run: Path) -> dict[str, bytes]:
    records = {str(p.relative_to(run)): p.read_bytes() for p in sorted(run.rglob("*.parquet"))}
    return records | {name: (run / name).read_bytes() for name in ("summary.json", "summary.csv")}


def pages(run: Path) -> dict[str, str]:
    """Return a digest of each record and picture file except for its metadata, which names the device."""
    return {str(p.relative_to(run)): digest_of_pages(p.read_bytes()) for p in sorted(run.rglob("*.parquet"))}
