"""Runs of few records made by hand, as cards and exports read them."""

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
from manifests import whole
from sealing import seal

from robustkit.report.run import Run

PGD = "pgd(eps=1/255,steps=20)"
HOSTILE = [
    *(
        'say "yes"',
        "it's: a # name",
        "two\nlines",
        "- item",
        "@at",
        "!tag",
        "yes",
        "No",
        "null",
        "1e3",
        "0o17",
        "12e34",
    ),
    *("~", "{a: b}", "[1]", "&a", "*a", "%x", "a\tb", "żółw 🐢", "n" * 300, "|", "`", "<img src=x onerror=alert(1)>"),
    *("a|b`c", "\\|", "a\\", "[text](http://x.y)", "![i](x)", "| --- |", "$x$", "</code>", "<!-- -->", "-->", "= ", ""),
    *("&lt;b&gt; &amp;", "a `b` c", "````\n# x", "```\n</x>\n```", "_a_"),
    *("\u202egnp.exe", "a\u2028b", "\x00\x1b[31m", "# head", "1. one", "+ a", "__init__", "*b*", "~~s~~", "www.x.yz"),
]


def records(right: int, n: int = 10, nll: float = 0.5, linf: float = 0.0) -> pa.Table:
    """Of n samples the first `right` are predicted as labelled."""
    correct = [index < right for index in range(n)]
    return pa.table(
        {
            "sample_id": [f"{index:03d}" for index in range(n)],
            "label": [0] * n,
            "prediction": [int(not hit) for hit in correct],
            "correct": correct,
            "top5": [True] * n,
            "nll": [nll] * n,
            "confidence": [0.75] * n,
            "linf": [linf] * n,
            "l2": [linf] * n,
            "broken_by": pa.array([None] * n, pa.string()),
            "error": pa.array([None] * n, pa.string()),
        }
    )


def write_run(path: Path, records_of: dict[str, dict[str, pa.Table]], **changes: Any) -> Path:
    """A run folder with these records of each checkpoint under each condition."""
    run = Run(path)
    conditions = list(dict.fromkeys(text for own in records_of.values() for text in own))
    eps = {text: float(found[1]) / 255 for text in conditions if (found := re.search(r"eps=(\d+)/255", text))}
    sizes = {"input_size": [32, 32], "std": [0.5, 0.5, 0.5]}
    manifest = {
        "robustkit": "0.1.0",
        "command": "robustkit audit vit.safetensors --data-dir val",
        "started": "2026-01-01T00:00:00+00:00",
        "seed": 7,
        "protocol": {"tag": "standard@1:96fe6f4a", "digest": "96fe", "summary": "eps in pixels", "space": "pixels"},
        "conditions": conditions,
        "claims": {text: {"norm": "linf", "eps": value, "early_stop": False} for text, value in eps.items()},
        "checkpoints": [
            {
                "name": name,
                "path": f"/home/me/{index}.pth",
                "sha256": f"{index}" * 64,
                "arch": "vit",
                "attention": "quest",
            }
            | {"preprocessing": sizes, "metadata": {"secret": "no"}}
            for index, name in enumerate(records_of)
        ],
        "data": {
            "name": "val",
            "root": "/home/me/val",
            "layout": "folders",
            "n": 10,
            "classes": 2,
            "digest": "d1" * 32,
        },
        "deciding": {"seed": 7, "dtype": "float32", "data digest": "d1" * 32, "protocol": "standard@1:96fe6f4a"},
        "bad_images": [],
        "device": "cpu",
        "batch_size": 4,
        "versions": {"torch": "2.6"},
    }
    run.write_manifest(whole(manifest | changes))
    for checkpoint, own in records_of.items():
        for condition, rows in own.items():
            run.write_shard(run.shard_path(checkpoint, condition, 0), rows)
    seal(run)
    return path
