"""The weights of a transformers checkpoint: one file, or those that an index names; and what formulas learned."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from torch import Tensor, nn

from ..attention.apply import attention_layers
from ..attention.parameters import SCALES
from ..common.files import json_of, reason
from ..data.mask_files import printable
from ..errors import CheckpointError
from .checkpoint import Checkpoint, read

INDEX, WEIGHTS = "model.safetensors.index.json", ("model.safetensors", "pytorch_model.bin")
_INDEX = 64 << 20  # bytes of an index
_PLACED = re.compile(rf"(.*)\.({'|'.join(SCALES)}|[qk]_norm\.(?:weight|bias))")  # a layer, and what a formula adds


def read_weights(folder: Path) -> Checkpoint:
    """Read the weights of a folder: one file, or those that an index names."""
    files = files_of(folder)
    return _shards(folder / INDEX, files) if is_sharded(folder) else read(files[0], prefixes=False)


def is_sharded(folder: Path) -> bool:
    """Whether an index names the files of its weights; a whole file next to it comes first, as in transformers."""
    return (folder / INDEX).is_file() and not (folder / WEIGHTS[0]).is_file()


def files_of(folder: Path) -> list[Path]:
    """Return the files of a folder's weights, in the order of their names; CheckpointError where there are none."""
    if is_sharded(folder):
        return [folder / name for name in sorted({str(name) for name in _places(folder / INDEX).values()})]
    file = next((folder / name for name in WEIGHTS if (folder / name).is_file()), None)
    if file is None:
        raise CheckpointError(f"{folder}: no weights next to config.json; expected {' or '.join((*WEIGHTS, INDEX))}")
    return [file]


def _places(index: Path) -> Mapping[str, str]:
    """Return the file of each tensor, as an index has it."""
    try:
        said = json_of(index, _INDEX)
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{index}: not JSON ({reason(error)}); expected an index of weights") from error
    places = said.get("weight_map") if isinstance(said, Mapping) else None
    if not isinstance(places, Mapping) or not places:
        raise CheckpointError(f"{index}: has no weight_map; expected the file of each tensor")
    for name in map(str, places.values()):
        if Path(name).name != name or len(name) > 200 or not name.isprintable() or not name.endswith(".safetensors"):
            raise CheckpointError(f"{index}: names the file {name[:80]!r}; expected .safetensors files next to it")
    return places


def _shards(index: Path, files: Sequence[Path]) -> Checkpoint:
    places = _places(index)
    parts = [read(file, prefixes=False) for file in files]
    tensors: dict[str, Tensor] = {}
    for file, part in zip(files, parts, strict=True):
        tensors |= {key: value for key, value in part.tensors.items() if places.get(key) == file.name}
    if missing := [key for key in places if key not in tensors]:
        first = printable(str(missing[0]))[:80]
        raise CheckpointError(f"{index}: {len(missing)} tensors are not in the files that it names ({first}, …)")
    digest = digest_of_shards([(file.name, part.sha256) for file, part in zip(files, parts, strict=True)])
    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    return Checkpoint(index, digest, tensors, {}, "bare", notes)


def digest_of_shards(digests: Iterable[tuple[str, str]]) -> str:
    """Return the digest of weights in several files. digests: names of the files, each with its SHA-256 (hex)."""
    return hashlib.sha256("".join(f"{digest} {name}\n" for name, digest in digests).encode()).hexdigest()


def is_added(name: str) -> bool:
    """Whether a tensor is one that a formula adds to a layer."""
    return _PLACED.fullmatch(name) is not None


def give_added(model: nn.Module, added: Mapping[str, Tensor], formula: str, file: Path) -> None:
    """Copy what a formula learned into the layers, by their order: saved names of layers are those of older releases,
    and the library translates only its own.
    """
    if not added:
        return
    places: dict[str, dict[str, Tensor]] = {}
    for name, tensor in added.items():
        if match := _PLACED.fullmatch(name):
            places.setdefault(match[1], {})[match[2]] = tensor
    layers = [layer for _, layer in attention_layers(model)]
    rows = sorted(places, key=lambda name: [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)])
    for row, layer in zip(rows, layers, strict=False):
        shapes = {name: value.shape for name, value in layer.state_dict().items() if _PLACED.fullmatch(f".{name}")}
        if len(rows) != len(layers) or shapes != {name: tensor.shape for name, tensor in places[row].items()}:
            raise CheckpointError(
                f"{file}: {len(rows)} layers with {_listed(places[row])}; {formula} attention has "
                f"{_listed(layer.state_dict(), shapes) or 'none'} in {len(layers)}; give --attention, or take another "
                "file"
            )
        layer.load_state_dict(places[row], strict=False)


def _listed(tensors: Mapping[str, Tensor], names: Iterable[str] | None = None) -> str:
    """Return names with shapes."""
    return ", ".join(f"{name} {list(tensors[name].shape)}" for name in sorted(tensors if names is None else names))
