"""AG-CAM compared with a bare forward and backward and with pytorch-grad-cam: passes, time and memory.

    python -m scripts.bench.cam CHECKPOINT --data-dir IMAGES [--arch NAME] [--batch-size 16] [--device cuda]

Bare is one forward and one backward to the pixels; unfused is the same with attention computed so that it can be
seen. Rounds alternate in one process; the medians of their times are compared. pytorch-grad-cam (`pip install
grad-cam`) is measured where it is installed. Memory after each of many batches, before anything else has run: the
resident set, or what is allocated on a CUDA device.
"""

from __future__ import annotations

import argparse
import platform
import statistics
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import torch
from torch import Tensor

import cam
from cam.explainer import held
from robustkit.attention import capture
from robustkit.data.images import to_pixels, unit
from robustkit.models.classifier import load
from robustkit.models.device import pick_device
from robustkit.models.identity import Classifier
from robustkit.pipeline.data import labelled_data


def resident() -> float:
    """Return the MB of memory that the process holds."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * 4096 / 1e6


def passes(model: Classifier, work: Callable[[], object]) -> tuple[int, int]:
    """Return the (forwards, backwards) of the network that `work` makes."""
    counts = [0, 0]

    def forward(_: object, __: object, output: Tensor) -> None:
        counts[0] += 1
        if output.requires_grad:
            output.register_hook(lambda _: counts.__setitem__(1, counts[1] + 1))

    handle = model.network.register_forward_hook(forward)
    try:
        work()
    finally:
        handle.remove()
    return counts[0], counts[1]


def bare(model: Classifier, images: Tensor, unfused: bool) -> None:
    """Make one forward and one backward down to the pixels, without gradients of parameters."""
    with held(model), torch.enable_grad(), capture(model.network, rows=slice(0, 1)) if unfused else nullcontext():
        leaf = images.detach().requires_grad_()
        logits = model(leaf)
        torch.autograd.grad(logits.amax(dim=1).sum(), leaf)


def peer(model: Classifier) -> Callable[[Tensor], object] | None:
    """Return pytorch-grad-cam's GradCAM on the last block, as its documentation has it; None where it is not installed.

    It needs parameters that take gradients, as those of a model that was just made do.
    """
    try:
        from pytorch_grad_cam import GradCAM
    except ImportError:
        return None
    grid = model.network.patch_embed.grid_size
    prefix = model.network.num_prefix_tokens

    def reshape(tokens: Tensor) -> Tensor:
        kept = tokens[:, prefix:].reshape(len(tokens), *grid, -1)
        return kept.permute(0, 3, 1, 2)

    tool = GradCAM(model=model, target_layers=[model.network.blocks[-1].norm1], reshape_transform=reshape)

    def explain(images: Tensor) -> object:
        model.requires_grad_(True)
        try:
            return tool(images, None)  # None: the predicted classes
        finally:
            model.requires_grad_(False)
            model.zero_grad(set_to_none=True)

    return explain


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--arch")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--images", type=int, default=2000, help="for the look at memory")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = pick_device(options.device)
    model = load(options.checkpoint, arch=options.arch).to(device)
    data = labelled_data(options.data_dir, model.identity, {}, options.batch_size, None, 0, unlabelled=True)
    pixels = [to_pixels(data.image(sample), model.identity.preprocessing) for sample in data.samples]
    images = unit(torch.stack(pixels).to(device))
    explain = cam.AGCAM(model)
    sizes = []
    with explain:
        for _ in range(-(-options.images // len(images))):
            explain(images)
            sizes.append(torch.cuda.memory_allocated() / 1e6 if device.type == "cuda" else resident())
    settled = sizes[len(sizes) // 10 :]
    spread = max(settled) - min(settled)
    print(f"memory over {options.images} images: {min(settled):.0f} to {max(settled):.0f} MB, a spread of {spread:.0f}")
    contenders: dict[str, Callable[[], object]] = {
        "bare": lambda: bare(model, images, unfused=False),
        "unfused": lambda: bare(model, images, unfused=True),
    }
    for name in ("agcam", "agcam-full", "rollout", "grad-cam", "gradient"):
        explainer = cam.method(name)(model)
        contenders[name] = lambda explainer=explainer: explainer(images)  # type: ignore[misc]
    if (other := peer(model)) is not None:
        contenders["pytorch-grad-cam"] = lambda: other(images)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(options.rounds + 1):
        for name, work in contenders.items():
            began = time.perf_counter()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize()
            times[name].append(time.perf_counter() - began)
    base = statistics.median(times["bare"][1:])
    where = (
        torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()}, {torch.get_num_threads()}"
    )
    print(f"{model.identity.name}, {len(images)} images of {tuple(images.shape[2:])}, {where} threads")
    for name, work in contenders.items():
        middle = statistics.median(times[name][1:])
        forwards, backwards = passes(model, work)
        rate = len(images) / middle
        print(f"{name:>18}  {middle / base:.3f} x bare  {forwards} + {backwards} passes  {rate:.1f} images/s")


if __name__ == "__main__":
    sys.exit(main())
