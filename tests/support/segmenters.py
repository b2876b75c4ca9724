"""Small Segmenters of random weights, and images for them."""

from __future__ import annotations

from typing import Any

import torch
from segmenter_oracles import randomised
from torch import Tensor

from robustkit.attention import set_attention
from robustkit.models.dense import SegmenterNetwork, build_segmenter

VIT = "vit_tiny_patch16_224"
SMALL = {"embed_dim": 32, "num_heads": 4, "depth": 2, "patch_size": 8}
NO_WINDOWS = "--stride, --short-side and --resize are of windows; give --window, too"
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))


def small(
    arch: str = VIT,
    *,
    classes: int = 5,
    window: int | tuple[int, int] = 32,
    attention: str = "standard",
    **options: Any,
) -> SegmenterNetwork:
    """Width 32, four heads in the encoder and two in the decoder, two blocks each, patches of 8; random weights."""
    decoder_kwargs = {} if options.get("decoder") == "linear" else {"heads": 2}
    network = build_segmenter(
        arch, classes, window=window, arch_kwargs=SMALL, **{"decoder_kwargs": decoder_kwargs, **options}
    )
    network.load_state_dict(randomised(network.state_dict()))
    return set_attention(network, attention).eval().requires_grad_(False)


def noise(*shape: int, seed: int = 1) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def pixels(*shape: int) -> Tensor:
    return torch.rand(*shape, generator=torch.Generator().manual_seed(2))


def normalised(image: Tensor, mean: Any, std: Any) -> Tensor:
    shift, scale = (torch.tensor(values).to(image.dtype)[:, None, None] for values in (mean, std))
    return (image - shift) / scale
