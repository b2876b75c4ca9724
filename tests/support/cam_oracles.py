"""Slow replicas of the maps, written from the papers: one image, one block, one head and one pixel at a time."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import pytest
import timm
import torch
from attack_oracles import slow_vit
from skimage.transform import resize
from torch import Tensor, nn

from robustkit.attention import capture


def tiny_vit(**options: Any) -> Any:
    """A ViT with three blocks and weights large enough for attention to differ from token to token."""
    arch = options.pop("arch", "vit_tiny_patch16_224")
    size = {"img_size": (16, 24), "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 3, "num_classes": 7}
    torch.manual_seed(5)  # for the biases that timm draws
    model = timm.create_model(arch, **(size | options))
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.data = noise * 0.15 if parameter.ndim > 1 else parameter.data + noise * 0.1
    return model.eval()


def some_images(count: int, height: int = 16, width: int = 24, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(seed))


def agcam_slowly(model: Any, image: Tensor, target: int, formula: str, full: bool = False) -> list[float]:
    """Leem and Seo (2024), the map before upsampling: the patches in raster order.

    full: the gradient passes through later attention, too.
    """
    logits, all_scores, all_attention = slow_vit(model, image[None], formula, cut=not full)
    rows = rows_read(model, all_scores[0].shape[-1])
    return agcam_sum(model.num_prefix_tokens, logits[0, target], all_scores, all_attention, rows)


def rows_read(model: Any, tokens: int) -> list[int]:
    """What the head reads: the class token, or the tokens of which it takes the mean."""
    pooled = model.global_pool == "avg" and not (model.pool_include_prefix and model.cls_token is not None)
    first = 0 if getattr(model, "pool_include_prefix", False) else model.num_prefix_tokens
    return list(range(first, tokens)) if pooled else [0]


def agcam_by_detaching(model: Any, image: Tensor, target: int) -> list[float]:
    """The same of any model whose blocks have an `attn`, by the published code's own means: `x.detach()` before it."""

    class Reading(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: Tensor, **others: Any) -> Tensor:
            return self.layer(x.detach(), **others)

    model = copy.deepcopy(model).requires_grad_()
    for part in model.modules():
        part.fused_attn = False
    for block in model.blocks:
        block.attn = Reading(block.attn)
    scores, attention = [], []
    softmax = Tensor.softmax

    def seen(self: Tensor, dim: int) -> Tensor:
        scores.append(self)
        attention.append(softmax(self, dim))
        return attention[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tensor, "softmax", seen)
        logits = model(image[None])
    return agcam_sum(model.num_prefix_tokens, logits[0, target], scores, attention)


def agcam_of_parallel_slowly(model: Any, image: Tensor, target: int, full: bool = False) -> list[float]:
    """The same of timm's ParallelScalingBlock (Dehghani 2023, equation 2): attention and MLP of one normed input."""
    x = model.norm_pre(model._pos_embed(model.patch_embed(image[None])))
    all_scores, all_attention = [], []
    for block in model.blocks:
        tokens, width = x.shape[1:]
        normed, hidden = block.in_norm(x), block.in_split[0]
        weight, bias = block.in_proj.weight, block.in_proj.bias
        read = normed if full else normed.detach()
        inner = normed @ weight[:hidden].T + bias[:hidden]
        packed = read @ weight[hidden:].T + bias[hidden:]
        q, k, v = packed.reshape(1, tokens, 3, block.num_heads, -1).unbind(2)
        q, k = block.q_norm(q), block.k_norm(k)
        scores = torch.einsum("bnhd,bmhd->bhnm", q, k) / math.sqrt(q.shape[-1])
        attention = scores.softmax(dim=-1)
        mixed = torch.einsum("bhnm,bmhd->bnhd", attention, v).reshape(1, tokens, width)
        x = x + block.ls(block.attn_out_proj(mixed) + block.mlp_out_proj(nn.functional.gelu(inner)))
        all_scores.append(scores)
        all_attention.append(attention)
    logits = model.forward_head(model.norm(x))
    return agcam_sum(model.num_prefix_tokens, logits[0, target], all_scores, all_attention)


def agcam_sum(
    prefix: int, logit: Tensor, all_scores: list[Tensor], all_attention: list[Tensor], rows: Sequence[int] = (0,)
) -> list[float]:
    """The sum over blocks and heads for each patch, of one image; the mean of the sums of several rows."""
    gradients = torch.autograd.grad(logit, all_attention)
    values = []
    for token in range(prefix, all_scores[0].shape[-1]):
        value = 0.0
        for scores, gradient in zip(all_scores, gradients, strict=True):
            for head in range(scores.shape[1]):
                for row in rows:
                    slope, score = gradient[0, head, row, token].item(), scores[0, head, row, token].item()
                    value += max(slope, 0.0) / (1 + math.exp(-score)) / len(rows)
        values.append(value)
    return values


def rollout_slowly(model: Any, image: Tensor) -> list[float]:
    """Abnar and Zuidema (2020), equation 1 with residuals: the whole product of matrices, then one row of it."""
    _, _, all_attention = slow_vit(model, image[None], "standard")
    product = torch.eye(all_attention[0].shape[-1], dtype=torch.float64)
    for attention in all_attention:
        average = sum(attention[0, head].detach().double() for head in range(attention.shape[1])) / attention.shape[1]
        product = (0.5 * average + 0.5 * torch.eye(len(average), dtype=torch.float64)) @ product
    rows = rows_read(model, len(product))
    return product[rows, model.num_prefix_tokens :].mean(dim=0).tolist()


def gradcam_slowly(model: Any, image: Tensor, target: int) -> list[float]:
    """Selvaraju et al. (2017), equations 1 and 2, over the patch tokens after the last block's first norm."""
    x = model.norm_pre(model._pos_embed(model.patch_embed(image[None])))
    for block in model.blocks[:-1]:
        x = block(x)
    last = model.blocks[-1]
    tokens = last.norm1(x).detach().requires_grad_()
    y = x + last.ls1(last.attn(tokens))
    y = y + last.ls2(last.mlp(last.norm2(y)))
    (gradient,) = torch.autograd.grad(model.forward_head(model.norm(y))[0, target], tokens)
    patches = range(model.num_prefix_tokens, tokens.shape[1])
    weights = [sum(gradient[0, p, k].item() for p in patches) / len(patches) for k in range(tokens.shape[2])]
    return [max(sum(w * tokens[0, p, k].item() for k, w in enumerate(weights)), 0.0) for p in patches]


def legrad_slowly(model: Any, image: Tensor, target: int, layers: int) -> list[float]:
    """Bousselham et al. (2025): block after block, a forward of its own from what goes into it, and a backward."""
    x = model.norm_pre(model._pos_embed(model.patch_embed(image[None]))).detach()
    total = [0.0] * x.shape[1]
    for place, block in enumerate(model.blocks):
        with capture(model) as captured:
            formed = block(x)
        pooled = sum(formed[:, token] for token in range(formed.shape[1])) / formed.shape[1]
        logit = model.head(model.fc_norm(model.norm(pooled)))[0, target]
        (gradient,) = torch.autograd.grad(logit, captured.attention[-1])
        heads, queries, keys = gradient.shape[1:]
        for key in range(keys if place >= len(model.blocks) - layers else 0):
            rises = [max(gradient[0, h, q, key].item(), 0.0) for h in range(heads) for q in range(queries)]
            total[key] += sum(rises) / len(rises)
        x = formed.detach()
    return total[model.num_prefix_tokens :]


def chefer_slowly(model: Any, image: Tensor, target: int, formula: str) -> list[float]:
    """Chefer et al. (ICCV 2021), equations 5 and 6: whole matrices, from the first block up."""
    logits, _, all_attention = slow_vit(model, image[None], formula)
    gradients = torch.autograd.grad(logits[0, target], all_attention)
    relevance = torch.eye(all_attention[0].shape[-1], dtype=torch.float64)
    for attention, gradient in zip(all_attention, gradients, strict=True):
        product = (attention.detach() * gradient)[0].double().clamp(min=0)
        relevance = relevance + sum(product[head] for head in range(len(product))) / len(product) @ relevance
    rows = rows_read(model, len(relevance))
    return relevance[rows, model.num_prefix_tokens :].mean(dim=0).tolist()


def last_norm(model: Any, image: Tensor, target: int) -> tuple[list[list[float]], list[list[float]]]:
    """Return features and gradients after the last block's first norm: for each channel those of the patches."""
    kept: list[Tensor] = []
    handle = model.blocks[-1].norm1.register_forward_hook(lambda module, inputs, output: kept.append(output))
    logit = model(image[None].clone().requires_grad_())[0, target]
    handle.remove()
    (gradient,) = torch.autograd.grad(logit, kept[0])
    return tuple(part[0, model.num_prefix_tokens :].T.tolist() for part in (kept[0].detach(), gradient))  # type: ignore


def gradcam_pp_slowly(model: Any, image: Tensor, target: int) -> list[float]:
    """Chattopadhay et al. (2018), equations 7, 14 and 19: derivatives of exp(logit) by those of the logit."""
    features, gradients = last_norm(model, image, target)
    total = [0.0] * len(features[0])
    for feature, gradient in zip(features, gradients, strict=True):
        below = [2 * g**2 + sum(feature) * g**3 for g in gradient]
        weight = sum(g**2 / b * max(g, 0.0) for g, b in zip(gradient, below, strict=True) if b)
        total = [t + weight * f for t, f in zip(total, feature, strict=True)]
    return [max(value, 0.0) for value in total]


def layercam_slowly(model: Any, image: Tensor, target: int) -> list[float]:
    """Jiang et al. (2021), equations 6 to 8."""
    features, gradients = last_norm(model, image, target)
    places = range(len(features[0]))
    sums = [sum(max(g[p], 0.0) * f[p] for f, g in zip(features, gradients, strict=True)) for p in places]
    return [max(value, 0.0) for value in sums]


def scorecam_slowly(model: Any, features: Tensor, image: Tensor, target: int, fill: float) -> Tensor:
    """Wang et al. (2020), algorithm 1: one channel of features (C, h, w) after the other; (h, w) before upsampling."""
    scores = []
    for channel in features:
        mask = nn.functional.interpolate(channel[None, None], image.shape[1:], mode="bilinear")[0, 0]
        spread = mask.max() - mask.min()
        mask = (mask - mask.min()) / spread if spread > 0 else torch.zeros_like(mask)
        scores.append(model((image * mask + fill * (1 - mask))[None])[0, target].item())
    largest = max(scores)
    shares = [math.exp(score - largest) for score in scores]
    return sum(share / sum(shares) * channel for share, channel in zip(shares, features, strict=True)).clamp(min=0)  # type: ignore


def rise_mask_slowly(cells: Tensor, shift: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Petsiuk et al. (2018), section 3.2, by scikit-image as their code has it: a grid of 0 and 1 to (H, W)."""
    cell = [math.ceil(side / len(cells)) for side in size]
    whole = [(len(cells) + 1) * side for side in cell]
    large = resize(cells.double().numpy(), whole, order=1, mode="reflect", anti_aliasing=False)
    return torch.from_numpy(large[shift[0] : shift[0] + size[0], shift[1] : shift[1] + size[1]])


def upsampled_slowly(values: list[float], grid: tuple[int, int], size: tuple[int, int]) -> Tensor:
    """Bilinear with align_corners False, then min-max: (H, W)."""
    (rows, columns), (height, width) = grid, size
    assert len(values) == rows * columns

    def near(place: int, small: int, large: int) -> tuple[int, int, float]:
        source = max((place + 0.5) * small / large - 0.5, 0.0)
        below = min(int(source), small - 1)
        return below, min(below + 1, small - 1), source - below

    pixels = torch.empty(height, width, dtype=torch.float64)
    for i in range(height):
        top, bottom, v = near(i, rows, height)
        for j in range(width):
            left, right, u = near(j, columns, width)
            above = values[top * columns + left] * (1 - u) + values[top * columns + right] * u
            under = values[bottom * columns + left] * (1 - u) + values[bottom * columns + right] * u
            pixels[i, j] = above * (1 - v) + under * v
    return ((pixels - pixels.min()) / (pixels.max() - pixels.min())).float()


def state(model: nn.Module) -> list[Any]:
    """All that an explainer might leave behind in a model or in torch."""
    parts = [
        (name, part.training, getattr(part, "fused_attn", None), getattr(part, "grad_checkpointing", None))
        for name, part in model.named_modules()
    ]
    hooks = [
        (len(part._forward_hooks), len(part._forward_pre_hooks), len(part._backward_hooks), sorted(part.__dict__))
        for part in model.modules()
    ]
    parameters = [(name, p.requires_grad, p.grad is None) for name, p in model.named_parameters()]
    modes = (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch._C._len_torch_function_stack())
    return [parts, hooks, parameters, modes]
