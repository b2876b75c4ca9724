"""What Ray costs over a single process of the same work, once models are loaded.

    python -m scripts.bench.ray_overhead [--limit 128] [--rounds 5]

The same audit of an embedded ViT runs in this process and as tasks of a Ray cluster that lends one core, in turn. Each
run's time is that from its first record to its last: model loading, and what comes before and after the work, is not
part of it. The ratio of neighbours is printed, and in the end their range, which is the noise of a machine that others
use, too, and the ratio of the fastest runs, which others slowed down least.
"""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
from pathlib import Path

import ray
import torch

from robustkit import audit


def span(folder: Path, limit: int, address: str | None) -> float:
    """Return the seconds from the first record of an audit to its last."""
    run = audit(
        "zoo:shapes-vit-quest",
        data_dir="embedded:shapes",
        attacks="fgsm,pgd",
        limit=limit,
        shard_size=16,
        workers=1,
        browse=0,
        device="cpu",
        out=folder,
        ray=address,
    )
    written = [path.stat().st_mtime_ns for path in run.path.glob("records/**/*.parquet")]
    return (max(written) - min(written)) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    runs = []
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(options.rounds):
            alone = span(Path(folder) / f"alone-{turn}", options.limit, None)
            spread = span(Path(folder) / f"ray-{turn}", options.limit, "local")
            runs.append((alone, spread))
            print(f"one process {alone:.2f} s, Ray {spread:.2f} s: {spread / alone:.3f}", flush=True)
    ray.shutdown()
    ratios = [spread / alone for alone, spread in runs]
    fastest = min(spread for _, spread in runs) / min(alone for alone, _ in runs)
    print(f"fastest runs {fastest:.3f}; median {statistics.median(ratios):.3f}, {min(ratios):.3f} to {max(ratios):.3f}")


if __name__ == "__main__":
    main()
