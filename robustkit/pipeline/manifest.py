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
import torch

from ..common.preprocessing import Preprocessing
from ..data.dataset import Dataset
from ..errors import RunError
from ..evaluations.corruptions.plan import CorruptedInputs
from ..evaluations.subject import Settings
from ..models.classifier import ModelIdentity
from ..protocol.card import Card
from ..protocol.condition import Condition
from ..runs.binding import OF_CHECKPOINT, digest_of_run, digests_of_shards
from ..runs.folder import RunFolder

_MAP = "cam("  # how the text of a map that is scored begins


def describe(identity: ModelIdentity, preprocessing: Preprocessing) -> dict[str, Any]:
    """A checkpoint as run.json and every record hold it; JSON types only."""
    described: dict[str, Any] = json.loads(
        json.dumps(identity.to_dict() | {"preprocessing": asdict(preprocessing)}, default=str)
    )
    return described


def prepare(
    run: RunFolder,
    checkpoints: Sequence[Mapping[str, Any]],
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
    old = run.manifest
    deciding = {
        "seed": settings.seed,
        "protocol": card.tag,
        "data digest": (digest or dataset.digest)(),
        "dtype": str(settings.dtype).removeprefix("torch."),
        "compile": settings.compile,
    }
    lines = []
    if not old and next((run.path / "records").rglob("*.parquet"), None):
        raise RunError(f"{run.path} holds records but no run.json that says of what; use another --out")
    if old:
        _check_same(old, deciding, checkpoints, corrupted.digests, run.path)
        if old["batch_size"] != settings.batch_size:
            lines.append(
                f"batch size was {old['batch_size']} before and is {settings.batch_size} now: "
                f"the same draws, results equal up to float rounding"
            )
    names = {known["name"] for known in old.get("checkpoints", [])}
    texts = dict.fromkeys([*old.get("conditions", []), *(condition.text for condition in conditions)])
    claims = {c.text: c.claim for c in conditions if c.claim}
    shard_size = old.get("shard_size") or shard_size or max(128, settings.batch_size)
    found: dict[str, Any] = {
        "robustkit": metadata.version("robustkit-audit"),
        "command": _command(),
        "started": old.get("started") or datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "arguments": json.loads(json.dumps(arguments, default=str)),
        "seed": settings.seed,
        "protocol": _protocol(card),
        "conditions": list(texts),
        "claims": old.get("claims", {}) | claims,
        "checkpoints": [*old.get("checkpoints", []), *(c for c in checkpoints if c["name"] not in names)],
        "data": {
            "name": dataset.name,
            "root": dataset.root,
            "layout": dataset.layout,
            "n": len(dataset.samples),
            "classes": len(dataset.class_names),
            "digest": deciding["data digest"],
            "notes": list(dataset.notes),
            **(facts or {}),
            "shards": digests_of_shards([sample.id for sample in dataset.samples], shard_size),
        },
        "corrupted": _corrupted(old.get("corrupted", {}), corrupted),
        "keep_misclassified": keep,
        "shard_size": shard_size,
        "batch_size": settings.batch_size,
        "device": _device_name(settings.device),
        "versions": _versions(),
        "deciding": deciding,
        "bad_images": old.get("bad_images", []),
        "pictures": old.get("pictures", list(pictures)),
        "evidence": list(dict.fromkeys([*old.get("evidence", []), *evidence])),
    }
    if old and digest_of_run(json.loads(json.dumps(found))) != digest_of_run(old):
        raise RunError(
            f"{run.manifest_path}: names other samples, shards or parameters of the card than this command, though "
            "data and card are the same: restore it, or use another --out"
        )
    run.write_manifest(found)
    return lines


def _check_same(
    old: Mapping[str, Any],
    deciding: Mapping[str, Any],
    checkpoints: Sequence[Mapping[str, Any]],
    digests: Mapping[str, str],
    where: Path,
) -> None:
    pairs = [(name, old["deciding"].get(name), value) for name, value in deciding.items()]
    known = {checkpoint["name"]: checkpoint for checkpoint in old["checkpoints"]}
    for new in checkpoints:
        before = known.get(new["name"], new)
        pairs += [(f"{key} of {new['name']}", before.get(key), new.get(key)) for key in OF_CHECKPOINT]
    taken = old.get("corrupted", {}).get("digests", {})
    for condition, digest in digests.items():
        if not condition.startswith(_MAP):
            pairs.append((f"what {condition} takes", taken.get(condition, digest), digest))
    truths = _truths(old["conditions"], taken), _truths(digests, digests)
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


def _corrupted(old: Mapping[str, Any], new: CorruptedInputs) -> dict[str, Any]:
    left_out = old.get("left_out", {}) | new.left_out
    return {
        "digests": old.get("digests", {}) | new.digests,
        "released": old.get("released", {}) | new.released,
        "left_out": {condition: line for condition, line in left_out.items() if condition not in new.digests},
    }


def _protocol(card: Card) -> dict[str, Any]:
    kept = ("tag", "name", "version", "task", "digest", "space", "labels", "summary", "source")
    return {name: getattr(card, name) for name in kept} | {
        "caveats": list(card.caveats),
        "parameters": json.loads(json.dumps(card.parameters, default=str)),
    }


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
