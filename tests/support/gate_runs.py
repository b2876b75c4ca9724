"""Runs made by hand for rules, and their verdicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from manifests import whole
from sealing import seal

from robustkit.gate.policy import parse_policy
from robustkit.gate.verdicts import Outcome, Verdict, judge
from robustkit.report.run import Run

PGD = "pgd(eps=1/255,steps=20)"
Outcomes = Mapping[str, Sequence[Any]]


def make(path: Path, found: Mapping[str, Outcomes], nll: Outcomes | None = None, **changes: Any) -> Run:
    """A run of these checkpoints: by condition, whether each sample was right; `nll` by condition."""
    conditions = list(dict.fromkeys(condition for own in found.values() for condition in own))
    n = max((len(values) for own in found.values() for values in own.values()), default=0)
    size = math.gcd(*(len(values) for own in found.values() for values in own.values())) or 1  # whole shards
    deciding = {"seed": 0, "protocol": "standard@1:0", "data digest": "d1", "dtype": "float32", "compile": False}
    deciding |= changes.pop("deciding", {})
    manifest: dict[str, Any] = {
        "checkpoints": [
            {"name": name, "spec": f"{name}.pth", "sha256": f"{place:064d}", "arch": "vit", "attention": "quest"}
            | {"preprocessing": {"input_size": [224, 224], "std": [0.5] * 3}, "weights": "bare"}
            for place, name in enumerate(found)
        ],
        "conditions": conditions,
        "protocol": {"tag": deciding["protocol"], "name": "standard", "task": "classification", "space": "pixels"},
        "data": {"name": "few", "root": "val", "layout": "folders", "n": n, "classes": 3, "digest": "d1"},
        "deciding": deciding,
        "seed": 0,
        "claims": {PGD: {"norm": "linf", "eps": 1 / 255, "early_stop": False}},
        "bad_images": [],
        "shard_size": size,
        "arguments": {
            "checkpoints": [f"{name}.pth" for name in found],
            "options": {"--data-dir": "val", "--limit": "30", "--num-classes": "3", "--mean": "0.5 0.5 0.5"},
        },
    } | changes
    run = Run(path)
    run.write_manifest(whole(manifest))
    for name, own in found.items():
        for condition, right in own.items():
            count, reach = len(right), 1 / 255 if condition == PGD else 0.0
            columns = {
                "sample_id": [f"{place:03d}.png" for place in range(count)],
                "label": [0] * count,
                "prediction": [0 if value else 1 for value in right],
                "correct": [bool(value) for value in right],
                "top5": [True] * count,
                "nll": [float(value) for value in (nll or {}).get(condition, [0.5] * count)],
                "confidence": [0.9] * count,
                "linf": [reach] * count,
                "l2": [reach] * count,
                "broken_by": pa.nulls(count, pa.string()),
                "error": pa.nulls(count, pa.string()),
            }
            table = pa.table(columns)
            for start in range(0, count, size):
                run.write_shard(run.shard_path(name, condition, start // size), table.slice(start, size))
    return seal(run)


def verdicts(run: Run, *rules: str, baseline: Run | None = None, more: str = "") -> Outcome:
    text = "".join(f"[[rule]]\nrequire = '''{rule}'''\n{more}\n" for rule in rules)
    return judge(parse_policy(text, "p.toml"), run, baseline)


def verdict(run: Run, rule: str, baseline: Run | None = None, more: str = "") -> Verdict:
    (found,) = verdicts(run, rule, baseline=baseline, more=more).verdicts
    return found


def drafted(run: Run, every: bool = False) -> str:
    """The policy that is drafted from a run; without the slice that drafts, the test is skipped."""
    text: str = pytest.importorskip("robustkit.slices.draft").draft(run, every)
    return text


def right(hits: int, n: int) -> list[int]:
    return [1] * hits + [0] * (n - hits)


def spread(hits: int, n: int) -> list[int]:
    """Outcomes that lie evenly among the samples, so that neighbours are not alike; those of fewer hits among those of
    more."""
    order = sorted(range(n), key=lambda place: place * 0.6180339887 % 1)
    return [int(place in order[:hits]) for place in range(n)]
