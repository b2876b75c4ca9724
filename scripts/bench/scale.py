"""What a run costs after its models are done, against the number of its samples: records, summary, report.

    python -m scripts.bench.scale [--samples 2000,5000,10000,20000,50000] [--plot docs/results/performance/scale.svg]

Writes runs of 100 conditions with made-up figures (clean, 19 attacks, the 75 of in-c, five maps with all their columns;
three images in ten thousand unreadable), then makes summary and report from each as an audit does. Each part runs in a
process of its own, whose memory is measured. `--checkpoints 2` adds what comparing them costs.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import numpy as np
import pyarrow as pa
import torch

from cam.localisation import IOUS, THRESHOLDS
from robustkit.evaluations.attacks.evaluate import parse_conditions
from robustkit.evaluations.corruptions import SETS, Corrupted, corrupted_of, corruption_condition
from robustkit.evaluations.maps import explained_of, map_condition, parse_cams
from robustkit.evaluations.maps.evaluate import COLUMNS as MAP_COLUMNS
from robustkit.evaluations.maps.evaluate import LEVELS
from robustkit.evaluations.subject import encode_picture
from robustkit.protocol.card import Card, load_card
from robustkit.protocol.condition import CLEAN, Condition
from robustkit.report import page
from robustkit.report import refresh as report
from robustkit.report.run import Run
from robustkit.results import comparison, pairing
from robustkit.results.tables import tables
from robustkit.runs.kept_images import Picture, write_pictures
from robustkit.runs.manifest import Manifest, digests_of_shards
from robustkit.runs.untrusted import provenance_metadata, provenance_of
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
        "format": 2,
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
        made.append(encode_picture(image=None if heat is not None else image, delta=delta, heat=heat))
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


PARTS = ("write", "summary", "report")
WORDS = {"write": "records written", "summary": "summary", "report": "report page", "compare": "comparison"}


class Clock:
    """Seconds of what runs inside: on the wall, and of the processor."""

    def __init__(self) -> None:
        self.wall = self.cpu = 0.0

    def __enter__(self) -> None:
        self.since = time.perf_counter(), time.process_time()

    def __exit__(self, *_: object) -> None:
        self.wall += time.perf_counter() - self.since[0]
        self.cpu += time.process_time() - self.since[1]

    def seconds(self, part: str) -> dict[str, float]:
        """Return the seconds by the name of the part."""
        return {part: self.wall, f"{part} CPU": self.cpu}


def written(run: Run, n: int, checkpoints: int) -> dict[str, float]:
    """Write a whole run; the seconds are of records alone, without those of making figures up."""
    clock = Clock()
    write(run, n, checkpoints, clock)
    return clock.seconds("write")


def refreshed(run: Run) -> dict[str, float]:
    """Make summary and report; the seconds of each."""
    whole, last = Clock(), Clock()
    write_report = page.write_report

    def timed(*arguments: Any, **options: Any) -> None:
        with last:
            write_report(*arguments, **options)

    with mock.patch.object(page, "write_report", timed), whole:
        report.refresh(run)
    whole.wall, whole.cpu = whole.wall - last.wall, whole.cpu - last.cpu
    return whole.seconds("summary") | last.seconds("report")


def compared(run: Run) -> dict[str, float]:
    """Compare its checkpoints with its first."""
    clock = Clock()
    with clock:
        tables(comparison.compare_sides(pairing.checkpoint_pairs([run])))
    return clock.seconds("compare")


def one_part(part: str, folder: Path, n: int, checkpoints: int) -> dict[str, float]:
    """Run one part in this process; return its seconds, and MB at the peak and before it began."""
    run = Run(folder)
    before = peak()
    seconds = written(run, n, checkpoints) if part == "write" else (refreshed if part == "refresh" else compared)(run)
    return seconds | {f"{part} MB": peak(), f"{part} MB before": before}


def peak() -> float:
    """Return the largest resident set of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1e6 if sys.platform == "darwin" else 1e3)


def measured(n: int, checkpoints: int, folder: Path, repeat: int) -> dict[str, float]:
    """Run all parts at one size, each in a process of its own; of repeated ones the lowest time and the highest peak
    count.
    """
    figures = {"samples": float(n)}
    for part in ("write", *["refresh"] * repeat, *(["compare"] if checkpoints > 1 else [])):
        command = [sys.executable, "-m", "scripts.bench.scale", "--part", part, "--samples", str(n)]
        command += ["--checkpoints", str(checkpoints), "--out", str(folder)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        for name, value in json.loads(done.stdout.splitlines()[-1]).items():
            figures[name] = (max if "MB" in name else min)(value, figures.get(name, value))
    return figures


def line(places: Sequence[float], values: Sequence[float]) -> tuple[float, float, float]:
    """Fit a line by least squares; return slope, value at 0, and R²."""
    x, y = np.asarray(places), np.asarray(values)
    slope, start = np.polyfit(x, y, 1)
    spread = float(((y - y.mean()) ** 2).sum())
    return float(slope), float(start), 1 - float(((y - slope * x - start) ** 2).sum()) / spread if spread else 1.0


def plot(sizes: Sequence[Mapping[str, float]], path: Path, title: str) -> None:
    """Plot seconds of the processor against samples, with the fitted lines."""
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 4.2), layout="constrained")
    axes = figure.subplots()
    places = [size["samples"] for size in sizes]
    for part, colour, marker in zip(PARTS, ("#3b6ea5", "#e08214", "#7b3294"), "os^", strict=True):
        values = [size[f"{part} CPU"] for size in sizes]
        slope, start, r2 = line(places, values)
        label = f"{WORDS[part]}: {start:.1f} s + {1000 * slope:.2f} s per 1000 samples, R² {r2:.4f}"
        axes.plot(places, values, marker, color=colour, label=label)
        ends = np.array([0, max(places)])
        axes.plot(ends, slope * ends + start, "-", color=colour, linewidth=1)
    axes.set_xlim(0, 1.03 * max(places))
    axes.set_ylim(bottom=0)
    axes.set_xlabel("samples, of 100 conditions each")
    axes.set_ylabel("seconds of one processor")
    axes.grid(alpha=0.25)
    axes.set_title(title, fontsize=10, loc="left")
    axes.legend(fontsize=9, frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    FigureCanvasSVG(figure)
    figure.savefig(path, format="svg", metadata={"Date": None})


def lines(sizes: Sequence[Mapping[str, float]]) -> Iterator[str]:
    """Yield the figures as a Markdown table, seconds on the wall and (of the processor), and the fitted lines."""
    parts = (*PARTS, *(["compare"] if "compare" in sizes[0] else []))
    yield f"| samples | {' | '.join(f'{WORDS[part]}, s' for part in parts)} | peak of summary and report, MB |"
    yield "|---:|" + "---:|" * (len(parts) + 1)
    for size in sizes:
        cells = [f"{size['samples']:,.0f}", *(f"{size[part]:.1f} ({size[f'{part} CPU']:.1f})" for part in parts)]
        yield f"| {' | '.join(cells)} | {size['refresh MB']:.0f} |"
    for part in PARTS if len(sizes) > 2 else ():
        slope, start, r2 = line([size["samples"] for size in sizes], [size[f"{part} CPU"] for size in sizes])
        yield f"{WORDS[part]}: {start:.2f} s + {1000 * slope:.3f} s per 1000 samples, R² {r2:.5f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", default="2000,5000,10000,20000,50000")
    parser.add_argument("--checkpoints", type=int, default=1)
    parser.add_argument(
        "--repeat", type=int, default=1, help="how often summary and report are made; the lowest counts"
    )
    parser.add_argument("--out", type=Path, help="where to keep the runs; a temporary folder if left out")
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--part", choices=("write", "refresh", "compare"), help="only this, in this process")
    options = parser.parse_args()
    sizes = [int(size) for size in options.samples.split(",")]
    if options.part:
        print(json.dumps(one_part(options.part, options.out, sizes[0], options.checkpoints)))
        return 0
    measurements = []
    with tempfile.TemporaryDirectory() as scratch:
        for n in sizes:
            folder = (options.out or Path(scratch)) / f"{n}x{options.checkpoints}"
            measurements.append(measured(n, options.checkpoints, folder, options.repeat))
            print(json.dumps(measurements[-1]), file=sys.stderr)
    print("\n".join(lines(measurements)))
    if options.plot:
        plot(measurements, options.plot, "What is left to do apart from the models: 100 conditions, one checkpoint")
        print(options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
