"""Write a timm ViT as a transformers checkpoint: config.json, model.safetensors, preprocessor_config.json.

    python -m scripts.hf.convert_vit CHECKPOINT OUT [--arch vit_tiny_patch16_224] [--labels NAMES.txt]

The logits are the same to float rounding: fused queries, keys and values are cut in three, everything else has another
name. Resize and crop are written as `size` and `crop_size`, by which the library's processor does what timm does; half
a pixel it rounds down, and timm to even.
"""

from __future__ import annotations

import argparse
import json
import math
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

import robustkit
from robustkit.models.identity import Classifier

_NAMES = (
    (r"cls_token", r"vit.embeddings.cls_token"),
    (r"pos_embed", r"vit.embeddings.position_embeddings"),
    (r"patch_embed\.proj\.(.*)", r"vit.embeddings.patch_embeddings.projection.\1"),
    (r"blocks\.(\d+)\.norm1\.(.*)", r"vit.layers.\1.layernorm_before.\2"),
    (r"blocks\.(\d+)\.norm2\.(.*)", r"vit.layers.\1.layernorm_after.\2"),
    (r"blocks\.(\d+)\.attn\.proj\.(.*)", r"vit.layers.\1.attention.o_proj.\2"),
    (r"blocks\.(\d+)\.attn\.(qk_scale|q_scale|k_scale|temperature|[qk]_norm\..*)", r"vit.layers.\1.attention.\2"),
    (r"blocks\.(\d+)\.mlp\.(fc[12])\.(.*)", r"vit.layers.\1.mlp.\2.\3"),
    (r"norm\.(.*)", r"vit.layernorm.\1"),
    (r"head\.(.*)", r"classifier.\1"),
)
_RESAMPLING = {"nearest": 0, "lanczos": 1, "bilinear": 2, "bicubic": 3}


def renamed(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a timm ViT's tensors under the library's names (transformers 5). ValueError for one that has none."""
    made: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if qkv := re.fullmatch(r"blocks\.(\d+)\.attn\.qkv\.(.*)", name):
            for part, piece in zip("qkv", tensor.chunk(3), strict=True):
                made[f"vit.layers.{qkv[1]}.attention.{part}_proj.{qkv[2]}"] = piece.contiguous()
            continue
        known = (re.sub(old, new, name) for old, new in _NAMES if re.fullmatch(old, name))
        if (new := next(known, None)) is None:
            raise ValueError(f"{name}: a ViT of transformers has no such tensor; expected a plain ViT of timm")
        made[new] = tensor
    return made


def config_of(model: Classifier, names: list[str] | None) -> Any:
    """Return the library's configuration of a timm ViT."""
    from transformers import ViTConfig

    vit: Any = model.network
    block = vit.blocks[0]
    classes = names or [f"LABEL_{place}" for place in range(model.identity.num_classes)]
    return ViTConfig(
        hidden_size=vit.embed_dim,
        num_hidden_layers=len(vit.blocks),
        num_attention_heads=block.attn.num_heads,
        intermediate_size=block.mlp.fc1.out_features,
        layer_norm_eps=block.norm1.eps,
        image_size=vit.patch_embed.img_size[0],
        patch_size=vit.patch_embed.patch_size[0],
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        id2label=dict(enumerate(classes)),
        label2id={name: place for place, name in enumerate(classes)},
    )


def processor_of(model: Classifier) -> dict[str, Any]:
    """Return preprocessor_config.json for the same images."""
    p = model.identity.preprocessing
    side = p.input_size[0]
    return {
        "image_processor_type": "BitImageProcessor",
        "do_resize": True,
        "size": {"shortest_edge": math.floor(side / p.crop_pct)},
        "resample": _RESAMPLING[p.interpolation],
        "do_center_crop": True,
        "crop_size": {"height": side, "width": side},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(p.mean),
        "image_std": list(p.std),
        "do_convert_rgb": True,
    }


def write(model: Classifier, out: Path, names: list[str] | None = None) -> Path:
    """Write the folder, and return it."""
    from transformers import ViTForImageClassification

    from robustkit.attention import set_attention

    theirs = ViTForImageClassification(config_of(model, names))
    if model.identity.attention not in ("other", "none"):
        set_attention(theirs, model.identity.attention)
    theirs.load_state_dict(renamed(model.network.state_dict()))
    theirs.save_pretrained(out)
    (out / "preprocessor_config.json").write_text(json.dumps(processor_of(model), indent=2), encoding="utf-8")
    return out


def main(arguments: list[str] | None = None) -> int:
    """Convert one checkpoint. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("out", type=Path)
    parser.add_argument("--arch")
    parser.add_argument("--labels", type=Path, help="names of the classes, one per line")
    options = parser.parse_args(arguments)
    names = None if options.labels is None else options.labels.read_text(encoding="utf-8").split()
    print(write(robustkit.load(options.checkpoint, arch=options.arch), options.out, names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
