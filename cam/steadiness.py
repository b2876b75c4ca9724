"""Whether a map stands still for an image that hardly changes, and whether it tells what hiding a square does."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .explainer import Explainer, same_draws
from .faithfulness import Ends, Model, checked
from .repeated import Fill, at_least, colour, parts, rows_of
from .rng import Rng, TorchRng


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

    images: (B, C, H, W). `rng` draws the places. Forwards for each image: samples.

    Raises:
        ValueError: samples or batch_size below 1, a side that is no share, or a fill of another number of channels.
    """
    at_least(1, samples=samples, batch_size=batch_size)
    if not 0 < side <= 1:
        raise ValueError(f"side is {side}; expected a share of the shorter side, above 0, at most 1")
    B, _, H, W = images.shape
    length, back = max(1, round(side * min(H, W))), colour(fill, images)
    draws = (rng or TorchRng(B, images.device)).uniform((samples, 2), "cam/infidelity").to(images.device)
    tops, lefts = ((draws[..., axis] * (size - length + 1)).long() for axis, size in enumerate((H, W)))
    logits = []
    with torch.inference_mode():
        for part in parts(samples, B, rows_of(batch_size, images)):
            down, across = _sides(tops[:, part], lefts[:, part], length, images)
            inside = down[..., None] & across[:, :, None]
            shown = torch.where(inside[:, :, None], back[:, None], images[:, None])
            logits.append(model(shown.flatten(0, 1)).view(*shown.shape[:2], -1))
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
    images, maps, target, _, batch_size = checked(model, images, maps, target, fill, batch_size)
    if squares is None:
        squares = hide_squares(model, images, fill=fill, samples=samples, side=side, rng=rng, batch_size=batch_size)
    down, across = _sides(squares.tops, squares.lefts, squares.length, images)
    said = ((down.double() @ maps.double()) * across).sum(dim=2)
    with torch.inference_mode():
        whole = _probability(model(images) if ends is None else ends.whole, target)
    falls = whole[:, None] - _probability(squares.logits, target)
    return 1 - (said * falls).sum(dim=1) ** 2 / ((said * said).sum(dim=1) * (falls * falls).sum(dim=1))


def _sides(tops: Tensor, lefts: Tensor, length: int, images: Tensor) -> tuple[Tensor, Tensor]:
    """Return which rows (B, S, H) and which columns (B, S, W) of the images squares take."""
    rows, columns = (torch.arange(size, device=images.device) for size in images.shape[2:])
    tops, lefts = tops[..., None], lefts[..., None]
    return (rows >= tops) & (rows < tops + length), (columns >= lefts) & (columns < lefts + length)


def _probability(logits: Tensor, target: Tensor) -> Tensor:
    """Return the probability (B, ...) of a class for each image, from logits (B, ..., K)."""
    wanted = target.view(-1, *[1] * (logits.ndim - 1)).expand(*logits.shape[:-1], 1)
    return logits.double().softmax(dim=-1).gather(-1, wanted)[..., 0]
