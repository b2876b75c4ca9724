"""Train where standard attention breaks: which stabilisers keep a small ViT in training at high learning rates.

    python -m scripts.studies.stabilisers.train --work DIR [--only PATTERN]
    python -m scripts.studies.stabilisers.page --work DIR

One run for each rate, method and seed, each in its folder under --work with a log.jsonl; the same command continues
where it was stopped. Several commands may share the work where each has an --only of its own. Nothing but rate, method
and seed differs: one small ViT on generated shapes, AdamW at a constant rate after a short warm-up, no clipping of
gradients, and a loss without smoothing, mixup or drop path, so that nothing else holds training together.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from robustkit.slices.optim.stabilisers import stabiliser
from scripts.zoo.data import Images, cached
from scripts.zoo.families import SHAPES
from scripts.zoo.recipe import Preset
from scripts.zoo.run import DivergedError, Run, Task

FAMILY = replace(SHAPES, name="small-vit", width=64, heads=2)
RATES = (2e-2, 3e-2, 1e-2)
SEEDS = (0, 1, 2)
PRESET = Preset(
    "stability",
    epochs=10,
    batch=32,
    rate=1e-2,
    warm_up=0.04,
    clip=math.inf,
    smoothing=0.0,
    drop_path=0.0,
    bfloat16=True,
    train_images=1600,
    test_images=500,
    watched=500,
    save_every=60.0,
    family=FAMILY,
)


@dataclass(frozen=True)
class Method:
    """What differs from run to run: a formula of attention and a stabiliser."""

    title: str
    attention: str = "standard"
    stabiliser: str = "none"

    def folder(self, rate: float, seed: int) -> str:
        """Return the folder of its run, under --work."""
        return re.sub(r"[^\w.]+", "-", f"rate {rate:g} {self.attention} {self.stabiliser} seed {seed}")


METHODS = (
    Method("standard"),
    Method("QUEST", "quest"),
    Method("QuacK with tau 1", stabiliser="quack(tau=1)"),
    Method("QuacK with tau 0.1", stabiliser="quack(tau=0.1)"),
    Method("rates times 0.1", stabiliser="fixed-rates(factor=0.1)"),
    Method("QK clip at 100", stabiliser="qk-clip(threshold=100)"),
    Method("σReparam", stabiliser="sigma-reparam"),
    Method("logits capped at 50", "softcap(cap=50)"),
    Method("QK norm", "qknorm-ln"),
)


def tasks(work: Path, train: Images, test: Images) -> Iterator[Task]:
    """Yield every run, the first seeds first, and for each the rates in their order above."""
    for seed in SEEDS:
        for rate in RATES:
            for method in METHODS:
                yield Task(
                    attention=method.attention,
                    preset=replace(PRESET, rate=rate, floor=rate),  # constant after the warm-up, as in the paper
                    seed=seed,
                    train=train,
                    test=test,
                    folder=work / method.folder(rate, seed),
                    stabiliser=stabiliser(method.stabiliser),
                )


def main(arguments: list[str] | None = None) -> int:
    """Train what is missing. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="decoded images, states and logs")
    parser.add_argument("--only", default="", help="a regular expression that the folder's name must hold")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    train = cached(FAMILY.train, "train", PRESET.train_images, options.work / "data", FAMILY)
    test = cached(FAMILY.test, "test", PRESET.test_images, options.work / "data", FAMILY, train.class_names)
    for task in tasks(options.work, train, test):
        if not re.search(options.only, task.folder.name):
            continue
        run = Run(task)
        run.resume()
        try:
            for row in run.train():
                print(f"{task.folder.name}, step {row['step']}: loss {row['loss']:.3f}", flush=True)
        except DivergedError as error:
            print(error, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
