# Made by `python -m scripts.pages.keywords` from robustkit/pipeline/request.py.
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from .request import Preset

class AuditOptions(TypedDict, total=False):
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
    preset: str | Preset | None
    attacks: str | Iterable[str] | None
    eps: str | float | None
    norm: str | None
    corruptions: str | Iterable[str] | None
    data: Mapping[str, Any] | None
    layout: Any
    labels_csv: Any
    real_labels: Any
    engine: str | None
    transfer: bool
    parity: bool
    evidence: str
    keep_adversarials: bool
    corrupted_dir: str | Path | None
    constants: str
    cams: str | Iterable[str] | None
    stability: bool
    watch_attention: bool
    boxes: str | Path | None
    masks: str | Path | None
    faithfulness: str
    keep_misclassified: bool
    browse: int
    show: str | None
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
    setup_check: bool
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
    shuffle: bool

class SegmentOptions(TypedDict, total=False):
    model: Mapping[str, Any] | None
    arch: Any
    attention: Any
    num_classes: Any
    mean: Any
    std: Any
    pixels: Any
    window: Any
    stride: Any
    short_side: Any
    resize: Any
    use_ema: Any
    allow_partial: Any
    output: Any
    method: str | Sequence[str] | Mapping[str, Any] | None
    preset: str | Preset | None
    attacks: str | Iterable[str] | None
    eps: str | float | None
    norm: str | None
    corruptions: str | Iterable[str] | None
    cams: str | Iterable[str] | None
    stability: bool
    faithfulness: str
    masks: str | Path | None
    classes: str | Path | None
    ignore: Sequence[int]
    reduce_zero_label: bool
    layout: str | None
    examples: int
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
    setup_check: bool
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
