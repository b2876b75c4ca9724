"""Weights that timm has published: fetched where there is a network, else from the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import timm
import torch

from ..errors import ModelError
from .online import REMEDY, answers, hub


def held_weights(arch: str) -> dict[str, Any] | None:
    """Return what `timm.create_model` takes as `pretrained_cfg_overlay` to build a network with published weights.

    None where they may be fetched. Without a network, the file of the cache.

    Raises:
        ModelError: there is neither a network nor such a file.
    """
    config = timm.get_pretrained_cfg(arch)  # type: ignore[attr-defined, unused-ignore]
    source = getattr(config, "hf_hub_id", None) or ""
    address = hub() if source else getattr(config, "url", None) or ""
    if not address or (not source and _fetched(address)) or answers(address):
        return None
    if source and (file := _cached(source, getattr(config, "hf_hub_filename", None))):
        return {"file": file}
    raise ModelError(f"weights of {arch!r} could not be fetched: {address} gives no answer; {REMEDY.format(arch=arch)}")


def _fetched(url: str) -> bool:
    return (Path(torch.hub.get_dir()) / "checkpoints" / url.rpartition("/")[2]).is_file()


def _cached(source: str, name: str | None) -> str | None:
    from huggingface_hub import try_to_load_from_cache

    repository, _, revision = source.partition("@")
    for file in (name,) if name else ("model.safetensors", "pytorch_model.bin"):
        found = try_to_load_from_cache(repository, file, revision=revision or None)
        if isinstance(found, str):
            return found
    return None
