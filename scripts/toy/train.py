"""Training of many toy models at a time, each with a rate and weight decay of its own."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from robustkit.attention.formulas import find_formula

from .model import Shape, class_logits, initial


class Batch:
    """M models of one shape and formula, trained by AdamW, each with its own rate and weight decay.

    rates, decays: (M,), whose dtype is the models'. All parameters are one matrix, a row a model, of which `weights`
    are views.
    """

    def __init__(self, shape: Shape, formula_name: str, seeds: list[int], rates: Tensor, decays: Tensor) -> None:
        self.shape, self.formula = shape, find_formula(formula_name)
        started = {seed: initial(shape, self.formula, seed) for seed in dict.fromkeys(seeds)}
        self.flat = torch.stack([torch.cat([value.flatten() for value in started[seed].values()]) for seed in seeds])
        self.flat = self.flat.to(rates.dtype)
        sizes = shape.sizes(self.formula)
        parts = torch.split(self.flat, [math.prod(size) for size in sizes.values()], dim=1)
        self.weights = {
            name: part.detach().view(len(seeds), *size).requires_grad_()
            for (name, size), part in zip(sizes.items(), parts, strict=True)
        }
        self.optimiser = AdamW(self.flat, rates, decays)

    def step(self, tokens: Tensor, labels: Tensor) -> None:
        """Take one step of every model on the same batch: tokens (B, N, 20), labels (B,)."""
        logits = class_logits(self.shape, self.formula, self.weights, tokens)
        chosen = logits.log_softmax(dim=-1).gather(-1, labels.expand(len(logits), -1)[..., None])
        weights = list(self.weights.values())
        gradients = torch.autograd.grad(-chosen.sum() / len(labels), weights, materialize_grads=True)
        self.optimiser.step(torch.cat([gradient.flatten(1) for gradient in gradients], dim=1))


class AdamW:
    """Loshchilov and Hutter (2019), as torch.optim.AdamW computes it, with a rate and a decay for each row.

    flat: (M, P), changed in place.
    """

    def __init__(self, flat: Tensor, rates: Tensor, decays: Tensor) -> None:
        self.flat, self.rates = flat, rates[:, None]
        self.shrink = 1 - self.rates * decays[:, None]
        self.mean, self.square = torch.zeros_like(flat), torch.zeros_like(flat)
        self.steps = 0

    @torch.no_grad()
    def step(self, gradient: Tensor, first: float = 0.9, second: float = 0.999, eps: float = 1e-8) -> None:
        """Take one step. gradient: (M, P)."""
        self.steps += 1
        self.mean.lerp_(gradient, 1 - first)
        self.square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        scale = math.sqrt(1 - second**self.steps)
        towards = self.mean / self.square.sqrt().div_(scale).add_(eps)
        self.flat.mul_(self.shrink).sub_(towards.mul_(self.rates / (1 - first**self.steps)))
