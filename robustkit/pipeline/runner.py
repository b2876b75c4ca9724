"""Units of work, and running those that have no record yet.

A unit is (checkpoint, condition, shard): a shard is a fixed run of sample ids, so units do not depend on the batch
size. Images are decoded once a shard, by threads, ahead of the model, and serve all its conditions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa
import torch
from torch import Tensor

from ..data.dataset import Sample
from ..errors import BadImageError, ModelError
from ..evaluations.evaluator import evaluate
from ..evaluations.family import family_of
from ..evaluations.subject import Batch, Subject
from ..evaluations.supply import Reader, Supply
from ..models.batch_size import out_of_memory
from ..protocol.condition import Condition
from ..runs.binding import provenance_metadata
from ..runs.folder import RunFolder
from ..runs.pictures import Picture, PicturePlan, write_pictures
from ..runs.progress import Progress

T = TypeVar("T")
Decoding = list[tuple[Sample, "Future[Tensor | str]"]]
"""Samples with their pixels to come, or the reason why there are none."""


class Decoder:
    """Reads the images of coming shards in threads.

    overlap: while a shard is computed, the next one is decoded, so that a GPU need not wait; two shards are held. On a
    CPU, which both would share, a shard is decoded first: threads that decode while others multiply make all of them
    wait for each other.
    """

    def __init__(self, workers: int, overlap: bool) -> None:
        self.overlap = overlap
        self.pool = ThreadPoolExecutor(max(workers, 1), thread_name_prefix="robustkit-decode")

    @staticmethod
    def _pixels(read: Reader, sample: Sample) -> Tensor | str:
        try:
            return read(sample)
        except BadImageError as fault:
            return str(fault)

    def shards(self, shards: Iterable[tuple[T, Reader, Sequence[Sample]]]) -> Iterator[tuple[T, Decoding]]:
        """For each shard what stands beside it, and its samples with their pixels to come."""
        ahead: tuple[T, Decoding] | None = None
        try:
            for key, read, shard in shards:
                submitted = [(sample, self.pool.submit(self._pixels, read, sample)) for sample in shard]
                if not self.overlap:
                    wait([future for _, future in submitted])
                    yield key, submitted
                    continue
                if ahead is not None:
                    yield ahead
                ahead = key, submitted
            if ahead is not None:
                yield ahead
        finally:
            self.pool.shutdown(cancel_futures=True)


@dataclass(frozen=True)
class Piece:
    """A shard, by its number, and conditions that look at the same files of it: they are decoded once."""

    shard: int
    conditions: tuple[Condition, ...]


def pieces(run: RunFolder, name: str, conditions: Sequence[Condition], shards: int) -> list[Piece]:
    """What lacks records, by shard: all that starts from the clean image together, and each released corruption."""
    found = []
    for shard in range(shards):
        lacking = [c for c in conditions if not run.shard_path(name, c.text, shard).is_file()]
        clean = tuple(c for c in lacking if not c.released)
        found += [Piece(shard, group) for group in (clean, *((c,) for c in lacking if c.released)) if group]
    return found


def run_units(
    run: RunFolder,
    subject: Subject,
    images: Supply,
    work: Iterable[Piece],
    shard_size: int,
    provenance: Callable[[str], Mapping[str, Any]],
    progress: Progress,
    wanted: PicturePlan = PicturePlan(),  # noqa: B008 - frozen
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Compute the units of `work` and write each as it is done.

    provenance: of what the rows under a condition are, by its text. wanted: of which samples pictures are kept.
    """
    name, asked = subject.classifier.identity.name, subject.settings.batch_size
    cuts = (
        (
            piece,
            images.reader(piece.conditions[0]),
            images.dataset.samples[piece.shard * shard_size : (piece.shard + 1) * shard_size],
        )
        for piece in work
    )
    decoder = Decoder(subject.settings.workers, overlap=subject.settings.device.type != "cpu")
    for piece, decoding in decoder.shards(cuts):
        subject.forget()
        for condition in piece.conditions:
            progress.start(name, condition.group or condition.text, len(decoding))
            began, before = time.monotonic(), subject.settings.batch_size
            found = _unit(subject, images, decoding, condition, progress, wanted.under(condition))
            metadata = provenance_metadata(provenance(condition.text), piece.shard)
            write_pictures(run, name, condition.text, piece.shard, found.pictures, metadata)
            metadata[b"notes"] = json.dumps(list(found.notes)).encode()
            metadata |= found.metadata
            if (size := subject.settings.batch_size) != asked:
                metadata[b"batch_size"] = str(size).encode()
                if size != before:
                    say(f"{name}: out of memory with batches of {before}; going on with {size}")
            timing = {"seconds": time.monotonic() - began, "stages": found.seconds}
            path = run.shard_path(name, condition.text, piece.shard)
            run.write_shard(path, found.table(subject.schema, metadata, family_of(condition.name).columns), timing)


@dataclass
class _Found:
    """What was found of a shard under one condition, or of a part of it. notes: in order, as keys. metadata: for the
    record, beside what every record has."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    pictures: dict[str, Picture] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    metadata: dict[bytes, bytes] = field(default_factory=dict)

    def add(self, more: _Found) -> None:
        self.rows += more.rows
        self.pictures |= more.pictures
        self.seconds |= more.seconds
        self.notes |= more.notes
        self.metadata |= more.metadata

    def table(self, schema: pa.Schema, metadata: dict[bytes, bytes], added: Mapping[str, pa.DataType]) -> pa.Table:
        """The rows in the order of their samples, with the columns that the condition adds."""
        rows = sorted(self.rows, key=lambda row: str(row["sample_id"]))
        more = dict.fromkeys(key for row in rows for key in row if key not in schema.names)
        fields = [*schema, *((key, added.get(key, pa.int32())) for key in more)]
        return pa.Table.from_pylist(rows, schema=pa.schema(fields, metadata=metadata))


def _unit(
    subject: Subject,
    images: Supply,
    decoding: Decoding,
    condition: Condition,
    progress: Progress,
    keep: Container[str],
) -> _Found:
    """One shard under one condition, in batches that are halved where memory is short."""
    found, start = _Found(), 0
    shown = condition.under or condition
    whole = family_of(shown.name).takes_shards(shown, subject.card)
    while start < len(decoding):
        part = decoding[start : start + (len(decoding) if whole else subject.settings.batch_size)]
        more = None
        try:
            more = _batch(subject, images, part, condition, progress, keep)
        except ModelError as fault:
            if not out_of_memory(fault.__cause__) or subject.settings.batch_size == 1:
                raise
        if more is None:  # now that the error no longer holds what the failed pass had
            subject.halve()
            continue
        found.add(more)
        start += len(part)
        progress.advance(len(part))
    return found


def _batch(
    subject: Subject,
    images: Supply,
    part: Decoding,
    condition: Condition,
    progress: Progress,
    keep: Container[str],
) -> _Found:
    """Some samples under one condition, unreadable ones included. Raises ModelError where the network fails."""
    found, judged = _Found(), subject.needs_truth(condition)
    readable: dict[tuple[int, ...], list[tuple[Sample, Tensor, Any]]] = {}  # by size: a batch has one
    for sample, future in part:
        decoded = future.result()
        if not isinstance(decoded, str):
            try:
                truth = images.locate(sample, decoded) if judged else None
            except BadImageError as fault:  # its mask
                decoded = str(fault)
        if isinstance(decoded, str):
            found.rows.append(subject.unread(sample) | {"error": decoded})
        else:
            readable.setdefault(tuple(decoded.shape), []).append((sample, decoded, truth))
    for alike in readable.values():
        samples, pixels, truths = zip(*alike, strict=True)
        try:
            done = evaluate(subject, Batch(torch.stack(pixels), samples, truths, keep, progress.stage), condition)
        except (RuntimeError, ValueError, TypeError, NotImplementedError, MemoryError) as fault:
            name, first = subject.classifier.identity.name, (str(fault).splitlines() or [""])[0]
            raise ModelError(
                f"{name} fails under {condition.text} on {len(samples)} images: {type(fault).__name__}: {first}; "
                f"--debug shows where"
            ) from fault
        values = zip(*done.columns.values(), strict=True)
        rows = [dict(zip(done.columns, row, strict=True)) for row in values]
        found.add(_Found(rows, done.pictures, done.seconds, dict.fromkeys(done.notes), done.metadata))
    return found
