"""What the heads of one layer did, and how records keep it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import DamagedRecord

if TYPE_CHECKING:
    pass

METRICS = (
    *("largest_logit", "query_norm", "key_norm"),
    *("attention_entropy", "entropy_share", "strongest_key", "softmax_slope"),
)
"""A figure per sample: the largest |logit| of all heads, and means over all heads of all layers. Entropy is in nats,
and as a share of log N, which it is over N keys where attention is even. The strongest key is its share of attention.
The softmax slope is the spectral norm of softmax's Jacobian, a mean over queries.
"""

LISTS = ("largest_logits", "query_norms", "key_norms", "attention_entropies", "strongest_keys", "softmax_slopes")
"""The same for each head of each layer: means over its tokens, and the largest logit."""

_MOST_LAYERS, _MOST_HEADS, _LONGEST = 4096, 1 << 16, 200


@dataclass(frozen=True)
class Layer:
    """One attention layer. keys: the number of keys among which a query divides its attention."""

    name: str
    heads: int
    keys: int


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
