"""Trees of corrupted images, for `robustkit corrupt`.

--write makes one as the benchmark was (resize, crop, corrupt, save), and resumes where it stopped:

corruptions.json                          what the tree was made of, and how
<corruption>/<1-5>/<id of the sample>     its image, .JPEG of quality 85 or .png

--drift measures how far a released one is from what corrupting the same images here gives. A corruption without random
numbers must give the same picture, except for changes by JPEG and another library's resize. With random numbers two
trees never agree pixel by pixel; then they must not differ by more than two draws of our own do, and must change the
clean picture as strongly.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import platform
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from corruptions.base import SMALLEST

from ..common.determinism import SampleRng
from ..common.environment import usual_workers
from ..common.files import check_plain, json_of, reason_of, write_whole
from ..common.preprocessing import INTERPOLATIONS, Preprocessing
from ..data.dataset import Dataset, Sample
from ..data.images import read_image, to_pixels
from ..display.table import Table
from ..errors import BadImageError, DataError, ProtocolError, RunError, unknown
from ..evaluations.corruptions.condition import PRESETS, VARIANTS, Corrupted, asked_texture
from ..evaluations.corruptions.plan import CIFAR_SIZE, choose_constants
from ..evaluations.corruptions.tree import CorruptedTree, stem_of, tree_pixels
from ..models.device import pick_device

FORMATS = {"jpeg": ".JPEG", "png": ".png"}
JPEG_QUALITY = 85  # of the released ImageNet-C


@dataclass(frozen=True)
class Recipe:
    """Resize, crop and corruption. The draws are those of an audit with the same seed, so the pixels are the same."""

    preprocessing: Preprocessing = field(default_factory=lambda: Preprocessing(interpolation="bilinear"))
    preset: str = "imagenet"
    variant: str = "hendrycks"
    seed: int = 0
    frost_dir: str | None = None
    texture: str = "photographs"  # of frost
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def corrupt(
        self, pixels: Tensor, ids: Sequence[str], name: str, severity: int, *, seed: int | None = None
    ) -> Tensor:
        """Return (B, 3, H, W) uint8 on the CPU, like `pixels`; seed: one other than the recipe's."""
        part = Corrupted(name, severity, self.preset, self.variant, texture=self.texture)
        seed = self.seed if seed is None else seed
        rng = SampleRng.of(ids, seed=seed, condition=part.text, device=self.device)
        corruption = part.make(self.frost_dir)
        try:
            corrupted = corruption.apply(pixels.to(self.device), corruption.draw(pixels.shape[1:], severity, rng))
        except OSError as fault:
            raise DataError(str(fault)) from None
        return corrupted.cpu()

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


def settle(
    native: tuple[int, int] | None, options: Mapping[str, Any], texture: str = "", img_size: int | None = None
) -> tuple[Recipe, tuple[str, ...]]:
    """Return the recipe for images of this (height, width), and lines for the user. Without img_size and crop_pct it is
    the benchmark's 224 and 0.875, or images of 32x32 as they are. Raises ProtocolError for a setting out of range."""
    names = ("constants", "variant", "seed", "frost_dir", "crop_pct", "interpolation")
    constants, variant, seed, frost_dir, crop_pct, interpolation = (options[name] for name in names)
    frost_dir, device = None if frost_dir is None else str(frost_dir), pick_device(options["device"])
    texture = texture or asked_texture(options["corruptions"] or "") or "photographs"
    img_size = options["img_size"] if img_size is None else img_size
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
    return Recipe(preprocessing, constants, variant, seed, frost_dir, texture, device), tuple(filter(None, lines))


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
Wanted = Mapping[str, tuple[int, ...]]


def write_tree(
    out: Path,
    dataset: Dataset,
    wanted: Wanted,
    recipe: Recipe,
    image_format: str,
    batch_size: int,
    workers: int | None,
    tell: Callable[[int], None],
) -> tuple[int, int, list[str]]:
    """Write the files that do not exist yet, each whole, after `prepare`. Return how many were made, how many were
    there, and why images could not be read. tell: takes numbers of files that are done. Raises RunError."""
    made, found, bad = 0, 0, list[str]()
    folders = [(name, severity) for name, severities in wanted.items() for severity in severities]
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
            found += there
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
    return made, found, bad


def prepare(
    out: Path, dataset: Dataset, whole: Dataset, wanted: Wanted, recipe: Recipe, image_format: str, frost: str | None
) -> None:
    """Write `corruptions.json`, or extend it by what is asked for now. whole: all samples of the source, which
    `--limit` may not change. frost: digest of its photographs. Raises RunError where the folder holds something else or
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
    before = old.get("frost photographs")
    if before and frost and before != frost:
        raise RunError(f"{path}: the tree was made with different frost photographs; choose another folder")
    made = {name: set(severities) for name, severities in old.get("corruptions", {}).items()}
    for name, severities in wanted.items():
        made.setdefault(name, set()).update(severities)
    manifest = {
        "deciding": deciding,
        "frost photographs": frost or before,
        "source": {"name": dataset.name, "root": dataset.root, "layout": dataset.layout},
        "corruptions": {name: sorted(severities) for name, severities in made.items()},
        "jpeg": {"quality": JPEG_QUALITY, "optimize": True} if image_format == "jpeg" else None,
        "versions": {name: metadata.version(name) for name in ("robustkit-audit", "torch", "numpy", "pillow")}
        | {"python": platform.python_version()},
    }
    text = json.dumps(manifest, indent=2, ensure_ascii=False) + "\n"
    text = re.sub(r"\[\s+(\d[\d,\s]*\d|\d)\s+\]", lambda match: f"[{' '.join(match[1].split())}]", text)
    write_whole(path, text.encode(), remedy="choose a folder with --write")


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


LEVELS = 1.0  # of 255, the most that JPEG and resize may change a picture that is not random
SHARE = 0.1  # of our own figure: the most by which draw or strength may differ
FEWEST = 5  # fewest images to judge a random corruption by
DRIFT_RULE = (
    f"no difference found on these images: without random numbers, released and ours are within {LEVELS:g} grey "
    "level of "
    f"each other; with them, they differ by at most {SHARE:.0%} more than two draws of our own do, and are as far from "
    f"the clean image to {SHARE:.0%} ({LEVELS / 2:g} grey levels if more), plus twice the standard error over images"
)


class Distance(NamedTuple):
    """Mean absolute differences over one image, in grey levels. apart: released and ours. own: ours with this seed and
    with the next one. released, ours: to the clean image."""

    apart: float
    own: float
    released: float
    ours: float


@dataclass
class Drift:
    """Distances by (corruption, severity), each by sample id; lines on what could not be compared."""

    distances: dict[tuple[str, int], dict[str, Distance]] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)

    def rows(self) -> list[dict[str, Any]]:
        """Return a row per corruption (severity None: each image's mean over severities), then one per severity."""
        rows = []
        for name in dict.fromkeys(name for name, _ in self.distances):
            severities = [severity for other, severity in self.distances if other == name]
            by_image: dict[str, list[Distance]] = {}
            for severity in severities:
                for sample_id, distance in self.distances[name, severity].items():
                    by_image.setdefault(sample_id, []).append(distance)
            each = [_row(name, s, [s], list(self.distances[name, s].values())) for s in severities]
            whole = _row(name, None, severities, list(map(_mean, by_image.values())))
            odd = [str(row["severity"]) for row in each if row["verdict"] == "differs"]
            if odd and len(odd) < len(severities):  # severities in another order have the same mean
                whole["verdict"] = f"differs at {'+'.join(odd)}"
            elif odd:
                whole["verdict"] = "differs"
            rows += [whole, *each]
        return rows


def measure(
    tree: CorruptedTree,
    dataset: Dataset,
    wanted: Wanted,
    recipe: Recipe,
    batch_size: int,
    workers: int | None,
    tell: Callable[[int], None],
) -> Drift:
    """Compare the tree's files with the images corrupted here, saved as JPEG first where the tree's are; what it lacks
    is left out and reported. Raises DataError where the tree's images have another size than the recipe's."""
    drift = Drift()
    cells = [(name, severity) for name, severities in wanted.items() for severity in severities]
    for name, severity in list(cells):
        missing = set(tree.missing(dataset.samples, name, severity))
        if missing:
            count = "no files of these images" if len(missing) == len(dataset) else f"{len(missing)} files are missing"
            there = (name, severity) in tree.folders
            drift.lines.append(f"{name}, severity {severity}: {count if there else 'not in the tree'}; skipped")
            tell(len(missing))
        if len(missing) == len(dataset):
            cells.remove((name, severity))
    with ThreadPoolExecutor(workers or usual_workers()) as pool:
        for start in range(0, len(dataset.samples), batch_size):
            clean, unread = recipe.decoded(dataset, dataset.samples[start : start + batch_size], pool)
            drift.lines += (f"{why}; excluded" for why in unread.values())
            for name, severity in cells:
                distances = _compare(tree, clean, name, severity, recipe, drift.lines)
                drift.distances.setdefault((name, severity), {}).update(distances)
                tell(len(distances))
    return drift


def _compare(
    tree: CorruptedTree,
    clean: Sequence[tuple[Sample, Tensor]],
    name: str,
    severity: int,
    recipe: Recipe,
    lines: list[str],
) -> dict[str, Distance]:
    released: list[tuple[Sample, Tensor, Tensor, str]] = []
    for sample, pixels in clean:
        path = tree.path(sample.id, name, severity)
        if path is None:
            continue
        try:
            image = read_image(tree.read(sample.id, name, severity), path)
        except BadImageError as fault:
            lines.append(f"{fault}; excluded")
            continue
        height, width = recipe.preprocessing.input_size
        if image.size != (width, height):
            raise DataError(f"{path} is {image.size[1]}x{image.size[0]}; give --img-size {image.size[1]}")
        image_format = "jpeg" if path.lower().endswith((".jpeg", ".jpg")) else "png"
        released.append((sample, pixels, tree_pixels(image, recipe.preprocessing), image_format))
    if not released:
        return {}
    ids = [sample.id for sample, *_ in released]
    batch = torch.stack([pixels for _, pixels, *_ in released])
    ours, other = (recipe.corrupt(batch, ids, name, severity, seed=recipe.seed + more) for more in (0, 1))
    distances = {}
    for (sample, pixels, theirs, image_format), first, second in zip(released, ours, other, strict=True):
        mine, again = first, second
        if image_format == "jpeg":  # after saving them likewise
            saved = (read_image(encode(picture, image_format), "our own") for picture in (first, second))
            mine, again = (torch.from_numpy(np.array(picture)).permute(2, 0, 1) for picture in saved)
        pairs = ((theirs, mine), (mine, again), (theirs, pixels), (mine, pixels))
        distances[sample.id] = Distance(*(float((a.int() - b.int()).abs().double().mean()) for a, b in pairs))
    return distances


def _mean(distances: Sequence[Distance]) -> Distance:
    return Distance(*(sum(column) / len(distances) for column in zip(*distances, strict=True)))


def _row(name: str, severity: int | None, severities: Sequence[int], images: Sequence[Distance]) -> dict[str, Any]:
    return {
        "corruption": name,
        "severity": severity,
        "severities": list(severities),
        "images": len(images),
        **(_mean(images)._asdict() if images else {}),
        "verdict": verdict(images),
    }


def verdict(images: Sequence[Distance]) -> str:
    """Return `same`, `differs` or `too few images`, by `DRIFT_RULE`."""
    if not images:
        return "too few images"
    mean = _mean(images)
    if mean.own == 0:
        return "same" if mean.apart <= LEVELS else "differs"
    if len(images) < FEWEST:
        return "too few images"
    excess = [image.apart - image.own for image in images]
    strength = [image.released - image.ours for image in images]
    errors = [float(np.std(values, ddof=1)) / math.sqrt(len(values)) for values in (excess, strength)]
    drawn = mean.apart - mean.own - 2 * errors[0] <= max(SHARE * mean.own, LEVELS / 2)
    strong = abs(mean.released - mean.ours) - 2 * errors[1] <= max(SHARE * mean.ours, LEVELS / 2)
    return "same" if drawn and strong else "differs"


def drift_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    shown = [
        (
            row["corruption"],
            "1-5" if len(row["severities"]) == 5 else "+".join(map(str, row["severities"])),
            str(row["images"]),
            f"{row['apart']:.2f}",
            f"{row['own']:.2f}" if row["own"] else "not random",
            f"{row['released']:.2f}",
            f"{row['ours']:.2f}",
            row["verdict"],
        )
        for row in rows
        if row["severity"] is None and row["images"]
    ]
    means = ("released − ours", "ours, two draws", "released − clean", "ours − clean")
    return Table("", ("corruption", "severities", "images", *means, "verdict"), tuple(shown), spare=("images",))
