"""Explainers compared with a bare forward and backward and with outside implementations: passes, time, agreement.

    python -m scripts.bench.cam CHECKPOINT --data-dir IMAGES [--arch NAME] [--layer NAME] [--batch-size 4]

Bare is one forward and one backward to the input. It, a method and its peer take turns in one process; the medians of
their times are compared, of a batch. Which peers there are: `scripts/bench/cam_peers.py`. The largest difference to the
peer's maps and the correlation with them are over all images, with the same noise and masks. `--memory` looks at memory
instead, after each of many batches of AG-CAM: the resident set, or what is allocated on a CUDA device.

`--metrics` compares metrics of maps with Quantus's loops instead (`pip install --no-deps quantus cachetools`), on a
CPU: time, and agreement where both mean the same. Maps are Grad-CAM's, by our explainer on both sides.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import platform
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import cam
from cam.explainer import held
from cam.faithfulness import imputed
from cam.localisation import entropy, gini
from cam.sensitivity import cascade, infidelity, sensitivity
from robustkit.data.images import to_pixels, to_unit_range
from robustkit.models.classifier import load
from robustkit.models.device import pick_device
from robustkit.models.identity import Classifier
from robustkit.pipeline.inputs import labelled_data

from .cam_peers import Pair, pairs


def resident() -> float:
    """Return the MB of memory that the process holds."""
    return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * 4096 / 1e6


def passes(net: nn.Module, work: Callable[[], object]) -> tuple[int, int]:
    """Return the rows that `work` sends (forwards, backwards) through the network."""
    counts = [0, 0]

    def forward(_: object, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        counts[0] += len(inputs[0])
        if output.requires_grad:
            rows = len(inputs[0])
            output.register_hook(lambda _: counts.__setitem__(1, counts[1] + rows))

    handle = net.register_forward_hook(forward)
    try:
        work()
    finally:
        handle.remove()
    return counts[0], counts[1]


def bare(net: nn.Module, images: Tensor) -> None:
    """Make one forward and one backward down to the input, without gradients of parameters."""
    with held(net), torch.enable_grad():
        leaf = images.detach().requires_grad_()
        torch.autograd.grad(net(leaf).amax(dim=1).sum(), leaf)


def medians(contenders: dict[str, Callable[[], object]], rounds: int, device: torch.device) -> dict[str, float]:
    """Return the median seconds of each, in rounds that alternate, every other one in reverse; the first does not
    count. On a CPU they are those that the process computes, so that other work on the machine does not count.
    """
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(rounds + 1):
        for name, work in list(contenders.items())[:: -1 if turn % 2 else 1]:
            began = clock()
            work()
            if device.type == "cuda":
                torch.cuda.synchronize()
            times[name].append(clock() - began)
    return {name: statistics.median(some[1:]) for name, some in times.items()}


def agreement(pair: Pair, images: Tensor, classes: Tensor, batch_size: int) -> str:
    """Return the largest difference to the peer's maps, and the mean correlation of maps with its; of how many, where
    a peer's are not finite or a map is constant.
    """
    ours, theirs = [], []
    for rows in torch.arange(len(images)).split(batch_size):
        one, other = pair.both(images[rows], classes[rows])
        ours.append(one.flatten(1).double())
        theirs.append(other.flatten(1).double().to(one.device))
    a, b = torch.cat(ours), torch.cat(theirs)
    if not a.isfinite().all():
        raise ValueError("a map of ours is not finite")
    fine = b.isfinite().all(dim=1)  # a peer divides a map of zeros by 0
    a, b = a[fine], b[fine]
    x, y = a - a.mean(dim=1, keepdim=True), b - b.mean(dim=1, keepdim=True)
    spread = x.norm(dim=1) * y.norm(dim=1)
    same = ((x * y).sum(dim=1) / spread)[spread > 0]
    fewer = "" if len(same) == len(fine) else f" (of {len(same)})"
    return f"{(a - b).abs().max():.1e} | {same.mean():.4f}{fewer}"


def look_at_memory(explain: cam.Explainer, images: Tensor, count: int) -> str:
    """Return in words how memory grows over `count` images."""
    sizes = []
    with explain:
        for _ in range(-(-count // len(images))):
            explain(images)
            sizes.append(torch.cuda.memory_allocated() / 1e6 if images.device.type == "cuda" else resident())
    settled = sizes[len(sizes) // 10 :]
    spread = max(settled) - min(settled)
    return f"memory over {count} images: {min(settled):.0f} to {max(settled):.0f} MB, a spread of {spread:.0f}"


def metrics(net: nn.Module, layer: str | None, images: Tensor, classes: Tensor) -> dict[str, Callable[[], Any]]:
    """Return each metric of maps of ours, and Quantus's of the same."""
    import quantus
    from quantus.functions.perturb_func import noisy_linear_imputation

    tool = cam.GradCAM(net, layer)
    maps = tool(images, classes)
    x, y, a = images.numpy(), classes.numpy(), maps.numpy()[:, None]

    def explain(model: nn.Module, inputs: Any, targets: Any, **_: Any) -> Any:
        shown = torch.from_numpy(np.asarray(inputs, np.float32)).reshape(-1, *images.shape[1:])
        made = tool if model is net else cam.GradCAM(model, layer)
        return made(shown, torch.from_numpy(np.asarray(targets, np.int64))).numpy()[:, None]

    quiet: dict[str, Any] = {"disable_warnings": True, "display_progressbar": False}

    def theirs(metric: Any) -> Callable[[], Any]:
        def run() -> Any:
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return metric(
                    model=net, x_batch=x, y_batch=y, a_batch=a, explain_func=explain, device="cpu", batch_size=len(x)
                )

        return run

    side = images.shape[2]
    half = maps >= maps.flatten(1).median(dim=1).values.view(-1, 1, 1)
    places = [np.flatnonzero(one) for one in half.numpy()]
    return {
        "imputation of half": lambda: imputed(images, half),
        "Quantus of imputation of half": lambda: [
            noisy_linear_imputation(image.copy(), gone, noise=0.0) for image, gone in zip(x, places, strict=True)
        ],
        "entropy": lambda: entropy(maps),
        "Quantus of entropy": theirs(quantus.Complexity(normalise=False, **quiet)),
        "gini": lambda: gini(maps),
        "Quantus of gini": theirs(quantus.Sparseness(normalise=False, **quiet)),
        "sensitivity": lambda: sensitivity(tool, images, maps, classes),
        "Quantus of sensitivity": theirs(quantus.MaxSensitivity(nr_samples=10, normalise=False, **quiet)),
        "infidelity": lambda: infidelity(net, images, maps, classes, fill=0.0, samples=64),
        "Quantus of infidelity": theirs(
            quantus.Infidelity(
                perturb_baseline="black", perturb_patch_sizes=[side // 8], n_perturb_samples=1, normalise=False, **quiet
            )
        ),
        "efficient MPRT": lambda: cascade(tool, images, maps, classes, steps=1),
        "Quantus of efficient MPRT": theirs(quantus.EfficientMPRT(normalise=False, **quiet)),
    }


def look_at_metrics(model: Classifier, images: Tensor, classes: Tensor, options: argparse.Namespace) -> None:
    """Measure metrics of maps next to Quantus's, and print them."""
    net = model.network
    work = metrics(net, options.layer, images, classes)
    times = medians(work, options.rounds, torch.device("cpu"))
    print(
        f"{model.identity.name}, {len(images)} images of {tuple(images.shape[2:])}, {torch.get_num_threads()} threads\n"
    )
    print("| metric | seconds | Quantus | times faster |")
    print("|---|---|---|---|")
    for name in (name for name in work if not name.startswith("Quantus")):
        ours, other = times[name], times[f"Quantus of {name}"]
        print(f"| {name} | {ours:.4f} | {other:.4f} | {other / ours:.1f} |")
    for name in ("entropy", "gini"):
        gap = np.abs(np.array(work[f"Quantus of {name}"]()) - work[name]().numpy()).max()
        print(f"\n{name}: largest difference {gap:.1e}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--arch")
    parser.add_argument("--layer", help="whose features count, such as layer3 of a ResNet; a ViT's is known")
    parser.add_argument("--mean", type=float, nargs=3)
    parser.add_argument("--std", type=float, nargs=3)
    parser.add_argument("--batch-size", type=int, default=4, help="images of a batch whose time is taken")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--images", type=int, default=20, help="for the agreement with peers, or the look at memory")
    parser.add_argument("--methods", nargs="*", help="these alone")
    looks = parser.add_mutually_exclusive_group()
    looks.add_argument("--memory", action="store_true")
    looks.add_argument("--metrics", action="store_true")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    device = pick_device(options.device)
    given = {name: value for name in ("arch", "mean", "std") if (value := getattr(options, name)) is not None}
    model = load(options.checkpoint, **given).to(device)
    many = options.batch_size if options.memory else max(options.images, options.batch_size)
    data = labelled_data(options.data_dir, model.identity, {}, many, None, 0, unlabelled=True)
    pixels = [to_pixels(data.image(sample), model.identity.preprocessing) for sample in data.samples]
    images = model.normalize(to_unit_range(torch.stack(pixels).to(device)))
    net = model.network
    if options.memory:
        print(look_at_memory(cam.AGCAM(net), images, options.images))
        return
    with torch.no_grad():
        classes = torch.cat([net(part).argmax(dim=1) for part in images.split(options.batch_size)])
    if options.metrics:
        look_at_metrics(model, images[: options.images], classes[: options.images], options)
        return
    batch, of = images[: options.batch_size], classes[: options.batch_size]
    found = {
        name: pair for name, pair in pairs(net, options.layer).items() if not options.methods or name in options.methods
    }
    where = (
        torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()}, {torch.get_num_threads()}"
    )
    print(f"{model.identity.name}, {len(batch)} images of {tuple(batch.shape[2:])}, {where} threads\n")
    print("| method | passes | x bare | peer | passes | of its time | largest difference | correlation |")
    print("|---|---|---|---|---|---|---|---|", flush=True)
    for name, pair in found.items():
        contenders: dict[str, Callable[[], object]] = {
            "bare": lambda: bare(net, batch),
            "ours": lambda pair=pair: pair.ours(batch, of),  # type: ignore[misc]
        }
        if pair.theirs is not None:
            contenders["theirs"] = lambda pair=pair: pair.theirs(batch, of)  # type: ignore[misc]
        times = medians(contenders, options.rounds, device)
        cells = [name, _passes(net, contenders["ours"], len(batch)), f"{times['ours'] / times['bare']:.2f}"]
        if pair.theirs is not None:
            cells += [pair.peer, _passes(net, contenders["theirs"], len(batch))]
            cells += [f"{times['ours'] / times['theirs']:.2f}", agreement(pair, images, classes, len(batch))]
        else:
            cells += [""] * 5
        print(f"| {' | '.join(cells)} |", flush=True)


def _passes(net: nn.Module, work: Callable[[], object], images: int) -> str:
    """Return forwards and backwards of an image; empty where the network itself is not asked."""
    forwards, backwards = passes(net, work)
    return f"{forwards / images:g} + {backwards / images:g}" if forwards else ""


if __name__ == "__main__":
    sys.exit(main())
