"""Bring tensors to a device without making the host wait."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def upload(values: Tensor, device: torch.device) -> Tensor:
    """Return a tensor of the host on a device, without waiting for what the device is doing."""
    return values.to(device, non_blocking=device.type == "cuda")


def stacked(inputs: Sequence[Tensor], device: torch.device) -> Tensor:
    """Return tensors of one shape as one on a device: gathered in memory that a GPU reads by itself."""
    if device.type != "cuda":
        return torch.stack(list(inputs)).to(device)
    pinned = torch.empty((len(inputs), *inputs[0].shape), dtype=inputs[0].dtype, pin_memory=True)
    return torch.stack(list(inputs), out=pinned).to(device, non_blocking=True)
