"""Weights in several files: an index of safetensors names the file of each tensor."""

from __future__ import annotations

import hashlib
import re
import shlex
from collections.abc import Iterable, Mapping
from pathlib import Path

from ..common.files import json_of, reason_of
from ..errors import CheckpointError

INDEX = "model.safetensors.index.json"
_LARGEST = 64 << 20  # bytes of an index
_SHARD = re.compile(r"(.+)-(\d{3,6})-of-(\d{3,6})(\.(?:safetensors|bin|pt|pth))")
_AS_ONE = "load the whole model in its library, and save it as one file"
_DISTRIBUTED = "python -m torch.distributed.checkpoint.format_utils dcp_to_torch"


def is_index(path: Path) -> bool:
    return path.name.endswith(".index.json")


def index_in(folder: Path) -> Path | None:
    """Return the index of the weights in a folder; of safetensors, where there are others, too. CheckpointError for
    several."""
    if (folder / INDEX).is_file():
        return folder / INDEX
    indexes = sorted(folder.glob("*.safetensors.index.json")) or sorted(folder.glob("*.index.json"))
    if len(indexes) > 1:
        names = ", ".join(each.name for each in indexes[:5])
        raise CheckpointError(f"{folder}: {len(indexes)} indexes of weights ({names}); give the path of one")
    return indexes[0] if indexes else None


def places_of(index: Path) -> Mapping[str, str]:
    """Return the file name of each tensor. CheckpointError for what is not an index, or names files elsewhere."""
    try:
        content = json_of(index, _LARGEST)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{index}: not JSON ({reason_of(error)}); expected an index of weights") from error
    places = content.get("weight_map") if isinstance(content, Mapping) else None
    if not isinstance(places, Mapping) or not places:
        raise CheckpointError(f"{index}: has no weight_map; expected the file of each tensor")
    for name in map(str, places.values()):
        if Path(name).name != name or len(name) > 200 or not name.isprintable() or not name.endswith(".safetensors"):
            remedy = f"; {_AS_ONE}" if name.endswith((".bin", ".pt", ".pth")) else ""
            expected = f"expected .safetensors files next to it{remedy}"
            raise CheckpointError(f"{index}: names the file {name[:80]!r}; {expected}")
    return places


def shards_of(index: Path) -> list[Path]:
    """Return the files that an index names, in the order of their names."""
    return [index.parent / name for name in sorted({str(name) for name in places_of(index).values()})]


def digest_of_shards(digests: Iterable[tuple[str, str]]) -> str:
    """Return the digest of weights in several files. digests: names of the files, each with its SHA-256 (hex)."""
    return hashlib.sha256("".join(f"{digest} {name}\n" for name, digest in digests).encode()).hexdigest()


def refuse_part(path: Path) -> None:
    """Raise CheckpointError for a file or a folder that holds a part of weights, or parts in a form of their own."""
    is_part = path.suffix == ".distcp" or path.name == ".metadata"
    folder = path.parent if is_part else path
    whole = next((each.parent for each in (*folder.glob(".metadata"), *folder.glob("*/.metadata"))), folder)
    if next(whole.glob("*.distcp"), None) and (is_part or (whole / ".metadata").is_file()):
        what = "a distributed checkpoint of torch"
        if not (whole / ".metadata").is_file():
            raise CheckpointError(f"{path}: a part of {what}, whose .metadata is missing; fetch all of its folder")
        raise CheckpointError(
            f"{whole}: {what}; convert it to one file: {_DISTRIBUTED} {shlex.quote(str(whole))} weights.pth"
        )
    if path.is_dir() and index_in(path) is None:
        path = next((each for each in sorted(path.glob("*-of-*")) if _SHARD.fullmatch(each.name)), path)
    shard = _SHARD.fullmatch(path.name)
    if shard is None or int(shard[3]) < 2 or not path.is_file():
        return
    what = f"{path}: part {int(shard[2])} of {int(shard[3])} of some weights"
    index = path.parent / f"{shard[1]}.safetensors.index.json"
    if shard[4] != ".safetensors":
        raise CheckpointError(f"{what}; {_AS_ONE}")
    lacks = "" if index.is_file() else ", which is missing here"
    raise CheckpointError(f"{what}; give their index, {index}{lacks}")
