"""How much attention can change where its logits change: the slope of softmax."""

from __future__ import annotations

import torch
from torch import Tensor

_ROUNDS = 5  # of Newton's method, which climbs to the root and never passes it


def softmax_slope(attention: Tensor) -> Tensor:
    """Return the spectral norm (...) of softmax's Jacobian, diag(p) - p pᵀ, at each row p (..., N) of attention.

    At most 1/2, where two keys share all attention; 0 where one key has it, so that no gradient of a logit is left.
    float32 or wider. A row that is not finite gives nan.

    It is the largest root of 1 = Σ p_i² / (p_i - λ) (Golub 1973), between the two largest p. Newton's method begins at
    the better of two Rayleigh quotients, of the largest key alone and against the second.
    """
    p = attention.float() if attention.dtype in (torch.float16, torch.bfloat16) else attention
    if p.shape[-1] == 1:
        return torch.where(p[..., 0].isfinite(), 0.0, torch.nan).to(p)
    (first, second), place = _two_largest(p)
    rest = p.scatter(-1, place, 0.0)
    least = torch.maximum(first * (1 - first), (first + second - (first - second) ** 2) / 2)
    # Two alike leave no room between them: the root is that value.
    alike = first - second <= 1e-6 * first
    root = torch.where(alike, first, torch.maximum(least, second * (1 + 1e-6)))  # rounded rows may sum to more than 1
    for _ in range(_ROUNDS):
        gap = (root[..., None] - rest).clamp_(min=torch.finfo(p.dtype).tiny)
        shares = rest / gap
        pull = 1 + (shares * rest).sum(dim=-1)
        slope = -pull - (first - root) * (shares * shares).sum(dim=-1)
        step = ((first - root) * pull - first * first) / slope
        root = torch.where(alike, first, (root - step.nan_to_num(nan=0.0)).clamp(max=first))
    return torch.where(p.isfinite().all(dim=-1), torch.maximum(root, torch.zeros_like(root)), torch.nan)


def _two_largest(p: Tensor) -> tuple[tuple[Tensor, Tensor], Tensor]:
    """Return the two largest values (...) of each row, and the place (..., 1) of the first."""
    top = p.topk(2, dim=-1)
    return (top.values[..., 0], top.values[..., 1]), top.indices[..., :1]
