"""Show a map over its image, in colours that colour-blind people read, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor

COLORMAPS = {
    "inferno": cv2.COLORMAP_INFERNO,
    "magma": cv2.COLORMAP_MAGMA,
    "plasma": cv2.COLORMAP_PLASMA,
    "viridis": cv2.COLORMAP_VIRIDIS,
    "cividis": cv2.COLORMAP_CIVIDIS,
    "turbo": cv2.COLORMAP_TURBO,
    "jet": cv2.COLORMAP_JET,
}
"""Colours of a map by name. Those before `turbo` grow evenly lighter, for colour-blind people, too."""
COLORMAP, ALPHA = "inferno", 0.85
"""The usual colours, and the weight of a map's colour over its image where the map is 1."""
_LEAST = 0.4  # of that weight, where a map is 0


def colours(levels: NDArray[np.uint8], colormap: str = COLORMAP) -> NDArray[np.uint8]:
    """Return the colours, (H, W, 3), of levels (H, W) from 0 to 255. Raises ValueError for an unknown colormap."""
    if colormap not in COLORMAPS:
        raise ValueError(f"unknown colormap {colormap!r}; known: {', '.join(COLORMAPS)}")
    coloured = cv2.applyColorMap(levels, COLORMAPS[colormap])
    return np.asarray(cv2.cvtColor(coloured, cv2.COLOR_BGR2RGB), dtype=np.uint8)


def blend(
    image: NDArray[np.uint8], heat: NDArray[np.float32], colormap: str = COLORMAP, alpha: float = ALPHA
) -> NDArray[np.uint8]:
    """Return an image (H, W, 3) in grey under its map, of any size and in [0, 1]. A low map shows less of its colour,
    so that the image stays visible. Raises ValueError for an unknown colormap, or an alpha outside [0, 1]."""
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha {alpha}: expected a number from 0 to 1")
    heat = np.asarray(cv2.resize(heat, image.shape[1::-1], interpolation=cv2.INTER_LINEAR), dtype=np.float32).clip(0, 1)
    coloured = colours((heat * 255).round().astype(np.uint8), colormap).astype(np.float32)
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[..., None].astype(np.float32)
    share = alpha * (_LEAST + (1 - _LEAST) * heat[..., None])
    return np.asarray(((1 - share) * grey + share * coloured).round(), dtype=np.uint8)


def overlay(
    image: Tensor | NDArray[Any] | Image, map: Tensor | NDArray[Any], colormap: str = COLORMAP, alpha: float = ALPHA
) -> Image:
    """Return a picture of an image under its map; a notebook shows it.

    Args:
        image: a tensor (3, H, W) or (1, 3, H, W) in [0, 1]; an array (H, W, 3), uint8 or in [0, 1]; or a picture of
            Pillow's.
        map: (H, W) or (1, H, W) in [0, 1], as an explainer returns it; of another size than the image it is resized.
        colormap: one of `COLORMAPS`.
        alpha: the weight of the colour where the map is 1, from 0 to 1.

    Returns:
        A picture of Pillow's, RGB, of the image's size.

    Raises:
        ValueError: another shape, a map that is not finite, an unknown colormap, or an alpha outside [0, 1].

    Example:
        >>> overlay(images[0], maps[0]).size
        (64, 64)
    """
    from PIL import Image as Pictures

    pixels, heat = _array(image), _array(map).astype(np.float32)
    pixels = pixels[0] if pixels.ndim == 4 and len(pixels) == 1 else pixels
    heat = heat[0] if heat.ndim == 3 and len(heat) == 1 else heat
    if hasattr(image, "detach") and pixels.ndim == 3:
        pixels = pixels.transpose(1, 2, 0)
    if pixels.ndim != 3 or pixels.shape[2] != 3:
        raise ValueError(f"image has the shape {pixels.shape}; expected one: a tensor (3, H, W), an array (H, W, 3)")
    if heat.ndim != 2 or not np.isfinite(heat).all():
        raise ValueError(f"map has the shape {heat.shape}; expected one, (H, W), of finite values: maps[0] of several")
    if pixels.dtype != np.uint8:
        pixels = (pixels.astype(np.float32).clip(0, 1) * 255).round().astype(np.uint8)
    return Pictures.fromarray(blend(np.ascontiguousarray(pixels), heat, colormap, alpha))


def _array(values: Any) -> NDArray[Any]:
    if hasattr(values, "detach"):
        values = values.detach().float().cpu().numpy()
    elif hasattr(values, "convert"):
        values = values.convert("RGB")
    return np.asarray(values)
