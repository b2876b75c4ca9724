"""One training run: its state, its log, and how it goes on after it was stopped at any moment."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from timm.data import Mixup
from torch import Tensor, nn
from torch.nn import functional

from robustkit.attention import attention_layers
from robustkit.errors import RobustkitError
from robustkit.slices.optim.stabilisers import NONE, Stabiliser

from .curves import watch
from .data import Images, augment, batches
from .families import Family
from .recipe import Preset, build, decay_at, parameter_groups, rate_at, seed_of
from .states import save_state, saved_state, write_log

CHECK_EVERY = 50  # steps between two looks at the loss, which wait for the device
PROBES = 256
SCORED = {"cpu": 125}  # images per batch: larger ones do not fit a core's cache


class DivergedError(RobustkitError):
    """The loss is no longer a number."""

    exit_code = 1


@dataclass(frozen=True)
class Task:
    """What is trained, on what, where. folder: of this run alone."""

    attention: str
    preset: Preset
    seed: int
    train: Images
    test: Images
    folder: Path
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    compile: bool = False
    workers: int = 0
    stabiliser: Stabiliser = NONE

    @property
    def per_epoch(self) -> int:
        return self.preset.steps_per_epoch(len(self.train))

    @property
    def steps(self) -> int:
        return self.preset.epochs * self.per_epoch

    def identity(self) -> dict[str, str]:
        """Return what must agree for a state to go on."""
        return {
            "attention": self.attention,
            "stabiliser": self.stabiliser.text,
            "seed": str(self.seed),
            "preset": self.preset.name,
            "recipe": self.preset.identity(),
            "train": self.train.digest,
            "test": self.test.digest,
        }


class Run:
    """Weights, their average, the optimiser and the place in the schedule."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.model = build(task.attention, task.preset, task.seed, task.train.spread(2000).pixels).to(task.device)
        if task.device.type == "cpu":  # torch's fused attention takes a third of a step's time there, mostly backward
            for _, layer in attention_layers(self.model):
                layer.fused_attn = False
        task.stabiliser.prepare(self.model)
        self.average = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        preset = task.preset
        bare = torch.optim.AdamW(
            parameter_groups(self.model, preset.weight_decay),
            lr=preset.rate,
            betas=(preset.beta_1, preset.beta_2),
            fused=True,
        )
        self.optimiser = task.stabiliser.wrap(bare, self.model)
        self.mixup = Mixup(
            preset.mixup,
            preset.cutmix,
            prob=preset.mix_prob,
            label_smoothing=preset.smoothing,
            num_classes=preset.family.classes,
        )
        self.forward = torch.compile(self.model) if task.compile else self.model
        self.step = 0
        self.total = torch.zeros((), device=task.device)  # of the losses of this epoch
        self.seconds = 0.0  # spent in this epoch's steps
        self.rows: list[dict[str, Any]] = []

    # state

    def save(self) -> None:
        """Write the state and the log, each whole or not at all."""
        save_state(
            self.task.folder,
            self.task.identity(),
            self.rows,
            model=self.model.state_dict(),
            average=self.average,
            optimiser=self.optimiser.state_dict(),
            step=self.step,
            total=self.total,
            seconds=self.seconds,
        )

    def resume(self) -> bool:
        """Take up the state in the folder; False where there is none. RunError where it is of something else."""
        state = saved_state(self.task.folder, self.task.identity(), self.task.device)
        if state is None:
            return False
        self.model.load_state_dict(state["model"])
        self.average = state["average"]
        self.optimiser.load_state_dict(state["optimiser"])
        self.step, self.total, self.seconds, self.rows = (state[key] for key in ("step", "total", "seconds", "rows"))
        write_log(self.task.folder, self.rows)
        return True

    # training

    def train(self) -> Iterator[dict[str, Any]]:
        """Train to the end, and yield the log's row of each epoch. Raises DivergedError."""
        task, preset = self.task, self.task.preset
        started = saved = time.monotonic()
        feed = batches(task.train, preset, task.seed, range(self.step, task.steps), task.device, task.workers)
        for pixels, labels in feed:
            self._step(pixels, labels)
            done = self.step % task.per_epoch == 0
            if done or self.step % CHECK_EVERY == 0:
                self._check()
            due = time.monotonic() - saved > 60 * preset.save_every
            if not done and not due:
                continue
            self._check()
            self.seconds += time.monotonic() - started
            if done:
                self.rows.append(self._row())
                self.total, self.seconds = torch.zeros_like(self.total), 0.0
            self.save()
            if done:
                yield self.rows[-1]
            started = saved = time.monotonic()

    def _step(self, pixels: Tensor, labels: Tensor) -> None:
        task, preset, step = self.task, self.task.preset, self.step
        torch.manual_seed(seed_of(task.seed, "drop path", step))
        np.random.seed(seed_of(task.seed, "mixup", step) % 2**32)  # timm's Mixup draws from it
        self.model.train()
        images, targets = self.mixup(preset.family.normalise(augment(pixels, preset, task.seed, step)), labels)
        with torch.autocast(task.device.type, torch.bfloat16, enabled=preset.bfloat16):
            logits = self.forward(images)
        loss = functional.cross_entropy(logits.float(), targets)
        for group in self.optimiser.param_groups:
            group["lr"] = rate_at(preset, step, task.steps)
        self.optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), preset.clip)
        self.optimiser.step()
        self.total += loss.detach()
        self._average(decay_at(preset, step, task.steps))
        self.step += 1

    @torch.no_grad()
    def _average(self, decay: float) -> None:
        current = self.model.state_dict()
        torch._foreach_lerp_(list(self.average.values()), [current[name] for name in self.average], 1 - decay)

    def _check(self) -> None:
        if torch.isfinite(self.total):
            return
        epoch = (self.step - 1) // self.task.per_epoch + 1
        self.rows.append({"epoch": epoch, "step": self.step, "diverged": True})
        write_log(self.task.folder, self.rows)
        raise DivergedError(
            f"{self.task.attention}, seed {self.task.seed}: the loss is {self.total.item()} by step {self.step} "
            f"(epoch {epoch}); training diverged; "
            f"lower the rate of {self.task.preset.rate:g} for all formulas alike"
        )

    def _row(self) -> dict[str, Any]:
        task, preset = self.task, self.task.preset
        family = preset.family
        share = min(1.0, preset.watched / len(task.train)) if preset.watched else 1.0
        train = task.train.part(share, 0).to(task.device)  # of each class, in whatever order they come
        test = task.test.spread(preset.watched).to(task.device)
        row: dict[str, Any] = {
            "epoch": self.step // task.per_epoch,
            "step": self.step,
            "loss": round(self.total.item() / task.per_epoch, 5),
            "rate": rate_at(preset, self.step - 1, task.steps),
            "images_per_second": round(task.per_epoch * preset.batch / self.seconds, 1),
            "train_accuracy": accuracy(self.model, family, train, preset.bfloat16),
            "test_accuracy": accuracy(self.model, family, test, preset.bfloat16),
            "probe": watch(self.model, family.normalise(task.test.spread(PROBES).pixels.to(task.device))),
        }
        with self.averaged():
            row["train_accuracy_ema"] = accuracy(self.model, family, train, preset.bfloat16)
            row["test_accuracy_ema"] = accuracy(self.model, family, test, preset.bfloat16)
        return row

    def weights(self) -> dict[str, Tensor]:
        """Return the averaged weights as the architecture names them."""
        model = copy.deepcopy(self.model)
        model.load_state_dict(self.average)
        self.task.stabiliser.finish(model)
        return model.state_dict()

    @contextmanager
    def averaged(self) -> Iterator[nn.Module]:
        """Put the averaged weights into the model, while inside."""
        before = {name: value.clone() for name, value in self.model.state_dict().items()}
        self.model.load_state_dict(self.average)
        try:
            yield self.model
        finally:
            self.model.load_state_dict(before)


@torch.no_grad()
def accuracy(model: nn.Module, family: Family, images: Images, bfloat16: bool = False) -> float:
    """Return top-1 as a fraction. bfloat16: under autocast, which is faster."""
    model.eval()
    right, kind = 0, images.pixels.device.type
    size = SCORED.get(kind, 2500)
    with torch.autocast(kind, torch.bfloat16, enabled=bfloat16):
        for pixels, labels in zip(images.pixels.split(size), images.labels.split(size), strict=True):
            right += int((model(family.normalise(pixels)).argmax(1) == labels).sum())
    return right / len(images)
