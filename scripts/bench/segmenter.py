"""What sliding windows cost compared with the bare network, and how many images per second a Segmenter sees.

    python -m scripts.bench.segmenter [--arch vit_tiny_patch16_224] [--classes 150] [--window 512] [--size 512x683]

A Segmenter with random weights and an image of noise. Its forward, as published with the enlargement of each window,
and its encoder and decoder alone are given the same windows, cut before; they take turns, and ratios are medians of
rounds.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import statistics
import sys
import time
from collections.abc import Callable

import torch

from robustkit.models.dense import Dense, Windows, build_segmenter
from robustkit.models.device import pick_device


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of one call, on a device that has finished."""
    began = time.perf_counter()
    call()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


@torch.inference_mode()
def main(arguments: list[str] | None = None) -> int:
    """Measure and print. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", default="vit_tiny_patch16_224")
    parser.add_argument("--classes", type=int, default=150)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--size", default="512x683", help="height x width of the image")
    parser.add_argument("--batch", type=int, default=1, help="images at once")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    if options.threads:
        torch.set_num_threads(options.threads)
    device = pick_device(options.device)
    torch.manual_seed(0)
    network = build_segmenter(options.arch, options.classes, window=options.window).eval().to(device)
    windows = Windows((options.window,) * 2, (options.window - 32,) * 2)
    height, width = map(int, options.size.split("x"))
    images = torch.randn(options.batch, 3, height, width, device=device)
    if windows.sizes(height, width)[-1] != (height, width):
        parser.error(f"--size {options.size}: expected no side below the window of {options.window}")
    cut = torch.cat(
        [
            images[..., top : top + options.window, left : left + options.window]
            for top, left in itertools.product(*windows.edges(height, width))
        ]
    )
    forward = copy.deepcopy(network)  # as published: it enlarges each window to its size
    passes: list[int] = []
    handle = network.register_forward_hook(lambda _, given, __: passes.append(len(given[0])))
    dense = Dense(network, windows)
    dense(images)
    handle.remove()

    def alone(part: torch.nn.Module) -> Callable[[], object]:
        return lambda: [part(some) for some in torch.split(cut, windows.batch)]

    rivals = {"its forward": alone(forward), "encoder and decoder alone": alone(network)}
    times: list[float] = []
    others: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(options.pairs):
        for name, rival in rivals.items():
            others[name].append(seconds(rival, device))
        times.append(seconds(lambda: dense(images), device))
    print(
        f"{options.arch}, {options.classes} classes, {options.batch} image(s) of {options.size}, windows of "
        f"{options.window} every {options.window - 32}, {device.type}, {torch.get_num_threads()} threads\n"
        f"windows shown: {sum(passes)} of {len(cut)}, in {len(passes)} pass(es)"
    )
    for name, taken in others.items():
        ratios = sorted(ours / other for ours, other in zip(times, taken, strict=True))
        middle = statistics.median(ratios)
        print(f"sliding windows / {name}: {middle:.3f} (of {len(ratios)}, {ratios[0]:.3f} to {ratios[-1]:.3f})")
    print(f"{options.batch / statistics.median(times):.2f} images per second")
    return 0


if __name__ == "__main__":
    sys.exit(main())
