"""Multi-head latent attention (DeepSeek-V2; QuacK, eq. 13): queries and keys come from small latents.

    x ──dq──► c_q ──uq──► q_nope        x ──dkv──► c_kv ──uk──► k_nope
                └───qr──► q_rope                     └────uv──► v            x ──kr──► k_rope, one for all heads

q and k are the two parts side by side; only the rope part is turned by the token's position, so that what is cached at
inference is c_kv and k_rope. As in the paper's equations there is no norm on the latents and there are no biases.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..errors import ModelError
from .layer import Formulaic


def rotate(x: Tensor, positions: Tensor, base: float = 10_000.0) -> Tensor:
    """Turn the pairs (2i, 2i + 1) of the last axis by positions * base^(-2i/d) (Su 2021).

    x: (..., N, d), d even. positions: (N,), in tokens. Norms stay, and the product of a turned query and a turned key
    depends on the difference of their positions only. Angles are in float32, or float64 where x is.
    """
    kind = torch.promote_types(x.dtype, torch.float32)
    pairs = torch.arange(0, x.shape[-1], 2, device=x.device, dtype=kind)
    angles = positions.to(x.device, kind)[:, None] * base ** (-pairs / x.shape[-1])
    sine, cosine = angles.sin().to(x.dtype), angles.cos().to(x.dtype)
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cosine - odd * sine, even * sine + odd * cosine), dim=-1).flatten(-2)


class LatentAttention(Formulaic, nn.Module):
    """MLA between the tokens of (B, N, dim). It is called like timm's Attention, and can replace it in a block.

    Formulas take the whole of queries and keys, so those that normalise keys need them at inference, where MLA keeps
    the latents only; in training, and where keys are made anyway, `set_attention` gives it any.

    nope, rope, value: sizes per head: of the parts of queries and keys without and with position, and of values.
    query_latent, key_latent: sizes of c_q and c_kv. base: of the rotation. Raises ModelError for an impossible size.
    """

    def __init__(
        self,
        dim: int,
        num_heads: int,
        *,
        nope: int,
        rope: int,
        value: int,
        query_latent: int,
        key_latent: int,
        base: float = 10_000.0,
    ) -> None:
        super().__init__()
        sizes = {"dim": dim, "num_heads": num_heads, "nope": nope, "rope": rope, "value": value}
        for what, size in {**sizes, "query_latent": query_latent, "key_latent": key_latent}.items():
            if size < 1:
                raise ModelError(f"{what} {size}: expected a size of 1 or more")
        if rope % 2:
            raise ModelError(
                f"rope {rope}: expected an even size, as positions turn pairs of channels; give {rope + 1}"
            )
        self.num_heads, self.nope, self.rope, self.base = num_heads, nope, rope, base
        self.head_dim, self.value_dim = nope + rope, value
        self.scale = self.head_dim**-0.5
        self.fused_attn = True
        self.dq = nn.Linear(dim, query_latent, bias=False)
        self.uq = nn.Linear(query_latent, num_heads * nope, bias=False)
        self.qr = nn.Linear(query_latent, num_heads * rope, bias=False)
        self.dkv = nn.Linear(dim, key_latent, bias=False)
        self.uk = nn.Linear(key_latent, num_heads * nope, bias=False)
        self.uv = nn.Linear(key_latent, num_heads * value, bias=False)
        self.kr = nn.Linear(dim, rope, bias=False)
        self.o = nn.Linear(num_heads * value, dim, bias=False)

    def queries_and_keys(self, x: Tensor, positions: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return queries and keys, (B, H, N, nope + rope) each; their products, times `scale`, are the logits.

        positions: (N,); 0, 1, … if left out.
        """
        if positions is None:
            positions = torch.arange(x.shape[1], device=x.device)
        latent = self.dq(x)
        turned = rotate(self._heads(self.qr(latent)), positions, self.base)
        shared = rotate(self.kr(x)[:, None], positions, self.base).expand_as(turned)
        q = torch.cat((self._heads(self.uq(latent)), turned), dim=-1)
        k = torch.cat((self._heads(self.uk(self.dkv(x))), shared), dim=-1)
        return q, k

    def forward(
        self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, positions: Tensor | None = None
    ) -> Tensor:
        q, k = self.queries_and_keys(x, positions)
        v = self._heads(self.uv(self.dkv(x)))
        mixed, _ = self._attend(q, k, v, source=x, mask=attn_mask, is_causal=is_causal, fused=self.fused_attn)
        return self.o(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def _heads(self, x: Tensor) -> Tensor:
        """Reshape (B, N, H * d) to (B, H, N, d)."""
        return x.reshape(*x.shape[:2], self.num_heads, -1).transpose(1, 2)
