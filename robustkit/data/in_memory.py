"""Labelled images of the calling program as a data set: a pair of tensors, a Dataset or a DataLoader of torch.

What is yielded is the data: the samples that a loader's sampler draws, in the batches that its collate function makes;
labels as indexing gives them, not as an attribute says.
"""

from __future__ import annotations

import hashlib
import io
import operator
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor
from torch.utils.data import (
    DataLoader,
    IterableDataset,
    RandomSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
    default_collate,
)

from ..common.preprocessing import MOST_CHANNELS
from ..errors import BadImageError, DataError
from .dataset import Dataset
from .images import encode_png, to_rgb, turn_of
from .layouts import Sample
from .scenes import LabelledScenes
from .sources import DataSource

Single = Callable[[int], tuple[Any, Any]]  # a position to its image and label
Truth = Callable[[Any, Any, str], NDArray[Any]]  # image, label and the image's name to numbers that stand for the label
_EXPECTED = "expected (images, labels), a Dataset or a DataLoader of torch, whose items are (image, label)"
_IMAGE, _LABEL = ("image", "images", "img", "pixel_values"), ("label", "labels", "fine_label", "target")
_HELD_BATCHES = 4  # of a loader with a collate function of its own
_MOST_TIMES = 100  # that a sampler yields each sample, on average
_MOST_CLASSES = 1 << 20
_NEAR = 1e-3  # how near to a whole number a level of 8 bits is, in float32
_SEVERAL = (-1, -1)  # sizes


@dataclass(frozen=True)
class _Items:
    """What was opened. names: ids that the data set has for its samples. classes: names that go with `labels`, those
    of the files. claimed: names that may go with what is yielded."""

    single: Single
    count: int
    notes: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    labels: tuple[int, ...] = ()
    classes: tuple[str, ...] = ()
    claimed: tuple[str, ...] = ()


@dataclass(frozen=True)
class MemorySource(DataSource):
    """Images in memory. single: returns image and label of a position. ids: by position. size: (height, width) of
    tensors, which are what the model takes; None of pictures, which are resized and cropped. classes: names that go
    with the labels; claimed: names that may not. truth: what stands for a label. digests: of the pixels and the label
    of each position, as they were first.
    """

    single: Single = field(repr=False)
    truth: Truth = field(repr=False)
    ids: tuple[str, ...] = field(default=(), repr=False)
    size: tuple[int, int] | None = None
    classes: tuple[str, ...] = ()
    claimed: tuple[str, ...] = ()
    digests: dict[int, tuple[bytes, bytes]] = field(default_factory=dict, repr=False)

    @cached_property
    def places(self) -> dict[str, int]:
        return {sample_id: place for place, sample_id in enumerate(self.ids)}

    def read(self, sample_id: str) -> bytes:
        """Return an image as a PNG, of other channels than RGB as .npy. Raises DataError where it is another one than
        at the first reading."""
        pixels = self.sample(self.places[sample_id])[0]
        if isinstance(pixels, BadImageError):
            raise pixels
        if pixels.shape[2] == 3:
            return encode_png(pixels)
        stream = io.BytesIO()
        np.save(stream, pixels, allow_pickle=False)
        return stream.getvalue()

    def array(self, sample_id: str) -> NDArray[Any]:
        pixels = self.sample(self.places[sample_id])[0]
        if isinstance(pixels, BadImageError):
            raise pixels
        return pixels

    def sample(self, place: int) -> tuple[NDArray[Any] | BadImageError, NDArray[Any], Any]:
        """Return the pixels of a position, (H, W, C), or why there are none; what stands for its label; and what was
        its image. Raises DataError, also where one of them is another than at the first reading."""
        name = f"image {self.ids[place]}"
        with _faults_of(f"{name}: the data set"):
            image, label = self.single(place)
        pixels: NDArray[Any] | BadImageError
        try:
            pixels = image_pixels(image, name)
        except BadImageError as fault:  # a picture that is cut off is a row without a prediction
            pixels = fault
        truth = self.truth(image, label, name)
        digests = (_digest(None if isinstance(pixels, BadImageError) else pixels), _digest(truth))
        before = self.digests.setdefault(place, digests)
        if digests != before:
            what = "image" if digests[0] != before[0] else "label"
            raise DataError(f"{name}: the data set returns another {what} the second time; remove random augmentation")
        return pixels, truth, image


def _digest(values: NDArray[Any] | None) -> bytes:
    if values is None:
        return b""
    return hashlib.blake2b(values.tobytes() + repr((values.shape, values.dtype.str)).encode(), digest_size=16).digest()


@contextmanager
def _faults_of(who: str) -> Iterator[None]:
    """Raise DataError for whatever the user's own code raises inside."""
    try:
        yield
    except (DataError, BadImageError):
        raise
    except Exception as fault:
        raise DataError(f"{who} raises {type(fault).__name__}: {str(fault)[:200]}") from fault


def open_held(data: Any) -> Dataset:
    """Return a data set of images in memory.

    data: (images, labels): tensors or arrays (B, 3, H, W), or images of any kind below in a list; a Dataset or a
        DataLoader whose items are (image, label), or a dict with `image` and `label`. An image is a tensor (3, H, W)
        floating in [0, 1] or uint8, an array (H, W, 3) uint8, or of Pillow. Floating values are rounded to 8 bits.

    Ids are positions in the data set, five digits or more; of a folder of torchvision, the paths in it. Of a DataLoader
    the samples count that its sampler yields, those twice that come twice. A loader that draws another order each time
    is drawn once; its samples are in the order of the data set. What can only be iterated is read into memory, and a
    second time to compare. Every sample is read once here.

    Raises DataError where it is none of these, where an image is not in [0, 1], as a normalised one, where tensors have
    several sizes, where a sampler draws other samples each time, and where a data set returns another image or label
    the second time.
    """
    if isinstance(data, Dataset):  # opened by `open_dataset`
        return data
    labels = dict[str, int]()
    items = _opened(data)

    def look(name: str, label: NDArray[Any]) -> None:
        labels[name] = int(label)

    images = _read_once(items, lambda _, label, name: np.asarray(_whole(label, name)), look)
    source = cast("MemorySource", images.source)
    if source.size == _SEVERAL:
        usual = "expected tensors of one size, or Pillow images, which are resized and cropped"
        raise DataError(f"images are of several sizes or kinds; {usual}")
    if (highest := max(labels.values())) >= _MOST_CLASSES:
        raise DataError(f"labels go up to {highest}; expected indices of at most {_MOST_CLASSES} classes")
    if tuple(labels.values()) != items.labels:  # the names of folders are of other labels
        source = replace(source, classes=(), claimed=source.classes or source.claimed)
    samples = tuple(replace(sample, label=labels[sample.id]) for sample in images.samples)
    names = source.classes or tuple(map(str, range(highest + 1)))
    return replace(images, samples=samples, class_names=names, source=source)


def open_held_scenes(data: Any) -> LabelledScenes:
    """Return images with a label for each pixel, otherwise as `open_held`. Masks are those of `mask_of`; where one
    has fractions of 255, all that are floating are read so."""
    fractions = set[str]()  # names of masks

    def look(name: str, mask: NDArray[Any]) -> None:
        labels_of_pixels(mask, f"the mask of image {name}")
        if mask.dtype.kind == "f" and not (mask == np.rint(mask)).all():
            fractions.add(name)

    images = _read_once(_opened(data), _upright_mask, look)
    source = cast("MemorySource", images.source)

    def held(sample: Sample) -> NDArray[np.int32]:
        mask = source.sample(source.places[sample.id])[1]
        return labels_of_pixels(mask, f"the mask of image {sample.id}", bool(fractions))

    images = replace(images, source=replace(source, size=None if source.size == _SEVERAL else source.size))
    return LabelledScenes(images, (), "memory", images.notes, held=held)


def _read_once(items: _Items, truth: Truth, look: Callable[[str, NDArray[Any]], None]) -> Dataset:
    """Return the images of a data set, after each was read. look: is given the name of each, and what stands for its
    label."""
    if not items.count:
        raise DataError("the data set has no images; expected one or more")
    names = items.names or tuple(_id_of(place, items.count) for place in range(items.count))
    source = MemorySource(items.single, truth, names, None, items.classes, items.claimed)
    sizes, rounded, turned = set[tuple[int, int] | None](), 0, 0
    for place, name in enumerate(names):
        pixels, label, image = source.sample(place)
        look(name, label)
        if isinstance(image, Image.Image):
            sizes.add(None)
            turned += turn_of(image) is not None
        elif not isinstance(pixels, BadImageError):
            sizes.add((pixels.shape[0], pixels.shape[1]))
            rounded += _is_rounded(image)
    if isinstance(items.single, _Collated):
        items.single.forget()  # or a change would not be noticed in the last batches
    notes = [f"{items.count} images in memory, not in a file", *items.notes]
    notes += ["images are rounded to 8 bits"] * bool(rounded)
    notes += [f"{turned} of {items.count} images are turned upright, as their EXIF data say"] * bool(turned)
    size = (*sizes, None)[0] if len(sizes) < 2 else _SEVERAL
    samples = tuple(Sample(name, -1) for name in sorted(names))
    return Dataset("memory", "memory", "memory", (), samples, None, tuple(notes), replace(source, size=size))


def _id_of(place: int, count: int) -> str:
    return str(place).zfill(max(5, len(str(count - 1))))


def _whole(label: Any, name: str) -> int:
    """Return a label as an integer, from 0 on. Raises DataError for anything else, such as a fraction or a one-hot
    row."""
    value = label
    if isinstance(label, Tensor):
        value = "a tensor without values" if label.is_meta else label.item() if label.numel() == 1 else label.tolist()
    elif hasattr(label, "item") and getattr(label, "size", None) in (1, ()):
        value = label.item()
    if not (isinstance(value, bool | int) or (isinstance(value, float) and value.is_integer())):
        raise DataError(f"{name}: a label is {str(value)[:60]!r}; expected an integer, the index of its class")
    if value < 0:
        raise DataError(f"{name}: label {value}; expected the index of a class, from 0 on")
    return int(value)


def _upright_mask(image: Any, mask: Any, name: str) -> NDArray[Any]:
    """Return the numbers of a mask. A picture is turned as its image is. Raises DataError where an image is turned,
    and its mask does not say whether it is, too."""
    turn = turn_of(image) if isinstance(image, Image.Image) else None
    mask_turn = turn_of(mask) if isinstance(mask, Image.Image) else None
    if turn != mask_turn:
        why = "EXIF data rotate the image or its mask alone, so it is unclear whether they match as stored"
        raise DataError(f"{name}: {why}; turn both upright (PIL.ImageOps.exif_transpose)")
    if isinstance(mask, Image.Image):
        if mask.mode not in ("1", "L", "P", "I", "I;16"):
            where = f"the mask of {name} is a picture of mode {mask.mode}"
            raise DataError(f"{where}; expected one number per pixel (L or P)")
        with _faults_of(f"the mask of {name}"):
            return np.asarray(mask if mask_turn is None else mask.transpose(mask_turn))
    if isinstance(mask, Tensor) and (mask.is_meta or mask.layout is not torch.strided):
        raise DataError(f"the mask of {name} is a tensor without values here ({mask.device}, {mask.layout})")
    if isinstance(mask, Tensor):
        mask = (mask.float() if mask.dtype == torch.bfloat16 else mask).detach().cpu()
    return np.asarray(mask)


def labels_of_pixels(values: NDArray[Any], name: str, over_255: bool = False) -> NDArray[np.int32]:
    """Return labels of pixels, (H, W): of numbers (H, W) or with one channel; of one-hot channels; or of labels over
    255, as torchvision's ToTensor makes them. over_255: read floating numbers so, also if all are 0 or 1. DataError for
    anything that is not exactly one of these, such as a mask that was resized smoothly."""
    if values.ndim == 3 and 1 in (values.shape[0], values.shape[-1]):
        values = values[0] if values.shape[0] == 1 else values[..., 0]
    if values.dtype.kind not in "buif":
        raise DataError(f"{name} is of {values.dtype}; expected whole numbers, the classes of pixels")
    if values.ndim == 3:
        values = _of_one_hot(values, name)
    if values.ndim != 2:
        raise DataError(f"{name} has shape {values.shape}; expected (H, W), the class of each pixel")
    if values.dtype.kind == "f" and (over_255 or not (values == np.rint(values)).all()):
        levels = values.astype(np.float64) * 255.0
        whole = np.rint(levels)
        exact = (np.abs(levels - whole) < _NEAR) & (whole >= 0) & (whole <= 255)  # false for NaN
        if not exact.all():
            mixed = ", and other masks have fractions of 255" if over_255 else ""
            remedy = "resize masks by nearest neighbours, and give labels as integers"
            raise DataError(f"{name} contains {values[~exact][0]:.4g}, which is no class{mixed}; {remedy}")
        values = whole
    if values.size and not -(1 << 31) <= values.min() <= values.max() < 1 << 31:
        raise DataError(f"{name} contains {values.min()} to {values.max()}; expected the classes of pixels")
    return values.astype(np.int32)


def _of_one_hot(values: NDArray[Any], name: str) -> NDArray[Any]:
    axes = [axis for axis in (0, 2) if np.isin(values, (0, 1)).all() and (values.sum(axis=axis) == 1).all()]
    if len(axes) != 1:
        why = f"has shape {values.shape}, and is {'one-hot along both ends' if axes else 'not one-hot'}"
        raise DataError(f"{name} {why}; expected (H, W), the class of each pixel")
    return np.asarray(values.argmax(axis=axes[0]))


def image_pixels(image: Any, name: str) -> NDArray[Any]:
    """Return an image as (H, W, C): of three channels in uint8, of others as it is, uint8 or float32 in [0, 1]. A
    picture is as one from a file: upright, and scaled where it has other than 8 bits. Raises DataError for another
    shape, and for values outside [0, 1]."""
    if isinstance(image, Image.Image):
        try:
            return np.asarray(to_rgb(image, name))
        except BadImageError:
            raise
        except Exception as fault:  # Pillow decodes when it is asked for pixels
            raise BadImageError(f"{name}: the picture cannot be decoded ({fault}); save it again") from fault
    if isinstance(image, Tensor):
        if image.is_meta or image.layout is not torch.strided:
            raise DataError(f"{name} is a tensor without values here ({image.device}, {image.layout}); expected pixels")
        array = (image.float() if image.is_floating_point() else image).detach().cpu().numpy()
    else:
        array = np.asarray(image)
        array = array[..., None] if array.ndim == 2 else array
    first, last = (array.shape[0], array.shape[-1]) if array.ndim == 3 else (0, 0)
    some = range(1, MOST_CHANNELS + 1)
    if array.ndim != 3 or not (3 in (first, last) or first in some or (last in some and not isinstance(image, Tensor))):
        batch = " (a batch? give its images one by one, or the DataLoader itself)" if array.ndim == 4 else ""
        usual = "expected (C, H, W), (H, W, C) or a Pillow image, of 1 to 16 channels"
        raise DataError(f"{name} has shape {array.shape}{batch}; {usual}")
    if isinstance(image, Tensor) and last == 3 and first != 3:
        raise DataError(f"{name} is a tensor {tuple(array.shape)}; expected (3, H, W): permute its channels")
    channels_last = last == 3 or (first != 3 and last in some)
    array = array if channels_last and not isinstance(image, Tensor) else array.transpose(1, 2, 0)
    if array.dtype == np.uint8 and array.size:
        return np.ascontiguousarray(array)
    if not array.size or array.dtype.kind not in "buif":
        raise DataError(f"{name} is {array.dtype} of shape {array.shape}; expected floats in [0, 1] or uint8 pixels")
    low, high = float(array.min()), float(array.max())
    if not (array.dtype.kind == "f" and 0 <= low <= high <= 1):
        instead = "leave out Normalize, and give mean= and std= of the model; divide other integers than uint8"
        raise DataError(f"{name} is {array.dtype} from {low:.4g} to {high:.4g}; expected floats in [0, 1]: {instead}")
    if array.shape[2] != 3:
        return np.ascontiguousarray(array, dtype=np.float32)
    levels: NDArray[np.uint8] = np.rint(array * 255).astype(np.uint8)
    return levels


def _is_rounded(image: Any) -> bool:
    """Whether floating values are no levels of 8 bits."""
    values = image.detach().cpu().double().numpy() if isinstance(image, Tensor) else np.asarray(image)
    levels = values.astype(np.float64) * 255
    floating = image.is_floating_point() if isinstance(image, Tensor) else values.dtype.kind == "f"
    return floating and not bool((np.abs(levels - np.rint(levels)) < _NEAR).all())


# What was given


def _opened(data: Any) -> _Items:
    if isinstance(data, tuple) and len(data) == 2 and all(hasattr(part, "__len__") for part in data):
        images, labels = data
        if len(images) != len(labels):
            raise DataError(f"{len(images)} images and {len(labels)} labels; expected equal numbers")
        return _Items(lambda place: (images[place], labels[place]), len(images))
    if isinstance(data, str | bytes):
        raise DataError(f"data is the text {data[:40]!r}; {_EXPECTED}")
    if isinstance(data, DataLoader):
        custom = type(data).__iter__ is not DataLoader.__iter__  # yields what it likes
        if not (custom or isinstance(data.dataset, IterableDataset)):
            return _of_loader(data)
        alone = data.batch_sampler is None
        return _gathered(data, lambda item: iter((_parts(item),)) if alone else _rows(item))
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, Mapping):
        return _of_dataset(data)
    if isinstance(data, Iterable) and not isinstance(data, Mapping):
        return _gathered(data, lambda item: iter((_parts(item),)))
    raise DataError(f"data is {type(data).__name__}; {_EXPECTED}")


def _gathered(data: Iterable[Any], rows: Callable[[Any], Iterator[tuple[Any, Any]]]) -> _Items:
    """Return what a stream yields, which is read a second time to compare. rows: the samples of an item."""

    def pairs() -> Iterator[tuple[Any, Any]]:
        with _faults_of("the stream of data"):
            yield from (pair for item in data for pair in rows(item))

    held, notes = list(pairs()), tuple[str, ...]()
    second = [] if isinstance(data, Iterator) else [_stamp(*pair) for pair in pairs()]
    first = [_stamp(*pair) for pair in held] if second else []
    if Counter(first) != Counter(second):
        remedy = "remove random augmentation and sampling, or draw them from a fixed seed"
        raise DataError(f"the stream yields other samples the second time; {remedy}")
    if not second:
        notes = ("the data can be read only once, so that random augmentation would not be noticed",)
    elif first != second:
        notes = ("the data come in another order each time; ids are of the order that was read first",)
    return _Items(held.__getitem__, len(held), notes)


def _stamp(image: Any, label: Any) -> tuple[bytes, bytes]:
    parts = list[bytes]()
    for part in (image, label):
        if isinstance(part, Tensor) and not part.is_meta and part.layout is torch.strided:
            part = part.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
        whole = isinstance(part, Image.Image | np.ndarray | np.generic)
        parts.append(_digest(np.asarray(part)) if whole else repr(part).encode())
    return parts[0], parts[1]


def _of_dataset(data: Any) -> _Items:
    with _faults_of("the length of the data set"):
        count = len(data)
    names, labels, classes = _of_folder(data)
    inner = data
    while not hasattr(inner, "classes") and isinstance(inner, Subset):
        inner = inner.dataset
    claimed: Any = getattr(inner, "classes", ())
    claimed = claimed if isinstance(claimed, list | tuple) and all(isinstance(name, str) for name in claimed) else ()
    return _Items(lambda place: _parts(data[place]), count, (), names, labels, classes, tuple(claimed))


def _of_folder(data: Any) -> tuple[tuple[str, ...], tuple[int, ...], tuple[str, ...]]:
    """Return the paths of the samples of a folder of torchvision, or of a part of one, their labels, and the names of
    these, which are those of folders; nothing for a data set that may index otherwise."""
    getter = getattr(type(data), "__getitem__", None)
    if getter is Subset.__getitem__:
        paths, labels, classes = _of_folder(data.dataset)
        places = [int(place) for place in data.indices]
        chosen = tuple(paths[place] for place in places) if paths else ()
        chosen = chosen if len({*chosen}) == len(chosen) else ()
        return chosen, tuple(labels[place] for place in places) if labels else (), classes
    folders = [each for each in type(data).__mro__ if each.__module__ == "torchvision.datasets.folder"]
    if not any(vars(each).get("__getitem__") is getter for each in folders):
        return (), (), ()
    root = Path(data.root).resolve()
    files, labels = [Path(path).resolve() for path, _ in data.samples], tuple(label for _, label in data.samples)
    if not all(file.is_relative_to(root) for file in files):
        return (), (), ()
    paths = tuple(file.relative_to(root).as_posix() for file in files)
    pairs = {(label, path.partition("/")[0]) for label, path in zip(labels, paths, strict=True)}
    named, listed = dict(pairs), [name for name in data.classes if isinstance(name, str)]
    named = {**dict(enumerate(listed)), **named}  # a class may have no sample
    classes = tuple(named.get(label, "") for label in range(len(named)))
    if len(pairs) != len(dict(pairs)) or len({*classes}) != len(classes) or "" in classes:
        classes = ()  # several folders for a label, or several labels for a folder
    return paths if len({*paths}) == len(paths) else (), labels, classes


def _of_loader(loader: DataLoader[Any]) -> _Items:
    """Return the samples that a loader yields, by their positions in its data set, so that their ids are the same in
    whatever order it draws them."""
    inner = _of_dataset(loader.dataset)
    draws = [_drawn(loader, inner.count) for _ in range(3)]  # of few samples, two may be the same by chance
    places, *others = ([place for batch in batches for place in batch] for batches in draws)
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    who = type(loader.batch_sampler if _is_own(loader) else sampler).__name__
    times = Counter(places)
    if any(Counter(other) != times for other in others) or _draws_some(sampler, times):
        remedy = "give a Subset of the samples, or a sampler that draws the same ones"
        rest = ", of which drop_last leaves others out" if loader.drop_last else ""
        raise DataError(f"{who} draws other samples each time{rest}; {remedy}")
    batches, notes = draws[0], tuple[str, ...]()
    if len(places) < inner.count:
        notes += (f"the loader yields {len(places)} of {inner.count} samples",)
    if twice := sum(1 for count in times.values() if count > 1):
        notes += (f"{who} yields {twice} of {len(times)} samples more than once; each time counts",)
    if any(other != places for other in others):
        notes += (f"{who} draws another order each time; samples are in the order of the data set",)
        in_order = iter(sorted(places))
        batches = [[next(in_order) for _ in batch] for batch in batches]
        places = sorted(places)
    seen = Counter[int]()
    names = list[str]()
    for place in places:
        seen[place] += 1
        name = inner.names[place] if inner.names else _id_of(place, inner.count)
        names.append(name if seen[place] == 1 else f"{name}#{seen[place]}")
    single: Single = lambda position: inner.single(places[position])  # noqa: E731
    if loader.batch_sampler is None:
        single = _Collated(loader, [[place] for place in places], alone=True)
    elif loader.collate_fn is not default_collate or _fetches_batches(loader.dataset):
        single = _Collated(loader, batches)
    labels = tuple(inner.labels[place] for place in places) if inner.labels else ()
    return replace(inner, single=single, count=len(places), notes=notes, names=tuple(names), labels=labels)


def _is_own(loader: DataLoader[Any]) -> bool:
    """Whether batches come from a sampler of the user's own, or samples do."""
    return loader.batch_sampler is not None and type(loader.batch_sampler).__module__ != "torch.utils.data.sampler"


def _draws_some(sampler: Any, times: Counter[int]) -> bool:
    """Whether a sampler of torch draws a random part of what it has, or with replacement."""
    whole: Sequence[int]
    if isinstance(sampler, RandomSampler):
        whole = range(len(cast("Any", sampler.data_source)))
    elif isinstance(sampler, WeightedRandomSampler):
        whole = range(len(sampler.weights))
    elif isinstance(sampler, SubsetRandomSampler):
        whole = sampler.indices
    else:
        return False
    many = len({*whole}) > 1
    return many and (getattr(sampler, "replacement", False) or len({*times.values()}) > 1 or {*times} != {*whole})


def _drawn(loader: DataLoader[Any], size: int) -> list[list[int]]:
    """Return the positions that a loader draws, in batches. Raises DataError for one that the data set does not have,
    and for a sampler without an end."""
    who = "the sampler of the loader"
    drawn: Iterable[Any] = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    batches, count = list[list[int]](), 0
    with _faults_of(who):
        for batch in drawn:
            places = [batch] if loader.batch_sampler is None else list(batch)
            count += len(places)
            whole = [operator.index(place) if hasattr(place, "__index__") else -1 for place in places]
            if not all(0 <= place < size for place in whole):
                raise DataError(f"{who} yields {str(places)[:60]}; expected positions from 0 to {size - 1}")
            if count > _MOST_TIMES * size:
                raise DataError(f"{who} does not end after {count} of {size} samples; expected one pass over the data")
            batches.append(whole)
    return batches


def _fetches_batches(data: Any) -> bool:
    """Whether a data set gives the samples of a batch in a way of its own."""
    while getattr(type(data), "__getitems__", None) is Subset.__getitems__:
        data = data.dataset
    return callable(getattr(data, "__getitems__", None))


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
        many = getattr(self._dataset, "__getitems__", None)
        rows = list(_rows(self._collate(many([*batch]) if many else [self._dataset[place] for place in batch])))
        if len(rows) != len(batch):
            raise DataError(f"collate_fn makes {len(rows)} samples of {len(batch)}; expected as many")
        return rows


def _rows(batch: Any) -> Iterator[tuple[Any, Any]]:
    """Return the samples of a batch: of images and labels, or of a list of samples, which collate_fn=list makes."""
    if isinstance(batch, list | tuple) and all(map(_is_sample, batch)):
        return map(_parts, batch)
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


def _is_sample(item: Any) -> bool:
    if isinstance(item, Mapping):
        return True
    parts = item[:2] if isinstance(item, list | tuple) else ()
    return [isinstance(part, Image.Image) or getattr(part, "ndim", None) == 3 for part in parts] == [True, False]
