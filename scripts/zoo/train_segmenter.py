"""Train Segmenters that differ in their attention only.

    python -m scripts.zoo.train_segmenter --attention quest --preset shapes --work DIR --out DIR
    python -m scripts.zoo.train_segmenter --attention quest --preset camvid --init VIT --train IMAGES MASKS
        --test IMAGES MASKS --classes FILE --ignore 11 --work DIR

Presets: `shapes` for the generated set that travels with the package (from the zoo's classifiers), `camvid` for two
cores, `camvid-gpu` for a CUDA device, `smoke` for a look at whether it runs. --work keeps a folder for each run with
its state and log.jsonl; the same command continues where a run was stopped, and on one CPU thread then gives the same
bytes. The average of the weights, in half precision, goes to --out. A run whose loss is no longer a number ends with
exit status 1.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from robustkit.attention import set_attention
from robustkit.attention.formulas import find_formula
from robustkit.common.files import write_whole
from robustkit.data.scenes import LabelledScenes, open_scenes
from robustkit.errors import RobustkitError
from robustkit.models.dense import SegmenterNetwork, Windows, build_segmenter
from robustkit.models.device import pick_device
from robustkit.tasks.segmentation.counts import class_counts

from .recipe import decay_at, parameter_groups, rate_at, seed_of
from .run import DivergedError
from .segmenter_recipe import MEAN, RECIPES, STD, Recipe, Scenes, batch, build, normalise
from .states import save_state, saved_state
from .train import enter, serialise

CHECK_EVERY = 20  # steps between two looks at the loss, which wait for the device


class Training:
    """Weights, their average, the optimiser and the place in the schedule."""

    def __init__(
        self, recipe: Recipe, attention: str, seed: int, init: str, train: Scenes, folder: Path, device: torch.device
    ) -> None:
        self.recipe, self.seed, self.train_set, self.folder, self.device = recipe, seed, train, folder, device
        self.identity = {
            "attention": attention,
            "seed": str(seed),
            "recipe": recipe.identity(),
            "encoder": init,
            "train": train.digest,
        }
        self.network = build(recipe, attention, len(train.class_names), init, seed, recipe.drop_path).to(device)
        self.average = {name: value.detach().clone() for name, value in self.network.state_dict().items()}
        groups = []
        for part, rate in ((self.network.encoder, recipe.rate), (self.network.decoder, recipe.head_rate)):
            groups += [group | {"lr": rate, "highest": rate} for group in parameter_groups(part, recipe.weight_decay)]
        self.optimiser = torch.optim.AdamW(groups, fused=True)
        self.per_epoch = len(train) // recipe.batch
        self.steps = recipe.epochs * self.per_epoch
        self.step, self.total = 0, torch.zeros((), device=device)
        self.rows: list[dict[str, Any]] = []

    def save(self) -> None:
        """Write the state and the log, each whole or not at all."""
        save_state(
            self.folder,
            self.identity,
            self.rows,
            network=self.network.state_dict(),
            average=self.average,
            optimiser=self.optimiser.state_dict(),
            step=self.step,
        )

    def resume(self) -> None:
        """Take up the state in the folder, if there is one. RunError where it is of something else."""
        state = saved_state(self.folder, self.identity, self.device)
        if state is None:
            return
        self.network.load_state_dict(state["network"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.average, self.step, self.rows = state["average"], state["step"], state["rows"]

    def train(self) -> Iterator[dict[str, Any]]:
        """Train to the end, and yield the log's row of each epoch, saved before. Raises DivergedError."""
        began = time.monotonic()
        while self.step < self.steps:
            self._step(*batch(self.train_set, self.recipe, self.seed, self.step))
            done = self.step % self.per_epoch == 0
            if (done or self.step % CHECK_EVERY == 0) and not torch.isfinite(self.total):
                raise DivergedError(f"the loss is {self.total.item()} by step {self.step}; training diverged")
            if done:
                seconds, began = time.monotonic() - began, time.monotonic()
                loss = round(self.total.item() / self.per_epoch, 5)
                epoch = self.step // self.per_epoch
                self.rows.append({"epoch": epoch, "step": self.step, "loss": loss, "seconds": round(seconds, 1)})
                self.total = torch.zeros_like(self.total)
                self.save()
                yield self.rows[-1]

    def _step(self, images: Tensor, labels: Tensor) -> None:
        recipe, step = self.recipe, self.step
        torch.manual_seed(seed_of(self.seed, "drop path", step))
        self.network.train()
        with torch.autocast(self.device.type, torch.bfloat16, enabled=recipe.bfloat16):
            logits = self.network(images.to(self.device))
        loss = functional.cross_entropy(logits.float(), labels.to(self.device), ignore_index=-1)
        share = rate_at(recipe, step, self.steps) / recipe.rate
        for group in self.optimiser.param_groups:
            group["lr"] = group["highest"] * share
        self.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), recipe.clip)
        self.optimiser.step()
        self.total += loss.detach()
        decay = decay_at(recipe, step, self.steps)
        with torch.no_grad():
            current = self.network.state_dict()
            torch._foreach_lerp_(list(self.average.values()), [current[name] for name in self.average], 1 - decay)
        self.step += 1


@torch.no_grad()
def mean_iou(network: SegmenterNetwork, scenes: Scenes, stride: int, device: torch.device) -> float:
    """Return the mIoU of a data set with sliding windows, a fraction."""
    network.eval().to(device)
    windows = Windows(network.window, (stride, stride))
    total = torch.zeros(3, len(scenes.class_names), dtype=torch.int64)
    for image, labels in zip(scenes.images, scenes.labels, strict=True):
        prediction = windows(network, normalise(image[None].to(device))).argmax(dim=1).cpu()
        total += torch.stack(class_counts(prediction, labels[None], len(scenes.class_names)))[:, 0]
    right, predicted, labelled = total
    union = predicted + labelled - right
    return float((right[union > 0] / union[union > 0]).mean())


def save(training: Training, test: Scenes, out: Path) -> tuple[Path, float]:
    """Write the averaged weights in half precision with all that is needed to load and judge them."""
    recipe, attention = training.recipe, training.identity["attention"]
    tensors = {name: value.half().cpu().contiguous() for name, value in training.average.items()}
    names = training.train_set.class_names
    rounded = build_segmenter(
        recipe.arch,
        len(names),
        window=recipe.window,
        arch_kwargs=recipe.arch_kwargs,
        decoder_kwargs=recipe.decoder_kwargs,
    )
    set_attention(rounded, attention).load_state_dict(tensors)
    score = mean_iou(rounded, test, recipe.stride, training.device)
    metadata = {
        "task": "segmentation",
        "arch": recipe.arch,
        "arch_kwargs": json.dumps(dict(recipe.arch_kwargs)),
        "decoder": "mask_transformer",
        "decoder_kwargs": json.dumps(dict(recipe.decoder_kwargs)),
        "attention": attention,
        "num_classes": str(len(names)),
        "class_names": json.dumps(names),
        "mean": json.dumps(MEAN),
        "std": json.dumps(STD),
        "input_size": json.dumps([recipe.window] * 2),
        "stride": json.dumps([recipe.stride] * 2),
        "data": f"{training.train_set.name}: {len(training.train_set)} training images",
        "data_digest": training.train_set.digest,
        "test_data": f"{test.name}: {len(test)} test images",
        "test_digest": test.digest,
        "encoder": Path(training.identity["encoder"]).name,
        "recipe": recipe.text(),
        "preset": recipe.name,
        "seed": str(training.seed),
        "epochs": str(recipe.epochs),
        "miou": f"{score:.4f}",
        "license": "Apache-2.0",
    }
    out.mkdir(parents=True, exist_ok=True)
    kind = recipe.name.partition("-")[0]
    path = out / f"{kind}-segmenter-{attention}{f'-seed{training.seed}' if training.seed else ''}.safetensors"
    write_whole(path, serialise(tensors, metadata))
    enter(path, {"task": "segmentation", "attention": attention, "miou": round(score, 4)})
    return path, score


def scenes_of(options: argparse.Namespace, which: str, limit: int | None = None) -> Scenes:
    """Return the images of a split: those of the options, or the embedded ones."""
    given = getattr(options, which)
    scenes: LabelledScenes
    if given is None:
        scenes = open_scenes("embedded:shapes-train" if which == "train" else "embedded:shapes")
    else:
        scenes = open_scenes(given[0], masks=given[1], classes=options.classes, ignore=tuple(options.ignore))
    return Scenes.of(scenes if limit is None else scenes.select(limit=limit, ids=None, seed=0))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", required=True, help="a formula of robustkit.attention")
    parser.add_argument("--preset", choices=tuple(RECIPES), default="shapes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--init", help="the classifier whose encoder is the start")
    parser.add_argument("--train", nargs=2, metavar=("IMAGES", "MASKS"))
    parser.add_argument("--test", nargs=2, metavar=("IMAGES", "MASKS"))
    parser.add_argument("--classes", type=Path, help="their names, one per line")
    parser.add_argument("--ignore", type=int, nargs="+", default=[255], help="labels that do not count")
    parser.add_argument("--work", type=Path, required=True, help="states and logs")
    parser.add_argument("--out", type=Path, help="where the checkpoint goes; --work if left out")
    parser.add_argument("--epochs", type=int, help="another number than the preset's, for a trial")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, help="CPU threads; another number gives other last bits")
    options = parser.parse_args(arguments)
    if (options.train is None) != (options.test is None) or (options.train is None and "camvid" in options.preset):
        parser.error("expected --train and --test")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Train, and save. The exit status."""
    options = parse(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    try:
        find_formula(options.attention)
        recipe = RECIPES[options.preset]
        recipe = recipe if options.epochs is None else replace(recipe, epochs=options.epochs)
        init = options.init or recipe.init.format(attention=options.attention)
        train, test = scenes_of(options, "train", recipe.train_images), scenes_of(options, "test", recipe.train_images)
        folder = options.work / f"{recipe.name}-{options.attention}-{options.seed}"
        training = Training(recipe, options.attention, options.seed, init, train, folder, pick_device(options.device))
        training.resume()
        for row in training.train():
            print(f"epoch {row['epoch']}/{recipe.epochs}: loss {row['loss']:.3f}, {row['seconds']:.0f} s", flush=True)
        path, score = save(training, test, options.out or options.work)
    except RobustkitError as error:
        print(f"scripts.zoo.train_segmenter: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB, mIoU {score:.2%} on {len(test)} test images")
    return 0


if __name__ == "__main__":
    sys.exit(main())
