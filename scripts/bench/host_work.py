"""How long the host works on a unit while a GPU could compute: python -m scripts.bench.host_work

A unit is a shard under one condition. The audit runs on the stand-in for a CUDA device of the tests, with a network of
next to no work, and a sampler looks every half millisecond where the model's thread is. Inside the stand-in, a GPU
would be at work, or waited for; where the thread waits for a decoder, the disk is slow; all else is work of the host,
uploads from pageable memory among it, since the host copies those. Printed are milliseconds a unit.

--root: another checkout, to compare with.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
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
    parser.add_argument("--corruptions", default="brightness,contrast")
    options = parser.parse_args()
    sys.path[:] = [
        str(options.root),
        str(HERE / "tests" / "support"),
        *(p for p in sys.path if p not in ("", str(HERE))),
    ]
    import stand_in

    if reason := stand_in.why_not():
        sys.exit(reason)
    import robustkit.pipeline.scheduler  # noqa: F401 - before there are devices

    stand_in.prepare()
    with tempfile.TemporaryDirectory() as folder, stand_in.devices():
        print(f"{options.root}: {_measured(Path(folder), options)}")


def _measured(folder: Path, options: argparse.Namespace) -> str:
    import numpy as np
    import stand_in
    import torch
    from PIL import Image

    import robustkit
    from robustkit.pipeline import units

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
    sampler = Sampler(Path(stand_in.__file__).parent)
    compute = units.Worker.compute

    def watched(*arguments: Any) -> None:
        with sampler:
            compute(*arguments)

    units.Worker.compute = watched
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
    units = len(list((folder / "run" / "records").rglob("*.parquet")))
    each = sampler.seconds / sum(sampler.seen.values()) / units * 1e3
    shares = ", ".join(f"{kind} {count * each:.1f}" for kind, count in sampler.seen.items())
    return f"{shares} ms a unit ({units} units)"


class Sampler:
    """A thread that looks where the one that made it is: at work, waiting for decoders, or with the device."""

    def __init__(self, stand_in: Path) -> None:
        self.inside = str(stand_in)
        self.thread = threading.get_ident()
        self.seen = {"host": 0, "decoding": 0, "device": 0}
        self.seconds = 0.0

    def __enter__(self) -> None:
        self.began, self.done = time.perf_counter(), threading.Event()
        self.watcher = threading.Thread(target=self._watch)
        self.watcher.start()

    def __exit__(self, *fault: object) -> None:
        self.done.set()
        self.watcher.join()
        self.seconds += time.perf_counter() - self.began

    def _watch(self) -> None:
        while not self.done.wait(0.0005):
            self.seen[self._where()] += 1

    def _where(self) -> str:
        from stand_in.device import WORLD

        frame = sys._current_frames()[self.thread]
        copying = WORLD.copying
        while frame is not None:
            if frame.f_code.co_filename.startswith(self.inside):
                return "host" if copying else "device"
            if frame.f_code.co_name == "result" and "concurrent" in frame.f_code.co_filename:
                return "decoding"
            frame = frame.f_back
        return "host"


if __name__ == "__main__":
    main()
