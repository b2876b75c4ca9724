"""Fill removed pixels from those around them, so that neither colour nor outline tells what was removed.

Noisy linear imputation (Rong et al. 2022, arXiv:2202.00449) makes each removed pixel the weighted mean of its eight
neighbours, 1/6 for those at a side and 1/12 for those at a corner, of which removed ones are unknown themselves: a
sparse linear system for each image. Its matrix is symmetric and positive definite, so it is solved by conjugate
gradients, for a whole batch at once and on the device of the images. A multigrid cycle is the preconditioner: it
carries what is far from any known pixel over coarse grids, so that the number of steps hardly depends on how large a
hole is (Briggs et al., A Multigrid Tutorial, 2000).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

_STEPS = 100
_DAMPING = 0.9  # of Jacobi steps; below 1, where all of them shrink every error
_COARSEST = 4  # pixels of the shorter side
_SWEEPS = 8  # on the coarsest grid


def imputed(images: Tensor, removed: Tensor, tolerance: float = 1e-3) -> Tensor:
    """Return images (B, C, H, W) whose `removed` pixels (B, H, W) are the weighted means of their neighbours.

    The means miss by about `tolerance`, in the unit of the images, at most: steps end when the error's energy, as the
    cycle sees it, is as small (after 100 steps at the latest; 5 to 20 are usual). An image of which everything is
    removed has no answer, and becomes 0.

    Returns: new images, in their dtype. Raises ValueError for shapes that do not fit.
    """
    if images.ndim != 4 or removed.shape != (len(images), *images.shape[2:]):
        raise ValueError(
            f"images have the shape {tuple(images.shape)}, removed {tuple(removed.shape)}; expected (B, C, H, W) and "
            "(B, H, W)"
        )
    with torch.no_grad():
        H, W = images.shape[2:]
        grids = _grids(removed[:, None], images.dtype)
        finest = grids[0]
        pad = (0, finest.unknown.shape[3] - W, 0, finest.unknown.shape[2] - H)
        known = functional.pad(images.masked_fill(removed[:, None], 0), pad)
        whole = removed.flatten(1).all(dim=1).view(-1, 1, 1, 1)
        x, residual = torch.zeros_like(known), _around(known) * finest.unknown
        direction, last = torch.zeros_like(x), torch.ones_like(x[..., :1, :1])
        for step in range(_STEPS):
            better = _cycle(residual, grids)
            energy = _dot(residual, better)
            sought = energy > tolerance**2
            if not bool(sought.any()):
                break
            direction = better if step == 0 else better + _ratio(energy, last) * direction
            image, last = finest.applied(direction), energy
            length = _ratio(energy, _dot(direction, image)) * sought  # so that none depends on its batch
            x, residual = x + length * direction, residual - length * image
        filled = torch.where(whole, 0, x)[..., :H, :W]
        return torch.where(removed[:, None], filled, images)


@dataclass(frozen=True)
class _Grid:
    """The system on one grid. unknown: (B, 1, h, w) 1 where a pixel is sought, else 0. weight: (1, 1, h, w) the sum of
    the weights of a pixel's neighbours in the image. rate: (B, 1, h, w) by which a Jacobi step multiplies.
    """

    unknown: Tensor
    weight: Tensor
    rate: Tensor

    def applied(self, x: Tensor) -> Tensor:
        """Return the product of the matrix and x, which is 0 where nothing is sought."""
        return (self.weight * x - _around(x)).mul_(self.unknown)

    def smoothed(self, right: Tensor, x: Tensor | None = None) -> Tensor:
        """Return x, or 0, after a damped Jacobi step towards the solution for a right side."""
        return self.rate * right if x is None else torch.addcmul(x, self.rate, right - self.applied(x))


def _grids(removed: Tensor, dtype: torch.dtype) -> list[_Grid]:
    """Return the system's grids, each with half the side of the one before, for pixels (B, 1, H, W) that are removed.
    A coarse pixel is sought where all pixels beneath it are. The finest is padded, so that all sides can be halved.
    """
    H, W = removed.shape[2:]
    halvings = 0
    while min(H, W) >> (halvings + 1) >= _COARSEST:
        halvings += 1
    unit = 1 << halvings
    pad = (0, -W % unit, 0, -H % unit)
    inside = functional.pad(torch.ones(1, 1, H, W, dtype=dtype, device=removed.device), pad)
    known = functional.pad((~removed).to(dtype), pad)
    grids = []
    for halving in range(halvings + 1):
        if halving:
            inside, known = functional.max_pool2d(inside, 2), functional.max_pool2d(known, 2)
        unknown, weight = inside - known, _around(inside)
        grids.append(_Grid(unknown, weight, _DAMPING * unknown / weight.clamp(min=1 / 12)))
    return grids


def _cycle(right: Tensor, grids: list[_Grid]) -> Tensor:
    """Return nearly the solution for a right side: a symmetric function of it, as conjugate gradients ask."""
    grid = grids[0]
    x = grid.smoothed(right)
    if len(grids) == 1:
        for _ in range(_SWEEPS):
            x = grid.smoothed(right, x)
        return x
    left = _coarser(right - grid.applied(x)) * grids[1].unknown
    x = x + _finer(_cycle(left, grids[1:])) * grid.unknown
    return grid.smoothed(right, x)


def _around(x: Tensor) -> Tensor:
    """Return the weighted sum of each pixel's eight neighbours (B, C, H, W), those outside being 0."""
    rows = 2 * x
    rows[..., 1:, :] += x[..., :-1, :]
    rows[..., :-1, :] += x[..., 1:, :]
    both = 2 * rows
    both[..., 1:] += rows[..., :-1]
    both[..., :-1] += rows[..., 1:]
    return both.sub_(x, alpha=4).div_(12)


def _finer(x: Tensor) -> Tensor:
    """Enlarge (B, C, h, w) twofold and linearly along both sides, 0 outside."""
    for axis in (2, 3):
        size = x.shape[axis]
        first, second = 0.75 * x, 0.75 * x
        first.narrow(axis, 1, size - 1).add_(x.narrow(axis, 0, size - 1), alpha=0.25)
        second.narrow(axis, 0, size - 1).add_(x.narrow(axis, 1, size - 1), alpha=0.25)
        x = torch.stack([first, second], dim=axis + 1).flatten(axis, axis + 1)
    return x


def _coarser(x: Tensor) -> Tensor:
    """Return the transpose of `_finer`: (B, C, h, w) to half the sides."""
    for axis in (2, 3):
        first, second = x.reshape(*x.shape[:axis], -1, 2, *x.shape[axis + 1 :]).unbind(axis + 1)
        size, x = first.shape[axis], 0.75 * (first + second)
        x.narrow(axis, 0, size - 1).add_(first.narrow(axis, 1, size - 1), alpha=0.25)
        x.narrow(axis, 1, size - 1).add_(second.narrow(axis, 0, size - 1), alpha=0.25)
    return x


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(dim=(2, 3), keepdim=True)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """Return above / below, 0 where below is: a channel that is solved stays as it is."""
    return torch.where(below > 0, above / below, 0)
