"""What a Segmenter is and how it is trained: presets, images in memory, augmentation, and the network at the start.

Every draw is a function of (seed, what it is for, step), so that a run resumes without a state of its generators.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

import robustkit
from robustkit.attention import attention_layers, set_attention
from robustkit.data.images import to_unit_range
from robustkit.data.scenes import LabelledScenes
from robustkit.models.architecture import resample_positions
from robustkit.models.dense import SegmenterNetwork, build_segmenter

from .recipe import seed_of

MEAN = STD = (0.5, 0.5, 0.5)


@dataclass(frozen=True)
class Recipe:
    """All that a run's weights depend on, in addition to formula, seed, data and the encoder that it starts from.

    window: side of the square images of a step, cut from images that are enlarged by a factor of `scales`; stride:
    of the windows afterwards. rate, head_rate: highest learning rates of encoder and decoder. jitter: how far
    brightness, contrast and saturation may go from 1. ema_horizon: over which share of all steps weights are averaged.
    """

    name: str
    arch: str
    arch_kwargs: Mapping[str, Any]
    window: int
    stride: int
    decoder_kwargs: Mapping[str, Any]
    epochs: int
    batch: int
    rate: float
    head_rate: float
    scales: tuple[float, float]
    warm_up: float = 0.05
    floor: float = 1e-6
    weight_decay: float = 0.05
    clip: float = 1.0
    drop_path: float = 0.1
    jitter: float = 0.25
    ema_horizon: float = 0.02
    bfloat16: bool = True
    train_images: int | None = None
    init: str = field(default="")

    def text(self) -> str:
        """Return the recipe in one line."""
        return (
            f"preset {self.name}: {self.epochs} epochs, batch {self.batch}, crops of {self.window} enlarged by "
            f"{self.scales[0]:g} to {self.scales[1]:g}, mirror images, jitter {self.jitter:g}; AdamW, rate "
            f"{self.rate:g} (decoder {self.head_rate:g}), {self.warm_up:.0%} warm-up, cosine, weight decay "
            f"{self.weight_decay:g}, gradient norm {self.clip:g}, drop path {self.drop_path:g}, average of the weights "
            f"over {self.ema_horizon:.1%} of the steps, {'bfloat16 autocast' if self.bfloat16 else 'float32'}; "
            "scripts/zoo/train_segmenter.py"
        )

    def identity(self) -> str:
        """Return every field, as JSON."""
        return json.dumps(asdict(self), sort_keys=True)


_SHAPES: dict[str, Any] = {
    "arch": "vit_tiny_patch16_224",
    "arch_kwargs": {"patch_size": 8, "embed_dim": 96, "depth": 4, "num_heads": 3},
    "window": 64,
    "stride": 64,
    "decoder_kwargs": {"depth": 2, "heads": 3},
    "batch": 64,
    "rate": 5e-4,
    "head_rate": 1e-3,
    "scales": (1.0, 1.25),
}
_CAMVID: dict[str, Any] = {
    "arch": "vit_tiny_patch16_224",
    "arch_kwargs": {},
    "window": 256,
    "stride": 224,
    "decoder_kwargs": {"depth": 2, "heads": 3},
    "rate": 2e-4,
    "head_rate": 1e-3,
    "scales": (0.7, 2.0),
}
RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("shapes", epochs=6, init="zoo:shapes-vit-{attention}", **_SHAPES),
        Recipe("camvid", epochs=45, batch=8, **_CAMVID),
        Recipe("camvid-gpu", epochs=400, batch=16, **_CAMVID),
        Recipe("smoke", epochs=2, train_images=128, init="zoo:shapes-vit-{attention}", **_SHAPES | {"batch": 32}),
    )
}


@dataclass(frozen=True)
class Scenes:
    """Images (3, H, W) uint8 and label maps (H, W) int64, -1 ignored, in memory. digest: of the set."""

    images: list[Tensor]
    labels: list[Tensor]
    class_names: tuple[str, ...]
    name: str
    digest: str

    @classmethod
    def of(cls, scenes: LabelledScenes) -> Scenes:
        """Decode all of a data set."""
        images, labels = [], []
        for sample in scenes.dataset.samples:
            pixels = np.asarray(scenes.dataset.image(sample))
            images.append(torch.from_numpy(pixels.copy()).permute(2, 0, 1).contiguous())
            height, width = pixels.shape[:2]
            labels.append(torch.from_numpy(scenes.labels(sample, (height, width)).astype(np.int64)))
        return cls(images, labels, scenes.class_names, scenes.dataset.name, scenes.digest())

    def __len__(self) -> int:
        return len(self.images)


def normalise(pixels: Tensor) -> Tensor:
    """Turn pixels in 0 … 255 into the network's input."""
    mean, std = (torch.tensor(values, device=pixels.device)[:, None, None] for values in (MEAN, STD))
    return (to_unit_range(pixels) - mean) / std


def batch(scenes: Scenes, recipe: Recipe, seed: int, step: int) -> tuple[Tensor, Tensor]:
    """Return a step's augmented batch: (B, 3, window, window) normalised, and labels (B, window, window)."""
    epoch, place = divmod(step, len(scenes) // recipe.batch)
    order = torch.randperm(len(scenes), generator=torch.Generator().manual_seed(seed_of(seed, "order", epoch)))
    draw = torch.Generator().manual_seed(seed_of(seed, "augment", step))
    parts = [
        _crop(scenes.images[index], scenes.labels[index], recipe, draw)
        for index in order[place * recipe.batch : (place + 1) * recipe.batch].tolist()
    ]
    return normalise(torch.stack([image for image, _ in parts])), torch.stack([labels for _, labels in parts])


def _crop(image: Tensor, labels: Tensor, recipe: Recipe, draw: torch.Generator) -> tuple[Tensor, Tensor]:
    scale, down, across, mirror, *factors = torch.rand(7, generator=draw).tolist()
    height, width = image.shape[-2:]
    low, high = map(math.log, recipe.scales)
    side = min(round(recipe.window / math.exp(low + (high - low) * scale)), height, width)
    top, left = round(down * (height - side)), round(across * (width - side))
    pixels = image[None, :, top : top + side, left : left + side].float()
    cut = labels[None, None, top : top + side, left : left + side].float()
    if side != recipe.window:
        size = (recipe.window, recipe.window)
        pixels = functional.interpolate(pixels, size, mode="bilinear", antialias=True)
        cut = functional.interpolate(cut, size, mode="nearest-exact")
    if mirror < 0.5:
        pixels, cut = pixels.flip(-1), cut.flip(-1)
    brightness, contrast, saturation = (1 + recipe.jitter * (2 * factor - 1) for factor in factors)
    pixels = pixels * brightness
    pixels = (pixels - pixels.mean()) * contrast + pixels.mean()
    grey = pixels.mean(dim=1, keepdim=True)
    pixels = (pixels - grey) * saturation + grey
    return pixels[0].clamp(0, 255), cut[0, 0].long()


def build(recipe: Recipe, attention: str, classes: int, init: str, seed: int, drop_path: float) -> SegmenterNetwork:
    """Build the network at the start: the encoder of the classifier `init`, read under the formula; a new decoder."""
    torch.manual_seed(seed_of(seed, "weights"))
    kwargs = {**recipe.arch_kwargs, "drop_path_rate": drop_path}
    network = build_segmenter(
        recipe.arch, classes, window=recipe.window, arch_kwargs=kwargs, decoder_kwargs=recipe.decoder_kwargs
    )
    set_attention(network, attention)
    if init:
        source = robustkit.load(init, **({} if init.startswith("zoo:") else {"arch": recipe.arch}))
        tensors = {key: value for key, value in source.network.state_dict().items() if not key.startswith("head.")}
        tensors, _ = resample_positions(tensors, network.encoder)
        network.encoder.load_state_dict(tensors)
    for _, layer in attention_layers(network):  # torch's fused attention is slower on a CPU
        layer.fused_attn = torch.cuda.is_available()
    return network
