"""Rows of corruptions next to imagecorruptions 1.1.2 (`scripts/goldens/reference.py`): all 19 by category.

The reference takes one image at a time, ours a batch with its own draws; times are per image, of five severities.
Pixels are compared given the reference's own random numbers, on one image at all severities.
"""

from __future__ import annotations

import contextlib
import io
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType

import numpy as np
import skimage
import torch
from PIL import Image
from torch import Tensor

import corruptions
from corruptions.registry import CATEGORIES
from robustkit.common.determinism import SampleRng
from scripts.goldens import reference

from .race import Result, Row, Sides

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "support"))

from legacy_draws import Bytes, legacy_draws

SEVERITIES = range(1, 6)
SIZE, BATCH = 224, 8


SHARED = ("noise", "blur", "weather", "digital", "extra")
"""The categories that imagecorruptions has."""


def photographs(count: int, size: int = SIZE) -> Bytes:
    """Return crops (count, size, size, 3) of scikit-image's astronaut, coffee and chelsea."""
    made = []
    for index in range(count):
        path = Path(skimage.__file__).parent / "data" / ("astronaut.png", "coffee.png", "chelsea.png")[index % 3]
        picture = Image.open(path, formats=("PNG",)).convert("RGB")
        left, top = index % (picture.width - size), 2 * index % (picture.height - size)
        made.append(np.asarray(picture.crop((left, top, left + size, top + size))))
    return np.stack(made)


def rows(device: torch.device) -> Iterator[Row]:
    """Yield a row for each category."""
    for category in SHARED:
        names = CATEGORIES[category]
        what = f"{len(names)} corruptions of {category}, 5 severities, {SIZE}x{SIZE}"
        yield Row(what, "imagecorruptions", lambda names=names: _sides(names, device))  # type: ignore[misc]


def total(results: Sequence[Result]) -> Result:
    """Return a row for the 15 of the benchmark: the sums of its four categories, pair by pair."""
    parts = [result for result, category in zip(results, SHARED, strict=False) if category != "extra"]
    ours = [sum(pair) for pair in zip(*(part.ours for part in parts), strict=True)]
    theirs = [sum(pair) for pair in zip(*(part.theirs for part in parts), strict=True)]
    what = f"all 15 of ImageNet-C, 5 severities, {SIZE}x{SIZE}"
    return Result(what, parts[0].peer, all(p.equal for p in parts), "sum of the four rows above", ours, theirs)


def _sides(names: Sequence[str], device: torch.device) -> Sides:
    module, pictures = reference.load(), photographs(BATCH)
    images = channels_first(pictures).to(device)
    frost = str(_frost())

    def ours() -> None:
        for name in names:
            made = corruptions.corruption(name, variant="bethgelab", frost_dir=frost)
            for severity in SEVERITIES:
                ids = [str(index) for index in range(len(images))]
                made(images, severity, SampleRng.of(ids, seed=0, condition=f"{name} {severity}", device=device))

    def theirs() -> None:
        for name in names:
            for severity in SEVERITIES:
                _refer(module, name, pictures[0], severity)

    def same_draws() -> tuple[Tensor, Tensor]:
        pairs = [_both(module, name, pictures[:1], severity, frost) for name in names for severity in SEVERITIES]
        mine, other = zip(*pairs, strict=True)
        return torch.stack(mine), torch.stack(other)

    return Sides(ours, theirs, agree, (BATCH, 1), same_draws)


def agree(ours: Tensor, theirs: Tensor) -> tuple[bool, str]:
    """Compare bytes: equal, except for one grey level at one value in a thousand."""
    gaps = (ours.short() - theirs.short()).abs()
    if not gaps.any():
        return True, "same bytes, given its draws"
    most, differ = int(gaps.max()), int(gaps.bool().sum())
    few = most <= 1 and 1000 * differ <= gaps.numel()
    return few, f"{differ} of {gaps.numel()} bytes differ by at most {most}, given its draws"


def channels_first(images: Bytes) -> Tensor:
    """Return bytes (N, H, W, 3) as (N, 3, H, W)."""
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))


def _both(module: ModuleType, name: str, picture: Bytes, severity: int, frost: str) -> tuple[Tensor, Tensor]:
    np.random.seed(1000 * severity)
    theirs = _refer(module, name, picture[0], severity)
    made = corruptions.corruption(name, variant="bethgelab", frost_dir=frost)
    draws = legacy_draws(made, picture, severity, theirs[None], frost)
    return made.apply(channels_first(picture), draws)[0], channels_first(theirs[None])[0]


def _refer(module: ModuleType, name: str, picture: Bytes, severity: int) -> Bytes:
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return reference.reference(module, name, picture, severity)


def _frost() -> Path:
    folder = reference.find()
    assert folder is not None
    return folder / "frost"
