"""Train the tiny ViTs that travel with RobustKit on its embedded set of shapes.

    python scripts/train_embedded.py --attention standard
    python scripts/train_embedded.py --attention quest

The recipe is the same for every attention formula. One CPU thread, so that the same machine gives the same weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import time
from pathlib import Path

import numpy as np
import timm
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from robustkit.attention import set_attention
from robustkit.data import open_dataset
from robustkit.embedded import shapes

ARCH = "vit_tiny_patch16_224"
ARCH_KWARGS = {"img_size": 64, "patch_size": 8, "embed_dim": 96, "depth": 4, "num_heads": 3}
MEAN = STD = (0.5, 0.5, 0.5)
BATCH, RATE, DECAY, SMOOTHING, WARM_UP = 64, 1e-3, 0.05, 0.1, 0.05


def load(split: str, count: int | None = None) -> tuple[Tensor, Tensor]:
    """(N, 3, 64, 64) uint8 pixels and (N,) labels of a split."""
    count = count or shapes.SIZES[split]
    pixels = np.stack([shapes.render(split, index).pixels for index in range(count)])
    labels = torch.tensor([shapes.label(index) for index in range(count)])
    return torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(), labels


def normalise(pixels: Tensor) -> Tensor:
    """uint8 pixels to the model's input."""
    return (pixels.float() / 255 - MEAN[0]) / STD[0]


def augment(pixels: Tensor, random: torch.Generator) -> Tensor:
    """The eight symmetries of the square and the six orders of the colours, one of each for every image."""
    symmetry = torch.randint(8, (len(pixels),), generator=random)
    colours = torch.rand(len(pixels), 3, generator=random).argsort(1)
    pixels = pixels[torch.arange(len(pixels))[:, None], colours]
    out = torch.empty_like(pixels)
    for kind in range(8):
        chosen = symmetry == kind
        turned = torch.rot90(pixels[chosen], kind % 4, (2, 3))
        out[chosen] = turned.flip(3) if kind >= 4 else turned
    return out


@torch.inference_mode()
def accuracy(model: nn.Module, pixels: Tensor, labels: Tensor) -> float:
    """Top-1 as a fraction."""
    model.eval()
    right = sum(
        int((model(normalise(x)).argmax(1) == y).sum())
        for x, y in zip(pixels.split(250), labels.split(250), strict=True)
    )
    return right / len(labels)


def build(attention: str, seed: int) -> nn.Module:
    """A freshly initialised model with that formula."""
    torch.manual_seed(seed)
    model = timm.create_model(ARCH, num_classes=len(shapes.CLASSES), **ARCH_KWARGS)
    return set_attention(model, attention)


def train(attention: str, epochs: int, seed: int, count: int | None) -> tuple[nn.Module, float]:
    """Train one model, and return it with half-precision weights and its accuracy on the test split."""
    model = build(attention, seed)
    pixels, labels = load("train", count)
    test = load("test")
    decayed = [p for p in model.parameters() if p.ndim > 1]
    others = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": DECAY}, {"params": others, "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=RATE)
    steps = epochs * (len(pixels) // BATCH)
    warm_up = WARM_UP * steps
    rates = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda s: min((s + 1) / warm_up, 0.5 * (1 + math.cos(math.pi * min(s / steps, 1))))
    )
    criterion = nn.CrossEntropyLoss(label_smoothing=SMOOTHING)
    random = torch.Generator().manual_seed(seed)
    start = time.monotonic()
    for epoch in range(epochs):
        model.train()
        total = 0.0
        order = torch.randperm(len(pixels), generator=random)
        batches = order[: len(order) // BATCH * BATCH].split(BATCH)
        for batch in batches:
            loss = criterion(model(normalise(augment(pixels[batch], random))), labels[batch])
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            rates.step()
            total += loss.item()
        minutes = (time.monotonic() - start) / 60
        print(
            f"{attention} epoch {epoch + 1}/{epochs}: loss {total / len(batches):.3f}, "
            f"test accuracy {accuracy(model, *test):.3f}, {minutes:.1f} min",
            flush=True,
        )
    model.half().float()
    return model, accuracy(model, *test)


def save(model: nn.Module, attention: str, epochs: int, seed: int, score: float, folder: Path) -> Path:
    """Write the checkpoint with everything that is needed to load, judge and repeat it."""
    recipe = (
        f"AdamW, rate {RATE}, weight decay {DECAY}, batch {BATCH}, cosine with {WARM_UP:.0%} warm-up, label smoothing "
        f"{SMOOTHING}, gradient norm 1, flips, quarter turns and colour orders; scripts/train_embedded.py"
    )
    metadata = {
        "arch": ARCH,
        "arch_kwargs": json.dumps(ARCH_KWARGS),
        "attention": attention,
        "num_classes": str(len(shapes.CLASSES)),
        "class_names": json.dumps(shapes.CLASSES),
        "mean": json.dumps(MEAN),
        "std": json.dumps(STD),
        "input_size": json.dumps([shapes.SIDE, shapes.SIDE]),
        "interpolation": "bicubic",
        "crop_pct": "1.0",
        "crop_mode": "center",
        "data": "embedded:shapes-train",
        "data_digest": open_dataset("embedded:shapes-train").digest(),
        "recipe": recipe,
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
    parser.add_argument("--epochs", type=int, default=12)
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
