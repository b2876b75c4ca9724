"""Whether we show a model of transformers the pixels that its processor makes: tried on drawn images.

Each processor of the library has a resize of its own, and what it means by `size` differs from class to class. So what
we read of it is believed only where both make the same pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..errors import CheckpointError
from .transformers_config import quiet

_SHAPES = ((1.7, 2.3), (2.5, 1.4), (0.6, 0.8), (1.3, 1.3))
"""Heights and widths of the images that are tried, in those of the input; each also gets some odd pixels."""
_LEVELS = 3.5  # between two resizes of the library itself there are up to 2, and rounded twice one more


def drawn(size: tuple[int, int]) -> list[Image.Image]:
    """Return images of black, white and coloured blocks, as no photograph has them, around (height, width)."""
    draw = np.random.Generator(np.random.PCG64(0))
    images = []
    for place, (tall, wide) in enumerate(_SHAPES):
        height, width = int(size[0] * tall) + place + 1, int(size[1] * wide) + 2 * place + 3
        blocks = draw.choice(np.array([0, 60, 200, 255], np.uint8), (-(-height // 6), -(-width // 6), 3))
        images.append(Image.fromarray(blocks.repeat(6, axis=0).repeat(6, axis=1)[:height, :width]))
    return images


def check_pixels(
    processor: Any, show: Callable[[Image.Image], Tensor], size: tuple[int, int], std: list[float], where: Path
) -> None:
    """Raise CheckpointError unless `show` gives the normalised pixels (1, 3, H, W) of the processor.

    size: (height, width) around which images are tried. std: by which pixels are divided, for the unit of the message.
    """
    scale = torch.tensor(std)[:, None, None] * 255
    for image in drawn(size):
        with quiet(f"{where}: its processor"):
            theirs = torch.as_tensor(processor(image, return_tensors="pt")["pixel_values"])
        with torch.no_grad():
            ours = show(image)
        kind, of = type(processor).__name__, f"of a picture of {image.height}x{image.width} pixels"
        if theirs.shape != ours.shape:
            shapes = (f"{x.shape[-2]}x{x.shape[-1]}" for x in (theirs, ours))
            raise CheckpointError(
                f"{where}: {kind} makes {{}} pixels {of} where we would make {{}}; how it resizes is not expressed "
                "here".format(*shapes)
            )
        if not (most := float(((theirs - ours) * scale).abs().max())) <= _LEVELS:
            raise CheckpointError(
                f"{where}: {kind} makes other pixels {of} than we would, by up to {most:.0f} of 255 levels; how it "
                "resizes or normalises is not expressed here"
            )
