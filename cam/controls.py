"""Maps that do not look at the image: a score must beat theirs to mean anything."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from .explainer import Explainer, Rng, TorchRng, chosen, held


class Control(Explainer):
    """An explainer that uses only the size of the images; every target of an image has the same map.

    model: asked for logits and predicted classes in one forward. None: no forward is made, the logits are (B, 0), and
        the target is the one given, or -1.
    """

    def __init__(self, model: nn.Module | None = None) -> None:
        super().__init__(nn.Identity() if model is None else model)
        self._asks = model is not None

    @contextmanager
    def _hold(self) -> Iterator[None]:
        with held(self.model):
            yield

    def _raw(self, images: Tensor, wanted: Tensor | None, rng: Rng | None) -> tuple[Tensor, Tensor, Tensor]:
        if self._asks:
            with torch.no_grad():
                logits = self._logits(images)
            classes = chosen(logits, wanted)
        else:
            logits = images.new_zeros(len(images), 0)
            classes = torch.full_like(images[:, :1, 0, 0], -1, dtype=torch.int64) if wanted is None else wanted
        grid = self._grid(images, rng)
        return logits, classes, grid[:, None].expand(-1, classes.shape[1], -1, -1)

    @abstractmethod
    def _grid(self, images: Tensor, rng: Rng | None) -> Tensor:
        """Return (B, h, w) raw maps."""


class RandomMap(Control):
    """Uniform random numbers on a grid x grid, upsampled as a ViT's map is: a map with a map's smoothness."""

    name = "random"
    draws_numbers = True

    def __init__(self, model: nn.Module | None = None, grid: int = 14) -> None:
        super().__init__(model)
        if grid < 2:
            raise ValueError(f"grid is {grid}; expected 2 or more: one number makes no map")
        self.grid = grid

    def _grid(self, images: Tensor, rng: Rng | None) -> Tensor:
        rng = rng or TorchRng(len(images), images.device)
        return rng.uniform((self.grid, self.grid), "cam/random").to(images.device)


class CentredGaussian(Control):
    """A hill in the middle of the image, where objects mostly are; 1 at the centre, and not stretched down to 0.

    sigma: its standard deviation as a share of the shorter side; 64/224 is 64 pixels at 224.
    """

    name = "centre"

    def __init__(self, model: nn.Module | None = None, sigma: float = 64 / 224) -> None:
        super().__init__(model)
        if not (math.isfinite(sigma) and sigma > 0):
            raise ValueError(f"sigma is {sigma}; expected a share of the shorter side above 0, such as 0.29")
        self.sigma = sigma

    def _grid(self, images: Tensor, rng: Rng | None) -> Tensor:
        B, _, H, W = images.shape
        y = torch.arange(H, dtype=torch.float32, device=images.device) - (H - 1) / 2
        x = torch.arange(W, dtype=torch.float32, device=images.device) - (W - 1) / 2
        squares = (y * y)[:, None] + (x * x)[None, :]
        return torch.exp(squares / (-2 * (self.sigma * min(H, W)) ** 2)).expand(B, H, W)

    def _finish(self, grids: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        return grids.clone(), torch.zeros_like(grids[..., 0, 0], dtype=torch.bool)


class FullImage(Control):
    """1 everywhere, and by definition not degenerate: what marking all of the image is worth."""

    name = "full"

    def _grid(self, images: Tensor, rng: Rng | None) -> Tensor:
        return torch.ones_like(images[:, 0], dtype=torch.float32)

    def _finish(self, grids: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        return torch.ones_like(grids, dtype=torch.float32), torch.zeros_like(grids[..., 0, 0], dtype=torch.bool)
