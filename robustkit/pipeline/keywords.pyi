# Made by `python -m scripts.pages.keywords` from robustkit/pipeline/request.py.
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from typing_extensions import Required

from .request import Preset

class AuditOptions(TypedDict, total=False):
    model: Mapping[str, Any] | None
    preset: str | Preset | None
    attacks: str | Iterable[str] | None
    eps: str | float | None
    norm: str | None
    corruptions: str | Iterable[str] | None
    data: Mapping[str, Any] | None
    engine: str | None
    transfer: bool
    keep_adversarials: bool
    corrupted_dir: str | Path | None
    constants: str
    cams: str | Iterable[str] | None
    region_noise: str | Sequence[str] | None
    stability: bool
    watch_attention: bool
    boxes: str | Path | None
    masks: str | Path | None
    faithfulness: str
    keep_misclassified: bool
    browse: int
    limit: int | None
    ids: str | Path | None
    variant: str
    frost_dir: str | Path | None
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
    preset: str | Preset | None
    attacks: str | Iterable[str] | None
    eps: str | float | None
    norm: str | None
    corruptions: str | Iterable[str] | None
    masks: str | Path | None
    classes: str | Path | None
    ignore: Sequence[int]
    layout: str | None
    examples: int
    limit: int | None
    ids: str | Path | None
    variant: str
    frost_dir: str | Path | None
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

class FeaturesOptions(TypedDict, total=False):
    model: Mapping[str, Any] | None
    attacks: str | Iterable[str] | None
    eps: str | float | None
    norm: str | None
    corruptions: str | Iterable[str] | None
    train: Required[str | Path]
    train_limit: int | None
    neighbours: str | Sequence[int] | None
    shots: str | Sequence[int] | None
    probe: str | float | None
    data: Mapping[str, Any] | None
    constants: str
    limit: int | None
    ids: str | Path | None
    variant: str
    frost_dir: str | Path | None
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

class SeriesOptions(TypedDict, total=False):
    model: Mapping[str, Any] | None
    attacks: str | Iterable[str] | None
    eps: str | float | None
    norm: str | None
    disturbances: str | Iterable[str] | None
    limit: int | None
    ids: str | Path | None
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

class TextOptions(TypedDict, total=False):
    model: Mapping[str, Any] | None
    documents: str | None
    split: str
    window: int | None
    stride: int | None
    windows: str | None
    perturbations: str | Sequence[str] | None
    limit: int | None
    ids: str | Path | None
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
