"""How a zoo model is trained: the presets, and every number that follows from them.

The recipe is DeiT's (Touvron 2021) in small: AdamW, warm-up and cosine, label smoothing, mixup and cutmix, drop path,
an average of the weights. It is the same for every attention formula and every seed. A variant of a preset has another
number of epochs, rate, part of the training images, or bfloat16, and its models' names say so.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Protocol

import torch
from timm.layers import PatchEmbed, build_sincos2d_pos_embed
from torch import Tensor, nn
from torch.nn import functional

from .families import CIFAR10, CROSS, SHAPES, Family


@dataclass(frozen=True)
class Preset:
    """All that a run's weights depend on, in addition to formula, seed and data.

    rate: the highest learning rate. warm_up: the share of steps in which it rises from 0. floor: the rate at the end.
    ema_horizon: over which share of all steps the weights are averaged.
    mix_prob: the share of batches that mixup or cutmix (even odds) blends. randaugment: timm's text for it, or ''.
    fraction: of the training images of each class, drawn by the seed; an epoch is as much shorter.
    train_images, test_images: how many are used, None for all; watched: how many of each are scored every epoch.
    save_every: minutes between two states of a run, apart from the one at each epoch's end. family: what is trained.
    """

    name: str
    epochs: int
    batch: int
    rate: float
    warm_up: float
    floor: float = 1e-5
    weight_decay: float = 0.05
    beta_1: float = 0.9
    beta_2: float = 0.999
    clip: float = 1.0
    smoothing: float = 0.1
    drop_path: float = 0.1
    ema_horizon: float = 0.02
    mix_prob: float = 0.0
    mixup: float = 0.8
    cutmix: float = 1.0
    randaugment: str = ""
    padding: int = 4
    bfloat16: bool = False
    compile: bool = False
    fraction: float = 1.0
    train_images: int | None = None
    test_images: int | None = None
    watched: int | None = None
    save_every: float = 3.0
    family: Family = CIFAR10

    def steps_per_epoch(self, images: int) -> int:
        """Return the number of whole batches; the odd images of an epoch are left out, others in each."""
        return images // self.batch

    def text(self) -> str:
        """Return the recipe in one line, for people and as the identity of a run."""
        blend = f"mixup {self.mixup} or cutmix {self.cutmix} in {self.mix_prob:.0%} of batches"
        parts = [
            f"preset {self.name}: {self.epochs} epochs, batch {self.batch}",
            f"AdamW ({self.beta_1}, {self.beta_2}), rate {self.rate:g}, {self.warm_up:.0%} warm-up",
            f"cosine to {self.floor:g}, weight decay {self.weight_decay:g}, gradient norm {self.clip:g}",
            f"label smoothing {self.smoothing:g}, drop path {self.drop_path:g}",
            *([f"{self.fraction:.0%} of the training images"] if self.fraction != 1 else []),
            f"random crop with padding {self.padding}, mirror images",
            *([blend] if self.mix_prob else []),
            *([f"RandAugment {self.randaugment}"] if self.randaugment else []),
            f"average of the weights over {self.ema_horizon:.1%} of the steps",
            *(["whitened patch embedding, sine positions"] if self.family.arch == Family.arch else []),
            "bfloat16 autocast" if self.bfloat16 else "float32",
        ]
        return ", ".join(parts) + "; scripts/zoo/train.py"

    def variant(self) -> str:
        """Return how it differs from the preset of its name, for the names of its models; '' where it does not."""
        base = PRESETS.get(self.name, self)
        fields = ("epochs", "rate", "fraction")
        parts = ["-bfloat16"] if self.bfloat16 and not base.bfloat16 else []
        parts += [f"-{name}-{getattr(self, name):g}" for name in fields if getattr(self, name) != getattr(base, name)]
        return "".join(parts)

    def identity(self) -> str:
        """Return every field that the weights depend on, as JSON."""
        fields = asdict(self)
        for silent in ("compile", "save_every", "watched"):
            del fields[silent]
        return json.dumps(fields)


CPU = Preset(
    "cpu",
    epochs=14,
    batch=64,
    rate=1e-3,
    warm_up=0.1,
    mix_prob=0.25,
    bfloat16=True,
    compile=True,
    watched=2000,
)
GPU = replace(
    CPU,
    name="gpu",
    epochs=200,
    batch=512,
    warm_up=0.05,
    mix_prob=0.5,
    randaugment="rand-m9-n2-mstd0.5-inc1",
    watched=None,
)
ON_SHAPES = replace(CPU, name="shapes", epochs=12, bfloat16=False, compile=False, watched=1000, family=SHAPES)
PRESETS = {
    preset.name: preset
    for preset in (
        CPU,
        ON_SHAPES,
        replace(ON_SHAPES, name="shapes-crossvit", family=CROSS),
        GPU,
        Preset("smoke", epochs=4, batch=32, rate=1e-3, warm_up=0.25, mix_prob=0.25, train_images=320, test_images=320),
    )
}


def seed_of(*parts: object) -> int:
    """Return 63 bits that are a function of the parts: every draw names what it is for, so a run resumes without a
    state.
    """
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


class Schedule(Protocol):
    """What `rate_at` needs to know: the highest rate, the share of steps until it is reached, and the last rate."""

    @property
    def rate(self) -> float: ...
    @property
    def warm_up(self) -> float: ...
    @property
    def floor(self) -> float: ...


def rate_at(preset: Schedule, step: int, steps: int) -> float:
    """Return the learning rate of step 0 … steps - 1: linear warm-up from rate / n in n steps, then a cosine to the
    floor.
    """
    warm = max(1, round(preset.warm_up * steps))
    if step < warm:
        return preset.rate * (step + 1) / warm
    turn = (step - warm) / max(1, steps - 1 - warm)
    return preset.floor + (preset.rate - preset.floor) * (1 + math.cos(math.pi * turn)) / 2


def final_decay(preset: Preset, steps: int) -> float:
    """Return the decay of the weights' average once it is warm."""
    return math.exp(-1 / max(1.0, preset.ema_horizon * steps))


def decay_at(preset: Preset, step: int, steps: int) -> float:
    """Return the decay after step 0 …, which grows with the number of steps seen, so that the first weights do not
    linger.
    """
    return min((1 + step) / (10 + step), final_decay(preset, steps))


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Split parameters: matrices decay; biases, norms, scales of the formulas, positions and the CLS token do not."""
    decayed, free = [], []
    for name, parameter in model.named_parameters():
        special = (
            parameter.ndim < 2
            or name in ("pos_embed", "cls_token", "positions")
            or name.endswith(("q_scale", "k_scale"))
        )
        (free if special else decayed).append(parameter)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": free, "weight_decay": 0.0}]


def build(attention: str, preset: Preset, seed: int, examples: Tensor) -> nn.Module:
    """Build a model at the start of training.

    examples: (N, 3, side, side) uint8; runs take 2000 in equal steps, which on shapes are of two classes. The patch
    embedding of a ViT starts as a turned whitening of their patches and the positions as sines, which saves a small
    one on few images some epochs.
    """
    family = preset.family
    torch.manual_seed(seed_of(seed, "weights"))
    model = family.empty(attention, preset.drop_path)
    if isinstance(model.patch_embed, PatchEmbed):
        _whiten(model, family, examples)
    return model


@torch.no_grad()
def _whiten(model: nn.Module, family: Family, examples: Tensor) -> None:
    patches = functional.unfold(family.normalise(examples), family.patch, stride=family.patch)
    flat = patches.transpose(1, 2).flatten(0, 1).double()
    values, vectors = torch.linalg.eigh(flat.T @ flat / len(flat))  # in rising order: the weakest first
    whitening = (vectors / (values + 1e-2).sqrt()).T.float()[-family.width :]
    turn = nn.init.orthogonal_(torch.empty(family.width, len(whitening)))
    grid = family.side // family.patch
    model.patch_embed.proj.weight.copy_((turn @ whitening).reshape(family.width, 3, family.patch, family.patch))
    model.patch_embed.proj.bias.zero_()
    model.pos_embed[:, 1:] = build_sincos2d_pos_embed([grid, grid], dim=family.width) / 2
