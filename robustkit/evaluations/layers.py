"""The attention layers that a record has figures of, by its metadata."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..errors import DamagedRecord


@dataclass(frozen=True)
class Layer:
    """One attention layer. keys: the number of keys among which a query divides its attention."""

    name: str
    heads: int
    keys: int


def head_name(layers: Sequence[Layer], place: int) -> str:
    """Return `blocks.3.attn head 0` of the head at a place among those of all layers; both are counted from 0."""
    for layer in layers:
        if place < layer.heads:
            return f"{layer.name} head {place}"
        place -= layer.heads
    raise IndexError(place)


def encode_layers(layers: Sequence[Layer]) -> bytes:
    return json.dumps([[layer.name, layer.heads, layer.keys] for layer in layers]).encode()


def decode_layers(metadata: Mapping[bytes, bytes] | None, where: Path) -> tuple[Layer, ...]:
    try:
        layers = tuple(Layer(*entry) for entry in json.loads((metadata or {})[b"attention"]))
    except (KeyError, TypeError, ValueError, RecursionError):
        layers = ()
    fine = 0 < len(layers) <= 4096 and all(map(_is_layer, layers))
    if not fine or sum(layer.heads for layer in layers) > 1 << 16:
        raise DamagedRecord(f"{where}: a record does not record its layers; delete it and run again")
    return layers


def _is_layer(layer: Layer) -> bool:
    counts = all(type(count) is int and 0 < count < 1 << 31 for count in (layer.heads, layer.keys))
    return counts and isinstance(layer.name, str) and len(layer.name) <= 200 and layer.name.isprintable()
