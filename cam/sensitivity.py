"""How a map changes with the image (max-sensitivity, infidelity) and with the model's weights (sanity checks).

A map that stays the same when the head is drawn again depends at best on the image, and not on the class that it should
explain. `cascade` goes on down to the first layer (Adebayo et al. 2018, arXiv:1810.03292).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from .explainer import Explainer, Fill, Rng, TorchRng, at_least, fill_values, rows_of, same_draws, split_by_batch
from .faithfulness import Ends, Model, check_inputs
from .localisation import histogram_entropy, rank_correlation


@dataclass(frozen=True)
class Sensitivity:
    """largest, mean: (B,) float64 over the noisy copies of |map of the copy - map| / |map|, in the l2 norm."""

    largest: Tensor
    mean: Tensor


def sensitivity(
    explain: Explainer,
    images: Tensor,
    maps: Tensor,
    target: Tensor | int,
    *,
    radius: float = 0.02,
    samples: int = 10,
    rng: Rng | None = None,
) -> Sensitivity:
    """Return the maximum and average sensitivity of maps (Yeh et al., NeurIPS 2019; Bhatt et al., IJCAI 2020).

    maps: (B, H, W), as `explain` made them of these images for `target`, a class or (B,) classes. Copies have uniform
    noise in a ball of `radius` in linf, in the unit of the images. `rng` draws it, and whatever the explainer draws, so
    that two maps of the same image have the same masks and noise. NaN where a map is all 0.

    It costs a map for each of the `samples`. Lower is steadier; a map that does not look at the image has 0.

    Raises ValueError without an `rng` for an explainer that draws.
    """
    same_draws(explain, rng)
    at_least(1, samples=samples)
    at_least(0, radius=radius)
    noise = rng or TorchRng(len(images), images.device)
    base = maps.double().flatten(1)
    size = base.norm(dim=1)
    size = size.masked_fill(size == 0, torch.nan)
    changes = []
    for i in range(samples):
        draw = noise.uniform(images.shape[1:], f"cam/sensitivity/{i}").to(images)
        again = explain(images + radius * (2 * draw - 1), target, rng=rng)
        changes.append((again.double().flatten(1) - base).norm(dim=1) / size)
    every = torch.stack(changes)
    return Sensitivity(every.amax(dim=0), every.mean(dim=0))


@dataclass(frozen=True)
class Squares:
    """Squares that were hidden, in pixels, and what the model answers where one of them is: the same for all maps.
    tops, lefts: (B, samples). length: of a side. logits: (B, samples, K).
    """

    tops: Tensor
    lefts: Tensor
    length: int
    logits: Tensor


def hide_squares(
    model: Model,
    images: Tensor,
    *,
    fill: Fill,
    samples: int = 32,
    side: float = 0.25,
    rng: Rng | None = None,
    batch_size: int | None = None,
) -> Squares:
    """Hide squares at random places, one at a time, of `side` times the shorter side, by `fill`, and ask the model.

    images: (B, C, H, W). `rng` draws the places. Forwards for each image: samples. Raises ValueError for samples or
    batch_size below 1, a side that is no share, or a fill of another number of channels.
    """
    at_least(1, samples=samples, batch_size=batch_size)
    if not 0 < side <= 1:
        raise ValueError(f"side is {side}; expected a share of the shorter side, above 0, at most 1")
    B, _, H, W = images.shape
    length, back = max(1, round(side * min(H, W))), fill_values(fill, images)
    draws = (rng or TorchRng(B, images.device)).uniform((samples, 2), "cam/infidelity").to(images.device)
    tops, lefts = ((draws[..., axis] * (size - length + 1)).long() for axis, size in enumerate((H, W)))
    logits = []
    with torch.inference_mode():
        for part in split_by_batch(samples, B, rows_of(batch_size, images)):
            down, across = _sides(tops[:, part], lefts[:, part], length, images)
            inside = down[..., None] & across[:, :, None]
            covered = torch.where(inside[:, :, None], back[:, None], images[:, None])
            logits.append(model(covered.flatten(0, 1)).view(*covered.shape[:2], -1))
    return Squares(tops, lefts, length, torch.cat(logits, dim=1))


def infidelity(
    model: Model,
    images: Tensor,
    maps: Tensor,
    target: Tensor | int,
    *,
    fill: Fill,
    samples: int = 32,
    side: float = 0.25,
    rng: Rng | None = None,
    ends: Ends | None = None,
    squares: Squares | None = None,
    batch_size: int | None = None,
) -> Tensor:
    """Return the infidelity of maps (Yeh et al., NeurIPS 2019) to what hiding squares does: (B,) float64 in [0, 1].

    Each sample hides a square, as `hide_squares` does. What the map says is its sum over the square; what happens is
    the fall of the class's probability. A map has no unit, so it is given the factor that fits best, as the authors do,
    and the mean squared error that is left is divided by the mean square of the falls: 0 where the map tells every
    fall, 1 where it tells none. The factor may be negative: a map of what speaks against the class tells as much.

    Forwards for each image: samples, or none where `squares` has the answers, so that all maps of the images may share
    them; and one where `ends` does not have the logits of the image. Errors as for `cam.faithfulness.abpc`. NaN where
    the map, or all falls, are 0.
    """
    images, maps, target, _, batch_size = check_inputs(model, images, maps, target, fill, batch_size)
    if squares is None:
        squares = hide_squares(model, images, fill=fill, samples=samples, side=side, rng=rng, batch_size=batch_size)
    down, across = _sides(squares.tops, squares.lefts, squares.length, images)
    foretold = ((down.double() @ maps.double()) * across).sum(dim=2)
    with torch.inference_mode():
        whole = _probability(model(images) if ends is None else ends.whole, target)
    falls = whole[:, None] - _probability(squares.logits, target)
    return 1 - (foretold * falls).sum(dim=1) ** 2 / ((foretold * foretold).sum(dim=1) * (falls * falls).sum(dim=1))


def _sides(tops: Tensor, lefts: Tensor, length: int, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return which rows (B, S, H) and which columns (B, S, W) of the images squares take."""
    rows, columns = (torch.arange(size, device=images.device) for size in images.shape[2:])
    tops, lefts = tops[..., None], lefts[..., None]
    return (rows >= tops) & (rows < tops + length), (columns >= lefts) & (columns < lefts + length)


def _probability(logits: Tensor, target: Tensor) -> Tensor:
    """Return the probability (B, ...) of a class for each image, from logits (B, ..., K)."""
    index = target.view(-1, *[1] * (logits.ndim - 1)).expand(*logits.shape[:-1], 1)
    return logits.double().softmax(dim=-1).gather(-1, index)[..., 0]


def redrawn_head(model: nn.Module, seed: int = 0) -> AbstractContextManager[None]:
    """Draw the head's weights again inside, as `randomise_weights` does. ValueError for a model without weights.

    The head is what timm's `get_classifier` names (both of a distilled model, also of transformers), or else the last
    layer with weights.
    """
    return randomise_weights(_heads(model), seed)


@contextmanager
def randomise_weights(layers: Sequence[nn.Module], seed: int = 0) -> Iterator[None]:
    """Draw the weights of layers again inside: normal, of their own standard deviation, a function of the seed alone,
    with bias 0. What is the same everywhere, such as a scale, stays. On leaving, also by an exception, they are what
    they were.
    """
    weights: dict[nn.Parameter, Tensor] = {}
    for layer in layers:
        weights |= {parameter: parameter.detach().clone() for parameter in nn.Module.parameters(layer, recurse=False)}
    generator = torch.Generator().manual_seed(seed)
    try:
        with torch.no_grad():
            for parameter, value in weights.items():
                if _is_drawn(parameter):
                    drawn = torch.randn(parameter.shape, generator=generator)
                    if value.min() < value.max():  # a lone value, or the same everywhere, has no spread to draw from
                        parameter.copy_(drawn * value.float().std().cpu())
                else:
                    parameter.zero_()
        yield
    finally:
        with torch.no_grad():
            for parameter, value in weights.items():
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
    correlations = []
    for step in range(1, steps + 1):
        with randomise_weights(layers[: -(-step * len(layers) // steps)], seed):
            again = explain(images, target, rng=rng)
        correlations.append(rank_correlation(maps, again))
    before = histogram_entropy(maps)
    return Cascade(torch.stack(correlations, dim=1), (histogram_entropy(again) - before) / before)


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
