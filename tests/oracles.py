"""Slow replicas: formulas written down as the papers have them, one sample at a time, to test the fast ones against."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

# --- attacks ---------------------------------------------------------------------------------------------------------


class Draws:
    """Random numbers that depend on (sample id, purpose, row) only: the least that satisfies `attacks.Rng`."""

    def __init__(self, ids: Sequence[int]) -> None:
        self.ids = list(ids)

    def _generator(self, *key: object) -> torch.Generator:
        return torch.Generator().manual_seed(zlib.crc32(repr(key).encode()))

    def uniform(self, shape: Sequence[int], purpose: str) -> Tensor:
        return torch.stack([torch.rand(*shape, generator=self._generator(i, purpose)) for i in self.ids])

    def normal(self, shape: Sequence[int], purpose: str) -> Tensor:
        return torch.stack([torch.randn(*shape, generator=self._generator(i, purpose)) for i in self.ids])

    def signs(self, shape: Sequence[int], purpose: str, first: int = 0) -> Tensor:
        def row(sample: int, number: int) -> Tensor:
            return torch.randint(0, 2, tuple(shape[1:]), generator=self._generator(sample, purpose, number)) * 2.0 - 1.0

        rows = range(first, first + shape[0])
        return torch.stack([torch.stack([row(i, number) for number in rows]) for i in self.ids])

    def take(self, index: Tensor) -> Draws:
        return Draws([self.ids[i] for i in index.tolist()])


def tiny_cnn(classes: int = 5) -> nn.Module:
    """A small convolutional network with batch normalisation and dropout, for (B, 3, 8, 8), always the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 12, 3, padding=1),
            nn.BatchNorm2d(12),
            nn.GELU(),
            nn.Conv2d(12, 12, 3, stride=2, padding=1),
            nn.GELU(),
            nn.Dropout(0.5),
            nn.Flatten(),
            nn.Linear(12 * 16, classes),
        )
    return net.eval()


def random_images(count: int, seed: int = 1) -> Tensor:
    """(count, 3, 8, 8) in [0, 1], with some pixels at the very ends."""
    images = torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
    return (images * 1.2 - 0.1).clamp(0, 1)


def into_ball(change: Tensor, norm: str, eps: float) -> Tensor:
    """One sample's change, moved to the nearest point of the ball around 0."""
    if norm == "linf":
        return torch.maximum(torch.minimum(change, torch.tensor(eps)), torch.tensor(-eps))
    length = float((change * change).sum()) ** 0.5
    return change if length <= eps else change * (eps / length)


def pgd_slowly(
    model: nn.Module, image: Tensor, label: int, change: Tensor, norm: str, eps: float, step: float, steps: int
) -> Tensor:
    """Madry et al. (2018) for one image from the perturbation `change`, as it is written in the paper."""
    change = (image + into_ball(change, norm, eps)).clamp(0, 1) - image
    for _ in range(steps):
        change = change.clone().requires_grad_()
        loss = -torch.log_softmax(model((image + change)[None])[0], dim=0)[label]
        (gradient,) = torch.autograd.grad(loss, change)
        direction = gradient.sign() if norm == "linf" else gradient / (gradient * gradient).sum().sqrt()
        change = into_ball(change.detach() + step * direction, norm, eps)
        change = (image + change).clamp(0, 1) - image
    return image + change


def spsa_slowly(
    model: nn.Module,
    image: Tensor,
    label: int,
    change: Tensor,
    signs: Sequence[Tensor],
    eps: float,
    lr: float,
    delta: float,
    doubled: bool,
) -> Tensor:
    """Uesato et al. (2018) for one image: one direction after the other, then torch's own Adam on the perturbation.

    signs: for each step, (directions, *image.shape). doubled: ask around twice the image, as CleverHans does by error.
    """

    def objective(point: Tensor) -> float:
        logits = model(point[None])[0].tolist()
        return max(value for index, value in enumerate(logits) if index != label) - logits[label]

    change = nn.Parameter((image + into_ball(change, "linf", eps)).clamp(0, 1) - image)
    optimiser = torch.optim.Adam([change], lr=lr, maximize=True)
    for directions in signs:
        centre = 2 * image if doubled else image + change.detach()
        slopes = [(objective(centre + delta * v) - objective(centre - delta * v)) / (2 * delta) for v in directions]
        change.grad = sum((slope * v for slope, v in zip(slopes, directions, strict=True)), torch.zeros_like(image))
        change.grad /= len(directions)
        optimiser.step()
        change.data = (image + into_ball(change.data, "linf", eps)).clamp(0, 1) - image
    return (image + change).detach()


# --- attention formulas (QUEST: Table 1, Alg. A1, A.5.2; Nielsen 2024) ------------------------------------------------


def slow_metric(v: Tensor, previous_v: Tensor) -> list[float]:
    """The diagonal of M for one sample and head; v, previous_v: (N, d)."""
    tokens, dim = v.shape
    v, previous_v = v.detach().double(), previous_v.detach().double()
    change = [sum(abs(float(v[n, j]) - float(previous_v[n, j])) for n in range(tokens)) / tokens for j in range(dim)]
    return [c / max(change) if max(change) > 0 else 1.0 for c in change]


def slow_scores(
    name: str,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    previous_v: Tensor | None,
    parameters: Mapping[str, Tensor],
) -> Tensor:
    """Attention logits (B, H, N, N) in float64, one sample, head, query and key at a time."""
    q, k = q.double(), k.double()
    samples, heads, tokens, dim = q.shape
    logits = q.new_zeros(samples, heads, tokens, tokens)

    def unit_row(row: Tensor) -> Tensor:
        length = (row * row).sum().sqrt()
        return row / length if length > 0 else row

    def normed(row: Tensor, which: str) -> Tensor:
        mean = row.mean()
        row = (row - mean) / (((row - mean) ** 2).mean() + 1e-6).sqrt()
        weight, bias = parameters.get(f"{which}.weight"), parameters.get(f"{which}.bias")
        return row * (1.0 if weight is None else weight.double()) + (0.0 if bias is None else bias.double())

    for b in range(samples):
        for h in range(heads):
            metric = [1.0] * dim
            if name.startswith("elliptical") and previous_v is not None:
                metric = slow_metric(v[b, h], previous_v[b, h])
            m = torch.tensor(metric, dtype=torch.float64)
            for i in range(tokens):
                for j in range(tokens):
                    a, c = q[b, h, i], k[b, h, j]
                    if name == "standard":
                        s = (a * c).sum() / dim**0.5
                    elif name == "quest":
                        s = (a * unit_row(c)).sum()
                    elif name == "qnorm":
                        s = (unit_row(a) * c).sum()
                    elif name == "qknorm-hs":
                        s = parameters["qk_scale"][h].double() * (unit_row(a) * unit_row(c)).sum()
                    elif name == "qknorm-ds":
                        scale = parameters["q_scale"].double() * parameters["k_scale"].double()
                        s = (scale * unit_row(a) * unit_row(c)).sum()
                    elif name == "qknorm":
                        scale = parameters["q_scale"][h].double() * parameters["k_scale"][h].double()
                        s = (scale * unit_row(a) * unit_row(c)).sum()
                    elif name == "qknorm-ln":
                        s = (normed(a, "q_norm") * normed(c, "k_norm")).sum() / dim**0.5
                    elif name == "elliptical":
                        s = (a * m * c).sum() / dim**0.5
                    elif name == "elliptical-quest":
                        # S Q̄ M K̄ᵀ as the paper writes it
                        s = (a * a).sum().sqrt() * (unit_row(a) * m * unit_row(c)).sum()
                    else:
                        raise KeyError(name)
                    logits[b, h, i, j] = s
    return logits


def slow_vit(model: nn.Module, images: Tensor, name: str) -> tuple[Tensor, list[Tensor], list[Tensor]]:
    """Logits, scores and attention of a timm ViT under a formula, block by block, from its weights alone."""
    x = model.norm_pre(model._pos_embed(model.patch_embed(images)))
    all_scores, all_attention = [], []
    previous_v = None
    for block in model.blocks:
        layer = block.attn
        samples, tokens, width = x.shape
        packed = layer.qkv(block.norm1(x)).reshape(samples, tokens, 3, layer.num_heads, -1)
        q, k, v = (packed[:, :, part].transpose(1, 2) for part in range(3))
        parameters = dict(layer.named_parameters())
        s = slow_scores(name, q, k, v, previous_v, parameters).to(x.dtype)
        a = s.softmax(dim=-1)
        mixed = torch.stack([a[:, h] @ v[:, h] for h in range(layer.num_heads)], dim=2).reshape(samples, tokens, width)
        x = x + block.ls1(layer.proj(mixed))
        x = x + block.ls2(block.mlp(block.norm2(x)))
        all_scores.append(s)
        all_attention.append(a)
        previous_v = v.detach()
    return model.forward_head(model.norm(x)), all_scores, all_attention
