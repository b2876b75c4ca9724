"""Which families of vision transformers formulas and maps work for, tried on tiny networks of each."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import timm
import torch
from torch import Tensor, nn

from ...attention import capture, set_attention
from ...errors import ModelError
from ...models.hugging_face import Logits, PooledOutput

CLASSES = 5
SIZE = (24, 24)  # of images: nine patches
_TIMM: dict[str, tuple[str, dict[str, Any]]] = {
    "ViT": ("vit_tiny_patch16_224", {}),
    "ViT with registers": ("vit_betwixt_patch16_reg4_gap_256", {}),
    "DeiT": ("deit_tiny_distilled_patch16_224", {}),
    "DeiT-3": ("deit3_small_patch16_224", {}),
    "BEiT": ("beit_base_patch16_224", {}),
    "SigLIP": ("vit_base_patch16_siglip_224", {}),
    "ViT with a class token and a pool": ("vit_tiny_patch16_224", {"global_pool": "map"}),
    "EVA-02": ("eva02_tiny_patch14_224", {}),
    "EVA-02, qkv in one": ("eva02_base_patch14_224", {"qkv_fused": True}),
    "DINOv3": ("vit_small_patch16_dinov3", {}),
    "PE": ("vit_pe_core_tiny_patch16_384", {}),
    "ViT-RoPE": ("vit_small_patch16_rope_224", {}),
    "ViT-RoPE, mixed": ("vit_small_patch16_rope_mixed_224", {}),
    "Sapiens 2": ("vit_base_patch16_sapiens2", {"num_kv_heads": 1}),
    "CaiT": ("cait_xxs24_224", {}),
    "XCiT": ("xcit_nano_12_p16_224", {}),
}
_THEIRS: dict[str, tuple[str, dict[str, Any]]] = {  # of transformers: the model's class and its options
    "ViT": ("ViTForImageClassification", {}),
    "DeiT": ("DeiTForImageClassification", {}),
    "BEiT": ("BeitForImageClassification", {}),
    "DINOv2": ("Dinov2ForImageClassification", {"mlp_ratio": 2}),
    "DINOv2 with registers": ("Dinov2WithRegistersForImageClassification", {"mlp_ratio": 2}),
    "DINOv3": ("DINOv3ViTModel", {"num_register_tokens": 3}),
    "CLIP": ("CLIPForImageClassification", {}),
    "CLIP, its class token": ("CLIPVisionModel", {}),
    "SigLIP": ("SiglipForImageClassification", {}),
    "SigLIP, its probe": ("SiglipVisionModel", {}),
    "I-JEPA": ("IJepaForImageClassification", {}),
    "ViT-MSN": ("ViTMSNForImageClassification", {}),
    "MAE": ("ViTMAEModel", {"mask_ratio": 0.0}),
    "Data2Vec": ("Data2VecVisionForImageClassification", {}),
}
_SHAPE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48, "patch_size": 8}


class _Headed(nn.Module):
    """A body of transformers that has no classifier, with a linear one over what it pools."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body, self.head = PooledOutput(body), nn.Linear(_SHAPE["hidden_size"], CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.body(images))  # type: ignore[no-any-return]


def _of_timm(name: str, options: dict[str, Any]) -> nn.Module:
    size: dict[str, Any] = {
        "img_size": SIZE,
        "patch_size": 8,
        "embed_dim": 32,
        "depth": 2,
        "num_heads": 2,
        "num_classes": CLASSES,
    }
    network: nn.Module = timm.create_model(name, **(size | options))
    return network


def _of_transformers(kind: Any, options: dict[str, Any]) -> nn.Module:
    shape: dict[str, Any] = _SHAPE | {"image_size": SIZE[0], "num_labels": CLASSES} | options
    if "text_config" in (parts := getattr(kind.config_class, "sub_configs", {})):
        text = {key: shape[key] for key in _SHAPE if key != "patch_size"}
        text |= {"vocab_size": 9, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
        configs = {part: {"vision_config": shape, "text_config": text}[part] for part in parts}
        return Logits(kind(kind.config_class(**configs, num_labels=CLASSES)))
    network = kind(kind.config_class(**shape))
    return Logits(network) if kind.__name__.endswith("Classification") else _Headed(network)


def drawn(network: nn.Module) -> nn.Module:
    """Return the network for inference, its parameters moved so far that attention differs from token to token."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in nn.Module.parameters(network):
            scale = 0.4 if parameter.ndim > 1 else 0.1
            parameter.add_(torch.randn(parameter.shape, generator=draw), alpha=scale)
    return network.eval()


def tiny_networks() -> dict[str, Callable[[], nn.Module]]:
    """Return, by library and family, what makes a tiny network of it: images (B, 3, *SIZE) to logits (B, CLASSES).

    Families that the installed libraries do not have, such as all of transformers without it, are left out.
    """
    builders: dict[str, Callable[[], nn.Module]] = {
        f"timm {family}": partial(_of_timm, name, options)
        for family, (name, options) in _TIMM.items()
        if timm.is_model(name)
    }
    if importlib.util.find_spec("transformers") is None:
        return builders
    import transformers

    return builders | {
        f"transformers {family}": partial(_of_transformers, getattr(transformers, name), options)
        for family, (name, options) in _THEIRS.items()
        if hasattr(transformers, name)
    }


@dataclass(frozen=True)
class Support:
    """What works for a family. reason: why the rest does not, of maps the first one; empty where all works."""

    family: str
    formulas: bool
    maps: tuple[str, ...]
    reason: str


def supported(explainers: Mapping[str, Callable[[nn.Module], Callable[[Tensor, int], Tensor]]]) -> list[Support]:
    """Try formulas and maps on a tiny random network of each family; the random numbers of torch stay.

    explainers: by name, what makes of a network the maps (B, H, W) of images and a class, such as `cam.AGCAM`; a
        ValueError is a refusal.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return [_tried(family, drawn(make()), explainers) for family, make in tiny_networks().items()]


def _tried(family: str, network: nn.Module, explainers: Mapping[str, Any]) -> Support:
    images = torch.rand(2, 3, *SIZE)
    reasons: dict[str, str] = {}

    def works(what: str, doing: Callable[[], object]) -> bool:
        try:
            doing()
        except (ModelError, ValueError) as error:
            reasons.setdefault(what, str(error))
            return False
        return True

    formulas = works("formulas", partial(_swap, network, images))
    maps = tuple(name for name, kind in explainers.items() if works("maps", partial(_map, kind, network, images)))
    return Support(family, formulas, maps, "; ".join(dict.fromkeys(reasons.values())))


def _map(kind: Callable[[nn.Module], Callable[[Tensor, int], Tensor]], network: nn.Module, images: Tensor) -> None:
    """Raise ValueError where an explainer refuses a network, or its maps are not finite."""
    if not bool(kind(network)(images, 1).isfinite().all()):
        raise ValueError("its maps are not finite")


def _swap(network: nn.Module, images: Tensor) -> None:
    """Raise ModelError where a formula cannot be set, or a layer does not compute it, or does not give its own back."""
    with torch.no_grad():
        expected = network(images)
        for name in ("quest", "elliptical-quest", "qknorm-hs"):
            with capture(set_attention(network, name)) as captured:
                changed = network(images)
            if not captured.scores or torch.equal(changed, expected):
                raise ModelError(f"{name} attention changes nothing; its layers do not compute it")
        if not torch.allclose(set_attention(network, "standard")(images), expected, rtol=1e-4, atol=1e-5):
            raise ModelError("standard attention, set again, gives other logits than before")
