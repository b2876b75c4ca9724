"""What each attention formula costs compared with standard attention, in one model of random weights.

    python -m scripts.bench.attention [--arch vit_tiny_patch16_224] [--batch 4] [--rounds 7] [--formulas NAME …]

All formulas take turns in each round, and a ratio is the median of the rounds: of a forward pass without gradients, and
of a forward pass with the gradient of the loss by the images, which is what an attack takes. Next to them, the numbers
that the formula adds to the model's parameters, and the bytes that a pass keeps for the gradient.
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

from robustkit.attention import FORMULAS, attention_layers, set_attention
from robustkit.models.device import pick_device
from scripts.pages.writing import markdown


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


def main(arguments: list[str] | None = None) -> int:
    """Measure and print. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="vit_tiny_patch16_224")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--formulas", nargs="+", default=list(FORMULAS))
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    device = pick_device(options.device)
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
    return 0


if __name__ == "__main__":
    sys.exit(main())
