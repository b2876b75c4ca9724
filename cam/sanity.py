"""Whether a map depends on what the model learnt: layers are drawn again, and the map must change.

A map that stays the same when the head is drawn again depends at best on the image, and not on the class that it should
explain. `cascade` goes on down to the first layer (Adebayo et al. 2018, arXiv:1810.03292).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .complexity import histogram_entropy
from .explainer import Explainer, same_draws
from .repeated import at_least
from .rng import Rng
from .similarity import rank_correlation


@contextmanager
def redrawn_head(model: nn.Module, seed: int = 0) -> Iterator[None]:
    """Draw the head's weights again inside, as `redrawn` does.

    The head is what timm's `get_classifier` names (both of a distilled model, also of transformers), or else the last
    layer with weights.

    Raises ValueError for a model without such a layer.
    """
    with redrawn(_heads(model), seed):
        yield


@contextmanager
def redrawn(layers: Sequence[nn.Module], seed: int = 0) -> Iterator[None]:
    """Draw the weights of layers again inside: normal, of their own standard deviation, a function of the seed alone,
    with bias 0. What is the same everywhere, such as a scale, stays. On leaving, also by an exception, they are what
    they were.
    """
    kept: dict[nn.Parameter, Tensor] = {}
    for layer in layers:
        kept |= {parameter: parameter.detach().clone() for parameter in nn.Module.parameters(layer, recurse=False)}
    generator = torch.Generator().manual_seed(seed)
    try:
        with torch.no_grad():
            for parameter, value in kept.items():
                if _is_drawn(parameter):
                    drawn = torch.randn(parameter.shape, generator=generator)
                    if value.min() < value.max():  # a lone value, or the same everywhere, has no spread to draw from
                        parameter.copy_(drawn * value.float().std().cpu())
                else:
                    parameter.zero_()
        yield
    finally:
        with torch.no_grad():
            for parameter, value in kept.items():
                parameter.copy_(value)


@dataclass(frozen=True)
class Cascade:
    """correlations: (B, steps) float64, rank correlation of each map with that of the model redrawn down to there.
    entropy_rise: (B,) float64, `histogram_entropy` of the wholly redrawn model's map less the map's own, over its own.
    """

    correlations: Tensor
    entropy_rise: Tensor


def cascade(
    explain: Explainer,
    images: Tensor,
    maps: Tensor,
    target: Tensor | int,
    *,
    steps: int = 8,
    seed: int = 0,
    rng: Rng | None = None,
) -> Cascade:
    """Draw layers again from the output down, and compare maps: model parameter randomisation (MPRT; Adebayo et al.
    2018, arXiv:1810.03292), and its efficient form (Hedström et al. 2024, arXiv:2401.06465).

    Layers with weights of more than one dimension (matrices, kernels, position embeddings), the head first, then in the
    reverse order in which the model names them, in `steps` parts of about the same number. `correlations` should fall.
    `entropy_rise` compares the model as it is with the wholly redrawn one alone, and no pixels: it should be above 0,
    since a map of random weights has less to point at.

    steps: 1 is the efficient form, one map. It costs a map for each step. NaN where a map is constant.

    Raises ValueError without an `rng` for an explainer that draws.
    """
    at_least(1, steps=steps)
    same_draws(explain, rng)
    layers = [*_heads(explain.model)]
    modules = nn.Module.modules(explain.model)
    weighty = [part for part in modules if any(map(_is_drawn, nn.Module.parameters(part, recurse=False)))]
    layers += [part for part in reversed(weighty) if all(part is not head for head in layers)]
    found = []
    for step in range(1, steps + 1):
        with redrawn(layers[: -(-step * len(layers) // steps)], seed):
            again = explain(images, target, rng=rng)
        found.append(rank_correlation(maps, again))
    before = histogram_entropy(maps)
    return Cascade(torch.stack(found, dim=1), (histogram_entropy(again) - before) / before)


def head_correlation(
    explain: Explainer, images: Tensor, maps: Tensor, target: Tensor | int, *, heads: int = 5, rng: Rng | None = None
) -> Tensor:
    """Rank correlation of maps with those of the same classes after the head is drawn again: the mean over `heads`
    draws, which differ much.

    maps: (B, H, W), as `explain` made them of these images for `target`, a class or (B,) classes.

    Returns (B,) float64 in [-1, 1]: 1 where the map stays the same. A map that depends on the head still keeps what the
    maps of all classes of the image share, so do not expect 0: this is a test to pass, not a score. Heads whose map is
    constant are left out; NaN where none is left, or the map itself is constant. It costs a forward and a backward per
    head.

    Raises ValueError without an `rng` for an explainer that draws.
    """
    same_draws(explain, rng)
    correlations = []
    for seed in range(heads):
        with redrawn_head(explain.model, seed):
            correlations.append(rank_correlation(maps, explain(images, target, rng=rng)))
    return torch.stack(correlations).nanmean(dim=0)


def _heads(model: nn.Module) -> list[nn.Module]:
    named: Any = next((m for m in nn.Module.modules(model) if callable(getattr(m, "get_classifier", None))), None)
    classifier = _distilled(model) if named is None else named.get_classifier()
    heads = [head for head in (classifier if isinstance(classifier, tuple) else (classifier,)) if _has_weights(head)]
    if not heads:
        heads = [part for part in nn.Module.modules(model) if _has_weights(part)][-1:]
    if not heads:
        raise ValueError(f"{type(model).__name__} has no layer with weights; expected a classifier with a linear head")
    return heads


def _distilled(model: nn.Module) -> tuple[nn.Module, ...]:
    """Return both heads of a distilled model of transformers, wherever it is; nothing of another one."""
    names = ("cls_classifier", "distillation_classifier")
    children = (dict(part.named_children()) for part in nn.Module.modules(model))
    return next((tuple(own[name] for name in names) for own in children if own.keys() >= {*names}), ())


def _is_drawn(parameter: nn.Parameter) -> bool:
    return parameter.is_floating_point() and parameter.ndim > 1


def _has_weights(layer: object) -> bool:
    weight = getattr(layer, "weight", None)
    return isinstance(layer, nn.Module) and isinstance(weight, nn.Parameter) and weight.ndim > 1
