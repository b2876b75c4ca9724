"""Train a small graph transformer: `python train.py superpixels --attention quest --seed 0 --images TRAIN.zip`.

Writes FOLDER/superpixels-quest-0.safetensors, and a line for each epoch into the .jsonl next to it. `cluster` needs no
images. One core trains either in about 20 seconds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

import torch
from cluster import COMMUNITIES, CommunityFinder, as_graph, generate
from safetensors.torch import save_file
from superpixels import build, graph
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torchvision.transforms.functional import pil_to_tensor

from robustkit.attention import set_attention
from robustkit.data.dataset import open_dataset

TASKS = ("superpixels", "cluster")
EPOCHS = 6
IMAGES, GRAPHS, BATCH, DECAY = 1500, 500, 32, 1e-4
RATE = {"superpixels": 2e-3, "cluster": 5e-3}
TRAINING_SEED = 1000
"""Of the graphs of CLUSTER; those of the test have the seed 0."""


def superpixel_graphs(images: Path) -> list[Data]:
    """Return the graphs of IMAGES images of a folder or zip of classes, all classes alike."""
    dataset = open_dataset(images).select(limit=IMAGES)
    made = []
    for sample in dataset.samples:
        each = graph(pil_to_tensor(dataset.image(sample)) / 255)
        each.y = torch.tensor([sample.label])
        made.append(each)
    return made


def cluster_graphs() -> list[Data]:
    """Return GRAPHS graphs of CLUSTER."""
    made = []
    for place in range(GRAPHS):
        tensor, truth = generate(TRAINING_SEED, place)
        each = as_graph(tensor)
        each.y = truth[truth >= 0]
        made.append(each)
    return made


def mirrored(batch: Batch, stream: torch.Generator) -> Batch:
    """Return superpixels of images, half of which are mirrored."""
    flips = torch.rand(batch.num_graphs, generator=stream)[batch.batch] < 0.5
    batch.x[:, 3] = torch.where(flips, 1 - batch.x[:, 3], batch.x[:, 3])
    return batch


def renamed(batch: Batch, stream: torch.Generator) -> Batch:
    """Return graphs whose communities have each other's names, which mean nothing."""
    names = torch.rand(batch.num_graphs, COMMUNITIES, generator=stream).argsort(dim=1)[batch.batch]  # (nodes, 6)
    batch.x[:, 1:] = batch.x[:, 1:].gather(1, names.argsort(dim=1))
    batch.y = names.gather(1, batch.y[:, None])[:, 0]
    return batch


def train(task: str, attention: str, seed: int, data: Sequence[Data], log: Path) -> nn.Module:
    """Return the trained network. AdamW, one cycle of the rate; seed: of weights, order and augmentation."""
    torch.manual_seed(seed)
    whole = set_attention(build() if task == "superpixels" else CommunityFinder(), attention)
    stream, change = torch.Generator().manual_seed(seed), mirrored if task == "superpixels" else renamed
    optimiser = torch.optim.AdamW(whole.parameters(), lr=RATE[task], weight_decay=DECAY)
    steps = EPOCHS * -(-len(data) // BATCH)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, RATE[task], total_steps=steps)
    began = time.monotonic()
    with log.open("w", encoding="utf-8") as lines:
        for epoch in range(EPOCHS):
            losses, right = [], []
            order = torch.randperm(len(data), generator=stream)
            for places in order.split(BATCH):
                batch = change(Batch.from_data_list([data[place] for place in places]), stream)
                logits: Tensor = whole.graphs(batch)
                loss = nn.functional.cross_entropy(logits, batch.y)
                optimiser.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(whole.parameters(), 1.0)
                optimiser.step()
                schedule.step()
                losses.append(loss.item())
                right.append((logits.argmax(dim=1) == batch.y).float().mean().item())
            means = {"loss": sum(losses) / len(losses), "accuracy": sum(right) / len(right)}
            rounded = {name: round(value, 4) for name, value in means.items()}
            seconds = round(time.monotonic() - began, 1)
            lines.write(json.dumps({"epoch": epoch + 1, **rounded, "seconds": seconds}) + "\n")
            lines.flush()
    return whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--attention", nargs="+", default=["standard", "quest"])
    parser.add_argument("--seed", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--images", type=Path, help="CIFAR-10's training images, a folder or zip of classes")
    parser.add_argument("--out", type=Path, default=Path("runs/graphs"))
    asked = parser.parse_args()
    if asked.task == "superpixels" and asked.images is None:
        parser.error("superpixels are of images; expected --images, a folder or zip of classes")
    asked.out.mkdir(parents=True, exist_ok=True)
    data = superpixel_graphs(asked.images) if asked.task == "superpixels" else cluster_graphs()
    for seed in asked.seed:
        for attention in asked.attention:
            place = asked.out / f"{asked.task}-{attention}-{seed}"
            network = train(asked.task, attention, seed, data, place.with_suffix(".jsonl"))
            said = {"attention": attention, "mean": "[0, 0, 0]", "std": "[1, 1, 1]"}
            save_file(network.state_dict(), place.with_suffix(".safetensors"), said)


if __name__ == "__main__":
    main()
