"""What an attention formula is, and the nine that are compared in the papers, as pure functions of queries and keys.

Every formula is reduced to `softmax(C Q' K'ᵀ) V`: it defines how Q' and K' come from Q and K, and whether the constant
C is 1/sqrt(d) or 1. So one fused kernel serves them all, and scores are one matrix product away. Two of
`formula_options` do more to the logits: one caps them, one adds the output of each query's own network.

Shapes: q, k, v are (B, H, N, d): batch, heads, tokens, head size. A bar is an l2-normalised row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from ..errors import ModelError
from .qana import Network

Parameters = Mapping[str, Tensor]
LAYER_NORM_EPS = 1e-6  # of the LayerNorm that timm puts on queries and keys


def unit(x: Tensor) -> Tensor:
    """Return the rows of x over their l2 norm; a zero row stays zero.

    The norm is held above 1e-12 (above the smallest normal number in float16), far below any row of a trained model.
    """
    eps = max(1e-12, torch.finfo(x.dtype).tiny)
    return functional.normalize(x, dim=-1, eps=eps).to(x.dtype)


@torch.no_grad()
def elliptical_metric(v: Tensor, previous: Tensor) -> Tensor:
    """Return the diagonal of M (Nielsen 2024, eq. 12; QUEST, A.5.2), (B, H, 1, d), largest entry 1, without gradient.

    v, previous: the values of this block and of the block before it. Each entry is the mean over all tokens of the
    absolute difference of the two, over the largest of them. Where the two are equal there is no direction to
    prefer, and M is the identity.
    """
    if v.shape != previous.shape:
        raise ModelError(
            f"elliptical attention compares the values of neighbouring blocks, but their shapes are {tuple(v.shape)} "
            f"and {tuple(previous.shape)}; it needs blocks that keep the number of tokens, heads and channels"
        )
    change = (v - previous).abs().mean(dim=-2, keepdim=True)
    largest = change.amax(dim=-1, keepdim=True)
    return torch.where(largest > 0, change / torch.where(largest > 0, largest, 1.0), torch.ones_like(change))


def _plain(q: Tensor, k: Tensor, p: Parameters) -> tuple[Tensor, Tensor]:
    return q, k


def _unit_keys(q: Tensor, k: Tensor, p: Parameters) -> tuple[Tensor, Tensor]:
    return q, unit(k)


def _unit_queries(q: Tensor, k: Tensor, p: Parameters) -> tuple[Tensor, Tensor]:
    return unit(q), k


def _head_scale(q: Tensor, k: Tensor, p: Parameters) -> tuple[Tensor, Tensor]:
    return unit(q) * p["qk_scale"].to(q.dtype)[:, None, None], unit(k)


def _dimension_scale(q: Tensor, k: Tensor, p: Parameters) -> tuple[Tensor, Tensor]:
    scales = (p[name].to(q.dtype) for name in ("q_scale", "k_scale"))  # (d,) for all heads, or (H, d)
    of_query, of_key = (scale if scale.ndim == 1 else scale[:, None, :] for scale in scales)
    return unit(q) * of_query, unit(k) * of_key


def _layer_norm(q: Tensor, k: Tensor, p: Parameters) -> tuple[Tensor, Tensor]:
    def norm(x: Tensor, which: str) -> Tensor:
        weight, bias = (
            p[name].to(x.dtype) if (name := f"{which}.{part}") in p else None for part in ("weight", "bias")
        )
        return functional.layer_norm(x, x.shape[-1:], weight, bias, LAYER_NORM_EPS)

    return norm(q, "q_norm"), norm(k, "k_norm")


def _no_parameters(heads: int, dim: int) -> dict[str, Tensor]:
    return {}


def _initial_head_scale(heads: int, dim: int) -> dict[str, Tensor]:
    return {"qk_scale": torch.full((heads,), dim**0.5)}


def _initial_shared_scales(heads: int, dim: int) -> dict[str, Tensor]:
    return {name: torch.full((dim,), dim**0.25) for name in ("q_scale", "k_scale")}


def _initial_own_scales(heads: int, dim: int) -> dict[str, Tensor]:
    return {name: torch.full((heads, dim), dim**0.25) for name in ("q_scale", "k_scale")}


@dataclass(frozen=True)
class Formula:
    """One way to turn queries and keys into attention logits.

    name: with the options that differ from the usual ones, as `formulas.find_formula` reads it.
    scaled: whether the constant is 1/sqrt(d) (otherwise 1).
    elliptical: whether queries are multiplied by M; the first block has no M and uses the formula without it.
    transform: (q, k, parameters) -> (q', k').
    initial: (heads, head size) -> parameters at the start of training. With them the forms with learned scales begin
        as sqrt(d) times the cosine, which is standard attention on rows of unit mean square.
    cap: where given, logits become cap · tanh(logits / cap). network: where given, adds to the logits.
    mixes_tokens: whether Q' or K' of one token is seen to depend on other tokens.
    """

    name: str
    logits: str
    source: str
    scaled: bool
    transform: Callable[[Tensor, Tensor, Parameters], tuple[Tensor, Tensor]]
    elliptical: bool = False
    initial: Callable[[int, int], dict[str, Tensor]] = _no_parameters
    cap: float | None = None
    network: Network | None = None
    mixes_tokens: bool = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mixes_tokens", _mixes_tokens(self))

    @property
    def sees_all(self) -> str:
        """What it makes of all tokens at once, in words; empty where Q' and K' of a token are of that token alone."""
        return "compares the values" if self.elliptical else "mixes queries or keys" if self.mixes_tokens else ""

    def reduce(
        self, q: Tensor, k: Tensor, *, metric: Tensor | None = None, parameters: Parameters | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return q' and K', so that the logits are Q' K'ᵀ, over sqrt(d) where `scaled`."""
        q, k = self.transform(q, k, parameters or {})
        return (q if metric is None else q * metric.to(q.dtype)), k

    def constant(self, dim: int) -> float:
        """Return c in the logits C Q' K'ᵀ for head size `dim`."""
        return float(dim**-0.5) if self.scaled else 1.0

    def bend(self, logits: Tensor) -> Tensor:
        """Return the logits C Q' K'ᵀ after the formula's cap; without one, as they are."""
        return logits if self.cap is None else self.cap * torch.tanh(logits / self.cap)


def _mixes_tokens(formula: Formula) -> bool:
    """Whether a change of one token changes Q' or K' of another: asked of drawn numbers, of 2 heads of 8 channels. A
    transform that cannot be asked counts as one that does.
    """
    rows = torch.randn(2, 2, 4, 8, generator=torch.Generator().manual_seed(0))
    try:
        parameters = formula.initial(2, 8)
        before = torch.stack(formula.transform(rows[:1], rows[1:], parameters))
        for token in range(4):
            changed = rows.clone()
            changed[:, :, token] += 1
            after = torch.stack(formula.transform(changed[:1], changed[1:], parameters))
            others = torch.arange(4) != token
            if not torch.allclose(after[..., others, :], before[..., others, :], rtol=1e-4, atol=1e-5):
                return True
    except Exception:  # the transform of a plug-in may raise anything
        return True
    return False


PLAIN: dict[str, Formula] = {
    formula.name: formula
    for formula in (
        Formula("standard", "Q Kᵀ / sqrt(d)", "Vaswani 2017", True, _plain),
        Formula("quest", "Q K̄ᵀ", "QUEST, Alg. A1", False, _unit_keys),
        Formula("qnorm", "Q̄ Kᵀ", "QUEST, Table 1", False, _unit_queries),
        Formula("qknorm-hs", "C_h Q̄ K̄ᵀ", "Liu 2022", False, _head_scale, initial=_initial_head_scale),
        Formula(
            "qknorm-ds",
            "(C_q ⊙ Q̄)(C_k ⊙ K̄)ᵀ, shared by the heads",
            "Dehghani 2023",
            False,
            _dimension_scale,
            initial=_initial_shared_scales,
        ),
        Formula(
            "qknorm",
            "(C_q ⊙ Q̄)(C_k ⊙ K̄)ᵀ, own for each head",
            "QUEST, Table 1",
            False,
            _dimension_scale,
            initial=_initial_own_scales,
        ),
        Formula("qknorm-ln", "LN(Q) LN(K)ᵀ / sqrt(d)", "Dehghani 2023; timm's qk_norm", True, _layer_norm),
        Formula("elliptical", "Q M Kᵀ / sqrt(d)", "Nielsen 2024", True, _plain, elliptical=True),
        Formula("elliptical-quest", "(Q M) K̄ᵀ", "QUEST, A.5.2", False, _unit_keys, elliptical=True),
    )
}
