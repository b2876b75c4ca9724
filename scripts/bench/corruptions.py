"""Times the corruptions and the patched reference, imagecorruptions 1.1.2, in one run; or a model that uses them.

    python -m scripts.bench.corruptions [--size 32 --preset cifar] [--threads 2] [--device cuda --batch-size 256]
    python -m scripts.bench.corruptions --pipeline CHECKPOINT [--arch NAME] --data-dir IMAGES

The reference takes one image at a time on one thread; ours takes a batch on the threads given, and its time includes
its own draws. Both take turns in every round. A figure is milliseconds per image, the median over rounds, averaged over
the five severities; a ratio is the reference's over ours. Without the reference (ROBUSTKIT_IMAGECORRUPTIONS names its
folder) ours is timed alone. --pipeline: what share of corrupt -> model is spent corrupting, over the 15 at all
severities.
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
from types import ModuleType

import cv2
import numpy as np
import torch
from PIL import Image
from torch import Tensor

import corruptions
from corruptions.registry import CORRUPTIONS
from robustkit.common.determinism import SampleRng
from robustkit.data.images import to_pixels, to_unit_range
from robustkit.evaluations.corruptions.condition import TEST
from robustkit.models.classifier import load as load_model
from robustkit.models.device import pick_device
from robustkit.pipeline.inputs import labelled_data
from scripts.goldens.reference import find, load, reference

SEVERITIES = range(1, 6)


def photographs(count: int, size: int) -> np.ndarray:
    """Return crops of scikit-image's astronaut, coffee and chelsea, (count, size, size, 3), reduced where `size` is
    small.
    """
    import skimage

    folder = Path(skimage.__file__).parent / "data"
    made = []
    for index in range(count):
        path = folder / ("astronaut.png", "coffee.png", "chelsea.png")[index % 3]
        picture = Image.open(path, formats=("PNG",)).convert("RGB")
        scale = max(1.0, 1.2 * size / min(picture.size)) if size > 200 else 1.3 * size / min(picture.size)
        picture = picture.resize((round(picture.width * scale), round(picture.height * scale)))
        left, top = index % (picture.width - size), 2 * index % (picture.height - size)
        made.append(np.asarray(picture.crop((left, top, left + size, top + size))))
    return np.stack(made)


def seconds(run: Callable[[], object], device: torch.device) -> float:
    start = time.perf_counter()
    run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def corrupt_batch(name: str, severity: int, images: Tensor, options: argparse.Namespace) -> Tensor:
    """Corrupt one batch by ours, with the draws that an audit would make."""
    ids = [str(index) for index in range(len(images))]
    rng = SampleRng.of(ids, seed=0, condition=f"{name} {severity}", device=images.device)
    made = corruptions.corruption(name, preset=options.preset, variant=options.variant, frost_dir=options.frost_dir)
    return made(images, severity, rng)


def run_reference(module: ModuleType, name: str, severity: int, picture: np.ndarray) -> None:
    """Run the reference on one thread (only OpenCV has threads of its own); its prints and warnings are its
    own.
    """
    threads = cv2.getNumThreads()
    cv2.setNumThreads(1)
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        reference(module, name, picture, severity)
    cv2.setNumThreads(threads)


def measure(name: str, module: ModuleType | None, pictures: np.ndarray, options: argparse.Namespace) -> list[float]:
    """Return milliseconds per image of the reference (nan without it) and of ours, means over severities."""
    images = torch.from_numpy(pictures.transpose(0, 3, 1, 2).copy()).to(options.device)
    theirs: dict[int, list[float]] = {severity: [] for severity in SEVERITIES}
    ours: dict[int, list[float]] = {severity: [] for severity in SEVERITIES}
    for turn in range(options.rounds + 1):
        for severity in SEVERITIES:
            picture = pictures[turn % len(pictures)]
            if module:
                taken = seconds(lambda s=severity, p=picture: run_reference(module, name, s, p), torch.device("cpu"))
                theirs[severity].append(taken)
            taken = seconds(lambda s=severity: corrupt_batch(name, s, images, options), options.device)
            ours[severity].append(taken / len(images))
    medians = [[statistics.median(times[1:]) for times in side.values() if times] for side in (theirs, ours)]
    return [1000 * statistics.mean(side) if side else float("nan") for side in medians]


def suite(options: argparse.Namespace) -> None:
    pictures = photographs(options.batch_size, options.size)
    module = load(frost_dir=options.frost_dir) if find() else None
    if module is None:
        print("imagecorruptions is not there: ours alone")
    sums = [0.0, 0.0]
    print(f"{'ms an image':18}{'reference':>10}{'ours':>10}{'ratio':>8}{'images/s':>10}")
    for name in CORRUPTIONS:
        if options.only and name not in options.only.split(","):
            continue
        try:
            them, us = measure(name, module, pictures, options)
        except FileNotFoundError as fault:
            print(f"{name:18}{fault}")
            continue
        if name in TEST:
            sums = [sums[0] + 5 * them, sums[1] + 5 * us]
        print(f"{name:18}{them:10.3f}{us:10.3f}{them / us:8.2f}{1000 / us:10.0f}", flush=True)
    print(f"{'sum of 15 x 5':18}{sums[0]:10.1f}{sums[1]:10.1f}{sums[0] / sums[1]:8.2f}" if sums[1] else "")


def pipeline(options: argparse.Namespace) -> None:
    """Print the share of corrupt -> model spent corrupting, on one batch of a data set's own images."""
    device = options.device
    classifier = load_model(options.pipeline, arch=options.arch).to(options.device)
    preprocessing = classifier.identity.preprocessing
    data = labelled_data(options.data_dir, classifier.identity, {}, limit=options.batch_size, ids=None, seed=0)
    images = torch.stack([to_pixels(data.image(sample), preprocessing) for sample in data.samples]).to(options.device)
    shares = []
    for name in CORRUPTIONS:
        if name not in TEST:
            continue
        corrupting, modelling = [], []
        for turn in range(options.rounds + 1):
            for severity in SEVERITIES:
                made: list[Tensor] = []
                taken = seconds(
                    lambda n=name, s=severity, m=made: m.append(corrupt_batch(n, s, images, options)), device
                )
                batch = to_unit_range(made[0])
                with torch.inference_mode():
                    forward = seconds(lambda b=batch: classifier(b), device)
                if turn:
                    corrupting.append(taken)
                    modelling.append(forward)
        spent, model = statistics.mean(corrupting), statistics.mean(modelling)
        shares.append(spent / (spent + model))
        rate = len(images) / (spent + model)
        print(
            f"{name:18}{1000 * spent / len(images):8.2f} ms corrupting {1000 * model / len(images):8.2f} ms model "
            f"{shares[-1]:7.1%} {rate:8.0f} images/s",
            flush=True,
        )
    print(f"mean share over the {len(shares)}: {statistics.mean(shares):.1%}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--preset", choices=("imagenet", "cifar"), default="imagenet")
    parser.add_argument("--variant", choices=("hendrycks", "bethgelab"), default="hendrycks")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", help="some corruptions, comma-separated")
    parser.add_argument("--frost-dir", help="frost's photographs, where imagecorruptions is not installed")
    parser.add_argument("--pipeline", metavar="CHECKPOINT")
    parser.add_argument("--arch")
    parser.add_argument("--data-dir")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    cv2.setNumThreads(options.threads)
    options.device = pick_device(options.device)
    machine = torch.cuda.get_device_name() if options.device.type == "cuda" else platform.machine()
    print(
        f"{machine}, {options.threads} threads, torch {torch.__version__}; {options.size}x{options.size}, "
        f"preset {options.preset}, variant {options.variant}, batches of {options.batch_size}, {options.rounds} rounds"
    )
    if options.pipeline and not options.data_dir:
        parser.error("--pipeline needs --data-dir")
    (pipeline if options.pipeline else suite)(options)


if __name__ == "__main__":
    sys.exit(main())
