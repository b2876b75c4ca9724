"""Rows of maps next to pytorch-grad-cam, captum, TorchRay and legrad-torch, and of their metrics next to Quantus.

Maps of both are compared on the same noise and masks; they run from 0 to 1, each by itself. Metrics are those of
gradient x input, by our explainer on both sides.
"""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import cam
from cam.explainer import held
from cam.faithfulness import abpc, imputed
from cam.localisation import entropy, gini
from cam.sensitivity import cascade, infidelity, sensitivity
from cam.vit import Transformer
from robustkit.common.determinism import SampleRng

from . import cam_peers as peers
from .corruptions import SIZE, channels_first, photographs
from .race import Agree, Row, Shown, Sides, Subject, Work, same, uncompared

STEPS, SAMPLES, NOISE, MASKS = 32, 25, 0.15, 128
CURVE, COPIES, SQUARES = 13, 10, 64  # points of a perturbation curve, noisy copies, hidden squares
SAME_MAPS = 1e-3


def draws_of(shown: Shown) -> SampleRng:
    """Return draws on the CPU, the same at each call."""
    ids = [str(i) for i in range(len(shown.images))]
    return SampleRng.of(ids, seed=0, condition="bench", device=torch.device("cpu"))


def agree_on_maps(ours: Tensor, theirs: Tensor) -> tuple[bool, str]:
    """Compare maps (B, H, W); those that a peer divides by a range of 0 are left out, at most a tenth."""
    a, b = ours.flatten(1).double(), theirs.flatten(1).double().to(ours.device)
    fine = b.isfinite().all(dim=1)
    if (lost := int((~fine).sum())) * 10 > len(fine):
        return False, f"{lost} of {len(fine)} maps of theirs are not finite"
    agrees, found = same("maps", SAME_MAPS)(a[fine], b[fine])
    if agrees:
        return True, found
    x, y = (side[fine] - side[fine].mean(dim=1, keepdim=True) for side in (a, b))
    spread = x.norm(dim=1) * y.norm(dim=1)
    alike = ((x * y).sum(dim=1) / spread)[spread > 0].mean()
    return False, f"{found}, correlation {float(alike):.3f}"


def rows(subject: Subject, layer: str | None) -> Iterator[Row]:
    """Yield the rows of maps. layer: whose features count, in a CNN; a ViT's is known."""
    images = subject.model.normalize(subject.images)
    net, is_vit = subject.model.network, Transformer.find(subject.model.network) is not None
    shown = Shown(net, images, subject.labels)
    if is_vit or layer:
        for name, kind in peers.GRAD_CAM.items():
            few = Shown(net, images[:1], subject.labels[:1]) if name == "score-cam" else shown
            yield Row(name, "pytorch-grad-cam", partial(_grad_cam, few, name, kind, layer))
    one = Shown(net, images[:1], subject.labels[:1])
    yield Row(f"integrated-gradients, {STEPS} steps", "captum", partial(_integrated, one))
    yield Row(f"smooth-grad, {SAMPLES} copies", "captum", partial(_smooth, one))
    yield Row(f"rise, {MASKS} masks", "TorchRay", partial(_rise, one))
    if is_vit:
        yield Row("legrad", "legrad-torch", partial(_legrad, shown))
        yield Row("chefer", "the authors' rule", partial(_chefer, shown))
        for name in ("agcam", "agcam-full", "legrad", "rollout"):
            yield Row(name, "bare passes", partial(_bare, shown, name))


def _grad_cam(shown: Shown, name: str, kind: str, named: str | None) -> Sides:
    net: Any = shown.model
    layer = net.blocks[-1].norm1 if named is None else net.get_submodule(named)
    ours = cam.METHODS[name](net, layer)  # type: ignore[call-arg]
    by_authors = peers.pytorch_grad_cam(kind, net, layer, corners=False)

    def same_draws() -> tuple[Tensor, Tensor]:
        return ours(shown.images, shown.classes), by_authors(shown.images, shown.classes)

    return shown.sides(ours, peers.pytorch_grad_cam(kind, net, layer), agree_on_maps, same_draws)


def _integrated(shown: Shown) -> Sides:
    theirs = peers.captum_integrated_gradients(shown.model, STEPS)
    return shown.sides(cam.IntegratedGradients(shown.model, STEPS), theirs, agree_on_maps)


def _smooth(shown: Shown) -> Sides:
    ours = cam.SmoothGrad(shown.model, SAMPLES, NOISE)

    def same_draws() -> tuple[Tensor, Tensor]:
        theirs = peers.captum_smooth_grad(shown.model, SAMPLES, NOISE, draws_of(shown))
        return ours(shown.images, shown.classes, rng=draws_of(shown)), theirs(shown.images, shown.classes)

    return shown.sides(ours, peers.captum_smooth_grad(shown.model, SAMPLES, NOISE), agree_on_maps, same_draws)


def _rise(shown: Shown) -> Sides:
    ours = cam.RISE(shown.model, masks=MASKS)
    import_module("torchray")

    def same_draws() -> tuple[Tensor, Tensor]:
        height, width = shown.images.shape[2:]
        masks = ours.drawn(ours.draws(shown.images, draws_of(shown)), (height, width))
        theirs = peers.torchray_rise(shown.model, lambda i: masks[i][:, None])
        return ours(shown.images, shown.classes, rng=draws_of(shown)), theirs(shown.images, shown.classes)

    return shown.sides(ours, peers.torchray_rise(shown.model, MASKS), agree_on_maps, same_draws)


def _legrad(shown: Shown) -> Sides:
    vit: Any = shown.model
    normed = peers.Normed(vit)

    def agree(ours: Tensor, theirs: Tensor) -> tuple[bool, str]:
        agrees, found = agree_on_maps(ours, theirs)
        return agrees, f"{found}; passes not counted: theirs is a copy of the network"

    return shown.sides(cam.LeGrad(normed), peers.legrad_torch(normed, len(vit.blocks)), agree)


def _chefer(shown: Shown) -> Sides:
    return shown.sides(cam.Chefer(shown.model), peers.chefer_by_matrices(shown.model), agree_on_maps)


def _bare(shown: Shown, name: str) -> Sides:
    """Return what a map cannot do without: a forward, and a backward to the input for those of gradients."""
    net = shown.model

    def theirs(images: Tensor, classes: Tensor) -> None:
        if name == "rollout":
            with torch.inference_mode():
                net(images)
            return
        with held(net), torch.enable_grad():
            leaf = images.detach().requires_grad_()
            torch.autograd.grad(net(leaf).gather(1, classes[:, None]).sum(), leaf)

    return shown.sides(cam.METHODS[name](net), theirs, uncompared("no maps to compare"))


def metrics(subject: Subject) -> Iterator[Row]:
    """Yield the rows of metrics, on a CPU."""
    shown = Shown(subject.model.network, subject.model.normalize(subject.images), subject.labels)
    for name, make in {
        f"deletion in both orders, {CURVE} points": _curves,
        "entropy of maps": _entropy,
        "Gini of maps": _gini,
        f"sensitivity, {COPIES} copies": _sensitivity,
        f"infidelity, {SQUARES} squares": _infidelity,
        "efficient MPRT": _mprt,
    }.items():
        yield Row(name, "Quantus", partial(_metric, shown, make))
    for share in (0.1, 0.9):
        for peer in ("Quantus", "pytorch-grad-cam"):
            what = f"ROAD's imputation of {100 * share:.0f} % of {SIZE}x{SIZE}"
            yield Row(what, peer, partial(_imputation, peer, share))


@dataclass(frozen=True)
class Metric:
    """What metrics are computed from: maps (B, H, W) of an explainer."""

    shown: Shown
    tool: cam.Explainer
    maps: Tensor

    def theirs(self, name: str, maps: Tensor | None = None, **options: Any) -> Work:
        """Return a call of Quantus's metric `name` on our maps, which makes more of them by our explainer."""
        metric = getattr(import_module("quantus"), name)(
            normalise=False, disable_warnings=True, display_progressbar=False, **options
        )
        images, classes = self.shown.images, self.shown.classes
        given = {
            "x_batch": images.numpy(),
            "y_batch": classes.numpy(),
            "a_batch": (self.maps if maps is None else maps).numpy()[:, None],
        }

        def explain(model: nn.Module, inputs: Any, targets: Any, **_: Any) -> Any:
            at = torch.from_numpy(np.asarray(inputs, np.float32)).reshape(-1, *images.shape[1:])
            tool = self.tool if model is self.shown.model else type(self.tool)(model)
            return tool(at, torch.from_numpy(np.asarray(targets, np.int64))).numpy()[:, None]

        def run() -> Any:
            with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return metric(
                    model=self.shown.model, explain_func=explain, device="cpu", batch_size=len(images), **given
                )

        return run


Compared = tuple[Work, Work, Agree]


def _metric(shown: Shown, make: Callable[[Metric], Compared]) -> Sides:
    tool = cam.InputGradient(shown.model)
    ours, theirs, agree = make(Metric(shown, tool, tool(shown.images, shown.classes)))
    count = len(shown.images)
    return Sides(ours, theirs, agree, (count, count))


def _curves(metric: Metric) -> Compared:
    """Return both sides for the areas (2, B) under two curves: the highest values go first, or the lowest."""
    shown, maps = metric.shown, metric.maps
    values = 3 * maps[0].numel() // (CURVE - 1)  # it takes values, not pixels: a step may split one
    options = {"features_in_step": values, "perturb_baseline": 0.0}
    down, up = (metric.theirs("PixelFlipping", signed, **options) for signed in (maps, -maps))

    def ours() -> Tensor:
        found = abpc(shown.model, shown.images, maps, shown.classes, fill=0.0, steps=CURVE)
        return torch.stack([found.morf, found.lerf])[..., 1:].mean(dim=2)

    return ours, lambda: torch.tensor(np.array([down(), up()])).mean(dim=2), same("areas", 0.01)


def _entropy(metric: Metric) -> Compared:
    return lambda: entropy(metric.maps), _values(metric.theirs("Complexity")), same("values", 1e-4)


def _gini(metric: Metric) -> Compared:
    return lambda: gini(metric.maps), _values(metric.theirs("Sparseness")), same("values", 1e-4)


def _values(work: Work) -> Work:
    return lambda: torch.tensor(np.array(work()))


def _sensitivity(metric: Metric) -> Compared:
    shown = metric.shown
    theirs = metric.theirs("MaxSensitivity", nr_samples=COPIES)
    agree = uncompared("each draws its own noise")
    return lambda: sensitivity(metric.tool, shown.images, metric.maps, shown.classes, samples=COPIES), theirs, agree


def _infidelity(metric: Metric) -> Compared:
    shown = metric.shown
    size = shown.images.shape[2] // 8
    options = {"perturb_baseline": "black", "perturb_patch_sizes": [size], "n_perturb_samples": 1}
    theirs = metric.theirs("Infidelity", **options)
    agree = uncompared("Quantus hides a grid of squares, ours draws them")
    return (
        lambda: infidelity(shown.model, shown.images, metric.maps, shown.classes, fill=0.0, samples=SQUARES),
        theirs,
        agree,
    )


def _mprt(metric: Metric) -> Compared:
    shown = metric.shown
    agree = uncompared("each draws its own weights")
    return (
        lambda: cascade(metric.tool, shown.images, metric.maps, shown.classes, steps=1),
        metric.theirs("EfficientMPRT"),
        agree,
    )


def _imputation(peer: str, share: float) -> Sides:
    """Return both sides on a photograph without the square of that share in its middle."""
    image = channels_first(photographs(1))[0].float() / 255
    inside = (torch.arange(SIZE) - SIZE // 2).abs() < SIZE * share**0.5 / 2
    gone = inside[:, None] & inside
    if peer == "Quantus":
        impute = import_module("quantus.functions.perturb_func").noisy_linear_imputation
        indices = np.flatnonzero(gone.numpy())

        def theirs() -> Tensor:
            return torch.from_numpy(impute(image.numpy().copy(), indices, noise=0.0))
    else:
        tool = import_module("pytorch_grad_cam.metrics.road").NoisyLinearImputer(noise=0.0)

        def theirs() -> Tensor:
            made: Tensor = tool(image.clone(), (~gone).float())
            return made

    return Sides(lambda: imputed(image[None], gone[None])[0], theirs, same("pixels", 1e-3))
