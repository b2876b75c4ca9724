"""Choose which samples and maps a gallery draws: checked before an audit, chosen by its records after it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..common.randomness import SampleRng
from ..data.class_names import class_names, target_of
from ..data.dataset import Dataset, Sample
from ..errors import DataError, ModelError, ProtocolError, RunError, unknown
from ..evaluations.maps.condition import TARGETS, MapSpec, parse_named
from ..evaluations.maps.gallery import pick
from ..evaluations.maps.methods import shown
from ..evaluations.subject import Subject
from ..models.classifier import load
from ..models.identity import ModelIdentity
from ..pipeline.inputs import labelled_data
from ..pipeline.request import ClassificationRequest
from ..runs.folder import RunFolder

CHOICES = ("disagreement", "worst", "best", "random")
_SCORED = CHOICES[:3]
_PLAIN = MapSpec("agcam")
COLUMNS = ("sample_id", "error", "correct", "mask_iou", "box_iou", "abpc", "rank_correlation")
Records = Mapping[tuple[str, str], Mapping[str, Mapping[str, Any]]]
"""The row of each sample by checkpoint and condition, with COLUMNS as far as the run has them."""


@dataclass(frozen=True)
class Target:
    """A class that maps are drawn for: `predicted`, `label`, or a class by its name. index: of a named one, among the
    model's outputs.
    """

    name: str
    index: int | None = None

    @property
    def heading(self) -> str:
        """What it is called over its maps."""
        return {PREDICTED: "predicted class", LABEL: "true class"}.get(self, self.name)

    @classmethod
    def of(cls, text: str, names: Sequence[str] = ()) -> Target:
        """Return what a user means. names: of the classes. Raises ModelError where no class is called so."""
        if text in TARGETS:
            return PREDICTED if text == "predicted" else LABEL
        index = target_of(text, names)
        return cls(names[index].split(",")[0], index)

    def place(self, subject: Subject, sample: Sample, logits: Tensor) -> Tensor:
        """Return its index among the classes that compete, a scalar on the host. logits: (1, K) of the clean image."""
        if self == PREDICTED:
            return logits.argmax(dim=1)[0].cpu()
        asked = sample if self.index is None else replace(sample, label=self.index)
        return subject.labels([asked])[0].cpu()


PREDICTED, LABEL = Target("predicted"), Target("label")


def label(spec: MapSpec) -> str:
    """Return the heading of a map: its method, and what differs from the published protocol."""
    odd = [
        f"{key}={getattr(spec, key)}" for key in ("threshold", "target") if getattr(spec, key) != getattr(_PLAIN, key)
    ]
    odd = [*shown(spec.options), *odd]
    return f"{spec.method}({','.join(odd)})" if odd else spec.method


@dataclass(frozen=True)
class Choice:
    """The maps and samples that a gallery draws.

    shown: the maps, controls last and only if named; samples are chosen by the scores of the first map.
    how: one of CHOICES, or `class:NAME`. count: how many samples. ids: exactly these samples instead. targets: the
    classes that each map is drawn for; without any, the one that it is scored for, or those of both objects.
    """

    shown: tuple[MapSpec, ...]
    how: str
    count: int = 12
    ids: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        checkpoints: Sequence[str],
        cams: str | Iterable[str],
        faithfulness: str = "abpc",
        *,
        how: str | None = None,
        count: int = 12,
        ids: Sequence[str] = (),
        targets: Sequence[str] = (),
    ) -> Choice:
        """Return the choice that a user asks for.

        how: by default where checkpoints disagree, or for a single one its worst maps.

        Raises:
            ProtocolError: a choice or map is not understood, a single checkpoint has none to disagree with, or all maps
            are controls.
        """
        maps: dict[str, MapSpec] = {}
        for spec in sorted(parse_named(cams, faithfulness), key=lambda spec: spec.is_control):
            maps.setdefault(label(replace(spec, target="predicted") if targets else spec), spec)
        if all(spec.is_control for spec in maps.values()):
            raise ProtocolError(
                f"--cams {cams}: controls only, which do not look at the image; add a method such as agcam, or leave "
                "the gallery out with --gallery 0"
            )
        if how is None:
            how = "disagreement" if len(checkpoints) > 1 else "worst"
        if how not in CHOICES and not how.startswith("class:"):
            raise ProtocolError(unknown("choice", how, CHOICES, remedy="or class:NAME (--choose)"))
        if how == "disagreement" and len(checkpoints) < 2 and not ids:
            raise ProtocolError(
                "--choose disagreement: a single checkpoint has none to disagree with; give another one, or --choose "
                "worst"
            )
        return cls(tuple(maps.values()), how, count, tuple(ids), tuple(dict.fromkeys(targets)))

    def classes(self, dataset: Dataset, identity: ModelIdentity) -> list[Target]:
        """Return the classes that are asked for.

        Raises:
            ModelError: no class is called so. DataError: it does not compete, or no class is known to be the true one.
        """
        names = class_names(identity.class_names or dataset.class_names, identity.num_classes)
        found = [Target.of(text, names) for text in self.targets]
        for target in found:
            if target == LABEL and any(sample.label < 0 for sample in dataset.samples):
                raise DataError(f"--target label: {dataset.name} has no labels; name a class, or give predicted")
            if target.index is not None and dataset.valid_labels and target.index not in dataset.valid_labels:
                raise DataError(
                    f"--target {target.heading}: not among the {len(dataset.valid_labels)} classes of {dataset.name}, "
                    "which alone compete; name one of those"
                )
        return found

    def samples(self, dataset: Dataset) -> list[Sample]:
        """Return the samples that the choice names by id or class; for any other choice all, in their order.

        Raises:
            DataError: an id names no sample, or no sample is of the class. ProtocolError: there is no such class.
        """
        if self.ids:
            return list(dict.fromkeys(_named(dataset, name) for name in self.ids))
        if not self.how.startswith("class:"):
            return list(dataset.samples)
        if all(sample.label < 0 for sample in dataset.samples):
            raise DataError(f"--choose {self.how}: {dataset.name} has no labels; choose {', '.join(CHOICES)}")
        try:
            target = target_of(self.how[6:], class_names(dataset.class_names, len(dataset.class_names)))
        except ModelError as fault:
            raise ProtocolError(f"--choose {self.how}: {fault}") from None
        members = [sample for sample in dataset.samples if sample.label == target]
        if not members:
            raise DataError(
                f"--choose {self.how}: none of the {len(dataset)} samples is of that class; loosen --limit or --ids"
            )
        return members

    def check(self, request: ClassificationRequest) -> None:
        """Raise RobustkitError where the data set lacks what is chosen, or where it or the model cannot be read."""
        located = request.boxes is not None or request.masks is not None
        unscored = self.how in _SCORED and not self.ids and not located and self.shown[0].faithfulness == "none"
        if not (self.ids or self.targets or unscored or self.how.startswith("class:")):
            return
        identity = load(request.checkpoints[0], **request.model).identity
        dataset = data_of(request, identity)
        self.classes(dataset, identity)
        if unscored and dataset.mask(dataset.samples[0]) is None:
            raise ProtocolError(
                f"--choose {self.how}: no map is scored, because no objects are known and --faithfulness is none; give "
                "--boxes or --masks, or --choose random"
            )
        samples = self.samples(dataset)
        for sample in samples if self.ids else ():
            try:
                dataset.image(sample)
            except DataError as fault:
                raise DataError(f"--show {sample.id}: {fault}; show another sample") from None


def data_of(request: ClassificationRequest, identity: ModelIdentity) -> Dataset:
    """Return the samples of a request, with labels or without."""
    chosen = request.limit, request.ids, request.seed
    return labelled_data(request.data_dir, identity, request.data, *chosen, unlabelled=True)


def _named(dataset: Dataset, name: str) -> Sample:
    try:
        return dataset.select(ids=[name]).samples[0]
    except DataError:
        raise DataError(
            f"--show {name}: no single one of the {len(dataset)} samples of {dataset.name} is named so; an id looks "
            f"like {dataset.samples[0].id!r}"
        ) from None


def chosen(choice: Choice, run: RunFolder, dataset: Dataset, records: Records, seed: int) -> tuple[list[Sample], str]:
    """Return the chosen samples that could be read, and in words how they were chosen."""
    among = choice.samples(dataset)
    for sample in among if choice.ids else ():
        for rows in records.values():
            if (row := rows.get(sample.id)) is None or row["error"] is not None:
                why = "it is not in the run" if row is None else row["error"]
                raise RunError(f"{run.path}: no map of {sample.id} ({why}); show another sample")
    if choice.ids:
        return among, "chosen by id"
    read = {sample.id: sample for sample in among if all(_is_read(rows, sample) for rows in records.values())}
    draws = SampleRng.of(list(read), seed=seed, condition="gallery", device=torch.device("cpu")).uniform((), "order")
    order = [list(read)[index] for index in draws.argsort().tolist()] if read else []
    if choice.how in _SCORED:
        column, said = _score(choice, run, records)
        tables = [rows for (_, text), rows in records.items() if text == choice.shown[0].text]
        scores = {name: [_number(rows[name].get(column)) for rows in tables] for name in order}
        order, words = pick(scores, choice.how, choice.count, order), _words(choice.how, said, len(tables))
    else:
        words = "chosen at random" if choice.how == "random" else f"of class {choice.how[6:]}, chosen at random"
    if not order:
        raise RunError(f"{run.path}: no sample fits --choose {choice.how}; choose another way")
    return [read[name] for name in order[: choice.count]], words


def _is_read(rows: Mapping[str, Mapping[str, Any]], sample: Sample) -> bool:
    return sample.id in rows and rows[sample.id]["error"] is None


def _number(value: float | None) -> float:
    return math.nan if value is None else value


def _score(choice: Choice, run: RunFolder, records: Records) -> tuple[str, str]:
    """Return the column to choose by, and its name: of IoU and ABPC the first that all checkpoints have."""
    first = choice.shown[0]
    tables = [rows.values() for (_, text), rows in records.items() if text == first.text]
    for column, name in (("mask_iou", f"IoU at {first.threshold:g}"), ("abpc", "ABPC")):
        if all(any(row.get(column) is not None for row in rows) for rows in tables):
            return column, f"{name} of {label(first)}"
    raise RunError(
        f"{run.path}: no scores of {label(first)} to choose by; give --boxes, --masks or --faithfulness abpc, or "
        "--choose random"
    )


def _words(how: str, score: str, checkpoints: int) -> str:
    if how == "disagreement":
        return f"where the checkpoints differ most in {score}"
    mean = ", mean of the checkpoints" if checkpoints > 1 else ""
    return f"{'lowest' if how == 'worst' else 'highest'} {score}{mean}"
