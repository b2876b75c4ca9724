# Made by `python -m scripts.pages.keywords` from robustkit/slices/text/__init__.py.
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

class TextOptions(TypedDict, total=False):
    model: Mapping[str, Any] | None
    attention: Any
    method: str | Sequence[str] | Mapping[str, Any] | None
    documents: str | None
    split: str
    window: int | None
    stride: int | None
    windows: str | None
    perturbations: str | Sequence[str] | None
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
