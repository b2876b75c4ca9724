"""What stabilisers cost: a training step with each, compared with the bare optimiser's.

    python -m scripts.studies.stabilisers.cost [--arch vit_tiny_patch16_224] [--batch 16]

The same ViT on noise, one model for each stabiliser; they take turns, and ratios are medians of rounds, for whole steps
(forward, backward, update) and for the update alone. σReparam has all its cost in the forward and backward.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time

import timm
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from robustkit.attention.optim.stabilisers import stabiliser
from robustkit.models.device import pick_device

NAMES = ("none", "quack", "quack(norm=spectral)", "fixed-rates", "qk-clip", "sigma-reparam")


def clock(device: torch.device) -> float:
    """Return the time in seconds, once the device has finished."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def step(model: nn.Module, optimiser: Optimizer, images: Tensor) -> tuple[float, float]:
    """Return the seconds of one step, and of the update in it."""
    began = clock(images.device)
    optimiser.zero_grad()
    model(images).square().mean().backward()
    between = clock(images.device)
    optimiser.step()
    ended = clock(images.device)
    return ended - began, ended - between


def main(arguments: list[str] | None = None) -> int:
    """Measure and print. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="vit_tiny_patch16_224")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    device = pick_device(options.device)
    torch.manual_seed(0)
    size = timm.get_pretrained_cfg(options.arch).input_size
    images = torch.randn(options.batch, *size, device=device)
    trained = {}
    for name in NAMES:
        model = timm.create_model(options.arch).to(device).train()
        made = stabiliser(name)
        made.prepare(model)
        trained[name] = (model, made.wrap(torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True), model))
    rounds = [
        {name: step(model, optimiser, images) for name, (model, optimiser) in trained.items()}
        for _ in range(options.rounds + 2)
    ][2:]
    print(f"{options.arch}, batch {options.batch}, {device.type}, AdamW fused, {options.rounds} rounds")
    for name in NAMES:
        whole, update = (
            statistics.median(times[name][part] / times["none"][part] for times in rounds) for part in (0, 1)
        )
        took = statistics.median(times[name][1] for times in rounds)
        print(f"{name:22} step {whole:.3f} of the bare one, update {update:.2f} ({1000 * took:.1f} ms)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
