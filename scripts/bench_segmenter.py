"""What sliding windows cost beside the bare network, and how many images a second a Segmenter sees.

    python scripts/bench_segmenter.py [--arch vit_tiny_patch16_224] [--classes 150] [--window 512] [--size 512x683]

A Segmenter with random weights and an image of noise. The bare network is given the same windows, cut before; both take
turns, and the ratio is the median of the pairs.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable

import torch

from robustkit.pipeline import pick_device
from robustkit.segmenter_network import build_segmenter
from robustkit.segmenters import Dense
from robustkit.windows import Windows


def seconds(call: Callable[[], object], device: torch.device) -> float:
    """Of one call, on a device that has finished."""
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
    if windows.frame(height, width) != (height, width):
        parser.error(f"--size {options.size}: expected no side below the window of {options.window}")
    cut = torch.cat(
        [
            images[..., top : top + options.window, left : left + options.window]
            for top, left in windows.corners(height, width)
        ]
    )
    passes: list[int] = []
    bare_network = copy.deepcopy(network)  # that enlarges its windows by itself
    handle = network.register_forward_hook(lambda _, given, __: passes.append(len(given[0])))
    dense = Dense(network, windows)
    dense(images)
    handle.remove()
    bare, whole = [], []
    for _ in range(options.pairs):
        bare.append(seconds(lambda: [bare_network(part) for part in torch.split(cut, windows.batch)], device))
        whole.append(seconds(lambda: dense(images), device))
    ratios = [one / other for one, other in zip(whole, bare, strict=True)]
    print(
        f"{options.arch}, {options.classes} classes, {options.batch} image(s) of {options.size}, windows of "
        f"{options.window} every {options.window - 32}, {device.type}, {torch.get_num_threads()} threads\n"
        f"windows shown: {sum(passes)} of {len(cut)}, in {len(passes)} pass(es)\n"
        f"sliding windows / bare network: {statistics.median(ratios):.3f} (of {len(ratios)} pairs "
        f"{min(ratios):.3f} to {max(ratios):.3f})\n"
        f"{options.batch / statistics.median(whole):.2f} images a second"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
