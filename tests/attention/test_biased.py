"""Formulas in timm's BEiT and Swin, whose logits have relative positions and masks: layer by layer from plain parts."""

from __future__ import annotations

from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from robustkit.attention import capture, get_attention, scores, set_attention
from robustkit.errors import ModelError

pytestmark = pytest.mark.usefixtures("one_thread")
BEIT = {"embed_dim": 24, "depth": 2, "num_heads": 3, "patch_size": 8}
SIZES: dict[str, dict[str, Any]] = {
    "beit_base_patch16_224": BEIT,
    "beit_large_patch16_224": BEIT | {"use_shared_rel_pos_bias": True, "use_rel_pos_bias": False},
    "swin_tiny_patch4_window7_224": {
        "embed_dim": 12,
        "depths": (2, 2),
        "num_heads": (2, 4),
        "patch_size": 2,
        "window_size": 4,
    },
}
FORMULAS = ("standard", "quest", "qnorm", "qknorm-hs", "qknorm-ln")


def made(name: str) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name, img_size=32, num_classes=5, **SIZES[name]).eval().double()
    for key, value in model.named_parameters():
        if any(part in key for part in ("table", "bias", "gamma")):
            value.data += 0.5 * torch.randn_like(value)
    return model


def by_hand(layer: Any, formula: str, x: Tensor, added: Tensor | None, windows: int) -> Tensor:
    """A layer's output, window by window and head by head. added: to the logits, of each of an image's windows."""
    kernel, shift = layer.qkv.weight, layer.qkv.bias
    if shift is None:
        shift = torch.cat([layer.q_bias, torch.zeros_like(layer.q_bias), layer.v_bias])
    learned = {name: value for name, value in layer.named_parameters() if "scale" in name or "_norm" in name}
    rows = []
    for place, tokens in enumerate(x):
        q, k, v = ((tokens @ kernel.T + shift).reshape(len(tokens), 3, layer.num_heads, -1).permute(1, 2, 0, 3))[
            :, None
        ]
        logits = scores(formula, q, k, parameters=learned)[0]
        own = layer.relative_position_bias_table
        for head in range(layer.num_heads if own is not None else 0):
            for i in range(len(tokens)):
                for j in range(len(tokens)):
                    logits[head, i, j] = logits[head, i, j] + own[layer.relative_position_index[i, j], head]
        if added is not None:
            logits = logits + (added[place % windows] if windows > 1 else added)
        rows.append((logits.softmax(dim=-1) @ v[0]).transpose(0, 1).flatten(1) @ layer.proj.weight.T + layer.proj.bias)
    return torch.stack(rows)


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("formula", FORMULAS)
@pytest.mark.parametrize("name", SIZES)
def test_every_layer_is_that_of_plain_loops(name: str, formula: str, fused: bool) -> None:
    model = set_attention(made(name), formula)
    assert get_attention(model) == formula
    seen: list[tuple[Any, tuple[Any, ...], dict[str, Any], Tensor]] = []
    layers = [layer for layer in model.modules() if hasattr(layer, "fused_attn")]
    for layer in layers:
        layer.fused_attn = fused
        layer.register_forward_hook(lambda *call: seen.append(call), with_kwargs=True)
    images = 2
    with torch.no_grad():
        model(torch.rand(images, 3, 32, 32, dtype=torch.float64))
        given = []
        for layer, inputs, named, output in seen:
            added = (*inputs[1:], *named.values(), None)[0]
            given.append(added is not None)
            expected = by_hand(layer, formula, inputs[0], added, len(inputs[0]) // images)
            torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)
    assert len(seen) == len(layers) and any(given) == (name != "beit_base_patch16_224")


def test_windows_are_not_captured_nor_elliptical() -> None:
    model = made("swin_tiny_patch4_window7_224")
    with pytest.raises(ModelError, match="the windows of SwinTransformer hold other tokens in each"):
        set_attention(model, "elliptical-quest")
    with pytest.raises(ModelError, match="attends within windows"), capture(model):
        pass
    assert get_attention(model) == "standard"


def test_beit_is_captured_and_its_own_again() -> None:
    model = made("beit_base_patch16_224")
    images = torch.rand(2, 3, 32, 32, dtype=torch.float64)
    plain = model(images)
    set_attention(model, "elliptical-quest")
    with capture(model) as captured:
        watched = model(images)
    assert [part.shape for part in captured.attention] == [(2, 3, 17, 17)] * 2
    torch.testing.assert_close(model(images), watched)
    assert (watched - plain).abs().max() > 1e-9
    set_attention(model, "standard")
    torch.testing.assert_close(model(images), plain, rtol=0, atol=0)
