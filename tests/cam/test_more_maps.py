"""LeGrad, Chefer's rollout, kin of Grad-CAM, masks and paths: slow replicas, closed forms, passes, draws, refusals."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from attack_oracles import Draws
from cam_models import Passes, close, cnn
from cam_oracles import (
    chefer_slowly,
    gradcam_pp_slowly,
    last_norm,
    layercam_slowly,
    legrad_slowly,
    rise_mask_slowly,
    scorecam_slowly,
    some_images,
    state,
    tiny_vit,
    upsampled_slowly,
)
from timm.models.vision_transformer import ParallelScalingBlock  # type: ignore[attr-defined, unused-ignore]
from torch import Tensor, nn

import cam
from robustkit.attention import FORMULAS, set_attention
from robustkit.evaluations.maps import OPTIONS

pytestmark = pytest.mark.usefixtures("one_thread")
NEW = (
    *(cam.LeGrad, cam.Chefer, cam.GradCAMPlusPlus, cam.LayerCAM, cam.ScoreCAM, cam.RISE),
    *(cam.IntegratedGradients, cam.SmoothGrad),
)
FEW: dict[Any, dict[str, Any]] = {
    cam.RISE: {"masks": 9, "cells": 3},
    cam.IntegratedGradients: {"steps": 5},
    cam.SmoothGrad: {"samples": 5},
}


@pytest.mark.parametrize("formula", sorted(FORMULAS))
def test_attention_s_gradients_are_the_papers_under_every_formula(formula: str) -> None:
    model, images = set_attention(tiny_vit().double(), formula), some_images(2).double()
    for name, parameter in model.named_parameters():
        if "scale" in name:
            parameter.data = parameter.data * torch.linspace(0.7, 1.6, parameter.numel()).view_as(parameter)
    targets = torch.tensor([[4, 1], [0, 6]])
    legrad, last, chefer = cam.LeGrad(model), cam.LeGrad(model, layers=1), cam.Chefer(model)
    maps = [explain(images, targets) for explain in (legrad, last, chefer)]
    for b, t in ((0, 0), (1, 1)):
        target = int(targets[b, t])
        slow = [legrad_slowly(model, images[b], target, layers) for layers in (3, 1)]
        slow.append(chefer_slowly(model, images[b], target, formula))
        for ours, values in zip(maps, slow, strict=True):
            close(ours[b, t], upsampled_slowly(values, (2, 3), (16, 24)), 2e-6)
    assert (maps[0] - maps[1]).abs().max() > 0.02


@pytest.mark.parametrize(
    ("options", "size", "grid"),
    [
        ({"img_size": 32, "reg_tokens": 4, "no_embed_class": True, "init_values": 0.9}, (32, 32), (4, 4)),
        ({"dynamic_img_size": True, "dynamic_img_pad": True}, (20, 17), (3, 3)),
        ({"global_pool": "avg"}, (16, 24), (2, 3)),
        ({"global_pool": "avg", "class_token": False}, (16, 24), (2, 3)),
    ],
)
def test_every_kind_of_vit(options: Any, size: tuple[int, int], grid: tuple[int, int]) -> None:
    model, images = tiny_vit(**options).double(), some_images(2, *size).double()
    for kind, slow in (
        (cam.LeGrad, lambda image, target: legrad_slowly(model, image, target, 3)),
        (cam.Chefer, lambda image, target: chefer_slowly(model, image, target, "standard")),
        (cam.GradCAMPlusPlus, lambda image, target: gradcam_pp_slowly(model, image, target)),
        (cam.LayerCAM, lambda image, target: layercam_slowly(model, image, target)),
    ):
        result = kind(model).explain(images)
        close(result.logits, model(images).detach())
        values = slow(images[1], int(result.target[1]))
        close(result.maps[1], upsampled_slowly(values, grid, size))
    wrapped = nn.Sequential(nn.Identity(), model)
    close(cam.LeGrad(wrapped)(images), cam.LeGrad(model)(images))


def test_blocks_of_attention_and_mlp_in_one() -> None:
    model, images = tiny_vit(block_fn=ParallelScalingBlock, init_values=0.9), some_images(2)
    for kind in (cam.LeGrad, cam.Chefer):
        with kind(model) as explain:
            both = explain.explain(images, torch.tensor([[2, 3], [4, 3]]))
            assert not both.degenerate.any()
            close(both.maps[1, 1], explain(images[1:], 3)[0])


def test_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward, and as few backwards as each method needs: none for masks, whatever the number of targets."""
    backwards: list[bool] = []
    grad = torch.autograd.grad

    def counted(*arguments: Any, **options: Any) -> Any:
        backwards.append(options["retain_graph"])
        return grad(*arguments, **options)

    monkeypatch.setattr(torch.autograd, "grad", counted)
    model, images = tiny_vit(depth=5), some_images(4)
    rows = {cam.RISE: 1 + 9, cam.IntegratedGradients: 1 + 5, cam.SmoothGrad: 1 + 5, cam.ScoreCAM: 1 + 48}
    for target, T in ((None, 1), (torch.tensor([[0, 1]] * 4), 2)):
        for kind in NEW:
            seen = Passes(model)
            shown: list[int] = []
            handle = model.patch_embed.register_forward_hook(lambda m, i, o, shown=shown: shown.append(len(o)))
            backwards.clear()
            options = FEW.get(kind, {}) | ({"batch_size": 64} if kind in rows else {})
            kind(model, **options).explain(images, target)
            handle.remove()
            assert sum(shown) == 4 * rows.get(kind, 1)
            if kind in (cam.RISE, cam.ScoreCAM):
                assert backwards == []
            else:
                assert backwards == [*[True] * (T - 1), False]
            assert seen.count == (1 if kind not in rows else 1 + -(-(rows[kind] - 1) * 4 // 64))
            if target is not None and kind in rows and kind is not cam.ScoreCAM:
                explain, draws = kind(model, **options), Draws(range(4))
                whole = explain.explain(images, target, rng=draws)
                before = seen.count
                maps = explain(images, target, rng=draws)  # nobody asks for logits
                assert seen.count - before == -(-(rows[kind] - 1) * 4 // 64) and torch.equal(maps, whole.maps)


def test_the_graph_of_legrad_is_its_own_block_s() -> None:
    model, begins = tiny_vit(), {}
    for part in ("patch_embed", "blocks.0", "blocks.1.norm1", "blocks.1.attn.qkv", "blocks.2.norm2"):
        model.get_submodule(part).register_forward_hook(
            lambda module, inputs, output, part=part: begins.update({part: output.requires_grad})
        )
    cam.LeGrad(model)(some_images(2))
    inside = {"blocks.0": True, "blocks.1.norm1": False, "blocks.1.attn.qkv": False, "blocks.2.norm2": True}
    assert begins == {"patch_embed": False} | inside


@pytest.mark.parametrize("kind", NEW)
def test_batch_order_parts_and_targets_do_not_matter(kind: Any) -> None:
    images, targets, draws = some_images(5), torch.tensor([[0, 3], [1, 3], [2, 0], [3, 3], [1, 2]]), Draws(range(5))
    for model in (tiny_vit(), cnn()) if kind not in (cam.LeGrad, cam.Chefer) else (tiny_vit(),):
        options = FEW.get(kind, {})
        small = {"batch_size": 7} if "batch_size" in inspect.signature(kind).parameters else {}
        with kind(model, **options) as explain, kind(model, **options, **small) as parted:
            both = explain.explain(images, targets, rng=draws)
            assert both.maps.shape == (5, 2, 16, 24) and both.degenerate.shape == both.target.shape == (5, 2)
            order = torch.tensor([3, 0, 4])
            close(both.maps[order, 0], parted(images[order], targets[order, 0], rng=draws.take(order)), 3e-5)
        assert kind is cam.Chefer or (both.maps[:, 0] - both.maps[:, 1]).abs().max() > 0.01


def test_options_of_conditions_are_those_of_explainers() -> None:
    for name, options in OPTIONS.items():
        parameters = inspect.signature(cam.METHODS[name]).parameters
        assert {key: float(option.usual) for key, option in options.items()} == {
            key: parameters[key].default for key in parameters if key not in ("model", "fill", "batch_size")
        }


# --- paths -----------------------------------------------------------------------------------------------------------


class Square(nn.Module):
    """Logits of a quadratic form: sum of weight * x^2, and its negative."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 2, 3 * 16 * 24).view(3, 16, 24))

    def forward(self, images: Tensor) -> Tensor:
        value = (self.weight * images**2).sum(dim=(1, 2, 3))
        return torch.stack([value, -value], dim=1)


def test_integrated_gradients_are_complete() -> None:
    images, fill = some_images(2).double(), torch.tensor([0.3, 0.1, 0.6])
    for model in (tiny_vit().double(), cnn().double()):
        plain = fill.double().view(1, 3, 1, 1).expand(1, 3, 16, 24)
        for steps, within in ((4, 0.5), (64, 2e-3)):
            tool = cam.IntegratedGradients(model, steps=steps, fill=fill)
            parts = tool.attributions(images, torch.tensor([[0, 2], [1, 2]]))
            assert parts.shape == (2, 2, 3, 16, 24)
            with torch.no_grad():
                gained = (model(images) - model(plain)).gather(1, torch.tensor([[0, 2], [1, 2]]))
            torch.testing.assert_close(parts.double().sum(dim=(2, 3, 4)), gained, rtol=0, atol=within)
        close(tool.attributions(images, 2), parts[:, 1])
    model = Square()  # of degree 2: two steps are exact
    exact = model.weight.detach() * (images**2 - 0.2**2)
    close(cam.IntegratedGradients(model, steps=2, fill=0.2).attributions(images.float(), 0), exact.float())
    raw = exact.sum(dim=1).abs()[1]
    maps = cam.IntegratedGradients(model, steps=2, fill=0.2)(images.float(), 1)
    close(maps[1], ((raw - raw.min()) / (raw.max() - raw.min())).float())


def test_smooth_grad_is_the_mean_over_the_draws() -> None:
    model, images, draws = Square(), some_images(2), Draws(range(2))
    images[1] *= 0.5
    noise = torch.stack([draws.normal((3, 16, 24), f"cam/smooth-grad/{i}") for i in range(6)])
    spread = torch.tensor([(image.max() - image.min()).item() for image in images]).view(2, 1, 1, 1)
    raw = (2 * model.weight.detach() * (images + 0.2 * spread * noise.mean(dim=0))).abs().sum(dim=1)
    low, high = raw.amin(dim=(1, 2), keepdim=True), raw.amax(dim=(1, 2), keepdim=True)
    tool = cam.SmoothGrad(model, samples=6, noise=0.2)
    close(tool(images, 1, rng=draws), (raw - low) / (high - low))
    torch.manual_seed(0)
    one, other = tool(images), tool(images)
    assert (one - other).abs().max() > 1e-3


# --- masks -----------------------------------------------------------------------------------------------------------


def test_rise_is_the_authors_masks_weighed_by_probabilities() -> None:
    model, images, draws = tiny_vit(), some_images(2), Draws(range(2))
    tool = cam.RISE(model, masks=6, cells=4, share=0.4, fill=0.25)
    numbers = tool.draws(images, draws)
    masks = tool.drawn(numbers, (16, 24))
    assert masks.shape == (2, 6, 16, 24) and masks.min() >= 0 and masks.max() <= 1
    raw = torch.zeros(16, 24, dtype=torch.float64)
    for m in range(6):
        cells = (numbers[1, m, :16].view(4, 4) < 0.4).float()
        shift = int(numbers[1, m, 16] * 4), int(numbers[1, m, 17] * 6)
        slow = rise_mask_slowly(cells, shift, (16, 24))
        close(masks[1, m].double(), slow, 1e-5)
        with torch.no_grad():
            shown = (images[1] * slow + 0.25 * (1 - slow)).float()
            raw += model(shown[None]).softmax(dim=1)[0, 3].item() * slow
    close(tool(images, 3, rng=draws)[1].double(), (raw - raw.min()) / (raw.max() - raw.min()), 1e-5)
    many = cam.RISE(model, masks=4000, cells=4)
    mean = many.drawn(many.draws(images, draws), (16, 24)).mean(dim=(0, 1))
    assert (mean - 0.5).abs().max() < 0.03  # each pixel is shown half of the time


def test_score_cam_is_the_algorithm_and_asks_once_for_channels_without_a_shape() -> None:
    model, images = cnn(), some_images(2)
    model[0].weight.data[2] = 0  # a channel that is the same everywhere
    features = model[1](model[0](images)).detach()
    assert features[:, 2].amin() == features[:, 2].amax()
    with torch.no_grad():
        for target in (0, 3):
            raw = scorecam_slowly(model, features[1], images[1], target, fill=0.3)
            ours = cam.ScoreCAM(model, fill=0.3)(images, target)[1]
            close(ours, (raw - raw.min()) / (raw.max() - raw.min()))
    alive = int((features.amax(dim=(2, 3)) > features.amin(dim=(2, 3))).sum())
    rows: list[int] = []
    model.register_forward_hook(lambda module, inputs, output: rows.append(len(output)))
    cam.ScoreCAM(model)(images)
    assert rows == [2, 1, alive] and alive < 10
    vit = tiny_vit()
    kept = torch.tensor(last_norm(vit, images[1], 5)[0]).view(48, 2, 3)
    with torch.no_grad():
        raw = scorecam_slowly(vit, kept, images[1], 5, fill=0.0)
    close(cam.ScoreCAM(vit)(images, 5)[1], upsampled_slowly(raw.flatten().tolist(), (2, 3), (16, 24)), 3e-5)


# --- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x: cam.LeGrad(cnn()), "^LeGrad needs a vision transformer of timm's kind, .* use grad-cam or"),
        (lambda m, x: cam.LeGrad(m, layers=4), "^layers is 4; the model has 3 blocks: expected 1 … 3, or 0 for all$"),
        (lambda m, x: cam.Chefer(cnn()), "^chefer needs a vision transformer of timm's kind"),
        (
            lambda m, x: cam.Chefer(tiny_vit(class_token=False, global_pool="max")),
            "^chefer needs what the logits are read from to be a class token, a mean of tokens or an attention pool, "
            r"and this VisionTransformer has none of them \(global_pool='max'\); use grad-cam or gradient$",
        ),
        (
            lambda m, x: cam.Chefer(LastPatch())(x),
            "^chefer follows the relevance from the class token, whose attention",
        ),
        (lambda m, x: cam.LeGrad(nn.Sequential(m, First()))(x), r"returned \(1, 7\) for 2 images of 4 rows each; exp"),
        (lambda m, x: cam.RISE(m, masks=0), "^masks is 0; expected 1 or more$"),
        (lambda m, x: cam.RISE(m, share=1), "^share is 1; expected the share of cells that show the image, between"),
        (lambda m, x: cam.RISE(m, masks=2, fill=(0, 0))(x), "^fill has 2 values; expected one, or one for each of 3"),
        (lambda m, x: cam.SmoothGrad(m, noise=-1), "^noise is -1; expected 0 or more$"),
        (lambda m, x: cam.IntegratedGradients(m, steps=0), "^steps is 0; expected 1 or more$"),
        (lambda m, x: cam.ScoreCAM(m, batch_size=0), "^batch_size is 0; expected 1 or more$"),
        (lambda m, x: cam.IntegratedGradients(Severed())(x), "^the logits have no gradient for the images"),
    ],
)
def test_rejects(call: Callable[[Any, Tensor], object], message: str) -> None:
    model = tiny_vit()
    before = state(model)
    with pytest.raises(ValueError, match=message) as caught:
        call(model, some_images(2))
    assert "\n" not in str(caught.value) and state(model) == before


class LastPatch(nn.Module):
    """Logits of the last patch instead of the class token."""

    def __init__(self) -> None:
        super().__init__()
        self.vit = tiny_vit()

    def forward(self, images: Tensor) -> Tensor:
        return self.vit.head(self.vit.forward_features(images)[:, -1])


class First(nn.Module):
    def forward(self, logits: Tensor) -> Tensor:
        return logits[:1]


class Severed(nn.Module):
    def forward(self, images: Tensor) -> Tensor:
        return images.detach().mean(dim=(2, 3))
