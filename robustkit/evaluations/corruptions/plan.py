"""Turn the corruptions that a user asked for into conditions: whose constants, and computed here or released files."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from corruptions import CORRUPTIONS as CORRUPTION_CLASSES
from corruptions import PRESETS as TABLES
from corruptions import find_photographs, find_tiles, own_textures
from corruptions.base import SMALLEST
from corruptions.constants import NEEDS_COLOUR
from corruptions.laion import STICKER, read_tiles

from ...common.files import bytes_of
from ...common.preprocessing import Preprocessing
from ...data.dataset import Dataset, Sample
from ...data.images import image_sizes, read_image
from ...errors import BadImageError, DataError, ProtocolError, unknown
from ...protocol.condition import Condition
from . import (
    EVERY_CORRUPTION,
    FROST,
    PRESETS,
    TEXTURED,
    TILED,
    VARIANTS,
    Corrupted,
    Pictures,
    asked_texture,
    corruption_condition,
    expand,
)
from .tree import CorruptedTree


def choose_textures(
    levels: Collection[str], asked: str | Iterable[str], pictures: Pictures
) -> tuple[dict[str, str], list[str]]:
    """Return the texture of each corruption that takes one, and lines for the user, as `choose_texture`."""
    textures, lines = dict[str, str](), list[str]()
    for kinds in (FROST, TILED):
        if some := [name for name in kinds if name in levels]:
            texture, line = choose_texture(asked_texture(asked, kinds), pictures, kinds)
            textures |= dict.fromkeys(some, texture)
            lines.append(line)
    return textures, lines


def choose_texture(asked: str, pictures: Pictures, kinds: tuple[str, ...] = FROST) -> tuple[str, str]:
    """Return the texture of frost or of tiles, and a line for the user, or none: own textures where nothing is asked
    for and no folder is there, nor imagecorruptions for frost. Raises ProtocolError for own ones and a folder."""
    option = "tiles" if kinds == TILED else "frost"
    if asked == "own" and (folder := pictures.get(f"{option}_dir")) is not None:
        raise ProtocolError(f"{kinds[0]}(texture=own) and --{option}-dir {folder}: leave one of the two out")
    is_there = kinds == FROST and find_spec("imagecorruptions") is not None
    if asked or pictures.get(f"{option}_dir") is not None or is_there:
        return asked or "photographs", ""
    if kinds == TILED:
        line = "tiles of our own, since there is no --tiles-dir; LAION-C's are of ImageNet's training images"
        return "own", f"mosaic, stickers(texture=own): {line}"
    return "own", (
        "frost(texture=own): the benchmark's photographs are missing, so our own textures are used; to reproduce "
        "published figures:"
        " pip install --no-deps imagecorruptions, or --frost-dir"
    )


def texture_digest(name: str, texture: str, pictures: Pictures) -> str:
    """Return the SHA-256 of the pictures that a corruption takes parts of: six of ice, or those that give tiles. Raises
    DataError where they are missing, or are not images."""
    if name in TILED:
        return "own" if texture == "own" else _tiles_digest(pictures.get("tiles_dir"))
    total = hashlib.sha256()
    try:
        for path in own_textures() if texture == "own" else find_photographs(pictures.get("frost_dir")):
            content = bytes_of(path, 1 << 26)
            read_image(content, f"frost photograph {path}")
            total.update(hashlib.sha256(content).digest())
    except OSError as fault:
        raise DataError(str(fault)) from None
    return total.hexdigest()


@lru_cache(maxsize=1)
def _tiles_digest(folder: str | None) -> str:
    total = hashlib.sha256()
    try:
        for path in find_tiles(folder):
            total.update(hashlib.sha256(bytes_of(path, 1 << 26)).digest())
        read_tiles(folder)
    except OSError as fault:
        raise DataError(str(fault)) from None
    return total.hexdigest()


@dataclass(frozen=True)
class CorruptedInputs:
    """By condition. digests: SHA-256 of released files, of pictures that corruptions take parts of, or of boxes or
    masks (`none` without any). released: `root` of the tree, and `image_sizes` (height, width). left_out: why a
    condition is not available."""

    digests: dict[str, str] = field(default_factory=dict)
    released: dict[str, dict[str, Any]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)


CIFAR_SIZE = (32, 32)


@dataclass(frozen=True)
class InputPlan:
    conditions: tuple[Condition, ...] = ()
    inputs: CorruptedInputs = field(default_factory=CorruptedInputs)
    lines: tuple[str, ...] = ()


def plan_corruptions(
    asked: str | Iterable[str] | None,
    dataset: Dataset,
    input_sizes: Sequence[tuple[int, int]],
    *,
    tree: CorruptedTree | None = None,
    constants: str = "auto",
    variant: str = "hendrycks",
    pictures: Pictures = MappingProxyType({}),
    preprocessing: Preprocessing | None = None,
) -> InputPlan:
    """Plan a list (None: all that a tree of released files holds). input_sizes: (height, width) of the models.
    constants: `auto` takes CIFAR-10-C's for 32x32 images. preprocessing: of inputs that are not 8-bit
    RGB. Raises ProtocolError for unknown names, DataError for files."""
    if constants not in ("auto", *PRESETS):
        raise ProtocolError(unknown("constants", constants, ("auto", *PRESETS)))
    if variant not in VARIANTS:
        raise ProtocolError(unknown("variant", variant, VARIANTS))
    levels = expand(asked) if asked is not None else tree.present if tree is not None else {}
    if not levels:
        return InputPlan()
    if tree is not None:
        if (constants, variant) != ("auto", "hendrycks"):
            both = f"constants {constants!r}, variant {variant!r}"
            raise ProtocolError(f"{both}: released files are used unchanged; leave both out")
        return _released(levels, dataset, tree)
    for height, width in input_sizes:
        if min(height, width) < SMALLEST:
            smallest = f"{SMALLEST}x{SMALLEST}"
            raise DataError(f"the model takes {width}x{height} pixels; corruptions need at least {smallest}")
    channels = 3 if preprocessing is None else preprocessing.channels
    if coloured := [name for name in levels if needs_colour(name)] if channels != 3 else []:
        remedy = f"leave them out: {', '.join(f'-{name}' for name in coloured)}"
        raise ProtocolError(f"{', '.join(coloured)}: defined on RGB, and images have {channels} channels; {remedy}")
    if "stickers" in levels and (small := next((size for size in input_sizes if min(size) <= STICKER), None)):
        raise ProtocolError(f"stickers: as large as the model's images of {small[1]}x{small[0]}; leave them out")
    lines = []
    if constants == "auto":
        constants, line = choose_constants(native_size(dataset, preprocessing), input_sizes)
        lines.append(line)
    check_constants(levels, constants)
    textures, more = choose_textures(levels, asked or (), pictures)
    lines += more
    parts = [
        Corrupted(name, severity, constants, variant, texture=textures.get(name, "photographs"))
        for name, severities in levels.items()
        for severity in severities
    ]
    try:
        parts[0].make(pictures)
    except ValueError as fault:  # constants and a variant that do not go together
        raise ProtocolError(str(fault)) from None
    digests = {part.text: texture_digest(part.name, part.texture, pictures) for part in parts if part.name in TEXTURED}
    conditions = tuple(map(corruption_condition, parts))
    return InputPlan(conditions, CorruptedInputs(digests), tuple(line for line in lines if line))


def check_constants(names: Iterable[str], constants: str) -> None:
    """Raise ProtocolError for corruptions that have no constants for images of this size."""
    if lacking := [name for name in names if name in CORRUPTION_CLASSES and name not in TABLES[constants]]:
        other, of = ("imagenet", "images of 32x32") if constants == "cifar" else ("cifar", "ImageNet's images")
        remedy = f"leave them out ({', '.join(f'-{name}' for name in lacking)}), or give --constants {other}"
        raise ProtocolError(f"{', '.join(lacking)}: no constants for {of} (--constants {constants}); {remedy}")


def needs_colour(name: str) -> bool:
    """Whether a corruption is defined on RGB alone: also one of a plug-in, unless its class says `any_channels`."""
    if name in CORRUPTION_CLASSES:
        return name in NEEDS_COLOUR
    return not getattr(EVERY_CORRUPTION[name], "any_channels", False)


def choose_constants(native: tuple[int, int] | None, input_sizes: Sequence[tuple[int, int]]) -> tuple[str, str]:
    if native != CIFAR_SIZE:
        return "imagenet", ""
    if all(size == CIFAR_SIZE for size in input_sizes):
        why = "since the images are 32x32"
        return "cifar", f"corruptions: CIFAR-10-C's constants (--constants cifar, in conditions preset=cifar), {why}"
    return "imagenet", (
        "corruptions: the images are 32x32 but are corrupted at the model's input size with ImageNet-C's constants: "
        "this is not CIFAR-10-C"
    )


def native_size(dataset: Dataset, preprocessing: Preprocessing | None = None) -> tuple[int, int] | None:
    """Return (height, width) of the first image that can be read, before any resize."""
    for sample in dataset.samples[:20]:
        with suppress(BadImageError):
            return dataset.size(sample, preprocessing or Preprocessing())
    return None


def _released(levels: dict[str, tuple[int, ...]], dataset: Dataset, tree: CorruptedTree) -> InputPlan:
    parts, left_out = [], {}
    for part in (Corrupted(name, severity, source="released") for name, s in levels.items() for severity in s):
        label = f"{part.name}(severity={part.severity})"
        if part.severity not in tree.present.get(part.name, ()):
            left_out[part.text] = f"{label}: not in {tree.root}"
        elif missing := tree.missing(dataset.samples, part.name, part.severity):
            count = f"{len(missing)} of {len(dataset.samples)} files are missing"
            left_out[part.text] = f"{label}: {count}, the first: {missing[0]}"
        else:
            parts.append(part)
    if not parts:
        why = "; ".join(list(left_out.values())[:3])
        raise DataError(
            f"{tree.root} contains none of the requested corruptions: {why}; it contains {', '.join(tree.present)}"
        )
    digests, released = {}, {}
    for part in parts:
        digests[part.text], sizes = _read(dataset.samples, tree, part)
        released[part.text] = {"root": str(tree.root), "image_sizes": sizes}
    where = f"corruptions: {len(parts)} conditions from the released files of {tree.root}"
    lines = (where, *(f"left out {line}" for line in left_out.values()))
    return InputPlan(tuple(map(corruption_condition, parts)), CorruptedInputs(digests, released, left_out), lines)


def _read(samples: Sequence[Sample], tree: CorruptedTree, part: Corrupted) -> tuple[str, list[list[int]]]:
    """Return the SHA-256 of the files of a condition, and the sizes (height, width) of their images."""

    def look(sample: Sample) -> tuple[bytes, tuple[int, int] | None]:
        try:
            data = tree.read(sample.id, part.name, part.severity)
            sizes = image_sizes(data)
            return hashlib.sha256(data).digest(), sizes.upright[::-1] if sizes else None
        except BadImageError:
            return b"unreadable", None

    total, sizes = hashlib.sha256(), set()
    with ThreadPoolExecutor() as pool:
        for start in range(0, len(samples), 1024):
            for digest, size in pool.map(look, samples[start : start + 1024]):
                total.update(digest)
                sizes.add(size)
    return total.hexdigest(), [list(size) for size in sorted(size for size in sizes if size)]
