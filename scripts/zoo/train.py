"""Train the zoo: small ViTs, one recipe for every attention formula.

    python -m scripts.zoo.train --attention quest --train TRAIN --test TEST --work DIR --out DIR
    python -m scripts.zoo.train --attention quest --preset shapes --threads 1 --work DIR --out DIR
    python -m scripts.zoo.train --attention standard --stabiliser 'quack(tau=0.5)' --preset shapes --work DIR
    python -m scripts.zoo.train --attention quest --preset shapes --rate 3e-3 --fraction 0.1 --seed 2 --work DIR
    python -m scripts.zoo.train --work DIR --plot DIR

TRAIN and TEST are CIFAR-10 as a zip or folder of class folders, or as cifar-10-batches-py. Presets: `cpu` is for two
cores, `gpu` for a CUDA device, `smoke` for a look at whether it runs; `shapes` is for the generated set that travels
with the package, `shapes-crossvit` is CrossViT on it. --epochs, --rate, --fraction (of the training images, drawn by
the seed) and --bfloat16 make a variant of a preset, in a folder and with a name of its own.

--work keeps the decoded images, and for each run a folder with its state and log.jsonl. To go on after a stop of any
kind, give the same command again: on one CPU thread it writes the bytes of a run that was never stopped. The averaged
weights, rounded to half precision, go to --out. A run whose loss is no longer a number ends with exit status 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_bytes
from torch import Tensor

from robustkit.attention.formulas import find_formula
from robustkit.common.files import write_whole
from robustkit.errors import RobustkitError
from robustkit.models.device import pick_device
from robustkit.slices.optim.stabilisers import DEFAULTS, NONE, stabiliser

from .curves import plot
from .data import cached
from .recipe import PRESETS, final_decay
from .run import Run, Task, accuracy

MOST_BYTES = 3_000_000


def save(run: Run, out: Path) -> tuple[Path, float]:
    """Write the averaged weights in half precision with everything that is needed to load, judge and repeat them, and
    their entry in checkpoints.json. Returns the file and its accuracy on the test images."""
    task, family = run.task, run.task.preset.family
    tensors = {name: value.half().cpu().contiguous() for name, value in run.weights().items()}
    rounded = family.empty(task.attention)
    rounded.load_state_dict(tensors)
    score = accuracy(rounded.to(task.device), family, task.test.to(task.device))
    metadata = {
        "arch": family.arch,
        "arch_kwargs": json.dumps(family.arch_kwargs()),
        "attention": task.attention,
        "num_classes": str(family.classes),
        "class_names": json.dumps(task.train.class_names),
        "mean": json.dumps(family.mean),
        "std": json.dumps(family.std),
        "input_size": json.dumps([family.side] * 2),
        "interpolation": "bicubic",
        "crop_pct": "1.0",
        "crop_mode": "center",
        "data": f"{family.data}: {len(task.train)} training images",
        "data_digest": task.train.digest,
        "test_data": f"{family.data}: {len(task.test)} test images",
        "test_digest": task.test.digest,
        "recipe": task.preset.text(),
        "preset": task.preset.name,
        "seed": str(task.seed),
        "epochs": str(task.preset.epochs),
        "ema": f"{final_decay(task.preset, task.steps):.6f}",
        "accuracy": f"{score:.4f}",
        "license": "Apache-2.0",
    }
    facts = {"attention": task.attention}
    if task.stabiliser != NONE:
        metadata["stabiliser"] = facts["stabiliser"] = task.stabiliser.text
    out.mkdir(parents=True, exist_ok=True)
    suffix = f"-seed{task.seed}" if task.seed else ""
    path = out / f"{named(task)}{suffix}.safetensors"
    write_whole(path, serialise(tensors, metadata))
    enter(path, {**facts, "accuracy": round(score, 4)})
    return path, score


def named(task: Task) -> str:
    """Return what the names of its files begin with: `shapes-vit-quest`, `shapes-vit-quest-rate-0.003`,
    `shapes-vit-standard-quack-tau-1-norm-frobenius`.
    """
    stabiliser = "" if task.stabiliser == NONE else f"-{task.stabiliser.text}"
    how = re.sub(r"[^\w.-]+", "-", f"{task.attention}{stabiliser}").strip("-")
    return f"{task.preset.family.name}-{how}{task.preset.variant()}"


def serialise(tensors: dict[str, Tensor], metadata: dict[str, str]) -> bytes:
    """Return a safetensors file with its metadata in the order of the keys; the library's own order changes at every
    call.
    """
    content = to_bytes(tensors, metadata)
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8
    return len(text).to_bytes(8, "little") + text + content[end:]


def enter(path: Path, facts: dict[str, Any]) -> None:
    listing = path.parent / "checkpoints.json"
    entries = json.loads(listing.read_text("utf-8")) if listing.exists() else {}
    entries[path.stem] = {"file": path.name, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), **facts}
    write_whole(listing, (json.dumps(dict(sorted(entries.items())), indent=2) + "\n").encode())


def describe(row: dict[str, Any], epochs: int) -> str:
    """Return one epoch in one line."""
    probe = row["probe"]
    return (
        f"epoch {row['epoch']}/{epochs}: loss {row['loss']:.3f}, test {row['test_accuracy']:.2%}, averaged "
        f"{row['test_accuracy_ema']:.2%}, train {row['train_accuracy_ema']:.2%}, largest logit "
        f"{max(probe['largest_logit']):.1f}, {row['images_per_second']:.0f} images/s"
    )


def task_of(options: argparse.Namespace) -> Task:
    """Return the task that the options ask for. Raises RobustkitError, one line."""
    preset = PRESETS[options.preset]
    find_formula(options.attention)
    stabilised = stabiliser(options.stabiliser)
    given = {"epochs": options.epochs, "rate": options.rate, "fraction": options.fraction}
    given["bfloat16"] = options.bfloat16
    preset = replace(preset, **{name: value for name, value in given.items() if value is not None})
    folder = options.work / "data"
    family = preset.family
    train = cached(options.train or family.train, "train", preset.train_images, folder, family)
    test = cached(options.test or family.test, "test", preset.test_images, folder, family, train.class_names)
    task = Task(
        attention=options.attention,
        preset=preset,
        seed=options.seed,
        train=train.part(preset.fraction, options.seed),
        test=test,
        folder=options.work,
        device=pick_device(options.device),
        compile=preset.compile if options.compile is None else options.compile,
        workers=options.workers,
        stabiliser=stabilised,
    )
    return replace(task, folder=options.work / f"{named(task)}-seed{task.seed}")


def train(options: argparse.Namespace) -> None:
    """Train or go on, and write the checkpoint."""
    task = task_of(options)
    print(f"{task.attention}, stabiliser {task.stabiliser.text}, seed {task.seed}: {task.preset.text()}", flush=True)
    run = Run(task)
    if run.resume():
        print(f"goes on at step {run.step} of {task.steps}", flush=True)
    for row in run.train():
        print(describe(row, task.preset.epochs), flush=True)
    path, score = save(run, options.out or options.work)
    size = path.stat().st_size
    print(f"{path}: {size / 1e6:.2f} MB, accuracy {score:.2%} on {len(task.test)} test images")
    if size > MOST_BYTES:
        print(f"note: more than the {MOST_BYTES / 1e6:g} MB that a checkpoint which travels with the package may have")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", help="a formula of robustkit.attention")
    parser.add_argument("--stabiliser", default="none", metavar="NAME", help=f"{', '.join(DEFAULTS)}; quack(tau=0.5)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--preset", choices=tuple(PRESETS), default="cpu")
    parser.add_argument("--train", help="the training images")
    parser.add_argument("--test", help="the test images")
    parser.add_argument("--work", type=Path, required=True, help="decoded images, states and logs")
    parser.add_argument("--out", type=Path, help="where the checkpoint goes; --work if left out")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="draw the curves of all runs in --work, and stop")
    parser.add_argument("--epochs", type=int, help="another number than the preset's")
    parser.add_argument("--rate", type=float, help="the highest learning rate, another than the preset's")
    parser.add_argument("--fraction", type=float, help="of the training images of each class, drawn by the seed")
    parser.add_argument("--bfloat16", action="store_const", const=True, help="autocast, where the preset is in float32")
    parser.add_argument("--compile", action=argparse.BooleanOptionalAction, help="torch.compile; the preset decides")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, help="CPU threads; another number gives other last bits")
    parser.add_argument("--workers", type=int, default=max(1, (os.cpu_count() or 2) - 1), help="RandAugment processes")
    options = parser.parse_args(arguments)
    given = (options.train and options.test) or PRESETS[options.preset].family.train
    if options.plot is None and not (options.attention and given):
        parser.error("expected --attention, --train and --test, or --plot")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Parse the options, then train or plot. The exit status."""
    options = parse(arguments)
    try:
        if options.plot is not None:
            for path in plot(options.work, options.plot):
                print(path)
            return 0
        threads = options.threads or (1 if options.preset == "smoke" else None)
        if threads:
            torch.set_num_threads(threads)
        train(options)
    except RobustkitError as error:
        print(f"scripts.zoo.train: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
