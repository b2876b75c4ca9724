"""Whether published weights can be fetched, asked once and soon: the Hub's own client tries again for minutes."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import timm
import torch

from ..errors import ModelError

ANSWER, WAIT = 4.0, 5.0
"""Seconds: that a server has for each step of its answer, and for all of it, since looking up a name has no limit."""
REMEDY = (
    "give a local file with --arch {arch}, or fetch the weights once where there is a network: what lies in the folder "
    "that HF_HUB_CACHE names is used without one"
)


def hub() -> str:
    """Return the address of the Hub that is asked; empty where HF_HUB_OFFLINE forbids it."""
    from huggingface_hub import constants

    return "" if constants.HF_HUB_OFFLINE else str(constants.ENDPOINT)


def answers(address: str) -> bool:
    """Whether a server gives any answer at all, within `WAIT` seconds, by the proxies that the environment names."""
    heard: list[bool] = []
    asking = threading.Thread(target=lambda: heard.append(_asked(address)), daemon=True)
    asking.start()
    asking.join(WAIT)
    return bool(heard and heard[0])


def _asked(address: str) -> bool:
    try:
        request = urllib.request.Request(address, method="HEAD")
        with urllib.request.build_opener().open(request, timeout=ANSWER):  # urlopen would keep the first proxies it saw
            return True
    except urllib.error.HTTPError:
        return True
    except Exception as fault:  # a proxy may say anything
        return "CERTIFICATE_VERIFY_FAILED" in str(fault)  # the Hub's client brings other certificates


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
