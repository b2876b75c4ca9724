"""Linear filters on planes, (B, C, H, W) floating, image by image, so that a result does not depend on the batch."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor


@lru_cache(maxsize=64)
def gaussian_operator(
    size: int, sigma: float, mode: str, truncate: float, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """(size, size): what scipy.ndimage.gaussian_filter1d does to a line, as a matrix.

    mode: `nearest` repeats the border, `reflect` mirrors it (d c b a | a b c d | d c b a), however wide the kernel.
    """
    if sigma == 0:
        return torch.eye(size, dtype=dtype, device=device)
    radius = int(truncate * sigma + 0.5)
    reach = np.arange(-radius, radius + 1)
    kernel = np.exp(-0.5 / (sigma * sigma) * reach**2)
    kernel /= kernel.sum()
    source = np.arange(size)[:, None] + reach
    if mode == "nearest":
        source = source.clip(0, size - 1)
    else:
        source = source % (2 * size)
        source = np.minimum(source, 2 * size - 1 - source)
    matrix = np.zeros((size, size))
    np.add.at(matrix, (np.arange(size)[:, None], source), np.broadcast_to(kernel, source.shape))
    return torch.from_numpy(matrix).to(device, dtype)


def smooth(planes: Tensor, sigma: tuple[float, float] | float, mode: str = "nearest", truncate: float = 4.0) -> Tensor:
    """Gaussian filter with one sigma, or those of rows and columns; equals scipy's to rounding, at any sigma."""
    down, across = (sigma, sigma) if isinstance(sigma, (int, float)) else sigma
    height, width = planes.shape[-2:]
    rows = gaussian_operator(height, float(down), mode, truncate, planes.dtype, planes.device)
    columns = gaussian_operator(width, float(across), mode, truncate, planes.dtype, planes.device)
    return torch.stack([rows @ image @ columns.T for image in planes])
