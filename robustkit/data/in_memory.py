"""Labelled images of the calling program as a data set: a pair of tensors, a Dataset or a DataLoader of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from ..errors import BadImageError, DataError
from .dataset import Dataset
from .images import encode_png
from .layouts import Sample
from .sources import DataSource

Single = Callable[[int], tuple[Any, Any]]  # a position to its image and label
_EXPECTED = "expected (images, labels), a Dataset or a DataLoader of torch, whose items are (image, label)"
_IMAGE, _LABEL = ("image", "images", "img", "pixel_values"), ("label", "labels", "fine_label", "target")


@dataclass(frozen=True)
class MemorySource(DataSource):
    """Images by their position. single: returns image and label of a position. size: (height, width) of tensors, which
    are what the model takes; None of pictures, which are resized and cropped.
    """

    single: Single = field(repr=False)
    size: tuple[int, int] | None = None

    def read(self, sample_id: str) -> bytes:
        try:
            return encode_png(pixels_of(self.single(int(sample_id))[0], f"image {sample_id}"))
        except (DataError, BadImageError):
            raise
        except Exception as fault:  # the user's own code
            raise BadImageError(f"image {sample_id}: the data set raises {type(fault).__name__}: {fault}") from fault


def open_held(data: Any) -> Dataset:
    """Return a data set of images in memory; ids are positions, five digits or more.

    data: (images, labels): tensors or arrays (B, 3, H, W), or images of any kind below in a list; a Dataset or a
        DataLoader whose items are (image, label), or a dict with `image` and `label`. An image is a tensor (3, H, W)
        floating in [0, 1] or uint8, an array (H, W, 3) uint8, or of Pillow. Floating values are rounded to 8 bits.

    Raises DataError where it is none of these, where an image is not in [0, 1], as a normalised one, and where a data
    set returns another image each time that it is asked.
    """
    if isinstance(data, Dataset):  # opened by `open_dataset`
        return data
    single, labels, notes = _opened(data)
    if not labels:
        raise DataError("the data set has no images; expected one or more")
    first, _ = single(0)
    if not np.array_equal(pixels_of(first, "image 0"), pixels_of(single(0)[0], "image 0")):
        raise DataError("the data set returns another image 0 each time; leave out random augmentation")
    size = (int(first.shape[-2]), int(first.shape[-1])) if isinstance(first, Tensor) else None
    if size and _is_rounded(first):
        notes += ("images are rounded to 8 bits, as all pixels are here",)
    digits = max(5, len(str(len(labels) - 1)))
    samples = tuple(Sample(f"{place:0{digits}d}", label) for place, label in enumerate(labels))
    names = tuple(map(str, range(max(labels) + 1)))
    said = f"{len(samples)} images in memory, which no file holds"
    return Dataset("memory", "memory", "memory", names, samples, None, (said, *notes), MemorySource(single, size))


def pixels_of(image: Any, name: str) -> NDArray[np.uint8]:
    """Return an image as (H, W, 3) uint8. Raises DataError for another shape, and for values outside [0, 1]."""
    if isinstance(image, Image.Image):
        return np.asarray(image.convert("RGB"))
    array = image.detach().cpu().numpy() if isinstance(image, Tensor) else np.asarray(image)
    if array.ndim != 3 or 3 not in (array.shape[0], array.shape[-1]):
        raise DataError(f"{name} has shape {array.shape}; expected (3, H, W), (H, W, 3) or a Pillow image, in colour")
    array = array.transpose(1, 2, 0) if array.shape[-1] != 3 or isinstance(image, Tensor) else array
    if array.dtype == np.uint8:
        return np.ascontiguousarray(array)
    low, high = float(array.min()), float(array.max())
    if not (array.dtype.kind == "f" and 0 <= low <= high <= 1):
        instead = "leave out Normalize, and give mean= and std= of the model; uint8 images go from 0 to 255"
        raise DataError(f"{name} is {array.dtype} from {low:.4g} to {high:.4g}; expected floats in [0, 1]: {instead}")
    levels: NDArray[np.uint8] = np.rint(array * 255).astype(np.uint8)
    return levels


def _is_rounded(image: Tensor) -> bool:
    levels = image.detach().double() * 255
    return image.is_floating_point() and bool((levels - levels.round()).abs().max() > 1e-3)


def _opened(data: Any) -> tuple[Single, list[int], tuple[str, ...]]:
    """Return what gives image and label of a position, all labels, and notes."""
    if isinstance(data, tuple) and len(data) == 2 and all(hasattr(part, "__len__") for part in data):
        images, labels = data
        if len(images) != len(labels):
            raise DataError(f"{len(images)} images and {len(labels)} labels; expected as many")
        return (lambda place: (images[place], labels[place])), [int(label) for label in labels], ()
    if isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset):
        collate, dataset = data.collate_fn, data.dataset
        single = partial(_alone, lambda place: collate([dataset[place]]))
        return single, _labels(dataset, single), ("in the order of the Dataset, not of the DataLoader",)
    if isinstance(data, DataLoader):
        return _listed([pair for batch in data for pair in zip(*_parts(batch), strict=True)])
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):

        def single_of(place: int) -> tuple[Any, Any]:
            return _parts(data[place])

        return single_of, _labels(data, single_of), ()
    if isinstance(data, Iterable):
        return _listed([_parts(each) for each in data])
    raise DataError(f"data is {type(data).__name__}; {_EXPECTED}")


def _alone(batch_of: Callable[[int], Any], place: int) -> tuple[Any, Any]:
    images, labels = _parts(batch_of(place))
    return images[0], labels[0]


def _listed(pairs: list[tuple[Any, Any]]) -> tuple[Single, list[int], tuple[str, ...]]:
    return pairs.__getitem__, [int(label) for _, label in pairs], ()


def _labels(dataset: Any, single: Single) -> list[int]:
    targets = getattr(dataset, "targets", None)  # as torchvision's data sets have them: no image is read
    if targets is not None and len(targets) == len(dataset):
        return [int(label) for label in targets]
    return [int(single(place)[1]) for place in range(len(dataset))]


def _parts(item: Any) -> tuple[Any, Any]:
    """Return image and label of an item, or images and labels of a batch."""
    if isinstance(item, Mapping):
        names = [next((name for name in known if name in item), None) for known in (_IMAGE, _LABEL)]
        if None not in names:
            return item[names[0]], item[names[1]]
    elif isinstance(item, Sequence) and len(item) >= 2:
        return item[0], item[1]
    raise DataError(f"an item of the data set is {type(item).__name__}; {_EXPECTED}")
