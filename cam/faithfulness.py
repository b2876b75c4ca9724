"""Whether a model uses what a map marks: remove pixels in the map's order, and watch the probability of a class.

Noisy linear imputation (Rong et al. 2022, arXiv:2202.00449) makes each removed pixel the weighted mean of its eight
neighbours, 1/6 for those at a side and 1/12 for those at a corner, of which removed ones are unknown themselves: a
sparse linear system for each image. Its matrix is symmetric and positive definite, so it is solved by conjugate
gradients, for a whole batch at once and on the device of the images. A multigrid cycle is the preconditioner: it
carries what is far from any known pixel over coarse grids, so that the number of steps hardly depends on how large a
hole is (Briggs et al., A Multigrid Tutorial, 2000).

`images` are (B, 3, H, W), as the model takes them, `maps` (B, H, W) in [0, 1], `target` a class, or one for each image.
`fill` is what a removed pixel becomes, a number or one for each channel, in the unit of the images: where the published
protocol sets pixels to 0 after normalisation, that is the mean that the model normalises with. `batch_size`: rows of a
pass, by default 16 on a CPU, whose caches hold few, else 64.

Equal values of a map are taken in raster order, whichever end is removed first. So a constant map removes the same
pixels from both ends, and its ABPC is exactly 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from .explainer import Fill, Rng, TorchRng, at_least, fill_values, rows_of
from .localisation import as_maps

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
        shapes = f"images have the shape {tuple(images.shape)}, removed {tuple(removed.shape)}"
        raise ValueError(f"{shapes}; expected (B, C, H, W) and (B, H, W)")
    with torch.no_grad():
        H, W = images.shape[2:]
        grids = _grids(removed[:, None], images.dtype)
        finest = grids[0]
        pad = (0, finest.unknown.shape[3] - W, 0, finest.unknown.shape[2] - H)
        padded = functional.pad(images.masked_fill(removed[:, None], 0), pad)
        whole = removed.flatten(1).all(dim=1).view(-1, 1, 1, 1)
        x, residual = torch.zeros_like(padded), _around(padded) * finest.unknown
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
    """The system on one grid."""

    unknown: Tensor  # (B, 1, h, w) 1 where a pixel is sought, on coarse grids where all beneath it are, else 0
    weight: Tensor  # (1, 1, h, w) the sum of the weights of a pixel's neighbours in the image
    rate: Tensor  # (B, 1, h, w) by which a Jacobi step multiplies

    def applied(self, x: Tensor) -> Tensor:
        """Return the product of the matrix and x, which is 0 where nothing is sought."""
        return (self.weight * x - _around(x)).mul_(self.unknown)

    def smoothed(self, right: Tensor, x: Tensor | None = None) -> Tensor:
        """Return x, or 0, after a damped Jacobi step towards the solution for a right side."""
        return self.rate * right if x is None else torch.addcmul(x, self.rate, right - self.applied(x))


def _grids(removed: Tensor, dtype: torch.dtype) -> list[_Grid]:
    """Return the system's grids, each with half the side of the one before (padded), for `removed` (B, 1, H, W)."""
    H, W = removed.shape[2:]
    halvings = max(0, (min(H, W) // _COARSEST).bit_length() - 1)
    unit = 1 << halvings
    pad = (0, -W % unit, 0, -H % unit)
    inside = functional.pad(torch.ones(1, 1, H, W, dtype=dtype, device=removed.device), pad)
    present = functional.pad((~removed).to(dtype), pad)
    grids = []
    for halving in range(halvings + 1):
        if halving:
            inside, present = functional.max_pool2d(inside, 2), functional.max_pool2d(present, 2)
        unknown, weight = inside - present, _around(inside)
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


Model = Callable[[Tensor], Tensor]
Show = Callable[[Tensor, Tensor], Tensor]  # rows (R,) and taken pixels (R, H, W) to what is shown (R, 3, H, W)
SHARES = tuple(tenth / 10 for tenth in range(1, 10))


@dataclass(frozen=True)
class Ends:
    """Logits (B, K) of what the curves of an image begin and end with, whatever its map: of the image itself, of the
    removed one, which is all `fill`, and of the canvas that insertion begins with; None where there is no insertion.
    """

    whole: Tensor
    empty: Tensor
    canvas: Tensor | None = None


@dataclass(frozen=True)
class Perturbation:
    """abpc: (B,) mean of lerf - morf. lerf, morf: (B, steps) probability with the least (most) relevant removed."""

    abpc: Tensor
    lerf: Tensor
    morf: Tensor


@dataclass(frozen=True)
class InsertionDeletion:
    """insertion, deletion: (B,) areas under the curves by the trapezoid rule; the curves are (B, steps)."""

    insertion: Tensor
    deletion: Tensor
    insertion_curve: Tensor
    deletion_curve: Tensor


@dataclass(frozen=True)
class Imputed:
    """road: (B,) mean of lerf - morf. lerf, morf: (B, shares) probability with the least (most) relevant imputed."""

    road: Tensor
    lerf: Tensor
    morf: Tensor


def abpc(
    model: Model,
    images: Tensor,
    maps: Tensor,
    target: Tensor | int,
    *,
    fill: Fill,
    steps: int = 11,
    ends: Ends | None = None,
    batch_size: int | None = None,
) -> Perturbation:
    """Return the area between the perturbation curves (Samek et al. 2017, arXiv:1509.06321; Schulz et al. 2020,
    arXiv:2001.00396).

    Step i of n removes the first i * H * W // (n - 1) pixels, from the highest value down (MoRF) or from the lowest up
    (LeRF): 11 steps remove 0, 10, … 100 %. ABPC is the mean over the steps, the two ends included, of the class's
    probability under LeRF less that under MoRF; higher is better, a random map has about 0.

    Forwards for each image: 2 * steps - 4, and those of `ends`, which `ends_of` finds once for all maps of the images;
    half as many where all maps are constant. Returns float32 tensors on the device of the images, or of the model.
    Raises ValueError for a model in training mode, and for shapes, classes or steps that do not fit.
    """
    at_least(2, steps=steps)
    images, maps, target, back, batch_size = check_inputs(model, images, maps, target, fill, batch_size)
    ends = ends or ends_of(model, images, fill=fill, batch_size=batch_size)
    first, last = (probability(logits, target)[:, None] for logits in (ends.whole, ends.empty))
    inner = _both(model, _replacing(images, back), maps, target, _counts(maps, steps)[1:-1], batch_size)
    morf, lerf = (torch.cat([first, curve, last], dim=1) for curve in inner)
    return Perturbation((lerf - morf).mean(dim=1), lerf, morf)


def insertion_deletion(
    model: Model,
    images: Tensor,
    maps: Tensor,
    target: Tensor | int,
    *,
    fill: Fill,
    canvas: Tensor | None = None,
    steps: int = 29,
    ends: Ends | None = None,
    batch_size: int | None = None,
) -> InsertionDeletion:
    """Return insertion and deletion (Petsiuk et al. 2018, arXiv:1806.07421).

    Deletion removes pixels from the highest value down, until all are `fill`; insertion puts the same ones, in the same
    order, onto `canvas` (B, 3, H, W), by default the `blurred` images. A good map has a high insertion area and a low
    deletion area. The published 225 steps of 224 pixels are those of 224x224 images; 29 steps are every eighth of them.

    Forwards for each image: 2 * steps - 4, and those of `ends`, with the canvas. Returns and errors as for `abpc`.
    """
    at_least(2, steps=steps)
    images, maps, target, back, batch_size = check_inputs(model, images, maps, target, fill, batch_size)
    canvas = blurred(images) if canvas is None else canvas.to(images)
    if (shape := tuple(canvas.shape)) != images.shape:
        raise ValueError(f"canvas has the shape {shape}, the images {tuple(images.shape)}; expected the same")
    ends = ends or ends_of(model, images, fill=fill, canvas=canvas, batch_size=batch_size)
    if ends.canvas is None:
        raise ValueError("ends without a canvas; expected those that insertion begins with, ends_of(..., canvas=...)")
    start, whole, empty = (probability(logits, target)[:, None] for logits in (ends.canvas, ends.whole, ends.empty))
    ranks, counts = _ranks(maps, descending=True), _counts(maps, steps)
    removed = _curve(model, _replacing(images, back), ranks, target, counts[1:-1], batch_size)
    inserted = _curve(model, _replacing(canvas, images), ranks, target, counts[1:-1], batch_size)
    deletion, insertion = torch.cat([whole, removed, empty], dim=1), torch.cat([start, inserted, whole], dim=1)
    places = torch.tensor(counts, device=deletion.device) / counts[-1]
    areas = [torch.trapezoid(curve, places, dim=1) for curve in (insertion, deletion)]
    return InsertionDeletion(areas[0], areas[1], insertion, deletion)


def road(
    model: Model,
    images: Tensor,
    maps: Tensor,
    target: Tensor | int,
    *,
    shares: Sequence[float] = SHARES,
    noise: float = 0.01,
    rng: Rng | None = None,
    batch_size: int | None = None,
) -> Imputed:
    """Return ROAD (Rong et al. 2022, arXiv:2202.00449): remove and debias.

    As `abpc`, at the shares of pixels given, except that removed pixels become what those around them suggest
    (`imputed`), with Gaussian noise of the standard deviation `noise`, in the unit of the images: a fill of one
    colour shows by its outline what was removed. The published figure is the accuracy at each share, which is the mean
    over images of whether the class still has the highest probability; this is the probability itself. `rng` draws the
    noise, one for each image, the same at all shares and in both orders.

    Forwards for each image: twice the number of shares, half as many where all maps are constant. Returns and errors
    as for `abpc`; ValueError, too, for shares that are not between 0 and 1.
    """
    at_least(0, noise=noise)
    if not shares or not all(0 < share < 1 for share in shares):
        raise ValueError(f"shares are {tuple(shares)}; expected shares of pixels to remove, between 0 and 1")
    images, maps, target, _, batch_size = check_inputs(model, images, maps, target, 0.0, batch_size)
    draws = (rng or TorchRng(len(images), images.device)).normal(images.shape[1:], "cam/road").to(images)

    def show(row: Tensor, taken: Tensor) -> Tensor:
        return imputed(images[row], taken).addcmul_(draws[row], taken[:, None], value=noise)

    counts = [int(share * maps.shape[1] * maps.shape[2]) for share in shares]
    morf, lerf = _both(model, show, maps, target, counts, batch_size)
    return Imputed((lerf - morf).mean(dim=1), lerf, morf)


def ends_of(
    model: Model, images: Tensor, *, fill: Fill, canvas: Tensor | None = None, batch_size: int | None = None
) -> Ends:
    """Return what all curves share. Forwards: one for each image, each canvas (B, 3, H, W) if any, and for `fill`."""
    nothing = fill_values(fill, images).expand(min(1, len(images)), *images.shape[1:])
    count = rows_of(batch_size, images)
    whole, empty = _logits(model, images, count), _logits(model, nothing, count)
    return Ends(whole, empty.expand_as(whole), None if canvas is None else _logits(model, canvas, count))


def probability(logits: Tensor, target: Tensor) -> Tensor:
    """Return the probability (B,) of the targets. ValueError for a class that the model does not have."""
    if target.numel() and int(target.max()) >= logits.shape[1]:
        raise ValueError(f"target {int(target.max())}; the model has {logits.shape[1]} classes, from 0 on")
    return logits.float().softmax(dim=1).gather(1, target[:, None])[:, 0]


def region_iou(model: Model, region: Tensor, target: int) -> Model:
    """Return a model of two classes, for curves of one image at a time: the probability of class 1 is the IoU of the
    pixels that a segmenter predicts as a class with a region.

    model: images to logits of each pixel (B, K, H, W). region: (H, W) bool. target: the segmenter's class. Where
    neither holds a pixel the IoU is 0. When called, it raises ValueError for logits of another shape.
    """

    def overlap(images: Tensor) -> Tensor:
        logits = model(images)
        if logits.ndim != 4 or logits.shape[2:] != region.shape:
            raise ValueError(
                f"the model returned {tuple(logits.shape)}; expected (B, K, H, W) of {tuple(region.shape)}"
            )
        mask = logits.argmax(dim=1) == target
        both = (mask & region).sum(dim=(1, 2)).double()
        share = both / (mask | region).sum(dim=(1, 2)).clamp_min(1)
        return torch.stack([1 - share, share], dim=1).log().float()

    return overlap


def blurred(images: Tensor, length: int = 11, sigma: float = 5.0) -> Tensor:
    """Blur images (B, C, H, W) by a Gaussian of `length` taps per side (odd) and `sigma` pixels; edges are repeated."""
    offsets = torch.arange(length, device=images.device, dtype=images.dtype) - length // 2
    taps = torch.exp(-(offsets**2) / (2 * sigma**2))
    taps = (taps / taps.sum()).expand(images.shape[1], 1, 1, length)
    padded = functional.pad(images, [length // 2] * 4, mode="replicate")
    rows = functional.conv2d(padded, taps, groups=images.shape[1])
    return functional.conv2d(rows, taps.transpose(2, 3), groups=images.shape[1])


def _counts(maps: Tensor, steps: int) -> list[int]:
    return [step * maps.shape[1] * maps.shape[2] // (steps - 1) for step in range(steps)]


def _ranks(maps: Tensor, descending: bool) -> Tensor:
    """Return each pixel's place (B, H, W) in the order of its map, raster order among equals."""
    order = maps.flatten(1).argsort(dim=1, descending=descending, stable=True)
    places = torch.arange(order.shape[1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(1, order, places).view_as(maps)


def _replacing(front: Tensor, back: Tensor) -> Show:
    """Return what shows `back` (B, 3, H, W) where pixels are taken, and `front` elsewhere."""
    return lambda row, taken: torch.where(taken[:, None], back[row], front[row])


def _logits(model: Model, images: Tensor, batch_size: int) -> Tensor:
    """Return logits (B, K)."""
    if not len(images):
        return images.new_zeros(0, 0)
    with torch.no_grad():
        return torch.cat([model(part) for part in torch.split(images, batch_size)])


def _both(
    model: Model, show: Show, maps: Tensor, target: Tensor, counts: Sequence[int], batch_size: int
) -> tuple[Tensor, Tensor]:
    """Return the curves from the highest value down, and from the lowest up."""
    falling, rising = (_ranks(maps, descending) for descending in (True, False))
    morf = _curve(model, show, falling, target, counts, batch_size)
    return morf, morf if torch.equal(falling, rising) else _curve(model, show, rising, target, counts, batch_size)


def _curve(model: Model, show: Show, ranks: Tensor, target: Tensor, counts: Sequence[int], batch_size: int) -> Tensor:
    """Return the target's probability (B, counts) where the first `count` pixels are taken."""
    rows = torch.arange(len(ranks), device=ranks.device).repeat_interleave(len(counts))
    limits = torch.tensor(counts, device=ranks.device).repeat(len(ranks))
    parts = [torch.empty(0, device=ranks.device)]
    for start in range(0, len(rows), batch_size):
        row, limit = rows[start : start + batch_size], limits[start : start + batch_size]
        with torch.inference_mode():
            logits = model(show(row, ranks[row] < limit[:, None, None]))
        parts.append(probability(logits, target[row]))
    return torch.cat(parts).view(len(ranks), len(counts))


def check_inputs(
    model: Model, images: Tensor, maps: Tensor, target: Tensor | int, fill: Fill, batch_size: int | None
) -> tuple[Tensor, Tensor, Tensor, Tensor, int]:
    """Return images, maps, targets (B,), what removed pixels become (B, 3, H, W), and how many rows go at once."""
    if getattr(model, "training", False):
        raise ValueError("the model is in training mode; call model.eval() first")
    at_least(1, batch_size=batch_size)
    maps = as_maps(maps).to(images.device)
    if images.ndim != 4 or maps.shape != (len(images), *images.shape[2:]):
        shapes = f"images have the shape {tuple(images.shape)}, maps {tuple(maps.shape)}"
        raise ValueError(f"{shapes}; expected (B, 3, H, W), (B, H, W)")
    target = torch.as_tensor(target, device=images.device)
    if target.is_floating_point() or target.ndim > 1 or (target.ndim and len(target) != len(images)):
        form = f"{target.dtype} of the shape {tuple(target.shape)}"
        raise ValueError(f"target is {form}; expected a class, or {len(images)} of them")
    if target.numel() and int(target.min()) < 0:
        raise ValueError(f"target {int(target.min())}; expected a class, 0 or more")
    back = fill_values(fill, images).expand_as(images)
    return images, maps, target.long().expand(len(images)), back, rows_of(batch_size, images)
