"""Write run.json for a plan, and refuse to mix two different runs in one folder."""

from __future__ import annotations

import datetime
import json
import os
import platform
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import cv2
import msgspec
from msgspec import UNSET

from ..common.preprocessing import Preprocessing
from ..errors import RunError
from ..evaluations.corruptions.plan import CorruptedInputs
from ..evaluations.family import family_of
from ..evaluations.subject import Settings
from ..models.device import device_name
from ..models.identity import ModelIdentity
from ..protocol.card import Card
from ..runs.binding import OF_CHECKPOINT, digest_of_run
from ..runs.digests import digests_of_shards
from ..runs.manifest import (
    CardEntry,
    CheckpointEntry,
    Claim,
    CorruptedEntry,
    DataEntry,
    Deciding,
    Manifest,
    PluginEntry,
)
from .plan import Plan
from .plugins import differing, joined, used_plugins
from .presets import Preset, spelled_out

_MAP = "cam("  # how the text of a map that is scored begins

_QUEUED = 512
"""Samples in a unit on an accelerator for attacks that make their own batches: towards its end these run empty."""


def describe(identity: ModelIdentity, preprocessing: Preprocessing, **more: Any) -> CheckpointEntry:
    """Return a checkpoint as run.json and every record describe it. more: further fields, in JSON types."""
    before, after = asdict(identity.preprocessing), asdict(preprocessing)
    by_card = {name: "card" for name in after if after[name] != before[name]}
    sources = identity.preprocessing_source | by_card
    described = identity.to_dict() | {"preprocessing": after, "preprocessing_source": sources} | more
    return msgspec.convert(_plain(described), CheckpointEntry)


def _plain(value: Any) -> Any:
    """Return a value in JSON types; anything else as text."""
    return json.loads(json.dumps(value, default=str))


def prepare(plan: Plan) -> list[str]:
    """Write run.json, or extend the one that an earlier command left; return lines for the user.

    Raises:
        RunError: the folder holds records that this plan would not make.
    """
    run, request, card = plan.run, plan.request, plan.request.card
    old = run.read_manifest()
    settings = plan.settings(old.batch_size if old else None)
    deciding = Deciding(
        seed=settings.seed,
        protocol=card.tag,
        data_digest=plan.digest(),
        dtype=str(settings.dtype).removeprefix("torch."),
        compile=settings.compile,
    )
    described = [contender.entry for contender in plan.contenders]
    plugins = used_plugins(plan.conditions, described, card.task)
    lines = _check_old(plan, old, deciding, settings, plugins)
    earlier = old.checkpoints if old else ()
    names = {entry.name for entry in earlier}
    claims = {condition.text: Claim(**condition.claim) for condition in plan.conditions if condition.claim}
    texts = (condition.text for condition in plan.conditions)
    size = old.shard_size if old else request.shard_size or shard_size(plan, settings)
    new = Manifest(
        robustkit=metadata.version("robustkit-audit"),
        command=_command(request.preset),
        started=old.started if old else datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        arguments=_plain(request.arguments()) | ({"keep_adversarials": True} if old and old.keeps_adversarials else {}),
        seed=settings.seed,
        protocol=_protocol(card),
        conditions=tuple(dict.fromkeys([*(old.conditions if old else ()), *texts])),
        claims={**(old.claims if old else {}), **claims},
        checkpoints=(*earlier, *(entry for entry in described if entry.name not in names)),
        data=_data(plan, deciding.data_digest, size),
        corrupted=_corrupted(old.corrupted if old else None, plan.inputs),
        keep_misclassified=plan.keep_misclassified,
        shard_size=size,
        batch_size=settings.batch_size,
        device=device_name(settings.device),
        versions=_versions(),
        deciding=deciding,
        bad_images=old.bad_images if old else (),
        pictures=old.pictures if old else plan.pictures,
        evidence=tuple(dict.fromkeys([*(old.evidence if old else ()), *plan.evidence])),
        plugins=joined(old.used_plugins if old else (), plugins) or UNSET,
    )
    if old and digest_of_run(new) != digest_of_run(old):
        raise RunError(
            f"{run.manifest_path}: names other samples, shards or parameters of the card than this command, though "
            "data and card are the same: restore it, or use another --out"
        )
    run.write_manifest(new)
    return lines


def _check_old(
    plan: Plan, old: Manifest | None, deciding: Deciding, settings: Settings, plugins: Sequence[PluginEntry]
) -> list[str]:
    """Return lines on how this command differs from the run's earlier one; none where it is the first.

    Raises:
        RunError: the folder holds another run.
    """
    run = plan.run
    if old is None:
        if next((run.path / "records").rglob("*.parquet"), None):
            raise RunError(f"{run.path} holds records but no run.json that describes them; use another --out")
        return []
    if odd := "; ".join(differing(old, plugins, plan.conditions, [contender.entry for contender in plan.contenders])):
        raise RunError(f"{run.path} holds another run: {odd}; use another --out, or delete that folder")
    _check_same(old, deciding, [contender.entry for contender in plan.contenders], plan.inputs.digests, run.path)
    if old.batch_size == settings.batch_size:
        return []
    return [
        f"batch size was {old.batch_size} before and is {settings.batch_size} now: "
        f"the same draws, results equal up to float rounding"
    ]


def shard_size(plan: Plan, settings: Settings) -> int:
    """Return how many samples a unit of work has where nobody says."""
    queues = any(family_of(condition.name).takes_shards(condition, plan.request.card) for condition in plan.conditions)
    fair = -(-len(plan.dataset.samples) // int(os.environ.get("WORLD_SIZE", "1")))  # so that each process has some
    more = min(_QUEUED, fair) if queues and settings.device.type != "cpu" else 1
    return max(plan.request.least_shard, settings.batch_size, more)


def _data(plan: Plan, digest: str, size: int) -> DataEntry:
    dataset = plan.dataset
    return DataEntry(
        name=dataset.name,
        root=dataset.root,
        layout=dataset.layout,
        n=len(dataset.samples),
        classes=len(dataset.class_names),
        digest=digest,
        notes=tuple(dataset.notes),
        class_names=tuple(dataset.class_names),
        unjudged=UNSET if plan.unjudged is None else plan.unjudged,
        shards=tuple(digests_of_shards([sample.id for sample in dataset.samples], size)),
    )


def _check_same(
    old: Manifest, deciding: Deciding, checkpoints: Sequence[CheckpointEntry], digests: Mapping[str, str], where: Path
) -> None:
    there = old.deciding.to_plain()
    pairs = [(name, there.get(name), value) for name, value in deciding.to_plain().items()]
    earlier = {entry.name: entry for entry in old.checkpoints}
    for new in checkpoints:
        before, after = earlier.get(new.name, new).to_plain(), new.to_plain()
        pairs += [(f"{key} of {new.name}", before.get(key), after.get(key)) for key in OF_CHECKPOINT]
    taken = old.corrupted.digests
    for condition, digest in digests.items():
        if not condition.startswith(_MAP):
            pairs.append((f"what {condition} takes", taken.get(condition, digest), digest))
    truths = _truths(old.conditions, taken), _truths(digests, digests)
    if all(truths):
        pairs.append(("the digest of boxes or masks", *truths))
    odd = [_differing(name, there, here) for name, there, here in pairs if there != here]
    if odd:
        raise RunError(f"{where} holds another run: {'; '.join(odd)}; use another --out, or delete that folder")


def _differing(name: str, there: Any, here: Any) -> str:
    """Return in words what differs; for tables only the entries that do."""
    if isinstance(there, dict) and isinstance(here, dict):
        keys = [key for key in {**there, **here} if there.get(key) != here.get(key)]
        there, here = ({key: side.get(key) for key in keys} for side in (there, here))
    if name == "data digest":
        why = "images, labels or the choice of them (--limit, --ids, --seed) are others"
        return f"{name} is {str(there)[:12]}… there and {str(here)[:12]}… here: {why}"
    return f"{name} is {there} there and {here} here"


def _truths(conditions: Iterable[str], digests: Mapping[str, str]) -> str:
    """Return the digest of the truth that maps were scored with: `none` without one, empty without maps."""
    return " and ".join(sorted({digests.get(text, "none") for text in conditions if text.startswith(_MAP)}))


def _corrupted(old: CorruptedEntry | None, new: CorruptedInputs) -> CorruptedEntry:
    old = old or CorruptedEntry(digests={}, released={}, left_out={})
    left_out = {**old.left_out, **new.left_out}
    return CorruptedEntry(
        digests={**old.digests, **new.digests},
        released={**old.released, **_plain(new.released)},
        left_out={condition: line for condition, line in left_out.items() if condition not in new.digests},
    )


def _protocol(card: Card) -> CardEntry:
    kept = ("tag", "name", "version", "task", "digest", "space", "labels", "summary", "source")
    return CardEntry(
        **{name: getattr(card, name) for name in kept},
        caveats=tuple(card.caveats),
        parameters=_plain(card.parameters),
    )


def _versions() -> dict[str, str]:
    names = ("torch", "timm", "numpy", "pillow", "pyarrow")
    # Several distributions provide OpenCV.
    others = {"opencv": cv2.__version__, "python": platform.python_version()}
    return {name: metadata.version(name) for name in names} | others


def _command(preset: str | Preset | None) -> str:
    """Return the words that started this process, without the folders of the program, and a preset spelled out."""
    program, words = Path(sys.argv[0]).name, sys.argv[1:]
    ours = program in ("", "__main__.py")
    if isinstance(preset, Preset) and (ours or program == "robustkit"):
        words = spelled_out(words, preset)
    return shlex.join([*(["robustkit"] if ours else [program]), *words])
