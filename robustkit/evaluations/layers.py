"""The attention layers that a record is of, as its metadata name them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import DamagedRecord

_MOST_LAYERS, _MOST_HEADS, _LONGEST = 4096, 1 << 16, 200


@dataclass(frozen=True)
class Layer:
    """One attention layer. keys: the number of keys among which a query divides its attention."""

    name: str
    heads: int
    keys: int


def head_name(layers: Sequence[Layer], place: int) -> str:
    """Return `blocks.3.attn head 0` of the head at a place among those of all layers; heads are counted from 0, as
    layers are.
    """
    for layer in layers:
        if place < layer.heads:
            return f"{layer.name} head {place}"
        place -= layer.heads
    raise IndexError(place)


def encode_layers(layers: Sequence[Layer]) -> bytes:
    """Encode the layers for the metadata of a record."""
    return json.dumps([[layer.name, layer.heads, layer.keys] for layer in layers]).encode()


def decode_layers(metadata: Mapping[bytes, bytes] | None, where: Path) -> tuple[Layer, ...]:
    try:
        layers = tuple(Layer(*entry) for entry in json.loads((metadata or {})[b"attention"]))
    except (KeyError, TypeError, ValueError, RecursionError):
        layers = ()
    fine = 0 < len(layers) <= _MOST_LAYERS and all(map(_is_layer, layers))
    if not fine or sum(layer.heads for layer in layers) > _MOST_HEADS:
        raise DamagedRecord(f"{where}: a record does not say which layers it is of; delete it and run again")
    return layers


def _is_layer(layer: Layer) -> bool:
    counts = all(type(count) is int and 0 < count < 1 << 31 for count in (layer.heads, layer.keys))
    return counts and isinstance(layer.name, str) and len(layer.name) <= _LONGEST and layer.name.isprintable()
