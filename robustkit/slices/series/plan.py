"""A classifier of time series under a card, and the plan of its run: checkpoints, a .ts file, attacks, disturbances."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...data.class_names import first_names
from ...data.dataset import Dataset, Sample
from ...data.scenes import read_names
from ...errors import DataError, NothingEvaluated, ProtocolError, unknown
from ...evaluations.subject import Reader
from ...models.identity import distinct_names
from ...pipeline.audit import Checkpoints, Say, carried_out, takes_options_of
from ...pipeline.manifest import describe
from ...pipeline.plan import Plan, PlannedCheckpoint, assemble_plan
from ...protocol.card import Card
from ...protocol.condition import Condition
from ...report.run import Run
from ...runs.progress import Progress
from ...tasks.labelled.subject import LabelledSubject
from . import SeriesRequest, parse_disturbances
from .files import SeriesSource, open_series
from .model import SeriesClassifier, load_series

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .keywords import SeriesOptions


@dataclass(frozen=True)
class Series:
    """The source of a sample's values, (C, T) float32 as they were measured."""

    dataset: Dataset

    def reader(self, condition: Condition) -> Reader:
        source = self.dataset.source
        assert isinstance(source, SeriesSource)
        return lambda sample: torch.from_numpy(source.series(sample))

    def locate(self, sample: Sample, inputs: Tensor) -> Any:
        return None


class SeriesSubject(LabelledSubject):
    """One classifier of series on its device under one card; batches are of one length, so nothing is filled up."""

    def inputs(self, raw: Tensor) -> Tensor:
        return self.classifier.normalize(raw.to(self.settings.device))

    def change(self, raw: Tensor, view: Tensor, inputs: Tensor) -> Tensor:
        return (view - raw.to(view.device)) / self.classifier.std


def plan(request: SeriesRequest) -> Plan:
    """Return all that a run of classifiers of series needs. Raises RobustkitError for a wrong request."""
    conditions = (*_attacks(request), *parse_disturbances(request.disturbances or ()), *request.evaluation_conditions())
    models = [load_series(spec, **request.model) for spec in request.checkpoints]
    distinct_names(models)
    dataset = _shared([_opened(request, model) for model in models], models)
    ids = None if request.ids is None else Path(request.ids)
    dataset = dataset.select(limit=request.limit, ids=ids, seed=request.seed)
    if not dataset.samples:
        raise NothingEvaluated(f"{request.data_dir}: no series is left to evaluate; relax --limit or --ids")
    contenders = (_contender(model, request.card, dataset) for model in models)
    return assemble_plan(request, models, contenders, conditions, dataset, dataset.notes)


def _attacks(request: SeriesRequest) -> tuple[Condition, ...]:
    card = request.card
    if card.space != "sigma":
        raise ProtocolError(f"protocol {card.name}: space {card.space}; expected sigma for time series")
    conditions = request.attack_conditions(request.attack_list)
    for condition in conditions[1:]:
        if condition.name not in card.attacks or condition.under is not None:
            raise ProtocolError(
                unknown("attack on series", condition.text, card.attacks, remedy=f"card {card.name} has no other")
            )
    return conditions


def _opened(request: SeriesRequest, model: SeriesClassifier) -> Dataset:
    identity = model.identity
    names = identity.class_names
    if request.classes is not None:
        names = read_names(Path(request.data_dir), Path(request.classes), None)
        if identity.class_names not in (None, names):
            raise DataError(
                f"{request.classes}: {first_names(names, 3)}, but {identity.name} names its outputs "
                f"{first_names(identity.class_names, 3)}; leave out --classes"
            )
    dataset = open_series(request.data_dir, names, identity.num_classes)
    source, channels = dataset.source, len(identity.preprocessing.mean)
    assert isinstance(source, SeriesSource)
    if (count := len(source.values[dataset.samples[0].id])) != channels:
        raise DataError(
            f"{request.data_dir}: series of {count} channels, and {identity.name} takes {channels}; give a checkpoint "
            "of this data set"
        )
    return dataset


def _shared(datasets: list[Dataset], models: list[SeriesClassifier]) -> Dataset:
    first = datasets[0]
    for other, model in zip(datasets[1:], models[1:], strict=True):
        if other.class_names != first.class_names:
            raise DataError(
                f"{models[0].identity.name} and {model.identity.name} number the classes of {first.root} differently; "
                "audit them in separate runs"
            )
    return first


def _contender(model: SeriesClassifier, card: Card, dataset: Dataset) -> PlannedCheckpoint:
    entry = describe(model.identity, model.identity.preprocessing)
    made = partial(SeriesSubject, model, card, valid=dataset.valid_labels)
    return PlannedCheckpoint(entry, made, Series(dataset), question=partial(_ask, model))


def _ask(model: SeriesClassifier, raw: Tensor) -> tuple[Tensor, Tensor]:
    values = raw[None].to(model.mean.device).requires_grad_()
    return values, model(values)


@takes_options_of(SeriesRequest)
def series(
    checkpoints: Checkpoints,
    data: str | Path,
    *,
    progress: Progress | bool | None = None,
    say: Say = None,
    **options: Unpack[SeriesOptions],
) -> Run:
    r"""Evaluate classifiers of time series clean, under attack and disturbed, and write records, summary and report.

    A call on a folder that an earlier call left unfinished continues where that one stopped. All else is as in `audit`.

    Args:
        checkpoints: one or several: a file, or `zoo:NAME`; any file with `model={"arch": "net.py:make"}`.
        data: a `.ts` file of labelled series, such as X_TEST.ts of the UEA archive.

    Keyword Args:
        classes: a file with a class a line, in the order of the outputs, for a checkpoint that does not name them.
        eps: radii, in standard deviations of each channel in the training data.
        model: further arguments for the loader: arch, attention, num_classes, mean, std, use_ema, allow_partial.

    Returns:
        The run, whose results come from its records.

    Raises:
        RobustkitError: anything that is wrong with the arguments, before a file is written.
        NothingEvaluated: no series could be evaluated.

    Example:
        >>> series = ":".join(["0.1,0.4,0.2"] * 12)  # three steps of twelve channels
        >>> lines = ["@dimensions 12", "@classLabel true 1 2 3 4 5 6 7 8 9", "@data", f"{series}:1", f"{series}:2"]
        >>> _ = Path("tiny.ts").write_text("\n".join(["@problemName tiny", *lines]))
        >>> run = robustkit.series("zoo:series-japanesevowels-quest", "tiny.ts", attacks="none", out="runs/series")
        >>> run.results().query("metric == 'top1'").n.tolist()
        [2]
    """
    return carried_out(SeriesRequest, checkpoints, data, options, progress, say)
