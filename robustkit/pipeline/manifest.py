"""Write run.json for a plan, and refuse to mix two different runs in one folder."""

from __future__ import annotations

import datetime
import json
import platform
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import cv2
import msgspec
from msgspec import UNSET

from ..attention.registry import EVERY_FORMULA
from ..common.environment import count_in
from ..common.plugins import Plugin, Registry
from ..common.preprocessing import LOGITS, Preprocessing
from ..errors import ProtocolError, RunError
from ..evaluations.attacks import EVERY_ATTACK
from ..evaluations.condition import EVERY_FAMILY
from ..evaluations.corruptions import EVERY_CORRUPTION
from ..evaluations.family import family_of
from ..evaluations.maps import EVERY_EXPLAINER
from ..evaluations.subject import Settings
from ..models.device import device_name, shards_in_memory
from ..models.identity import ModelIdentity
from ..models.specs import EVERY_READER, reader_in
from ..protocol.condition import Condition
from ..runs.description import without_option
from ..runs.manifest import (
    CardEntry,
    CheckpointEntry,
    Claim,
    CorruptedEntry,
    DataEntry,
    Deciding,
    Manifest,
    PluginEntry,
    digests_of_shards,
    same_training,
)
from ..runs.merging import changed_code, disagreements, join_manifests
from ..runs.metadata import write_metadata
from ..tasks import EVERY_TASK
from .plan import Plan
from .request import Preset, spelled_out


def registries() -> dict[str, Registry[Any]]:
    return {
        "attacks": EVERY_ATTACK,
        "corruptions": EVERY_CORRUPTION,
        "explainers": EVERY_EXPLAINER,
        "formulas": EVERY_FORMULA,
        "readers": EVERY_READER,
        "families": EVERY_FAMILY,
        "tasks": EVERY_TASK,
    }


def used_plugins(
    conditions: Iterable[Condition], checkpoints: Sequence[CheckpointEntry], task: str
) -> tuple[PluginEntry, ...]:
    """Return the plug-ins that a run uses, with the conditions and checkpoints whose records each decides."""
    of_conditions, of_checkpoints = dict[Plugin, list[str]](), dict[Plugin, list[str]]()
    for condition in conditions:
        for plugin in dict.fromkeys(family_of(condition.name).evaluator.plugins(condition)):
            of_conditions.setdefault(plugin, []).append(condition.text)
    for entry in checkpoints:
        formula = EVERY_FORMULA.plugin(entry.attention.partition("(")[0])
        reader = EVERY_READER.plugin(entry.spec.partition(":")[0])
        if reader is None and entry.path:
            place = Path(entry.path)
            reader = EVERY_READER.plugin(reader_in(place if place.is_dir() else place.parent))
        for plugin in filter(None, (formula, reader, EVERY_TASK.plugin(task))):
            of_checkpoints.setdefault(plugin, []).append(entry.name)
    return tuple(
        PluginEntry(
            **plugin.identity,
            conditions=tuple(of_conditions.get(plugin, ())),
            checkpoints=tuple(of_checkpoints.get(plugin, ())),
        )
        for plugin in {**of_conditions, **of_checkpoints}
    )


_OF_CARD = ("tag", "name", "version", "task", "digest", "space", "labels", "summary", "source")


def describe(identity: ModelIdentity, preprocessing: Preprocessing, **more: Any) -> CheckpointEntry:
    """Return a checkpoint as run.json and records describe it. more: further fields, in JSON types."""
    before, after = asdict(identity.preprocessing), asdict(preprocessing)
    if after["value_range"] is None:
        del before["value_range"], after["value_range"]
    sources = identity.preprocessing_source | {name: "card" for name in after if after[name] != before[name]}
    trained = {"trained_attention": identity.trained_attention} if identity.trained_attention else {}
    described = identity.to_dict() | trained | {"preprocessing": after, "preprocessing_source": sources} | more
    if described["outputs"] == LOGITS:
        del described["outputs"]
    if described["label_map"] is None:
        del described["label_map"]
    return msgspec.convert(_plain(described), CheckpointEntry)


def preprocessing_of(entry: CheckpointEntry) -> Preprocessing:
    p = entry.preprocessing
    values = None if p.value_range is UNSET else (p.value_range[0], p.value_range[1])
    return Preprocessing(p.input_size, tuple(p.mean), tuple(p.std), p.interpolation, p.crop_pct, p.crop_mode, values)


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value, default=str))


def prepare_run(plan: Plan, digest: str) -> list[str]:
    """Write run.json, or extend an earlier one, and the metadata of the samples; return lines for the user. RunError
    where records differ in plan."""
    lines = [*plan.dataset.odd_note(), *_prepare(plan, digest)]
    if plan.metadata is not None:
        write_metadata(plan.run, plan.metadata)
    return lines


def _prepare(plan: Plan, digest: str) -> list[str]:
    run = plan.run
    old = run.read_manifest()
    if old is None and next((run.path / "records").rglob("*.parquet"), None):
        raise RunError(f"{run.path} contains records but no run.json; use another --out")
    new = describe_plan(plan, digest, old)
    if old is None:
        run.write_manifest(new)
        return []
    if odd := disagreements(old, new):
        raise RunError(f"{run.path} contains another run: {'; '.join(odd)}; use another --out, or delete the folder")
    run.write_manifest(join_manifests(old, new))
    lines = [*changed_code(old, new)]
    if old.batch_size != new.batch_size:
        sizes = f"batch size was {old.batch_size} before and is {new.batch_size} now"
        lines.append(f"{sizes}: the same random draws; results are equal up to float rounding")
    before, now = old.made_with, new.made_with
    both = [(name, before[name], text) for name, text in now.items() if name in before]
    changed = [f"{name} was {before} before and is {now} now" for name, before, now in both if before != now]
    return [*lines, f"{', '.join(changed)}: figures that combine both are flagged"] if changed else lines


def describe_plan(plan: Plan, digest: str, old: Manifest | None) -> Manifest:
    """Return the manifest of a plan alone. old: of the run that it continues, which has chosen sizes."""
    request, card = plan.request, plan.request.card
    entries = [planned.with_answers() for planned in plan.contenders]
    specs = [str(spec) for spec in request.checkpoints]
    specs = specs if len(specs) == len(entries) else [entry.spec for entry in entries]  # a file may hold several
    methods = (request.trainings.methods.get(spec, UNSET) for spec in specs)
    checkpoints = tuple(msgspec.structs.replace(e, method=m) for e, m in zip(entries, methods, strict=True))
    if same := same_training(checkpoints):
        raise ProtocolError(f"{same} are the same file, which is no second training; leave one out")
    settings = plan.settings(old.batch_size if old else None)
    size = old.shard_size if old else request.shard_size or shard_size(plan, settings)
    return Manifest(
        format=2,
        robustkit=metadata.version("robustkit-audit"),
        command=_command(plan),
        started=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        arguments=_plain(request.arguments()),
        seed=settings.seed,
        protocol=CardEntry(
            **{name: getattr(card, name) for name in _OF_CARD},
            caveats=tuple(card.caveats),
            parameters=_plain(card.parameters),
        ),
        conditions=tuple(dict.fromkeys(condition.text for condition in plan.conditions)),
        claims={condition.text: Claim(**condition.claim) for condition in plan.conditions if condition.claim},
        checkpoints=checkpoints,
        data=_data(plan, digest, size),
        corrupted=CorruptedEntry(
            digests=dict(plan.inputs.digests),
            released=_plain(plan.inputs.released),
            left_out={text: why for text, why in plan.inputs.left_out.items() if text not in plan.inputs.digests},
        ),
        keep_misclassified=plan.keep_misclassified,
        shard_size=size,
        batch_size=settings.batch_size,
        device=device_name(settings.device),
        versions=versions(),
        deciding=Deciding(
            seed=settings.seed,
            protocol=card.tag,
            data_digest=digest,
            dtype=settings.named_dtype,
            compile=settings.compile,
        ),
        bad_images=(),
        pictures=plan.pictures,
        evidence=tuple(dict.fromkeys(plan.evidence)),
        plugins=used_plugins(plan.conditions, checkpoints, card.task) or UNSET,
        parts=request.share.count if request.share else UNSET,
        sequential=True if plan.sequential else UNSET,
        unsuited={name: tuple(texts) for name, texts in plan.unsuited.items() if texts} or UNSET,
        parity=checkpoints[0].name if getattr(request, "parity", False) else UNSET,
    )


def shard_size(plan: Plan, settings: Settings) -> int:
    """Return how many samples a unit of work has where nobody says: on an accelerator more, so that what the host does
    for each unit counts for less, and attacks that make their own batches keep them full. Parts of one run, which may
    lie on unlike devices, have the same size; so do tasks whose samples are held at their full size.
    """
    request, device = plan.request, settings.device
    batch = settings.batch_size if request.batch_size == "auto" else request.settings.batch_size  # as given, or usual
    least = max(request.least_shard, batch)
    if device.type == "cpu" or request.least_shard < _SCALED:
        return least
    fair = -(-len(plan.dataset.samples) // count_in("WORLD_SIZE", 1))  # so that each process has some
    times = _OF_PARTS if request.share else shards_in_memory(device)
    return max(least, min(request.least_shard * times, fair))


_SCALED = 128  # samples of a unit on a CPU from which on one of an accelerator is larger
_OF_PARTS = 4  # times as many in each part of a run


def _data(plan: Plan, digest: str, size: int) -> DataEntry:
    dataset = plan.dataset
    return DataEntry(
        name=dataset.name,
        root=dataset.root,
        layout=dataset.layout,
        n=len(dataset.samples),
        classes=len(dataset.class_names),
        digest=digest,
        notes=(*dataset.notes, *dataset.odd_note()),
        class_names=tuple(dataset.class_names),
        unjudged=UNSET if plan.unjudged is None else plan.unjudged,
        shards=tuple(digests_of_shards([sample.id for sample in dataset.samples], size)),
        total=dataset.total if dataset.total > len(dataset.samples) else UNSET,
    )


def versions() -> dict[str, str]:
    names = ("torch", "timm", "numpy", "pillow", "pyarrow")
    ours = {"robustkit": metadata.version("robustkit-audit")}
    # Several distributions provide OpenCV.
    others = {"opencv": cv2.__version__, "python": platform.python_version()}
    return ours | {name: metadata.version(name) for name in names} | others


def _command(plan: Plan) -> str:
    """Return the plan's command, or the words that started this process, without --part, and a preset spelled out."""
    if plan.command:
        return shlex.join(plan.command)
    preset = plan.request.preset
    program, words = Path(sys.argv[0]).name, without_option(sys.argv[1:], "--part")
    ours = program in ("", "__main__.py")
    if isinstance(preset, Preset) and (ours or program == "robustkit"):
        words = spelled_out(words, preset)
    return shlex.join([*(["robustkit"] if ours else [program]), *words])
