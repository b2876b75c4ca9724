"""Attention of small sizes for QuacK, and its inputs."""

from __future__ import annotations

from typing import Any

import timm
import torch
from torch import Tensor, nn

from robustkit.attention.layers import LatentAttention

WIDTH, HEADS, SIZE = 12, 3, 4


def attention(bias: bool = True) -> Any:
    torch.manual_seed(0)
    layer = timm.models.vision_transformer.Attention(WIDTH, HEADS, qkv_bias=bias).double()
    if bias:
        nn.init.normal_(layer.qkv.bias)
    return layer


def latent() -> LatentAttention:
    torch.manual_seed(0)
    return LatentAttention(10, 3, nope=4, rope=2, value=5, query_latent=6, key_latent=7).double()


def vit(depth: int = 2) -> Any:
    torch.manual_seed(0)
    return timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=WIDTH, depth=depth, num_heads=HEADS, num_classes=3
    )


def inputs(step: int, width: int = WIDTH) -> Tensor:
    return torch.randn(2, 5, width, dtype=torch.double, generator=torch.Generator().manual_seed(step))
