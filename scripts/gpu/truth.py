"""What the device computes, against records that the CPU made beforehand, against itself, and killed and resumed."""

from __future__ import annotations

import json
import math
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import robustkit
from robustkit.errors import RunError
from robustkit.report.run import Run
from robustkit.runs.manifest import digest_of_pages

from .steps import Bench

TRUTH = Path(__file__).parent / "truth.json"
VITS = tuple(f"zoo:shapes-vit-{name}" for name in ("standard", "quest", "elliptical", "elliptical-quest"))
EPS, SAMPLES = 2 / 255, 16
REQUESTS: dict[str, dict[str, Any]] = {
    "attacks": {
        "checkpoints": VITS,
        "attacks": "fgsm,pgd(steps=5),spsa(steps=3,directions=8),square(queries=40),autoattack(steps=8,queries=40)",
    },
    "corruptions": {"checkpoints": VITS[1:2], "attacks": "none", "corruptions": "in-c(severity=3),-frost"},
    "maps": {"checkpoints": VITS[:2], "attacks": "none", "cams": "agcam,legrad,grad-cam,rollout"},
    "segmentation": {
        "checkpoints": ("zoo:shapes-segmenter-quest",),
        "attacks": "pgd(steps=3),segpgd(steps=3)",
        "corruptions": "fog(severity=3),gaussian_noise(severity=3)",
    },
    "fast attacks": {
        "checkpoints": VITS[1:2],
        "attacks": "pgd(steps=60,loss=pma),autoattack(version=fast,steps=8,queries=40)",
        "evaluations": "spatial(degrees=20,shift=0.1)",
    },
    "c-bar, laion-c": {
        "checkpoints": VITS[1:2],
        "attacks": "none",
        "corruptions": "in-c-bar(severity=3),laion-c(severity=3)",
        "constants": "imagenet",
    },
    "segmenter maps": {
        "checkpoints": ("zoo:shapes-segmenter-quest",),
        "attacks": "none",
        "cams": "agcam,grad-cam(of=disc),layer-cam,gradient",
    },
}
CLOSE, CLOSE_IOU = 1e-4, 1e-2
"""How far an NLL, or the score of a map, may be from the CPU's. A curve of IoU counts pixels: one whose label rounding
decides moves it (relative changes of 6e-7 by 0.004 on a CPU). Attacks climb by signs of gradients, where rounding
may take another way: of them the verdicts count, and that they stay inside their radius."""
_SHOWN = ("prediction", "correct", "nll", "linf", "cam_iou", "cam_pixel_accuracy", "pixels", "intersections",
          "class_energy", "class_abpc")  # fmt: skip
_SCORES = tuple(name for name in _SHOWN if name.startswith(("nll", "cam_", "class_energy")))
Records = dict[str, dict[str, dict[str, Any]]]
"""By checkpoint and condition, then by sample, then by column."""


def evaluate(kind: str, out: Path, device: str, batch: int, samples: int, **more: Any) -> Run:
    """Carry out one of the requests. samples: some of `SAMPLES`, whose draws are those of all."""
    shutil.rmtree(out, ignore_errors=True)
    options = {"data_dir": "embedded:shapes", "limit": samples, "batch_size": batch, "device": device, "out": out}
    options |= {"setup_check": False, "evidence": "none", "progress": False, "say": print, **REQUESTS[kind], **more}
    if kind.startswith("segment"):
        return robustkit.segment(eps="2/255", **_without(options, "evidence"))
    return robustkit.audit(eps="2/255", **options)


def _without(options: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name not in names}


def records_of(run: Run) -> Records:
    """Return what is compared of a run. Of a list, its sum."""
    records: Records = {}
    for name, text in run.manifest.pairs:
        rows = run.table(name, text).to_pylist()
        records[f"{name} {text}"] = {
            row["sample_id"]: {
                column: round(math.fsum(value), 7) if isinstance(value, list) else _short(value)
                for column, value in row.items()
                if column in _SHOWN and value is not None
            }
            for row in rows
        }
    return records


def _short(value: Any) -> Any:
    return float(f"{value:.8g}") if isinstance(value, float) else value


def differences(expected: Records, found: Records) -> Iterator[dict[str, Any]]:
    """Yield, for each condition, how far records are from the expected ones, and whether that is close enough."""
    for text, rows in found.items():
        others = expected.get(text, {})
        pairs = [(others[sample], row) for sample, row in rows.items() if sample in others]
        attacked = not any(word in text for word in (" clean", "corruption(", "cam("))
        labels = sum(old.get("prediction") != new.get("prediction") for old, new in pairs)
        verdicts = sum(old.get("correct") != new.get("correct") for old, new in pairs)
        gap, gap_iou = (
            max(
                (abs(old[name] - new[name]) for old, new in pairs for name in names if name in old and name in new),
                default=0.0,
            )
            for names in (_SCORES, ("class_abpc",))
        )
        over = max((new.get("linf", 0.0) - EPS for _, new in pairs), default=0.0) if attacked else 0.0
        close = over <= 1e-6 and verdicts == 0 and (attacked or (labels == 0 and gap <= CLOSE and gap_iou <= CLOSE_IOU))
        yield {
            "condition": text,
            "samples": len(pairs),
            "other labels": labels,
            "other verdicts": verdicts,
            "largest gap": gap,
            "largest gap of IoU": gap_iou,
            "over the radius": max(over, 0.0),
            "ok": bool(pairs) and close,
        }


def make_truth() -> None:
    """Write the CPU's records, made by two batch sizes; RunError where these do not agree."""
    made: dict[str, Any] = {}
    place = Path(__file__).parent / "work"
    for kind in REQUESTS:
        first, second = (
            records_of(evaluate(kind, place / f"{kind}-{batch}", "cpu", batch, SAMPLES)) for batch in (4, 16)
        )
        lines = [*differences(first, second)]
        if odd := [line for line in lines if not line["ok"] or line["other labels"]]:
            raise RunError(f"batches of 4 and of 16 disagree: {odd[0]}")
        made[kind] = {"between batch sizes": max(line["largest gap"] for line in lines), "records": first}
    shutil.rmtree(place)
    TRUTH.write_text(json.dumps(made, indent=None, separators=(",", ":")) + "\n", encoding="utf-8")


def compare(bench: Bench) -> None:
    """Record how far the device's records are from the CPU's, then whether a second run has the same bytes."""
    known, odd = json.loads(TRUTH.read_text("utf-8")), list[str]()
    for kind in REQUESTS:
        began = time.monotonic()
        run = evaluate(kind, bench.folder / kind, bench.device, 16, 4 if bench.small else SAMPLES)
        for line in differences(known[kind]["records"], records_of(run)):
            bench.record(what="truth", kind=kind, **line)
            odd += [] if line["ok"] else [line["condition"]]
        bench.record(what="run", kind=kind, seconds=round(time.monotonic() - began, 2))
    for kind in ("attacks",) if bench.small else ("attacks", "maps", "segmentation"):
        again = evaluate(kind, bench.folder / f"{kind}-again", bench.device, 16, 4 if bench.small else SAMPLES)
        same = pages(bench.folder / kind) == pages(again.path)
        bench.record(what="repeated", kind=kind, same_bytes=same)
        odd += [] if same else [f"{kind} repeated"]
    _compare_precisions(bench)
    if odd:
        raise SystemExit(f"{len(odd)} differ, first {odd[0]}")


def _compare_precisions(bench: Bench) -> None:
    """Record, for each trained network, the verdicts of attacks whose search is in bfloat16, next to float32's."""
    samples = 4 if bench.small else SAMPLES
    low = evaluate("attacks", bench.folder / "attacks-low", bench.device, 16, samples, dtype="bfloat16")
    plain = records_of(Run(bench.folder / "attacks"))
    counts: dict[str, list[int]] = {}
    for text, rows in records_of(low).items():
        name, _, condition = text.partition(" ")
        pairs = [(plain[text][sample]["correct"], row["correct"]) for sample, row in rows.items()]
        if condition != "clean":
            here = counts.setdefault(name, [0, 0, 0])
            for place, some in enumerate(
                ([a for a, _ in pairs], [b and not a for a, b in pairs], [a and not b for a, b in pairs])
            ):
                here[place] += sum(some)
    for name, (stand, more, fewer) in counts.items():
        bench.record(what="verdicts", network=name, mode="bfloat16", stand=stand, more_than_float32=more, fewer=fewer)


def pages(run: Path) -> dict[str, str]:
    """Return a digest of each record, without what names the device."""
    files = sorted((run / "records").rglob("*.parquet"))
    return {str(path.relative_to(run)): digest_of_pages(path.read_bytes()) for path in files}


def _audit(bench: Bench, out: Path) -> list[str]:
    limit = "8" if bench.small else "64"
    device = ["--device", "cpu"] if bench.device == "cpu" else []
    some = VITS[:2] if bench.small else VITS
    words = ["audit", *some, "--data-dir", "embedded:shapes", "--limit", limit, "--attacks", "fgsm,pgd(steps=10)"]
    words += [
        "--eps",
        "2/255",
        "--corruptions",
        "fog(severity=3)",
        "--shard-size",
        "8" if bench.small else "16",
        "--evidence",
        "none",
    ]
    return [*words, "--no-setup-check", "--out", str(out), *device]


def resume(bench: Bench) -> None:
    """Record whether an audit that was killed in its middle, twice, ends with the bytes of one that was not."""
    whole, killed = bench.folder / "whole", bench.folder / "killed"
    for folder in (whole, killed):
        shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([*bench.robustkit, *_audit(bench, whole)], check=True)
    count = len(pages(whole))
    for share in (0.3, 0.6):
        process = subprocess.Popen([*bench.robustkit, *_audit(bench, killed)])
        while process.poll() is None and len(list(killed.rglob("*.parquet"))) < share * count:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
        bench.record(what="killed", after=len(list(killed.rglob("*.parquet"))), of=count)
    subprocess.run([*bench.robustkit, *_audit(bench, killed)], check=True)
    _check_same(bench, "resumed", whole, killed)


def processes(bench: Bench) -> None:
    """Record whether two processes of torchrun on one device make the bytes of one."""
    alone, both = bench.folder / "alone", bench.folder / "both"
    for folder in (alone, both):
        shutil.rmtree(folder, ignore_errors=True)
    subprocess.run([*bench.robustkit, *_audit(bench, alone)], check=True)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    began = time.monotonic()
    subprocess.run([*torchrun, *bench.robustkit[1:], *_audit(bench, both)], check=True)
    bench.record(what="seconds", two_processes=round(time.monotonic() - began, 1))
    _check_same(bench, "two processes", alone, both)


def _check_same(bench: Bench, what: str, first: Path, second: Path) -> None:
    one, other = pages(first), pages(second)
    odd = [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
    bench.record(what=what, files=len(one), differing=len(odd), same_bytes=not odd)
    if odd:
        raise SystemExit(f"{what}: {len(odd)} of {len(one)} records differ, first {odd[0]}")
