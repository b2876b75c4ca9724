"""Train the tiny ViTs that travel with RobustKit on its embedded set of shapes.

    python scripts/train_embedded.py --attention standard
    python scripts/train_embedded.py --attention quest

The recipe is the same for every attention formula. One CPU thread, so that the same machine gives the same weights.
Position embeddings start as sines and the patch embedding as a whitening of real patches, which saves a tiny ViT on few
images some epochs; the architecture is timm's own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import timm
import torch
from safetensors.torch import save_file
from timm.layers import build_sincos2d_pos_embed
from torch import Tensor, nn
from torch.nn import functional

from robustkit.attention import set_attention
from robustkit.data import open_dataset
from robustkit.embedded import shapes

ARCH = "vit_tiny_patch16_224"
ARCH_KWARGS = {"img_size": 64, "patch_size": 8, "embed_dim": 96, "depth": 4, "num_heads": 3}
PATCH, WIDTH, CLASSES = 8, 96, len(shapes.CLASSES)
GRID = shapes.SIDE // PATCH
MEAN = STD = (0.5, 0.5, 0.5)
BATCH, RATE, DECAY, WARM_UP = 64, 1.5e-3, 0.05, 0.1
RECIPE = (
    f"AdamW, rate {RATE}, weight decay {DECAY}, batch {BATCH}, cosine with {WARM_UP:.0%} warm-up, gradient norm 1, "
    "mirror images, whitened patch embedding, sine positions; scripts/train_embedded.py"
)


@dataclass(frozen=True)
class Split:
    """pixels: (N, 3, 64, 64) uint8. labels: (N,)."""

    pixels: Tensor
    labels: Tensor


def load(split: str, count: int | None = None) -> Split:
    """Make the first `count` samples of a split, or all of it."""
    samples = [shapes.render(split, index) for index in range(count or shapes.SIZES[split])]
    pixels = torch.from_numpy(np.stack([sample.pixels for sample in samples]))
    return Split(pixels.permute(0, 3, 1, 2).contiguous(), torch.tensor([sample.label for sample in samples]))


def normalise(pixels: Tensor) -> Tensor:
    """0 … 255 to the model's input."""
    return (pixels.float() / 255 - MEAN[0]) / STD[0]


def patches(images: Tensor) -> Tensor:
    """(N, C, 64, 64) to (N, 64 patches, C * 64)."""
    return functional.unfold(images, PATCH, stride=PATCH).transpose(1, 2)


def build(attention: str, seed: int, examples: Tensor) -> nn.Module:
    """A freshly initialised model with that formula."""
    torch.manual_seed(seed)
    model = timm.create_model(ARCH, num_classes=CLASSES, **ARCH_KWARGS)
    flat = patches(normalise(examples)).flatten(0, 1)
    values, vectors = torch.linalg.eigh(flat.T @ flat / len(flat))
    whitening = vectors / (values + 1e-2).sqrt() / 2
    with torch.no_grad():
        model.patch_embed.proj.weight.copy_(whitening.flip(1)[:, :WIDTH].T.reshape(WIDTH, 3, PATCH, PATCH))
        model.pos_embed[:, 1:] = build_sincos2d_pos_embed([GRID, GRID], dim=WIDTH) / 2
    return set_attention(model, attention)


@torch.inference_mode()
def accuracy(model: nn.Module, split: Split) -> float:
    """Top-1 as a fraction."""
    model.eval()
    pairs = zip(split.pixels.split(250), split.labels.split(250), strict=True)
    return sum(int((model(normalise(x)).argmax(1) == y).sum()) for x, y in pairs) / len(split.labels)


def train(attention: str, epochs: int, seed: int, count: int | None) -> tuple[nn.Module, float]:
    """Train one model, and return it with its weights rounded to half precision, and its accuracy on the test split."""
    data, test = load("train", count), load("test")
    model = build(attention, seed, data.pixels[:1000])
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, weight_decay=DECAY)
    steps = epochs * (len(data.labels) // BATCH)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda s: min((s + 1) / (WARM_UP * steps), 0.5 * (1 + math.cos(math.pi * min(s / steps, 1))))
    )
    random = torch.Generator().manual_seed(seed)
    start = time.monotonic()
    for epoch in range(epochs):
        model.train()
        total = 0.0
        order = torch.randperm(len(data.labels), generator=random)
        for batch in order[: len(order) // BATCH * BATCH].split(BATCH):
            images = data.pixels[batch]
            mirror = torch.rand(BATCH, generator=random) < 0.5
            images = torch.where(mirror[:, None, None, None], images.flip(3), images)
            loss = functional.cross_entropy(model(normalise(images)), data.labels[batch])
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            total += loss.item()
        print(
            f"{attention} epoch {epoch + 1}/{epochs}: loss {total * epochs / steps:.3f}, test accuracy "
            f"{accuracy(model, test):.3f}, {(time.monotonic() - start) / 60:.1f} min",
            flush=True,
        )
    model.half().float()
    return model, accuracy(model, test)


def save(model: nn.Module, attention: str, epochs: int, seed: int, score: float, folder: Path) -> Path:
    """Write the checkpoint with everything that is needed to load, judge and repeat it."""
    metadata = {
        "arch": ARCH,
        "arch_kwargs": json.dumps(ARCH_KWARGS),
        "attention": attention,
        "num_classes": str(CLASSES),
        "class_names": json.dumps(shapes.CLASSES),
        "mean": json.dumps(MEAN),
        "std": json.dumps(STD),
        "input_size": json.dumps([shapes.SIDE, shapes.SIDE]),
        "interpolation": "bicubic",
        "crop_pct": "1.0",
        "crop_mode": "center",
        "data": "embedded:shapes-train",
        "data_digest": open_dataset("embedded:shapes-train").digest(),
        "recipe": RECIPE,
        "seed": str(seed),
        "epochs": str(epochs),
        "accuracy": f"{score:.4f}",
        "license": "Apache-2.0",
    }
    path = folder / f"shapes-vit-{attention}.safetensors"
    save_file({name: value.half().contiguous() for name, value in model.state_dict().items()}, path, metadata)
    listing = folder / "checkpoints.json"
    known = json.loads(listing.read_text("utf-8")) if listing.exists() else {}
    known[path.stem] = {
        "file": path.name,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "attention": attention,
        "data": "embedded:shapes",
        "accuracy": round(score, 4),
    }
    listing.write_text(json.dumps(dict(sorted(known.items())), indent=2) + "\n", "utf-8")
    return path


def main() -> None:
    """Parse the options, train, save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", default="standard", help="a formula of robustkit.attention")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--count", type=int, help="train on the first COUNT images only, for a trial")
    parser.add_argument("--threads", type=int, default=1, help="other values give other last bits")
    parser.add_argument("--out", type=Path, default=Path(shapes.__file__).parent)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    options.out.mkdir(parents=True, exist_ok=True)
    model, score = train(options.attention, options.epochs, options.seed, options.count)
    path = save(model, options.attention, options.epochs, options.seed, score, options.out)
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB, test accuracy {score:.3f}")


if __name__ == "__main__":
    main()
