"""The five corruptions that CIFAR-10-C-bar has and ImageNet-C-bar has not (Mintun et al. 2021, arXiv:2102.11273).

Their constants are for images of 32x32. Rotation, zoom and lines are SciPy's and scikit-image's, on the CPU, as there.
The aberration of an oblong image zooms the oblong; theirs takes squares alone.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.ndimage import rotate, zoom
from skimage.draw import line_aa
from torch import Tensor

from .bar import GREY, PI, OfBar, between, pixels_of, sampled, whole
from .base import Draws

_CELLS, _CELLS_AT_224 = 3, 5
_TURNS = 21
_MOST_LINES = 256  # more than any side of 1024 pixels has


class PinchAndTwirl(OfBar):
    """Discs on a grid of 3x3 cells (5x5 at 224 pixels), pinched and turned. Draws: `signs` (5, 5), column first."""

    name, highest, category = "pinch_and_twirl", PI / 2, "cifar-bar"
    uniforms: ClassVar = {"signs": (_CELLS_AT_224, _CELLS_AT_224)}

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        side, y, x = pixels_of(images)
        cells = _CELLS_AT_224 if side == 224 else _CELLS
        size = side // cells
        amount = float(self.constants(draws.severity)) * 0.04 + 0.1
        angles = torch.where(draws["signs"] < 0.5, 1.0, -1.0).double()[..., None, None] * self.level(draws.severity)
        top, left = int(y.flatten()[0]), int(x.flatten()[0])
        values = images.float()
        for across in range(cells):
            columns = _within(across * size - left, size, images.shape[3])
            for down in range(cells):
                rows = _within(down * size - top, size, images.shape[2])
                dy, dx = y[:, rows] - (down + 0.5) * size, x[:, :, columns] - (across + 0.5) * size
                distance = (dy**2 + dx**2).sqrt() / (size / 2)
                pinch = torch.sin(PI / 2 * distance.clamp(1e-9, 1)) ** -amount
                turn = angles[:, across, down] * (1 - distance).clamp_min(0) ** 2
                bent = (
                    dy * pinch * torch.cos(turn) - dx * pinch * torch.sin(turn),
                    dy * pinch * torch.sin(turn) + dx * pinch * torch.cos(turn),
                )
                stays = (distance > 1) | (distance * size / 2 < 5e-4)
                source = (
                    torch.where(stays, there, there_bent) for there, there_bent in zip((dy, dx), bent, strict=True)
                )
                row, column = (place + (cell + 0.5) * size for place, cell in zip(source, (down, across), strict=True))
                cell = sampled(values.double(), row - top, column - left)
                values[:, :, rows, columns] = cell.float()
        return whole(values)


def _within(start: int, size: int, side: int) -> slice:
    return slice(max(start, 0), max(min(start + size, side), 0))


class Ripple(OfBar):
    """Rows and columns displaced by a sine each. Draws: `wavelengths` (2), `phases` (2): of rows, of columns."""

    name, highest, category = "ripple", 0.025, "cifar-bar"
    uniforms: ClassVar = {"wavelengths": (2,), "phases": (2,)}

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        side, y, x = pixels_of(images)
        wavelengths, phases = self.of(draws, "wavelengths", 0.1, 0.3) * side, self.of(draws, "phases", 0, 2 * PI)
        far = self.level(draws.severity) * side
        row, column = (
            place + far * torch.sin(2 * PI * place / wavelengths[:, axis] + phases[:, axis]) + 0 * (y + x)
            for axis, place in enumerate((y, x))
        )
        return whole(sampled(images.double(), row - y.flatten()[0], column - x.flatten()[0]))


class CircularMotionBlur(OfBar):
    """The mean of 21 rotations about the middle, the far ones lighter. No draws."""

    name, highest, category = "circular_motion_blur", 15.0, "cifar-bar"
    uniforms: ClassVar = {}

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        values = images.cpu().permute(2, 3, 0, 1).numpy().astype(np.float32) / 255
        total, weight = np.zeros_like(values), 0.0
        for turn in range(_TURNS):
            place = 2 * turn / (_TURNS - 1) - 1
            factor = float(np.exp(-2 * place**2))
            total += factor * rotate(values, place * self.level(draws.severity), reshape=False)
            weight += factor
        made = torch.from_numpy((total / weight * 255).clip(0, 255).astype(np.uint8))
        return made.permute(2, 3, 0, 1).contiguous().to(images.device)


class Lines(OfBar):
    """Grey lines, about parallel. Draws: `angle`, `variation`, `lines` (256, 3): row, column and angle of each."""

    name, highest, category = "lines", 1.0, "cifar-bar"
    uniforms: ClassVar = {"angle": (), "variation": (), "lines": (_MOST_LINES, 3)}

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        made = [
            _with_lines(image, *lines)
            for image, *lines in zip(
                images.cpu().permute(0, 2, 3, 1).numpy().copy(),
                self._ends(images, draws).cpu().numpy(),
                strict=True,
            )
        ]
        return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2).contiguous().to(images.device)

    def _ends(self, images: Tensor, draws: Draws) -> Tensor:
        """Return row and column of both ends of each line, (B, lines, 4), in the image's pixels."""
        side, y, x = pixels_of(images)
        count = min(int(self.level(draws.severity) * side), _MOST_LINES)
        lines = draws["lines"].double()[:, :count]
        spread = between(draws["variation"].double(), 0.1, 1)[:, None]
        angle = draws["angle"].double()[:, None] * 2 * PI + 2 * PI * spread * (lines[..., 2] - 0.5)
        ends = [
            (side * lines[..., axis] + sign * side * slope).trunc() - start.flatten()[0]
            for sign in (-1, 1)
            for axis, slope, start in ((0, torch.cos(angle), y), (1, torch.sin(angle), x))
        ]
        return torch.stack(ends, dim=2).long()


def _with_lines(image: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Draw lines on (H, W, 3). ends: (lines, 4), row and column of both."""
    for line in ends.tolist():
        rows, columns, shares = line_aa(*line)  # type: ignore[no-untyped-call]
        inside = (rows >= 0) & (columns >= 0) & (rows < image.shape[0]) & (columns < image.shape[1])
        rows, columns, share = rows[inside], columns[inside], shares[inside][:, None]
        image[rows, columns] = ((1 - share) * image[rows, columns].astype(np.float32) + share * GREY).astype(np.uint8)
    return image


class TransverseChromaticAbberation(OfBar):
    """Channels of three sizes, spline weights without their filter. Draws: `order`: which channel has which size."""

    name, highest, category = "transverse_chromatic_abberation", 0.5, "cifar-bar"
    uniforms: ClassVar = {"order": ()}
    orders = ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0))

    def apply(self, images: Tensor, draws: Draws) -> Tensor:
        height, width = images.shape[2:]
        sizes = [1 + self.level(draws.severity) * share for share in (0, 0.5, 1)]
        values = images.cpu().numpy().copy()
        for image, order in zip(values, (draws["order"] * 6).long().tolist(), strict=True):
            for channel, which in enumerate(self.orders[order]):
                large = zoom(image[channel], sizes[which], prefilter=False)
                top, left = (large.shape[0] - height) // 2, (large.shape[1] - width) // 2
                image[channel] = large[top : top + height, left : left + width]
        return torch.from_numpy(values).to(images.device)
