"""A data set as tensors, decoded once, and the batches of a training run.

A batch is a function of (seed, step) alone: which images, in which order, and how they are augmented.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from timm.data.auto_augment import rand_augment_transform
from torch import Tensor
from torch.nn import functional

from robustkit.data import shapes
from robustkit.data.dataset import EMBEDDED, open_dataset
from robustkit.errors import DataError
from robustkit.models.checkpoint import digest_of_tensors

from .families import Family
from .recipe import Preset, seed_of

FORMAT = "1"


@dataclass(frozen=True)
class Images:
    """pixels: (N, 3, side, side) uint8. labels: (N,). name, digest: of the data set, as RobustKit gives them."""

    pixels: Tensor
    labels: Tensor
    name: str
    digest: str
    class_names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device) -> Images:
        return replace(self, pixels=self.pixels.to(device), labels=self.labels.to(device))

    def spread(self, count: int | None) -> Images:
        """Return `count` images in equal steps through the set, or all of it."""
        if count is None or count >= len(self):
            return self
        chosen = torch.arange(count, device=self.labels.device) * len(self) // count
        return replace(self, pixels=self.pixels[chosen], labels=self.labels[chosen])

    def part(self, fraction: float, seed: int) -> Images:
        """Return this fraction of each class, at least one image, drawn by the seed; a larger fraction holds a smaller.

        Raises DataError where it is not above 0 and at most 1.
        """
        if not 0 < fraction <= 1:
            raise DataError(f"fraction {fraction:g} of the training images; expected more than 0 and at most 1")
        if fraction == 1:
            return self
        draw = torch.Generator().manual_seed(seed_of(seed, "fraction"))
        order = torch.randperm(len(self), generator=draw)
        kept = []
        for label in self.labels.unique():
            of_class = order[self.labels[order] == label]
            kept.append(of_class[: max(1, round(fraction * len(of_class)))])
        chosen = torch.cat(kept).sort().values
        digest = hashlib.sha256(f"{self.digest} {chosen.tolist()}".encode()).hexdigest()
        return replace(self, pixels=self.pixels[chosen], labels=self.labels[chosen], digest=digest)


def cached(
    spec: str, split: str, limit: int | None, folder: Path, family: Family, names: tuple[str, ...] | None = None
) -> Images:
    """Return the images of a zip, a folder of class folders, cifar-10-batches-py or an embedded set, kept decoded in
    `folder`.

    limit: this many, classes in turn. names: the classes that the labels must be of.
    Raises DataError where these are not the images that the family is of.
    """
    stamp = f"{FORMAT} {split} {limit} {names} {_content(spec)}"
    path = folder / f"{split}-{hashlib.sha256(stamp.encode()).hexdigest()[:16]}.safetensors"
    images = _read(path)
    if images is None:
        images = _decode(spec, split, limit, family, names)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {"pixels": images.pixels, "labels": images.labels}
        said = {"name": images.name, "digest": images.digest, "class_names": json.dumps(images.class_names)}
        partial = path.with_suffix(f".{os.getpid()}.partial")
        save_file(tensors, partial, {**said, "content": digest_of_tensors(tensors)})
        partial.replace(path)
    return images


def _content(spec: str) -> str:
    """Return a digest of a file, of all files in a folder, or of the code that makes an embedded set."""
    place = Path(shapes.__file__ if spec in EMBEDDED else spec)
    if not place.exists():
        raise DataError(f"{spec}: no such folder or zip file; give CIFAR-10 as class folders or cifar-10-batches-py")
    digest = hashlib.sha256(spec.encode() if spec in EMBEDDED else b"")
    for file in sorted(place.rglob("*")) if place.is_dir() else [place]:
        if file.is_file():
            digest.update(file.relative_to(place).as_posix().encode())
            with file.open("rb") as opened:
                while piece := opened.read(1 << 20):
                    digest.update(piece)
    return digest.hexdigest()


def _read(path: Path) -> Images | None:
    """Return what a cache file holds; None where there is none, or one that is not whole."""
    try:
        with safe_open(path, framework="pt") as file:
            said = file.metadata()
            tensors = {name: file.get_tensor(name) for name in ("pixels", "labels")}
    except (OSError, SafetensorError):
        return None
    if digest_of_tensors(tensors) != said["content"]:
        return None
    return Images(
        **tensors, name=said["name"], digest=said["digest"], class_names=tuple(json.loads(said["class_names"]))
    )


def _decode(spec: str, split: str, limit: int | None, family: Family, names: tuple[str, ...] | None) -> Images:
    batches = any((folder / "test_batch").is_file() for folder in (Path(spec), Path(spec, "cifar-10-batches-py")))
    dataset = open_dataset(spec, split=split if batches else None, num_classes=family.classes, class_names=names)
    dataset = dataset.select(limit)
    if len(dataset.class_names) != family.classes:
        raise DataError(f"{spec}: {len(dataset.class_names)} classes; expected the {family.classes} of {family.data}")
    with ThreadPoolExecutor() as pool:
        pictures = list(pool.map(lambda sample: np.asarray(dataset.image(sample)), dataset.samples))
    odd = next((p.shape for p in pictures if p.shape != (family.side, family.side, 3)), None)
    if odd is not None:
        side = f"{family.side}x{family.side}"
        raise DataError(f"{spec}: an image of {odd[1]}x{odd[0]}; expected the {side} of {family.data}")
    pixels = torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).contiguous()
    labels = torch.tensor([sample.label for sample in dataset.samples])
    return Images(pixels, labels, dataset.name, dataset.digest(), tuple(dataset.class_names))


def chosen(preset: Preset, seed: int, count: int, step: int) -> Tensor:
    """Return the indices of the images of a step, (batch,). Every epoch has an order of its own."""
    epoch, place = divmod(step, preset.steps_per_epoch(count))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed_of(seed, "order", epoch)))
    return order[place * preset.batch : (place + 1) * preset.batch]


class RandAugmented(torch.utils.data.Dataset[tuple[Tensor, Tensor]]):
    """Item s is the batch of step s under timm's RandAugment, for worker processes. It reseeds Python's and NumPy's
    global generators, which timm draws from."""

    def __init__(self, images: Images, preset: Preset, seed: int) -> None:
        self.images, self.preset, self.seed = images, preset, seed
        self.transform = rand_augment_transform(
            preset.randaugment, {"translate_const": round(0.3 * preset.family.side), "img_mean": (125, 123, 114)}
        )

    def __getitem__(self, step: int) -> tuple[Tensor, Tensor]:
        index = chosen(self.preset, self.seed, len(self.images), step)
        base = seed_of(self.seed, "randaugment", step)
        random.seed(base)
        np.random.seed(base % 2**32)
        pictures = self.images.pixels[index].permute(0, 2, 3, 1).contiguous().numpy()
        augmented = np.stack([np.asarray(self.transform(Image.fromarray(picture))) for picture in pictures])
        return torch.from_numpy(augmented).permute(0, 3, 1, 2).contiguous(), self.images.labels[index]


def batches(
    images: Images, preset: Preset, seed: int, steps: range, device: torch.device, workers: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (pixels, labels) of each step on `device`, after the preset's RandAugment, if any, and before `augment`."""
    if preset.randaugment:
        loader = torch.utils.data.DataLoader(
            RandAugmented(images, preset, seed),
            batch_size=None,
            sampler=steps,
            num_workers=workers,
            pin_memory=device.type == "cuda",
            prefetch_factor=4 if workers else None,
        )
        for pixels, labels in loader:
            yield pixels.to(device, non_blocking=True), labels.to(device, non_blocking=True)
        return
    resident = images.to(device)
    for step in steps:
        index = chosen(preset, seed, len(images), step).to(device)
        yield resident.pixels[index], resident.labels[index]


def augment(pixels: Tensor, preset: Preset, seed: int, step: int) -> Tensor:
    """Crop the padded images at random and mirror half of them: (B, 3, side, side) uint8."""
    count, _, height, width = pixels.shape
    draw = torch.Generator().manual_seed(seed_of(seed, "crop", step))
    corner = torch.randint(2 * preset.padding + 1, (2, count, 1), generator=draw)
    mirror = torch.rand(count, 1, generator=draw) < 0.5
    rows = corner[0] + torch.arange(height)
    columns = corner[1] + torch.where(mirror, torch.arange(width).flip(0), torch.arange(width))
    padded = functional.pad(pixels, (preset.padding,) * 4)
    which = torch.arange(count)[:, None, None]
    rows, columns, which = (index.to(pixels.device) for index in (rows[:, :, None], columns[:, None, :], which))
    return padded.permute(0, 2, 3, 1)[which, rows, columns].permute(0, 3, 1, 2)
