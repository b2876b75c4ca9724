"""A run folder of 100 conditions with made-up figures, as an audit writes it, except for the models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import torch

from cam.localisation import IOUS, THRESHOLDS
from robustkit.evaluations.attacks.build import parse_conditions
from robustkit.evaluations.corruptions.condition import SETS, Corrupted, corrupted_of, corruption_condition
from robustkit.evaluations.maps.condition import explained_of, map_condition, parse_cams
from robustkit.evaluations.maps.evaluate import COLUMNS as MAP_COLUMNS
from robustkit.evaluations.maps.evaluate import LEVELS
from robustkit.evaluations.subject import picture
from robustkit.protocol.card import Card, load_card
from robustkit.protocol.condition import CLEAN, Condition
from robustkit.results.summary import Run
from robustkit.runs.binding import provenance_metadata, provenance_of
from robustkit.runs.digests import digests_of_shards
from robustkit.runs.kept_images import Picture, write_pictures
from robustkit.runs.manifest import Manifest
from robustkit.tasks.labelled.subject import CLASSIFICATION

SHARD, CLASSES, KEPT, UNREADABLE = 128, 1000, 100, 3e-4
EPS = tuple(f"{part}/255" for part in (0.25, 0.5, 1, 2, 4, 8, 12, 16))
STAGES = ("clean", "apgd-ce", "apgd-t", "fab-t", "square")
ASKED = ",".join(
    [*(f"{name}(eps={eps})" for name in ("fgsm", "pgd") for eps in EPS), *(f"autoattack(eps={e})" for e in EPS[2:5])]
)
_NONE = np.array(None, dtype=object)
Columns = dict[str, Any]
Random = np.random.Generator


def conditions(card: Card) -> list[Condition]:
    """Return 100 conditions: clean, 19 attacks, in-c at all severities, two maps and their three controls."""
    attacks = [condition for condition in parse_conditions(ASKED, card) if condition != CLEAN]
    corruptions = [corruption_condition(Corrupted(name, s)) for name, members in SETS["in-c"].items() for s in members]
    return [CLEAN, *attacks, *corruptions, *map(map_condition, parse_cams("agcam,grad-cam"))]


def manifest(n: int, checkpoints: int, card: Card, every: Sequence[Condition]) -> Manifest:
    """Return the content of run.json of such a run."""
    shape = {"input_size": [224, 224], "mean": [0.5] * 3, "std": [0.5] * 3}
    shape |= {"interpolation": "bicubic", "crop_pct": 0.9, "crop_mode": "center"}
    described: dict[str, Any] = {
        "spec": "made-up",
        "path": None,
        "sha256": "0" * 64,
        "arch": "vit_tiny_patch16_224",
        "weights": "bare",
    }
    described |= {"attention": "standard", "attention_source": "metadata", "num_classes": CLASSES, "code_sha256": None}
    described |= {"class_names": None, "notes": [], "metadata": {}}
    protocol: dict[str, Any] = {
        "tag": card.tag,
        "name": card.name,
        "version": card.version,
        "task": card.task,
        "space": card.space,
    }
    protocol |= {"labels": "true", "summary": card.summary, "source": "", "caveats": [], "digest": "0" * 64}
    protocol |= {"parameters": {}}
    ids = [f"val/{place:06d}" for place in range(n)]
    names = [f"class {place}" for place in range(CLASSES)]
    data = {"name": "made-up", "root": "made-up", "layout": "imagenet", "n": n, "classes": CLASSES, "digest": "0" * 64}
    plain = {
        "format": 1,
        "robustkit": "0.1.0",
        "command": "scripts/bench/scale.py",
        "started": "2026-01-01T00:00:00+00:00",
        "arguments": {},
        "seed": 0,
        "protocol": protocol,
        "conditions": [condition.text for condition in every],
        "claims": {condition.text: condition.claim for condition in every if condition.claim},
        "checkpoints": [described | {"name": f"vit-{number}", "preprocessing": shape} for number in range(checkpoints)],
        "data": data | {"notes": [], "class_names": names, "shards": digests_of_shards(ids, SHARD)},
        "evidence": [condition.text for condition in every if condition.name == "autoattack"],
        "corrupted": {"digests": {}, "released": {}, "left_out": {}},
        "keep_misclassified": False,
        "deciding": {"seed": 0, "protocol": card.tag, "data digest": "0" * 64, "dtype": "float32", "compile": False},
        "shard_size": SHARD,
        "batch_size": 16,
        "device": "none",
        "versions": {},
        "bad_images": [],
        "pictures": [f"val/{place:06d}" for place in range(0, n, max(1, n // max(1, KEPT)))][:KEPT],
    }
    return msgspec.convert(plain, Manifest)


def rows(condition: Condition, start: int, stop: int, rng: Random) -> tuple[Columns, np.ndarray[Any, Any]]:
    """Return the columns of the samples from start to stop under a condition, and which of them were read."""
    n = stop - start
    read = np.random.default_rng([1, start]).random(n) >= UNREADABLE
    label = np.arange(start, stop) * 7919 % CLASSES
    strength = (
        0.2 if condition in (CLEAN,) or explained_of(condition) else 0.75 if corrupted_of(condition) is None else 0.35
    )
    wrong = np.random.default_rng([2, start]).random(n) < 0.2
    wrong |= (rng.random(n) < strength) if strength > 0.2 else False
    confidence = rng.beta(5, 2, n).astype(np.float32)
    size = 0.0 if condition == CLEAN or explained_of(condition) else condition.eps or 0.2
    columns: Columns = {
        "prediction": np.where(wrong, (label + rng.integers(1, CLASSES, n)) % CLASSES, label),
        "correct": ~wrong,
        "top5": ~wrong | (rng.random(n) < 0.5),
        "nll": rng.gamma(1.0, np.where(wrong, 3.0, 0.5), n).astype(np.float32),
        "confidence": confidence,
        "linf": np.full(n, size * (1 - 1e-7)),
        "l2": rng.random(n).astype(np.float32) * np.float32(300 * size),
    }
    if condition.eps is not None:
        steps = rng.integers(1, 20, n)
        stage = (
            np.array(STAGES[1:])[rng.integers(0, 4, n)]
            if condition.name == "autoattack"
            else np.full(n, condition.name)
        )
        columns["broken_by"] = np.where(wrong, stage.astype(object), _NONE)
        columns |= {"steps": steps, "forwards": steps + 1, "backwards": steps}
        if condition.name == "autoattack":
            spent = [f"{what} {name}" for what in ("forwards", "backwards") for name in STAGES]
            columns |= {name: rng.integers(0, 100, n) for name in spent}
    if explained_of(condition) is not None:
        columns |= of_map(n, label, rng)
    return {"label": label} | columns, read


def of_map(n: int, label: np.ndarray[Any, Any], rng: Random) -> Columns:
    """Return the columns that a map adds, except for those that were not asked."""
    scores = [f"{mode}_{name}" for mode in ("mask", "box") for name in ("pixel_accuracy", "iou", "dice")]
    scores += [f"{mode}_{name}" for mode in ("mask", "box") for name in ("precision", "recall")]
    scores += ["pointing_game", "energy_inside", "abpc"]
    hits = np.packbits(rng.random((n, len(THRESHOLDS) * len(IOUS))) < 0.4, axis=1)
    return {
        "target": label,
        "degenerate": np.zeros(n, bool),
        **{name: rng.random(n).astype(np.float32) for name in scores},
        "vanished_boxes": np.zeros(n, np.int32),
        "pixel_counts": rng.poisson(125.4, (n, 2 * LEVELS)),
        "box_hits": [row.tobytes() for row in hits],
    }


def table(condition: Condition, start: int, stop: int, rng: Random, metadata: Mapping[bytes, bytes]) -> pa.Table:
    """Return a record as the audit writes it."""
    columns, read = rows(condition, start, stop, rng)
    lost = ~read
    fields = [*CLASSIFICATION, *((k, MAP_COLUMNS.get(k, pa.int32())) for k in columns if k not in CLASSIFICATION.names)]
    schema = pa.schema(fields, metadata={**metadata, b"notes": b"[]"})
    columns["sample_id"] = [f"val/{place:06d}" for place in range(start, stop)]
    columns["error"] = np.where(lost, "truncated file", _NONE)
    arrays = []
    for field in schema:
        if field.name not in columns:
            arrays.append(pa.nulls(stop - start, field.type))
            continue
        values = columns[field.name]
        hidden = None if field.name in ("sample_id", "label", "error") or not lost.any() else lost
        if field.name == "pixel_counts":
            values, hidden = [None if gone else row for row, gone in zip(values, lost, strict=True)], None
        arrays.append(pa.array(values, field.type, mask=hidden, from_pandas=False))
    return pa.Table.from_arrays(arrays, schema=schema)


def pictures(condition: Condition, rng: Random) -> list[Picture]:
    """Return a few pictures, which stand for all."""
    made = []
    for _ in range(8):
        coarse = torch.from_numpy(rng.random((1, 3, 28, 28)).astype(np.float32))
        image = torch.nn.functional.interpolate(coarse, size=(224, 224), mode="bicubic").clamp(0, 1)[0]
        heat = image.mean(0) if explained_of(condition) else None
        delta = None if condition.eps is None else 0.1 * (image.roll(1, 1) - image)
        made.append(picture(image=None if heat is not None else image, delta=delta, heat=heat))
    return made


def write(run: Run, n: int, checkpoints: int, clock: AbstractContextManager[None] | None = None) -> None:
    """Write a whole run. clock: entered while records are written, but not while figures are made up."""
    card, clock = load_card("standard"), clock or nullcontext()
    every = conditions(card)
    description = manifest(n, checkpoints, card, every)
    run.write_manifest(description)
    kept = {name: place for place, name in enumerate(description.pictures)}
    for number in range(checkpoints):
        name = f"vit-{number}"
        for place, condition in enumerate(every):
            shown = pictures(condition, np.random.default_rng(place)) if kept else []
            middle = corrupted_of(condition) is None or corrupted_of(condition).severity == 3
            if condition.name == "autoattack":
                run.write_evidence(name, condition.text, EVIDENCE)
            of = provenance_of(description, description.checkpoints[number], condition.text)
            for shard, start in enumerate(range(0, n, SHARD)):
                metadata, rng = provenance_metadata(of, shard), np.random.default_rng([3, number, place, shard])
                record = table(condition, start, min(n, start + SHARD), rng, metadata)
                pictured = [sample for sample in record["sample_id"].to_pylist() if sample in kept] if middle else []
                timing = {
                    "seconds": 1.0,
                    "stages": dict.fromkeys(STAGES, 0.2) if condition.name == "autoattack" else {},
                }
                with clock:
                    write_pictures(
                        run, name, condition.text, shard, {s: shown[kept[s] % len(shown)] for s in pictured}, metadata
                    )
                    run.write_shard(run.shard_path(name, condition.text, shard), record, timing)


EVIDENCE: dict[str, Any] = {
    "sample_ids": [],
    "samples": 32,
    "right": 29,
    "norm": "linf",
    "eps": 0.0156863,
    "has_gradient": 1,
    "random_difference": 0.0,
    "random_predictions": 0,
    "low": -1.6411,
    "high": 4.04375,
    "sum_error": 2.0908,
    "zero_margin": 0,
    "zero_ce": 0,
    "bad_margin": 0,
    "bad_ce": 0,
    "slope_samples": 29,
    "slope": 0.999979,
    "slope_error": 8.05855e-05,
    "loss": [-3.6, -3.1, -0.5, 1.9],
    "loss_steps": [0, 1, 5, 20],
    "accuracy": [1.0, 0.4, 0.03, 0.0, 0.0, 0.0, 0.0],
    "radii": [0.0, 0.0157, 0.0313, 0.0626, 0.125, 0.25, 0.5],
    "forwards": 44.5,
    "backwards": 33.0,
}
