"""A classifier of several labels under a card, and the plan of its run: checkpoints, images, labels, attacks.

An attack on a sample of K labels is one on a choice of 1 + K classes: the first, whose logit is 0, stands for all
labels being as they are, the others for one label turned, by how far its logit is beyond the threshold's. So the margin
of that choice is the one of the worst label, and the binary losses of its classes are those of the labels.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from attacks import AttackResult, DenseAttack

from ...common.determinism import SampleRng
from ...common.preprocessing import LOGITS, Preprocessing
from ...data.class_names import first_names
from ...data.dataset import Dataset, Sample, open_dataset
from ...data.scenes import read_names
from ...data.sources import FolderSource
from ...errors import DataError, ModelError, NothingEvaluated, ProtocolError, unknown
from ...evaluations.answers import ask_image
from ...evaluations.attacks.evaluate import attacked_labels, build_attack
from ...evaluations.subject import Batch, ImageSubject, Settings
from ...models.classifier import load
from ...models.device import best_batch
from ...models.identity import Classifier, distinct_names, evaluated_under
from ...pipeline.audit import Checkpoints, Say, carried_out, takes_options_of
from ...pipeline.inputs import check_channels
from ...pipeline.manifest import describe
from ...pipeline.plan import Plan, PlannedCheckpoint, assemble_plan, plan_corrupted
from ...protocol.card import Card, parse_number
from ...protocol.condition import Condition
from ...report.run import Run
from ...runs.progress import Progress
from ...tasks.labelled.subject import Images
from . import ORDERS, MultilabelRequest
from .labels import HELD, UNKNOWN, LabelReader, Truth

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .keywords import MultilabelOptions

LOSSES = ("bce", "margin")
_THRESHOLD = "a probability between 0 and 1, such as 0.5"
MULTILABEL = pa.schema(
    {
        "sample_id": pa.string(),
        "label": pa.int32(),
        "correct": pa.bool_(),
        **dict.fromkeys(("labelled", "predicted"), pa.list_(pa.int8())),
        "logits": pa.list_(pa.float32()),
        **dict.fromkeys(("bce", "linf", "l2"), pa.float32()),
        "broken_by": pa.string(),
        **dict.fromkeys(("broken_at", "steps", "forwards", "backwards", "cycle_at"), pa.int32()),
        "error": pa.string(),
    }
)
"""One row per image.

labelled: 1 for each label that the image has, 0 for one that it has not, -1 for one that is unknown, in the order of
the outputs. predicted: 1 for each label whose probability is above the threshold, else 0; of a logit that is not a
number, whatever is wrong. logits: one for each label. correct: whether all known labels are predicted right. bce: the
sum of their binary cross-entropies. label: -1, as no class is alone. All else is as of classifiers; all but id and
label are null where error says why the image could not be read.
"""


class TurnedLabels(nn.Module):
    """The choice that attacks see: 0 for all labels as they are, and for each how far it is turned, -inf if unknown.

    truths: (B, K), of the samples whose rows it is asked. cut: the logit of the threshold.
    """

    asks_rows = True

    def __init__(self, model: nn.Module, truths: Tensor, cut: float) -> None:
        super().__init__()
        self.model, self.truths, self.cut = model, truths, cut

    def forward(self, images: Tensor, rows: Tensor) -> Tensor:
        beyond, truths = self.model(images) - self.cut, self.truths[rows]
        turned = torch.where(truths == HELD, -beyond, beyond).masked_fill(truths == UNKNOWN, -math.inf)
        return torch.cat([turned.new_zeros(len(turned), 1), turned], dim=1)


class MultilabelSubject(ImageSubject):
    """One classifier of several labels under one card. threshold: the probability above which a label is predicted."""

    schema = MULTILABEL

    def __init__(self, model: Classifier, card: Card, settings: Settings, threshold: float) -> None:
        super().__init__(model, card, settings, None)
        self.cut = math.log(threshold / (1 - threshold))

    def unread(self, sample: Sample) -> dict[str, Any]:
        return {"sample_id": sample.id, "label": sample.label}

    def needs_truth(self, condition: Condition) -> bool:
        return True

    def attack(self, condition: Condition, inputs: Tensor, batch: Batch, rng: SampleRng) -> AttackResult:
        attack = build_attack(condition, self.card)
        assert attack is not None and not isinstance(attack, DenseAttack)  # those are of segmenters
        truths = torch.tensor(batch.truths, device=inputs.device)
        return attack.run(
            TurnedLabels(self.search, truths, self.cut),
            inputs,
            torch.zeros(len(batch), dtype=torch.int64, device=inputs.device),
            rng=rng,
            judge=None if self.exact is self.search else TurnedLabels(self.exact, truths, self.cut),
            batch_size=self.settings.batch_size,
            tell=batch.tell,
        )

    def score(self, logits: Tensor, batch: Batch) -> dict[str, list[Any]]:
        logits, truths = logits.float().cpu(), torch.tensor(batch.truths)
        has_label, is_known = truths == HELD, truths != UNKNOWN
        predicted = torch.where(logits.isnan(), ~has_label, logits > self.cut)
        losses = softplus(torch.where(has_label, -logits, logits)).masked_fill(~is_known, 0.0)
        return {
            "sample_id": [sample.id for sample in batch.samples],
            "label": [sample.label for sample in batch.samples],
            "correct": ((predicted == has_label) | ~is_known).all(dim=1).tolist(),
            "labelled": truths.tolist(),
            "predicted": predicted.long().tolist(),
            "logits": logits.tolist(),
            "bce": losses.sum(dim=1).tolist(),
        }


@dataclass(frozen=True)
class LabelledImages(Images):
    """The source of pixels, and of the truth of each image."""

    truths: Mapping[str, Truth] = field(default_factory=dict)

    def locate(self, sample: Sample, inputs: Tensor) -> Truth:
        return self.truths[sample.id]


def plan(request: MultilabelRequest) -> Plan:
    """Return all that a run of several labels needs. Raises RobustkitError for anything that is wrong with it."""
    card, threshold = request.card, float(parse_number(request.threshold, "--threshold", _THRESHOLD))
    if not 0 < threshold < 1:
        raise ProtocolError(f"--threshold {threshold:g}: expected {_THRESHOLD}")
    if request.order not in ORDERS:
        raise ProtocolError(unknown("order", request.order, ORDERS))
    attacked, evaluations = request.attack_conditions(request.attack_list), request.evaluation_conditions()
    _check_attacks(card, [each for each in (*attacked, *evaluations) if build_attack(each, card) is not None])
    if label_map := request.model.get("label_map"):
        raise ProtocolError(f"--label-map {label_map}: of models of one class an image; leave it out")
    models = [load(str(spec), **request.model) for spec in request.checkpoints]
    under = [evaluated_under(model, card.attention) for model in models]
    distinct_names(models)
    dataset, truths = _opened(request, models)
    prepared = [card.preprocess(model.identity.preprocessing) for model in models]
    preprocessings = [preprocessing for preprocessing, _ in prepared]
    dataset = replace(dataset, notes=(*dataset.notes, *check_channels(dataset, preprocessings)))
    attacked, corruptions, inputs, more = plan_corrupted(request, attacked, dataset, preprocessings, request.constants)
    remarks = [*zip(models, (line for _, line in prepared), strict=True), *zip(models, under, strict=True)]
    lines = [f"{model.identity.name}: {line}" for model, line in remarks if line]

    def contender(model: Classifier, preprocessing: Preprocessing) -> PlannedCheckpoint:
        return PlannedCheckpoint(
            describe(model.identity, preprocessing, heads={"threshold": threshold}),
            partial(MultilabelSubject, model, card, threshold=threshold),
            LabelledImages(dataset, preprocessing, truths=truths),
            best_batch=partial(best_batch, model, request.settings.device, request.settings.dtype),
            question=partial(ask_image, model),
        )

    contenders = (contender(model, preprocessing) for model, (preprocessing, _) in zip(models, prepared, strict=True))
    conditions = (*attacked, *corruptions, *evaluations)
    notes = (*lines, *dataset.notes, *more)
    planned = assemble_plan(request, models, contenders, conditions, dataset, notes, inputs=inputs)
    return replace(planned, digest=partial(_digest, dataset, truths))


def _digest(dataset: Dataset, truths: Mapping[str, Truth]) -> str:
    """Return the SHA-256 (hex) over the data set, its labels, and the truth of every image."""
    total = hashlib.sha256(f"{dataset.digest()}\0{dataset.class_names}".encode())
    for name in sorted(truths):
        total.update(f"\n{name}\0{truths[name]}".encode())
    return total.hexdigest()


def _check_attacks(card: Card, conditions: Sequence[Condition]) -> None:
    """Raise ProtocolError for an attack that does not work on several labels."""
    for condition in conditions:
        loss = str(dict(condition.parameters).get("loss", "margin"))
        if condition.name not in card.attacks:
            raise ProtocolError(unknown("attack on several labels", condition.name, card.attacks))
        if loss not in LOSSES:
            raise ProtocolError(f"{condition.text}: " + unknown("loss of several labels", loss, LOSSES))
        if attacked_labels(condition, card) != "true":
            raise ProtocolError(f"protocol {card.name}: labels predicted; expected true, for several labels an image")


# Images and their labels


def _opened(request: MultilabelRequest, models: Sequence[Classifier]) -> tuple[Dataset, dict[str, Truth]]:
    """Return the images that have labels, and these in the order of the outputs. Raises DataError, ModelError, or
    NothingEvaluated."""
    if not str(request.data_dir):
        raise DataError("--data-dir is empty; give a folder or a zip of images")
    arrays = not all(model.identity.preprocessing.is_rgb for model in models)
    images, table = open_dataset(request.data_dir, layout="unlabelled", arrays=arrays), Path(request.labels)
    where, source = str(request.data_dir), images.source
    top = Path(source.root).relative_to(images.root).as_posix() if isinstance(source, FolderSource) else ""
    prefix = getattr(source, "prefix", "") or (f"{top}/" if top not in ("", ".") else "")
    ids = [sample.id for sample in images.samples]
    tables = [_reader(request, model).read(table, ids, where, prefix) for model in models]
    names, truths = tables[0]
    for model, (other, _) in zip(models[1:], tables[1:], strict=True):
        if other != names:
            why = f"{models[0].identity.name} and {model.identity.name} number the labels of {table} differently"
            raise DataError(f"{why}; audit them in separate runs")
    dataset = replace(images, class_names=names, samples=tuple(each for each in images.samples if each.id in truths))
    dataset = dataset.select(request.limit, None if request.ids is None else Path(request.ids), request.seed)
    if not dataset.samples:
        raise NothingEvaluated(f"{where}: no image is left to evaluate; relax --limit or --ids")
    of_samples = {sample.id: truths[sample.id] for sample in dataset.samples}
    left = len(ids) - len(truths)
    notes = [f"{len(truths)} images with labels from {table.name}, {len(names)} labels"]
    notes += [f"left out {left} images that are not in {table.name}"] if left else []
    if unknowns := sum(truth.count(UNKNOWN) for truth in of_samples.values()):
        notes.append(f"{unknowns} of {len(of_samples) * len(names)} labels are unknown and do not count")
    return replace(dataset, layout="csv", notes=tuple(notes)), of_samples


def _reader(request: MultilabelRequest, model: Classifier) -> LabelReader:
    identity = model.identity
    if identity.outputs != LOGITS:
        why = f"its outputs are {identity.outputs}; expected a logit for each label"
        raise ModelError(f"{identity.name}: {why}, without a sigmoid or softmax at the end")
    names = identity.class_names
    if request.names is not None:
        names = read_names(Path(request.data_dir), Path(request.names), None)
        if identity.class_names not in (None, names):
            theirs = f"{identity.name} names its outputs {first_names(identity.class_names or (), 3)}"
            raise DataError(f"{request.names}: {first_names(names, 3)}, but {theirs}; leave out --names")
    return LabelReader(identity.num_classes, names, request.order == "columns", request.unknown, request.empty)


@takes_options_of(MultilabelRequest)
def multilabel(
    checkpoints: Checkpoints,
    data_dir: str | Path,
    *,
    progress: Progress | bool | None = None,
    say: Say = None,
    **options: Unpack[MultilabelOptions],
) -> Run:
    r"""Evaluate classifiers of several labels an image clean, attacked and corrupted; write records and report.

    A call on a folder that an earlier call left unfinished continues where that one stopped. All else is as in `audit`.

    Args:
        checkpoints: as in `audit`, with a logit for each label.
        data_dir: a folder or zip of images.

    Keyword Args:
        labels: the CSV of labels; required.
        order: "columns" where outputs are in the order of the table's columns; left out, by the names of the outputs.
        threshold: the probability above which a label is predicted.
        model: further arguments for `robustkit.load`.

    Returns:
        The run, whose results come from its records.

    Raises:
        RobustkitError: anything that is wrong with the arguments, before a file is written.
        NothingEvaluated: no image could be evaluated.

    Example:
        >>> from robustkit.data.dataset import open_dataset
        >>> shapes, names = open_dataset("embedded:shapes").select(limit=4), []
        >>> Path("pictures").mkdir()
        >>> for sample in shapes.samples:
        ...     names.append(f"{len(names)}.png,{shapes.class_names[sample.label]}")
        ...     _ = Path("pictures", f"{len(names) - 1}.png").write_bytes(shapes.read(sample))
        >>> _ = Path("labels.csv").write_text("\n".join(["file,labels", *names]))
        >>> run = robustkit.multilabel(
        ...     "zoo:shapes-vit-quest", "pictures", labels="labels.csv", attacks="none", out="runs/labels"
        ... )
        >>> {"map", "micro_f1", "exact_match", "bce"} <= set(run.results().metric)
        True
    """
    return carried_out(MultilabelRequest, checkpoints, data_dir, options, progress, say)
