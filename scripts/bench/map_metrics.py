"""Metrics of maps compared with Quantus's loops: time in one run, and agreement where both mean the same.

    python -m scripts.bench.map_metrics CHECKPOINT --data-dir IMAGES [--arch NAME] [--layer NAME] [--images 16]

Needs Quantus (`pip install --no-deps quantus cachetools`). Maps are Grad-CAM's, by our explainer on both sides, so that
only the metrics differ. They take turns; medians are compared.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import cam
from cam.faithfulness import imputed
from cam.localisation import entropy, gini
from cam.sensitivity import cascade, infidelity, sensitivity
from robustkit.data.images import to_pixels, unit
from robustkit.models.classifier import load
from robustkit.pipeline.inputs import labelled_data

from .cam import medians


def contenders(net: nn.Module, layer: str | None, images: Tensor, classes: Tensor) -> dict[str, Callable[[], Any]]:
    """Return each metric of ours, and Quantus's of the same."""
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


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--arch")
    parser.add_argument("--layer")
    parser.add_argument("--images", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    model = load(options.checkpoint, arch=options.arch)
    data = labelled_data(options.data_dir, model.identity, {}, options.images, None, 0, unlabelled=True)
    pixels = [to_pixels(data.image(sample), model.identity.preprocessing) for sample in data.samples]
    net, images = model.network.eval(), model.normalize(unit(torch.stack(pixels)))
    with torch.no_grad():
        classes = net(images).argmax(dim=1)
    work = contenders(net, options.layer, images, classes)
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


if __name__ == "__main__":
    sys.exit(main())
