"""A .ts file of random series, and a linear model of them with its weights."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

CHANNELS, CLASSES = 2, 3
MEAN, STD = (1.0, -2.0), (0.5, 4.0)
FACTORY = """
import torch
from torch import nn

class Linear(nn.Module):
    def __init__(self, channels, num_classes):
        super().__init__()
        self.head = nn.Linear(channels, num_classes)

    def forward(self, series):
        return self.head(series.mean(dim=2))

def build(channels, num_classes):
    return Linear(channels, num_classes)
"""
LENGTHS = (4, 7, 4, 9, 7, 4, 4, 9, 7, 7, 4, 4)


def series(seed: int = 0) -> list[NDArray[np.float64]]:
    """Return series of several lengths as they were measured, (C, T) each."""
    draws = np.random.default_rng(seed)
    standard = [draws.normal(size=(CHANNELS, steps)).round(3) for steps in LENGTHS]
    return [np.array(MEAN)[:, None] + np.array(STD)[:, None] * each for each in standard]


def write_ts(path: Path, labels: list[int]) -> Path:
    """Write the series as a .ts file with classes a, b, c."""
    cases = [
        ":".join([",".join(repr(float(value)) for value in channel) for channel in each] + ["abc"[label]])
        for each, label in zip(series(), labels, strict=True)
    ]
    header = ["@problemName made", "@dimensions 2", "@equalLength false", "@classLabel true a b c", "@data"]
    path.write_text("\n".join(["# made for a test", *header, *cases]) + "\n")
    return path


def furnish(root: Path) -> list[str]:
    """Write data, factory and weights into a folder; return the words of the command that evaluates them."""
    torch.manual_seed(1)
    (root / "net.py").write_text(FACTORY)
    weights = {"head.weight": torch.randn(CLASSES, CHANNELS), "head.bias": torch.randn(CLASSES) / 10}
    torch.save(weights, root / "net.pth")
    write_ts(root / "made.ts", [0, 1, 2] * 4)
    return [
        *("series", str(root / "net.pth"), "--arch", f"{root / 'net.py'}:build", "--num-classes", "3"),
        *("--mean", " ".join(map(str, MEAN)), "--std", ",".join(map(str, STD)), "--data", str(root / "made.ts")),
        *("--device", "cpu", "--quiet"),
    ]
