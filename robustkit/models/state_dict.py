"""Find the weights in what a training script saved, and what it says about them."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import CheckpointError

WEIGHTS = ("state_dict", "model", "model_state_dict", "net", "module", "weights", "params")
EMA = ("state_dict_ema", "model_ema", "ema_state_dict", "ema", "params_ema")
PREFIXES = ("module.", "_orig_mod.", "model.")
HINTS = {  # name in a training script's arguments -> name in our metadata
    **dict.fromkeys(("arch", "model", "model_name"), "arch"),
    **dict.fromkeys(("num_classes", "nb_classes"), "num_classes"),
    **dict.fromkeys(("img_size", "input_size"), "input_size"),
    **{name: name for name in ("attention", "mean", "std", "interpolation", "crop_pct", "crop_mode")},
}


def _holds_tensors(value: object) -> bool:
    return isinstance(value, Mapping) and any(isinstance(item, Tensor) for item in value.values())


def unwrap(
    path: Path, content: Mapping[str, Any], use_ema: bool, notes: list[str]
) -> tuple[str, Mapping[str, Any], dict[str, Any]]:
    """Return (which part, the part, metadata) of what torch.load returned."""
    metadata = _hints(content)
    parts = [str(name) for name, value in content.items() if _holds_tensors(value)]
    plain = [name for name in WEIGHTS if name in parts]
    averaged = [name for name in EMA if name in parts]
    if use_ema and not averaged:
        raise CheckpointError(f"{path}: has no EMA weights (expected one of {', '.join(EMA)}); leave --use-ema out")
    if _holds_tensors(content) and not plain and not averaged:
        return "bare", content, metadata
    chosen = averaged if use_ema else plain or averaged or (parts if len(parts) == 1 else [])
    if not chosen:
        inside = ", ".join(map(str, list(content)[:8])) or "nothing"
        expected = f"expected weights at the top or under one of {', '.join((*WEIGHTS[:4], *EMA[:2]))}"
        raise CheckpointError(f"{path}: no weights found in it (it holds {inside}); {expected}")
    name = chosen[0]
    notes.append(f"weights taken from {name!r}" + (" (EMA)" if name in EMA else ""))
    if averaged and name not in EMA:
        notes.append(f"EMA weights under {averaged[0]!r} left aside; --use-ema takes them")
    return name, content[name], metadata


def _hints(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the arguments saved next to the weights say about the model, by the names of our metadata."""
    sources: list[Mapping[str, Any]] = [content]
    for name in ("args", "config", "hparams", "hyper_parameters"):
        value = content.get(name)
        value = vars(value) if isinstance(value, argparse.Namespace) else value
        if isinstance(value, Mapping):
            sources.append(value)
    metadata: dict[str, Any] = {}
    for source in sources:
        for theirs, ours in HINTS.items():
            value = source.get(theirs)
            if _is_plain(value) or (
                isinstance(value, list | tuple) and 0 < len(value) < 10 and all(map(_is_plain, value))
            ):
                metadata.setdefault(ours, list(value) if isinstance(value, tuple) else value)
    size = metadata.pop("input_size", None)
    sides = size[-2:] if isinstance(size, list) else [size]  # timm's option has the channels first
    if all(type(side) is int for side in sides):  # others say nothing that can be used
        metadata["input_size"] = sides if len(sides) == 2 else sides * 2
    return metadata


def _is_plain(value: object) -> bool:
    """Whether it is a text, or a number that a message can show."""
    return (isinstance(value, str) and value != "") or (isinstance(value, int | float) and not abs(value) >= 1 << 63)


def strip_prefixes(tensors: dict[str, Tensor], notes: list[str]) -> dict[str, Tensor]:
    if tensors.pop("n_averaged", None) is not None:
        notes.append("counter 'n_averaged' of torch's AveragedModel left out")
    stripped = ""
    while tensors and (prefix := next((p for p in PREFIXES if all(n.startswith(p) for n in tensors)), None)):
        tensors = {name.removeprefix(prefix): tensor for name, tensor in tensors.items()}
        stripped += prefix
    if stripped:
        notes.append(f"prefix {stripped!r} taken off every name")
    return tensors
