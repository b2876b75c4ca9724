"""The nearest change inside a ball around nothing, with a radius of each sample's own, in four norms."""

from __future__ import annotations

import torch
from torch import Tensor

from .threat import Norm, per_sample


def onto_ball(norm: Norm, change: Tensor, radius: Tensor) -> Tensor:
    """Return the points nearest to `change` (B, ...) of the balls of `radius` (B,) around 0; infinite radii are fine.

    linf: every value is cut. l2: the whole is shortened. l1: all values shrink by the same amount, those that reach 0
    stay there (Duchi et al. 2008). l0: the `radius` values, rounded down, that are largest are kept.
    """
    if norm == "linf":
        wide = per_sample(radius, change)
        return torch.minimum(torch.maximum(change, -wide), wide)
    flat = change.flatten(1)
    if norm == "l2":
        length = torch.linalg.vector_norm(flat, dim=1)
        return change * per_sample((radius / length).nan_to_num_(nan=1.0).clamp_(max=1.0), change)
    if norm == "l0":
        most = flat.shape[1]
        kept = radius.clamp(0, most).long()
        ranks = flat.abs().argsort(dim=1, descending=True, stable=True).argsort(dim=1)
        return torch.where(ranks < kept[:, None], flat, 0.0).reshape(change.shape)
    size, order = flat.abs(), flat.abs().sort(dim=1, descending=True).values
    counts = torch.arange(1, flat.shape[1] + 1, device=flat.device)
    excess = (order.cumsum(dim=1) - radius[:, None]) / counts  # what each of the first values is too large by
    last = ((order > excess) * counts).amax(dim=1, keepdim=True).clamp_(min=1)
    shrink = excess.gather(1, last - 1).clamp_(min=0).nan_to_num_(neginf=0.0)
    return (flat.sign() * (size - shrink).clamp_(min=0)).reshape(change.shape)
