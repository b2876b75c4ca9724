"""run.json of runs that tests make by hand, from as much of it as a test is about."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import msgspec

from robustkit.runs.folder import RunFolder
from robustkit.runs.manifest import Manifest, encode_manifest

UNGIVEN = 1 << 20
"""Samples in a shard where a test says nothing."""
CHECKPOINT, PREPROCESSING, CLAIM = map(
    json.loads,
    (
        """{"spec": "net.pth", "path": null, "sha256": "00", "arch": "vit", "attention": "standard", "notes": [],
        "attention_source": "metadata", "num_classes": 2, "weights": "bare", "code_sha256": null, "class_names": null,
        "metadata": {}}""",
        """{"input_size": [224, 224], "mean": [0.5, 0.5, 0.5], "std": [0.5, 0.5, 0.5], "interpolation": "bicubic",
        "crop_pct": 0.875, "crop_mode": "center"}""",
        """{"norm": "linf", "eps": 0.00392156862745098, "early_stop": false}""",
    ),
)
USUAL = json.loads(
    """{"robustkit": "0", "command": "robustkit audit", "started": "2026-01-01T00:00:00+00:00", "arguments": {},
    "seed": 0, "protocol": {"tag": "standard@1:0", "name": "standard", "version": 1, "task": "classification",
    "digest": "00", "space": "pixels", "labels": "true", "summary": "", "source": "", "caveats": [], "parameters": {}},
    "conditions": [], "claims": {}, "data": {"name": "set", "root": "set", "layout": "folders", "n": 0, "classes": 2,
    "digest": "00", "notes": [], "class_names": [], "shards": []},
    "corrupted": {"digests": {}, "released": {}, "left_out": {}}, "keep_misclassified": false, "batch_size": 1,
    "device": "cpu", "versions": {}, "deciding": {"seed": 0, "protocol": "standard@1:0", "data digest": "00",
    "dtype": "float32", "compile": false}, "bad_images": [], "pictures": [], "evidence": []}"""
) | {"shard_size": UNGIVEN, "format": 2}


def whole(partial: Mapping[str, Any]) -> Manifest:
    """Return a manifest with these values and usual ones for all that is not given."""
    plain: dict[str, Any] = USUAL | json.loads(json.dumps(partial))
    for part in ("protocol", "data", "corrupted", "deciding"):
        plain[part] = USUAL[part] | plain[part]
    plain["claims"] = {text: CLAIM | claim for text, claim in plain["claims"].items()}
    plain["checkpoints"] = [
        CHECKPOINT | entry | {"preprocessing": PREPROCESSING | entry.get("preprocessing", {})}
        for entry in plain["checkpoints"]
    ]
    return msgspec.convert(plain, Manifest)


def write_plain(run: RunFolder, plain: Mapping[str, Any]) -> None:
    """Write what need not be a manifest, in JSON types, as run.json with its digest."""
    run.write(run.manifest_path, encode_manifest(json.loads(json.dumps(plain))))
