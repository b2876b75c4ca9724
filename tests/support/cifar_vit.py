"""A small ViT for CIFAR-10, BatchNorm for LayerNorm, mean pooling: `--arch tests/support/cifar_vit.py:vit_2_16`.

Tensors are named as in the torchport files of the adversarially trained ViTs of the VNN competition.
"""

import torch
from torch import Tensor, nn

WIDTH, HEADS = 48, 3


class Norm(nn.Module):
    """BatchNorm over the channels of (B, N, C) tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x.transpose(1, 2)).transpose(1, 2)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x).unflatten(2, (HEADS, -1)).transpose(1, 2) for part in (self.query, self.key, self.value))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).flatten(2))


class ViT(nn.Module):
    def __init__(self, blocks: int, patch: int) -> None:
        super().__init__()
        tokens = (32 // patch) ** 2 + 1
        self.cls, self.pos = nn.Parameter(torch.zeros(WIDTH)), nn.Parameter(torch.zeros(tokens, WIDTH))
        self.proj = nn.Conv2d(3, WIDTH, patch, patch)
        self.b = nn.ModuleList(
            nn.ModuleList([Norm(), Attention(), Norm(), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)])
            for _ in range(blocks)
        )
        self.n, self.head = nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(len(x), 1, -1), patches], dim=1) + self.pos
        for norm1, attention, norm2, inner, outer in self.b:  # type: ignore[misc]
            x = x + attention(norm1(x))
            x = x + outer(inner(norm2(x)).relu())
        return self.head(self.n(x.mean(dim=1)))


def _build(blocks: int, patch: int) -> nn.Module:
    network = ViT(blocks, patch)
    config = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2023, 0.1994, 0.2010), "input_size": (3, 32, 32)}
    network.default_cfg = config | {"crop_pct": 1.0}  # type: ignore[assignment]
    return network


def vit_2_16(**_: object) -> nn.Module:
    return _build(2, 16)


def vit_3_8(**_: object) -> nn.Module:
    return _build(3, 8)
