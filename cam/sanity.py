"""Whether a map depends on what the model learnt: its head is drawn again, and the map must change.

A map that stays the same depends at best on the image, and not on the class that it should explain. (The first step of
the cascade of Adebayo et al. 2018, arXiv:1810.03292, which goes on down to the first layer.)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from .explainer import Explainer
from .rng import Rng
from .similarity import rank_correlation


@contextmanager
def redrawn_head(model: nn.Module, seed: int = 0) -> Iterator[None]:
    """Draw the head's weights again inside: normal, of their own standard deviation, a function of the seed alone, with
    bias 0. On leaving, also by an exception, they are what they were.

    The head is what timm's `get_classifier` names (both of a distilled model), or else the last layer with weights.

    Raises ValueError for a model without such a layer.
    """
    kept: dict[nn.Parameter, Tensor] = {}
    for layer in _heads(model):
        kept |= {parameter: parameter.detach().clone() for parameter in layer.parameters(recurse=False)}
    generator = torch.Generator().manual_seed(seed)
    try:
        with torch.no_grad():
            for parameter, value in kept.items():
                if parameter.ndim > 1:
                    drawn = torch.randn(parameter.shape, generator=generator) * value.float().std().cpu()
                    parameter.copy_(drawn)
                else:
                    parameter.zero_()
        yield
    finally:
        with torch.no_grad():
            for parameter, value in kept.items():
                parameter.copy_(value)


def head_correlation(
    explain: Explainer, images: Tensor, maps: Tensor, target: Tensor | int, *, heads: int = 5, rng: Rng | None = None
) -> Tensor:
    """Rank correlation of maps with those of the same classes after the head is drawn again: the mean over `heads`
    draws, which differ much.

    maps: (B, H, W), as `explain` made them of these images for `target`, a class or (B,) classes.

    Returns (B,) float64 in [-1, 1]: 1 where the map stays the same. A map that depends on the head still keeps what the
    maps of all classes of the image share, so do not expect 0: this is a test to pass, not a score. NaN where a map is
    constant. It costs a forward and a backward per head.
    """
    correlations = []
    for seed in range(heads):
        with redrawn_head(explain.model, seed):
            correlations.append(rank_correlation(maps, explain(images, target, rng=rng)))
    return torch.stack(correlations).mean(dim=0)


def _heads(model: nn.Module) -> list[nn.Module]:
    named: Any = next((m for m in nn.Module.modules(model) if callable(getattr(m, "get_classifier", None))), None)
    classifier = None if named is None else named.get_classifier()
    heads = [head for head in (classifier if isinstance(classifier, tuple) else (classifier,)) if _has_weights(head)]
    if not heads:
        heads = [part for part in nn.Module.modules(model) if _has_weights(part)][-1:]
    if not heads:
        raise ValueError(f"{type(model).__name__} has no layer with weights; expected a classifier with a linear head")
    return heads


def _has_weights(layer: object) -> bool:
    weight = getattr(layer, "weight", None)
    return isinstance(layer, nn.Module) and isinstance(weight, nn.Parameter) and weight.ndim > 1
