"""Small coloured images of four classes, training images apart, and a network whose features are their mean colours."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image

NET = """
from torch import nn

def means():
    return nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.BatchNorm1d(12, affine=False))
"""
CLASSES = ("amber", "blue", "cyan", "dark")
_COLOURS = ((0.7, 0.6, 0.3), (0.45, 0.4, 0.6), (0.4, 0.6, 0.6), (0.5, 0.5, 0.45))


def furnish(root: Path, train: int = 12, test: int = 6) -> None:
    """Write net.py and its weights, and `train` and `test` images of each class into folders of these names."""
    (root / "net.py").write_text(NET)
    moments = {"2.running_mean": torch.full((12,), 0.5), "2.running_var": torch.full((12,), 0.04)}
    torch.save({**moments, "2.num_batches_tracked": torch.tensor(0)}, root / "net.pth")
    rng = np.random.Generator(np.random.PCG64(0))
    for part, count in (("train", train), ("test", test)):
        for name, colour in zip(CLASSES, _COLOURS, strict=True):
            folder = root / part / name
            folder.mkdir(parents=True)
            for index in range(count):
                means = np.clip(rng.normal(colour, 0.25, (2, 2, 3)), 0, 1).repeat(16, axis=0).repeat(16, axis=1)
                pixels = np.clip(means + rng.normal(0, 0.02, means.shape), 0, 1)
                Image.fromarray((255 * pixels).round().astype(np.uint8)).save(folder / f"{index:02d}.png")


def command(root: Path, out: Path, *more: str) -> list[str]:
    """Return the words of a run on these."""
    model = ("--arch", f"{root / 'net.py'}:means", "--mean", "0", "--std", "1", "--img-size", "32")
    data = ("--train", str(root / "train"), "--data-dir", str(root / "test"))
    heads = ("--neighbours", "1,5,20", "--shots", "1,3", "--device", "cpu", "--quiet")
    return ["features", str(root / "net.pth"), *model, *data, *heads, "--out", str(out), *more]


def features(root: Path, part: str) -> tuple[list[str], np.ndarray, np.ndarray]:
    """Return ids, features (N, 12) in float64 and labels (N,) of all images of a part, in the order of their ids."""
    ids, found, labels = [], [], []
    for label, name in enumerate(CLASSES):
        for path in sorted((root / part / name).iterdir()):
            pixels = np.asarray(Image.open(path)).astype(np.float64) / 255
            means = pixels.reshape(2, 16, 2, 16, 3).mean(axis=(1, 3)).transpose(2, 0, 1)
            found.append((means.ravel() - 0.5) / np.sqrt(0.04 + 1e-5))
            ids.append(f"{name}/{path.name}")
            labels.append(label)
    return ids, np.array(found), np.array(labels)
