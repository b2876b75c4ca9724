"""The audit: checkpoints, a data set and a list of conditions into a run folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ..common.preprocessing import Preprocessing
from ..data.dataset import Dataset
from ..errors import DataError, ProtocolError
from ..evaluations.attacks.build import attacked_labels
from ..evaluations.attacks.condition import parse_conditions
from ..evaluations.attacks.evidence import bearing_evidence
from ..evaluations.attention.condition import attention_condition
from ..evaluations.attention.evaluate import check_watchable
from ..evaluations.corruptions.plan import plan_corruptions
from ..evaluations.corruptions.tree import CorruptedTree, is_tree
from ..evaluations.maps.condition import map_condition, parse_cams
from ..evaluations.maps.evaluate import check_explainable
from ..evaluations.maps.truth import open_truth
from ..evaluations.subject import Settings
from ..models.batch_size import best_batch
from ..models.classifier import Classifier, distinct_names, load
from ..models.device import DTYPES, pick_device, unknown_dtype
from ..protocol.card import Card, load_card, number
from ..protocol.condition import CLEAN, Condition
from ..report.refresh import refresh
from ..results.run import Run
from ..runs.binding import provenance_of
from ..runs.manifest import CheckpointEntry, Manifest
from ..runs.progress import Progress
from ..tasks.classification.subject import ClassifierSubject
from .data import labelled_data
from .manifest import describe, prepare
from .runner import Images
from .schedule import Job, carry_out

DEFAULT_ATTACKS = "fgsm,pgd"
BATCH_SIZES = {"cpu": 16, "cuda": 128}
"""Where none is given. A ViT on a CPU is fastest while a batch fits its cache."""


class Silent:
    """Progress that nobody is told of."""

    def start(self, checkpoint: str, condition: str, samples: int) -> None: ...
    def advance(self, samples: int) -> None: ...
    def stage(self, name: str, standing: int, share: float) -> None: ...


@dataclass(frozen=True)
class _Job:
    """One checkpoint with what it will be shown."""

    classifier: Classifier
    dataset: Dataset
    preprocessing: Preprocessing


def audit(
    checkpoints: Sequence[str | Path],
    *,
    data_dir: str | Path,
    attacks: str | Iterable[str] | None = None,
    corruptions: str | Iterable[str] | None = None,
    corrupted_dir: str | Path | None = None,
    preset: str = "auto",
    variant: str = "hendrycks",
    frost_dir: str | Path | None = None,
    cams: str | Iterable[str] | None = None,
    faithfulness: str = "abpc",
    stability: bool = False,
    watch_attention: bool = False,
    keep_misclassified: bool = False,
    boxes: str | Path | None = None,
    masks: str | Path | None = None,
    out: str | Path | None = None,
    protocol: str = "standard",
    eps: str | float | None = None,
    norm: str | None = None,
    engine: str | None = None,
    limit: int | None = None,
    ids: str | Path | None = None,
    seed: int = 0,
    batch_size: int | Literal["auto"] | None = None,
    shard_size: int | None = None,
    workers: int = 2,
    device: str = "auto",
    dtype: str = "float32",
    compile: bool = False,
    browse: int = 100,
    data: dict[str, Any] | None = None,
    model: dict[str, Any] | None = None,
    progress: Progress | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> Run:
    """Evaluate checkpoints on a data set, clean, under attack and corrupted, and write records, summary and report.

    A call on a folder that an earlier call left unfinished goes on where that one stopped; on a finished one it
    computes nothing.

    Args:
        checkpoints: model specs: a file, `zoo:NAME`, `timm:NAME`, `hf-hub:ORG/NAME`, `local-dir:PATH`.
        data_dir: a folder, a zip, or `embedded:shapes`; or a tree of released corrupted images, such as ImageNet-C,
            which is then evaluated without clean images and without attacks.
        attacks: names or canonical conditions, comma-separated or a list: `fgsm,pgd(steps=30,restarts=3)`; `none` for
            none; FGSM and PGD if left out.
        corruptions: sets or names, likewise: `in-c`, `fog,snow(severity=3)`. Images are corrupted after resize and
            crop, as the benchmark's were.
        corrupted_dir: a tree of released corrupted images to read instead; its files are those of data_dir.
        preset, variant: whose constants and code; see `corruptions.Corruption`. `auto`: by the size of the images.
        frost_dir: frost's photographs, where imagecorruptions is not installed.
        cams: methods whose maps are scored, `agcam,grad-cam(threshold=0.3)`; the controls come by themselves.
        faithfulness: `none`, `abpc`, or `all`: insertion, deletion, and what becomes of maps with the head drawn anew.
        stability: compare maps under every attack and corruption with those of the clean images.
        watch_attention: what each head of each layer does, clean and under every attack and corruption.
        keep_misclassified: score the maps of wrong predictions too.
        boxes, masks: where the objects are; a CSV or a folder of ILSVRC XML files, or a folder of mask images.
        out: the run folder; by default `runs/` and the first checkpoint's name.
        protocol: a card's name, or the path of one.
        eps: radius in the units of the card (pixels of [0, 1] for `standard`), several separated by commas.
        engine: `pyautoattack` or `torchattacks` to run the attacks by that library instead, for cross-checking.
        limit, ids: a balanced random part of the samples, or exactly those of a file.
        batch_size: 16 on a CPU and 128 on CUDA, if left out; `auto` measures which serves the models best, once, when a
            run begins. Where memory is short, it is halved on the way.
        shard_size: samples in a unit of work, 128 or the batch size if larger.
        browse: of how many samples the images are kept, for the report to show; fixed when a run begins.
        dtype, compile: how attacks and the clean pass compute; attacks are always scored in float32.
        data: further arguments of `robustkit.data.open_dataset`. model: of `robustkit.models.load`.
        progress: told of units and samples as they are done. say: takes a line for the user.

    Raises:
        RobustkitError: anything that is wrong with the arguments, before a file is written.
        ModelError: besides, a network that fails on some batch; what was done before it is kept.
        NothingEvaluated: no sample could be evaluated.
    """
    if any(isinstance(size, int) and size < 1 for size in (batch_size, shard_size, limit)):
        raise ProtocolError(f"batch size {batch_size}, shard size {shard_size}, limit {limit}: expected 1 or more")
    card = load_card(protocol)
    if card.task != "classification":
        raise ProtocolError(f"protocol {card.name} is for {card.task}; use robustkit segment")
    tree = CorruptedTree.open(Path(corrupted_dir)) if corrupted_dir is not None else None
    without_clean = tree is None and is_tree(data_dir)
    if without_clean:
        tree = CorruptedTree.open(Path(data_dir))
    conditions = parse_conditions(
        _attacks(attacks, data_dir, without_clean),
        card,
        eps=tuple(number(part, "eps") for part in str(eps).split(",")) if eps is not None else (),
        norm=norm,
        engine=engine,
    )
    maps = parse_cams(cams, faithfulness) if cams is not None else ()
    if maps and without_clean:
        raise ProtocolError(f"--cams {cams!r} on {data_dir}, a tree of corrupted images: expected the clean ones")
    maps_only = bool(maps) and conditions == (CLEAN,) and corruptions is None and all(m.target != "label" for m in maps)
    where = pick_device(device)
    batch = batch_size if isinstance(batch_size, int) else BATCH_SIZES.get(where.type, 16)
    frost = None if frost_dir is None else str(frost_dir)
    if dtype not in DTYPES:
        raise ProtocolError(unknown_dtype(dtype))
    settings = Settings(seed, batch, workers, where, DTYPES[dtype], compile, frost)
    lines: list[str] = []  # said once all is known to be well, so that an error stands alone
    jobs = []
    for spec in checkpoints:
        classifier = load(str(spec), **(model or {}))
        identity = classifier.identity
        lines += (f"{identity.name}: {note}" for note in identity.notes)
        place = tree if without_clean and tree else data_dir
        try:
            own = labelled_data(place, identity, data or {}, limit, ids, seed, unlabelled=maps_only)
        except DataError as fault:
            raise fault if len(checkpoints) == 1 else DataError(f"{identity.name}: {fault}") from None
        jobs.append(_job(classifier, own, card, lines))
    distinct_names([job.classifier for job in jobs])
    dataset = _datasets(jobs)
    lines += dataset.notes
    _check_labels(dataset, conditions, card)
    plan = plan_corruptions(
        corruptions,
        dataset,
        [job.preprocessing.input_size for job in jobs],
        tree=tree,
        preset=preset,
        variant=variant,
        frost_dir=frost,
    )
    lines += plan.lines
    conditions = (*(() if without_clean else conditions), *plan.conditions)
    for job in jobs:
        check_explainable(job.classifier, job.classifier.identity.name, maps)
        if watch_attention:
            check_watchable(job.classifier.network, job.classifier.identity.name, "--watch-attention")
    truth = open_truth(dataset, boxes, masks)
    lines += truth.notes
    scored = tuple(map(map_condition, maps))
    if any(sample.label < 0 for sample in dataset.samples):
        conditions = ()  # without labels there is nothing right or wrong, but maps of what is predicted
    looking = [one for one in maps if not one.is_control]
    if stability and any(condition.released for condition in conditions):
        raise ProtocolError(
            "--stability with released corruptions: it needs the clean image beside the corrupted one; leave out "
            "--corrupted-dir, or --stability"
        )
    shown = [under for under in conditions if under != CLEAN] if stability else []
    beside = [map_condition(one, under) for under in shown for one in looking]
    inputs = replace(plan.inputs, digests=plan.inputs.digests | {c.text: truth.digest or "none" for c in scored})
    reused = {condition.text for condition in conditions if condition != CLEAN} if watch_attention else set()
    if watch_attention:  # each after the condition whose images it takes
        pairs = ((under, attention_condition(under)) for under in conditions or (CLEAN,))
        conditions = tuple(one for pair in pairs for one in pair if one in conditions or one.name == "attention")
    conditions = (*conditions, *scored, *beside)
    run = Run(out if out is not None else Path("runs") / jobs[0].classifier.identity.name)
    arguments = {
        "checkpoints": list(checkpoints),
        "data_dir": data_dir,
        "attacks": attacks if isinstance(attacks, str) or attacks is None else list(attacks),
        "corruptions": corruptions if isinstance(corruptions, str) or corruptions is None else list(corruptions),
        "corrupted_dir": corrupted_dir,
        "frost_dir": frost_dir,
        "cams": cams if isinstance(cams, str) or cams is None else list(cams),
        "boxes": boxes,
        "masks": masks,
        "eps": eps,
        "norm": norm,
        "engine": engine,
        "limit": limit,
        "ids": ids,
        "data": data or {},
        "model": model or {},
    }
    described = [describe(job.classifier.identity, job.preprocessing) for job in jobs]

    def measured() -> Settings:
        if batch_size != "auto":
            return settings
        known = run.read_manifest()
        best = (best_batch(job.classifier, where, settings.dtype) for job in jobs)
        return replace(settings, batch_size=known.batch_size if known else min(best))

    def begin() -> list[str]:
        found = prepare(
            run,
            described,
            dataset,
            card,
            conditions,
            measured(),
            shard_size,
            arguments,
            inputs,
            facts={"class_names": tuple(dataset.class_names)},
            keep=keep_misclassified,
            pictures=[one.id for one in dataset.select(limit=browse, seed=seed).samples] if browse else [],
            evidence=[condition.text for condition in bearing_evidence(conditions, card)],
        )
        return [*lines, *found]

    def tasks() -> list[Job]:
        manifest = run.manifest
        fixed = replace(settings, batch_size=manifest.batch_size)
        return [
            Job(
                job.classifier.identity.name,
                partial(ClassifierSubject, job.classifier, card, fixed, job.dataset.valid_labels, reused),
                Images(job.dataset, job.preprocessing, tree, truth),
                partial(pack, manifest, known, fixed),
                job.preprocessing,
            )
            for job, known in zip(jobs, described, strict=True)
        ]

    carry_out(run, begin, tasks, conditions, card, lambda: refresh(run), progress or Silent(), say)
    return run


def _attacks(asked: str | Iterable[str] | None, data_dir: str | Path, without_clean: bool) -> str:
    """The list of attacks as one text; none where there are no clean images to attack."""
    text = listed(asked, "" if without_clean else DEFAULT_ATTACKS)
    if without_clean and text:
        raise DataError(
            f"{data_dir} holds corrupted images only, which are not attacked; leave out --attacks {text}, or give the "
            f"clean images as --data-dir and this tree as --corrupted-dir"
        )
    return text


def listed(attacks: str | Iterable[str] | None, usual: str) -> str:
    """Attacks as one text: `usual` where they are left out, nothing for `none`."""
    text = attacks if isinstance(attacks, str) else usual if attacks is None else ",".join(attacks)
    if "none" in (names := [name.strip() for name in text.split(",")]) and len(names) > 1:
        raise ProtocolError(f"--attacks {text}: none is for no attack at all; leave it, or the others, out")
    return "" if names == ["none"] else text


def _job(classifier: Classifier, dataset: Dataset, card: Card, lines: list[str]) -> _Job:
    preprocessing, line = card.preprocess(classifier.identity.preprocessing)
    if line:
        lines.append(f"{classifier.identity.name}: {line}")
    return _Job(classifier, dataset, preprocessing)


def _datasets(jobs: Sequence[_Job]) -> Dataset:
    """The data set that all jobs share.

    Raises:
        DataError: the checkpoints number the classes of the same files differently.
    """
    first = jobs[0]
    for job in jobs[1:]:
        if job.dataset.samples != first.dataset.samples or job.dataset.valid_labels != first.dataset.valid_labels:
            raise DataError(
                f"{first.classifier.identity.name} and {job.classifier.identity.name} number the classes of "
                f"{first.dataset.root} differently; audit them in runs of their own"
            )
    return first.dataset


def _check_labels(dataset: Dataset, conditions: Sequence[Condition], card: Card) -> None:
    """Raises DataError for an attack that knows one label of a sample where several count as right."""
    if not any(len(set(sample.valid or ())) > 1 for sample in dataset.samples):
        return
    for condition in conditions:
        predicted = attacked_labels(condition, card) == "predicted"
        if condition.early_stop and predicted:
            raise DataError(
                f"{condition.text} stops at the first prediction that is not the model's own, but several labels count "
                f"as right here (ReaL); set early_stop=false, or leave out --real-labels"
            )
        if condition.engine != "robustkit" and not predicted:
            raise DataError(
                f"{condition.text}: {condition.engine} leads away from one label, but several count as right here "
                f"(ReaL); use --engine robustkit, or leave out --real-labels"
            )


def pack(manifest: Manifest, checkpoint: CheckpointEntry, settings: Settings, condition: str) -> dict[str, Any]:
    """Where the rows of a checkpoint under a condition come from, for the metadata of their Parquet files."""
    beside = {"batch_size": settings.batch_size, "device": manifest.device, "versions": manifest.versions}
    return provenance_of(manifest, checkpoint, condition) | beside
