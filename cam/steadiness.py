"""Whether a map stands still for an image that hardly changes, and whether it tells what hiding a square does."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .explainer import Explainer
from .faithfulness import Ends, Model, checked
from .repeated import Fill, at_least, parts
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
    """
    at_least(1, samples=samples)
    at_least(0, radius=radius)
    noise = rng or TorchRng(len(images), images.device)
    base = maps.double().flatten(1)
    changes = []
    for i in range(samples):
        draw = noise.uniform(images.shape[1:], f"cam/sensitivity/{i}").to(images)
        again = explain(images + radius * (2 * draw - 1), target, rng=rng)
        changes.append((again.double().flatten(1) - base).norm(dim=1) / base.norm(dim=1))
    every = torch.stack(changes)
    return Sensitivity(every.amax(dim=0), every.mean(dim=0))


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
    batch_size: int | None = None,
) -> Tensor:
    """Return the infidelity of maps (Yeh et al., NeurIPS 2019) to what hiding squares does: (B,) float64 in [0, 1].

    Each sample hides a square at a random place, of `side` times the shorter side, by `fill`. What the map says is its
    sum over the square; what happens is the fall of the class's probability. A map has no unit, so it is given the
    factor that fits best, as the authors do, and the mean squared error that is left is divided by the mean square of
    the falls: 0 where the map tells every fall, 1 where it tells none.

    Forwards for each image: samples, and one where `ends` does not have the logits of the image. Errors as for
    `cam.faithfulness.abpc`. NaN where the map, or all falls, are 0.
    """
    at_least(1, samples=samples)
    images, maps, target, back, batch_size = checked(model, images, maps, target, fill, batch_size)
    if not 0 < side <= 1:
        raise ValueError(f"side is {side}; expected a share of the shorter side, above 0, at most 1")
    B, _, H, W = images.shape
    length = max(1, round(side * min(H, W)))
    draws = (rng or TorchRng(B, images.device)).uniform((samples, 2), "cam/infidelity").to(images.device)
    tops, lefts = ((draws[..., axis] * (size - length + 1)).long() for axis, size in enumerate((H, W)))
    rows, columns = torch.arange(H, device=images.device), torch.arange(W, device=images.device)
    said, falls = [], []
    with torch.inference_mode():
        whole = _probability(model(images) if ends is None else ends.whole, target)
        for part in parts(samples, B, batch_size):
            top, left = tops[:, part, None], lefts[:, part, None]
            down, across = (rows >= top) & (rows < top + length), (columns >= left) & (columns < left + length)
            inside = down[..., None] & across[:, :, None]
            shown = torch.where(inside[:, :, None], back[:, None], images[:, None])
            turns = shown.shape[1]
            answers = _probability(model(shown.flatten(0, 1)), target.repeat_interleave(turns)).view(B, turns)
            falls.append(whole[:, None] - answers)
            said.append(((down.double() @ maps.double()) * across).sum(dim=2))
    a, b = torch.cat(said, dim=1), torch.cat(falls, dim=1)
    return 1 - (a * b).sum(dim=1) ** 2 / ((a * a).sum(dim=1) * (b * b).sum(dim=1))


def _probability(logits: Tensor, target: Tensor) -> Tensor:
    return logits.double().softmax(dim=1).gather(1, target[:, None])[:, 0]
