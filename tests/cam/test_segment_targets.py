"""What explains a class of each pixel: closed forms, slow replicas with hooks, pytorch-grad-cam, and refusals."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import numpy as np
import pytest
import torch
from attack_oracles import Draws
from cam_models import close
from places import SHARED
from segmenters import pixels, small
from torch import Tensor, nn
from torch.nn import functional

import cam
import robustkit
from cam import SegmentTarget
from cam.faithfulness import abpc, insertion_deletion, region_iou
from robustkit.models.dense import Dense, Windows

pytestmark = pytest.mark.usefixtures("one_thread")


class Logits(nn.Module):
    """A network of transformers, of which only the logits are returned."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return self.network(images).logits  # type: ignore[no-any-return]


def segformer() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(3)
    sizes = {"hidden_sizes": [16, 32, 64, 128], "depths": [1, 2, 1, 1], "decoder_hidden_size": 32, "num_labels": 5}
    config = transformers.SegformerConfig(**sizes, initializer_range=0.2)
    return Logits(transformers.SegformerForSemanticSegmentation(config)).eval().requires_grad_(False)


def linear() -> tuple[nn.Sequential, Tensor]:
    """A network of one linear layer, features first, and its weights (K, 3)."""
    weights = torch.tensor([[1.0, -2.0, 0.5], [0.5, 1.0, -1.0], [-1.0, 0.25, 2.0]])
    layer = nn.Conv2d(3, 3, 1, bias=False)
    layer.weight.data = weights[:, :, None, None]
    return nn.Sequential(nn.Identity(), layer).eval(), weights


def scaled(maps: Tensor) -> Tensor:
    low, high = maps.amin(dim=(1, 2), keepdim=True), maps.amax(dim=(1, 2), keepdim=True)
    return (maps - low) / (high - low)


def test_maps_of_one_linear_layer_have_a_closed_form() -> None:
    net, weights = linear()
    images, regions = pixels(2, 3, 6, 7), torch.zeros(2, 6, 7, dtype=torch.bool)
    regions[0, :3], regions[1, 2:5, 1:3] = True, True
    classes = torch.tensor([0, 2])
    of_class = weights[classes][:, :, None, None]
    parts = {
        "gradient": (images * of_class).sum(dim=1).abs() * regions,
        "integrated-gradients": (images * of_class).sum(dim=1).abs() * regions,
        "layer-cam": (images * of_class.relu()).sum(dim=1).relu() * regions,
        "grad-cam": (images * of_class)
        .sum(dim=1)
        .relu(),  # its weights are means over the image: it marks other places
    }
    for name, expected in parts.items():
        options = {"layer": "0"} if "cam" in name else {}
        found = cam.METHODS[name](net, **options).explain(images, SegmentTarget(classes, regions))
        close(found.maps, scaled(expected), 1e-5)
        assert found.target.tolist() == [0, 2] and not found.degenerate.any()
        close(found.logits, (net(images) * regions[:, None]).sum(dim=(2, 3)), 1e-4)


def test_the_layer_of_a_network_without_stages_has_the_most_channels_on_the_smallest_grid() -> None:
    torch.manual_seed(3)
    for widths, deepest in (((6, 8, 4), "2"), ((8, 6, 4), "1"), ((4, 8, 8), "3")):
        first, second, third = widths
        stages = nn.Conv2d(first, second, 1), nn.Conv2d(second, third, 1), nn.ConvTranspose2d(third, 3, 2, 2)
        net = nn.Sequential(nn.Conv2d(3, 9, 1), nn.Conv2d(9, first, 2, 2), *stages).eval()
        images, target = pixels(1, 3, 8, 12), SegmentTarget(1, torch.ones(8, 12, dtype=torch.bool))
        maps = {name: cam.METHODS["layer-cam"](net, layer=name)(images, target) for name in "123"}
        assert torch.equal(cam.METHODS["layer-cam"](net)(images, target), maps[deepest])
        assert all(not torch.equal(maps[deepest], maps[name]) for name in maps if name != deepest)


def test_windows_of_an_image_add_up_to_its_map() -> None:
    """Of a pixel in several windows each has a part of the gradient: together they have all of it."""
    net, weights = linear()
    images, region = pixels(2, 3, 6, 7), torch.ones(6, 7, dtype=torch.bool)
    region[4:, 5:] = False
    cut = Dense(net, Windows((4, 4), (2, 3)))
    for name, of_class in (("gradient", weights[2]), ("layer-cam", weights[2].relu())):
        expected = (images * of_class[:, None, None]).sum(dim=1).abs() * region
        options = {"layer": "network.0"} if name == "layer-cam" else {}
        close(cam.METHODS[name](cut, **options)(images, SegmentTarget(2, region)), scaled(expected), 1e-5)


def test_agcam_of_windows_is_the_sum_of_theirs() -> None:
    net, images = small(classes=4).double(), pixels(1, 3, 40, 48).double()
    whole = Dense(net, Windows((32, 32), (16, 8)))
    ours = cam.AGCAM(whole).explain(images, SegmentTarget(2, torch.ones(40, 48, dtype=torch.bool)))
    slow = copy.deepcopy(whole)
    held = attended(slow.network)
    gradients = torch.autograd.grad(slow(images)[0, 2].sum(), [each[1] for each in held])
    places, total = [(top, left) for top in (0, 8) for left in (0, 8, 16)], torch.zeros(40, 48).double()
    for window, (top, left) in enumerate(places):
        terms = [
            (g[window].relu() * s[window].sigmoid())[:, 1:].sum(dim=(0, 1))[1:]
            for (s, _), g in zip(held, gradients, strict=True)
        ]
        grid = sum(terms).reshape(1, 1, 4, 4)
        total[top : top + 32, left : left + 32] += functional.interpolate(grid, (32, 32), mode="bilinear")[0, 0]
    close(ours.maps, scaled(total[None].float()), 1e-5)
    few = Dense(net, Windows((32, 32), (16, 8), batch=5))  # of six windows
    for name, said in (("agcam", "called softmax 2 times"), ("grad-cam", "runs several times for one image")):
        with pytest.raises(ValueError, match=said):
            cam.METHODS[name](few)(images, SegmentTarget())


def test_the_class_and_the_region_are_the_predicted_ones_unless_given() -> None:
    net, _ = linear()
    images = pixels(3, 3, 6, 7)
    predicted = net(images).argmax(dim=1)
    counts = [torch.bincount(each.flatten(), minlength=3) for each in predicted]
    largest = torch.stack(counts).argmax(dim=1)
    explain = cam.InputGradient(net)
    found = explain.explain(images, SegmentTarget())
    assert found.target.equal(largest)
    assert explain(images, SegmentTarget(largest, predicted == largest[:, None, None])).equal(found.maps)
    assert not (found.maps[predicted != largest[:, None, None]] > 0).any()
    without = explain.explain(images, SegmentTarget(ignored=[int(largest[0]), 99])).target
    assert without[0] == torch.stack(counts)[0].index_fill(0, largest[:1], -1).argmax()
    corner = torch.zeros(6, 7, dtype=torch.bool)
    corner[0, 0] = True
    assert explain.explain(images, SegmentTarget(regions=corner)).target.equal(predicted[:, 0, 0])
    assert explain.explain(images[:0], SegmentTarget()).maps.shape == (0, 6, 7)


def test_an_image_without_the_class_has_no_map() -> None:
    net, _ = linear()
    images = torch.zeros(2, 3, 6, 7)
    images[1, 2] = 1.0  # of class 2 everywhere
    images[0, 0] = 1.0  # of class 0
    for name in ("gradient", "layer-cam", "rise"):
        found = cam.METHODS[name](net).explain(images, SegmentTarget(2), rng=Draws(range(2)))
        assert found.degenerate.tolist()[0] and not found.maps[0].any() and found.logits[0].tolist() == [0, 0, 0]
        assert found.target.tolist() == [2, 2] and found.logits[1, 2] == 2 * 42


@pytest.mark.parametrize("name", [name for name in cam.METHODS if name not in ("full", "centre")])
def test_images_are_explained_alike_alone_and_in_a_batch(name: str) -> None:
    net, images = small(classes=4, decoder="linear"), pixels(3, 3, 32, 32)
    options = {"rise": {"masks": 12}, "smooth-grad": {"samples": 3}}.get(name, {})
    regions = torch.zeros(3, 32, 32, dtype=torch.bool)
    regions[0, :9], regions[1, :, 8:], regions[2, 20:] = True, True, True
    explain, target = cam.METHODS[name](net, **options), SegmentTarget(torch.tensor([0, 2, 1]), regions)
    whole = explain.explain(images, target, rng=Draws(range(3)))
    alone = explain.explain(images[1:2], SegmentTarget(2, regions[1]), rng=Draws([1]))
    close(whole.maps[1:2], alone.maps, 1e-6)
    assert len(whole.maps.flatten(1).unique(dim=0)) == 3 and explain._region is None


def attended(net: Any) -> list[tuple[Tensor, Tensor]]:
    """Replace each layer of attention by its formula, cut from its input; return what it will hold, in order."""
    held: list[tuple[Tensor, Tensor]] = []

    def mix(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
        scores = scale * q @ k.transpose(2, 3)
        attention = scores.softmax(dim=-1).detach().requires_grad_()
        held.append((scores.detach(), attention))
        return (attention @ v.detach()).transpose(1, 2).flatten(2)

    def of_timm(layer: Any, x: Tensor, **_: Any) -> Tensor:
        q, k, v = layer.qkv(x.detach()).unflatten(2, (3, layer.num_heads, -1)).permute(2, 0, 3, 1, 4)
        return layer.proj(mix(q, k, v, layer.scale))  # type: ignore[no-any-return]

    def of_segformer(layer: Any, x: Tensor, height: int, width: int, **_: Any) -> tuple[Tensor, None]:
        x = x.detach()
        asked = layer.sequence_reduction(x, height, width) if layer.sequence_reduction_ratio > 1 else x
        parts = ((layer.q_proj, x), (layer.k_proj, asked), (layer.v_proj, asked))
        q, k, v = (linear(y).unflatten(2, (layer.num_attention_heads, -1)).transpose(1, 2) for linear, y in parts)
        return layer.o_proj(mix(q, k, v, layer.scaling)), None

    if hasattr(net, "encoder"):
        layers, forward = [block.attn for block in net.encoder.blocks], of_timm
    else:
        stages = net.network.segformer.stages
        layers, forward = [block.attention for stage in stages for block in stage.blocks], of_segformer  # type: ignore[assignment]
    for layer in layers:
        layer.forward = lambda *inputs, layer=layer, forward=forward, **named: forward(layer, *inputs, **named)
    return held


def grids(size: tuple[int, int]) -> list[tuple[int, ...]]:
    """Of the tokens that are asked in each stage of SegFormer: each has half of the rows, rounded up, and fewer ask."""
    steps = ((4, 8), (8, 4), (16, 2), (32, 1))
    return [tuple(-(-side // step) // ratio for side in size) for step, ratio in steps]


@pytest.mark.parametrize("kind", ["mask_transformer", "linear", "segformer", "segformer of odd grids"])
def test_agcam_is_a_loop_over_hooks_and_gradients(kind: str) -> None:
    net = (segformer() if "segformer" in kind else small(classes=4, decoder=kind)).double()
    size = (96, 64) if kind == "segformer" else (88, 72) if "odd" in kind else (32, 32)
    images = pixels(2, 3, *size).double()
    ours = cam.AGCAM(net).explain(images, SegmentTarget())
    slow = copy.deepcopy(net)
    held = attended(slow)
    for place, image in enumerate(images):
        held.clear()
        logits = slow(image[None])
        region = (logits[0].argmax(dim=0) == ours.target[place]).double()
        gradients = torch.autograd.grad((logits[0, ours.target[place]] * region).sum(), [each[1] for each in held])
        total, last = torch.zeros(1), grids(size)[-1]
        stages = [0, 1, 1, 2, 3] if "segformer" in kind else [0, 0]
        for stage, (scores, _), gradient in zip(stages, held, gradients, strict=True):
            if "segformer" not in kind:
                terms = [gradient[0, :, 1 + row].relu() * scores[0, :, 1 + row].sigmoid() for row in range(16)]
                total = total + sum(terms).sum(dim=0)[1:].reshape(4, 4)
                continue
            term = (gradient[0].relu() * scores[0].sigmoid()).sum(dim=(0, 1))
            term = term.reshape(1, 1, *grids(size)[stage])
            total = total + functional.interpolate(term, last, mode="bilinear")[0, 0]
        whole = functional.interpolate(total[None, None].float(), images.shape[2:], mode="bilinear")[:, 0]
        close(ours.maps[place : place + 1], scaled(whole), 1e-5)


def test_rollout_begins_at_the_tokens_of_the_region() -> None:
    net, images = small(classes=4).double(), pixels(1, 3, 32, 32).double()
    region = torch.zeros(32, 32, dtype=torch.bool)
    region[:8, 8:20] = True  # a patch, and half of the next one
    with robustkit.attention.capture(net.encoder) as captured:
        net(images)
    first, second = (each[0].mean(dim=0) for each in captured.attention)
    eye = torch.eye(17).double()
    product = (second + eye) / 2 @ (first + eye) / 2
    row = (product[2] + product[3] / 2)[1:].reshape(1, 1, 4, 4)
    expected = functional.interpolate(row.float(), (32, 32), mode="bilinear")[:, 0]
    close(cam.Rollout(net)(images, SegmentTarget(1, region)), scaled(expected), 1e-5)


def test_legrad_puts_each_block_in_place_of_the_last() -> None:
    net, images = small(classes=4, decoder="linear").double(), pixels(1, 3, 32, 32).double()
    region, vit = torch.ones(32, 32, dtype=torch.bool), net.encoder
    region[20:] = False
    ours = cam.LeGrad(net).explain(images, SegmentTarget(2, region))
    x = vit.norm_pre(vit._pos_embed(vit.patch_embed(images))).detach()
    total = torch.zeros(17)
    for block in vit.blocks:
        with robustkit.attention.capture(vit) as captured:
            formed = block(x)
        grid = net.decoder(vit.norm(formed)[:, 1:]).mT.unflatten(2, (4, 4))
        logits = functional.interpolate(grid, (32, 32), mode="bilinear")
        (gradient,) = torch.autograd.grad((logits[0, 2] * region).sum(), captured.attention[-1])
        total, x = total + gradient[0].relu().mean(dim=(0, 1)), formed.detach()
    expected = functional.interpolate(total[1:].reshape(1, 1, 4, 4).float(), (32, 32), mode="bilinear")[:, 0]
    close(ours.maps, scaled(expected), 1e-5)


def test_masks_are_weighed_by_the_mean_over_the_region() -> None:
    """By its sum, a softmax over channels would take one of them alone, and probabilities would be 0 or 1."""
    net = linear()[0]
    images, region = pixels(1, 3, 8, 8), torch.zeros(8, 8, dtype=torch.bool)
    region[2:6, 3:7] = True
    explain = cam.RISE(net, masks=9, cells=3)
    masks = explain.drawn(explain.draws(images, Draws([0])), (8, 8))[0]
    shown = net(masks[:, None] * images).softmax(dim=1)[:, 1]
    worth = (shown * region).sum(dim=(1, 2)) / 16
    close(
        explain(images, SegmentTarget(1, region), rng=Draws([0])), scaled((worth[:, None, None] * masks).sum(0)[None])
    )
    channels = images[0]
    low, high = channels.amin(dim=(1, 2), keepdim=True), channels.amax(dim=(1, 2), keepdim=True)
    behind = ((channels - low) / (high - low))[:, None] * images
    logits = (net(behind)[:, 1] * region).sum(dim=(1, 2)) / 16
    expected = (logits.softmax(dim=0)[:, None, None] * channels).sum(dim=0)[None]
    close(cam.ScoreCAM(net, layer="0")(images, SegmentTarget(1, region)), scaled(expected))


def cnn() -> nn.Sequential:
    torch.manual_seed(0)
    narrow = [
        nn.Conv2d(3, 8, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, 2, 1),
        nn.ReLU(),
        nn.Conv2d(16, 16, 3, 1, 1, groups=16),
    ]
    return nn.Sequential(*narrow, nn.Conv2d(16, 4, 1), nn.Upsample(scale_factor=4.0)).eval()


def test_the_layer_is_the_widest_of_the_smallest_grid() -> None:
    """Not the logits, which come after it on the same grid, nor what mixes no channels."""
    net, images = cnn(), pixels(2, 3, 16, 24)
    explain = cam.LayerCAM(net)
    assert explain(images, SegmentTarget(1)).equal(cam.LayerCAM(net, layer="3")(images, SegmentTarget(1)))
    former = segformer()
    last = cam.LayerCAM(former, layer=former.network.segformer.stages[-1])
    images = pixels(1, 3, 64, 64)
    assert cam.LayerCAM(former)(images, SegmentTarget()).equal(last(images, SegmentTarget()))


def frames() -> Tensor:
    folder = SHARED / "data" / "camvid"
    if not folder.is_dir():
        pytest.skip("no CamVid at ../shared")
    from PIL import Image

    files = sorted(path for path in (folder / "images").rglob("*.png"))[:20]
    assert len(files) == 20
    return torch.stack([torch.from_numpy(np.array(Image.open(file).convert("RGB"))).permute(2, 0, 1) for file in files])


@pytest.mark.parametrize("kind", ["espnet", "segformer"])
@pytest.mark.slow
def test_pytorch_grad_cam(kind: str) -> None:
    package = pytest.importorskip("pytorch_grad_cam")
    theirs = importlib.import_module("pytorch_grad_cam.utils.model_targets").SemanticSegmentationTarget
    shown = frames()
    if kind == "espnet":
        from espnet import ESPNet

        model = ESPNet(12, 2, 8)
        weights = torch.load(SHARED / "weights" / "espnet_p_2_q_8_camvid.pth", weights_only=True, map_location="cpu")
        model.load_state_dict({key.removeprefix("module."): value for key, value in weights.items()})
        model, layer = model.eval(), "encoder.b3"
        images = shown.flip(1) / 255  # blue first
    else:
        model, layer, images = segformer(), "network.segformer.stages.3", functional.interpolate(shown / 255, (96, 128))
    model, images = model.double(), images.double()
    module = dict(model.named_modules())[layer]
    for name, their in (("grad-cam", package.GradCAM), ("layer-cam", package.LayerCAM)):
        ours = cam.METHODS[name](model, layer=layer).explain(images, SegmentTarget())
        model.requires_grad_(True)
        tool = their(model=model, target_layers=[module])
        for place, image in enumerate(images):
            with torch.no_grad():
                region = model(image[None])[0].argmax(dim=0) == ours.target[place]
            target = theirs(int(ours.target[place]), region.numpy().astype(np.float32))
            maps = tool(image[None], [target])
            if not ours.degenerate[place]:
                close(ours.maps[place : place + 1], torch.from_numpy(maps).float(), 1e-6)
        model.requires_grad_(False)
        assert not ours.degenerate.all()


def test_curves_may_be_of_the_overlap_with_a_region() -> None:
    """Deletion of a linear segmenter: black pixels are of class 0, the first of equals."""
    net, _ = linear()
    image = torch.zeros(1, 3, 5, 5)
    image[0, 1, :2] = 1.0  # of class 1
    region = torch.zeros(5, 5, dtype=torch.bool)
    region[:2], region[2, :3] = True, True  # 13 pixels, of which ten are predicted
    overlap = region_iou(net, region, 1)
    assert overlap(image).softmax(dim=1)[0].tolist() == pytest.approx([3 / 13, 10 / 13])
    maps = torch.linspace(1, 0, 25).reshape(1, 5, 5)
    curves = insertion_deletion(overlap, image, maps, 1, fill=0.0, canvas=torch.zeros_like(image), steps=6)
    assert curves.deletion_curve[0].tolist() == pytest.approx([10 / 13, 5 / 13, 0, 0, 0, 0], abs=1e-6)
    assert curves.insertion_curve[0].tolist() == pytest.approx([0, 5 / 13, *[10 / 13] * 4], abs=1e-6)
    found = abpc(overlap, image, maps, 1, fill=0.0, steps=6)
    assert found.lerf[0].tolist() == pytest.approx([*[10 / 13] * 4, 5 / 13, 0], abs=1e-6)
    nothing = region_iou(net, torch.zeros(5, 5, dtype=torch.bool), 2)(image)
    assert nothing.softmax(dim=1).tolist() == [[1, 0]]
    whole = region_iou(net, image[0, 1] > 0, 1)(image)
    assert whole.softmax(dim=1).tolist() == [[0, 1]]
    with pytest.raises(ValueError, match=r"returned \(1, 3, 5, 5\); expected \(B, K, H, W\) of \(5, 6\)"):
        region_iou(net, torch.zeros(5, 6, dtype=torch.bool), 1)(image)


def test_what_does_not_fit_is_refused_with_the_remedy() -> None:
    net, _ = linear()
    images, wide = pixels(2, 3, 6, 7), torch.ones(2, 6, 8, dtype=torch.bool)
    refused: list[tuple[Any, type[Exception], str]] = [
        (SegmentTarget(3), ValueError, "target 3; the model has 3 classes, 0 … 2"),
        (SegmentTarget(torch.tensor([0, -1])), ValueError, "target -1; the model has 3 classes"),
        (SegmentTarget(torch.tensor([0])), ValueError, r"the shape \(1,\); expected \(2,\)"),
        (SegmentTarget(torch.tensor([0.0, 1.0])), TypeError, "target is torch.float32; expected int64"),
        (SegmentTarget(0, wide), ValueError, r"shape \(2, 6, 8\); expected \(2, 6, 7\) or \(6, 7\), as the logits"),
        (SegmentTarget(0, wide.float()), TypeError, "regions are torch.float32; expected bool"),
        (2, ValueError, r"the model returned \(2, 3, 6, 7\) for 2 images; expected logits \(images, classes\)"),
    ]
    for target, kind, words in refused:
        with pytest.raises(kind, match=words):
            cam.InputGradient(net).explain(images, target)
    flat = nn.Sequential(nn.Flatten(), nn.Linear(126, 3))
    with pytest.raises(ValueError, match=r"returned \(1, 3\) for 1 images; expected logits of each pixel"):
        cam.InputGradient(flat).explain(images, SegmentTarget(0))
    with pytest.raises(ValueError, match="AG-CAM needs a vision transformer"):
        cam.AGCAM(net)
    former = segformer()
    for name in ("rollout", "chefer", "legrad"):
        with pytest.raises(ValueError, match="tokens of different grids; use agcam, grad-cam or gradient"):
            cam.METHODS[name](former)
    segmenter = robustkit.load_segmenter("zoo:shapes-segmenter-standard")
    for name in ("rollout", "chefer"):
        with pytest.raises(ValueError, match="sees 4 windows of the image; use agcam, grad-cam or gradient"):
            cam.METHODS[name](segmenter)(pixels(1, 3, 96, 96), SegmentTarget())
    with pytest.raises(ValueError, match=r"gives \(4, 65, 96\) for 1 images; .*use gradient or rise"):
        cam.ScoreCAM(segmenter)(pixels(1, 3, 96, 96), SegmentTarget())

    class Twice(nn.Module):
        """Two halves of an image as two images, and no way to join their maps."""

        def __init__(self) -> None:
            super().__init__()
            self.net = net

        def forward(self, x: Tensor) -> Tensor:
            return torch.cat(self.net(torch.cat(x.chunk(2, dim=3))).chunk(2), dim=3)

    with pytest.raises(
        ValueError, match="layer-cam met 2 windows of an image, which do not make it up; expected a model"
    ):
        cam.LayerCAM(Twice(), layer="net.0")(pixels(1, 3, 6, 8), SegmentTarget())


def test_a_component_hangs_together_at_corners_and_holds_its_pixel() -> None:
    region = torch.tensor([[1, 0, 0, 1], [0, 1, 0, 1], [0, 0, 0, 0], [1, 1, 0, 0]], dtype=torch.bool)
    expected = {(0, 0): [(0, 0), (1, 1)], (1, 3): [(0, 3), (1, 3)], (3, 1): [(3, 0), (3, 1)], (2, 2): []}
    for pixel, places in expected.items():
        assert cam.component(region, *pixel).nonzero().tolist() == [list(place) for place in places]
    for row, column in ((4, 0), (0, 4), (-1, 0)):
        with pytest.raises(
            ValueError, match=f"row {row}, column {column} is outside of the image; expected up to 3 and 3"
        ):
            cam.component(region, row, column)
