"""What explainers share that ask a model many times: rows in parts, and what stands where an image is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

Fill = float | Sequence[float] | Tensor
"""What an image becomes where it is taken away: a number, or one for each channel, in the unit of the images."""


def at_least(least: float, **values: float | None) -> None:
    """Raise ValueError for a value below `least`; None is left alone."""
    for name, value in values.items():
        if value is not None and not value >= least:
            raise ValueError(f"{name} is {value}; expected {least} or more")


def rows_of(batch_size: int | None, images: Tensor, on_cpu: int = 16) -> int:
    """Return how many rows go at once: `batch_size`; without one `on_cpu` on a CPU, whose caches hold few, else 64."""
    return batch_size or (on_cpu if images.device.type == "cpu" else 64)


def parts(count: int, images: int, batch_size: int) -> Iterator[slice]:
    """Yield slices of `count` turns, of which each takes all `images`, so that a part has at most `batch_size` rows,
    or one turn.
    """
    turns = max(1, batch_size // images)
    for start in range(0, count, turns):
        yield slice(start, min(start + turns, count))


def colour(fill: Fill, images: Tensor) -> Tensor:
    """Return `fill` as (1, 1 or C, 1, 1), of the images' dtype. ValueError for another number of values."""
    values = torch.as_tensor(fill, dtype=images.dtype, device=images.device).flatten()
    if len(values) not in (1, images.shape[1]):
        raise ValueError(f"fill has {len(values)} values; expected one, or one for each of {images.shape[1]} channels")
    return values.view(1, -1, 1, 1)
