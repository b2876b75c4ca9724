"""ViTs of the transformers library (ViT, DeiT, DINOv2, BEiT and their like), with the names that timm's have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn


class PatchEmbedding:
    """The patch embedding as timm's: where images come in, and how many patches they make."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.register_forward_pre_hook = module.register_forward_pre_hook

    def dynamic_feat_size(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return rows and columns of patches for images of (height, width)."""
        rows, columns = self.module.projection.stride
        return size[0] // rows, size[1] // columns


class TransformersViT:
    """What explainers read of a ViT of the library, by timm's names.

    blocks: each with `attn`, `norm1` if it has one, and the module itself as `whole`. num_prefix_tokens: class token,
    distillation token, registers.
    """

    def __init__(self, model: Any) -> None:
        self.model = model
        embeddings = model.embeddings
        self.patch_embed = PatchEmbedding(embeddings.patch_embeddings)
        self.cls_token: Tensor | None = embeddings.cls_token
        extra = (getattr(embeddings, name, None) for name in ("distillation_token", "register_tokens"))
        self.num_prefix_tokens = int(self.cls_token is not None) + sum(t.shape[1] for t in extra if t is not None)
        self.global_pool = "avg" if getattr(model.config, "use_mean_pooling", False) else "token"
        self.blocks = [
            SimpleNamespace(
                attn=block.attention,
                norm1=getattr(block, "layernorm_before", None) or getattr(block, "norm1", None),
                whole=block,
            )
            for block in _blocks(model)
        ]

    @classmethod
    def all_in(cls, model: nn.Module) -> list[TransformersViT]:
        """Return every such ViT in a model."""
        return [cls(module) for module in nn.Module.modules(model) if _is_vit(module)]

    @contextmanager
    def unfused(self) -> Iterator[None]:
        """Let layers call softmax themselves: by the library's plain function, or by a registered one that a layer's
        `fused_attn` switches.
        """
        parts = [part for block in self.blocks for part in nn.Module.modules(block.attn)]
        configs: dict[int, Any] = {id(part.config): part.config for part in parts if hasattr(part, "config")}
        before = [(config, config._attn_implementation) for config in configs.values()]
        try:
            for part in parts:
                part.__dict__["fused_attn"] = False
            for config, used in before:
                config._attn_implementation = used if ":" in str(used) else "eager"
            yield
        finally:
            for config, used in before:
                config._attn_implementation = used
            for part in parts:
                part.__dict__.pop("fused_attn", None)


def _blocks(model: Any) -> Any:
    """Return a model's row of blocks; None where it has none, or several rows."""
    inner = getattr(model, "encoder", model)
    blocks = getattr(inner, "layers", None) or getattr(inner, "layer", None)
    return (
        blocks if isinstance(blocks, nn.ModuleList) and all(hasattr(block, "attention") for block in blocks) else None
    )


def _is_vit(module: nn.Module) -> bool:
    embeddings = getattr(module, "embeddings", None)
    inner = getattr(embeddings, "patch_embeddings", None)
    if not (hasattr(embeddings, "cls_token") and hasattr(inner, "projection")):
        return False
    blocks = _blocks(module)
    return bool(blocks) and all(any(map(_asks, nn.Module.modules(block.attention))) for block in blocks)


def _asks(layer: nn.Module) -> bool:
    """Whether a layer looks up its attention function, by which it can be watched; Data2Vec's has its own."""
    code = getattr(type(layer).forward, "__code__", None)
    return code is not None and "ALL_ATTENTION_FUNCTIONS" in code.co_names
