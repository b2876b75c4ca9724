# Made by `python -m scripts.pages.keywords` from robustkit/slices/series/__init__.py.
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

class SeriesOptions(TypedDict, total=False):
    model: Mapping[str, Any] | None
    arch: Any
    attention: Any
    num_classes: Any
    mean: Any
    std: Any
    use_ema: Any
    allow_partial: Any
    output: Any
    method: str | Sequence[str] | Mapping[str, Any] | None
    attacks: str | Iterable[str] | None
    eps: str | float | None
    norm: str | None
    classes: str | Path | None
    disturbances: str | Iterable[str] | None
    limit: int | None
    ids: str | Path | None
    metadata: str | Path | None
    groups: str | None
    groups_from: str | None
    evaluations: str | Iterable[str] | None
    protocol: str
    out: str | Path | None
    batch_size: int | Literal["auto"] | None
    shard_size: int | None
    workers: int | None
    device: str
    dtype: str
    compile: bool
    seed: int
    part: str | None
    ray: str | None
