# Made by `python -m scripts.pages.keywords` from robustkit/slices/multilabel/__init__.py.
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from typing_extensions import Required

class MultilabelOptions(TypedDict, total=False):
    model: Mapping[str, Any] | None
    arch: Any
    attention: Any
    num_classes: Any
    mean: Any
    std: Any
    pixels: Any
    interpolation: Any
    value_range: Any
    crop_pct: Any
    crop_mode: Any
    img_size: Any
    classes: Any
    prompts: Any
    text: Any
    label_map: Any
    custom_ops: Any
    use_ema: Any
    allow_partial: Any
    output: Any
    method: str | Sequence[str] | Mapping[str, Any] | None
    attacks: str | Iterable[str] | None
    eps: str | float | None
    norm: str | None
    corruptions: str | Iterable[str] | None
    labels: Required[str | Path]
    names: str | Path | None
    order: str
    threshold: str | float
    unknown: bool
    empty: bool
    constants: str
    limit: int | None
    ids: str | Path | None
    metadata: str | Path | None
    groups: str | None
    groups_from: str | None
    variant: str
    frost_dir: str | Path | None
    tiles_dir: str | Path | None
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
