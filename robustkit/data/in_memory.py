"""Labelled images of the calling program as a data set: a pair of tensors, a Dataset or a DataLoader of torch.

What is yielded is the data: the samples that a loader's sampler draws, in the batches that its collate function makes;
labels as indexing gives them, not as an attribute says.
"""

from __future__ import annotations

import hashlib
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, IterableDataset, Subset, default_collate

from ..errors import BadImageError, DataError
from .dataset import Dataset
from .images import encode_png, to_rgb
from .layouts import Sample
from .scenes import LabelledScenes
from .sources import DataSource

Single = Callable[[int], tuple[Any, Any]]  # a position to its image and label
_EXPECTED = "expected (images, labels), a Dataset or a DataLoader of torch, whose items are (image, label)"
_IMAGE, _LABEL = ("image", "images", "img", "pixel_values"), ("label", "labels", "fine_label", "target")
_HELD_BATCHES = 4  # of a loader with a collate function of its own
_CHANGES = tuple(
    f"the data set returns another {what} the second time; remove random augmentation" for what in ("image", "label")
)


@dataclass(frozen=True)
class _Items:
    """What was opened. names: ids that the data set has for its samples. classes: names that go with its labels.
    claimed: names that may not."""

    single: Single
    count: int
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()
    claimed: tuple[str, ...] = ()


@dataclass(frozen=True)
class MemorySource(DataSource):
    """Images in memory. single: returns image and label of a position. ids: by position. size: (height, width) of
    tensors, which are what the model takes; None of pictures, which are resized and cropped. classes: names that go
    with the labels; claimed: names that may not. digests: of the pixels and the label of each position, as
    they were first.
    """

    single: Single = field(repr=False)
    ids: tuple[str, ...] = field(default=(), repr=False)
    size: tuple[int, int] | None = None
    classes: tuple[str, ...] = ()
    claimed: tuple[str, ...] = ()
    digests: dict[int, tuple[bytes, bytes]] = field(default_factory=dict, repr=False)

    @cached_property
    def places(self) -> dict[str, int]:
        return {sample_id: place for place, sample_id in enumerate(self.ids)}

    def read(self, sample_id: str) -> bytes:
        """Return an image as a PNG. Raises DataError where it is another one than at the first reading."""
        pixels, _, digest = self.first(self.places[sample_id])
        if digest:
            raise DataError(f"image {sample_id}: {digest}")
        return encode_png(pixels)

    def first(self, place: int) -> tuple[NDArray[np.uint8], tuple[Any, Any], str]:
        """Return the pixels of a position, (H, W, 3), what it is, and what changed since the first reading, if anything
        did. Raises DataError or BadImageError."""
        try:
            image, label = self.single(place)
        except (DataError, BadImageError):
            raise
        except Exception as fault:  # the user's own code
            raise BadImageError(f"image {place}: the data set raises {type(fault).__name__}: {fault}") from fault
        pixels = pixels_of(image, f"image {place}")
        now = digest_of(pixels), digest_of(_values(label))
        before = self.digests.setdefault(place, now)
        return (
            pixels,
            (image, label),
            next((text for text, a, b in zip(_CHANGES, before, now, strict=True) if a != b), ""),
        )


def digest_of(values: NDArray[Any]) -> bytes:
    return hashlib.blake2b(
        np.ascontiguousarray(values).tobytes() + repr(values.shape).encode(), digest_size=16
    ).digest()


def _values(label: Any) -> NDArray[Any]:
    """Return the numbers of a label, or of a mask."""
    return np.asarray(label.detach().cpu() if isinstance(label, Tensor) else label)


def open_held(data: Any) -> Dataset:
    """Return a data set of images in memory.

    data: (images, labels): tensors or arrays (B, 3, H, W), or images of any kind below in a list; a Dataset or a
        DataLoader whose items are (image, label), or a dict with `image` and `label`. An image is a tensor (3, H, W)
        floating in [0, 1] or uint8, an array (H, W, 3) uint8, or of Pillow. Floating values are rounded to 8 bits.

    Ids are positions in the data set, five digits or more; of a folder of torchvision, the paths in it. Of a DataLoader
    the samples count that its sampler yields, those twice that come twice. Every sample is read once here.

    Raises DataError where it is none of these, where an image is not in [0, 1], as a normalised one, where a sampler
    draws other samples each time, and where a data set returns another image the second time.
    """
    if isinstance(data, Dataset):  # opened by `open_dataset`
        return data
    images = _dataset(items := _opened(data))
    source, labels = cast("MemorySource", images.source), dict[str, int]()
    for place, sample_id in enumerate(source.ids):
        labels[sample_id] = _label_of(source, place)
    if isinstance(items.single, _Collated):
        items.single.forget()
    for sample_id, label in labels.items():
        if label < 0:
            raise DataError(f"image {sample_id}: label {label}; expected the index of a class, from 0 on")
    samples = tuple(replace(sample, label=labels[sample.id]) for sample in images.samples)
    names = items.classes or tuple(map(str, range(max(labels.values()) + 1)))
    return replace(images, samples=samples, class_names=names)


def _label_of(source: MemorySource, place: int) -> int:
    """Return the label of a position, also of one whose picture is cut off: that is a row without a prediction."""
    try:
        _, (_, label), changed = source.first(place)
    except BadImageError as fault:
        if "the data set raises" in str(fault):
            raise DataError(str(fault)) from None
        label, changed = source.single(place)[1], ""
    if changed:
        raise DataError(f"image {place}: {changed}")
    return _whole(label, place)


def open_held_scenes(data: Any) -> LabelledScenes:
    """Return images with a label for each pixel, otherwise as `open_held`. Masks are those of `mask_of`."""
    images = _dataset(_opened(data))
    source = cast("MemorySource", images.source)

    def held(sample: Sample) -> NDArray[np.int32]:
        _, (_, mask), changed = source.first(source.places[sample.id])
        if changed:
            raise DataError(f"image {sample.id}: {changed}")
        return mask_of(mask, f"the mask of image {sample.id}")

    return LabelledScenes(images, (), "memory", images.notes, held=held)


def _whole(label: Any, place: int) -> int:
    """Return a label as an integer. Raises DataError for anything else, such as a fraction or a one-hot row."""
    value = label.item() if hasattr(label, "item") and getattr(label, "size", None) in (1, ()) else label
    if isinstance(label, Tensor):
        value = label.item() if label.numel() == 1 else label.tolist()
    if isinstance(value, bool | int) or (isinstance(value, float) and value.is_integer()):
        return int(value)
    raise DataError(f"image {place}: a label is {str(value)[:60]!r}; expected an integer, the index of its class")


def mask_of(mask: Any, name: str) -> NDArray[np.int32]:
    """Return labels of pixels, (H, W): of a tensor, an array or a picture of indices, (H, W) or with one channel; of
    one-hot channels; or of labels over 255, as torchvision's ToTensor makes them. DataError for anything that is not
    exactly one of these, such as a mask that was resized smoothly."""
    if isinstance(mask, Image.Image):
        if mask.mode not in ("1", "L", "P", "I", "I;16"):
            raise DataError(f"{name} is a picture of mode {mask.mode}; expected one number per pixel (L or P)")
        values = np.asarray(mask)
    else:
        values = np.asarray(mask.detach().cpu() if isinstance(mask, Tensor) else mask)
    if values.ndim == 3 and 1 in (values.shape[0], values.shape[-1]):
        values = values[0] if values.shape[0] == 1 else values[..., 0]
    if values.dtype.kind not in "buif":
        raise DataError(f"{name} is of {values.dtype}; expected whole numbers, the classes of pixels")
    if values.ndim == 3:
        values = _of_one_hot(values, name)
    if values.ndim != 2:
        raise DataError(f"{name} has shape {values.shape}; expected (H, W), the class of each pixel")
    if values.dtype.kind == "f" and not (values == np.rint(values)).all():
        levels = values * 255.0
        whole = np.rint(levels)
        if not (np.isfinite(levels).all() and levels.min() >= 0 and levels.max() <= 255 and _near(levels, whole)):
            odd = values[values != np.rint(values)].flat[0]
            remedy = "resize masks by nearest neighbours, and give labels as integers"
            raise DataError(f"{name} contains {odd:.4g}, which is no class; {remedy}")
        values = whole
    if values.size and not -(1 << 31) <= values.min() <= values.max() < 1 << 31:
        raise DataError(f"{name} contains {values.min()} to {values.max()}; expected the classes of pixels")
    return values.astype(np.int32)


def _near(levels: NDArray[Any], whole: NDArray[Any]) -> bool:
    return bool((np.abs(levels - whole) < 1e-3).all())


def _of_one_hot(values: NDArray[Any], name: str) -> NDArray[Any]:
    axes = [axis for axis in (0, 2) if np.isin(values, (0, 1)).all() and (values.sum(axis=axis) == 1).all()]
    if len(axes) != 1:
        why = f"has shape {values.shape}, and is {'one-hot along both ends' if axes else 'not one-hot'}"
        raise DataError(f"{name} {why}; expected (H, W), the class of each pixel")
    return np.asarray(values.argmax(axis=axes[0]))


def _dataset(items: _Items) -> Dataset:
    """Return the images, without labels; their first one is read twice."""
    count, notes = items.count, items.notes
    if not count:
        raise DataError("the data set has no images; expected one or more")
    digits = max(5, len(str(count - 1)))
    ids = items.names or tuple(f"{place:0{digits}d}" for place in range(count))
    source = MemorySource(items.single, ids, None, items.classes, items.claimed)
    pixels, (first, _), _ = source.first(0)
    if changed := source.first(0)[2]:
        raise DataError(f"image 0: {changed}")
    source = replace(source, size=None if isinstance(first, Image.Image) else (pixels.shape[0], pixels.shape[1]))
    if isinstance(first, Tensor) and _is_rounded(first):
        notes += ("images are rounded to 8 bits",)
    here = f"{count} images in memory, not in a file"
    samples = tuple(Sample(sample_id, -1) for sample_id in sorted(ids))
    return Dataset("memory", "memory", "memory", (), samples, None, (here, *notes), source)


def pixels_of(image: Any, name: str) -> NDArray[np.uint8]:
    """Return an image as (H, W, 3) uint8; a picture as one from a file: upright, and scaled where it has other than 8
    bits. Raises DataError for another shape, and for values outside [0, 1]."""
    if isinstance(image, Image.Image):
        return np.asarray(to_rgb(image, name))
    if isinstance(image, Tensor):
        if image.is_meta or image.layout is not torch.strided:
            raise DataError(f"{name} is a tensor without values here ({image.device}, {image.layout}); expected pixels")
        array = (image.float() if image.is_floating_point() else image).detach().cpu().numpy()
    else:
        array = np.asarray(image)
    if array.ndim != 3 or 3 not in (array.shape[0], array.shape[-1]):
        raise DataError(f"{name} has shape {array.shape}; expected (3, H, W), (H, W, 3) or a Pillow image, in colour")
    if isinstance(image, Tensor) and array.shape[0] != 3:
        raise DataError(f"{name} is a tensor {tuple(array.shape)}; expected (3, H, W): permute its channels")
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


# What was given


def _opened(data: Any) -> _Items:
    if isinstance(data, tuple) and len(data) == 2 and all(hasattr(part, "__len__") for part in data):
        images, labels = data
        if len(images) != len(labels):
            raise DataError(f"{len(images)} images and {len(labels)} labels; expected equal numbers")
        return _Items(lambda place: (images[place], labels[place]), len(images))
    if isinstance(data, str | bytes):
        raise DataError(f"data is the text {data[:40]!r}; {_EXPECTED}")
    if isinstance(data, DataLoader) and not isinstance(data.dataset, IterableDataset):
        return _of_loader(data)
    if isinstance(data, DataLoader) and data.batch_size is None and data.batch_sampler is None:
        return _gathered(map(_parts, data))
    if isinstance(data, DataLoader):
        return _gathered(pair for batch in data for pair in _rows(batch))
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Mapping):
        return _of_dataset(data)
    if isinstance(data, Iterable) and not isinstance(data, Mapping):
        return _gathered(map(_parts, data))
    raise DataError(f"data is {type(data).__name__}; {_EXPECTED}")


def _gathered(pairs: Iterable[tuple[Any, Any]]) -> _Items:
    held = list(pairs)
    return _Items(held.__getitem__, len(held))


def _of_dataset(data: Any) -> _Items:
    paths, classes = _paths(data)
    claimed = getattr(data, "classes", ())
    claimed = claimed if isinstance(claimed, list | tuple) and all(isinstance(name, str) for name in claimed) else ()
    return _Items(lambda place: _parts(data[place]), len(data), (), paths, classes, tuple(claimed))


def _paths(data: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the paths of the samples of a folder of torchvision, or of a part of one, and the names of its classes;
    nothing for a data set that may index otherwise."""
    if isinstance(data, Subset):
        paths, classes = _paths(data.dataset)
        places = [int(place) for place in data.indices]
        return tuple(paths[place] for place in places) if paths and len({*places}) == len(places) else (), classes
    folders = [each for each in type(data).__mro__ if each.__module__ == "torchvision.datasets.folder"]
    own = getattr(type(data), "__getitem__", None)
    if not any(vars(each).get("__getitem__") is own for each in folders):
        return (), ()
    root = Path(data.root).resolve()
    files = [Path(path).resolve() for path, _ in data.samples]
    plain = data.target_transform is None and getattr(data.transforms, "target_transform", None) is None
    inside = all(file.is_relative_to(root) for file in files)
    names = tuple(file.relative_to(root).as_posix() for file in files) if inside else ()
    return names, tuple(data.classes) if plain else ()


def _of_loader(loader: DataLoader[Any]) -> _Items:
    """Return the samples that a loader yields, by their positions in its data set, so that their ids are the same in
    whatever order it draws them."""
    inner = _of_dataset(loader.dataset)
    batches, again = _drawn(loader), _drawn(loader)
    places, second = ([place for batch in every for place in batch] for every in (batches, again))
    sampler = type(loader.batch_sampler if _is_own(loader) else loader.sampler).__name__
    if sorted(places) != sorted(second):
        remedy = "give a Subset of the samples, or a sampler that draws the same ones"
        rest = ", of which drop_last leaves others out" if getattr(loader, "drop_last", False) else ""
        raise DataError(f"{sampler} draws other samples each time{rest}; {remedy}")
    size, notes = len(cast("Any", loader.dataset)), tuple[str, ...]()
    if len(places) < size:
        notes += (f"the loader yields {len(places)} of {size} samples",)
    times = Counter(places)
    if twice := sum(1 for count in times.values() if count > 1):
        notes += (f"{sampler} yields {twice} of {len(times)} samples more than once; each time counts",)
    digits, seen = max(5, len(str(size - 1))), Counter[int]()
    names = list[str]()
    for place in places:
        seen[place] += 1
        name = inner.names[place] if inner.names else f"{place:0{digits}d}"
        names.append(name if seen[place] == 1 else f"{name}#{seen[place]}")
    if loader.collate_fn is default_collate or loader.batch_sampler is None:
        single: Single = lambda position: inner.single(places[position])  # noqa: E731
        if loader.batch_sampler is None:
            single = _Collated(loader, [[place] for place in places], alone=True)
    else:
        single = _Collated(loader, batches)
    return replace(inner, single=single, count=len(places), notes=notes, names=tuple(names))


def _is_own(loader: DataLoader[Any]) -> bool:
    """Whether batches come from a sampler of the user's own, or samples do."""
    return loader.batch_sampler is not None and type(loader.batch_sampler).__module__ != "torch.utils.data.sampler"


def _drawn(loader: DataLoader[Any]) -> list[list[int]]:
    if loader.batch_sampler is None:
        return [[int(place) for place in loader.sampler]]
    return [[int(place) for place in batch] for batch in loader.batch_sampler]


class _Collated:
    """The samples of batches that a loader's own collate function makes. Those used last are kept. alone: batches are
    of one sample, which the function takes without a list."""

    def __init__(self, loader: DataLoader[Any], batches: Sequence[Sequence[int]], alone: bool = False) -> None:
        self._dataset, self._collate = cast("Any", loader.dataset), loader.collate_fn
        self._batches, self._alone, self._lock = batches, alone, threading.Lock()
        self._at = [(number, row) for number, batch in enumerate(batches) for row in range(len(batch))]
        self._kept: OrderedDict[int, list[tuple[Any, Any]]] = OrderedDict()

    def __call__(self, position: int) -> tuple[Any, Any]:
        number, row = self._at[position]
        with self._lock:
            if number not in self._kept:
                self._kept[number] = self._made(self._batches[number])
                if len(self._kept) > _HELD_BATCHES:
                    self._kept.popitem(last=False)
            return self._kept[number][row]

    def forget(self) -> None:
        """Make the batches again that are asked for from now on."""
        with self._lock:
            self._kept.clear()

    def _made(self, batch: Sequence[int]) -> list[tuple[Any, Any]]:
        if self._alone:
            return [_parts(self._collate(self._dataset[batch[0]]))]
        rows = list(_rows(self._collate([self._dataset[place] for place in batch])))
        if len(rows) != len(batch):
            raise DataError(f"collate_fn makes {len(rows)} samples of {len(batch)}; expected as many")
        return rows


def _rows(batch: Any) -> Iterator[tuple[Any, Any]]:
    images, labels = _parts(batch)
    if len(images) != len(labels):
        raise DataError(f"a batch has {len(images)} images and {len(labels)} labels; expected equal numbers")
    return zip(images, labels, strict=True)


def _parts(item: Any) -> tuple[Any, Any]:
    """Return image and label of an item, or images and labels of a batch."""
    if isinstance(item, Mapping):
        names = [next((name for name in known if name in item), None) for known in (_IMAGE, _LABEL)]
        if None not in names:
            return item[names[0]], item[names[1]]
    elif isinstance(item, Sequence) and len(item) >= 2 and not isinstance(item, str):
        return item[0], item[1]
    raise DataError(f"an item of the data set is {type(item).__name__}; {_EXPECTED}")
