"""All that a run needs, determined before a file is written."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from ..common.names import IN_MEMORY, held_object
from ..common.preprocessing import Preprocessing
from ..data.dataset import Dataset
from ..data.metadata import Grouping, read_metadata, rows_in_memory
from ..evaluations.answers import Question, take_answers
from ..evaluations.corruptions.plan import CorruptedInputs, plan_corruptions
from ..evaluations.corruptions.tree import CorruptedTree
from ..evaluations.subject import EvaluatedModel, SampleSource, Settings
from ..models.identity import Classifier
from ..protocol.card import TASKS
from ..protocol.condition import CLEAN, Condition
from ..report.refresh import refresh
from ..report.run import Run
from ..runs.manifest import CheckpointEntry
from ..runs.metadata import SampleMetadata
from ..runs.progress import Progress
from ..tasks import EVERY_TASK
from .inputs import plan_attacked
from .progress import Reporter
from .request import Request

EVIDENCE = "--evidence"


@dataclass(frozen=True)
class DescribedCheckpoint:
    """One checkpoint of a run, as run.json describes it (`entry`); nothing is computed with it here."""

    entry: CheckpointEntry

    @property
    def name(self) -> str:
        return self.entry.name

    def with_answers(self) -> CheckpointEntry:
        """Return the entry for run.json, with the checkpoint's answers to a few samples where it can be asked."""
        return self.entry


@dataclass(frozen=True)
class PlannedCheckpoint(DescribedCheckpoint):
    """One that is evaluated here. subject: makes it ready to compute. preprocessing: for evidence on its attacks, None
    where none is measured. best_batch: measures the best batch size, None where not. question: asks the network.
    """

    subject: Callable[[Settings], EvaluatedModel]
    supply: SampleSource
    preprocessing: Preprocessing | None = None
    best_batch: Callable[[], int] | None = None
    question: Question | None = None

    def with_answers(self) -> CheckpointEntry:
        if self.question is None:
            return self.entry
        answers = take_answers(self.question, self.supply.reader(CLEAN), self.supply.dataset.samples)
        return self.entry if answers is None else msgspec.structs.replace(self.entry, answers=answers)


@dataclass(frozen=True)
class Plan:
    """What a run does.

    dataset: the samples that all contenders share. digest: computes the data set's. inputs: what corruptions and
    maps need besides the data set. lines: for the user, shown once everything is checked, so that an error stands
    alone. unjudged: labels of masks that do not count. keep_misclassified: whether maps of wrong predictions count.
    pictures: ids of the samples whose images are kept. evidence: texts of the attacks whose results need evidence;
    extents: how far it goes, as the slice `evidence` says; empty where none is taken.
    checks_setup: whether other normalisations are tried first. handed: texts of the attacks whose adversarial
    images are passed on or kept. command: the words of the command of the whole run, where this process was started
    by another; sequential: whether samples are looked at while they come, and may end it. metadata: of
    the samples; None where nothing is said about them. finish: makes summary, report and
    pictures once all records are there. write: writes the records where no network here computes them. unsuited: by the
    name of a checkpoint, the texts of conditions that cannot be evaluated on it.
    """

    request: Request
    run: Run
    contenders: tuple[DescribedCheckpoint, ...]
    conditions: tuple[Condition, ...]
    dataset: Dataset
    digest: Callable[[], str]
    finish: Callable[[], object]
    inputs: CorruptedInputs = field(default_factory=CorruptedInputs)
    lines: tuple[str, ...] = ()
    unjudged: tuple[int, ...] | None = None
    keep_misclassified: bool = False
    pictures: tuple[str, ...] = ()
    evidence: tuple[str, ...] = ()
    extents: Mapping[Condition, Any] = field(default_factory=dict)
    checks_setup: bool = False
    handed: frozenset[str] = frozenset()
    command: Sequence[str] = ()
    sequential: bool = False
    metadata: SampleMetadata | None = None
    write: Compute | None = None
    unsuited: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def suited(self, name: str, conditions: Iterable[Condition]) -> tuple[Condition, ...]:
        """Return the conditions that can be evaluated on a checkpoint."""
        return tuple(each for each in conditions if each.text not in self.unsuited.get(name, ()))

    def settings(self, chosen: int | None) -> Settings:
        """Return how to compute. chosen: the batch size of an earlier command; without, `auto` measures the best."""
        settings = self.request.settings
        planned = [each for each in self.contenders if isinstance(each, PlannedCheckpoint) and each.best_batch]
        if self.request.batch_size is None and planned and settings.device.type != "cpu":
            sides = [each.preprocessing.input_size for each in planned if each.preprocessing is not None]
            return replace(settings, batch_size=filling_batch(settings.batch_size, sides))
        if self.request.batch_size != "auto" or not planned:
            return settings
        return replace(settings, batch_size=chosen or min(each.best_batch() for each in planned if each.best_batch))


_USUAL_PIXELS, _MOST_TIMES = 224 * 224, 8


def filling_batch(usual: int, sides: Iterable[tuple[int, int]]) -> int:
    """Return the batch size for an accelerator. usual: for images of 224 x 224. Smaller ones take a power of two as
    many, up to 8 times: where kernels are short, the device waits for the host that launches them."""
    largest = max((height * width for height, width in sides), default=_USUAL_PIXELS)
    times = min(_MOST_TIMES, max(1, _USUAL_PIXELS // largest))
    return usual << (times.bit_length() - 1)


Compute = Callable[[Plan, Progress, Callable[[str], None]], Reporter]
"""Write the records of a plan, and return what reports them."""


def assemble_plan(
    request: Request,
    models: Sequence[Classifier],
    contenders: Iterable[PlannedCheckpoint],
    conditions: Iterable[Condition],
    dataset: Dataset,
    lines: Iterable[str],
    run: Run | None = None,
    inputs: CorruptedInputs | None = None,
) -> Plan:
    """Return the plan of a run that ends with summary and page. lines: for the user, after the notes of the models.
    run: where the request asks for it, if left out.
    """
    run = run or Run(request.folder(models[0].identity.name))
    notes = (f"{model.identity.name}: {note}" for model in models for note in model.identity.notes)
    return Plan(
        request=request,
        run=run,
        contenders=tuple(contenders),
        conditions=tuple(dict.fromkeys(conditions)),
        dataset=dataset,
        digest=dataset.digest,
        finish=partial(refresh, run),
        inputs=inputs or CorruptedInputs(),
        lines=tuple(dict.fromkeys((*notes, *lines))),
    )


def plan_corrupted(
    request: Request,
    attacked: Sequence[Condition],
    dataset: Dataset,
    preprocessings: Sequence[Preprocessing] = (),
    constants: str = "imagenet",
    tree: CorruptedTree | None = None,
) -> tuple[tuple[Condition, ...], tuple[Condition, ...], CorruptedInputs, tuple[str, ...]]:
    """Return the attacks as `plan_attacked`, the corruptions, what both need, and lines; as `plan_corruptions`."""
    made = partial(
        plan_corruptions,
        dataset=dataset,
        input_sizes=[each.input_size for each in preprocessings],
        constants=constants,
        variant=request.variant,
        pictures=request.pictures,
        preprocessing=next((each for each in preprocessings if not each.is_rgb), None),
    )
    corrupted, beneath = made(request.corruptions, tree=tree), plan_attacked(attacked, made, request.pictures)
    inputs = replace(corrupted.inputs, digests=corrupted.inputs.digests | beneath.inputs.digests)
    return beneath.conditions, corrupted.conditions, inputs, (*corrupted.lines, *beneath.lines)


def sample_metadata(request: Request, dataset: Dataset) -> SampleMetadata | None:
    """Return what a request says about the samples of a data set; None where it says nothing. Raises DataError as
    `read_metadata` and `Grouping.names`."""
    ids, columns = [sample.id for sample in dataset.samples], dict[str, list[str]]()
    if request.metadata is not None:
        whole = request.limit is None and request.ids is None
        rows, place = None, str(request.metadata)
        if place.startswith(IN_MEMORY):
            every = getattr(dataset.source, "ids", ()) or ids
            rows = rows_in_memory(held_object(place), every)
        columns = read_metadata(Path(place), ids, dataset.root or dataset.name, whole, rows)
    grouping = Grouping.of(request.groups, request.groups_from)
    return SampleMetadata.of(ids, columns, grouping) if columns or grouping else None


def plan_of(request: Request) -> Plan:
    """Return what `plan` of the task's module here makes, or of a slice's or plug-in's task. Raises RobustkitError."""
    maker = import_module(f"{__package__}.{request.task}") if request.task in TASKS else EVERY_TASK[request.task]
    planned: Plan = maker.plan(request)
    return replace(planned, metadata=sample_metadata(request, planned.dataset))
