"""Complexity, sensitivity, infidelity and the cascade: by hand, and against captum.metrics and Quantus."""

from __future__ import annotations

import contextlib
import copy
import importlib
import io
import math
from typing import Any

import pytest
import torch
from attack_oracles import Draws
from cam_models import close, cnn
from cam_oracles import some_images, state, tiny_vit
from cam_score_oracles import smooth_maps
from torch import Tensor, nn

import cam
from cam.faithfulness import ends_of
from cam.localisation import entropy, gini, histogram_entropy, rank_correlation
from cam.sensitivity import (
    cascade,
    head_correlation,
    hide_squares,
    infidelity,
    randomise_weights,
    redrawn_head,
    sensitivity,
)
from robustkit.common.determinism import SampleRng

pytestmark = pytest.mark.usefixtures("one_thread")
IMAGES, TARGETS = some_images(3), torch.tensor([1, 3, 2])


def outside(name: str) -> Any:
    with contextlib.redirect_stdout(io.StringIO()):
        pytest.importorskip(name.partition(".")[0])
        return importlib.import_module(name)


def test_complexity_by_hand() -> None:
    one, half, every = torch.zeros(3, 4, 5)
    one[2, 3] = 0.7
    half[:2] = 0.3
    every += 1
    maps = torch.stack([one, half, every, torch.zeros(4, 5)])
    close(entropy(maps)[:3], torch.tensor([0, math.log(10), math.log(20)]).double())
    close(gini(maps)[:3], torch.tensor([19 / 20, 0.5, 0]).double())
    assert entropy(maps)[3].isnan() and gini(maps)[3].isnan()
    expected = -(0.95 * math.log(0.95) + 0.05 * math.log(0.05))
    close(histogram_entropy(maps)[:2], torch.tensor([expected, math.log(2)]).double())
    assert histogram_entropy(maps)[2:].isnan().all()


def test_complexity_is_quantus_s() -> None:
    functions = outside("quantus.functions.complexity_func")
    quantus = outside("quantus")
    maps = smooth_maps(4, 12, 17, seed=3)
    values = maps.double().flatten(1).numpy()
    close(gini(maps), torch.tensor(quantus.Sparseness(disable_warnings=True).evaluate_batch(values, values)).double())
    for i, one in enumerate(maps.double().flatten(1).numpy()):
        assert entropy(maps)[i].item() == pytest.approx(functions.entropy(one, one), rel=1e-6)
        assert histogram_entropy(maps)[i].item() == pytest.approx(functions.discrete_entropy(one, one), rel=1e-6)


@pytest.mark.parametrize("kind", [cam.LayerCAM, cam.SmoothGrad])
def test_sensitivity_is_captum_s(kind: Any) -> None:
    metrics = outside("captum.metrics")
    net, draws = tiny_vit().double(), Draws(range(3))
    tool, images = kind(net), IMAGES.double()
    maps = tool(images, TARGETS, rng=draws)
    noise = [0.3 * (2 * draws.uniform((3, 16, 24), f"cam/sensitivity/{i}").double() - 1) for i in range(4)]
    found = sensitivity(tool, images, maps, TARGETS, radius=0.3, samples=4, rng=draws)
    largest = torch.zeros(3).double()
    total = torch.zeros(3).double()
    for one in noise:  # so that each call has its own draws, and the explainer's are those of the images
        theirs = metrics.sensitivity_max(
            lambda x: (tool(x[0] if isinstance(x, tuple) else x, TARGETS, rng=draws).double(),),
            images,
            perturb_func=lambda x, radius, one=one: x + one,
            n_perturb_samples=1,
        )
        largest, total = torch.maximum(largest, theirs), total + theirs
    close(found.largest, largest, 1e-6)
    close(found.mean, total / 4, 1e-6)
    assert (found.mean > 1e-3).all()
    for control in (cam.RandomMap, cam.CentredGaussian, cam.FullImage):
        still = control(net)
        same = sensitivity(still, images, still(images, TARGETS, rng=draws), TARGETS, rng=draws)
        assert (same.largest == 0).all()
    nothing = sensitivity(tool, images, torch.zeros_like(maps), TARGETS, radius=0.3, samples=2, rng=draws)
    assert nothing.largest.isnan().all() and nothing.mean.isnan().all()


def test_infidelity_is_captum_s_where_it_is_scaled() -> None:
    metrics = outside("captum.metrics")
    net, draws, fill = tiny_vit().double(), Draws(range(3)), (0.2, 0.4, 0.6)
    images, maps = IMAGES.double(), smooth_maps(3, 16, 24, seed=1).double()
    places = draws.uniform((20, 2), "cam/infidelity")
    length = 5  # a third of the shorter side
    masks = torch.zeros(3, 20, 16, 24).double()
    for b in range(3):
        for s in range(20):
            top, left = int(places[b, s, 0] * (16 - length + 1)), int(places[b, s, 1] * (24 - length + 1))
            masks[b, s, top : top + length, left : left + length] = 1
    hidden = masks.flatten(0, 1)[:, None].expand(-1, 3, -1, -1)
    back = torch.tensor(fill).double().view(1, 3, 1, 1)
    theirs = metrics.infidelity(
        lambda x: net(x).softmax(dim=1),
        lambda x: (hidden, x * (1 - hidden) + back * hidden),
        images,
        maps[:, None].expand(-1, 3, -1, -1) / 3,
        target=TARGETS,
        n_perturb_samples=20,
        normalize=True,
    )
    with torch.no_grad():
        chosen = TARGETS.repeat_interleave(20)[:, None]
        shown = images.repeat_interleave(20, dim=0) * (1 - hidden) + back * hidden
        whole = net(images).softmax(dim=1).gather(1, TARGETS[:, None])
        falls = whole - net(shown).softmax(dim=1).gather(1, chosen).view(3, 20)
    ends = ends_of(net, images, fill=fill)
    for size in (64, 7):
        ours = infidelity(net, images, maps, TARGETS, fill=fill, samples=20, side=1 / 3, rng=draws, batch_size=size)
        close(ours * (falls**2).mean(dim=1), theirs, 1e-9)
        known = infidelity(net, images, maps, TARGETS, fill=fill, samples=20, side=1 / 3, rng=draws, ends=ends)
        close(known, ours, 1e-12)
        squares = hide_squares(net, images, fill=fill, samples=20, side=1 / 3, rng=draws, batch_size=size)
        shared = infidelity(nobody, images, maps, TARGETS, fill=fill, ends=ends, squares=squares)
        close(shared, ours, 1e-12)
        assert (ours > 0.05).all() and (ours <= 1).all()


def nobody(images: Tensor) -> Tensor:
    """A model that must not be asked."""
    raise AssertionError(f"asked about {len(images)} images")


class Mean(nn.Module):
    """A probability that falls by how much of a weight map is hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(16, 24, generator=torch.Generator().manual_seed(0)) / 2000)

    def forward(self, images: Tensor) -> Tensor:
        share = (self.weight * images.mean(dim=1)).sum(dim=(1, 2))
        return torch.stack([share.log(), (1 - share).log()], dim=1)


def test_a_map_that_tells_every_fall_has_no_infidelity() -> None:
    net = Mean().eval()
    images = torch.ones(2, 3, 16, 24)
    maps = (net.weight.detach() * 2000).expand(2, -1, -1)
    options: dict[str, Any] = {"fill": 0.0, "rng": Draws(range(2))}
    close(infidelity(net, images, maps, 0, **options), torch.zeros(2).double(), 1e-5)
    assert (infidelity(net, images, maps.flip(1), 0, **options) > 1e-4).all()


def test_the_cascade_goes_from_the_head_to_the_first_layer() -> None:
    for net, kind in ((tiny_vit(), cam.InputGradient), (cnn(), cam.LayerCAM)):
        before = state(net)
        tool = kind(net)
        maps = tool(IMAGES, TARGETS)
        parts = net.named_modules()
        weights = [name for name, part in parts if any(p.ndim > 1 for p in part.parameters(recurse=False))]
        found = cascade(tool, IMAGES, maps, TARGETS, steps=len(weights), seed=3)
        assert found.correlations.shape == (3, len(weights)) and state(net) == before
        with redrawn_head(net, 3):
            close(found.correlations[:, 0].nan_to_num(), rank_correlation(maps, tool(IMAGES, TARGETS)).nan_to_num())
        slow = copy.deepcopy(net)
        generator = torch.Generator().manual_seed(3)
        with torch.no_grad():
            for name in reversed(weights):
                for value in slow.get_submodule(name).parameters(recurse=False):
                    spread = value.std() if value.ndim > 1 else 0
                    value.copy_(torch.randn(value.shape, generator=generator) * spread if spread else 0 * value)
        again = kind(slow)(IMAGES, TARGETS)
        close(found.correlations[:, -1].nan_to_num(), rank_correlation(maps, again).nan_to_num())
        rise = (histogram_entropy(again) - histogram_entropy(maps)) / histogram_entropy(maps)
        close(found.entropy_rise.nan_to_num(), rise.nan_to_num())
        assert rise.isfinite().any()
        once = cascade(tool, IMAGES, maps, TARGETS, steps=1, seed=3)  # the efficient form
        close(once.entropy_rise.nan_to_num(), rise.nan_to_num())
        close(once.correlations.nan_to_num(), found.correlations[:, -1:].nan_to_num())
        uneven = cascade(tool, IMAGES, maps, TARGETS, steps=len(weights) - 1, seed=3)  # parts are rounded up
        close(uneven.correlations.nan_to_num(), found.correlations[:, 1:].nan_to_num())


def test_what_has_no_spread_is_not_redrawn() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.heats = nn.Parameter(torch.full((1, 1), 3.0)), nn.Parameter(torch.ones(4, 1, 1))
            self.layer = nn.Linear(4, 2)

    net = Scaled()
    before = net.layer.weight.clone()
    with randomise_weights([net, net.layer]):
        assert net.scale.item() == 3 and (net.heats == 1).all()
        assert not torch.equal(net.layer.weight, before) and (net.layer.bias == 0).all()


def test_both_heads_of_a_distilled_model_of_transformers_are_redrawn() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    config = transformers.DeiTConfig(**sizes, image_size=8, patch_size=4, num_labels=3)
    net = transformers.DeiTForImageClassificationWithTeacher(config)
    before = [head.weight.clone() for head in (net.cls_classifier, net.distillation_classifier)]
    with redrawn_head(nn.Sequential(net)):
        assert not torch.equal(net.cls_classifier.weight, before[0])
        assert not torch.equal(net.distillation_classifier.weight, before[1])


def test_a_redrawn_model_keeps_no_weights() -> None:
    """Neither torch's own attention, whose queries, keys and values are no `.weight`, nor positions."""
    block = nn.TransformerEncoderLayer(8, 2, 16, 0.0)
    net = nn.Sequential(nn.Conv2d(3, 8, 8, 8), nn.Flatten(2), Turned(), block, Averaged())
    nn.init.ones_(block.self_attn.in_proj_bias)
    nn.init.ones_(block.self_attn.out_proj.bias)
    before, seen = {name: value.clone() for name, value in net.named_parameters()}, dict[str, bool]()

    class Looks(cam.InputGradient):
        def explain(self, *given: Any, **more: Any) -> cam.Explanation:
            seen.update((name, torch.equal(value, before[name])) for name, value in net.named_parameters())
            return super().explain(*given, **more)

    cascade(Looks(net.eval()), IMAGES, torch.rand(3, 16, 24), 0, steps=1)
    norms = {f"3.norm{i}.{kind}" for i in "12" for kind in ("weight", "bias")}
    assert {name for name, same in seen.items() if same} == norms


class Turned(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


class Averaged(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(dim=1)


def test_a_constant_map_of_one_drawn_head_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    found = iter([0.5, math.nan, 0.1, 0.3, 0.3])
    monkeypatch.setattr("cam.sensitivity.rank_correlation", lambda *_: torch.tensor([next(found)] * 3).double())
    close(head_correlation(cam.GradCAM(cnn()), IMAGES, torch.rand(3, 16, 24), 0), torch.full((3,), 0.3).double())


@pytest.mark.parametrize("measure", [sensitivity, cascade, head_correlation])
def test_an_explainer_that_draws_needs_the_same_draws(measure: Any) -> None:
    for kind in (cam.RISE, cam.SmoothGrad, cam.RandomMap):
        with pytest.raises(ValueError, match=f"^{kind.name} is random, so its maps differ .*; pass the rng"):
            measure(kind(cnn()), IMAGES, torch.rand(3, 16, 24), 0)
    rng = SampleRng.of(["a", "b", "c"], seed=0, condition="cam", device="cpu")
    tool = cam.RISE(cnn(), fill=0, masks=8)
    assert sensitivity(tool, IMAGES, tool(IMAGES, TARGETS, rng=rng), TARGETS, radius=0, rng=rng).largest.max() < 1e-6


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda n, x, m: sensitivity(cam.GradCAM(n), x, m, 0, samples=0), "^samples is 0; expected 1 or more$"),
        (lambda n, x, m: sensitivity(cam.GradCAM(n), x, m, 0, radius=-1), "^radius is -1; expected 0 or more$"),
        (lambda n, x, m: infidelity(n, x, m, 0, fill=0, side=0), "^side is 0; expected a share of the shorter side"),
        (lambda n, x, m: infidelity(n, x, m, 0, fill=0, samples=0), "^samples is 0; expected 1 or more$"),
        (lambda n, x, m: cascade(cam.GradCAM(n), x, m, 0, steps=0), "^steps is 0; expected 1 or more$"),
        (lambda n, x, m: cam.RISE(tiny_vit(num_classes=1), masks=2)(x), "^the model has one class, whose probability"),
    ],
)
def test_rejects(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call(tiny_vit(), IMAGES, torch.zeros(3, 16, 24))
