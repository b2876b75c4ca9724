"""Run the units of work that have no record yet.

A unit is (checkpoint, condition, shard): a shard is a fixed run of sample ids, so units do not depend on the batch
size. Inputs are read once per shard, by threads, ahead of the model, and serve all its conditions.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..common.determinism import draw_samples, stack_on, to_device
from ..common.plugins import of_slice
from ..data.dataset import Sample
from ..errors import BadImageError, ModelError, RobustkitError, RunError
from ..evaluations.family import AnyFamily, family_of
from ..evaluations.setup import CHECK, check_setup
from ..evaluations.setup_findings import setup_findings, setup_notes
from ..evaluations.subject import Batch, EvaluatedModel, Evaluation, Reader
from ..models.device import device_name, out_of_memory
from ..protocol.card import samples_of
from ..protocol.condition import CLEAN, Condition
from ..runs.folder import TAKEN, RunFolder
from ..runs.kept_images import (
    DIGEST,
    Differences,
    Picture,
    PicturePlan,
    digest_of_differences,
    read_adversarials,
    write_adversarials,
    write_pictures,
)
from ..runs.progress import Watch
from ..runs.untrusted import provenance_metadata, provenance_of
from .manifest import preprocessing_of, versions
from .plan import EVIDENCE, Plan, PlannedCheckpoint

_AHEAD = 4


class Writer:
    """A thread that writes, `ahead` things at most waiting; a context, left when all is written, also before another
    fault. After a failed write nothing is written; the next `check` or `submit`, or leaving, raises it.
    """

    def __init__(self, ahead: int = _AHEAD) -> None:
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="robustkit-write")
        self._pending: deque[Future[None]] = deque()
        self._ahead = ahead
        self._failed = False

    def check(self) -> None:
        while self._pending and self._pending[0].done():
            self._pending.popleft().result()

    def submit(self, write: Callable[[], None]) -> None:
        """Have something written. Raises what an earlier one raised."""
        while self._pending and (self._pending[0].done() or len(self._pending) >= self._ahead):
            self._pending.popleft().result()
        self._pending.append(self._pool.submit(copy_context().run, self._carry_out, write))

    def _carry_out(self, write: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            write()
        except BaseException:
            self._failed = True
            raise

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown()
        if kind is None:
            for pending in self._pending:
                pending.result()


T = TypeVar("T")
_LARGE = 1 << 30  # bytes


class Shard:
    """The samples of a shard, each with its input or why it has none, as futures. device: where inputs are wanted."""

    def __init__(self, decoding: Sequence[tuple[Sample, Future[Tensor | str]]], device: torch.device) -> None:
        self._decoding = decoding
        self._device = device
        self._read: dict[int, tuple[Sample, Tensor | str, tuple[int, ...]]] = {}
        self._alike: dict[tuple[int, ...], tuple[list[int], Tensor]] = {}

    def __len__(self) -> int:
        return len(self._decoding)

    def places(self, ids: Container[str] | None = None) -> Sequence[int]:
        every = range(len(self))
        return every if ids is None else [place for place in every if self._decoding[place][0].id in ids]

    def read(self, place: int) -> tuple[Sample, Tensor | str, tuple[int, ...]]:
        """Return a sample, its input on the host or the reason why it has none, and the shape of the input."""
        if place not in self._read:
            sample, future = self._decoding[place]
            read = future.result()
            self._read[place] = sample, read, () if isinstance(read, str) else tuple(read.shape)
        return self._read[place]

    def inputs(self, places: Sequence[int]) -> Tensor:
        """Return inputs of one shape, (n, ...), on the device; the caller may write to them. An accelerator gets those
        of the whole shard at once, unless they are large.
        """
        shape = self.read(places[0])[2]
        if shape not in self._alike:
            every = ((place, self.read(place)) for place in range(len(self)))
            alike = {place: read for place, (_, read, own) in every if own == shape and isinstance(read, Tensor)}
            each = alike[places[0]]
            if self._device.type == "cpu" or len(alike) * each.numel() * each.element_size() > _LARGE:
                return stack_on([alike[place] for place in places], self._device)
            self._alike[shape] = list(alike), stack_on(list(alike.values()), self._device)
        indices, inputs = self._alike[shape]
        start = indices.index(places[0])
        if indices[start : start + len(places)] == list(places):
            return inputs[start : start + len(places)].clone()
        return inputs[to_device(torch.tensor([indices.index(place) for place in places]), self._device)]


def decoded(read: Reader, samples: Sequence[Sample], workers: int, device: torch.device) -> list[tuple[Sample, Tensor]]:
    """Return samples with their inputs, decoded in threads; without those that cannot be read."""
    return [
        (sample, pixels)
        for _, shard in decoded_shards([("", read, samples)], workers, device)
        for sample, pixels, _ in map(shard.read, range(len(shard)))
        if isinstance(pixels, Tensor)
    ]


def decoded_shards(
    shards: Iterable[tuple[T, Reader, Sequence[Sample]]], workers: int, device: torch.device
) -> Iterator[tuple[T, Shard]]:
    """Yield shards, read in threads. device: where inputs are wanted. For an accelerator the next shard is decoded
    while one is computed, so two are held; on a CPU first, since threads that decode slow those that multiply.
    """
    pool = ThreadPoolExecutor(max(workers, 1), thread_name_prefix="robustkit-decode")
    ahead: tuple[T, Shard] | None = None
    try:
        for key, read, samples in shards:
            submitted = [(sample, pool.submit(copy_context().run, _input, read, sample)) for sample in samples]
            shard = Shard(submitted, device)
            if device.type == "cpu":
                wait([future for _, future in submitted])
                yield key, shard
                continue
            if ahead is not None:
                yield ahead
            ahead = key, shard
        if ahead is not None:
            yield ahead
    finally:
        pool.shutdown(cancel_futures=True)


def _input(read: Reader, sample: Sample) -> Tensor | str:
    try:
        return read(sample)
    except BadImageError as fault:
        return str(fault)


def _write(
    run: RunFolder,
    unit: tuple[str, Condition, int],
    computed: _Computed,
    schema: pa.Schema,
    metadata: dict[bytes, bytes],
    timing: Mapping[str, Any],
) -> None:
    """Write what a unit made: pictures, adversarial images, and last the record, which says which are its own."""
    name, condition, shard = unit
    write_pictures(run, name, condition.text, shard, computed.pictures, metadata)
    if computed.differences is not None:
        write_adversarials(run, name, condition.text, shard, computed.differences, metadata)
        computed.metadata[DIGEST] = digest_of_differences(computed.differences).encode()
    metadata = metadata | {b"notes": json.dumps(list(computed.notes)).encode()} | computed.metadata
    rows = computed.table(schema, metadata, {**family_of(condition.name).evaluator.columns, TAKEN: pa.bool_()})
    run.write_shard(run.shard_path(name, condition.text, shard), rows, timing)


@dataclass(frozen=True)
class _Images:
    """What is kept of the images of a unit: `keep`, ids of pictures; `hands`, whether adversarial images are. What it
    takes: `passed`, those found for another checkpoint, and their digest.
    """

    keep: Container[str] = ()
    hands: bool = False
    passed: tuple[Differences, str] | None = None

    def starts(self, samples: Sequence[Sample], condition: Condition) -> torch.Tensor | None:
        if self.passed is None:
            return None
        differences, _ = self.passed
        if lost := next((sample.id for sample in samples if sample.id not in differences), None):
            raise RunError(f"{condition.text}: no adversarial sample of {lost}; {condition.source} could not read it")
        return torch.from_numpy(np.stack([differences[sample.id] for sample in samples]))


@dataclass
class _Computed:
    """What was computed for (part of) a shard under a condition: columns by batch, notes as ordered keys, metadata for
    its record, differences of adversarial images, None where these are not kept.
    """

    columns: list[dict[str, list[Any]]] = field(default_factory=list)
    pictures: dict[str, Picture] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict)
    metadata: dict[bytes, bytes] = field(default_factory=dict)
    differences: dict[str, NDArray[np.float16]] | None = None

    def add(self, more: _Computed) -> None:
        self.columns += more.columns
        self.pictures |= more.pictures
        self.seconds |= more.seconds
        self.notes |= more.notes
        self.metadata |= more.metadata
        if more.differences is not None:
            self.differences = {**(self.differences or {}), **more.differences}

    def table(self, schema: pa.Schema, metadata: dict[bytes, bytes], added: Mapping[str, pa.DataType]) -> pa.Table:
        """Return rows in the order of samples, with the condition's columns; parts, `predicted js`, have its type."""
        ids = [str(sample_id) for batch in self.columns for sample_id in batch["sample_id"]]
        order = sorted(range(len(ids)), key=ids.__getitem__)
        batches = sorted((batch for batch in self.columns if batch["sample_id"]), key=lambda b: min(b["sample_id"]))
        more = dict.fromkeys(name for batch in batches for name in batch if name not in schema.names)
        arrays = []
        kinds = {each.name: each.type for each in schema} | dict(added)
        fields = [*schema, *(pa.field(name, kinds.get(name.partition(" ")[0], pa.int32())) for name in more)]
        for each in fields:
            values = [v for b in self.columns for v in b.get(each.name, [None] * len(b["sample_id"]))]
            arrays.append(pa.array([values[place] for place in order], type=each.type))
        return pa.Table.from_arrays(arrays, schema=pa.schema(fields, metadata=metadata))


def evaluate(family: AnyFamily, subject: EvaluatedModel, batch: Batch, condition: Condition) -> Evaluation:
    """Return the columns of a batch. What low precision breaks is scored in float32 (or as the card says); operations
    for which the device has no deterministic algorithm are named in the record.
    """
    rng = subject.rng(batch.samples, condition)
    done = subject.steadily(condition.text, rng, lambda: family.evaluator.evaluate(subject, batch, condition, rng))
    if names := subject.unordered.get(condition.text):
        done = replace(done, metadata=done.metadata | {b"deterministic": json.dumps(sorted(names)).encode()})
    if compiled := subject.search.compiled:
        why = f"torch.compile failed, so the model ran as written ({compiled.failure})"
        done = replace(done, notes=(*done.notes, why) if compiled.failure else done.notes)
    return done


class Worker:
    """What computes in this process. The network asked for last stays on the device. say: takes a line for the user."""

    def __init__(self, plan: Plan, watch: Watch, say: Callable[[str], None]) -> None:
        self.plan, self.run, self.watch, self.say = plan, plan.run, watch, say
        manifest = plan.run.manifest
        self.settings = replace(plan.request.settings, batch_size=manifest.batch_size)
        self._by_text = {condition.text: condition for condition in plan.conditions}
        self._wanted = PicturePlan.of(manifest.pictures, plan.conditions)
        every = (planned for planned in plan.contenders if isinstance(planned, PlannedCheckpoint))
        self._contenders = {planned.name: planned for planned in every}
        device = device_name(self.settings.device)
        self._here = {"batch_size": self.settings.batch_size, "device": device, "versions": versions()}
        self._placed: tuple[str, EvaluatedModel] | None = None

    def check_setup(self, name: str) -> None:
        """Look whether another normalisation or channel order fits a checkpoint better, and report it."""
        planned, subject = self._on_device(name)
        entry, supply = planned.entry, planned.supply
        preprocessing = planned.preprocessing or preprocessing_of(entry)
        read = partial(decoded, supply.reader(CLEAN), workers=self.settings.workers, device=self.settings.device)
        if why := check_setup(self.run, subject, supply, preprocessing, read, self.watch):
            self.say(f"{name}: {CHECK} skipped: {why}")
        evidence = self.run.evidence(name, CLEAN.text)
        for finding in setup_findings(self.run.manifest, name, evidence):
            self.say(f"⚑ {name}: {finding}")
        for note in setup_notes(evidence):
            self.say(f"{name}: {note}")

    def take_evidence(self, name: str, text: str, before: bool = False) -> None:
        """Measure whether an attack's result can be trusted. before: only what is measured before the attack."""
        planned, subject = self._on_device(name)
        condition = self._by_text[text]
        on = self.run, subject, planned.supply.dataset, planned.preprocessing, condition, self.plan.extents[condition]
        of_slice("evidence", EVIDENCE).take(*on, self.watch, self.say, before)

    def compute(self, name: str, work: Iterable[tuple[int, Sequence[str]]]) -> None:
        """Write the records of shards, each under the conditions whose texts come with it. Raises ModelError where the
        network fails on some batch, and RunError where adversarial images or records that a condition takes are missing
        or altered; what was done before it is kept.
        """
        pieces = ((shard, [self._by_text[text] for text in texts]) for shard, texts in work)
        for first in pieces:  # nothing is placed where there is nothing to do
            planned, subject = self._on_device(name)
            supply, every, size = planned.supply, planned.supply.dataset.samples, self.run.manifest.shard_size
            cuts = (
                (piece, supply.reader(piece[1][0]), every[piece[0] * size : (piece[0] + 1) * size])
                for piece in chain([first], pieces)
            )
            taken = dict[int, frozenset[str]]()
            workers, device = subject.settings.workers, subject.settings.device
            with Writer() as writer:
                for (number, conditions), shard in decoded_shards(cuts, workers, device):
                    subject.forget()
                    for condition in conditions:
                        writer.check()
                        text = condition.text
                        if (count := condition.on) and count not in taken:
                            ids = (sample.id for sample in every)
                            taken[count] = draw_samples(ids, count, seed=subject.settings.seed, purpose="part")
                        places = shard.places(taken.get(count))
                        self.watch.begin(name, condition, len(places))
                        began, before = time.monotonic(), subject.settings.batch_size
                        passed = None
                        if condition.source:
                            assert condition.under is not None
                            passed = read_adversarials(self.run, condition.source, condition.under.text, number)
                        keep, hands = self._wanted.under(condition), text in self.plan.handed
                        images = _Images(keep, hands, passed)
                        computed = self._unit(name, shard, places, condition, images)
                        if (now := subject.settings.batch_size) != self.settings.batch_size:
                            computed.metadata[b"batch_size"] = str(now).encode()
                            if now != before:
                                self.say(f"{name}: out of memory with batches of {before}; continuing with {now}")
                        timing = {"seconds": time.monotonic() - began, "stages": computed.seconds}
                        entry = self.run.manifest.checkpoint(name)
                        stated = provenance_of(self.run.manifest, entry, text) | self._here
                        metadata = provenance_metadata(stated, number)
                        unit = name, condition, number
                        writer.submit(partial(_write, self.run, unit, computed, subject.schema, metadata, timing))
                        writer.submit(partial(self.watch.written, name, condition))

    def _unit(self, name: str, shard: Shard, places: Sequence[int], condition: Condition, images: _Images) -> _Computed:
        """Compute samples of a shard, at `places`, in batches, halved where memory is short; mark the others."""
        _, subject = self._on_device(name)
        computed, start = _Computed(differences={} if images.hands else None), 0
        if images.passed is not None:
            computed.metadata[DIGEST] = images.passed[1].encode()
        whole = any(each.whole_shard for each in (condition, condition.under) if each is not None)
        while start < len(places):
            part = places[start : start + (len(places) if whole else subject.settings.batch_size)]
            more = None
            try:
                more = self._batch(name, shard, part, condition, images)
            except ModelError as fault:
                if not out_of_memory(fault.__cause__) or subject.settings.batch_size == 1:
                    raise
            if more is None:  # now that the error no longer holds what the failed pass had
                subject.halve()
                continue
            computed.add(more)
            start += len(part)
            self.watch.advance(len(part))
        if condition.on:
            computed.columns = [columns | {TAKEN: [True] * len(columns["sample_id"])} for columns in computed.columns]
            others = (shard.read(place)[0] for place in sorted({*range(len(shard))}.difference(places)))
            rows = (subject.unread(sample) | {TAKEN: False} for sample in others)
            computed.columns += [{name: [value] for name, value in row.items()} for row in rows]
        return computed

    def _batch(self, name: str, shard: Shard, part: Sequence[int], condition: Condition, images: _Images) -> _Computed:
        """Compute some samples, unreadable ones included. Raises ModelError where the network fails."""
        planned, subject = self._on_device(name)
        computed, judged = _Computed(), subject.needs_truth(condition)
        readable: dict[tuple[int, ...], list[tuple[int, Sample, Any]]] = {}  # by shape: a batch has one
        for place in part:
            sample, read, shape = shard.read(place)
            if not isinstance(read, str):
                try:
                    truth = planned.supply.locate(sample, read) if judged else None
                except BadImageError as fault:  # its mask
                    read = str(fault)
            if isinstance(read, str):
                row = subject.unread(sample) | {"error": read}
                computed.columns.append({name: [value] for name, value in row.items()})
            else:
                readable.setdefault(shape, []).append((place, sample, truth))
        for alike in readable.values():
            places, samples, truths = zip(*alike, strict=True)
            try:
                starts = images.starts(samples, condition)
                inputs, tell = shard.inputs(places), self.watch.stage
                batch = Batch(inputs, samples, truths, images.keep, tell, starts)
                done = evaluate(family_of(condition.name), subject, batch, condition)
                columns = {name: list(values) for name, values in done.columns.items()}
                if wrong := [name for name, values in columns.items() if len(values) != len(samples)]:
                    count = len(columns[wrong[0]])
                    raise ValueError(f"column {wrong[0]!r} has {count} values; expected one for each sample")
            except RobustkitError:
                raise
            except Exception as fault:  # a network, or a plug-in, may raise anything
                first = (str(fault).splitlines() or [""])[0]
                raise ModelError(
                    f"{name} fails under {condition.text} on {len(samples)} {samples_of(subject.card.task).many}: "
                    f"{type(fault).__name__}: {first}; --debug shows where"
                ) from fault
            computed.add(_Computed([columns], done.pictures, done.seconds, dict.fromkeys(done.notes), done.metadata))
            if images.hands and done.change is not None:
                halves = done.change.half().cpu().numpy()
                rows = {sample.id: row for sample, row in zip(samples, halves, strict=True)}
                computed.add(_Computed(differences=rows))
        return computed

    def rest(self) -> None:
        if self._placed is not None:
            self._placed[1].classifier.to("cpu")
            self._placed = None

    def _on_device(self, name: str) -> tuple[PlannedCheckpoint, EvaluatedModel]:
        planned = self._contenders[name]
        if self._placed is None or self._placed[0] != name:
            self.rest()
            self._placed = name, planned.subject(self.settings)
            self._placed[1].run = self.run
        return planned, self._placed[1]
