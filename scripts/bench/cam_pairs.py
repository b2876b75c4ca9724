"""Each explainer with its outside implementation, with the same numbers of steps, samples and masks."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import cam
from cam.vit import Transformer
from robustkit.common.randomness import SampleRng

from . import cam_peers as peers

STEPS, SAMPLES, NOISE, MASKS = 32, 25, 0.15, 128
Maps = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Pair:
    """Ours and theirs, whose times are compared, from images (B, 3, H, W) and classes (B,) to maps (B, H, W).

    both: maps of both on the same noise and masks. peer: what the other is called; theirs is None where it is missing.
    """

    ours: Maps
    peer: str = ""
    theirs: Maps | None = None
    both: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]] = lambda images, classes: (images, images)


def pairs(net: nn.Module, layer: str | None = None) -> Mapping[str, Pair]:
    """Return a pair for each method that works for a network. layer: whose features count, in a CNN."""
    found: dict[str, Pair] = {}
    for name in cam.METHODS:
        if issubclass(cam.METHODS[name], cam.Control):
            continue
        try:
            found[name] = _pair(name, net, layer)
        except ValueError:
            continue
    return found


def _pair(name: str, net: Any, named: str | None) -> Pair:
    if name == "legrad" and _has("legrad") and Transformer.find(net) is not None:
        normed = peers.Normed(net)
        return _plain(cam.LeGrad(normed), "legrad-torch", peers.legrad_torch(normed, len(net.blocks)))
    if name == "chefer":
        return _plain(cam.Chefer(net), "the authors' rule", peers.chefer_by_matrices(net))
    if name == "rise":
        rise = cam.RISE(net, masks=MASKS)
        if not _has("torchray"):
            return _plain(rise)

        def rises(images: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
            rng = _rng(images)
            masks = rise.drawn(rise.draws(images, rng), (images.shape[2], images.shape[3]))
            theirs = peers.torchray_rise(net, lambda i: masks[i][:, None])
            return rise(images, classes, rng=rng), theirs(images, classes)

        return Pair(rise, "TorchRay", peers.torchray_rise(net, MASKS), rises)
    if name == "smooth-grad" and _has("captum"):
        smooth = cam.SmoothGrad(net, SAMPLES, NOISE)

        def smooths(images: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
            rng = _rng(images)
            theirs = peers.captum_smooth_grad(net, SAMPLES, NOISE, rng)
            return smooth(images, classes, rng=rng), theirs(images, classes)

        return Pair(smooth, "captum", peers.captum_smooth_grad(net, SAMPLES, NOISE), smooths)
    if name == "integrated-gradients" and _has("captum"):
        theirs = peers.captum_integrated_gradients(net, STEPS)
        return _plain(cam.IntegratedGradients(net, STEPS), "captum", theirs)
    if name in peers.GRAD_CAM and _has("pytorch_grad_cam"):
        if named is None and Transformer.find(net) is None:
            return _plain(cam.METHODS[name](net))
        layer = net.blocks[-1].norm1 if named is None else net.get_submodule(named)
        of = peers.GRAD_CAM[name]
        ours = cam.METHODS[name](net, layer)  # type: ignore[call-arg]
        same = peers.pytorch_grad_cam(of, net, layer, corners=False)
        return Pair(
            ours,
            "pytorch-grad-cam",
            peers.pytorch_grad_cam(of, net, layer),
            lambda images, classes: (ours(images, classes), same(images, classes)),
        )
    return _plain(cam.METHODS[name](net))


def _plain(ours: cam.Explainer, peer: str = "", theirs: Maps | None = None) -> Pair:
    if theirs is None:
        return Pair(ours)
    known = theirs
    return Pair(ours, peer, theirs, lambda images, classes: (ours(images, classes), known(images, classes)))


def _rng(images: Tensor) -> SampleRng:
    return SampleRng.of([str(i) for i in range(len(images))], seed=0, condition="bench", device=torch.device("cpu"))


def _has(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
