"""A checkpoint without its head under a card, and the plan of a run: heads, training images, images, attacks."""

from __future__ import annotations

import contextlib
import json
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from attacks import AttackResult, FeaturePGD
from attacks.pgd import DISTANCES

from ...common.determinism import SampleRng
from ...common.files import bytes_of, in_turn
from ...common.preprocessing import Preprocessing
from ...data.dataset import Dataset, Sample, open_dataset
from ...errors import DataError, NothingEvaluated, ProtocolError
from ...evaluations.answers import ask_image
from ...evaluations.attacks.evaluate import build_attack
from ...evaluations.subject import Batch, ImageSubject, Settings
from ...models.checkpoint import digest_of_tensors
from ...models.classifier import load
from ...models.device import best_batch
from ...models.identity import Classifier, distinct_names, evaluated_under
from ...pipeline.audit import Checkpoints, Say, carried_out, takes_options_of
from ...pipeline.inputs import check_channels
from ...pipeline.manifest import describe
from ...pipeline.plan import Plan, PlannedCheckpoint, assemble_plan, plan_corrupted
from ...pipeline.units import decoded
from ...protocol.card import Card
from ...protocol.condition import CLEAN, Condition
from ...report.run import Run
from ...runs.folder import folder_name, refuse_link
from ...runs.manifest import CheckpointEntry
from ...runs.progress import Progress
from ...tasks.labelled.subject import Images
from . import FeatureRequest
from .heads import CROSS_VALIDATION, HeadChoice, HeadSet

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .keywords import FeaturesOptions

FEATURES = pa.schema(
    {
        "sample_id": pa.string(),
        **dict.fromkeys(("label", "knn", "probe"), pa.int32()),
        **dict.fromkeys(("precision", "moved", "linf", "l2"), pa.float32()),
        **dict.fromkeys(("steps", "forwards", "backwards"), pa.int32()),
        "error": pa.string(),
    }
)
"""One row per image.

knn: the class that the k nearest training images vote for, k as run.json has it; `knn 5` and so on: those of each k.
probe: the class that the linear probe predicts. `few_shot 1 0` and so on: that of a head which learned from so many
images of each class, for each draw. All are -1 where features are not finite.
precision: the average precision with which training images of the same class are retrieved; 0 where features are not
finite. moved: 1 minus the cosine between the features and those of the clean image; nan where features are not finite.
linf, l2: size of the perturbation that was measured, in pixel units. steps, forwards, backwards: what an attack spent.
error: why an image could not be read; all but id and label are null then.
"""


class FeatureSubject(ImageSubject):
    """One network without its head under one card; its logits are features (B, D). heads: made from its features."""

    schema = FEATURES

    def __init__(
        self, model: Classifier, card: Card, settings: Settings, heads: Callable[[Callable[[Tensor], Tensor]], HeadSet]
    ) -> None:
        super().__init__(model, card, settings, None)
        self._clean: dict[tuple[str, ...], Tensor] = {}
        made = self.steadily("heads", self.rng([Sample("training", 0)], CLEAN), lambda: heads(self.embedded))
        self.heads = made.to(settings.device)

    def embedded(self, raw: Tensor) -> Tensor:
        with torch.inference_mode():
            features: Tensor = self.scorer(self.inputs(raw))
        return features

    def unread(self, sample: Sample) -> dict[str, Any]:
        return {"sample_id": sample.id, "label": sample.label}

    def forget(self) -> None:
        super().forget()
        self._clean = {}

    def attack(self, condition: Condition, inputs: Tensor, batch: Batch, rng: SampleRng) -> AttackResult:
        attack = build_attack(condition, self.card)
        assert isinstance(attack, FeaturePGD)
        return attack.run(self.search, inputs, rng=rng)

    def score(self, logits: Tensor, batch: Batch) -> dict[str, list[Any]]:
        features, samples = logits.float(), batch.samples
        labels = [sample.label for sample in samples]
        if (key := tuple(sample.id for sample in samples)) not in self._clean:  # kept until the next shard
            self._clean[key] = self.embedded(batch.inputs)
        predicted, precision = self.heads.predict(features, labels)
        return {
            "sample_id": [sample.id for sample in samples],
            "label": labels,
            **{name: found.tolist() for name, found in predicted.items()},
            "precision": precision.tolist(),
            "moved": DISTANCES["cosine"](features, self._clean[key]).tolist(),
        }


FILE, _KEY = "heads.safetensors", "robustkit"
_LOG = logging.getLogger("robustkit.progress")
_AT_ONCE = 1024  # training images that are held decoded
_LARGEST = 64 << 30  # bytes


def kept_heads(
    run: Run,
    entry: CheckpointEntry,
    supply: Images,
    asked: HeadChoice,
    settings: Settings,
    features: Callable[[Tensor], Tensor],
) -> HeadSet:
    """Return the heads of a checkpoint: the run folder's where this run made them, else new ones, which one process
    makes. features: (B, D) of pixels. Raises DataError for an unreadable training image, ModelError for features not
    finite.
    """
    path = run.path / "features" / folder_name(entry.name) / FILE
    of = json.dumps({"checkpoint": entry.to_plain(), "seed": run.manifest.deciding.seed}, sort_keys=True)
    refuse_link(path, run.path)
    with in_turn(path.parent):
        with contextlib.suppress(OSError):
            if (stored := _read(bytes_of(path, _LARGEST), of, asked)) is not None:
                return stored
            _LOG.info(f"{path} is not what was written for this run; it is made again")
        _LOG.info(f"{entry.name}: features of {asked.images} training images")
        training_features = _all(supply, settings, features)
        samples = supply.dataset.samples
        labels, ids = [sample.label for sample in samples], [sample.id for sample in samples]
        heads = HeadSet.fitted(asked, training_features, labels, ids, settings.seed)
        _LOG.info(f"{entry.name}: heads fitted; strength of the probe {heads.strength:g}")
        tensors = {name: tensor.cpu().contiguous() for name, tensor in heads.tensors().items()}
        content = {"of": of, "digest": digest_of_tensors(tensors)}
        metadata = json.dumps(content)  # of several keys the order would be any
        run.write(path, safetensors.torch.save(tensors, {_KEY: metadata}))
        return heads


def _read(data: bytes, of: str, asked: HeadChoice) -> HeadSet | None:
    """Return the heads that a file holds; None where it is another's, or was altered."""
    try:
        tensors = safetensors.torch.load(data)
        size = int.from_bytes(data[:8], "little")
        metadata = json.loads(json.loads(data[8 : 8 + size])["__metadata__"][_KEY])
    except (SafetensorError, KeyError, TypeError, ValueError, RecursionError):
        return None
    if not isinstance(metadata, dict) or metadata.get("of") != of:
        return None
    if metadata.get("digest") != digest_of_tensors(tensors):
        return None
    return HeadSet.of(asked, tensors)


def _all(supply: Images, settings: Settings, features: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the features (N, D) of all training images, in their order. Raises DataError for one without."""
    parts, samples = [], supply.dataset.samples
    for start in range(0, len(samples), _AT_ONCE):
        some = samples[start : start + _AT_ONCE]
        read = decoded(supply.reader(CLEAN), some, settings.workers, settings.device)
        if len(read) < len(some):
            lost = next(sample.id for sample in some if sample.id not in {each.id for each, _ in read})
            raise DataError(f"{supply.dataset.root}: training image {lost} cannot be read; repair or remove it")
        pixels = [each for _, each in read]
        batches = (pixels[place : place + settings.batch_size] for place in range(0, len(pixels), settings.batch_size))
        parts += [features(torch.stack(batch)) for batch in batches]
    return torch.cat(parts)


_MOST_SHARED = 0.01  # the share of images that may be training images, too: public data sets hold a few files twice


def plan(request: FeatureRequest) -> Plan:
    """Return all that a run of features needs. Raises RobustkitError for anything that is wrong with the request."""
    card = request.card
    attacked = request.attack_conditions(request.attack_list)
    models = [load(str(spec), **request.model, features=True) for spec in request.checkpoints]
    training, dataset = _opened(request, not all(model.identity.preprocessing.is_rgb for model in models))
    asked = _asked(request, card, training)
    dataset, digest = _apart(training, dataset)
    asked = replace(asked, training=digest)
    under = [evaluated_under(model, card.attention) for model in models]
    distinct_names(models)
    prepared = [card.preprocess(model.identity.preprocessing) for model in models]
    preprocessings = [preprocessing for preprocessing, _ in prepared]
    check_channels(training, preprocessings)
    dataset = replace(dataset, notes=(*dataset.notes, *check_channels(dataset, preprocessings)))
    attacked, corruptions, inputs, more = plan_corrupted(request, attacked, dataset, preprocessings, request.constants)
    remarks = [(model, line) for model, (_, line) in zip(models, prepared, strict=True)]
    remarks += zip(models, under, strict=True)
    lines = [f"{model.identity.name}: {line}" for model, line in remarks if line]
    lines += (*(f"training images: {note}" for note in training.notes), *dataset.notes, *more)
    run = Run(request.folder(models[0].identity.name))

    def contender(model: Classifier, preprocessing: Preprocessing) -> PlannedCheckpoint:
        entry = describe(model.identity, preprocessing, heads=asked.to_dict())
        learned_from = Images(training, preprocessing)

        def subject(settings: Settings) -> FeatureSubject:
            heads = partial(kept_heads, run, entry, learned_from, asked, settings)
            return FeatureSubject(model, card, settings, heads)

        best = partial(best_batch, model, request.settings.device, request.settings.dtype)
        return PlannedCheckpoint(
            entry, subject, Images(dataset, preprocessing), best_batch=best, question=partial(ask_image, model)
        )

    contenders = (contender(model, preprocessing) for model, (preprocessing, _) in zip(models, prepared, strict=True))
    conditions = (*attacked, *corruptions, *request.evaluation_conditions())
    return assemble_plan(request, models, contenders, conditions, dataset, lines, run, inputs)


# Training images, and the images


def _opened(request: FeatureRequest, arrays: bool) -> tuple[Dataset, Dataset]:
    """Return training images and images, labels as the training classes. arrays: .npy count, too. Raises DataError
    where one lacks any."""
    for name, place in (("--train", request.train), ("--data-dir", request.data_dir)):
        if not str(place):
            raise DataError(f"{name} is empty; give a folder, a zip, or embedded:shapes")
    training = open_dataset(request.train, **request.data, arrays=arrays).select(
        limit=request.train_limit, seed=request.seed
    )
    images = open_dataset(request.data_dir, **request.data, arrays=arrays)
    for dataset in (training, images):
        if any(sample.label < 0 or len(set(sample.valid or ())) > 1 for sample in dataset.samples):
            raise DataError(f"{dataset.root}: expected a label for each image; give class folders or --labels FILE.csv")
    ids = None if request.ids is None else Path(request.ids)
    images = images.select(limit=request.limit, ids=ids, seed=request.seed)
    if not images.samples:
        raise NothingEvaluated(f"{images.root}: no sample is left to evaluate; relax --limit or --ids")
    names = {training.class_names[sample.label] for sample in training.samples}
    strange = sorted({images.class_names[sample.label] for sample in images.samples} - names)
    if strange:
        more = f" and {len(strange) - 3} more" if len(strange) > 3 else ""
        raise DataError(
            f"{images.root} has images of {', '.join(strange[:3])}{more}, of which {training.root} has no training "
            "image; expected the same classes in both"
        )
    places = {name: place for place, name in enumerate(training.class_names)}
    relabelled = tuple(
        replace(sample, label=places[images.class_names[sample.label]], valid=None) for sample in images.samples
    )
    return training, replace(images, samples=relabelled, class_names=training.class_names, valid_labels=None)


def _apart(training: Dataset, images: Dataset) -> tuple[Dataset, str]:
    """Return images, noting shared ones, and the training images' digest. DataError where more than 1 % are shared."""
    contents = list(training.contents())
    learned = set(contents) - {"unreadable"}
    shared = [
        sample.id for sample, content in zip(images.samples, images.contents(), strict=True) if content in learned
    ]
    if len(shared) > _MOST_SHARED * len(images.samples):
        raise DataError(
            f"{len(shared)} of {len(images.samples)} images of {images.root} are training images, too ({shared[0]} …): "
            f"each would be its own nearest neighbour; give --train other images than {training.root}"
        )
    if shared:
        note = f"{len(shared)} of {len(images.samples)} images are training images, too ({shared[0]} …)"
        images = replace(images, notes=(*images.notes, note))
    return images, training.digest_of(contents)


# What is asked of the features


def _asked(request: FeatureRequest, card: Card, training: Dataset) -> HeadChoice:
    """Return how heads are made, by the options, else the card. ProtocolError for an invalid value, or for more
    training images than there are.
    """
    defaults = card.scoring
    counts: dict[int, int] = {}
    for sample in training.samples:
        counts[sample.label] = counts.get(sample.label, 0) + 1
    stated = defaults.get("neighbours", [20]) if request.neighbours is None else request.neighbours
    neighbours = _numbers("--neighbours", stated)
    if max(neighbours) > len(training):
        raise ProtocolError(
            f"--neighbours {max(neighbours)}: {training.root} has {len(training)} training images; expected at most as "
            "many, such as --neighbours 5"
        )
    shots = _numbers("--shots", defaults.get("shots", [1]) if request.shots is None else request.shots)
    rarest = min(counts, key=lambda label: counts[label])
    if max(shots) > counts[rarest]:
        raise ProtocolError(
            f"--shots {max(shots)}: {training.root} has {counts[rarest]} of class {training.class_names[rarest]}; "
            f"expected at most as many, such as --shots {counts[rarest]}"
        )
    if len(counts) < 2:
        raise DataError(f"{training.root} has training images of one class; expected two classes or more")
    usual = int(defaults.get("k", 20))
    probe = defaults.get("probe", CROSS_VALIDATION) if request.probe is None else request.probe
    return HeadChoice(
        training="",
        images=len(training),
        classes=len(counts),
        neighbours=neighbours,
        k=usual if usual in neighbours else neighbours[0],
        temperature=_positive("temperature", defaults.get("temperature", 0.07)),
        shots=shots,
        draws=int(_positive("draws", defaults.get("draws", 5))),
        few_shot=_positive("few_shot", defaults.get("few_shot", 0.01)),
        probe=CROSS_VALIDATION if str(probe) == CROSS_VALIDATION else _positive("--probe, cv or", probe),
    )


def _numbers(name: str, numbers: str | int | Sequence[int]) -> tuple[int, ...]:
    some = [numbers] if isinstance(numbers, int) else numbers
    parts = re.split(r"[\s,]+", some.strip()) if isinstance(some, str) else [str(part) for part in some]
    if not parts or not all(part.isascii() and part.isdecimal() and 0 < int(part) < 10**9 for part in parts):
        raise ProtocolError(f"{name} {numbers!r}: expected whole numbers from 1 on, such as 5,20")
    return tuple(sorted({int(part) for part in parts}))


def _positive(name: str, number: object) -> float:
    try:
        value = float(str(number))
    except ValueError:
        value = 0.0
    if not 0 < value < 1e12:
        raise ProtocolError(f"{name} {number!r}: expected a number above 0")
    return value


@takes_options_of(FeatureRequest)
def features(
    checkpoints: Checkpoints,
    data_dir: str | Path = "",
    *,
    progress: Progress | bool | None = None,
    say: Say = None,
    **options: Unpack[FeaturesOptions],
) -> Run:
    """Evaluate features without a head: neighbours, few images, a probe, retrieval; clean, corrupted and attacked.

    A call on a folder that an earlier call left unfinished continues where that one stopped. All else is as in `audit`.

    Args:
        checkpoints: as in `audit`; a classifier is taken without its head, and one may have none.
        data_dir: the images that heads are asked about.

    Keyword Args:
        train: the images that heads learn from; required.
        model: further arguments for `robustkit.load`.

    Returns:
        The run, whose results come from its records.

    Raises:
        RobustkitError: anything that is wrong with the arguments, before a file is written.
        NothingEvaluated: no sample could be evaluated.

    Example:
        >>> run = robustkit.features(
        ...     "zoo:shapes-vit-quest", "embedded:shapes-train", train="embedded:shapes", train_limit=20, limit=4,
        ...     attacks="none", neighbours="5", shots="1", probe="0.001", out="runs/features",
        ... )
        >>> {"knn", "probe", "retrieval", "few_shot(1)"} <= set(run.results().metric)
        True
    """
    return carried_out(FeatureRequest, checkpoints, data_dir, options, progress, say)
