# Made by `python -m scripts.pages.keywords` from robustkit/slices/detection/__init__.py.
from pathlib import Path
from typing import TypedDict

class DetectionOptions(TypedDict, total=False):
    iou_type: str
    corrupted_by: str | None
    ids: str | Path | None
    metadata: str | Path | None
    groups: str | None
    groups_from: str | None
    protocol: str
    out: str | Path | None
    shard_size: int | None
    seed: int
