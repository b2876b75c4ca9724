"""The families of the zoo: what is trained on which images, apart from the attention formula."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import ClassVar

import timm
import torch
from torch import Tensor, nn

from robustkit.attention import set_attention
from robustkit.data.images import to_unit_range


@dataclass(frozen=True)
class Family:
    """Checkpoints that differ in their attention only: what they are trained on, and timm's ViT in small.

    name: what their names begin with. data, test_data: names of the two sets. train, test: where the images are unless
    the command says so; '' where it must. side: of the square images, in pixels. mean, std: of the pixels in [0, 1].
    """

    name: str
    data: str
    side: int
    patch: int
    width: int
    depth: int
    heads: int
    classes: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    train: str = ""
    test: str = ""

    arch: ClassVar[str] = "vit_tiny_patch16_224"

    def arch_kwargs(self) -> dict[str, object]:
        """Return the arguments that make timm's architecture this one."""
        return {
            "img_size": self.side,
            "patch_size": self.patch,
            "embed_dim": self.width,
            "depth": self.depth,
            "num_heads": self.heads,
        }

    def normalise(self, pixels: Tensor) -> Tensor:
        """Turn (B, 3, H, W) uint8 into the model's input."""
        mean, std = (pixels.new_tensor(values, dtype=torch.float32)[:, None, None] for values in (self.mean, self.std))
        return (to_unit_range(pixels) - mean) / std

    def empty(self, attention: str, drop_path: float = 0.0) -> nn.Module:
        """Return the architecture with that formula."""
        model = timm.create_model(self.arch, num_classes=self.classes, drop_path_rate=drop_path, **self.arch_kwargs())
        return set_attention(model, attention)


class CrossFamily(Family):
    """CrossViT in small (Chen 2021), with cross-attention between two branches: width and patch are those of the branch
    of small patches, and twice as large in the other, which has the blocks of self-attention; depth: the pairs.
    """

    arch = "crossvit_9_240"

    def arch_kwargs(self) -> dict[str, object]:
        """Return the arguments that make timm's architecture this one."""
        return {
            "img_size": self.side,
            "img_scale": [1.0, 1.0],
            "patch_size": [self.patch, 2 * self.patch],
            "embed_dim": [self.width, 2 * self.width],
            "num_heads": [self.heads] * 2,
            "depth": [[1, 2, 0]] * self.depth,
        }


CIFAR10 = Family(
    "cifar10-vit",
    data="CIFAR-10",
    side=32,
    patch=4,
    width=192,
    depth=3,
    heads=3,
    classes=10,
    mean=(0.4914, 0.4822, 0.4465),  # of the training images
    std=(0.247, 0.2435, 0.2616),
)
SHAPES = Family(
    "shapes-vit",
    data="embedded:shapes",
    side=64,
    patch=8,
    width=96,
    depth=4,
    heads=3,
    classes=10,
    mean=(0.5, 0.5, 0.5),
    std=(0.5, 0.5, 0.5),
    train="embedded:shapes-train",
    test="embedded:shapes",
)
CROSS = CrossFamily(**asdict(SHAPES) | {"name": "shapes-crossvit", "width": 48, "depth": 2, "heads": 2})
