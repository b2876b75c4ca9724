"""What attention formulas and stabilisers cost, in models of random weights.

    python -m scripts.studies.stabilisers.cost formulas [--batch 4] [--rounds 7] [--formulas NAME …]
    python -m scripts.studies.stabilisers.cost stabilisers [--batch 16] [--rounds 15]

Of formulas, compared with standard attention: a forward pass without gradients, and one with the gradient of the loss
by the images, which is what an attack takes. Next to them, the numbers that the formula adds to the model's parameters,
and the bytes that a pass keeps for the gradient.

Of stabilisers, compared with the bare optimiser: whole training steps (forward, backward, update) and the update alone,
on noise. σReparam has all its cost in the forward and backward.

All take turns in each round, and a ratio is the median of the rounds.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import timm
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from robustkit.attention import FORMULAS, attention_layers, set_attention
from robustkit.models.device import pick_device
from robustkit.slices.optim.stabilisers import stabiliser
from scripts.pages.writing import markdown

NAMES = ("none", "quack", "quack(norm=spectral)", "fixed-rates", "qk-clip", "sigma-reparam")


class Kept:
    """Bytes that the graph of what runs inside keeps for the backward pass, each storage once."""

    def __init__(self) -> None:
        self._storages: dict[int, int] = {}

    def pack(self, tensor: Tensor) -> Tensor:
        """Count a tensor that is kept."""
        storage = tensor.untyped_storage()
        self._storages[storage.data_ptr()] = storage.nbytes()
        return tensor

    @property
    def bytes(self) -> int:
        """All of them."""
        return sum(self._storages.values())


def forward(model: nn.Module, images: Tensor) -> None:
    """Make a pass without gradients."""
    with torch.inference_mode():
        model(images)


def gradient(model: nn.Module, images: Tensor) -> None:
    """Make a pass, and the gradient of its loss by the images."""
    images = images.clone().requires_grad_()
    loss = model(images).logsumexp(1).sum()
    torch.autograd.grad(loss, images)


def seconds(call: Callable[[nn.Module, Tensor], None], model: nn.Module, images: Tensor) -> float:
    """Return the seconds of one call, on a device that has finished."""
    began = time.perf_counter()
    call(model, images)
    if images.is_cuda:
        torch.cuda.synchronize(images.device)
    return time.perf_counter() - began


def kept(model: nn.Module, images: Tensor) -> int:
    """Return the bytes that a forward pass keeps for the gradient by the images."""
    counted = Kept()
    with torch.autograd.graph.saved_tensors_hooks(counted.pack, lambda tensor: tensor):
        model(images.clone().requires_grad_())
    return counted.bytes


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


def of_formulas(options: argparse.Namespace, device: torch.device) -> None:
    """Measure and print what formulas cost."""
    names = ["standard", *(name for name in options.formulas if name != "standard")]
    models: dict[str, Any] = {}
    for name in names:
        torch.manual_seed(0)
        model = set_attention(timm.create_model(options.arch), name)
        models[name] = model.eval().requires_grad_(False).to(device)
    side = models["standard"].pretrained_cfg["input_size"][1:]
    images = torch.rand(options.batch, 3, *side, device=device)
    ratios: dict[str, dict[str, list[float]]] = {name: {"forward": [], "gradient": []} for name in names}
    for turn in range(options.rounds + 1):
        for what, call in (("forward", forward), ("gradient", gradient)):
            spent = {name: seconds(call, model, images) for name, model in models.items()}
            if turn:  # the first round warms up
                for name in names:
                    ratios[name][what].append(spent[name] / spent["standard"])
    count = {name: sum(p.numel() for p in model.parameters()) for name, model in models.items()}
    memory = {name: kept(model, images) for name, model in models.items()}
    rows = [("attention", "forward", "forward and gradient", "kept for the gradient", "parameters added")]
    for name in names:
        times = [f"{statistics.median(ratios[name][what]):.2f}" for what in ("forward", "gradient")]
        share = memory[name] / memory["standard"]
        rows.append((f"`{name}`", *times, f"{share:.2f}", f"{count[name] - count['standard']:,}".replace(",", " ")))
    print(markdown(rows))
    layers = len(attention_layers(models["standard"]))
    print(
        f"\n{options.arch}, {layers} layers, {count['standard'] / 1e6:.2f} M parameters, batch {options.batch}, "
        f"{device}, torch {torch.__version__}, {torch.get_num_threads()} threads: times and memory over those of "
        f"standard, median of {options.rounds} rounds"
    )


def of_stabilisers(options: argparse.Namespace, device: torch.device) -> None:
    """Measure and print what stabilisers cost."""
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


def main(arguments: list[str] | None = None) -> int:
    """Measure and print. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(required=True)
    for name, measure, batch, rounds in (("formulas", of_formulas, 4, 7), ("stabilisers", of_stabilisers, 16, 15)):
        kind = kinds.add_parser(name)
        kind.set_defaults(measure=measure)
        kind.add_argument("--arch", default="vit_tiny_patch16_224")
        kind.add_argument("--batch", type=int, default=batch)
        kind.add_argument("--rounds", type=int, default=rounds)
        kind.add_argument("--threads", type=int)
        kind.add_argument("--device", default="auto")
        if name == "formulas":
            kind.add_argument("--formulas", nargs="+", default=list(FORMULAS))
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    options.measure(options, pick_device(options.device))
    return 0


if __name__ == "__main__":
    sys.exit(main())
