"""Query-As-Network Attention: each query is a small network that scores keys (Vermillion 2025, §3).

    score(q, k) = s̃ᵀ k̃ / sqrt(d) + V σ(Ũ k̃ + b) + c

The query is split into s, of d numbers, which scores as usual, and the weights of a network of h hidden units:
U (h, d), V (h,), b (h,) and c. With rotary positions (RoPE), a tilde is a rotation by the token's position of keys, s,
and each row of U by itself, so that scores depend on relative positions only.

Shapes: queries (B, H, N, …), keys (B, H, M, d): batch, heads, tokens, head size.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ..errors import ModelError

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "relu": torch.relu,
    "silu": functional.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
}
ROTARY_BASE = 10_000.0


@dataclass(frozen=True)
class Network:
    """The network that a query is.

    hidden: its width h. activation: σ, a name of ACTIVATIONS. gate: whether a learned α, 0 at first, multiplies what
    the network adds. rope: whether keys, s and the rows of U are rotated by their tokens' positions. start: `drawn`, or
    `zero` as the document has it; see `linear`.
    """

    hidden: int
    activation: str
    gate: bool
    rope: bool
    start: str = "drawn"

    def rows(self, dim: int) -> int:
        """Return how many numbers a query of head size `dim` has in addition to s: h·d of U, h of V, h of b, and c."""
        return self.hidden * dim + 2 * self.hidden + 1

    def linear(self, width: int, heads: int, dim: int) -> nn.Linear:
        """Return the layer from tokens of `width` channels to the networks of each head's queries, at its initial
        values.

        The rows of V, b and c are zero, so nothing is added at first; with a gate, its α is zero and V is drawn, too.
        The document has all rows zero, but then no gradient ever reaches them: that of U and b is a multiple of V, and
        that of V is σ(b) for all keys alike, to which softmax is blind. `start=zero` is that, with a warning.
        """
        made = nn.Linear(width, heads * self.rows(dim))
        nn.init.zeros_(made.bias)
        if self.start == "zero":
            warnings.warn(
                "qana(start=zero): no gradient reaches networks whose weights are all zero, so they do not learn; "
                "leave start out to train them",
                stacklevel=2,
            )
            nn.init.zeros_(made.weight)
            return made
        _, v, b, c = self.split(made.weight.data.view(heads, -1, width).movedim(1, -1))
        nn.init.trunc_normal_(made.weight, std=0.02)
        for rows in (b, c) if self.gate else (v, b, c):
            rows.zero_()
        return made

    def split(self, weights: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Split (…, rows) in the document's order into U (…, h, d), V (…, h), b (…, h) and c (…, 1)."""
        h = self.hidden
        dim = (weights.shape[-1] - 2 * h - 1) // h
        u, v, b, c = torch.split(weights, [h * dim, h, h, 1], dim=-1)
        return u.reshape(*u.shape[:-1], h, dim), v, b, c

    def logits(self, weights: Tensor, k: Tensor, alpha: Tensor | None = None) -> Tensor:
        """Return what the network adds to the scores, (B, H, N, M).

        weights: (B, H, N, rows). k: keys, rotated already where there is RoPE. alpha: of the gate.

        One hidden unit is computed at a time, and again in the backward pass, so that no more than a few tensors of
        (B, H, N, M) are ever held.
        """
        u, v, b, c = self.split(weights.to(k.dtype))
        if self.rope:
            u = rotate(u.movedim(-2, -3)).movedim(-3, -2)
        activation = ACTIVATIONS[self.activation]

        def unit(row: Tensor, v: Tensor, b: Tensor, k: Tensor) -> Tensor:
            return v * activation(row @ k.transpose(-2, -1) + b)

        total = c.expand(*c.shape[:-1], k.shape[-2])
        for index in range(self.hidden):
            parts = (u[..., index, :], v[..., index, None], b[..., index, None], k)
            if torch.is_grad_enabled():
                total = total + checkpoint(unit, *parts, use_reentrant=False, preserve_rng_state=False)
            else:
                total = total + unit(*parts)
        return total if alpha is None else alpha.to(total.dtype) * total


def rotate(x: Tensor) -> Tensor:
    """Apply RoPE (Su et al. 2021): token i's pairs of channels (j, j + d/2) are turned by i · 10000^(-2j/d).

    x: (…, N, d), positions 0 to N - 1. Raises ModelError for an odd d.
    """
    tokens, dim = x.shape[-2:]
    check_rotary(dim)
    kind = torch.promote_types(x.dtype, torch.float32)
    rates = ROTARY_BASE ** (-torch.arange(0, dim, 2, device=x.device, dtype=kind) / dim)
    angles = torch.arange(tokens, device=x.device, dtype=kind)[:, None] * rates
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def check_rotary(dim: int) -> None:
    """Raise ModelError where channels cannot be paired."""
    if dim % 2:
        raise ModelError(f"RoPE turns pairs of channels, and the head size is {dim}; expected an even number")
