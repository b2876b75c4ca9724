"""run.json: what was asked, of what, with what; and the refusal to mix two different runs in one folder."""

from __future__ import annotations

import datetime
import json
import platform
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

import cv2
import msgspec
import torch

from ..common.preprocessing import Preprocessing
from ..data.dataset import Dataset
from ..errors import RunError
from ..evaluations.corruptions.plan import CorruptedInputs
from ..evaluations.subject import Settings
from ..models.classifier import ModelIdentity
from ..protocol.card import Card
from ..protocol.condition import Condition
from ..runs.binding import OF_CHECKPOINT, digest_of_run
from ..runs.digests import digests_of_shards
from ..runs.folder import RunFolder
from ..runs.manifest import CardEntry, CheckpointEntry, Claim, CorruptedEntry, DataEntry, Deciding, Manifest

_MAP = "cam("  # how the text of a map that is scored begins


def describe(identity: ModelIdentity, preprocessing: Preprocessing, **more: Any) -> CheckpointEntry:
    """Return a checkpoint as run.json and every record hold it. more: further fields, in JSON types."""
    described = identity.to_dict() | {"preprocessing": asdict(preprocessing)} | more
    return msgspec.convert(_plain(described), CheckpointEntry)


def _plain(value: Any) -> Any:
    """Return a value in JSON types; what has none as a text."""
    return json.loads(json.dumps(value, default=str))


def prepare(
    run: RunFolder,
    checkpoints: Sequence[CheckpointEntry],
    dataset: Dataset,
    card: Card,
    conditions: Sequence[Condition],
    settings: Settings,
    shard_size: int | None,
    arguments: Mapping[str, Any],
    corrupted: CorruptedInputs,
    digest: Callable[[], str] | None = None,
    facts: Mapping[str, Any] | None = None,
    keep: bool = False,
    pictures: Sequence[str] = (),
    evidence: Sequence[str] = (),
) -> list[str]:
    """Write run.json, or extend the one that an earlier command left; returns lines for the user.

    arguments: what the user asked for, as `audit` takes it, so that the same samples can be found again.
    corrupted: what corruptions and maps take beside the data set. digest: of the data set, its own if left out.
    facts: more of the data set, in JSON types. keep: maps of wrong predictions count. pictures: ids of
    the samples of which images are kept, where no earlier command chose some. evidence: the attacks, by the texts of
    their conditions, whose results need evidence to be trusted.

    Raises:
        RunError: the folder holds records that this command would not have made.
    """
    old = run.read_manifest()
    deciding = Deciding(
        seed=settings.seed,
        protocol=card.tag,
        data_digest=(digest or dataset.digest)(),
        dtype=str(settings.dtype).removeprefix("torch."),
        compile=settings.compile,
    )
    lines = []
    if not old and next((run.path / "records").rglob("*.parquet"), None):
        raise RunError(f"{run.path} holds records but no run.json that says of what; use another --out")
    if old:
        _check_same(old, deciding, checkpoints, corrupted.digests, run.path)
        if old.batch_size != settings.batch_size:
            lines.append(
                f"batch size was {old.batch_size} before and is {settings.batch_size} now: "
                f"the same draws, results equal up to float rounding"
            )
    known = () if old is None else old.checkpoints
    names = {entry.name for entry in known}
    claims = {c.text: Claim(**c.claim) for c in conditions if c.claim}
    shard_size = (old and old.shard_size) or shard_size or max(128, settings.batch_size)
    new = Manifest(
        robustkit=metadata.version("robustkit-audit"),
        command=_command(),
        started=old.started if old else datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        arguments=_plain(arguments),
        seed=settings.seed,
        protocol=_protocol(card),
        conditions=tuple(dict.fromkeys([*(old.conditions if old else ()), *(c.text for c in conditions)])),
        claims={**(old.claims if old else {}), **claims},
        checkpoints=(*known, *(entry for entry in checkpoints if entry.name not in names)),
        data=_data(dataset, deciding.data_digest, shard_size, facts or {}),
        corrupted=_corrupted(old.corrupted if old else None, corrupted),
        keep_misclassified=keep,
        shard_size=shard_size,
        batch_size=settings.batch_size,
        device=_device_name(settings.device),
        versions=_versions(),
        deciding=deciding,
        bad_images=old.bad_images if old else (),
        pictures=old.pictures if old else tuple(pictures),
        evidence=tuple(dict.fromkeys([*(old.evidence if old else ()), *evidence])),
    )
    if old and digest_of_run(new) != digest_of_run(old):
        raise RunError(
            f"{run.manifest_path}: names other samples, shards or parameters of the card than this command, though "
            "data and card are the same: restore it, or use another --out"
        )
    run.write_manifest(new)
    return lines


def _data(dataset: Dataset, digest: str, shard_size: int, facts: Mapping[str, Any]) -> DataEntry:
    return DataEntry(
        name=dataset.name,
        root=dataset.root,
        layout=dataset.layout,
        n=len(dataset.samples),
        classes=len(dataset.class_names),
        digest=digest,
        notes=tuple(dataset.notes),
        shards=tuple(digests_of_shards([sample.id for sample in dataset.samples], shard_size)),
        **facts,
    )


def _check_same(
    old: Manifest, deciding: Deciding, checkpoints: Sequence[CheckpointEntry], digests: Mapping[str, str], where: Path
) -> None:
    there = old.deciding.to_plain()
    pairs = [(name, there.get(name), value) for name, value in deciding.to_plain().items()]
    known = {entry.name: entry for entry in old.checkpoints}
    for new in checkpoints:
        before, after = known.get(new.name, new).to_plain(), new.to_plain()
        pairs += [(f"{key} of {new.name}", before.get(key), after.get(key)) for key in OF_CHECKPOINT]
    taken = old.corrupted.digests
    for condition, digest in digests.items():
        if not condition.startswith(_MAP):
            pairs.append((f"what {condition} takes", taken.get(condition, digest), digest))
    truths = _truths(old.conditions, taken), _truths(digests, digests)
    if all(truths):
        pairs.append(("the digest of boxes or masks", *truths))
    differing = [_differing(name, there, here) for name, there, here in pairs if there != here]
    if differing:
        raise RunError(f"{where} holds another run: {'; '.join(differing)}; use another --out, or delete that folder")


def _differing(name: str, there: Any, here: Any) -> str:
    """What differs; of tables only the entries that do."""
    if isinstance(there, dict) and isinstance(here, dict):
        keys = [key for key in {**there, **here} if there.get(key) != here.get(key)]
        there, here = ({key: side.get(key) for key in keys} for side in (there, here))
    if name == "data digest":
        why = "images, labels or the choice of them (--limit, --ids, --seed) are others"
        return f"{name} is {str(there)[:12]}… there and {str(here)[:12]}… here: {why}"
    return f"{name} is {there} there and {here} here"


def _truths(conditions: Iterable[str], digests: Mapping[str, str]) -> str:
    """The digest of the truth that maps were scored with, `none` without one; empty where there are no maps."""
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
    own = {"opencv": cv2.__version__, "python": platform.python_version()}
    return {name: metadata.version(name) for name in names} | own


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type} ({platform.machine()})"


def _command() -> str:
    """The words that started this process, without the folders of the program."""
    program = Path(sys.argv[0]).name
    return shlex.join([*(["robustkit"] if program in ("", "__main__.py") else [program]), *sys.argv[1:]])
