"""Weights in several files: an index of safetensors names the file of each tensor."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..common.files import json_of, reason_of
from ..errors import CheckpointError

INDEX = "model.safetensors.index.json"
_LARGEST = 64 << 20  # bytes of an index
_SHARD = re.compile(r"(.+)-(\d{3,6})-of-(\d{3,6})(\.(?:safetensors|bin|pt|pth))")
_DISTRIBUTED = "python -m torch.distributed.checkpoint.format_utils dcp_to_torch"


def is_index(path: Path) -> bool:
    return path.name.endswith(".safetensors.index.json")


def places_of(index: Path) -> Mapping[str, str]:
    """Return the file name of each tensor. CheckpointError for what is not an index, or names files elsewhere."""
    try:
        said = json_of(index, _LARGEST)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{index}: not JSON ({reason_of(error)}); expected an index of weights") from error
    places = said.get("weight_map") if isinstance(said, Mapping) else None
    if not isinstance(places, Mapping) or not places:
        raise CheckpointError(f"{index}: has no weight_map; expected the file of each tensor")
    for name in map(str, places.values()):
        if Path(name).name != name or len(name) > 200 or not name.isprintable() or not name.endswith(".safetensors"):
            raise CheckpointError(f"{index}: names the file {name[:80]!r}; expected .safetensors files next to it")
    return places


def shards_of(index: Path) -> list[Path]:
    """Return the files that an index names, in the order of their names."""
    return [index.parent / name for name in sorted({str(name) for name in places_of(index).values()})]


def digest_of_shards(digests: Iterable[tuple[str, str]]) -> str:
    """Return the digest of weights in several files. digests: names of the files, each with its SHA-256 (hex)."""
    return hashlib.sha256("".join(f"{digest} {name}\n" for name, digest in digests).encode()).hexdigest()


def refuse_part(path: Path) -> None:
    """Raise CheckpointError for a file or a folder that holds a part of weights, or parts in a form of their own."""
    if (path / ".metadata").is_file() and next(path.glob("*.distcp"), None):
        what = f"{path}: a distributed checkpoint of torch"
        raise CheckpointError(f"{what}; convert it to one file: {_DISTRIBUTED} {path} weights.pth")
    shard = _SHARD.fullmatch(path.name)
    if shard is None or int(shard[3]) < 2 or not path.is_file():
        return
    what = f"{path}: part {int(shard[2])} of {int(shard[3])} of some weights"
    index = path.parent / f"{shard[1]}.safetensors.index.json"
    if shard[4] != ".safetensors":
        raise CheckpointError(f"{what}; load the whole model in its library, and save it as one file")
    lacks = "" if index.is_file() else ", which is missing here"
    raise CheckpointError(f"{what}; give their index, {index}{lacks}")
