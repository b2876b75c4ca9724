"""Explainers and the outside implementations of the same: captum, pytorch-grad-cam, TorchRay, legrad-torch."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest
import torch
from attack_oracles import Draws
from cam_models import close, cnn
from cam_oracles import some_images, tiny_vit
from places import SHARED
from torch import Tensor, nn

import cam
import robustkit
from scripts.bench import cam_peers as peers

pytestmark = pytest.mark.usefixtures("one_thread")
VIT = SHARED / "weights" / "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"
TARGETS = torch.tensor([1, 3, 2])


def frozen(model: Any) -> Any:
    return model.double().requires_grad_(False)


@pytest.mark.parametrize(("name", "kind"), peers.GRAD_CAM.items())
def test_pytorch_grad_cam(name: str, kind: str) -> None:
    pytest.importorskip("pytorch_grad_cam")
    images = some_images(3).double()
    for model in (cnn(), tiny_vit()):
        net = frozen(model)
        layer = net[1] if isinstance(net, nn.Sequential) else net.blocks[-1].norm1
        theirs = peers.pytorch_grad_cam(kind, net, layer, corners=False)(images, TARGETS)
        ours = cam.METHODS[name](net)(images, TARGETS)
        # Its Grad-CAM++ adds 1e-6 to a denominator of squared gradients.
        close(ours, theirs.float(), 0.03 if name == "grad-cam-pp" else 3e-6)
        assert ours.std() > 0.05 or name == "grad-cam"


@pytest.mark.parametrize("make", [cnn, tiny_vit])
def test_captum(make: Any) -> None:
    pytest.importorskip("captum")
    net, images, draws = frozen(make()), some_images(3).double(), Draws(range(3))
    theirs = peers.captum_integrated_gradients(net, steps=8)(images, TARGETS)
    close(cam.IntegratedGradients(net, steps=8)(images, TARGETS), theirs, 3e-6)
    theirs = peers.captum_smooth_grad(net, 5, 0.15, draws)(images, TARGETS)
    close(cam.SmoothGrad(net, samples=5)(images, TARGETS, rng=draws), theirs, 3e-6)


def test_torchray() -> None:
    pytest.importorskip("torchray")
    net, images = tiny_vit().requires_grad_(False), some_images(3)
    tool = cam.RISE(net, masks=30)
    masks = tool.drawn(tool.draws(images, Draws(range(3))), (16, 24))
    theirs = peers.torchray_rise(net, lambda i: masks[i][:, None])(images, TARGETS)
    close(tool(images, TARGETS, rng=Draws(range(3))), theirs, 1e-5)


def legrad() -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.importorskip("legrad", exc_type=ImportError)


@pytest.mark.parametrize("layers", [3, 1])
def test_legrad_torch(layers: int) -> None:
    legrad()
    net, images = peers.Normed(frozen(tiny_vit(img_size=24))), some_images(3, 24, 24).double()
    close(cam.LeGrad(net, layers)(images, TARGETS), peers.legrad_torch(net, layers)(images, TARGETS), 3e-6)


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the real weights of ../shared")
def test_legrad_torch_and_chefer_on_real_weights() -> None:
    net = robustkit.load(str(VIT), arch="vit_tiny_patch16_224").network.requires_grad_(False)
    images: Tensor = some_images(2, 224, 224) * 2 - 1
    close(cam.Chefer(net)(images, 207), peers.chefer_by_matrices(net)(images, torch.tensor([207, 207])), 2e-5)
    legrad()
    normed = peers.Normed(net)
    close(cam.LeGrad(normed)(images, 207), peers.legrad_torch(normed, 12)(images, torch.tensor([207, 207])), 2e-5)
