"""The cheats as a factory for `--arch`: which one is a number in the checkpoint, so one audit takes them all."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import torch
from attack_oracles import random_images, tiny_cnn
from cheating_models import CHEATS, Known, Net
from PIL import Image
from torch import Tensor, nn

import robustkit
from robustkit.report import page
from robustkit.report.run import Run
from robustkit.slices.evidence.gradient_masking import checks_of

CHECKS = [*(check.name for check in checks_of({})), "attacks in order"]
EPS, COUNT = 8 / 255, 32
FOOLED = 3
"""More samples than of the honest network that must stand before PGD counts as fooled."""


def images() -> Tensor:
    """(32, 3, 8, 8) on the grid of 8 bits."""
    return (random_images(COUNT) * 255).round() / 255


class Cheating(nn.Module):
    """A small network, and around it the cheat of the place that `trick` names; -1: none."""

    trick: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.net = tiny_cnn()
        self.register_buffer("trick", torch.tensor(-1))
        self.default_cfg = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "input_size": (3, 8, 8), "crop_pct": 1.0}
        self.around: Net | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.around is None:
            known, place = images(), int(self.trick)
            with torch.no_grad():
                k = Known(self.net, known, self.net(known).argmax(dim=1), EPS)
            self.around = list(CHEATS.values())[place](k) if place >= 0 else self.net.forward
        return self.around(x)


def build(num_classes: int = 5) -> nn.Module:
    return Cheating().eval()


def write(root: Path) -> dict[str, Path]:
    """Write the images, by their classes, and a checkpoint of each cheat and of "honest"; return these by name."""
    net, files = Cheating().eval(), dict[str, Path]()
    for index, (image, label) in enumerate(zip(images(), net(images()).argmax(dim=1).tolist(), strict=True)):
        for letter in "abcde":
            (root / "images" / letter).mkdir(parents=True, exist_ok=True)
        pixels = (image * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        Image.fromarray(pixels).save(root / "images" / "abcde"[label] / f"{index:02d}.png")
    for place, name in enumerate(("honest", *CHEATS), start=-1):
        files[name] = root / f"{name.replace(' ', '-')}.pth"
        torch.save(net.state_dict() | {"trick": torch.tensor(place)}, files[name])
    return files


def audit(checkpoints: Sequence[Path], root: Path, out: str) -> Run:
    options = {
        "attacks": "pgd",
        "eps": "8/255",
        "setup_check": False,
        "device": "cpu",
        "batch_size": 32,
        "evidence": "full",
    }
    model = {"arch": f"{__file__}:build", "num_classes": 5}
    with mock.patch.object(page, "write_report"):  # it takes as long as everything else
        return robustkit.audit(checkpoints, data_dir=root / "images", out=root / out, model=model, **options)


def audited_by_pgd(root: Path) -> dict[str, tuple[int, set[str]]]:
    """Return, of each model that PGD can ask, how many samples stand, and the checks that raised a finding."""
    files = {name: file for name, file in write(root).items() if name != "detached"}
    rows = json.loads((audit(list(files.values()), root, "run").path / "summary.json").read_text())["results"]
    ours = [row for row in rows if row["condition"].startswith("pgd(") and row["metric"] == "top1"]
    found = {row["checkpoint"]: {each["text"].split(":")[0] for each in row["flags"]} & {*CHECKS} for row in ours}
    standing = {row["checkpoint"]: round(row["value"] * COUNT) for row in ours}
    return {name: (standing[file.stem], found[file.stem]) for name, file in files.items()}
