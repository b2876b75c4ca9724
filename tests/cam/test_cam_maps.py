"""Maps: the papers' sums, closed forms, passes counted, models left as found, errors."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from attack_oracles import Draws
from cam_models import Passes, close, cnn
from cam_oracles import (
    agcam_by_detaching,
    agcam_of_parallel_slowly,
    agcam_slowly,
    gradcam_slowly,
    rollout_slowly,
    some_images,
    state,
    tiny_vit,
    upsampled_slowly,
)
from places import SHARED
from timm.models.vision_transformer import ParallelScalingBlock, ResPostBlock  # type: ignore[attr-defined, unused-ignore]
from torch import Tensor, nn
from torch.nn import functional

import cam
import robustkit
from cam.attention import roll
from cam.explainer import upright
from robustkit.attention import FORMULAS, capture, set_attention
from robustkit.attention.layers import MultiheadAttention
from robustkit.models.dense import build_segmenter

VIT = SHARED / "weights" / "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("formula", sorted(FORMULAS))
@pytest.mark.parametrize("method", [cam.AGCAM, cam.AGCAMFull])
def test_agcam_is_the_paper_s_sum_under_every_formula(method: type[cam.Explainer], formula: str) -> None:
    model = set_attention(tiny_vit().double(), formula)
    for name, parameter in model.named_parameters():
        if "scale" in name:  # not at their initial values, which could hide a mistake
            parameter.data = parameter.data * torch.linspace(0.7, 1.6, parameter.numel()).view_as(parameter)
    images = some_images(2).double()
    targets = torch.tensor([[4, 1], [0, 6]])
    maps = method(model)(images, targets)
    full = method is cam.AGCAMFull
    for b, t in ((0, 0), (1, 1)):
        values, other = (agcam_slowly(model, images[b], int(targets[b, t]), formula, way) for way in (full, not full))
        assert min(values) < 0.9 * max(values)
        close(maps[b, t], upsampled_slowly(values, (2, 3), (16, 24)), 2e-6)
        assert (maps[b, t] - upsampled_slowly(other, (2, 3), (16, 24))).abs().max() > 0.02


@pytest.mark.parametrize(
    ("options", "size", "grid"),
    [
        ({"img_size": 32}, (32, 32), (4, 4)),
        ({"arch": "deit_tiny_distilled_patch16_224"}, (16, 24), (2, 3)),
        ({"reg_tokens": 4, "no_embed_class": True, "init_values": 0.9}, (16, 24), (2, 3)),
        ({"dynamic_img_size": True}, (24, 16), (3, 2)),
        ({"dynamic_img_size": True, "dynamic_img_pad": True}, (20, 17), (3, 3)),
        ({"global_pool": "avg", "pool_include_prefix": True}, (16, 24), (2, 3)),
        ({"global_pool": "avg"}, (16, 24), (2, 3)),
        ({"global_pool": "avg", "class_token": False, "reg_tokens": 2}, (16, 24), (2, 3)),
        (
            {"global_pool": "avg", "class_token": False, "reg_tokens": 2, "pool_include_prefix": True},
            *((16, 24), (2, 3)),
        ),
    ],
)
def test_every_method_reads_every_kind_of_vit(options: Any, size: tuple[int, int], grid: tuple[int, int]) -> None:
    model, images = tiny_vit(**options), some_images(2, *size)
    predicted = model(images).argmax(dim=1)
    for method, slow in (
        (cam.AGCAM, lambda image, target: agcam_slowly(model, image, target, "standard")),
        (cam.AGCAMFull, lambda image, target: agcam_slowly(model, image, target, "standard", full=True)),
        (cam.Rollout, lambda image, target: rollout_slowly(model, image)),
        (cam.GradCAM, lambda image, target: gradcam_slowly(model, image, target)),
    ):
        result = method(model).explain(images)
        close(result.logits, model(images).detach())
        assert torch.equal(result.target, predicted) and not result.logits.requires_grad
        values = slow(images[1], int(predicted[1]))
        if max(values) == min(values):
            assert method is cam.GradCAM and result.degenerate[1]
            continue
        close(result.maps[1], upsampled_slowly(values, grid, size))


def test_a_wrapper_may_resize_and_the_map_is_still_the_image_s() -> None:
    model, images = tiny_vit(img_size=32), some_images(2, 48, 40)
    small = functional.interpolate(images, (32, 32))
    maps = cam.AGCAM(nn.Sequential(nn.Upsample((32, 32)), model))(images, 2)
    assert maps.shape == (2, 48, 40)
    close(maps[0], upsampled_slowly(agcam_slowly(model, small[0], 2, "standard"), (4, 4), (48, 40)))


class Alone(nn.Module):
    """Self-attention by a multi-head layer, called as timm's blocks call theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = MultiheadAttention(48, 3, batch_first=True, attention="quest")

    def forward(self, x: Tensor, **options: Any) -> Tensor:
        return self.layer(query=x, key=x, value=x)[0]


def eva() -> Any:
    """Rotary positions, q, k and v apart, a norm after mixing, a gate that reads what attention reads."""
    size = {"img_size": (16, 24), "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 3, "num_classes": 7}
    return timm.create_model("eva02_tiny_patch14_224", **size, global_pool="token").eval()


def with_multihead() -> Any:
    model = tiny_vit()
    for block in model.blocks:
        block.attn = Alone()
    return model.eval()


@pytest.mark.parametrize("make", [tiny_vit, eva, with_multihead, lambda: tiny_vit(block_fn=ResPostBlock)])
def test_agcam_is_what_detaching_the_input_of_every_attention_layer_gives(make: Callable[[], Any]) -> None:
    model, images = make().double(), some_images(2).double()
    generator = torch.Generator().manual_seed(2)
    for parameter in model.parameters():
        parameter.data += 0.15 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    maps = cam.AGCAM(model)(images, 3)
    for image, ours in zip(images, maps, strict=True):
        close(ours, upsampled_slowly(agcam_by_detaching(model, image, 3), (2, 3), (16, 24)), 2e-6)
    assert (maps - cam.AGCAMFull(model)(images, 3)).abs().max() > 0.02


@pytest.mark.parametrize("method", [cam.AGCAM, cam.AGCAMFull])
def test_in_a_block_of_attention_and_mlp_in_one_the_mlp_keeps_its_gradient(method: type[cam.Explainer]) -> None:
    model, images = tiny_vit(block_fn=ParallelScalingBlock, init_values=0.9).double(), some_images(2).double()
    values = agcam_of_parallel_slowly(model, images[1], 3, full=method is cam.AGCAMFull)
    close(method(model)(images, 3)[1], upsampled_slowly(values, (2, 3), (16, 24)), 2e-6)


class Einsum(nn.Module):
    """A block that is its own attention, and mixes values by no matrix product."""

    def __init__(self, **_: Any) -> None:
        super().__init__()

    def forward(self, x: Tensor) -> Tensor:
        attention = (x @ x.mT)[:, None].softmax(dim=-1)
        return x + torch.einsum("bhnm,bmc->bnc", attention, x)


def test_values_that_are_mixed_out_of_sight_are_no_cut_gradient() -> None:
    model = tiny_vit(block_fn=Einsum)
    before = state(model)
    with pytest.raises(ValueError, match=r"^a Einsum multiplies no attention of tokens by tokens with values, where"):
        cam.AGCAM(model)(some_images(2))
    assert state(model) == before
    assert not cam.AGCAMFull(model).explain(some_images(2)).degenerate.any()


class Pooled(nn.Module):
    """A Segmenter as a classifier: the mean of each mask."""

    def __init__(self, decoder: str) -> None:
        super().__init__()
        encoder = {"patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 3}
        self.segmenter = build_segmenter(
            "vit_tiny_patch16_224", 4, window=(16, 24), decoder=decoder, arch_kwargs=encoder
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.segmenter(images).mean(dim=(2, 3))


UNREAD = "the class token's attention has hardly any gradient, that of others has"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: Pooled("linear").eval(),
            rf"^AG-CAM follows the gradient to the class token without passing through attention, and {UNREAD}: the "
            r"logits are not read from it; use agcam-full, grad-cam or gradient$",
        ),
        (lambda: Pooled("mask_transformer").eval(), UNREAD),
    ],
)
def test_where_nothing_but_attention_leads_to_the_class_token_there_is_the_full_gradient_only(
    make: Callable[[], Any], message: str
) -> None:
    model, images = make(), some_images(2)
    before = state(model)
    with pytest.raises(ValueError, match=message):
        cam.AGCAM(model)(images)
    assert state(model) == before
    result = cam.AGCAMFull(model).explain(images)
    assert not result.degenerate.any()
    with pytest.raises(ValueError, match=r"returned \(2, 4, 16, 24\) for 2 images; expected logits"):
        cam.AGCAM(model.segmenter)(images)


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the real weights of ../shared")
def test_real_vit_by_detaching_what_attention_reads() -> None:
    model = robustkit.load(str(VIT), arch="vit_tiny_patch16_224")
    image = some_images(1, 224, 224)
    values = agcam_by_detaching(model.network, model.normalize(image)[0], 207)
    close(cam.AGCAM(model)(image, 207)[0], upsampled_slowly(values, (14, 14), (224, 224)))


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the real weights of ../shared")
def test_real_vit_by_another_way_to_its_attention() -> None:
    model = robustkit.load(str(VIT), arch="vit_tiny_patch16_224")
    images = some_images(2, 224, 224)
    with capture(model.network) as captured:
        logits = model(images)
        predicted = logits.argmax(dim=1)
        gradients = torch.autograd.grad(logits.gather(1, predicted[:, None]).sum(), captured.attention)
    total = torch.zeros(2, 14, 14)
    for scores, gradient in zip(captured.scores, gradients, strict=True):
        terms = gradient[:, :, 0, 1:].clamp(min=0) * torch.sigmoid(scores[:, :, 0, 1:])
        total += terms.sum(dim=1).reshape(2, 14, 14).detach()
    close(cam.AGCAMFull(model)(images)[1], upsampled_slowly(total[1].flatten().tolist(), (14, 14), (224, 224)))


def test_a_loaded_classifier_and_its_bare_network_agree() -> None:
    model = robustkit.load("zoo:shapes-vit-quest")
    pixels = some_images(3, 64, 64)
    for method in (cam.AGCAM, cam.Rollout, cam.GradCAM):
        maps = method(model)(pixels)
        close(maps, method(model.network)(model.normalize(pixels)))
        assert maps.std() > 0.05
    with torch.no_grad():
        plain = cam.AGCAM(set_attention(model.network, "standard"))(model.normalize(pixels))
    assert (plain - cam.AGCAM(robustkit.load("zoo:shapes-vit-quest"))(pixels)).abs().max() > 0.05


@pytest.mark.parametrize("method", [cam.AGCAM, cam.AGCAMFull, cam.Rollout, cam.GradCAM, cam.InputGradient])
def test_batch_order_and_targets_do_not_matter(method: Any) -> None:
    for model in (tiny_vit(), cnn()) if method in (cam.GradCAM, cam.InputGradient) else (tiny_vit(),):
        images, targets = some_images(5), torch.tensor([[0, 3], [1, 3], [2, 0], [3, 3], [1, 2]])
        with method(model) as explain:
            both = explain.explain(images, targets)
            assert both.maps.shape == (5, 2, 16, 24) and both.degenerate.shape == both.target.shape == (5, 2)
            for i in range(5):
                close(both.maps[i, 1], explain(images[i : i + 1], int(targets[i, 1]))[0])
            order = torch.tensor([3, 0, 4])
            close(both.maps[order, 0], explain(images[order], targets[order, 0]))
            assert torch.equal(explain.explain(images, 3).target, torch.full((5,), 3))
        assert method is cam.Rollout or (both.maps[:, 0] - both.maps[:, 1]).abs().max() > 0.1


class BothRead(nn.Module):
    """A head over the class token and the mean of the patches, as DINOv2's classifiers have."""

    def __init__(self, share: float) -> None:
        super().__init__()
        self.vit, self.share = tiny_vit(), share

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.vit.forward_features(images)
        return self.vit.head(self.share * tokens[:, 0] + (1 - self.share) * tokens[:, 1:].mean(dim=1))


@pytest.mark.parametrize("method", [cam.AGCAM, cam.Chefer])
def test_a_class_token_that_is_hardly_read_is_not_explained(method: Any) -> None:
    """Where patches are read, too, the map is of the class token's part; next to none of it is refused."""
    images = some_images(2)
    assert not method(BothRead(0.5).eval()).explain(images).degenerate.any()
    with pytest.raises(ValueError, match="has hardly any gradient"):
        method(BothRead(0.001).eval())(images)


def test_rollout_by_hand() -> None:
    first = torch.tensor([[[0.0, 1.0], [0.5, 0.5]]])
    second = torch.tensor([[[0.5, 0.5], [0.0, 1.0]]])
    # (A + I) / 2: [[.5, .5], [.25, .75]] and [[.75, .25], [0, 1]]; their product's first row
    token = torch.tensor([[1.0, 0.0]])
    close(roll([first, second], token), torch.tensor([[0.75 * 0.5 + 0.25 * 0.25, 0.75 * 0.5 + 0.25 * 0.75]]))
    close(roll([1.02 * first, 0.9 * second], token), roll([first, second], token))


@pytest.mark.parametrize("inplace", [False, True])
def test_gradcam_of_a_pooled_linear_head_is_cam(inplace: bool) -> None:
    """Weights are the head's own over the number of positions, for features before the ReLU where it is open."""
    model, images = cnn(inplace=inplace), some_images(2)
    after = model[1](model[0](images)).detach()
    for target in range(4):
        raw = torch.einsum("bkhw,k->bhw", after, model[4].weight[target].detach()).relu()
        low, high = raw.amin(dim=(1, 2), keepdim=True), raw.amax(dim=(1, 2), keepdim=True)
        close(cam.GradCAM(model)(images, target), ((raw - low) / (high - low)).nan_to_num())
    before = model[0](images).detach()
    assert (before < 0).any()
    weights = model[4].weight[0].detach() * (before > 0).float().mean(dim=(2, 3))
    raw = torch.einsum("bkhw,bk->bhw", before, weights).relu()[0]
    for layer in (model[0], "0"):
        close(cam.GradCAM(model, layer)(images, 0)[0], (raw - raw.min()) / (raw.max() - raw.min()))


def test_gradcam_s_own_choice_of_layer() -> None:
    for arch, layer in (("resnet10t", "layer4"), ("efficientnet_lite0", "bn2"), ("test_convnext", "stages")):
        model, images = timm.create_model(arch, num_classes=5).eval(), some_images(2, 96, 64)
        with cam.GradCAM(model) as explain:
            forwards = Passes(model)
            first = explain(images, 3)
            grads: list[bool] = []
            next(model.children()).register_forward_hook(lambda *call, seen=grads: seen.append(call[2].requires_grad))
            again = explain(images, 3)
            assert forwards.count == 2 and grads == [False]  # the layer is known by now
        assert torch.equal(first, again)
        close(first, cam.GradCAM(model, layer)(images, 3))
    pooled = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 5))
    close(cam.GradCAM(pooled)(images, 3), cam.GradCAM(pooled, "0")(images, 3))
    said = r"no module of Mixer gives its last features as a map \(B, C, h, w\); use gradient"
    with pytest.raises(ValueError, match=said):
        cam.GradCAM(Mixer())(some_images(1))


class Mixer(nn.Module):
    """Ends in tokens, after a map."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.head = nn.Conv2d(3, 4, 8, 8), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.norm(self.stem(images).flatten(2).transpose(1, 2)).mean(dim=1))


class ChannelsLast(Mixer):
    """As timm's Swin: maps (B, h, w, C), and it says so."""

    output_fmt, num_classes = "NHWC", 3

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.norm(self.stem(images).permute(0, 2, 3, 1)).mean(dim=(1, 2)))


def test_gradcam_of_channels_last_maps() -> None:
    model, images = ChannelsLast(), some_images(2, 48, 40)
    features = model.norm(model.stem(images).permute(0, 2, 3, 1)).detach()
    raw = (features * model.head.weight[2].detach()).sum(dim=-1).relu()
    assert raw[0].max() > 0
    close(cam.GradCAM(model)(images, 2)[0], upsampled_slowly(raw[0].flatten().tolist(), (6, 5), (48, 40)))
    convolution = cam.GradCAM(model, "stem")(images, 2)  # channels first, whatever the network says
    model.output_fmt = "NCHW"
    close(convolution, cam.GradCAM(model, "stem")(images, 2))


def test_gradient_of_a_linear_model_is_closed() -> None:
    model, images = nn.Sequential(nn.Flatten(), nn.Linear(3 * 4 * 4, 2)), some_images(2, 4, 4)
    raw = (model[1].weight[1].detach().reshape(3, 4, 4) * images).sum(dim=1).abs()
    low, high = raw.amin(dim=(1, 2), keepdim=True), raw.amax(dim=(1, 2), keepdim=True)
    close(cam.InputGradient(model)(images, 1), (raw - low) / (high - low))


def test_controls() -> None:
    images, draws = some_images(3, 56, 112), Draws(range(3))
    random = cam.RandomMap(grid=5)(images, rng=draws)
    numbers = draws.uniform((5, 5), "cam/random")
    close(random[2], upsampled_slowly(numbers[2].flatten().tolist(), (5, 5), (56, 112)))
    torch.manual_seed(0)
    one, other = cam.RandomMap()(images), cam.RandomMap()(images)
    assert (one - other).abs().max() > 0.3 and (one[0] - one[1]).abs().max() > 0.3
    torch.manual_seed(0)
    assert torch.equal(cam.RandomMap()(images), one)
    hill = cam.CentredGaussian()(images)[0]  # sigma 16; 27.5 rows and 55.5 columns from the corner to the centre
    for i, j, square in (
        (0, 0, 27.5**2 + 55.5**2),
        (28, 56, 0.5),
        (0, 55, 27.5**2 + 0.25),
        (55, 40, 27.5**2 + 15.5**2),
    ):
        assert hill[i, j].item() == pytest.approx(math.exp(-square / 512), rel=1e-5)
    full = cam.FullImage().explain(images, torch.tensor([[1, 2]] * 3))
    assert (full.maps == 1).all() and full.maps.shape == (3, 2, 56, 112) and not full.degenerate.any()
    assert full.logits.shape == (3, 0) and full.target.tolist() == [[1, 2]] * 3
    assert cam.FullImage().explain(images).target.tolist() == [-1] * 3
    model = cnn()
    result = cam.CentredGaussian(model).explain(images)
    close(result.logits, model(images).detach())
    assert torch.equal(result.target, result.logits.argmax(dim=1))


def test_what_counts_as_a_map() -> None:
    grids = torch.tensor([[0.1, 0.2], [0.1, 0.1], [0.1, 0.1 + 1e-7], [0.1, 0.1 + 1e-6], [0.1, math.inf], [1e-20, 0.0]])
    maps, degenerate = upright(grids[:, None, None, :], (2, 6))
    assert degenerate[:, 0].tolist() == [False, True, True, False, True, False]
    close(maps[0, 0], torch.tensor([0, 0, 1 / 3, 2 / 3, 1, 1]).expand(2, 6))


def test_maps_that_say_nothing_are_zero_and_flagged() -> None:
    images = some_images(3)
    images[1, 0, 3, 3] = float("nan")
    for method in (cam.AGCAM, cam.GradCAM, cam.InputGradient, cam.Rollout):
        result = method(tiny_vit()).explain(images, torch.tensor([[0, 1, 2, 3, 4, 5, 6]] * 3))
        assert result.degenerate[1].all() and not result.degenerate[0].all()
        assert (result.maps[result.degenerate] == 0).all()
        good = result.maps[~result.degenerate]
        assert (good.amin(dim=(1, 2)) == 0).all() and (good.amax(dim=(1, 2)) == 1).all()
    flat = tiny_vit(img_size=(24, 40))
    for block in flat.blocks:
        block.attn.qkv.weight.data[:96] = 0
        block.attn.qkv.bias.data[:96] = 0
    assert cam.Rollout(flat).explain(some_images(2, 24, 40)).degenerate.all()  # attention of a sixteenth everywhere
    blind = tiny_vit()
    blind.head.weight.data.zero_()
    for method in (cam.AGCAM, cam.GradCAM, cam.InputGradient):
        result = method(blind).explain(images[:1])
        assert result.degenerate.all() and (result.maps == 0).all()


def test_other_dtypes_and_no_images() -> None:
    model, images = tiny_vit(), some_images(2)
    for method in (cam.AGCAM, cam.Rollout, cam.InputGradient):
        plain = method(model)(images, 1)
        assert torch.equal(method(model)(images.double(), 1).float(), method(model)(images.double().float(), 1))
        low = method(tiny_vit().bfloat16()).explain(images.bfloat16(), 1)
        assert low.maps.dtype == torch.float32 and low.logits.dtype == torch.bfloat16
        assert (low.maps - plain).abs().mean() < 0.05
    for name, kind in cam.METHODS.items():
        empty = kind(model).explain(images[:0])
        assert empty.maps.shape == (0, 16, 24) and empty.target.shape == (0,) and empty.maps.dtype == torch.float32
        assert cam.method(name) is kind
        assert kind(model)(images[:0], torch.zeros(0, 3, dtype=torch.int64)).shape == (0, 3, 16, 24)
