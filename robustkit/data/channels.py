"""Images that are no 8-bit RGB: 1 to 16 channels of 8 or 16 bits or floats, from PNG, TIFF, .npy, or memory.

Values are read as the file stores them, and scaled to [0, 1] by a range: the one that is stated, else that of 8 or 16
bits. 8-bit images without a stated range stay 8-bit, so that three of their channels are what RGB gives. Resize and
crop treat each channel as a grey picture, with Pillow's filters.
"""

from __future__ import annotations

import io
import math
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from ..common.preprocessing import Preprocessing
from ..errors import BadImageError
from .images import decoded, to_pixels, unit_pixels, upright

_MOST_VALUES = 160_000_000
_NPY, _TIFF = b"\x93NUMPY", (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
_BITS = {"uint8": 255.0, "uint16": 65535.0}
_REMEDY = "state the range of the values: --value-range LOW,HIGH"
_PHOTOMETRIC = {1: "grey", 2: "RGB"}  # of TIFF; others are inverted, palettes, or of other colours
Values = NDArray[Any]


def channel_pixels(data: bytes | Values, preprocessing: Preprocessing, name: str, border: int = 0) -> Tensor:
    """Return what a model of `preprocessing.channels` channels takes of a file, or of an array (H, W, C).

    Returns:
        (C, H, W) float32 in [0, 1], of files of 8 bits without a stated range in steps of 1/255.

    Raises:
        BadImageError: another number of channels, values without or outside a range, an alpha channel, or no image.
    """
    values = (
        one_grey(data, preprocessing.channels)
        if isinstance(data, np.ndarray)
        else _values(data, preprocessing.channels, name)
    )
    height, width, channels = values.shape
    if channels != preprocessing.channels:
        expected = f"the network takes {preprocessing.channels}"
        raise BadImageError(f"{name}: {channels} channels, and {expected}; give files with as many")
    if border:
        if min(height, width) <= 2 * border:
            raise BadImageError(f"{name}: nothing is left of {width}x{height} without its border")
        values = values[border:-border, border:-border]
    of_range = _in_range(values, preprocessing.value_range, name)
    fills = preprocessing.crop_mode == "border" and of_range.dtype != np.uint8
    if fills:  # with the mean, in 8 bits
        of_range = of_range * np.float32(255)
    parts = [
        to_pixels(Image.fromarray(part), replace(preprocessing, mean=(mean,), std=(std,)), name)
        for part, mean, std in zip(np.moveaxis(of_range, 2, 0), preprocessing.mean, preprocessing.std, strict=True)
    ]
    pixels = unit_pixels(torch.cat(parts))
    return (pixels / 255 if fills else pixels).clamp_(0, 1)  # filters overshoot


def size_of(data: bytes | Values, channels: int, name: str) -> tuple[int, int]:
    """Return (height, width) of a file, or of an array (H, W, C). Raises BadImageError as `channel_pixels`."""
    values = data if isinstance(data, np.ndarray) else _values(data, channels, name)
    return int(values.shape[0]), int(values.shape[1])


def kind_of_values(data: bytes, channels: int, name: str) -> str:
    """Return the type of a file's values, such as `uint16`. Raises BadImageError as `channel_pixels`."""
    return str(_values(data, channels, name).dtype.name)


def _in_range(values: Values, stated: tuple[float, float] | None, name: str) -> Values:
    """Return values (H, W, C), contiguous by channel, of 8 bits or floating in [0, 1]."""
    if stated is None and values.dtype == np.uint8:
        return values
    low, high = stated or (0.0, _BITS.get(values.dtype.name, math.nan))
    if math.isnan(high):
        raise BadImageError(f"{name}: values are {values.dtype}, of no usual range; {_REMEDY}")
    least, most = (float(each) for each in (values.min(), values.max()))
    if not (low <= least and most <= high):  # also where there is a NaN
        raise BadImageError(f"{name}: values {least:.6g} to {most:.6g} leave the range {low:g} to {high:g}; {_REMEDY}")
    return ((values.astype(np.float64) - low) / (high - low)).astype(np.float32)


def _values(data: bytes, channels: int, name: str) -> Values:
    """Return the values of a file, (H, W, C). channels: of the network, which decides where an array has them."""
    if data.startswith(_NPY):
        return _placed(_of_npy(data, name), channels, name)
    if data.startswith(_TIFF):
        return _of_tiff(data, channels, name)
    if data.startswith(b"\x89PNG") and data[24:26] in (b"\x10\x02", b"\x10\x06"):  # its header comes first
        raise BadImageError(f"{name}: a PNG of colours of 16 bits, which is read as 8; save it as TIFF or .npy")
    return decoded(data, name, lambda image, _: _of_picture(upright(image), channels, name))


def _of_npy(data: bytes, name: str) -> Values:
    stream = io.BytesIO(data)
    try:
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        shape, _, dtype = read[version](stream)
        if dtype.hasobject or dtype.kind not in "uif" or not 0 < math.prod(shape) <= _MOST_VALUES:
            raise ValueError(f"{dtype} of shape {shape}")
        return np.asarray(np.load(io.BytesIO(data), allow_pickle=False))
    except Exception as fault:  # its header is parsed as Python's literals
        raise BadImageError(f"{name}: not an array of numbers that can be read ({str(fault)[:120]})") from None


def _placed(values: Values, channels: int, name: str) -> Values:
    """Return an array as (H, W, C). Raises BadImageError where it may be either."""
    if values.ndim == 2:
        return values[:, :, None]
    if values.ndim != 3:
        raise BadImageError(f"{name}: an array of shape {values.shape}; expected (H, W, C) or (C, H, W)")
    ends = [place for place in (0, 2) if values.shape[place] == channels]
    if len(ends) == 2:
        raise BadImageError(f"{name}: an array of shape {values.shape} may have its channels first or last; save TIFF")
    if not ends:
        mismatch = f"an array of shape {values.shape}, and the network takes {channels} channels"
        raise BadImageError(f"{name}: {mismatch}; expected (H, W, {channels}) or ({channels}, H, W)")
    return np.moveaxis(values, ends[0], 2)


def _of_tiff(data: bytes, channels: int, name: str) -> Values:
    import tifffile

    try:
        with tifffile.TiffFile(io.BytesIO(data)) as file:
            pages = file.series[0]
            if len(file.series) > 1 or not 0 < math.prod(pages.shape) <= _MOST_VALUES:
                raise ValueError(f"{len(file.series)} pictures, the first of shape {pages.shape}; expected one")
            page: Any = file.pages[0]
            alpha = [int(sample) in (1, 2) for sample in getattr(page, "extrasamples", ())]
            if any(alpha):
                raise BadImageError(f"{name}: has an alpha channel, which is no band; save it without")
            kind, turn = page.tags.get("PhotometricInterpretation"), page.tags.get("Orientation")
            if kind is not None and int(kind.value) not in _PHOTOMETRIC:
                raise ValueError(f"photometric interpretation {kind.value}; expected 1 (black is 0) or 2 (RGB)")
            if turn is not None and int(turn.value) != 1:
                raise ValueError(f"it is stored turned, orientation {turn.value}; save it upright")
            if pages.dtype is None or pages.dtype.kind not in "uif":
                raise ValueError(f"values of {pages.dtype}; expected whole numbers or floats")
            axes, values = pages.axes, np.asarray(pages.asarray())
    except BadImageError:
        raise
    except Exception as fault:  # tifffile raises anything for a broken file, and for compressions that it lacks
        raise BadImageError(f"{name}: not a TIFF that can be read ({str(fault)[:120]})") from None
    if axes == "YX":
        return values[:, :, None]
    if axes not in ("YXS", "SYX", "YXC", "CYX"):
        shape = f"axes {axes} of shape {values.shape}"
        raise BadImageError(f"{name}: {shape}; expected one picture whose samples are the {channels} channels")
    return np.moveaxis(values, axes.index("S" if "S" in axes else "C"), 2)


def _of_picture(image: Image.Image, channels: int, name: str) -> Values:
    if image.mode in ("LA", "PA", "RGBA", "La", "RGBa"):
        raise BadImageError(f"{name}: has an alpha channel, which is no band; save it without")
    if image.mode in ("1", "L") or image.mode.startswith("I;16"):
        return np.asarray(image.convert("L") if image.mode == "1" else image)[:, :, None]
    if image.mode != "RGB":
        raise BadImageError(f"{name}: a picture of mode {image.mode}; expected grey or RGB, or bands as TIFF or .npy")
    return one_grey(np.asarray(image), channels)


def one_grey(values: Values, channels: int) -> Values:
    """Return an image (H, W, C); of a network of one channel, the first of three equal ones."""
    return values[:, :, :1] if channels == 1 and (values == values[:, :, :1]).all() else values


def looked_at(values: Tensor, show: tuple[int, ...]) -> Tensor:
    """Return (..., 3, H, W) of (..., C, H, W) to be looked at: the channels of `show`, from 1; else the first three, or
    the first as grey."""
    channels = values.shape[-3]
    usual = (1, 2, 3) if channels > 3 else (1, 1, 1)
    places = torch.tensor(show or usual, device=values.device) - 1
    return values if channels == 3 and not show else values.index_select(values.ndim - 3, places)
