"""Images of 16 x 16 pixels with four labels each, and linear networks of a logit for each label."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

NET = """
from torch import nn

def make():
    return nn.Sequential(nn.Flatten(), nn.Linear(768, 4))
"""
NAMES = ("red", "green", "blue", "bright")
COUNT = 40


def weights(seed: int = 0) -> tuple[Any, Any]:
    """Return weights (4, 768), each row of the same l1 norm, and biases (4,), so that a grey image has logits of 0. As
    norms are the same, the label of the smallest logit is also the one that the smallest linf change turns."""
    draw = torch.Generator().manual_seed(seed)
    rows = (0.3, 1.5)[seed] * torch.randn(4, 3, 256, generator=draw)
    for channel in range(3):
        rows[channel, channel] += 0.6
    rows[3] += 0.2
    rows = 100 * rows.flatten(1) / rows.flatten(1).abs().sum(dim=1, keepdim=True)
    return rows, -rows.sum(dim=1) / 2


def pixels() -> Any:
    """Return (COUNT, 16, 16, 3) bytes, between 50 and 205, so that bounds are far."""
    rng = np.random.Generator(np.random.PCG64(0))
    shades = rng.uniform(90, 165, (COUNT, 1, 1, 3))
    return np.clip(shades + rng.normal(0, 12, (COUNT, 16, 16, 3)), 50, 205).round().astype(np.uint8)


def truths() -> Any:
    """Return (COUNT, 4) of 0 and 1: mostly what a network sees; the first image has no label."""
    rng = np.random.Generator(np.random.PCG64(1))
    means = pixels().mean(axis=(1, 2))
    labels = np.column_stack([means > 127, means.mean(axis=1) > 127]) ^ (rng.random((COUNT, 4)) < 0.15)
    labels[0] = False
    return labels.astype(int)


def write_table(path: Path, rows: Any, names: tuple[str, ...] = NAMES) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("file", *names), *((f"{k:02d}.png", *row) for k, row in enumerate(rows))])
    return path


def furnish(root: Path) -> None:
    """Write net.py, two checkpoints, images, labels.csv and names.txt."""
    (root / "net.py").write_text(NET)
    for name, seed in (("net.pth", 0), ("other.pth", 1)):
        rows, biases = weights(seed)
        torch.save({"1.weight": rows, "1.bias": biases}, root / name)
    (root / "images").mkdir()
    for place, image in enumerate(pixels()):
        Image.fromarray(image).save(root / "images" / f"{place:02d}.png")
    write_table(root / "labels.csv", truths().tolist())
    (root / "names.txt").write_text("\n".join(NAMES))


def command(
    root: Path, out: Path, *more: str, net: tuple[str, ...] = ("net.pth",), table: str = "labels.csv"
) -> list[str]:
    """Return the words of a run on these; `more` comes after all else."""
    model = ("--arch", f"{root / 'net.py'}:make", "--mean", "0", "--std", "1", "--img-size", "16")
    data = ("--data-dir", str(root / "images"), "--labels", str(root / table), "--names", str(root / "names.txt"))
    checkpoints = [str(root / name) for name in net]
    return ["multilabel", *checkpoints, *model, *data, "--device", "cpu", "--quiet", "--out", str(out), *more]


def logits(seed: int = 0) -> Any:
    """Return (COUNT, 4) logits of a network, in float64."""
    rows, biases = weights(seed)
    images = torch.from_numpy(pixels()).double().permute(0, 3, 1, 2).flatten(1) / 255
    return (images @ rows.double().T + biases.double()).numpy()
