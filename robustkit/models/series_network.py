"""The QUEST paper's Transformer for time series, with any attention formula.

Table 7 and A.5.6: three layers of dimension 128 on one token for each time step, and a class token whose output alone
is classified. What the paper leaves to the Time Series Library that it takes is as there: a convolution over three
steps and sinusoidal positions in front, 8 heads, 256 hidden units with GELU, normalisation after each sum, dropout 0.1.
Two things differ: the convolution pads with zeros and not in a circle, so that a series gets the same logits alone as
in a batch that was filled up to the longest one; and attention weights are not dropped, so that fused kernels compute
them.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..attention.apply import set_attention

ARCH = "series-transformer"
"""The name that checkpoints have for it."""


class Block(nn.Module):
    """Attention, then a network for each token; each is added and normalised."""

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm_attention, self.norm_hidden = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, hidden), nn.Linear(hidden, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, tokens: Tensor, padding: Tensor | None) -> Tensor:
        mixed, _ = self.attention(tokens, tokens, tokens, key_padding_mask=padding, need_weights=False)
        tokens = self.norm_attention(tokens + self.dropout(mixed))
        hidden = self.dropout(functional.gelu(self.up(tokens)))
        return cast(Tensor, self.norm_hidden(tokens + self.dropout(self.down(hidden))))


class SeriesTransformer(nn.Module):
    """Standardised series (B, C, T) to logits (B, K).

    lengths: of `forward`, the steps of each series (B,), where a batch was filled up with zeros; what is filled up has
    no part in the logits.
    """

    def __init__(
        self,
        channels: int,
        num_classes: int,
        dim: int = 128,
        depth: int = 3,
        heads: int = 8,
        hidden: int = 256,
        dropout: float = 0.1,
        attention: str = "standard",
    ) -> None:
        super().__init__()
        self.num_classes, self.channels = num_classes, channels
        self.embed = nn.Conv1d(channels, dim, 3, padding=1, bias=False)
        nn.init.kaiming_normal_(self.embed.weight, nonlinearity="leaky_relu")
        self.class_token = nn.Parameter(torch.randn(dim) * 0.02)
        self.blocks = nn.ModuleList(Block(dim, heads, hidden, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(dim)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(dim, num_classes)
        set_attention(self, attention)

    def forward(self, series: Tensor, lengths: Tensor | None = None) -> Tensor:
        steps = series.shape[2]
        padding = None
        if lengths is not None and int(lengths.min()) < steps:
            hidden = torch.arange(steps, device=series.device) >= lengths[:, None]
            series = series.masked_fill(hidden[:, None], 0)
            padding = functional.pad(hidden, (1, 0))  # the class token is never hidden
        tokens = self.embed(series).transpose(1, 2)
        tokens = tokens + positions(steps, tokens.shape[2], tokens.device)
        tokens = torch.cat((self.class_token.expand(len(tokens), 1, -1), tokens), dim=1)
        tokens = self.dropout(tokens)
        for block in self.blocks:
            tokens = block(tokens, padding)
        return cast(Tensor, self.head(self.dropout(functional.gelu(self.norm(tokens[:, 0])))))


def positions(steps: int, dim: int, device: torch.device) -> Tensor:
    """Return sines and cosines of each step in turn, (steps, dim) (Vaswani et al. 2017, 3.5)."""
    rates = torch.exp(torch.arange(0, dim, 2, device=device) * (-math.log(10000.0) / dim))
    angles = torch.arange(steps, device=device)[:, None] * rates
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
