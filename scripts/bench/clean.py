"""Clean evaluation compared with the bare model: images per second as a ratio, and whether memory grows with the data.

    python -m scripts.bench.clean CHECKPOINT --data-dir IMAGES [--dtype bfloat16]

The bare model gets ready tensors at the best of several batch sizes; the audit's clean pass reads, decodes and resizes
the files, computes the metrics and writes the records. Rounds alternate in one process; the medians are compared.
"""

from __future__ import annotations

import argparse
import platform
import resource
import statistics
import tempfile
import time
from typing import Any

import torch

from robustkit.evaluations.subject import Settings
from robustkit.models.classifier import load
from robustkit.models.device import pick_device
from robustkit.models.identity import Classifier
from robustkit.pipeline.inputs import labelled_data
from robustkit.pipeline.pending import Piece
from robustkit.pipeline.units import run_units
from robustkit.protocol.card import load_card
from robustkit.protocol.condition import CLEAN
from robustkit.results.summary import Run
from robustkit.tasks.classification.subject import ClassifierSubject, Images

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Silent:
    """No progress, so that it costs nothing."""

    def start(self, checkpoint: str, condition: str, samples: int) -> None: ...
    def begin(self, checkpoint: str, condition: Any, samples: int) -> None: ...
    def written(self, checkpoint: str, condition: Any) -> None: ...
    def advance(self, samples: int) -> None: ...


def bare(classifier: Classifier, images: torch.Tensor, batch_size: int, dtype: torch.dtype) -> float:
    """Return images per second of the bare model on ready pixels."""
    start = time.perf_counter()
    with torch.inference_mode(), torch.autocast(images.device.type, dtype, enabled=dtype != torch.float32):
        for first in range(0, len(images), batch_size):
            classifier(images[first : first + batch_size])
    if images.is_cuda:
        torch.cuda.synchronize()
    return len(images) / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--arch")
    parser.add_argument("--limit", type=int, default=256)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", choices=list(DTYPES), default="float32")
    options = parser.parse_args()
    device, dtype = pick_device(options.device), DTYPES[options.dtype]
    classifier = load(options.checkpoint, arch=options.arch).to(device)
    identity = classifier.identity
    data = labelled_data(options.data_dir, identity, {}, limit=options.limit, ids=None, seed=0)
    card = load_card("standard")
    settings = Settings(0, options.batch_size, options.workers, device, dtype)
    images = torch.rand(len(data.samples), 3, *identity.preprocessing.input_size, device=device)
    ours, floors = [], []
    for _ in range(options.rounds + 1):
        floors.append(
            max(bare(classifier, images, size, dtype) for size in (options.batch_size, 2 * options.batch_size))
        )
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            subject = ClassifierSubject(classifier, card, settings, data.valid_labels)
            shards = -(-len(data.samples) // 128)
            work = [Piece(shard, (CLEAN,)) for shard in range(shards)]
            run_units(Run(folder), subject, Images(data, identity.preprocessing), work, 128, {}, Silent())
            ours.append(len(data.samples) / (time.perf_counter() - start))
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(f"bare {floors[-1]:7.1f} images/s   audit {ours[-1]:7.1f} images/s   peak memory {resident:.0f} MB")
    ratios = [a / b for a, b in zip(ours[1:], floors[1:], strict=True)]
    print(
        f"{platform.machine()}, {torch.get_num_threads()} threads, {device}, torch {torch.__version__}, "
        f"{options.dtype}: audit at {statistics.median(ratios):.3f} x the bare model's rate "
        f"(min {min(ratios):.3f}, max {max(ratios):.3f}, {options.rounds} rounds after a warm-up)"
    )


if __name__ == "__main__":
    main()
