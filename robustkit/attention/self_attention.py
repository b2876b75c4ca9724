"""Attention between the tokens of one sequence whose keys may be smaller than its values."""

from __future__ import annotations

from torch import Tensor, nn

from ..errors import ModelError
from .layer import Formulaic


class SelfAttention(Formulaic, nn.Module):
    """Multi-head attention between the tokens of (B, N, dim), with any formula. It is called like timm's Attention.

    key, value: sizes per head of queries and keys, and of values; dim / num_heads where left out. Raises ModelError
    for an impossible size.
    """

    def __init__(self, dim: int, num_heads: int, *, key: int | None = None, value: int | None = None) -> None:
        super().__init__()
        if num_heads < 1 or (None in (key, value) and dim % num_heads):
            raise ModelError(f"{num_heads} heads for {dim} channels; expected a number that divides them")
        self.num_heads = num_heads
        self.head_dim = dim // num_heads if key is None else key
        self.value_dim = dim // num_heads if value is None else value
        for what, size in {"dim": dim, "key": self.head_dim, "value": self.value_dim}.items():
            if size < 1:
                raise ModelError(f"{what} {size}: expected a size of 1 or more")
        self.scale = self.head_dim**-0.5
        self.fused_attn = True
        self.wq = nn.Linear(dim, num_heads * self.head_dim)
        self.wk = nn.Linear(dim, num_heads * self.head_dim)
        self.wv = nn.Linear(dim, num_heads * self.value_dim)
        self.proj = nn.Linear(num_heads * self.value_dim, dim)

    def queries_and_keys(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys as projected, (B, H, N, key) each."""
        return self._heads(self.wq(x)), self._heads(self.wk(x))

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
        q, k = self.queries_and_keys(x)
        v = self._heads(self.wv(x))
        mixed, _ = self._attend(q, k, v, source=x, mask=attn_mask, is_causal=is_causal, fused=self.fused_attn)
        return self.proj(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _heads(self, x: Tensor) -> Tensor:
        """Reshape (B, N, H * d) to (B, H, N, d)."""
        return x.reshape(*x.shape[:2], self.num_heads, -1).transpose(1, 2)
