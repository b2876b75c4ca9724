"""The golden files of the corruptions: the small one of this repository, and the three of ../shared."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from legacy_draws import Bytes, legacy_draws
from places import SHARED, TESTS
from torch import Tensor

from corruptions.registry import corruption

OWN = TESTS / "golden" / "corruptions.npz"
RELEASED = SHARED / "data" / "corruption-golden"


@dataclass(frozen=True)
class Golden:
    """One file, and whose definition its pixels have."""

    path: Path
    preset: str
    variant: str

    @property
    def key(self) -> str:
        return self.path.stem

    def parts(self, name: str) -> Iterator[tuple[int, Bytes, Bytes]]:
        """Number of the first image, images (N, H, W, 3) and what became of them, (5, N, H, W, 3)."""
        with np.load(self.path) as arrays:
            if "input" in arrays:
                yield 0, arrays["input"], arrays[name]
            else:
                for index in (index for index in range(3) if f"{name}_{index}" in arrays):
                    yield index, arrays[f"input_{index}"][None], arrays[f"{name}_{index}"][:, None]

    def differences(self, name: str, severity: int, frost_dir: Path | None) -> list[Bytes]:
        """|ours - golden| of every value, given the reference's own draws: flat, one array for each part."""
        made = corruption(name, preset=self.preset, variant=self.variant, frost_dir=frost_dir and str(frost_dir))
        gaps = []
        for first, images, golden in self.parts(name):
            draws = legacy_draws(made, images, severity, golden[severity - 1], frost_dir, first)
            ours = made.apply(channels_first(images), draws).permute(0, 2, 3, 1).numpy()
            assert ours.dtype == np.uint8
            gaps.append(np.abs(ours.astype(np.int16) - golden[severity - 1]).astype(np.uint8).ravel())
        return gaps


GOLDENS = {
    golden.key: golden
    for golden in (
        Golden(OWN, "imagenet", "bethgelab"),
        Golden(RELEASED / "hendrycks_imagenet_c_224.npz", "imagenet", "hendrycks"),
        Golden(RELEASED / "bethgelab_imagecorruptions_1.1.2_224.npz", "imagenet", "bethgelab"),
        Golden(RELEASED / "hendrycks_cifar10_c_32.npz", "cifar", "hendrycks"),
    )
}


def channels_first(images: Bytes) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))


def real_frost() -> Path | None:
    """The photographs of an installed imagecorruptions, or of the folder in ROBUSTKIT_IMAGECORRUPTIONS."""
    spec = None if os.environ.get("ROBUSTKIT_IMAGECORRUPTIONS") else importlib.util.find_spec("imagecorruptions")
    places = spec.submodule_search_locations if spec else [os.environ.get("ROBUSTKIT_IMAGECORRUPTIONS", "")]
    folder = Path(next(iter(places or [""]))) / "frost"
    return folder if (folder / "frost1.png").is_file() else None
