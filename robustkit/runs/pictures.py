"""What a run keeps to be looked at: the images that a chosen few samples became under each condition, small and lossy.

pictures/<checkpoint>/<condition>/<shard>.parquet   one row a kept sample

They are no records: nothing is computed from them, and a run without them is whole.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ..common.files import bytes_of
from ..errors import RunError
from .folder import RunFolder, folder_name
from .links import refuse_link
from .untrusted import metadata_of, read_rows
from .writing import parquet_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from ..protocol.condition import Condition

SIDE = 224
"""The longest side of a kept image; larger ones are made smaller."""
MAP_SIDE = 64
COLUMNS = ("image", "difference", "heat")


@dataclass(frozen=True)
class Picture:
    """One sample under one condition.

    image: what the model was shown, WebP, its longest side at most `SIDE`. difference: that minus the clean image, grey
    where nothing changed, stretched so that the largest change fills the range, WebP; of attacks. heat: the map of
    `cam(…)`, grey PNG of at most 64 x 64, from its own lowest to its own highest value.
    """

    image: bytes | None = None
    difference: bytes | None = None
    heat: bytes | None = None


@dataclass(frozen=True)
class PicturePlan:
    """Of which samples, by id, and under which conditions, by text, pictures are kept."""

    samples: frozenset[str] = frozenset()
    conditions: frozenset[str] = frozenset()

    @classmethod
    def of(cls, samples: Sequence[str], conditions: Sequence[Condition]) -> PicturePlan:
        """All conditions; of a corruption, and of maps under it, only the middle one of its severities."""
        severities: dict[str, list[int]] = {}
        for one in conditions:
            if one.group:
                severities.setdefault(one.group, []).append(one.level)
        middle = {group: sorted(found)[len(found) // 2] for group, found in severities.items()}

        def keeps(one: Condition) -> bool:
            seen = one.under or one
            return not seen.group or seen.level == middle[seen.group]

        return cls(frozenset(samples), frozenset(one.text for one in conditions if keeps(one)))

    def under(self, condition: Condition) -> frozenset[str]:
        """The samples of which pictures are kept under a condition."""
        return self.samples if condition.text in self.conditions else frozenset()


def picture(image: Tensor | None = None, delta: Tensor | None = None, heat: Tensor | None = None) -> Picture:
    """The picture of an image, (3, H, W) uint8 or floats in [0, 1]; a change, (3, H, W) floats in pixels; and a map,
    (H, W) floats in [0, 1].
    """
    return Picture(
        None if image is None else _webp(_bytes(image), quality=80),
        None if delta is None else _webp(_bytes(_stretched(delta)), quality=60),
        None if heat is None else _small_map(_bytes(heat)),
    )


def _stretched(delta: Tensor) -> Tensor:
    largest = float(delta.abs().max())
    return delta / (2 * largest or 1) + 0.5


def _bytes(values: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """(H, W, 3) or (H, W) uint8."""
    values = values.detach().cpu()
    if values.is_floating_point():
        values = values.nan_to_num().clamp(0, 1).mul(255).round().byte()
    found: np.ndarray[tuple[int, ...], np.dtype[np.uint8]] = values.numpy()
    return found.transpose(1, 2, 0) if found.ndim == 3 else found


def _webp(pixels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], quality: int) -> bytes:
    """Images that are small already keep every pixel."""
    from PIL import Image

    image, buffer = Image.fromarray(pixels), io.BytesIO()
    small = max(image.size) <= MAP_SIDE
    image.thumbnail((SIDE, SIDE), Image.Resampling.LANCZOS)
    image.save(buffer, "WEBP", quality=quality, lossless=small)
    return buffer.getvalue()


def _small_map(levels: np.ndarray[tuple[int, ...], np.dtype[np.uint8]]) -> bytes:
    from PIL import Image

    image, buffer = Image.fromarray(levels), io.BytesIO()
    image.thumbnail((MAP_SIDE, MAP_SIDE), Image.Resampling.BILINEAR)
    image.save(buffer, "PNG")
    return buffer.getvalue()


def write_pictures(
    run: RunFolder,
    checkpoint: str,
    condition: str,
    shard: int,
    found: Mapping[str, Picture],
    metadata: Mapping[bytes, bytes],
) -> None:
    """Write the pictures of one unit; of none, nothing. metadata: of `binding.packed`."""
    import pyarrow as pa

    if not found:
        return
    columns = {"sample_id": list(found), **{name: [getattr(one, name) for one in found.values()] for name in COLUMNS}}
    fields = [("sample_id", pa.string()), *((name, pa.binary()) for name in COLUMNS)]
    schema = pa.schema(fields, metadata=dict(metadata))
    path = _folder(run, checkpoint, condition) / f"{shard:05d}.parquet"
    run.write(path, parquet_bytes(pa.table(columns, schema=schema)))


def read_pictures(run: RunFolder, checkpoint: str, condition: str) -> dict[str, Picture]:
    """The pictures of a checkpoint under a condition by sample id; empty where none were kept.

    Raises:
        RunError: a file of them is not readable, or is of something else.
    """
    found: dict[str, Picture] = {}
    for path, data in _files(run, checkpoint, condition):
        fits = partial(run.unit(checkpoint, condition).fault, path.stem, whole=False)
        rows = read_rows(path, data, ["sample_id", *COLUMNS], "pictures", fits).to_pylist()
        found |= {row["sample_id"]: Picture(*(row.get(name) for name in COLUMNS)) for row in rows}
    return found


def strange_pictures(run: RunFolder, checkpoint: str, conditions: Sequence[str]) -> list[tuple[Path, str]]:
    """The files that `read_pictures` would refuse, and why."""
    found = []
    for condition in conditions:
        for path, data in _files(run, checkpoint, condition):
            known, fault = metadata_of(data, "pictures")
            fault = fault or run.unit(checkpoint, condition).fault(path.stem, known, data, whole=False)
            if fault:
                found.append((path, fault))
    return found


def _files(run: RunFolder, checkpoint: str, condition: str) -> Iterator[tuple[Path, bytes]]:
    folder = _folder(run, checkpoint, condition)
    refuse_link(folder, run.path)
    for path in sorted(folder.glob("*.parquet")):
        try:
            yield path, bytes_of(path)
        except OSError as fault:
            raise RunError(f"{path}: pictures cannot be read ({fault}); delete the file, nothing rests on it") from None


def _folder(run: RunFolder, checkpoint: str, condition: str) -> Path:
    return run.path / "pictures" / folder_name(checkpoint) / folder_name(condition)
