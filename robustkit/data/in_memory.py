"""Labelled images of the calling program as a data set: a pair of tensors, a Dataset or a DataLoader of torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset

from ..errors import BadImageError, DataError
from .dataset import Dataset
from .images import encode_png
from .layouts import Sample
from .scenes import LabelledScenes
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
    single, count, notes = _opened(data)
    whole = data.dataset if isinstance(data, DataLoader) else data  # a Subset's own `dataset` has another order
    # As torchvision has them, so that no image is read; not where a transform makes other labels of them.
    targets = () if _changes_labels(whole) else getattr(whole, "targets", ())
    labels = [_whole(label) for label in (targets if len(targets) == count else (single(i)[1] for i in range(count)))]
    images = _dataset(single, count, labels, notes)
    return replace(images, class_names=tuple(map(str, range(max(labels) + 1))))


def _changes_labels(data: Any) -> bool:
    both = getattr(data, "transforms", None)  # torchvision's of images and labels; one of its users may do anything
    others = None if both is None else getattr(both, "target_transform", both)
    return others is not None or getattr(data, "target_transform", None) is not None


def open_held_scenes(data: Any) -> LabelledScenes:
    """Return images with a label for each pixel, otherwise as `open_held`: masks are integers (H, W)."""
    single, count, notes = _opened(data)
    images = _dataset(single, count, [-1] * count, notes)
    return LabelledScenes(images, (), "memory", images.notes, held=partial(_mask_of, single))


def _whole(label: Any) -> int:
    """Return a label as an integer. Raises DataError for anything else, such as a fraction or a one-hot row."""
    value = label.item() if hasattr(label, "item") and getattr(label, "size", None) in (1, ()) else label
    if isinstance(label, Tensor):
        value = label.item() if label.numel() == 1 else label.tolist()
    if isinstance(value, bool | int) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    raise DataError(f"a label is {str(value)[:60]!r}; expected an integer, the index of its class")


def _mask_of(single: Single, sample: Sample) -> NDArray[np.int32]:
    mask = single(int(sample.id))[1]
    return np.asarray(mask.cpu() if isinstance(mask, Tensor) else mask).astype(np.int32)


def _dataset(single: Single, count: int, labels: Sequence[int], notes: tuple[str, ...]) -> Dataset:
    if not count:
        raise DataError("the data set has no images; expected one or more")
    first, _ = single(0)
    if not np.array_equal(pixels_of(first, "image 0"), pixels_of(single(0)[0], "image 0")):
        raise DataError("the data set returns a different image 0 each time; remove random augmentation")
    height, width, _ = pixels_of(first, "image 0").shape
    size = None if isinstance(first, Image.Image) else (height, width)
    if isinstance(first, Tensor) and _is_rounded(first):
        notes += ("images are rounded to 8 bits",)
    digits = max(5, len(str(count - 1)))
    samples = tuple(Sample(f"{place:0{digits}d}", label) for place, label in enumerate(labels))
    said = f"{count} images in memory, not in a file"
    return Dataset("memory", "memory", "memory", (), samples, None, (said, *notes), MemorySource(single, size))


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


def _opened(data: Any) -> tuple[Single, int, tuple[str, ...]]:
    """Return what gives image and label of a position, how many there are, and notes."""
    if isinstance(data, tuple) and len(data) == 2 and all(hasattr(part, "__len__") for part in data):
        images, labels = data
        if len(images) != len(labels):
            raise DataError(f"{len(images)} images and {len(labels)} labels; expected equal numbers")
        return (lambda place: (images[place], labels[place])), len(images), ()
    if isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset):
        collate, dataset = data.collate_fn, cast("Any", data.dataset)
        note = "samples are in the order of the Dataset, not of the DataLoader"
        return partial(_alone, lambda place: collate([dataset[place]])), len(dataset), (note,)
    if isinstance(data, DataLoader):
        pairs = [pair for batch in data for pair in zip(*_parts(batch), strict=True)]
        return pairs.__getitem__, len(pairs), ()
    if hasattr(data, "__getitem__") and hasattr(data, "__len__"):
        return (lambda place: _parts(data[place])), len(data), ()
    if isinstance(data, Iterable):
        pairs = [_parts(each) for each in data]
        return pairs.__getitem__, len(pairs), ()
    raise DataError(f"data is {type(data).__name__}; {_EXPECTED}")


def _alone(batch_of: Callable[[int], Any], place: int) -> tuple[Any, Any]:
    images, labels = _parts(batch_of(place))
    return images[0], labels[0]


def _parts(item: Any) -> tuple[Any, Any]:
    """Return image and label of an item, or images and labels of a batch."""
    if isinstance(item, Mapping):
        names = [next((name for name in known if name in item), None) for known in (_IMAGE, _LABEL)]
        if None not in names:
            return item[names[0]], item[names[1]]
    elif isinstance(item, Sequence) and len(item) >= 2:
        return item[0], item[1]
    raise DataError(f"an item of the data set is {type(item).__name__}; {_EXPECTED}")
