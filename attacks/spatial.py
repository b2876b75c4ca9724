"""Rotations and translations of whole images, of classifiers and of models that predict a class for each pixel."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from typing import ClassVar, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional

from .attack import Attack, AttackResult, Tally
from .dense import DenseAttack, DenseOracle
from .model_access import Oracle, cross_entropy, is_missed
from .threat import Rng, ThreatModel, at_least, one_of, per_sample

Border = Literal["black", "edge", "reflect"]
_PADDING = {"black": "zeros", "edge": "border", "reflect": "reflection"}


def move(images: Tensor, moves: Tensor, border: Border = "black", low: float = 0.0, mode: str = "bilinear") -> Tensor:
    """Return images that are rotated about their centre, then shifted; those of a move of zeros as they are.

    Args:
        images: (B, C, H, W) floating.
        moves: (B, 3) degrees clockwise, and shifts down and to the right, as shares of height and width.
        border: what appears at the edges: "black" is `low`, "edge" the nearest pixel, "reflect" the mirrored image.
        low: the value of black.
        mode: "bilinear" or "nearest".

    Example:
        >>> move(images, torch.tensor([[180.0, 0, 0]] * 2)).allclose(images.flip(2, 3), atol=1e-5)
        True
    """
    kind, images = images.dtype, images.to(torch.promote_types(images.dtype, torch.float32))
    height, width = images.shape[-2:]
    angle, down, right = moves.to(images.device, torch.float64).unbind(dim=1)
    cos, sin, down, right = torch.cos(angle.deg2rad()), torch.sin(angle.deg2rad()), down * height, right * width
    across = [cos, sin * height / width, -2 * (cos * right + sin * down) / width]
    along = [-sin * width / height, cos, 2 * (sin * right - cos * down) / height]
    inverse = torch.stack([torch.stack(across, dim=1), torch.stack(along, dim=1)], dim=1).to(images.dtype)
    places = functional.affine_grid(inverse, list(images.shape), align_corners=False)
    moved = functional.grid_sample(images - low, places, mode, _PADDING[border], align_corners=False) + low
    return torch.where(per_sample(moves.to(images.device).any(dim=1), images), moved, images).to(kind)


def grid_of_moves(degrees: float, shift: float, angles: int, shifts: int) -> Tensor:
    """Return (M, 3) moves, as `move` takes them: the identity first, then by rising angle, then by rising shift."""

    def spread(most: float, count: int) -> list[float]:
        return [most * (2 * i / (count - 1) - 1) for i in range(count)] if most and count > 1 else [0.0]

    moves = {(0.0, 0.0, 0.0), *product(spread(degrees, angles), *[spread(shift, shifts)] * 2)}
    return torch.tensor(sorted(moves, key=_size), dtype=torch.float64)


def _size(each: tuple[float, float, float]) -> tuple[float, ...]:
    return abs(each[0]), max(map(abs, each[1:])), *each


@dataclass(frozen=True)
class SpatialResult(AttackResult):
    """An `AttackResult` of `Spatial`, with the move of each image.

    Example:
        >>> Spatial(degrees=10, shift=0, angles=3).run(model, images, labels).moves.shape
        torch.Size([2, 3])
    """

    moves: Tensor
    """(B, 3) of the images that are returned: degrees clockwise, and shifts down and right as shares of the sides."""
    first: Tensor
    """(B,) the smallest angle, without its sign, at which a prediction was seen to be wrong; infinite if none was."""


class _Tally(Tally):
    moves: Tensor
    first: Tensor

    def result(self, adversarials: Tensor) -> SpatialResult:
        if not hasattr(self, "moves"):
            self.moves = torch.zeros(len(self.steps), 3, dtype=torch.float64, device=self.steps.device)
            self.first = torch.full_like(self.moves[:, 0], torch.inf)
        return SpatialResult(**vars(super().result(adversarials)), moves=self.moves, first=self.first)


def _search(
    clean: Tensor, moves: Tensor, judge: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], tally: _Tally, leaves: bool
) -> Tensor:
    """Return how far in `moves` (B, M, 3) each sample's worst one is, (B,): a wrong one before others, then by loss.

    judge: from rows (n,) and their moves (n, 3) to losses and whether predictions are wrong, (n,). leaves: whether a
    sample ends at the first wrong one.
    """
    worst, fell = torch.zeros(len(clean), dtype=torch.int64, device=clean.device), torch.zeros_like(clean[:, 0, 0, 0])
    best, rows = torch.full_like(fell, -torch.inf), torch.arange(len(clean), device=clean.device)
    tally.first = torch.full((len(clean),), torch.inf, dtype=torch.float64, device=clean.device)
    for number in range(moves.shape[1]):
        losses, wrong = judge(rows, moves[rows, number])
        tally.saw(rows, wrong)
        now, before = wrong.to(fell), fell[rows]
        tally.first[rows] = torch.where(wrong & (before == 0), moves[rows, number, 0].abs(), tally.first[rows])
        ahead = (now > before) | ((now == before) & (losses.nan_to_num(nan=torch.inf) > best[rows]))
        worst[rows[ahead]], best[rows[ahead]] = number, losses.nan_to_num(nan=torch.inf).to(best)[ahead]
        fell[rows] = torch.maximum(now, before)
        rows = rows[~wrong] if leaves else rows
        if not len(rows) or number + 1 == moves.shape[1]:
            break
        tally.count(rows, steps=1)
    tally.moves = moves[torch.arange(len(clean), device=clean.device), worst]
    return worst


@dataclass(frozen=True)
class _Moves:
    """What both attacks have: see `Spatial`."""

    threat: ThreatModel = field(default_factory=lambda: ThreatModel("linf", math.inf))
    degrees: float = 30.0
    shift: float = 0.1
    angles: int = 31
    shifts: int = 5
    draws: int = 0
    border: Border = "black"

    def __post_init__(self) -> None:
        one_of(get_args(Border), self, "border")
        at_least(1, self, "angles", "shifts")
        at_least(0, self, "draws")
        if self.border == "black" and self.threat.bounds is None:
            raise ValueError("black is the lower bound, and no bounds are given; state them, or border='edge'")
        if not 0 <= self.degrees <= 180:
            raise ValueError(f"degrees is {self.degrees}; expected 0 to 180")
        if not 0 <= self.shift < 1:
            raise ValueError(f"shift is {self.shift}; expected a share of the sides, 0 or more and below 1")

    def moves_of(self, clean: Tensor, rng: Rng) -> Tensor:
        """Return the moves (B, M, 3) of each sample, the identity first, by rising angle."""
        if clean.ndim != 4:
            raise ValueError(f"images have shape {tuple(clean.shape)}; expected (B, C, H, W)")
        if not self.draws:
            grid = grid_of_moves(self.degrees, self.shift, self.angles, self.shifts)
            return grid.to(clean.device).expand(len(clean), *grid.shape)
        reach = torch.tensor([self.degrees, self.shift, self.shift], dtype=torch.float64, device=clean.device)
        drawn = (2 * rng.uniform((self.draws, 3), "spatial/moves").to(reach) - 1) * reach
        drawn = drawn.gather(1, drawn[..., :1].abs().argsort(dim=1, stable=True).expand_as(drawn))
        return torch.cat([torch.zeros_like(drawn[:, :1]), drawn], dim=1)

    def moved(self, images: Tensor, moves: Tensor) -> Tensor:
        """Return images (B, C, H, W) after their moves (B, 3)."""
        bounds = self.threat.bounds
        moved = move(images, moves, self.border, bounds[0] if bounds else 0.0)  # of other borders it changes nothing
        return moved.clamp(*bounds) if bounds else moved


@dataclass(frozen=True)
class Spatial(_Moves, Attack):
    """The worst rotation and translation of an image, of a grid or of random ones (Engstrom et al. 2019).

    The model is asked for its answers only. The image as it is is always among those that are tried, first; the others
    follow by rising angle. `run` returns a `SpatialResult`.

    Args:
        threat: its bounds count alone: black is the lower one.
        degrees: the largest angle to either side.
        shift: the largest shift to each side, as a share of height and width.
        angles: of the grid, from -degrees to degrees.
        shifts: of the grid in each direction, from -shift to shift.
        draws: random moves of each image in place of the grid, even in angle and shifts; 0: the grid.
        border: what appears at the edges: "black", "edge" (the nearest pixel) or "reflect".
        early_stop: a sample leaves at the first move that misleads the model, the one of the smallest angle. Otherwise
            all moves are tried, and the wrong one of the highest loss is returned.

    Reference: arXiv:1712.02779.

    Example:
        >>> result = Spatial(degrees=30, shift=0.1, angles=5, shifts=3).run(model, images, labels)
        >>> bool((result.moves[:, 0].abs() <= 30).all())
        True
    """

    early_stop: bool = True
    norms: ClassVar[tuple[str, ...]] = ("linf",)
    radius: ClassVar[bool] = False
    queues: ClassVar[bool] = True
    needs_gradients: ClassVar[bool] = False
    _tally = _Tally

    def _points(self, oracle: Oracle, clean: Tensor, labels: Tensor | None, rng: Rng, tally: Tally) -> Tensor:
        assert isinstance(tally, _Tally)
        moves, size = self.moves_of(clean, rng), oracle.batch_size or len(clean)
        if labels is None:
            every = torch.split(torch.arange(len(clean), device=clean.device), size)
            labels = torch.cat([oracle.predict(clean[part], part) for part in every]).argmax(dim=1)
            tally.forwards += 1

        def judge(rows: Tensor, tried: Tensor) -> tuple[Tensor, Tensor]:
            losses, wrong = [], []
            for part, ways in zip(torch.split(rows, size), torch.split(tried, size), strict=True):
                points = self.moved(clean[part], ways)
                logits = oracle.predict(points, part)
                fails, asked = oracle.confirm(points, labels[part], is_missed(logits, labels[part]), part)
                tally.count(part, forwards=1 + asked.long())
                losses.append(cross_entropy(logits, labels[part]).to(clean))
                wrong.append(fails)
            return torch.cat(losses), torch.cat(wrong)

        _search(clean, moves, judge, tally, self.early_stop)
        parts = zip(torch.split(clean, size), torch.split(tally.moves, size), strict=True)
        return torch.cat([self.moved(images, ways) for images, ways in parts])


@dataclass(frozen=True)
class DenseSpatial(_Moves, DenseAttack):
    """`Spatial` on a model that predicts a class for each pixel: masks move with their images.

    Returns the move that leaves the smallest share of pixels right, of those with a class; the first of equals. A pixel
    that appears at a black border has none. `move_masks` gives the masks of a result.

    Args:
        degrees: the largest angle to either side.
        shift: the largest shift to each side, as a share of height and width.
        angles: of the grid, from -degrees to degrees.
        shifts: of the grid in each direction.
        draws: random moves of each image in place of the grid; 0: the grid.
        border: what appears at the edges: "black", "edge" or "reflect".

    Example:
        >>> attack = DenseSpatial(degrees=10, shift=0, angles=3)
        >>> result = attack.run(segmenter, images, masks)
        >>> attack.move_masks(masks, result.moves).shape == masks.shape
        True
    """

    norms: ClassVar[tuple[str, ...]] = ("linf",)
    radius: ClassVar[bool] = False
    needs_gradients: ClassVar[bool] = False
    _tally = _Tally

    def move_masks(self, masks: Tensor, moves: Tensor) -> Tensor:
        """Return masks (B, H, W) after moves (B, 3) of their images: the nearest class, -1 at a black border."""
        kind = torch.int64 if masks.dtype == torch.uint8 else masks.dtype
        return move(masks[:, None].double(), moves, self.border, -1.0, "nearest")[:, 0].round().to(kind)

    def _points(self, oracle: DenseOracle, clean: Tensor, masks: Tensor | None, rng: Rng, tally: Tally) -> Tensor:
        assert isinstance(tally, _Tally)
        if masks is None:
            masks = oracle.predict(clean).argmax(dim=1)
            tally.forwards += 1

        def judge(rows: Tensor, tried: Tensor) -> tuple[Tensor, Tensor]:
            moved = self.move_masks(masks[rows], tried)
            wrong = (oracle.predict(self.moved(clean[rows], tried)).argmax(dim=1) != moved) & (moved >= 0)
            tally.count(rows, forwards=1)
            shares = wrong.flatten(1).sum(dim=1) / (moved >= 0).flatten(1).sum(dim=1).clamp(min=1)
            return shares.to(clean), torch.zeros_like(rows, dtype=torch.bool)

        _search(clean, self.moves_of(clean, rng), judge, tally, leaves=False)
        return self.moved(clean, tally.moves)
