"""Find the weights in what a training script saved, and what it says about them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ..errors import CheckpointError
from .trainers import Claims, claims_of

WEIGHTS = ("state_dict", "model", "model_state_dict", "net", "module", "weights", "params")
EMA = ("state_dict_ema", "model_ema", "ema_state_dict", "ema", "params_ema")
PREFIXES = ("module.", "_orig_mod.", "model.")


def _holds_tensors(value: object) -> bool:
    return isinstance(value, Mapping) and any(isinstance(item, Tensor) for item in value.values())


def unwrap(
    path: Path, content: Mapping[str, Any], use_ema: bool, notes: list[str]
) -> tuple[str, Mapping[str, Any], Claims]:
    """Return (which part, the part, what the file says of its model) of what torch.load returned."""
    claims = claims_of(content)
    parts = [str(name) for name, value in content.items() if _holds_tensors(value)]
    plain = [name for name in WEIGHTS if name in parts]
    averaged = [name for name in EMA if name in parts]
    if use_ema and not averaged:
        raise CheckpointError(f"{path}: has no EMA weights (expected one of {', '.join(EMA)}); leave --use-ema out")
    if _holds_tensors(content) and not plain and not averaged:
        return "bare", content, claims
    chosen = averaged if use_ema else plain or averaged or (parts if len(parts) == 1 else [])
    if not chosen:
        inside = ", ".join(map(str, list(content)[:8])) or "nothing"
        expected = f"expected weights at the top or under one of {', '.join((*WEIGHTS[:4], *EMA[:2]))}"
        raise CheckpointError(f"{path}: no weights found in it (it holds {inside}); {expected}")
    name = chosen[0]
    notes.append(f"weights taken from {name!r}" + (" (EMA)" if name in EMA else ""))
    if averaged and name not in EMA:
        notes.append(f"EMA weights under {averaged[0]!r} left aside; --use-ema takes them")
    return name, content[name], claims


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
