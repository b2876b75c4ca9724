"""Train the shipped zero-shot checkpoint: an image tower and a text tower, on captions made of what images show.

    python -m scripts.zoo.train_clip --train CIFAR10-TRAIN --test CIFAR10-TEST --work DIR --out robustkit/embedded

Images are generated shapes (--shapes of them, by further seeds of the training split) and CIFAR-10, resized to 64 x 64
pixels. A caption states some of what is known of an image: the class, and of shapes the colour, the pattern and the
ground. So which captions of a batch are true of which image is known, too, and the loss is the cross-entropy with that
table, over images and over captions. The image tower starts from zoo:shapes-vit-standard. About an hour on one thread.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing import Pool
from pathlib import Path
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from safetensors.torch import save as to_bytes
from torch import Tensor, nn
from torch.nn import functional

from robustkit.common.files import write_whole
from robustkit.data import shapes
from robustkit.data.class_names import CIFAR10
from robustkit.models.checkpoint import read
from robustkit.models.specs import embedded_file
from robustkit.models.zero_shot import SIMPLE, Prompts, WordTower, ZeroShot

from . import families
from .data import Images, cached

COLOURS = {
    "red": (225, 45, 45),
    "cyan": (60, 205, 225),
    "white": (235, 235, 235),
    "blue": (45, 90, 225),
    "pink": (235, 110, 190),
    "orange": (235, 140, 35),
    "purple": (145, 60, 210),
    "green": (40, 170, 70),
    "yellow": (230, 225, 60),
    "black": (25, 25, 25),
}
PATTERNS = ("plain", "striped", "checked", "dotted", "shaded", "patchy")
GROUNDS = {
    "astronaut": "an astronaut",
    "brick": "a brick wall",
    "chelsea": "a cat",
    "coffee": "a cup of coffee",
    "grass": "grass",
    "gravel": "gravel",
    "motorcycle_left": "a motorcycle",
}
FRAMES = ("{}", "a {}", "a photo of a {}", "a photo of the {}", "a picture of a {}", "an image of a {}", "this is a {}")
TEXT = {"width": 96, "depth": 2, "heads": 3, "length": 16, "features": 96}
Facts = tuple[str, str, str, str]  # class, colour, pattern, ground; empty where unknown


def facts_of(index: int, seed: int) -> Facts:
    """Return what sample `index` of the training split shows."""
    draw, name = shapes.draws_of("train", index, seed), shapes.CLASSES[shapes.class_of(index)]
    first, _ = shapes.colours_of(draw, name, shapes.ground_of(draw))
    near = min(COLOURS, key=lambda colour: float(np.abs(first - np.array(COLOURS[colour])).sum()))
    ground = shapes.PHOTOGRAPHS[draw("photo", 0, len(shapes.PHOTOGRAPHS) - 1)]
    return name, near, PATTERNS[draw("texture", 0, 5)], GROUNDS[ground]


def caption(facts: Facts, draw: random.Random) -> tuple[str, Facts]:
    """Return a sentence, and those of the facts that it states."""
    name, colour, pattern, ground = facts
    said = [name, colour * (draw.random() < 0.4), pattern * (draw.random() < 0.2), ground * (draw.random() < 0.2)]
    words = " ".join(filter(None, (said[1], said[2], said[0])))
    sentence = draw.choice(FRAMES).format(words) + (f" on {said[3]}" if said[3] else "")
    return sentence, (said[0], said[1], said[2], said[3])


def truth(shown: Sequence[Facts], said: Sequence[Facts]) -> Tensor:
    """Return (images, captions): whether all that a caption states is so of an image."""
    table = [[all(not s or s == f for s, f in zip(claim, facts, strict=True)) for claim in said] for facts in shown]
    return torch.tensor(table, dtype=torch.float32)


def tower() -> nn.Module:
    start = read(embedded_file("shapes-vit-standard"))
    network = timm.create_model(start.metadata["arch"], num_classes=TEXT["features"], **start.metadata["arch_kwargs"])
    own = {name: tensor.float() for name, tensor in start.tensors.items() if not name.startswith("head.")}
    network.load_state_dict(own, strict=False)
    return network


def normalised(pixels: Tensor) -> Tensor:
    return pixels.float() / 127.5 - 1


def moved(images: Tensor) -> Tensor:
    """Return a batch (B, 3, 64, 64), half of it mirrored, each shifted by up to 4 pixels."""
    images = torch.where(torch.rand(len(images), 1, 1, 1) < 0.5, images.flip(3), images)
    padded = functional.pad(images, (4, 4, 4, 4), mode="reflect")
    at = torch.randint(0, 9, (len(images), 2)).tolist()
    return torch.stack([image[:, y : y + 64, x : x + 64] for image, (y, x) in zip(padded, at, strict=True)])


@torch.no_grad()
def accuracy(image: nn.Module, text: WordTower, scale: float, data: Images) -> float:
    rows = Prompts(data.class_names, SIMPLE, "", "").rows(text.eval().encode)
    model = ZeroShot(image.eval(), rows, scale)
    found = torch.cat([model(normalised(part)).argmax(1) for part in data.pixels.split(200)])
    image.train()
    text.train()
    return float((found == data.labels).float().mean())


def made_shapes(count: int, work: Path) -> Tensor:
    """Return (N, 3, 64, 64) shapes of further seeds, kept in the work folder."""
    kept = work / f"shapes-{count}.safetensors"
    if not kept.is_file():
        with Pool(1) as pool:
            made = pool.map(pixels_of, [(n % 10_000, n // 10_000) for n in range(count)], chunksize=200)
        save_file({"pixels": torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2).contiguous()}, kept)
    return load_file(kept)["pixels"]


def pixels_of(place: tuple[int, int]) -> np.ndarray[Any, Any]:
    return shapes.render("train", *place).pixels


def enlarged(images: Images) -> Images:
    """Return images of 32 x 32 pixels at 64 x 64, as Pillow makes them."""
    pictures = images.pixels.permute(0, 2, 3, 1).numpy()
    large = [np.asarray(Image.fromarray(one).resize((64, 64), Image.Resampling.BICUBIC)) for one in pictures]
    return replace(images, pixels=torch.from_numpy(np.stack(large)).permute(0, 3, 1, 2).contiguous())


def train(options: argparse.Namespace) -> None:
    torch.manual_seed(options.seed)
    draw = random.Random(options.seed)
    options.work.mkdir(parents=True, exist_ok=True)
    cifar, seen = (
        enlarged(cached(spec, split, None, options.work, families.CIFAR10, CIFAR10))
        for spec, split in ((options.train, "train"), (options.test, "test"))
    )
    drawn = made_shapes(options.shapes, options.work)
    of_shapes = cached("embedded:shapes", "test", None, options.work, families.SHAPES)
    facts = [facts_of(n % 10_000, n // 10_000) for n in range(len(drawn))]
    facts += [(CIFAR10[label], "", "", "") for label in cifar.labels.tolist()]
    pixels = torch.cat((drawn, cifar.pixels))
    image, text = tower(), WordTower(vocabulary(), **TEXT)
    scale = nn.Parameter(torch.tensor(math.log(10.0)))
    weights = [*image.parameters(), *text.parameters()]
    groups = [{"params": weights, "weight_decay": 0.05}, {"params": [scale], "weight_decay": 0.0}]
    optimiser = torch.optim.AdamW(groups, lr=options.rate)
    steps = options.epochs * (len(pixels) // options.batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, options.rate, total_steps=steps, pct_start=0.05)
    begun = time.monotonic()
    for epoch in range(options.epochs):
        order, total = torch.randperm(len(pixels)), 0.0
        batches = order.split(options.batch)[: len(pixels) // options.batch]
        for chosen in batches:
            shown = [facts[n] for n in chosen.tolist()]
            said = [caption(each, draw) for each in shown]
            table = truth(shown, [claim for _, claim in said])
            of_image = functional.normalize(image(normalised(moved(pixels[chosen]))), dim=-1)
            of_text = functional.normalize(text.encode([sentence for sentence, _ in said]), dim=-1)
            logits = scale.exp().clamp(max=100) * of_image @ of_text.T
            by_image = functional.cross_entropy(logits, table / table.sum(1, keepdim=True))
            by_text = functional.cross_entropy(logits.T, table.T / table.T.sum(1, keepdim=True))
            loss = (by_image + by_text) / 2
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(weights, 1.0)
            optimiser.step()
            schedule.step()
            total += float(loss)
        by = float(scale.exp().clamp(max=100))
        scores = {data.name: accuracy(image, text, by, data) for data in (of_shapes, seen)}
        row = {"epoch": epoch + 1, "loss": total / len(batches), "scale": by, **scores, "s": time.monotonic() - begun}
        print(json.dumps(row), flush=True)
        with (options.work / "log.jsonl").open("a") as log:
            log.write(json.dumps(row) + "\n")
    write(options, image, text, by, (of_shapes, seen), cifar)


def vocabulary() -> list[str]:
    names = (*shapes.CLASSES, *CIFAR10, *COLOURS, *PATTERNS, *GROUNDS.values(), *FRAMES, "on")
    return sorted({word for name in names for word in name.replace("{}", "").split()})


def write(
    options: argparse.Namespace, image: nn.Module, text: WordTower, scale: float, tests: Sequence[Images], cifar: Images
) -> None:
    """Write both towers in half precision with what is needed to load and judge them, and the entry of the zoo."""
    towers = {"image": image, "text": text}
    tensors = {f"{name}.{key}": value for name, one in towers.items() for key, value in one.state_dict().items()}
    tensors = {name: value.half().contiguous() for name, value in tensors.items()}
    start = read(embedded_file("shapes-vit-standard"))
    score, other = (accuracy(image, text, scale, data) for data in tests)
    said: dict[str, Any] = {
        "task": "zero-shot",
        "arch": start.metadata["arch"],
        "arch_kwargs": {**start.metadata["arch_kwargs"], "num_classes": TEXT["features"]},
        "attention": "standard",
        "text_tower": {"words": vocabulary(), **TEXT},
        "logit_scale": scale,
        "class_names": list(shapes.CLASSES),
        **{name: start.metadata[name] for name in ("mean", "std", "input_size", "interpolation", "crop_pct")},
        "crop_mode": "center",
        "data": f"embedded:shapes: {options.shapes} drawn images; {cifar.name}: {len(cifar)} images at 64x64",
        "test_data": f"embedded:shapes: {len(tests[0])} test images",
        "accuracy": f"{score:.4f}",
        "cifar10_accuracy": f"{other:.4f}",
        "recipe": f"{options.epochs} epochs, batch {options.batch}, AdamW, rate {options.rate:g}, weight decay 0.05; "
        "scripts/zoo/train_clip.py",
        "seed": str(options.seed),
        "epochs": str(options.epochs),
        "license": "Apache-2.0",
    }
    metadata = {name: value if isinstance(value, str) else json.dumps(value) for name, value in said.items()}
    data = to_bytes(tensors, metadata)
    write_whole(options.out / "shapes-clip.safetensors", data)
    listing = options.out / "checkpoints.json"
    entries = json.loads(listing.read_text("utf-8"))
    digest = hashlib.sha256(data).hexdigest()
    entry = {"file": "shapes-clip.safetensors", "sha256": digest, "task": "zero-shot"}
    entries["shapes-clip"] = entry | {"attention": "standard", "accuracy": round(score, 4)}
    write_whole(listing, (json.dumps(dict(sorted(entries.items())), indent=2) + "\n").encode())


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the options and train. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", required=True, help="CIFAR-10's training images")
    parser.add_argument("--test", required=True, help="its test images")
    parser.add_argument("--work", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--shapes", type=int, default=30_000, help="shapes that are drawn")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    train(options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
