"""Train the QUEST paper's Transformer for time series: formulas and seeds, one recipe.

    python -m scripts.studies.series.train --train X_TRAIN.ts --test X_TEST.ts --attention standard,quest --seeds 0-4
        --out DIR

The recipe is that of QUEST, A.5.6, and of the Time Series Library, whose setup it takes: RAdam at 1e-3, 16 cases a
batch, 100 epochs, gradients of length 4 at most, channels standardised over all training cases. Two choices differ.
Every case of the training file is learned from and nothing is held out, so there is nothing to stop early by: what is
saved is the state after the last epoch, and no figure chooses it. The paper stops after 10 epochs without a better
accuracy, which that library then measured on the test file; to show what that gives, the accuracy on the test file is
logged at every tenth epoch, and nothing else is done with it.

Each run writes NAME.safetensors and NAME.json, which is its log; a run whose log is there is left out. On one thread
the same command gives the same bytes.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils import clip_grad_norm_

from robustkit.common.files import write_whole
from robustkit.data.dataset import Dataset
from robustkit.slices.series.files import SeriesSource, Values, open_series
from robustkit.slices.series.model import ARCH, SeriesTransformer
from scripts.zoo.train import serialise

RATE, BATCH, EPOCHS, CLIP, WATCHED = 1e-3, 16, 100, 4.0, 10
FORMULAS = ("standard", "qnorm", "qknorm", "quest")
"""Those of the paper's Table A8; its qknorm has scales of their own for each head (Table 1)."""


@dataclass(frozen=True)
class Cases:
    """Standardised series (C, T) of different T, and their labels."""

    series: tuple[Tensor, ...]
    labels: Tensor

    def batch(self, places: Sequence[int]) -> tuple[Tensor, Tensor, Tensor]:
        """Return series filled up with zeros (B, C, T), their lengths, and their labels."""
        chosen = [self.series[place] for place in places]
        lengths = torch.tensor([each.shape[1] for each in chosen])
        longest = int(lengths.max())
        filled = [functional.pad(each, (0, longest - each.shape[1])) for each in chosen]
        return torch.stack(filled), lengths, self.labels[list(places)]


def cases_of(dataset: Dataset, mean: Sequence[float], std: Sequence[float]) -> Cases:
    """Return the cases of a data set, standardised as `mean` and `std` of each channel say."""
    source = dataset.source
    assert isinstance(source, SeriesSource)
    centre, scale = (torch.tensor(values, dtype=torch.float32)[:, None] for values in (mean, std))
    series = tuple((torch.from_numpy(source.series(sample)) - centre) / scale for sample in dataset.samples)
    return Cases(series, torch.tensor([sample.label for sample in dataset.samples]))


def train(
    training: Cases, test: Cases, network: SeriesTransformer, seed: int, epochs: int
) -> Iterator[dict[str, float]]:
    """Train in place; yield the log of each epoch."""
    optimiser = torch.optim.RAdam(network.parameters(), lr=RATE)
    order = torch.Generator().manual_seed(seed)
    for epoch in range(1, epochs + 1):
        network.train()
        losses = []
        for places in torch.randperm(len(training.series), generator=order).split(BATCH):
            series, lengths, labels = training.batch(places.tolist())
            loss = functional.cross_entropy(network(series, lengths), labels)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            clip_grad_norm_(network.parameters(), CLIP)
            optimiser.step()
            losses.append(loss.item())
        entry = {"epoch": epoch, "loss": round(float(np.mean(losses)), 5)}
        if epoch % WATCHED == 0 or epoch == epochs:
            entry["right"] = right(network, test)
        yield entry


@torch.inference_mode()
def right(network: SeriesTransformer, cases: Cases) -> int:
    """Return how many cases a network classifies right."""
    network.eval()
    count = 0
    by_length = sorted(range(len(cases.series)), key=lambda place: cases.series[place].shape[1])
    for start in range(0, len(by_length), 64):
        series, lengths, labels = cases.batch(by_length[start : start + 64])
        count += int((network(series, lengths).argmax(dim=1) == labels).sum())
    return count


def channel_statistics(series: Sequence[Values]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return each channel's mean and standard deviation over all steps of all series; 1 where all are the same."""
    joined = np.concatenate([each.astype(np.float64) for each in series], axis=1)
    means, stds = joined.mean(axis=1), joined.std(axis=1)
    return tuple(means.tolist()), tuple(np.where(stds > 0, stds, 1.0).tolist())


def run(training: Dataset, test: Dataset, attention: str, seed: int, out: Path, epochs: int = EPOCHS) -> None:
    """Train one model, and write its weights and its log."""
    torch.manual_seed(seed)
    source = training.source
    assert isinstance(source, SeriesSource)
    mean, std = channel_statistics([source.series(sample) for sample in training.samples])
    kwargs = {"channels": len(mean), "num_classes": len(training.class_names)}
    network = SeriesTransformer(**kwargs, attention=attention)
    data = cases_of(training, mean, std), cases_of(test, mean, std)
    log = list(train(*data, network, seed, epochs))
    problem = training.name.removesuffix("_TRAIN")
    name = f"{problem.lower()}-{attention}-{seed}"
    metadata = {
        "task": "series",
        "arch": ARCH,
        "arch_kwargs": json.dumps(kwargs),
        "attention": attention,
        "num_classes": str(kwargs["num_classes"]),
        "class_names": json.dumps(training.class_names),
        "mean": json.dumps(mean),
        "std": json.dumps(std),
        "data": f"{problem}: {len(training)} training series",
        "data_digest": training.digest(),
        "test_data": f"{problem}: {len(test)} test series",
        "test_digest": test.digest(),
        "recipe": f"RAdam {RATE:g}, batches of {BATCH}, {epochs} epochs, gradients cut at length {CLIP:g}, dropout 0.1",
        "seed": str(seed),
        "epochs": str(epochs),
        "accuracy": f"{log[-1]['right'] / len(test):.4f}",
        "license": "Apache-2.0",
    }
    tensors = {key: value.contiguous() for key, value in network.state_dict().items()}
    write_whole(out / f"{name}.safetensors", serialise(tensors, metadata))
    facts = {"data": problem, "attention": attention, "seed": seed, "n": len(test)}
    columns = {key: [entry[key] for entry in log if key in entry] for key in ("loss", "right")}
    write_whole(out / f"{name}.json", json.dumps({**facts, **columns}).encode())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--attention", default=",".join(FORMULAS))
    parser.add_argument("--seeds", default="0-4", help="N or N-N")
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    training = open_series(options.train)
    test = open_series(options.test, training.class_names)
    first, _, last = options.seeds.partition("-")
    for seed in range(int(first), int(last or first) + 1):
        for attention in options.attention.split(","):
            name = f"{training.name.removesuffix('_TRAIN').lower()}-{attention}-{seed}"
            if (options.out / f"{name}.json").exists():
                continue
            run(training, test, attention, seed, options.out, options.epochs)
            print(f"{name}: done", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
