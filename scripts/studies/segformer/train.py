"""Train a SegFormer-B0 of transformers from its config alone, on scenes such as CamVid.

    python -m scripts.studies.segformer.train --train IMAGES MASKS --test IMAGES MASKS --classes FILE --ignore 11
        --work DIR

Two phases on one CPU core: small crops of shrunk images, of which many are seen, then larger ones at a lower rate;
classes count by how rare they are. --work keeps state.pt and log.jsonl; the same command continues where a run
was stopped. The average of the weights goes to WORK/segformer-b0, a folder for `robustkit segment hf:DIR`.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from robustkit.data.images import to_unit_range
from robustkit.errors import RobustkitError
from robustkit.tasks.segmentation.counts import class_counts
from scripts.zoo.segmenter_recipe import Recipe, Scenes, batch
from scripts.zoo.states import save_state, saved_state
from scripts.zoo.train_segmenter import scenes_of

SHOWN = (192, 256)  # what the processor resizes images to; of three sizes the best on the test images of CamVid
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RATES, FLOOR, WARM_UP = (1e-3, 2e-4), 1e-6, 0.03  # highest rates of the phases; warm-up as a share of the steps
AVERAGED = (0.01, 0.04)  # over which share of the phase's steps weights are averaged
_COMMON: dict[str, Any] = {"arch": "", "arch_kwargs": {}, "stride": 0, "decoder_kwargs": {}, "rate": RATES[0]}
_COMMON |= {"head_rate": RATES[0], "jitter": 0.3, "batch": 8, "bfloat16": False}


def phases(epochs: tuple[int, int]) -> tuple[Recipe, Recipe]:
    """Return the crops of both phases."""
    return (
        Recipe("small", window=160, epochs=epochs[0], scales=(0.45, 0.9), **_COMMON),
        Recipe("large", window=224, epochs=epochs[1], scales=(0.55, 0.9), **_COMMON),
    )


class Training:
    """Weights, their average, the optimiser and the place in the schedule."""

    def __init__(self, train: Scenes, test: Scenes, epochs: tuple[int, int], seed: int, folder: Path) -> None:
        self.train_set, self.test_set, self.seed, self.folder = train, test, seed, folder
        self.phases = phases(epochs)
        self.per_epoch = len(train) // self.phases[0].batch
        self.steps = sum(epochs) * self.per_epoch
        self.identity = {"train": train.digest, "seed": str(seed)}
        self.identity |= {f"phase {phase.name}": phase.identity() for phase in self.phases}
        torch.manual_seed(seed)
        self.model = network(train.class_names)
        self.average = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        matrices = [value for value in self.model.parameters() if value.ndim > 1]
        others = [value for value in self.model.parameters() if value.ndim == 1]
        groups = [{"params": matrices, "weight_decay": 0.02}, {"params": others, "weight_decay": 0.0}]
        self.optimiser = torch.optim.AdamW(groups, lr=RATES[0], fused=True)
        self.weights = class_weights(train)
        self.step, self.rows = 0, list[dict[str, Any]]()

    def save(self) -> None:
        """Write state and log, each whole or not at all."""
        save_state(
            self.folder,
            self.identity,
            self.rows,
            model=self.model.state_dict(),
            average=self.average,
            optimiser=self.optimiser.state_dict(),
            step=self.step,
        )

    def resume(self) -> None:
        """Take up the state in the folder, if there is one. RunError where it is of something else."""
        state = saved_state(self.folder, self.identity)
        if state is None:
            return
        self.model.load_state_dict(state["model"])
        self.optimiser.load_state_dict(state["optimiser"])
        self.average, self.step, self.rows = state["average"], state["step"], state["rows"]

    def train(self) -> Iterator[dict[str, Any]]:
        """Train to the end, and yield the log's row of each epoch, saved before."""
        total, began = 0.0, time.process_time()
        while self.step < self.steps:
            total += self._step()
            if self.step % self.per_epoch:
                continue
            row = {"epoch": self.step // self.per_epoch, "loss": round(total / self.per_epoch, 4)}
            row["cpu_seconds"] = round(time.process_time() - began, 1)
            if self.step == self.steps:
                row["miou"] = round(mean_iou(self.average, self.test_set, SHOWN), 4)
            self.rows.append(row)
            self.save()
            total, began = 0.0, time.process_time()
            yield row

    def _step(self) -> float:
        images, labels = batch(self.train_set, self.phases[self._place()[0]], self.seed, self.step)
        images = normalised(images / 2 + 0.5)  # they come with a mean and std of 0.5
        for group in self.optimiser.param_groups:
            group["lr"] = self._rate()
        torch.manual_seed(self.step)  # of dropout, so that a run that goes on draws the same
        self.model.train()
        logits = functional.interpolate(self.model(pixel_values=images).logits, labels.shape[-2:], mode="bilinear")
        loss = functional.cross_entropy(logits, labels, weight=self.weights, ignore_index=-1)
        self.optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimiser.step()
        self.step += 1
        which, _, steps = self._place(-1)
        decay = min(1 - 1 / max(1.0, AVERAGED[which] * steps), self.step / (self.step + 10))
        with torch.no_grad():
            for name, value in self.model.state_dict().items():
                if value.is_floating_point():
                    self.average[name].lerp_(value, 1 - decay)
                else:
                    self.average[name].copy_(value)
        return float(loss.item())

    def _place(self, later: int = 0) -> tuple[int, int, int]:
        """Return the phase of a step, the step's place in it, and its length. The first phase ends before its rate is
        at its lowest, as far before as the second one is long.
        """
        step, first = self.step + later, self.phases[0].epochs * self.per_epoch
        return (0, step, self.steps) if step < first else (1, step - first, self.steps - first)

    def _rate(self) -> float:
        which, step, steps = self._place()
        warm = WARM_UP * steps
        share = step / warm if step < warm else (step - warm) / (steps - warm)
        return FLOOR + RATES[which] * (share if step < warm else 0.5 * (1 + math.cos(math.pi * share)))


def network(names: tuple[str, ...], tensors: dict[str, Tensor] | None = None) -> Any:
    """Return a SegFormer-B0 with these classes, with random weights where no tensors are given."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    config = SegformerConfig(
        id2label=dict(enumerate(names)), label2id={name: at for at, name in enumerate(names)}, drop_path_rate=0.05
    )
    model = SegformerForSemanticSegmentation(config)
    if tensors is not None:
        model.load_state_dict(tensors)
    return model


def normalised(pixels: Tensor) -> Tensor:
    """Return pixels in [0, 1] as the network takes them."""
    mean, std = (torch.tensor(values)[:, None, None] for values in (MEAN, STD))
    return (pixels - mean) / std


def class_weights(scenes: Scenes) -> Tensor:
    """Return a weight for each class, higher for rare ones, whose mean over all pixels is 1 (ENet, section 5)."""
    K = len(scenes.class_names)
    counts = sum(torch.bincount(labels[labels >= 0], minlength=K) for labels in scenes.labels)
    share = torch.as_tensor(counts).float() / torch.as_tensor(counts).sum()
    weights = 1 / torch.log(1.1 + share)
    return weights / (weights * share).sum()


@torch.no_grad()
def mean_iou(tensors: dict[str, Tensor], scenes: Scenes, size: tuple[int, int]) -> float:
    """Return the mIoU over a data set, of whole images resized to `size`."""
    K = len(scenes.class_names)
    model = network(scenes.class_names, tensors).eval()
    total = torch.zeros(3, K, dtype=torch.int64)
    for image, labels in zip(scenes.images, scenes.labels, strict=True):
        shown = functional.interpolate(to_unit_range(image)[None], size, mode="bilinear", antialias=True)
        logits = model(pixel_values=normalised(shown)).logits
        predicted = functional.interpolate(logits, labels.shape, mode="bilinear").argmax(dim=1)
        total += torch.stack(class_counts(predicted, labels[None], K))[:, 0]
    right, predicted, labelled = total
    union = predicted + labelled - right
    return float((right[union > 0] / union[union > 0]).mean())


def save(training: Training, out: Path) -> Path:
    """Write the averaged weights as a folder of transformers, and return it."""
    model = network(training.train_set.class_names, training.average)
    model.save_pretrained(out)
    processor = {
        "image_processor_type": "SegformerImageProcessor",
        "do_resize": True,
        "size": {"height": SHOWN[0], "width": SHOWN[1]},
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": MEAN,
        "image_std": STD,
        "do_reduce_labels": False,
    }
    (out / "preprocessor_config.json").write_text(json.dumps(processor, indent=2), encoding="utf-8")
    return out


def main(arguments: list[str] | None = None) -> int:
    """Train, and save. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", nargs=2, metavar=("IMAGES", "MASKS"))
    parser.add_argument("--test", nargs=2, metavar=("IMAGES", "MASKS"))
    parser.add_argument("--classes", type=Path, help="their names, one per line")
    parser.add_argument("--ignore", type=int, nargs="+", default=[255], help="labels that do not count")
    parser.add_argument("--epochs", type=int, nargs=2, default=(100, 12), help="of both phases")
    parser.add_argument("--images", type=int, help="how many of each split, for a trial")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", type=Path, required=True)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    try:
        train, test = (scenes_of(options, which, options.images) for which in ("train", "test"))
        training = Training(train, test, tuple(options.epochs), options.seed, options.work)
        training.resume()
        for row in training.train():
            print(json.dumps(row), flush=True)
        print(save(training, options.work / "segformer-b0"))
    except RobustkitError as error:
        print(f"scripts.studies.segformer.train: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
