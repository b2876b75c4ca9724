"""Trees of corrupted images, made as the benchmark was: resize, crop, corrupt, save; resumed where it stopped.

corruptions.json                          what the tree was made of, and how
<corruption>/<1-5>/<id of the sample>     its image, .JPEG of quality 85 or .png
"""

from __future__ import annotations

import hashlib
import io
import json
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor

from corruptions.base import SMALLEST

from ...common.determinism import SampleRng
from ...common.environment import usual_workers
from ...common.files import check_plain, json_of, reason_of, write_whole
from ...common.preprocessing import INTERPOLATIONS, Preprocessing
from ...data.dataset import Dataset, Sample, open_dataset
from ...data.images import to_pixels
from ...errors import BadImageError, DataError, NothingEvaluated, ProtocolError, RunError, unknown
from ...evaluations.corruptions import (
    FROST,
    PRESETS,
    TEXTURED,
    TILED,
    VARIANTS,
    Corrupted,
    Pictures,
    asked_texture,
    expand,
)
from ...evaluations.corruptions.plan import CIFAR_SIZE, check_constants, choose_constants, native_size, texture_digest
from ...evaluations.corruptions.tree import stem_of
from ...models.device import pick_device

FORMATS = {"jpeg": ".JPEG", "png": ".png"}
JPEG_QUALITY = 85  # of the released ImageNet-C


@dataclass(frozen=True)
class Recipe:
    """Resize, crop and corruption. The draws are those of an audit with the same seed, so the pixels are the same."""

    preprocessing: Preprocessing = field(default_factory=lambda: Preprocessing(interpolation="bilinear"))
    preset: str = "imagenet"
    variant: str = "hendrycks"
    seed: int = 0
    pictures: Pictures = field(default_factory=dict)
    textures: Mapping[str, str] = field(default_factory=dict)
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def corrupt(
        self, pixels: Tensor, ids: Sequence[str], name: str, severity: int, *, seed: int | None = None
    ) -> Tensor:
        """Return (B, 3, H, W) uint8 on the CPU, like `pixels`; seed: one other than the recipe's."""
        part = Corrupted(name, severity, self.preset, self.variant, texture=self.textures.get(name, "photographs"))
        seed = self.seed if seed is None else seed
        rng = SampleRng.of(ids, seed=seed, condition=part.text, device=self.device)
        corruption = part.make(self.pictures)
        try:
            corrupted = corruption.apply(pixels.to(self.device), corruption.draw(pixels.shape[1:], severity, rng))
        except OSError as fault:
            raise DataError(str(fault)) from None
        return corrupted.cpu()

    def digest(self, name: str) -> str:
        """Return the SHA-256 of the pictures that a corruption takes parts of. Raises DataError where they lack."""
        return texture_digest(name, self.textures.get(name, "photographs"), self.pictures)

    def decoded(
        self, dataset: Dataset, samples: Sequence[Sample], pool: Executor
    ) -> tuple[list[tuple[Sample, Tensor]], dict[str, str]]:
        """Return the samples resized and cropped, (3, H, W) uint8, and by id why others cannot be read."""

        def read(sample: Sample) -> Tensor:
            return to_pixels(dataset.image(sample), self.preprocessing, sample.id)

        clean, bad = list[tuple[Sample, Tensor]](), dict[str, str]()
        for sample, reading in [(sample, pool.submit(read, sample)) for sample in samples]:
            try:
                clean.append((sample, reading.result()))
            except BadImageError as fault:
                bad[sample.id] = str(fault)
        return clean, bad


@dataclass(frozen=True)
class CorruptOptions:
    """What is corrupted, and how: the options of `robustkit corrupt`, with their defaults."""

    corruptions: str | None = None
    """Sets or names, such as `in-c` or `fog(severity=3),snow`; None for the usual ones."""
    constants: str = "auto"
    """What severities mean: `auto` by the size of images, or one of `PRESETS`."""
    variant: str = "hendrycks"
    """The implementation: `hendrycks` or `bethgelab`."""
    frost_dir: str | Path | None = None
    """The folder with the photographs of frost."""
    tiles_dir: str | Path | None = None
    """A folder of images, of which mosaic and stickers take tiles."""
    img_size: int | None = None
    """The side after the crop; None for 224, or 32 for images of 32x32."""
    crop_pct: float | None = None
    """The share of the resized image that the crop keeps; None for 0.875, or 1 for images of 32x32."""
    interpolation: str = "bilinear"
    batch_size: int = 16
    workers: int | None = None
    """Threads that decode and encode images; None for one a core."""
    device: str = "auto"
    seed: int = 0
    limit: int | None = None
    """At most so many images, class-balanced."""
    ids: str | Path | Sequence[str] | None = None
    """The exact ids of samples, or a file of them."""
    layout: str | None = None
    labels_csv: str | Path | None = None
    real_labels: str | Path | None = None

    @property
    def pictures(self) -> dict[str, str | None]:
        return {each: str(getattr(self, each) or "") or None for each in ("frost_dir", "tiles_dir")}

    def opened(self, data_dir: str | Path) -> Dataset:
        """Return all samples of a data set, unlabelled where nothing says how it is labelled: no label is needed."""
        layout, labels_csv, real_labels = self.layout, self.labels_csv, self.real_labels
        try:
            return open_dataset(data_dir, layout=layout, labels_csv=labels_csv, real_labels=real_labels)
        except DataError:
            if layout or labels_csv or real_labels:
                raise
            return open_dataset(data_dir, layout="unlabelled")

    def chosen(self, whole: Dataset) -> Dataset:
        """Return the samples that are asked for. Raises NothingEvaluated where there are none."""
        ids = Path(self.ids) if isinstance(self.ids, str) else self.ids
        chosen = whole.select(limit=self.limit, ids=ids, seed=self.seed)
        if not chosen.samples:
            raise NothingEvaluated(f"{whole.root}: no sample is left; relax --limit or --ids")
        return chosen


def settle(
    native: tuple[int, int] | None,
    options: CorruptOptions,
    textures: Mapping[str, str] | None = None,
    img_size: int | None = None,
) -> tuple[Recipe, tuple[str, ...]]:
    """Return the recipe for images of this (height, width), and lines for the user. Without img_size and crop_pct it is
    the benchmark's 224 and 0.875, or images of 32x32 as they are. Raises ProtocolError for a setting out of range."""
    constants, variant, crop_pct = options.constants, options.variant, options.crop_pct
    interpolation, device = options.interpolation, pick_device(options.device)
    if textures is None:
        asked = {kinds: asked_texture(options.corruptions or "", kinds) for kinds in (FROST, TILED)}
        textures = {name: texture for kinds, texture in asked.items() if texture for name in kinds}
    img_size = options.img_size if img_size is None else img_size
    for what, value, allowed in (
        ("constants", constants, ("auto", *PRESETS)),
        ("variant", variant, VARIANTS),
        ("interpolation", interpolation, INTERPOLATIONS),
    ):
        if value not in allowed:
            raise ProtocolError(unknown(what, value, allowed))
    small = native == CIFAR_SIZE
    size = img_size if img_size is not None else 32 if small else 224
    if size < SMALLEST:
        raise ProtocolError(f"--img-size {size}: corruptions need at least {SMALLEST}x{SMALLEST} pixels")
    crop = crop_pct if crop_pct is not None else 1.0 if small else 0.875
    if not 0 < crop <= 1:
        raise ProtocolError(f"--crop-pct {crop}: expected a number above 0, at most 1")
    lines = []
    if constants == "auto":
        constants, line = choose_constants(native, [(size, size)])
        lines.append(line)
    if native and img_size is None and max(native) < size:
        lines.append(f"images of {native[1]}x{native[0]} are enlarged to {size}x{size}; --img-size sets another size")
    try:
        Corrupted("fog", 1, constants, variant).make()
    except ValueError as fault:  # bethgelab has no constants for 32x32
        raise ProtocolError(str(fault)) from None
    preprocessing = Preprocessing(input_size=(size, size), interpolation=interpolation, crop_pct=crop)
    recipe = Recipe(preprocessing, constants, variant, options.seed, options.pictures, textures, device)
    return recipe, tuple(filter(None, lines))


def encode(pixels: Tensor, image_format: str) -> bytes:
    """Return (3, H, W) uint8 as a file: `jpeg` at the benchmark's quality, or `png`."""
    buffer = io.BytesIO()
    image = Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy())
    if image_format == "jpeg":
        image.save(buffer, "JPEG", quality=JPEG_QUALITY, optimize=True)
    else:
        image.save(buffer, "PNG")
    return buffer.getvalue()


MANIFEST = "corruptions.json"
_PROBED = 16  # images that identify a source
Severities = Mapping[str, tuple[int, ...]]  # by corruption
Watch = Callable[[Sequence[str], int], AbstractContextManager[Callable[[int], None]]]
"""Takes notes and the number of files before the work; inside, what it returns takes numbers of files that are done."""


def unwatched(notes: Sequence[str], total: int) -> AbstractContextManager[Callable[[int], None]]:
    return nullcontext(lambda files: None)


@dataclass(frozen=True)
class TreeFiles:
    """What a tree has for some images: files that were made now, and others. unreadable: why images were skipped."""

    made: int
    existing: int
    unreadable: tuple[str, ...]
    images: int
    corruptions: Severities


def corrupt_tree(
    out: str | Path, data_dir: str | Path, *, image_format: str = "jpeg", watch: Watch = unwatched, **options: Any
) -> TreeFiles:
    """Write a corrupted copy of a data set, as the benchmark was made; what exists already is not made again.

    Args:
        out: the folder of the tree, new or that of an earlier call with the same settings.
        data_dir: the clean images: a folder, a zip, or `embedded:shapes`.
        image_format: of the files: `jpeg`, as the benchmark's, or `png`.
        watch: see `Watch`; by default nothing is shown.
        options: fields of `CorruptOptions`. Without corruptions it is `in-c`.

    Returns:
        How many files were made and existed, and why images could not be read, which does not stop the others.

    Raises:
        DataError: no such data, two samples that would be one file, or a tree inside its own source.
        ProtocolError: an unknown corruption, or a setting that is out of range.
        RunError: the folder holds something else, or a tree of other settings.

    Example:
        >>> from robustkit.slices.corrupt import corrupt_tree
        >>> corrupt_tree("shapes-c", "embedded:shapes", corruptions="fog(severity=3)", limit=4).made
        4
    """
    recipe_options, out = CorruptOptions(**options), Path(out)
    if image_format not in FORMATS:
        raise ProtocolError(unknown("format", image_format, FORMATS))
    corruptions = expand(recipe_options.corruptions or "in-c")
    whole = recipe_options.opened(data_dir)
    dataset = recipe_options.chosen(whole)
    recipe, lines = settle(native_size(dataset), recipe_options)
    check_constants(corruptions, recipe.preset)
    pictures = {name: recipe.digest(name) for name in TEXTURED if name in corruptions}
    prepare(out, dataset, whole, corruptions, recipe, image_format, pictures)
    with watch([*dataset.notes, *lines], sum(map(len, corruptions.values())) * len(dataset)) as tell:
        speed = recipe_options.batch_size, recipe_options.workers
        made, existing, bad = write_tree(out, dataset, corruptions, recipe, image_format, *speed, tell)
    return TreeFiles(made, existing, tuple(bad), len(dataset), corruptions)


def write_tree(
    out: Path,
    dataset: Dataset,
    corruptions: Severities,
    recipe: Recipe,
    image_format: str,
    batch_size: int,
    workers: int | None,
    tell: Callable[[int], None],
) -> tuple[int, int, list[str]]:
    """Write the files that do not exist yet, each whole, after `prepare`. Return how many were made, how many were
    there, and why images could not be read. tell: takes numbers of files that are done. Raises RunError."""
    made, existing, bad = 0, 0, list[str]()
    folders = [(name, severity) for name, severities in corruptions.items() for severity in severities]
    with ThreadPoolExecutor(workers or usual_workers()) as pool:
        ahead: list[Future[None]] = []
        for start in range(0, len(dataset.samples), batch_size):
            batch = dataset.samples[start : start + batch_size]
            lacking = {
                (name, severity): {
                    sample.id
                    for sample in batch
                    if not _is_whole(_target(out, name, severity, sample, image_format), image_format)
                }
                for name, severity in folders
            }
            there = len(folders) * len(batch) - sum(map(len, lacking.values()))
            existing += there
            tell(there)
            needed = [sample for sample in batch if any(sample.id in ids for ids in lacking.values())]
            clean, unread = recipe.decoded(dataset, needed, pool)
            bad += unread.values()
            tell(sum(name in ids for ids in lacking.values() for name in unread))
            for (name, severity), ids in lacking.items():
                todo = [(sample, pixels) for sample, pixels in clean if sample.id in ids]
                if not todo:
                    continue
                stacked = torch.stack([pixels for _, pixels in todo])
                corrupted = recipe.corrupt(stacked, [sample.id for sample, _ in todo], name, severity)
                for saved in ahead:
                    saved.result()
                targets = [_target(out, name, severity, sample, image_format) for sample, _ in todo]
                ahead = [pool.submit(_save, *pair, image_format) for pair in zip(corrupted, targets, strict=True)]
                made += len(todo)
                tell(len(todo))
        for saved in ahead:
            saved.result()
    return made, existing, bad


def prepare(
    out: Path,
    dataset: Dataset,
    whole: Dataset,
    corruptions: Severities,
    recipe: Recipe,
    image_format: str,
    pictures: Mapping[str, str],
) -> None:
    """Write `corruptions.json`, or extend it by what is asked for now. whole: all samples of the source, which
    `--limit` may not change. pictures: digests by corruption. Raises RunError where the folder holds something else or
    another tree, DataError where two samples would become one file, or the tree would lie among its own source."""
    source = Path(dataset.root)
    if source.is_dir() and (out.resolve() == source.resolve() or source.resolve() in out.resolve().parents):
        raise DataError(f"{out} is inside the data set {source} and would become part of it; choose another folder")
    first: dict[str, str] = {}
    for sample in dataset.samples:
        name = file_name(sample.id, image_format)
        if (other := first.setdefault(name, sample.id)) != sample.id:
            raise DataError(f"{dataset.name}: {other!r} and {sample.id!r} would become one file, {name!r}; rename one")
    path = out / MANIFEST
    deciding = {  # the settings that two commands must share to write into one tree
        "seed": recipe.seed,
        "preset": recipe.preset,
        "variant": recipe.variant,
        "img size": recipe.preprocessing.input_size[0],
        "crop pct": recipe.preprocessing.crop_pct,
        "interpolation": recipe.preprocessing.interpolation,
        "format": image_format,
        "source digest": _source_digest(whole),
    }
    old = _existing(out)
    for key, value in deciding.items():
        if old and old["deciding"].get(key) != value:
            raise RunError(
                f"{path}: the tree was made with {key} {old['deciding'].get(key)!r}, not {value!r}; "
                f"choose another folder, or the same settings"
            )
    before = old.get("pictures", {})
    if others := [name for name, digest in pictures.items() if before.get(name, digest) != digest]:
        raise RunError(f"{path}: the tree was made with different pictures for {others[0]}; choose another folder")
    made = {name: set(severities) for name, severities in old.get("corruptions", {}).items()}
    for name, severities in corruptions.items():
        made.setdefault(name, set()).update(severities)
    manifest = {
        "deciding": deciding,
        "pictures": {**before, **pictures},
        "source": {"name": dataset.name, "root": dataset.root, "layout": dataset.layout},
        "corruptions": {name: sorted(severities) for name, severities in made.items()},
        "jpeg": {"quality": JPEG_QUALITY, "optimize": True} if image_format == "jpeg" else None,
        "versions": {name: metadata.version(name) for name in ("robustkit-audit", "torch", "numpy", "pillow")}
        | {"python": platform.python_version()},
    }
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    text = re.sub(r"\[\s+(\d[\d,\s]*\d|\d)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", text)
    write_whole(path, text.encode(), remedy="choose a folder with --write")


def recorded_pictures(root: Path) -> dict[str, str]:
    """Return the digests of pictures by corruption that a tree of ours records; none of another."""
    try:
        table = json_of(root / MANIFEST, 1 << 22)
    except (OSError, ValueError):
        return {}
    pictures = table.get("pictures") if isinstance(table, dict) else None
    return {str(name): str(digest) for name, digest in pictures.items()} if isinstance(pictures, dict) else {}


def _source_digest(whole: Dataset) -> str:
    """Return SHA-256 over a few images, chosen by their ids: reading all would take as long as corrupting."""
    total = hashlib.sha256()
    by_hash = sorted(whole.samples, key=lambda sample: hashlib.sha256(sample.id.encode()).digest())
    for sample in by_hash[:_PROBED]:
        try:
            content = hashlib.sha256(whole.read(sample)).hexdigest()
        except BadImageError:
            content = "unreadable"
        total.update(f"{sample.id}\0{content}\n".encode())
    return total.hexdigest()


def _existing(out: Path) -> dict[str, Any]:
    """Return what corruptions.json holds; empty if there is no folder yet, or it is empty."""
    path = out / MANIFEST
    try:
        manifest = json_of(path)
    except FileNotFoundError:
        if out.is_dir() and next((entry for entry in out.iterdir() if not entry.name.startswith(".")), None):
            raise RunError(f"{out} contains files but no {MANIFEST}; choose an empty folder") from None
        return {}
    except NotADirectoryError:
        raise RunError(f"{out} is not a folder; choose another one") from None
    except (OSError, ValueError) as fault:
        raise RunError(f"{path}: cannot be read ({reason_of(fault)}); restore it or choose another folder") from None
    if not isinstance(manifest, dict) or not isinstance(manifest.get("deciding"), dict):
        raise RunError(f"{path}: not a whole {MANIFEST}; restore it or choose another folder")
    return manifest


def file_name(sample_id: str, image_format: str) -> str:
    """Return the sample's path below the folder of a severity: its id, with the suffix of the actual format."""
    stem = stem_of(sample_id)
    allowed = (".jpeg", ".jpg") if image_format == "jpeg" else (".png",)
    return sample_id if sample_id[len(stem) :].lower() in allowed else stem + FORMATS[image_format]


def _target(out: Path, name: str, severity: int, sample: Sample, image_format: str) -> Path:
    return out / name / str(severity) / file_name(sample.id, image_format)


def _is_whole(path: Path, image_format: str) -> bool:
    """Whether the file is complete; a machine that lost power may have kept only part of it."""
    end = {"jpeg": b"\xff\xd9", "png": b"IEND\xaeB`\x82"}[image_format]
    try:
        check_plain(path)
        with path.open("rb") as file:
            file.seek(-len(end), 2)
            return file.read() == end
    except OSError:
        return False


def _save(image: Tensor, path: Path, image_format: str) -> None:
    """Write one image. Not synced to the disk file by file, which would take longer than the rest: see `_is_whole`."""
    temporary = path.with_name(f".{path.name}.tmp")  # the next attempt at this file overwrites it
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(encode(image, image_format))
        temporary.replace(path)
    except OSError as fault:
        raise RunError(f"cannot write {path}: {fault.strerror or fault}; choose a folder with --write") from None
