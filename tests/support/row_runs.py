"""Runs of one checkpoint from records made by hand."""

from pathlib import Path
from typing import Any

import pyarrow as pa
from manifests import whole
from sealing import seal

from robustkit.report.run import Run
from robustkit.tasks.labelled.subject import CLASSIFICATION

PGD = "pgd(eps=1/255,steps=20)"


def row(sample: int, correct: bool, **changes: Any) -> dict[str, Any]:
    values = {
        "sample_id": f"{sample:03d}",
        "label": 1,
        "prediction": 1 if correct else 0,
        "correct": correct,
        "top5": True,
        "nll": 0.25,
        "confidence": 0.8,
        "linf": 0.0,
        "l2": 0.0,
    }
    return values | changes


def make_run(path: Path, rows: dict[str, list[dict[str, Any]]], space: str = "pixels") -> Run:
    run = Run(path)
    run.write_manifest(
        whole(
            {
                "checkpoints": [
                    {
                        "name": "vit <b>&",
                        "attention": "quest",
                        "attention_source": "option",
                        "spec": "vit.pth",
                        "sha256": "ab",
                        "arch": "vit",
                        "preprocessing": {
                            "input_size": [8, 8],
                            "mean": [0.5],
                            "std": [0.5],
                            "interpolation": "bicubic",
                            "crop_mode": "center",
                            "crop_pct": 1.0,
                        },
                    }
                ],
                "conditions": list(rows),
                "claims": {PGD: {"norm": "linf", "eps": 1 / 255}},
                "protocol": {
                    "tag": "standard@1:00",
                    "name": "standard",
                    "version": 1,
                    "digest": "00",
                    "space": space,
                    "summary": "s",
                    "source": "",
                    "caveats": [],
                },
                "data": {
                    "n": max(map(len, rows.values())),
                    "name": "d",
                    "root": "d",
                    "layout": "folders",
                    "digest": "cd",
                },
                "bad_images": [],
                "seed": 0,
                "command": "robustkit audit <script>alert(1)</script>",
                "deciding": {"dtype": "float32"},
                "batch_size": 2,
                "device": "cpu",
                "robustkit": "0",
                "versions": {},
            }
        )
    )
    for condition, entries in rows.items():
        for shard, start in enumerate(range(0, len(entries), 2)):
            table = pa.Table.from_pylist(entries[start : start + 2], schema=CLASSIFICATION)
            run.write_shard(run.shard_path("vit <b>&", condition, shard), table)
    return seal(run)
