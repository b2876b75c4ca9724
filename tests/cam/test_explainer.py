"""How an explainer holds a model: passes, graph, state left as it was, nesting, grad mode, and refusals."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import timm
import torch
import torchvision  # type: ignore[import-untyped, unused-ignore]
from cam_models import CONTROLS, Passes, close, cnn
from cam_oracles import (
    some_images,
    state,
    tiny_vit,
)
from torch import Tensor, nn

import cam
from robustkit.attention import set_attention
from robustkit.common.determinism import SampleRng

pytestmark = pytest.mark.usefixtures("one_thread")


def test_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[bool] = []
    grad = torch.autograd.grad

    def counted(*arguments: Any, **options: Any) -> Any:
        calls.append(options["retain_graph"])
        return grad(*arguments, **options)

    monkeypatch.setattr(torch.autograd, "grad", counted)
    two = torch.tensor([[0, 1]] * 4)
    for method in (cam.AGCAM, cam.AGCAMFull, cam.GradCAM, cam.InputGradient, cam.Rollout):
        for target in (None, two):
            model = tiny_vit(depth=5)
            whole, layers = Passes(model), [Passes(block.attn) for block in model.blocks]
            calls.clear()
            with method(model) as explain:
                explain(some_images(4), target)
            assert whole.count == 1 and [layer.count for layer in layers] == [1] * 5
            assert calls == (method is not cam.Rollout) * ([False] if target is None else [True, False])
    for control in CONTROLS:
        model = tiny_vit()
        whole = Passes(model)
        control(model)(some_images(4))
        assert whole.count == 1


def test_the_graph_begins_late_and_nothing_of_it_outlives_the_call() -> None:
    model, begins, marks = tiny_vit(), {}, []

    class Mark:
        pass

    class Marked(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, logits: Tensor) -> Tensor:
            ctx.mark = Mark()
            marks.append(weakref.ref(ctx.mark))
            return logits.clone()

        @staticmethod
        def backward(ctx: Any, *gradients: Tensor) -> Tensor:
            return gradients[0]

    class Ending(nn.Module):
        def forward(self, logits: Tensor) -> Tensor:
            return Marked.apply(logits)

    def note(part: str) -> Callable[..., None]:
        return lambda module, inputs, output: begins.update({part: output.requires_grad})

    for part in ("patch_embed", "blocks.0.attn.qkv", "blocks.0", "blocks.2.norm1", "blocks.2.attn.qkv"):
        model.get_submodule(part).register_forward_hook(note(part))
    outside = {"patch_embed": False, "blocks.0.attn.qkv": False}
    inside = {"blocks.0": True, "blocks.2.norm1": True}
    images = some_images(2)
    gc.collect()
    others = {id(thing) for thing in gc.get_objects()}  # what other tests hold
    gc.disable()
    try:
        for method in (cam.AGCAM, cam.AGCAMFull, cam.GradCAM, cam.InputGradient, cam.Rollout):
            marks.clear()
            with method(nn.Sequential(model, Ending())) as explain:
                result = explain.explain(images, torch.tensor([[0, 1]] * 2))
                assert marks and all(mark() is None for mark in marks)
                alive = [t for t in gc.get_objects() if type(t) is Tensor and t.shape[-2:] == (7, 7)]
                alive = [t for t in alive if id(t) not in others]
                assert not alive and not result.maps.requires_grad
            if issubclass(method, cam.AGCAM):
                assert begins == outside | inside | {"blocks.2.attn.qkv": method is cam.AGCAMFull}
            elif method is cam.GradCAM:
                assert not begins["blocks.0"] and begins["blocks.2.attn.qkv"]
    finally:
        gc.enable()


def broken(model: Any, error: type[BaseException]) -> Callable[[], None]:
    def fail(*_: object) -> None:
        raise error("broken")

    return model.blocks[1].attn.proj.register_forward_hook(fail).remove


@pytest.mark.parametrize("method", cam.METHODS.values())
def test_the_model_is_left_as_it_was(method: type[cam.Explainer]) -> None:
    model, images = tiny_vit(attn_drop_rate=0.5, proj_drop_rate=0.5), some_images(2)
    torch.manual_seed(1)
    reference = method(model)(images)
    model.train()
    model.blocks[1].eval()
    model.blocks[0].attn.fused_attn = False
    model.head.weight.requires_grad_(False)
    model.set_grad_checkpointing(True)
    before = state(model)
    torch.manual_seed(1)
    with method(model) as explain:
        close(explain(images), reference)  # evaluation mode inside
        assert not any(part.training for part in model.modules())
    assert state(model) == before
    with pytest.raises(KeyError, match="mine"), method(model) as explain:
        explain(images)
        raise KeyError("mine")
    assert state(model) == before
    for error in (RuntimeError, KeyboardInterrupt):
        repair = broken(model, error)
        with pytest.raises(error, match="broken"), method(model) as explain:
            explain(images)
        repair()
        assert state(model) == before
    with method(model) as explain:
        repair = broken(model, RuntimeError)
        with pytest.raises(RuntimeError, match="broken"):
            explain(images)
        repair()
        torch.manual_seed(1)
        close(explain(images), reference)
        with pytest.raises(ValueError, match="target 7; the model has 7 classes, 0 … 6"):
            explain(images, 7)
        assert torch._C._len_torch_function_stack() == 0 and torch.is_grad_enabled()
        with pytest.raises(RuntimeError, match=r"is already entered; make another one for a nested context"):
            explain.__enter__()
    assert state(model) == before


def test_contexts_nest_and_formulas_may_change_inside() -> None:
    model, images = tiny_vit(), some_images(2)
    apart = cam.AGCAM(model)(images), cam.Rollout(model)(images)
    before = state(model)
    with cam.AGCAM(model) as one, cam.Rollout(model) as other:
        close(one(images), apart[0])
        close(other(images), apart[1])
        close(model(images).detach(), one.explain(images).logits)
        set_attention(model, "quest")
        quest = one(images)
        set_attention(model, "standard")
        close(one(images), apart[0])
    assert state(model) == before
    assert (quest - apart[0]).abs().max() > 0.05


@pytest.mark.parametrize("method", cam.METHODS.values())
def test_the_caller_s_grad_mode_does_not_matter(method: type[cam.Explainer]) -> None:
    model = tiny_vit()
    torch.manual_seed(1)
    plain = method(model)(some_images(2))
    draws = partial(SampleRng.of, ["a", "b"], seed=0, condition="c", device=torch.device("cpu"))
    for mode in (torch.no_grad, torch.inference_mode):
        with mode(), method(model) as explain:
            torch.manual_seed(1)
            maps = explain(some_images(2))  # made inside
            assert torch.equal(maps, plain) and not maps.is_inference()
            given = explain(some_images(2), torch.tensor([1, 1]), rng=draws())
            assert torch.equal(explain(some_images(2), 1, rng=draws()), given)
    torch.manual_seed(1)
    images = some_images(2).requires_grad_()
    assert torch.equal(method(model)(images), plain) and images.grad is None


def test_a_compiled_model_runs_as_written() -> None:
    model, images = tiny_vit(), some_images(2)
    plain = [cam.AGCAM(model)(images), cam.GradCAM(model, "blocks.0")(images)]
    compiled = torch.compile(model, backend="eager")
    compiled(images)
    inner = cam.AGCAM(nn.Sequential(compiled)), cam.GradCAM(compiled, "blocks.0")
    assert [torch.equal(explain(images), maps) for explain, maps in zip(inner, plain, strict=True)] == [True, True]
    model.compile(backend="eager")
    model(images)
    assert torch.equal(cam.AGCAM(model)(images), plain[0])


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m, x: cam.AGCAM(m)(x[0]), ValueError, r"images have the shape \(3, 16, 24\); expected \(B, 3, H, W\)"),
        (lambda m, x: cam.AGCAM(m)(x.to(torch.uint8)), TypeError, "images are torch.uint8; expected floating, as the"),
        (lambda m, x: cam.AGCAM(m)([x]), TypeError, r"images are list; expected a torch tensor \(B, 3, H, W\)"),
        (lambda m, x: cam.AGCAM(m)(x, -1), ValueError, "^target -1; the model has 7 classes, 0 … 6$"),
        (
            lambda m, x: cam.InputGradient(m)(x, torch.tensor([[0, 6], [9, 1]])),
            ValueError,
            "^target 9; the model has 7 classes, 0 … 6$",
        ),
        (
            lambda m, x: cam.AGCAM(m)(x, torch.tensor([1, 2, 3])),
            ValueError,
            r"target has the shape \(3,\); expected \(2,\) or \(2, T\) for 2 images",
        ),
        (
            lambda m, x: cam.AGCAM(m)(x, torch.zeros(2, 0).long()),
            ValueError,
            r"target has the shape \(2, 0\); expected",
        ),
        (lambda m, x: cam.AGCAM(m)(x, torch.zeros(2)), TypeError, "target is torch.float32; expected int64, the"),
        (lambda m, x: cam.AGCAM(len), TypeError, "the model is builtin_function_or_method; expected a torch.nn.Module"),
        (
            lambda m, x: cam.AGCAM(cnn()),
            ValueError,
            "^AG-CAM needs a vision transformer of timm's kind, with patch_embed and blocks, or of transformers; "
            "Sequential is none; use grad-cam or gradient$",
        ),
        *(
            (lambda m, x, kind=kind: kind(crossvit()), ValueError, "^AG-CAM needs .* CrossVit is none; use grad-cam or")
            for kind in (cam.AGCAM, cam.AGCAMFull)
        ),
        (
            lambda m, x: cam.AGCAM(torchvision.models.VisionTransformer(32, 8, 2, 3, 48, 96)),
            ValueError,
            "^AG-CAM needs a vision transformer of timm's kind, .* VisionTransformer is none; use grad-cam or",
        ),
        (lambda m, x: cam.Rollout(cnn()), ValueError, "^rollout needs .* use grad-cam or gradient$"),
        (
            lambda m, x: cam.AGCAM(tiny_vit(global_pool="avgmax")),
            ValueError,
            "^AG-CAM needs what the logits are read from to be .* has none of them .global_pool='avgmax'.; use grad-",
        ),
        (
            lambda m, x: cam.AGCAM(nn.ModuleList([m, tiny_vit()])),
            ValueError,
            "ModuleList contains 2 vision transformers;",
        ),
        (
            lambda m, x: cam.AGCAM(
                timm.create_model(
                    "vit_small_patch16_18x2_224", img_size=(16, 24), patch_size=8, embed_dim=48, depth=1, num_heads=3
                )
            )(x),
            ValueError,
            r"the attention of block 0 \(ParallelThingsBlock\) called softmax 0 times over a square of tokens; e",
        ),
        (
            lambda m, x: cam.GradCAM(cnn(), "3")(x),
            ValueError,
            r"layer '3' gives \(2, 5\) for 2 images; expected a map \(B, C, h, w\), or a ViT's tokens",
        ),
        (
            lambda m, x: cam.GradCAM(m, "blocks.1.norm9"),
            ValueError,
            "VisionTransformer has no layer 'blocks.1.norm9'; did you mean blocks.1.norm2, blocks.1.norm1",
        ),
        (
            lambda m, x: cam.GradCAM(m, nn.ReLU()),
            ValueError,
            "the ReLU given as layer is not part of VisionTransformer",
        ),
        (lambda m, x: cam.InputGradient(nn.Sequential(cnn(), Sever()))(x), ValueError, "no gradient for the images"),
        (lambda m, x: cam.GradCAM(nn.Sequential(cnn(), Sever()))(x), ValueError, "the logits do not depend on layer"),
        (lambda m, x: cam.AGCAM(nn.Sequential(m, Sever()))(x), ValueError, "for the attention of 0 of 3 blocks;"),
        (lambda m, x: cam.AGCAM(severed())(x), ValueError, "for the attention of 2 of 3 blocks; expected all"),
        (
            lambda m, x: cam.FullImage(nn.Conv2d(3, 1, 1))(x),
            ValueError,
            r"the model returned \(2, 1, 16, 24\) for 2 images; expected logits \(images, classes\)",
        ),
        (lambda m, x: cam.RandomMap(grid=1), ValueError, "grid is 1; expected 2 or more"),
        (lambda m, x: cam.CentredGaussian(sigma=0.0), ValueError, "sigma is 0.0; expected a share of the shorter side"),
        (lambda m, x: cam.method("gradcm"), ValueError, "unknown method 'gradcm'; did you mean 'grad-cam'"),
        (
            lambda m, x: cam.method("zzz"),
            ValueError,
            "^unknown method 'zzz'; known: agcam, agcam-full, legrad, chefer, rollout, grad-cam, grad-cam-pp, ",
        ),
    ],
)
def test_rejects(call: Any, error: type[Exception], message: str) -> None:
    model = tiny_vit()
    before = state(model)
    with pytest.raises(error, match=message) as caught:
        call(model, some_images(2))
    assert "\n" not in str(caught.value)
    assert state(model) == before


def crossvit() -> Any:
    shape = {"img_size": 48, "img_scale": (1.0, 1.0), "patch_size": (12, 16), "depth": ((1, 2, 1),)}
    return timm.create_model("crossvit_9_240", **shape, embed_dim=(16, 24), num_heads=(2, 2))


def severed() -> Any:
    model = tiny_vit()
    model.blocks[1].attn.register_forward_hook(lambda module, inputs, output: output.detach())
    return model


class Sever(nn.Module):
    def forward(self, logits: Tensor) -> Tensor:
        return logits.detach()
