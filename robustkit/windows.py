"""Sliding windows: a network that takes images of one size sees those of any size, and its overlapping logits are
averaged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

import torch
from torch import Tensor
from torch.nn import functional

from .errors import ModelError


@dataclass(frozen=True)
class Windows:
    """How images are shown to a network.

    size: (height, width) of a window. stride: rows and columns from one to the next, at most `size`; the last one ends
        where the image does. short_side: images are resized (bilinearly) to it first; None for their own size, though
        never smaller than a window. batch: most windows in one pass.
    """

    size: tuple[int, int]
    stride: tuple[int, int]
    short_side: int | None = None
    batch: int = 16

    def __post_init__(self) -> None:
        if not all(0 < step <= side for step, side in zip(self.stride, self.size, strict=True)):
            raise ModelError(
                f"stride {self.stride[0]}x{self.stride[1]} for windows of {self.size[0]}x{self.size[1]}: expected 1 or "
                "more, at most the window, so that no pixel is left out"
            )
        for what, number in (("short side", self.short_side), ("windows a pass", self.batch)):
            if number is not None and number < 1:
                raise ModelError(f"{what} {number}: expected 1 or more")

    def frame(self, height: int, width: int) -> tuple[int, int]:
        """The size at which an image is shown: its short side as asked, each side at least a window's; rounded down."""
        least = Fraction(min(height, width) if self.short_side is None else self.short_side, min(height, width))
        scale = max(least, Fraction(self.size[0], height), Fraction(self.size[1], width))
        return int(height * scale), int(width * scale)

    def corners(self, height: int, width: int) -> list[tuple[int, int]]:
        """Top left corners of the windows on an image shown at that size, row by row."""
        rows, columns = (
            [*(at for at in range(0, side, step) if at < side - window), side - window]
            for side, step, window in zip((height, width), self.stride, self.size, strict=True)
        )
        return [(top, left) for top in rows for left in columns]

    def __call__(self, network: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
        """Logits (B, K, H, W) of normalised images (B, 3, H, W); differentiable."""
        height, width = images.shape[-2:]
        frame = self.frame(height, width)
        shown = images if frame == (height, width) else functional.interpolate(images, frame, mode="bilinear")
        corners, (rows, columns) = self.corners(*frame), self.size
        if len(corners) == 1:
            parts = [network(part) for part in torch.split(shown, self.batch)]
            logits = parts[0] if len(parts) == 1 else torch.cat(parts)
        else:
            cut = torch.cat([shown[..., top : top + rows, left : left + columns] for top, left in corners])
            logits, seen = cut.new_zeros(0), cut.new_zeros(frame)
            for top, left in corners:
                seen[top : top + rows, left : left + columns] += 1
            for start in range(0, len(cut), self.batch):
                part = network(cut[start : start + self.batch])
                if start == 0:
                    exact = torch.promote_types(part.dtype, torch.float32)
                    logits = part.new_zeros(len(images), part.shape[1], *frame, dtype=exact)
                for place, one in enumerate(part, start):
                    (top, left), image = corners[place // len(images)], place % len(images)
                    logits[image, :, top : top + rows, left : left + columns] += one
            logits /= seen
        return logits if frame == (height, width) else functional.interpolate(logits, (height, width), mode="bilinear")
