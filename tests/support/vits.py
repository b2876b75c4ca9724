"""Small ViTs of random weights."""

from __future__ import annotations

import timm
import torch
from torch import nn


def small_vit(name: str = "vit_tiny_patch16_224", *, sharp: float = 1.0, **kwargs: object) -> nn.Module:
    """Three blocks, two heads, a grid of 2 x 3 patches, CLS; `sharp` multiplies queries, keys and values."""
    torch.manual_seed(0)
    shape = {"img_size": (16, 24), "patch_size": 8, "embed_dim": 32, "depth": 3, "num_heads": 2, "num_classes": 5}
    model = timm.create_model(name, **{**shape, **kwargs}).eval()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight.mul_(sharp)
            block.attn.qkv.bias.normal_()
    return model
