"""A Segmenter written down from its paper (Strudel et al. 2021, sections 3.1 and 3.2) and its public tensor names:
plain tensors, one image and one head at a time, in float64."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import cv2
import torch
from torch import Tensor
from torch.nn import functional


@dataclass
class SlowSegmenter:
    """tensors: as a public file has them. heads: of encoder and decoder. eps: of their LayerNorms."""

    tensors: Mapping[str, Tensor]
    heads: tuple[int, int]
    eps: tuple[float, float] = (1e-5, 1e-5)
    formula: str = "standard"

    def weight(self, name: str) -> Tensor:
        return self.tensors[name].double()

    def linear(self, x: Tensor, name: str) -> Tensor:
        return x @ self.weight(f"{name}.weight").T + self.weight(f"{name}.bias")

    def norm(self, x: Tensor, name: str, eps: float) -> Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        scaled = centred / ((centred**2).mean(dim=-1, keepdim=True) + eps) ** 0.5
        return scaled * self.weight(f"{name}.weight") + self.weight(f"{name}.bias")

    def scores(self, q: Tensor, k: Tensor, v: Tensor, before: Tensor | None) -> Tensor:
        if self.formula == "standard":
            return q @ k.T / q.shape[1] ** 0.5
        metric = torch.ones(q.shape[1], dtype=q.dtype)
        if self.formula == "elliptical-quest" and before is not None:
            change = (v - before).abs().mean(dim=0)
            metric = change / change.max()
        return (q * metric) @ (k / (k * k).sum(dim=1, keepdim=True) ** 0.5).T

    def blocks(self, x: Tensor, half: int) -> Tensor:
        """(N, D) through the blocks of the encoder (0) or the decoder (1)."""
        part, heads, eps = ("encoder", "decoder")[half], self.heads[half], self.eps[half]
        depth = len({name.split(".")[2] for name in self.tensors if name.startswith(f"{part}.blocks.")})
        before: list[Tensor | None] = [None] * heads
        for index in range(depth):
            name = f"{part}.blocks.{index}"
            queries, keys, values = self.linear(self.norm(x, f"{name}.norm1", eps), f"{name}.attn.qkv").chunk(3, dim=1)
            mixed = []
            for head, (q, k, v) in enumerate(
                zip(*(side.chunk(heads, dim=1) for side in (queries, keys, values)), strict=True)
            ):
                mixed.append(self.scores(q, k, v, before[head]).softmax(dim=1) @ v)
                before[head] = v
            x = x + self.linear(torch.cat(mixed, dim=1), f"{name}.attn.proj")
            hidden = self.linear(self.norm(x, f"{name}.norm2", eps), f"{name}.mlp.fc1")
            hidden = hidden * 0.5 * (1 + torch.erf(hidden / 2**0.5))
            x = x + self.linear(hidden, f"{name}.mlp.fc2")
        return x

    def encode(self, image: Tensor) -> tuple[Tensor, tuple[int, int]]:
        """A normalised image (3, H, W) to patch tokens (N, D) and their grid."""
        kernel = self.weight("encoder.patch_embed.proj.weight")
        patch = kernel.shape[-1]
        rows, columns = image.shape[1] // patch, image.shape[2] // patch
        patches = [
            image[:, row * patch : (row + 1) * patch, column * patch : (column + 1) * patch].reshape(-1)
            for row in range(rows)
            for column in range(columns)
        ]
        x = torch.stack(patches) @ kernel.flatten(1).T + self.weight("encoder.patch_embed.proj.bias")
        extra = [self.weight(f"encoder.{kind}_token")[0] for kind in ("cls", "dist") if f"encoder.{kind}_token" in self]
        x = torch.cat([*extra, x]) + self.weight("encoder.pos_embed")[0]
        x = self.norm(self.blocks(x, 0), "encoder.norm", self.eps[0])
        return x[len(extra) :], (rows, columns)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def decode(self, patches: Tensor) -> Tensor:
        """(N, D) to masks (N, K)."""
        if "decoder.head.weight" in self:
            return self.linear(patches, "decoder.head")
        classes = self.weight("decoder.cls_emb")[0]
        x = self.blocks(torch.cat([self.linear(patches, "decoder.proj_dec"), classes]), 1)
        x = self.norm(x, "decoder.decoder_norm", self.eps[1])
        sides = (
            x[: len(patches)] @ self.weight("decoder.proj_patch"),
            x[len(patches) :] @ self.weight("decoder.proj_classes"),
        )
        cosines = torch.stack([torch.stack([cosine(a, b) for b in sides[1]]) for a in sides[0]])
        return self.norm(cosines, "decoder.mask_norm", self.eps[1])

    def window(self, image: Tensor) -> Tensor:
        """A normalised image (3, H, W) of the size of a window to logits (K, H, W)."""
        patches, (rows, columns) = self.encode(image.double())
        masks = self.decode(patches).T.reshape(-1, rows, columns)
        return functional.interpolate(masks[None], image.shape[1:], mode="bilinear")[0]

    def whole(self, image: Tensor, size: int, stride: int, to: tuple[int, int] | None = None) -> Tensor:
        """A normalised image (3, H, W) of any size to logits (K, *to), its own size if left out, as the public code's
        inference: an image whose short side is below the window is enlarged to it, and no image is made smaller."""
        height, width = image.shape[1:]
        shown = image.double()
        if min(height, width) < size:
            frame = (size, int(width / height * size)) if height < width else (int(height / width * size), size)
            shown = functional.interpolate(shown[None], frame, mode="bilinear")[0]
        seen = self.slid(shown, size, stride)
        return functional.interpolate(seen[None], to or (height, width), mode="bilinear")[0]

    def slid(self, shown: Tensor, size: int, stride: int) -> Tensor:
        """The mean over windows on an image that is at least as large as one: (K, H, W)."""
        rows, columns = shown.shape[1:]
        total, count = 0, torch.zeros(rows, columns)
        for top in sorted({*range(0, rows - size, stride), rows - size}):
            for left in sorted({*range(0, columns - size, stride), columns - size}):
                logits = self.window(shown[:, top : top + size, left : left + size])
                around = (left, columns - left - size, top, rows - top - size)
                total = total + functional.pad(logits, around)
                count += functional.pad(torch.ones(size, size), around)
        return total / count


def ade20k_pipeline(image: Tensor) -> Tensor:
    """What the public code's data pipeline makes of an image (3, H, W) of ADE20K, by OpenCV as there: within 2048 x
    512, with its proportions kept. Without the rounding to 8 bits."""
    height, width = image.shape[1:]
    scale = min(2048 / max(height, width), 512 / min(height, width))
    size = (int(width * scale + 0.5), int(height * scale + 0.5))
    resized = cv2.resize(image.permute(1, 2, 0).numpy(), size, interpolation=cv2.INTER_LINEAR)
    return torch.from_numpy(resized).permute(2, 0, 1)


def cosine(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum() / ((a * a).sum() * (b * b).sum()) ** 0.5


def randomised(tensors: Mapping[str, Tensor], seed: int = 0) -> dict[str, Tensor]:
    """The same names and shapes with values of which none is without effect: no zeros, no ones, no symmetry."""
    draw = torch.Generator().manual_seed(seed)

    def values(name: str, tensor: Tensor) -> Tensor:
        noise = torch.randn(tensor.shape, generator=draw)
        if re.search(r"norm\d?\.weight$", name):
            return 1 + 0.2 * noise
        if tensor.ndim < 2 or name.endswith(("token", "pos_embed", "cls_emb")):
            return 0.1 * noise
        return noise * (2.0 if "qkv" in name else 1.0) * tensor[0].numel() ** -0.5

    return {name: values(name, tensor) for name, tensor in tensors.items()}
