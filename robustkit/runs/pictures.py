"""Pictures that a run keeps for people: what a few chosen samples look like under each condition, small and lossy.

pictures/<checkpoint>/<condition>/<shard>.parquet   one row per kept sample

They are not records: nothing is computed from them, and a run without them is complete.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..common.files import bytes_of
from ..errors import RunError
from .files import folder_name
from .folder import RunFolder
from .links import refuse_link
from .untrusted import metadata_of, read_rows
from .writing import parquet_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from ..protocol.condition import Condition

COLUMNS = ("image", "difference", "heat")


@dataclass(frozen=True)
class Picture:
    """One sample under one condition.

    image: what the model was shown, WebP. difference: that minus the clean image, grey where nothing changed, stretched
    so that the largest change fills the range, WebP; for attacks. heat: the map of `cam(…)`, grey PNG of at most 64 x
    64, from its own lowest to its own highest value.
    """

    image: bytes | None = None
    difference: bytes | None = None
    heat: bytes | None = None


@dataclass(frozen=True)
class PicturePlan:
    """The samples, by id, and the conditions, by text, of which pictures are kept."""

    samples: frozenset[str] = frozenset()
    conditions: frozenset[str] = frozenset()

    @classmethod
    def of(cls, samples: Sequence[str], conditions: Sequence[Condition]) -> PicturePlan:
        """Plan pictures under all conditions; for a corruption, and for maps under it, at its middle severity."""
        severities: dict[str, list[int]] = {}
        for condition in conditions:
            if condition.group:
                severities.setdefault(condition.group, []).append(condition.level)
        middle = {group: sorted(levels)[len(levels) // 2] for group, levels in severities.items()}

        def keeps(condition: Condition) -> bool:
            shown = condition.under or condition
            return not shown.group or shown.level == middle.get(shown.group, shown.level)

        return cls(frozenset(samples), frozenset(condition.text for condition in conditions if keeps(condition)))

    def under(self, condition: Condition) -> frozenset[str]:
        """Return the samples whose pictures are kept under a condition."""
        return self.samples if condition.text in self.conditions else frozenset()


def write_pictures(
    run: RunFolder,
    checkpoint: str,
    condition: str,
    shard: int,
    pictures: Mapping[str, Picture],
    metadata: Mapping[bytes, bytes],
) -> None:
    """Write the pictures of one unit, if there are any. metadata: from `binding.provenance_metadata`."""
    import pyarrow as pa

    if not pictures:
        return
    columns: dict[str, list[Any]] = {"sample_id": list(pictures)}
    columns |= {name: [getattr(kept, name) for kept in pictures.values()] for name in COLUMNS}
    fields = [("sample_id", pa.string()), *((name, pa.binary()) for name in COLUMNS)]
    schema = pa.schema(fields, metadata=dict(metadata))
    path = _folder(run, checkpoint, condition) / f"{shard:05d}.parquet"
    run.write(path, parquet_bytes(pa.table(columns, schema=schema)))


def read_pictures(run: RunFolder, checkpoint: str, condition: str) -> dict[str, Picture]:
    """Return the pictures of a checkpoint under a condition by sample id; empty where none were kept.

    Raises:
        RunError: a file of them is not readable, or belongs to something else.
    """
    pictures: dict[str, Picture] = {}
    for path, data in _files(run, checkpoint, condition):
        fits = partial(run.unit(checkpoint, condition).fault, path.stem, whole=False)
        rows = read_rows(path, data, ["sample_id", *COLUMNS], "pictures", fits).to_pylist()
        pictures |= {row["sample_id"]: Picture(*(row.get(name) for name in COLUMNS)) for row in rows}
    return pictures


def strange_pictures(run: RunFolder, checkpoint: str, conditions: Sequence[str]) -> list[tuple[Path, str]]:
    """Return the files that `read_pictures` would refuse, and why."""
    strange = []
    for condition in conditions:
        for path, data in _files(run, checkpoint, condition):
            metadata, fault = metadata_of(data, "pictures")
            fault = fault or run.unit(checkpoint, condition).fault(path.stem, metadata, data, whole=False)
            if fault:
                strange.append((path, fault))
    return strange


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
