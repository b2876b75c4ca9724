"""How similar two maps are: two methods on one image, or one method on an image and on its attacked copy."""

from __future__ import annotations

import torch
from torch import Tensor

from .localisation import as_maps


def rank_correlation(a: Tensor, b: Tensor) -> Tensor:
    """Return Spearman's rank correlation over the pixels of each pair of maps: (B,) float64 in [-1, 1].

    a, b: (B, H, W), or one (H, W), floating in [0, 1]. Equal values share the mean of their ranks. NaN where either
    map is constant: its ranks say nothing.
    """
    ranks_a, ranks_b = (_centred_ranks(maps.flatten(1)) for maps in _pair(a, b))
    spread = ((ranks_a**2).sum(dim=1) * (ranks_b**2).sum(dim=1)).sqrt()
    return (ranks_a * ranks_b).sum(dim=1) / spread


def iou_at(a: Tensor, b: Tensor, threshold: float = 0.5) -> Tensor:
    """Return the IoU of the pixels of at least `threshold` in each pair of maps: (B,) float64; NaN where neither has
    one.

    a, b: as for `rank_correlation`.
    """
    above_a, above_b = (maps.double() >= threshold for maps in _pair(a, b))
    return (above_a & above_b).sum(dim=(1, 2)).double() / (above_a | above_b).sum(dim=(1, 2))


def _pair(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    a, b = as_maps(a), as_maps(b)
    if a.shape != b.shape:
        raise ValueError(f"maps of {tuple(a.shape)} and {tuple(b.shape)}; expected the same shape")
    return a, b


def _centred_ranks(values: Tensor) -> Tensor:
    """Return the ranks of (B, N) along each row less their mean, as float64: the mean of first and last place among
    equals.
    """
    values = values.contiguous()
    ordered = values.sort(dim=1).values
    below, up_to = (torch.searchsorted(ordered, values, right=right) for right in (False, True))
    return (below + up_to - values.shape[1]).double() / 2
