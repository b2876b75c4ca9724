"""Plan a run of detections that another system made, and write its records; no network is loaded."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...common.environment import count_in
from ...common.finding import Finding
from ...common.preprocessing import Preprocessing
from ...data.dataset import Dataset, Sample
from ...errors import DataError, NothingEvaluated, ProtocolError
from ...evaluations.corruptions import corrupted_of
from ...models.identity import ModelIdentity, display_name
from ...pipeline.audit import Checkpoints, Say, carried_out, takes_options_of
from ...pipeline.classification import PREDICTIONS
from ...pipeline.inputs import evaluation_condition
from ...pipeline.manifest import describe
from ...pipeline.pending import checkpoint_groups, pending_work, units_of
from ...pipeline.plan import DescribedCheckpoint, Plan
from ...pipeline.processes import Ranks
from ...pipeline.progress import Estimate, Reporter
from ...protocol.card import load_card
from ...protocol.condition import CLEAN, Condition
from ...report.refresh import refresh
from ...report.run import Run
from ...runs.manifest import ELSEWHERE
from ...runs.progress import Progress
from ...runs.untrusted import provenance_metadata, provenance_of
from . import DetectionRequest
from .files import OFTEN, Annotations, Results, read_annotations, read_results
from .matching import AREAS, Ints, is_outside, matches_of
from .scores import DETECTED, TRUE

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .keywords import DetectionOptions

RECORD = pa.schema(
    {
        "sample_id": pa.string(),
        **dict.fromkeys(("coco_id", "truth"), pa.int64()),
        "score[]": pa.list_(pa.float64()),
        **{name: pa.list_(pa.int32()) for name in (*DETECTED, *TRUE) if name != "score[]"},
        "error": pa.string(),
    }
)
"""One row per image. coco_id: its id in the annotations. truth: a digest of what is true of it, of 48 bits. category[],
score[]: of the detections that count; all[], small[], medium[], large[]: their `Matches.outcomes`. true category[],
true area[]: of each object that is no crowd, its category and by bits the areas that it is of. error: null."""
FILES = 1024
"""Of a folder, at most."""
_FEW = 0.5  # the share of images with objects and without detections from which a finding asks whether all were seen
_SEVERITY = re.compile("[1-5]")


@dataclass(frozen=True)
class _Detector:
    """A checkpoint: what the user named, and its files by condition."""

    name: str
    spec: str
    files: Mapping[Condition, Path]

    def read(self, condition: Condition, truth: Truth) -> Results:
        return read_results(self.files[condition], truth.annotations.layout, truth.iou_type)


def plan(request: DetectionRequest) -> Plan:
    """Return the plan of a run of detections. Raises RobustkitError for a file, or a request, that makes no sense."""
    if count_in("WORLD_SIZE", 1) > 1:
        raise ProtocolError(f"{request.checkpoints[0]}: nothing is computed; run it without torchrun")
    if request.card.scoring != (usual := load_card(DetectionRequest.protocol)).scoring:
        raise ProtocolError(f"protocol {request.card.name}: its scoring is not COCO's; expected that of {usual.name}")
    detectors = _detectors(request)
    truth = Truth(read_annotations(Path(request.data_dir), request.iou_type), request.iou_type)
    dataset = truth.dataset.select(ids=None if request.ids is None else Path(request.ids), seed=request.seed)
    if not dataset.samples:
        raise NothingEvaluated(f"{request.data_dir}: no image is left; relax --ids")
    if truth.annotations.crowd.all():
        raise DataError(f"{request.data_dir}: no object that is no crowd; expected some to detect")
    run = Run(request.folder(detectors[0].name))
    digests = dict(zip(truth.annotations.layout.names, truth.digests.tolist(), strict=True))
    return Plan(
        request=replace(request, shard_size=request.shard_size or request.least_shard),
        run=run,
        contenders=tuple(DescribedCheckpoint(describe(*_identity(each, truth))) for each in detectors),
        conditions=tuple(detectors[0].files),
        dataset=dataset,
        digest=partial(dataset.digest_of, [str(digests[sample.id]) for sample in dataset.samples]),
        finish=partial(refresh, run),
        lines=(*dataset.notes, f"{', '.join(each.name for each in detectors)}: {ELSEWHERE}"),
        write=partial(_write, detectors, truth),
    )


def _detectors(request: DetectionRequest) -> list[_Detector]:
    """Return the checkpoints, which have the same conditions, clean first."""
    detectors = list[_Detector]()
    for spec in map(str, request.checkpoints):
        path = Path(spec.removeprefix(PREDICTIONS))
        if not spec.startswith(PREDICTIONS):
            raise ProtocolError(f"{spec}: only detections are scored; give {PREDICTIONS}FILE or {PREDICTIONS}FOLDER")
        name = display_name(path.name if path.is_dir() else path.stem)
        files = dict(_conditions_in(path, request.corrupted_by)) if path.is_dir() else {CLEAN: path}
        detectors.append(_Detector(name, spec, files))
    first = detectors[0]
    for place, other in enumerate(detectors):
        if other.name in [each.name for each in detectors[:place]]:
            raise ProtocolError(f"{other.spec}: a second checkpoint {other.name}; rename the file or the folder")
        if of_one := {*other.files} ^ {*first.files}:
            text = min(condition.text for condition in of_one)
            raise DataError(f"{first.name} and {other.name}: one has no {text}; expected the same conditions of all")
    return detectors


def _conditions_in(folder: Path, corrupted_by: str | None) -> Iterator[tuple[Condition, Path]]:
    """Yield conditions and files of a folder, in the order of the benchmark. Raises DataError for a file that is of no
    condition, or two of one; ProtocolError where nobody says whose corruptions they are of."""
    paths = sorted(path for path in folder.rglob("*.json") if not path.name.startswith("."))
    if not 0 < len(paths) <= FILES:
        raise DataError(f"{folder}: {len(paths)} .json files; expected 1 to {FILES}, such as clean.json and fog/3.json")
    places = dict[Condition, Path]()
    for path in paths:
        *folders, name = path.relative_to(folder).with_suffix("").parts
        text = name
        if folders:
            if len(folders) > 1 or not _SEVERITY.fullmatch(name):
                raise DataError(f"{path}: of no condition; expected such as {folder / 'fog' / '3.json'}")
            if corrupted_by is None:
                which = "bethgelab (the package imagecorruptions) or hendrycks"
                raise ProtocolError(f"{path}: what corrupted its images is not known; give --corrupted-by {which}")
            text = f"corruption({folders[0]},severity={name},variant={corrupted_by})"
        try:
            condition = evaluation_condition(text)
        except ProtocolError as fault:
            raise ProtocolError(f"{path}: {fault}") from None
        if condition != CLEAN and corrupted_of(condition) is None:
            raise ProtocolError(f"{path}: {text} is no corruption; expected clean or a corruption at a severity")
        if (other := places.setdefault(condition, path)) != path:
            raise DataError(f"{path} and {other} are both of {condition.text}; leave one out")
    yield from sorted(places.items(), key=lambda pair: (pair[0] != CLEAN, pair[0].text))


def _identity(detector: _Detector, truth: Truth) -> tuple[ModelIdentity, Preprocessing]:
    """Return what run.json says about a detector, of which nothing is known but its files; these are all read. Its
    SHA-256 is that of the files, so that no run is continued with others."""
    total = hashlib.sha256()
    for condition in detector.files:
        total.update(f"{condition.text}\0{detector.read(condition, truth).digest}\n".encode())
    preprocessing = Preprocessing.standardised((0.0,), (1.0,))
    identity = ModelIdentity(
        name=detector.name,
        spec=detector.spec,
        path=None,
        sha256=total.hexdigest(),
        arch="unknown",
        attention="unknown",
        attention_source="",
        num_classes=len(truth.annotations.layout.category_ids),
        preprocessing=preprocessing,
        weights=ELSEWHERE,
    )
    return identity, preprocessing


# Records


@dataclass(frozen=True)
class Truth:
    """What detections are compared with."""

    annotations: Annotations
    iou_type: str

    @cached_property
    def dataset(self) -> Dataset:
        layout, shapes = self.annotations.layout, self.annotations.shapes
        named = "id" if layout.names[0] == str(layout.ids[0]) else "file_name"
        objects = f"{len(shapes.images)} objects of {len(layout.category_names)} categories"
        crowds = f"{self.annotations.crowd.sum()} of them crowds"
        notes = [f"layout coco: {len(layout.ids)} images, {objects}, {crowds}; images are known by {named}"]
        if self.annotations.zero_id:
            notes.append("an annotation has the id 0, whose match pycocotools counts as wrong; here it counts as right")
        samples = tuple(Sample(name, -1) for name in sorted(layout.names))
        of, root = f"coco {self.iou_type}", str(layout.where)
        return Dataset(layout.where.stem, root, of, layout.category_names, samples, notes=tuple(notes))

    @cached_property
    def digests(self) -> Ints:
        """(n,): of what is true of each image, 48 bits, which floats hold exactly."""
        annotations, shapes = self.annotations, self.annotations.shapes
        every = [hashlib.sha256(f"{self.iou_type} {number}".encode()) for number in annotations.layout.ids]
        categories = annotations.layout.category_ids[shapes.categories]
        for place in np.lexsort((shapes.areas, categories, shapes.images)).tolist():
            content = f"{categories[place]} {float(shapes.areas[place])!r} {int(annotations.crowd[place])} "
            every[shapes.images[place]].update(content.encode() + shapes.outlines[place].tobytes())
        return np.array([int.from_bytes(each.digest()[:6], "big") for each in every], dtype=np.int64)

    @cached_property
    def columns(self) -> dict[str, pa.Array]:
        """The columns of a record that are the same under every condition."""
        layout, shapes, single = self.annotations.layout, self.annotations.shapes, ~self.annotations.crowd
        order = np.flatnonzero(single)[np.argsort(shapes.images[single], kind="stable")]
        bits = (~is_outside(shapes.areas[order]) << np.arange(len(AREAS))[:, None]).sum(axis=0)
        offsets = np.searchsorted(shapes.images[order], np.arange(len(layout.ids) + 1))
        lists = dict(zip(TRUE, (shapes.categories[order], bits), strict=True))
        whole = {"sample_id": pa.array(layout.names), "coco_id": pa.array(layout.ids), "truth": pa.array(self.digests)}
        return whole | {name: _lists(offsets, values) for name, values in lists.items()}

    def rows(self, results: Results, chosen: Ints) -> tuple[pa.Table, list[str]]:
        """Return the records of images, by their places among all, and notes."""
        annotations, n = self.annotations, len(self.annotations.layout.ids)
        matches = matches_of(results.shapes, results.scores, annotations.shapes, annotations.crowd)
        offsets = np.searchsorted(matches.images, np.arange(n + 1))
        values = (matches.categories, matches.scores, *matches.outcomes)
        lists = {name: _lists(offsets, each) for name, each in zip(DETECTED, values, strict=True)}
        columns = {**self.columns, **lists, "error": pa.nulls(n, pa.string())}
        rows = pa.table({name: columns[name].cast(RECORD.field(name).type) for name in RECORD.names}, schema=RECORD)
        having = np.intersect1d(annotations.shapes.images, chosen)
        empty = np.setdiff1d(having, matches.images)
        notes = []
        if results.outside > OFTEN:
            notes.append(Finding.of("detection/outside", share=f"{results.outside:.0%}".replace("%", " %")))
        if results.again > OFTEN * len(results.scores):
            notes.append(Finding.of("detection/twice", count=results.again, n=len(results.scores)))
        if len(empty) >= max(_FEW * len(having), 1):
            notes.append(Finding.of("detection/without-detections", count=len(empty), n=len(having)))
        return rows.take(chosen), [str(note) for note in notes]


def _lists(offsets: Ints, values: NDArray[Any]) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(values))


def _write(
    detectors: Sequence[_Detector], truth: Truth, plan: Plan, progress: Progress, say: Callable[[str], None]
) -> Reporter:
    """Write the records that are missing."""
    run, samples, size = plan.run, plan.dataset.samples, plan.run.manifest.shard_size
    every = pending_work(plan, 1)
    shards = {each.name: units_of(plan, each.name, plan.conditions) for each in plan.contenders}
    reporter = Reporter(run, plan.conditions, len(samples), shards, Estimate([]), Ranks(), progress)
    places = {name: place for place, name in enumerate(truth.annotations.layout.names)}
    chosen = np.array([places[sample.id] for sample in samples])  # sorted by their names
    for detector, (planned, _), work in zip(detectors, checkpoint_groups(plan), every, strict=True):
        for line in work.lines:
            say(line)
        for condition in plan.conditions:
            lacking = [shard for shard, texts in work.units if condition.text in texts]
            if not lacking:
                continue
            began = time.monotonic()
            rows, notes = truth.rows(detector.read(condition, truth), chosen)
            for shard in lacking:
                mine = rows.slice(shard * size, size)
                reporter.begin(detector.name, condition, len(mine))
                metadata = provenance_metadata(provenance_of(run.manifest, planned.entry, condition.text), shard)
                mine = mine.replace_schema_metadata(metadata | {b"notes": json.dumps(notes).encode()})
                timing = {"seconds": time.monotonic() - began}
                run.write_shard(run.shard_path(detector.name, condition.text, shard), mine, timing)
                reporter.advance(len(mine))
                reporter.written(detector.name, condition)
    return reporter


@takes_options_of(DetectionRequest)
def detection(
    checkpoints: Checkpoints,
    annotations: str | Path,
    *,
    progress: Progress | bool | None = None,
    say: Say = None,
    **options: Unpack[DetectionOptions],
) -> Run:
    """Score detections of other systems, clean and under corruption, and write records, summary and report.

    Args:
        checkpoints: one or several: `predictions:FILE`, COCO results on clean images, or `predictions:FOLDER`, with a
            file for each condition, as clean.json, fog/3.json or `corruption(fog,severity=3).json`.
        annotations: COCO annotations of the images.

    Returns:
        The run, whose results come from its records.

    Raises:
        RobustkitError: anything that is wrong with the arguments or in a file, before a file is written.

    Example:
        >>> import json
        >>> box = {"image_id": 1, "category_id": 1, "bbox": [2, 2, 8, 8]}
        >>> truth = {"images": [{"id": 1}], "categories": [{"id": 1, "name": "cat"}]}
        >>> truth["annotations"] = [{**box, "id": 1, "area": 64, "iscrowd": 0}]
        >>> _ = Path("truth.json").write_text(json.dumps(truth))
        >>> _ = Path("cats.json").write_text(json.dumps([{**box, "score": 0.9}]))
        >>> run = robustkit.detection("predictions:cats.json", "truth.json", out="runs/cats")
        >>> run.results().query("metric == 'map'").value.round(3).tolist()
        [1.0]
    """
    return carried_out(DetectionRequest, checkpoints, annotations, options, progress, say)
