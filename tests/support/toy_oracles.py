"""The toy model as an ordinary module, every token and every row of attention, one sample batch and model at a time."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from robustkit.attention import scores

SCALES = ("qk_scale", "q_scale", "k_scale")


class Transformer(nn.Module):
    """Algorithm A2 of QUEST, `literal` or as common pre-norm blocks are; weights named as `toy_model.initial` does."""

    def __init__(self, weights: dict[str, Tensor], formula: str, literal: bool) -> None:
        super().__init__()
        self.formula, self.literal = formula, literal
        width, tokens = 20, len(weights["positions"])
        self.cls, self.positions = nn.Parameter(torch.zeros(width)), nn.Parameter(torch.zeros(tokens, width))
        for name in ("q", "k", "v"):
            setattr(self, name, nn.Linear(width, width, bias=f"{name}.bias" in weights))
        self.out, self.fc1, self.fc2 = (nn.Linear(width, width) for _ in range(3))
        self.norm1, self.norm2, self.head = nn.LayerNorm(width), nn.LayerNorm(width), nn.Linear(width, 10)
        self.norm = nn.LayerNorm(width) if "norm.weight" in weights else nn.Identity()
        if formula == "qknorm-ln":
            self.q_norm, self.k_norm = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        for name in SCALES:
            if name in weights:
                setattr(self, name, nn.Parameter(torch.zeros_like(weights[name])))
        self.load_state_dict(weights)

    def scores(self, y: Tensor, v: Tensor) -> Tensor:
        """Attention logits, (B, 1, N + 1, N + 1), by the package's own function."""
        names = [*SCALES, *(f"{which}_norm.{part}" for which in "qk" for part in ("weight", "bias"))]
        own = {name: value for name, value in self.named_parameters() if name in names}
        return scores(self.formula, self.q(y)[:, None], self.k(y)[:, None], v[:, None], parameters=own)

    def attend(self, y: Tensor) -> Tensor:
        v = self.v(y)
        return self.out(self.scores(y, v).softmax(dim=-1)[:, 0] @ v)

    def mlp(self, y: Tensor) -> Tensor:
        return self.fc2(nn.functional.gelu(self.fc1(y)))

    def embed(self, tokens: Tensor) -> Tensor:
        return torch.cat([self.cls.expand(len(tokens), 1, -1), tokens], dim=1) + self.positions

    def keys(self, tokens: Tensor) -> Tensor:
        """(B, N + 1, 20), as projected."""
        x = self.embed(tokens)
        return self.k(x if self.literal else self.norm1(x))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        if self.literal:
            y = self.norm1(x)
            y = y + self.attend(x)
            y = x + self.norm2(y)
            y = x + self.mlp(y)
        else:
            x = x + self.attend(self.norm1(x))
            y = x + self.mlp(self.norm2(x))
        return self.head(self.norm(y)[:, 0])
