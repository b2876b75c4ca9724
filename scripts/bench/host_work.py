"""How long the host works on a unit while a GPU could compute: python -m scripts.bench.host_work

A unit is a shard under one condition. The audit runs on the stand-in for a CUDA device of the tests, with a network of
next to no work. What the device would do is left out: a unit's host work is the time of the model's thread from one
unit to the next, less the time in operations of the device. Uploads from pageable memory count as host work, since the
host copies them; uploads from pinned memory do not. Medians over all units but those that begin a shard.

--root: another checkout, to compare with.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

HERE = Path(__file__).parents[2]
MALLOC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 32), "MALLOC_TRIM_THRESHOLD_": str(1 << 34)}
"""Freed memory stays with the process, as a device's does; giving it back would count as work of the host."""
NETWORK = """
from torch import nn

def build(num_classes=1000):
    net = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, num_classes))
    net.default_cfg = {"mean": (0.5,) * 3, "std": (0.25,) * 3, "input_size": (3, %d, %d), "crop_pct": 1.0}
    return net
"""


def main() -> None:
    if not MALLOC.items() <= os.environ.items():
        os.execve(sys.executable, [sys.executable, "-m", "scripts.bench.host_work", *sys.argv[1:]], os.environ | MALLOC)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=HERE)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--shard-size", type=int, default=128)
    parser.add_argument("--attacks", default="none")
    parser.add_argument("--corruptions", default="brightness,contrast,pixelate(severity=1)")
    options = parser.parse_args()
    sys.path[:] = [
        str(options.root),
        str(HERE / "tests" / "support"),
        *(p for p in sys.path if p not in ("", str(HERE))),
    ]
    import stand_in

    if reason := stand_in.why_not():
        sys.exit(reason)
    import robustkit.pipeline.runner  # noqa: F401 - before there are devices

    stand_in.prepare()
    with tempfile.TemporaryDirectory() as folder, stand_in.devices() as seen:
        print(f"{options.root}: {_measured(Path(folder), options, seen)}")


def _measured(folder: Path, options: argparse.Namespace, seen: Any) -> str:
    import numpy as np
    import torch
    from PIL import Image

    import robustkit
    from robustkit.pipeline import runner

    (folder / "net.py").write_text(NETWORK % (options.side, options.side))
    torch.save(
        torch.nn.Sequential(torch.nn.Identity(), torch.nn.Identity(), torch.nn.Linear(3, 1000)).state_dict(),
        folder / "net.pth",
    )
    random = np.random.default_rng(0)
    for index in range(options.images):
        path = folder / "images" / f"{index % 1000:04d}" / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 256, (options.side, options.side, 3), dtype=np.uint8)).save(path)
    for label in range(1000):
        (folder / "images" / f"{label:04d}").mkdir(exist_ok=True)
    marks: list[tuple[float, float]] = []
    unit, device = runner._unit, threading.get_ident()

    def marked(*arguments: Any, **named: Any) -> Any:
        marks.append((time.perf_counter(), seen.seconds[device]))
        return unit(*arguments, **named)

    runner._unit = marked
    robustkit.audit(
        [folder / "net.pth"],
        data_dir=folder / "images",
        model={"arch": f"{folder / 'net.py'}:build", "num_classes": 1000},
        attacks=options.attacks,
        corruptions=options.corruptions,
        out=folder / "run",
        device="cuda",
        batch_size=options.shard_size,
        shard_size=options.shard_size,
        browse=0,
    )
    shards = -(-options.images // options.shard_size)
    per_shard = len(marks) // shards
    spans = [
        (after[0] - before[0]) - (after[1] - before[1])
        for place, (before, after) in enumerate(pairwise(marks))
        if (place + 1) % per_shard and place % per_shard
    ]
    middle = statistics.median(spans) * 1e3
    return f"{middle:.1f} ms a unit of {options.shard_size} ({len(spans)} units, up to {max(spans) * 1e3:.1f})"


if __name__ == "__main__":
    main()
