"""Plan a run of predictions that another system made: records are written from its files, and no network is loaded."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...common.environment import count_in
from ...common.options import options_of
from ...common.preprocessing import Preprocessing
from ...data.dataset import Dataset, Sample, open_dataset
from ...errors import DataError, ProtocolError, unknown
from ...evaluations.attacks import EVERY_ATTACK
from ...evaluations.attacks.evaluate import parse_condition
from ...evaluations.condition import EVERY_FAMILY, is_attack, kind_named
from ...evaluations.corruptions import corrupted_of
from ...models.identity import ModelIdentity, display_name
from ...models.outputs import LEAST
from ...pipeline.classification import PREDICTIONS
from ...pipeline.inputs import evaluation_condition
from ...pipeline.manifest import describe
from ...pipeline.pending import checkpoint_groups, pending_work, units_of
from ...pipeline.plan import DescribedCheckpoint, Plan
from ...pipeline.processes import Ranks
from ...pipeline.progress import Estimate, Reporter
from ...pipeline.request import ClassificationRequest
from ...protocol.card import Card
from ...protocol.condition import CLEAN, Condition, split_condition
from ...report.refresh import refresh
from ...report.run import Run
from ...runs.manifest import ELSEWHERE
from ...runs.progress import Progress
from ...runs.untrusted import provenance_metadata, provenance_of
from ...tasks.labelled.subject import CLASSIFICATION
from .files import Answers, read_answers

_TAKES = (
    *("checkpoints", "data_dir", "data", "limit", "ids", "metadata", "groups", "groups_from", "protocol"),
    *(
        "out",
        "shard_size",
        "seed",
        "batch_size",
        "workers",
        "device",
        "browse",
        "setup_check",
        "parity",
    ),  # change no record
)
_SHARD = 1 << 13  # samples in a file of records, unless given
_TOP = 5

ByName = dict[str, dict[str, Answers]]
"""Predictions by the name of a checkpoint and the text of a condition."""


def plan_predictions(request: ClassificationRequest) -> Plan:
    """Return the plan of a run of predictions. Raises RobustkitError for a file, or a request, that makes no sense."""
    _refuse_idle(request)
    by_name, by_text = _read([Path(str(spec).removeprefix(PREDICTIONS)) for spec in request.checkpoints], request.card)
    whole = _dataset(request, by_name, _classes(by_name, request.model.get("num_classes")))
    outputs = len(whole.class_names)
    dataset = whole.select(
        limit=request.limit, ids=None if request.ids is None else Path(request.ids), seed=request.seed
    )
    for name, of_one in by_name.items():
        if lacking := next((text for text in by_text if text not in of_one), None):
            raise DataError(f"{name} has no predictions under {lacking}; expected the same conditions of all")
        for text, answers in of_one.items():
            _check_samples(answers, f"{name} under {text}", whole, dataset, outputs)
    contenders = tuple(DescribedCheckpoint(describe(*_identity(*each, outputs))) for each in by_name.items())
    if request.parity and len(contenders) < 2:
        raise ProtocolError(f"--parity with {contenders[0].name} alone: expected two checkpoints or more")
    run = Run(request.folder(contenders[0].name))
    without_images = partial(dataset.digest_of, [""] * len(dataset))
    return Plan(
        request=replace(request, shard_size=request.shard_size or _SHARD),
        run=run,
        contenders=contenders,
        conditions=tuple(sorted(by_text.values(), key=lambda condition: condition != CLEAN)),
        dataset=dataset,
        digest=dataset.digest if request.data_dir else without_images,
        finish=partial(refresh, run),
        lines=(*dataset.notes, *_not_read(by_name), f"{', '.join(by_name)}: {ELSEWHERE}"),
        write=partial(_write, by_name),
    )


def _refuse_idle(request: ClassificationRequest) -> None:
    """Raise ProtocolError for an option that would do nothing, and where several processes would read the files."""
    alone = (each for each in options_of(ClassificationRequest) if not each.group and each.name not in _TAKES)
    flags = [each.flag for each in alone if getattr(request, each.name) not in (each.default, "none")]
    flags += [f"--{name.replace('_', '-')}" for name, value in request.model.items() if value and name != "num_classes"]
    if flags:
        raise ProtocolError(f"{', '.join(flags)}: nothing is computed for {PREDICTIONS}FILE; leave it out")
    if count_in("WORLD_SIZE", 1) > 1:
        raise ProtocolError(f"{request.checkpoints[0]}: nothing is computed; run it without torchrun")


def _read(files: Sequence[Path], card: Card) -> tuple[ByName, dict[str, Condition]]:
    """Return what the files have, and their conditions by text. DataError where one prediction is there twice."""
    by_name: ByName = {}
    conditions: dict[str, Condition] = {}
    for file in files:
        for (checkpoint, text), answers in read_answers(file).items():
            try:
                condition = _condition(text, card)
            except ProtocolError as fault:
                raise ProtocolError(f"{file}: {fault}") from None
            name = display_name(checkpoint)
            conditions[condition.text] = condition
            of_one = by_name.setdefault(name, {})
            if (other := of_one.setdefault(condition.text, answers)) is not answers:
                again = f"{file}, which is given twice or spells it in two ways"
                where = f"{other.where} and {file}" if other.where != file else again
                raise DataError(f"{name} under {condition.text} is predicted twice, in {where}; leave one out")
    return by_name, conditions


def _condition(text: str, card: Card) -> Condition:
    """Return the condition that a text names: clean, an attack, or a corruption at a severity. Or ProtocolError."""
    kind = kind_named(split_condition(text)[0])
    if is_attack(kind) and kind not in EVERY_ATTACK:
        raise ProtocolError(unknown("condition", kind, {*EVERY_ATTACK, *EVERY_FAMILY}))
    if not (is_attack(kind) or kind == CLEAN.name):
        condition = evaluation_condition(text)
        if corrupted_of(condition) is None:
            raise ProtocolError(f"condition {text!r}: not of images alone; expected clean, an attack or a corruption")
        return condition
    condition = parse_condition(text, card)
    if condition.on:
        raise ProtocolError(f"condition {text!r}: on={condition.on} is of a part; expected predictions of all samples")
    return condition


def _classes(by_name: ByName, stated: int | None) -> int | None:
    """Return the number of classes as stated, or of scores; None without. DataError where it differs."""
    counts = [(each.classes, each.where) for of_one in by_name.values() for each in of_one.values() if each.classes]
    for count, where in counts:
        if count != counts[0][0]:
            raise DataError(f"{where}: {count} classes, and {counts[0][0]} in {counts[0][1]}; expected as many")
        if stated not in (None, count):
            raise DataError(f"{where}: {count} classes, and --num-classes {stated}; leave that out")
    return counts[0][0] if counts else stated


def _dataset(request: ClassificationRequest, by_name: ByName, classes: int | None) -> Dataset:
    """Return the samples of the data set; without one those that the first file names, with its labels."""
    if request.data_dir:
        dataset = open_dataset(request.data_dir, **{"num_classes": classes, **request.data})
        return replace(dataset, notes=(*dataset.notes, "ids and labels of the predictions are those of the data set"))
    if any(request.data.values()):
        raise DataError("--labels and --layout are about images, and --data-dir is missing; give that, or leave it out")
    first = next(iter(next(iter(by_name.values())).values()))
    every = (each for of_one in by_name.values() for each in of_one.values())
    numbers = (part for each in every for part in (each.labels, each.predicted) if part is not None)
    pairs = sorted(zip(first.ids, first.labels.tolist(), strict=True))
    return Dataset(
        name=first.where.stem,
        root="",
        layout="predictions",
        class_names=tuple(map(str, range(classes or 1 + max(int(some.max()) for some in numbers)))),
        samples=tuple(Sample(name, label) for name, label in pairs),
        notes=("no --data-dir: samples are known by their ids and labels alone",),
    )


def _check_samples(answers: Answers, what: str, whole: Dataset, chosen: Dataset, classes: int) -> None:
    """Raise DataError where a sample has no prediction, is not of the data set, or has another label, and for a class
    that is none.
    """
    labels = dict(zip(answers.ids, answers.labels.tolist(), strict=True))
    where, by_id = f"{answers.where}: {what}", {sample.id: sample for sample in whole.samples}
    of = f"of {whole.root}" if whole.root else "in the first file"
    if missing := [sample.id for sample in chosen.samples if sample.id not in labels]:
        few = f"{missing[0]} has no prediction ({len(missing)} of {len(chosen)} samples have none)"
        raise DataError(f"{where}: {few}; expected one for each sample {of}, or choose some with --ids")
    if strange := next((name for name in answers.ids if name not in by_id), None):
        raise DataError(f"{where}: {strange} is not a sample {of}; an id looks like {whole.samples[0].id!r}")
    for name, label in labels.items():
        sample = by_id[name]
        if label not in (sample.valid or (sample.label,)):
            raise DataError(f"{where}: the label of {name} is {label}, and {sample.label} {of}; expected the same")
    for name, values in (("label", answers.labels), ("prediction", answers.predicted)):
        if values is not None and values.max() >= classes:
            row = int((values >= classes).argmax())
            raise DataError(f"{where}: the {name} of {answers.ids[row]} is {values[row]}; expected 0 to {classes - 1}")


def _not_read(by_name: ByName) -> list[str]:
    """Return a line for each file that has columns which are not read."""
    idle = {each.where: each.idle for of_one in by_name.values() for each in of_one.values() if each.idle}
    columns = {where: ", ".join(f"{name[:40]!r}" for name in names[:8]) for where, names in idle.items()}
    more = {where: f" and {len(names) - 8} more" * (len(names) > 8) for where, names in idle.items()}
    return [f"{where}: columns not read: {columns[where]}{more[where]}" for where in idle]


def _identity(name: str, answers: Mapping[str, Answers], classes: int) -> tuple[ModelIdentity, Preprocessing]:
    """Return what run.json says about a checkpoint, of which nothing is known but its predictions.

    Its SHA-256 is that of these, whatever their order and file, so that no run is continued with others.
    """
    file, total = next(iter(answers.values())).where, hashlib.sha256()
    for text in sorted(answers):
        total.update(text.encode() + b"\0" + answers[text].digest())
    preprocessing = Preprocessing.standardised((0.0,), (1.0,))
    identity = ModelIdentity(
        name=name,
        spec=f"{PREDICTIONS}{file}",
        path=None,
        sha256=total.hexdigest(),
        arch="unknown",
        attention="unknown",
        attention_source="",
        num_classes=classes,
        preprocessing=preprocessing,
        weights=ELSEWHERE,
        notes=tuple(_not_read({name: dict(answers)})),
    )
    return identity, preprocessing


# Records


def _write(by_name: ByName, plan: Plan, progress: Progress, say: Callable[[str], None]) -> Reporter:
    """Write the records that are missing."""
    run, samples, size = plan.run, plan.dataset.samples, plan.run.manifest.shard_size
    every, by_text = pending_work(plan, 1), {condition.text: condition for condition in plan.conditions}
    shards = {each.name: units_of(plan, each.name, plan.conditions) for each in plan.contenders}
    reporter = Reporter(run, plan.conditions, len(samples), shards, Estimate([]), Ranks(), progress)
    for (planned, _), work in zip(checkpoint_groups(plan), every, strict=True):
        for line in work.lines:
            say(line)
        for shard, texts in work.units:
            some = sorted(samples[shard * size : (shard + 1) * size], key=lambda sample: sample.id)
            for text in texts:
                reporter.begin(planned.name, by_text[text], len(some))
                began, answers = time.monotonic(), by_name[planned.name][text]
                columns, notes = scored(answers, some, plan.dataset.valid_labels)
                metadata = provenance_metadata(provenance_of(run.manifest, planned.entry, text), shard)
                schema = CLASSIFICATION.with_metadata(metadata | {b"notes": json.dumps(notes).encode()})
                absent = dict.fromkeys(CLASSIFICATION.names, [None] * len(some))
                rows = pa.table({**absent, **columns}, schema=schema)
                timing = {"seconds": time.monotonic() - began}
                run.write_shard(run.shard_path(planned.name, text, shard), rows, timing)
                reporter.advance(len(some))
                reporter.written(planned.name, by_text[text])
    return reporter


def scored(
    answers: Answers, samples: Sequence[Sample], valid: Sequence[int] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """Return the columns of records of samples, and notes. valid: the classes that compete, None for all; where they do
    not, the likeliest of them is the prediction, and their probabilities are divided by their sum.
    """
    places = {name: row for row, name in enumerate(answers.ids)}
    mine = answers.take(np.array([places[sample.id] for sample in samples]))
    accepted = [sample.valid or (sample.label,) for sample in samples]
    columns: dict[str, Any] = {
        "sample_id": [sample.id for sample in samples],
        "label": [sample.label for sample in samples],
    }
    if mine.scores is None:
        assert mine.predicted is not None
        return columns | _of_predictions(mine.predicted, accepted), []
    scores = mine.scores.astype(np.float64)
    competing = np.ones(scores.shape[1], bool) if valid is None else np.isin(np.arange(scores.shape[1]), valid)
    scores = np.where(competing, scores, -np.inf)
    best = np.argsort(-scores, axis=1, kind="stable")[:, :_TOP]  # of equal ones the first class is ahead
    largest = scores.max(axis=1, keepdims=True)
    p = np.exp(scores - largest) if mine.are_logits else np.where(competing, scores, 0)
    p /= np.maximum(p.sum(axis=1, keepdims=True), LEAST)
    stated = mine.predicted if valid is None else None
    columns |= _of_predictions(best[:, 0] if stated is None else stated, accepted)
    with np.errstate(divide="ignore"):
        log_p = (
            np.log(p) if not mine.are_logits else scores - largest - np.log(np.exp(scores - largest).sum(1)[:, None])
        )
    theirs = np.array([np.logaddexp.reduce(row[list(right)]) for row, right in zip(log_p, accepted, strict=True)])
    of_zero = np.isneginf(theirs)
    hits = [not set(row).isdisjoint(right) for row, right in zip(best.tolist(), accepted, strict=True)]
    columns["top5"] = [hit or right for hit, right in zip(hits, columns["correct"], strict=True)]
    columns["nll"] = -np.where(of_zero, math.log(LEAST), theirs).astype(np.float32)
    columns["confidence"] = p.max(axis=1).astype(np.float32)
    if stated is None:
        columns["tied"] = (scores == largest).sum(axis=1) > 1
    of_ties = stated is not None and bool((stated != best[:, 0]).any())
    notes = {
        "a probability of 0 for the label counts as 2^-149, the least above 0 in float32 (NLL 103.3)": of_zero.any(),
        "stated predictions are taken where an earlier class is as likely; argmax's would be that one": of_ties,
    }
    return columns, [note for note, applies in notes.items() if applies]


def _of_predictions(predicted: NDArray[np.int64], accepted: Sequence[Sequence[int]]) -> dict[str, Any]:
    pairs = zip(predicted.tolist(), accepted, strict=True)
    return {"prediction": predicted.astype(np.int32), "correct": [answer in right for answer, right in pairs]}
