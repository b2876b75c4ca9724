"""ViTs of two blocks, and parameters drawn so that no value hides a mistake."""

from __future__ import annotations

from typing import Any

import timm
import torch

from robustkit.attention import FORMULAS

NAMES = tuple(FORMULAS)


def drawn(module: Any, seed: int = 0) -> Any:
    """Every parameter drawn, so that nothing is at a value that hides a mistake."""
    stream = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.7 * torch.randn(parameter.shape, generator=stream, dtype=parameter.dtype))
    return module


def small_vit(**kwargs: Any) -> Any:
    torch.manual_seed(0)
    shape = {"img_size": (16, 24), "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2, "num_classes": 5}
    return timm.create_model("vit_tiny_patch16_224", **{**shape, **kwargs}).eval()
