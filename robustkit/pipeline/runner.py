"""Run the units of work that have no record yet.

A unit is (checkpoint, condition, shard): a shard is a fixed run of sample ids, so units do not depend on the batch
size. Inputs are read once per shard, by threads, ahead of the model, and serve all its conditions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import pyarrow as pa
import torch
from torch import Tensor

from ..common.steady import lacks_order
from ..data.dataset import Sample
from ..errors import BadImageError, ModelError, RobustkitError
from ..evaluations.family import Family, family_of
from ..evaluations.subject import Batch, Evaluation, Subject
from ..evaluations.supply import Reader, Supply
from ..models.batch_size import out_of_memory
from ..protocol.condition import Condition
from ..runs.binding import provenance_metadata
from ..runs.folder import RunFolder
from ..runs.pictures import Picture, PicturePlan, write_pictures
from ..runs.progress import Progress

T = TypeVar("T")
Decoding = list[tuple[Sample, "Future[Tensor | str]"]]
"""Samples with the futures of their inputs, or of the reasons why they have none."""


class Decoder:
    """A reader of the inputs of the next shards, in threads.

    overlap: while a shard is computed, the next one is decoded, so that a GPU need not wait; two shards are held. On a
    CPU, which both would share, a shard is decoded first: threads that decode while others multiply make all of them
    wait for each other.
    """

    def __init__(self, workers: int, overlap: bool) -> None:
        self.overlap = overlap
        self.pool = ThreadPoolExecutor(max(workers, 1), thread_name_prefix="robustkit-decode")

    @staticmethod
    def _input(read: Reader, sample: Sample) -> Tensor | str:
        try:
            return read(sample)
        except BadImageError as fault:
            return str(fault)

    def shards(self, shards: Iterable[tuple[T, Reader, Sequence[Sample]]]) -> Iterator[tuple[T, Decoding]]:
        """Yield each shard's key with its samples and the futures of their inputs."""
        ahead: tuple[T, Decoding] | None = None
        try:
            for key, read, shard in shards:
                submitted = [(sample, self.pool.submit(self._input, read, sample)) for sample in shard]
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
    """A shard, by its number, and conditions that use the same files of it, which are decoded once."""

    shard: int
    conditions: tuple[Condition, ...]


def pieces(run: RunFolder, name: str, conditions: Sequence[Condition], shards: int) -> list[Piece]:
    """Return what lacks records, by shard: all conditions on clean inputs together, and each released corruption."""
    units = []
    for shard in range(shards):
        lacking = [c for c in conditions if not run.shard_path(name, c.text, shard).is_file()]
        clean = tuple(c for c in lacking if not c.released)
        units += [Piece(shard, group) for group in (clean, *((c,) for c in lacking if c.released)) if group]
    return units


def run_units(
    run: RunFolder,
    subject: Subject,
    supply: Supply,
    work: Iterable[Piece],
    shard_size: int,
    provenance: Callable[[str], Mapping[str, Any]],
    progress: Progress,
    wanted: PicturePlan = PicturePlan(),  # noqa: B008 - frozen
    say: Callable[[str], None] = lambda line: None,
) -> None:
    """Compute the units of `work` and write each as it is done.

    provenance: of the rows under a condition, by its text. wanted: the samples whose pictures are kept.
    """
    name, asked = subject.classifier.identity.name, subject.settings.batch_size
    cuts = (
        (
            piece,
            supply.reader(piece.conditions[0]),
            supply.dataset.samples[piece.shard * shard_size : (piece.shard + 1) * shard_size],
        )
        for piece in work
    )
    decoder = Decoder(subject.settings.workers, overlap=subject.settings.device.type != "cpu")
    for piece, decoding in decoder.shards(cuts):
        subject.forget()
        for condition in piece.conditions:
            progress.start(name, condition.group or condition.text, len(decoding))
            began, before = time.monotonic(), subject.settings.batch_size
            computed = _unit(subject, supply, decoding, condition, progress, wanted.under(condition))
            metadata = provenance_metadata(provenance(condition.text), piece.shard)
            write_pictures(run, name, condition.text, piece.shard, computed.pictures, metadata)
            metadata[b"notes"] = json.dumps(list(computed.notes)).encode()
            metadata |= computed.metadata
            if (size := subject.settings.batch_size) != asked:
                metadata[b"batch_size"] = str(size).encode()
                if size != before:
                    say(f"{name}: out of memory with batches of {before}; continuing with {size}")
            timing = {"seconds": time.monotonic() - began, "stages": computed.seconds}
            path = run.shard_path(name, condition.text, piece.shard)
            rows = computed.table(subject.schema, metadata, family_of(condition.name).columns)
            run.write_shard(path, rows, timing)


@dataclass
class _Computed:
    """What was computed for a shard under one condition, or for a part of it.

    notes: in order, as keys. metadata: for the record, besides what every record has.
    """

    rows: list[dict[str, Any]] = field(default_factory=list)
    pictures: dict[str, Picture] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    metadata: dict[bytes, bytes] = field(default_factory=dict)

    def add(self, more: _Computed) -> None:
        self.rows += more.rows
        self.pictures |= more.pictures
        self.seconds |= more.seconds
        self.notes |= more.notes
        self.metadata |= more.metadata

    def table(self, schema: pa.Schema, metadata: dict[bytes, bytes], added: Mapping[str, pa.DataType]) -> pa.Table:
        """Return the rows in the order of their samples, with the columns that the condition adds."""
        rows = sorted(self.rows, key=lambda row: str(row["sample_id"]))
        more = dict.fromkeys(key for row in rows for key in row if key not in schema.names)
        fields = [*schema, *((key, added.get(key, pa.int32())) for key in more)]
        return pa.Table.from_pylist(rows, schema=pa.schema(fields, metadata=metadata))


def _unit(
    subject: Subject,
    supply: Supply,
    decoding: Decoding,
    condition: Condition,
    progress: Progress,
    keep: Container[str],
) -> _Computed:
    """Compute one shard under one condition, in batches that are halved where memory is short."""
    computed, start = _Computed(), 0
    shown = condition.under or condition
    family = family_of(condition.name)
    whole = family_of(shown.name).takes_shards(shown, subject.card)
    while start < len(decoding):
        part = decoding[start : start + (len(decoding) if whole else subject.settings.batch_size)]
        more = None
        try:
            more = _batch(subject, supply, part, condition, family, progress, keep)
        except ModelError as fault:
            if not out_of_memory(fault.__cause__) or subject.settings.batch_size == 1:
                raise
        if more is None:  # now that the error no longer holds what the failed pass had
            subject.halve()
            continue
        computed.add(more)
        start += len(part)
        progress.advance(len(part))
    return computed


def _batch(
    subject: Subject,
    supply: Supply,
    part: Decoding,
    condition: Condition,
    family: Family,
    progress: Progress,
    keep: Container[str],
) -> _Computed:
    """Compute some samples under one condition, unreadable ones included.

    Raises:
        ModelError: the network fails.
    """
    computed, judged = _Computed(), subject.needs_truth(condition)
    readable: dict[tuple[int, ...], list[tuple[Sample, Tensor, Any]]] = {}  # by shape: a batch has one
    for sample, future in part:
        read = future.result()
        if not isinstance(read, str):
            try:
                truth = supply.locate(sample, read) if judged else None
            except BadImageError as fault:  # its mask
                read = str(fault)
        if isinstance(read, str):
            computed.rows.append(subject.unread(sample) | {"error": read})
        else:
            readable.setdefault(tuple(read.shape), []).append((sample, read, truth))
    for alike in readable.values():
        samples, inputs, truths = zip(*alike, strict=True)
        try:
            batch = Batch(torch.stack(inputs), samples, truths, keep, progress.stage)
            done = evaluate(family, subject, batch, condition)
        except RobustkitError:
            raise
        except Exception as fault:  # a network, or a plug-in, may raise anything
            name, first = subject.classifier.identity.name, (str(fault).splitlines() or [""])[0]
            raise ModelError(
                f"{name} fails under {condition.text} on {len(samples)} images: {type(fault).__name__}: {first}; "
                f"--debug shows where"
            ) from fault
        values = zip(*done.columns.values(), strict=True)
        rows = [dict(zip(done.columns, row, strict=True)) for row in values]
        computed.add(_Computed(rows, done.pictures, done.seconds, dict.fromkeys(done.notes), done.metadata))
    return computed


def evaluate(family: Family, subject: Subject, batch: Batch, condition: Condition) -> Evaluation:
    """Return the columns of a batch under a condition of a family.

    Attacks run in the settings' dtype; what they return is scored in float32 (or as the card says), so that a break
    found in low precision counts only when float32 confirms it.

    Where the device has no deterministic algorithm for an operation, the operation goes on without, and the record
    names it.
    """
    rng = subject.rng(batch.samples, condition)
    unordered = subject.unordered.get(condition.text)
    if unordered is None:
        try:
            with subject.steady(rng):
                return family.evaluate(subject, batch, condition, rng)
        except RuntimeError as fault:
            if not lacks_order(fault):
                raise
            unordered = subject.unordered[condition.text] = {lacks_order(fault)}
    with subject.steady(rng, strict=False) as names:
        done = family.evaluate(subject, batch, condition, rng)
    unordered |= names
    return replace(done, metadata=done.metadata | {b"deterministic": json.dumps(sorted(unordered)).encode()})
