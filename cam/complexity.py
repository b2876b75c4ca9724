"""How few pixels a map is about: one that marks everything explains nothing, whatever else it scores."""

from __future__ import annotations

import torch
from torch import Tensor

from .localisation import as_maps


def entropy(maps: Tensor) -> Tensor:
    """Return the entropy of each map (B, H, W) in [0, 1], its values being shares of their sum: (B,) float64 in nats.

    From 0, one pixel, to log(H * W), all alike (complexity of Bhatt et al., IJCAI 2020). NaN where a map is all 0.
    """
    values = as_maps(maps).double().flatten(1)
    return _entropy(values / values.sum(dim=1, keepdim=True))


def histogram_entropy(maps: Tensor, bins: int = 100) -> Tensor:
    """Return the entropy of the histogram of each map's values, of equal bins from its lowest to its highest: (B,)
    float64 in nats. It asks how many different values there are, not where; NaN where a map is constant.
    """
    values = as_maps(maps).double().flatten(1)
    low, high = values.amin(dim=1, keepdim=True), values.amax(dim=1, keepdim=True)
    places = ((values - low) / (high - low) * bins).nan_to_num().long().clamp(max=bins - 1)
    counts = values.new_zeros(len(values), bins).scatter_add_(1, places, torch.ones_like(values))
    return torch.where((high > low)[:, 0], _entropy(counts / values.shape[1]), torch.nan)


def gini(maps: Tensor) -> Tensor:
    """Return the Gini index of each map (B, H, W) in [0, 1]: (B,) float64.

    0 where all pixels are alike, 1 - 1 / (H * W) where one has all (sparseness of Chalasani et al., ICML 2020). NaN
    where a map is all 0.
    """
    values = as_maps(maps).double().flatten(1).sort(dim=1).values
    n = values.shape[1]
    places = torch.arange(1, n + 1, device=values.device, dtype=torch.float64)
    return ((2 * places - n - 1) * values).sum(dim=1).div(n * values.sum(dim=1))


def _entropy(shares: Tensor) -> Tensor:
    summands: Tensor = torch.special.entr(shares)
    return summands.sum(dim=1)
