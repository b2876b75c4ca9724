"""Formulas in cross-attention and in torch's multi-head attention: against a replica, under masks, and refused."""

from __future__ import annotations

import copy
import math
import pickle
import re
from typing import Any

import pytest
import timm
import torch
from attack_oracles import slow_scores
from formula_vits import NAMES, drawn, small_vit
from timm.models.vision_transformer import ParallelThingsBlock  # type: ignore[attr-defined, unused-ignore]
from torch import Tensor, nn
from torchvision.models import VisionTransformer

from robustkit.attention import MultiheadAttention, capture, get_attention, set_attention
from robustkit.attention.formulas import find_formula
from robustkit.errors import ModelError

pytestmark = pytest.mark.usefixtures("one_thread")

# --- cross-attention -------------------------------------------------------------------------------------------------


def small_crossvit(**kwargs: Any) -> Any:
    torch.manual_seed(0)
    shape = {"img_size": 48, "img_scale": (1.0, 1.0), "patch_size": (12, 16), "depth": ((1, 2, 1), (1, 2, 1))}
    width = {"embed_dim": (16, 24), "num_heads": (2, 2), "num_classes": 5}
    return timm.create_model("crossvit_9_240", **{**shape, **width, **kwargs}).eval()


def test_crossvit_as_timm_has_it_is_standard() -> None:
    model, images = drawn(small_crossvit()), torch.rand(2, 3, 48, 48)
    expected, names = model(images), list(model.state_dict())
    assert get_attention(model) == "standard"
    with capture(model) as captured:
        torch.testing.assert_close(model(images), expected)
    assert [tuple(s.shape) for s in captured.scores[:2]] == [(2, 2, 17, 17), (2, 2, 10, 10)]
    assert {tuple(s.shape) for s in captured.scores if s.shape[2] == 1} == {(2, 2, 1, 17), (2, 2, 1, 10)}
    for name in ("quest", "qknorm-ln", "qana", "standard"):
        set_attention(model, name)
    assert list(model.state_dict()) == names
    assert torch.equal(model(images), expected)


def test_the_class_tokens_attention_of_a_branch_has_no_block_before_it() -> None:
    """Without a row of them, its path differs from that of the other branch in the last number."""
    model = drawn(set_attention(small_crossvit(depth=((1, 2, 0), (1, 2, 0))), "elliptical"))
    fusion = [block.attn for block in model.blocks[0].fusion]
    assert [(layer.position, layer.handover.blocks) for layer in fusion] == [(0, 1), (0, 1)]
    assert model(torch.rand(2, 3, 48, 48)).isfinite().all()


@pytest.mark.parametrize("name", NAMES)
def test_cross_attention_equals_the_replica(name: str) -> None:
    model = drawn(set_attention(small_crossvit(), name).double())
    images = torch.rand(2, 3, 48, 48).double()
    layer, seen = model.blocks[0].fusion[0][0].attn, []
    layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with capture(model) as captured:
        logits = model(images)
    assert (logits - model(images)).abs().max() < 1e-9
    x = seen[0]
    q, k = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in (layer.wq(x), layer.wk(x)))
    parameters = dict(layer.named_parameters())
    if name == "qana":
        parameters["network"] = layer.query_network(x).unflatten(-1, (2, -1)).transpose(1, 2)
    expected = slow_scores(name, q, k, k, None, parameters)[:, :, :1]  # the class token's row, as of a first block
    torch.testing.assert_close(captured.scores[captured.names.index("blocks.0.fusion.0.0.attn")], expected)
    if name.startswith("elliptical"):
        second = captured.names.index("blocks.0.blocks.1.1.attn")  # a row of blocks of one branch
        layers = dict(model.named_modules())
        assert layers["blocks.0.blocks.1.1.attn"].handover is layers["blocks.0.blocks.1.0.attn"].handover
        plain = set_attention(copy.deepcopy(model), {"elliptical": "standard"}.get(name, "quest"))
        with capture(plain) as other:
            plain(images)
        assert not torch.allclose(captured.scores[second], other.scores[second])
        torch.testing.assert_close(captured.scores[second - 1], other.scores[second - 1])
    else:
        assert find_formula(name).name == get_attention(model)


# --- torch's multi-head attention -------------------------------------------------------------------------------------


SHAPES = {"batch_first": {"batch_first": True}, "tokens first": {}, "other sizes": {"kdim": 10, "vdim": 6}}
SHAPES |= {"added tokens": {"add_bias_kv": True, "add_zero_attn": True}, "no bias": {"bias": False}}


@pytest.mark.parametrize("how", SHAPES)
def test_multihead_standard_equals_torch(how: str) -> None:
    torch.manual_seed(0)
    theirs = nn.MultiheadAttention(12, 3, **SHAPES[how])  # type: ignore[arg-type]
    torch.manual_seed(0)
    ours = MultiheadAttention(12, 3, **SHAPES[how])
    assert type(ours) is MultiheadAttention
    for (name, one), (other_name, other) in zip(ours.named_parameters(), theirs.named_parameters(), strict=True):
        assert name == other_name
        assert torch.equal(one, other)  # the same draws
    ours.double().load_state_dict(drawn(theirs.double()).state_dict())
    sizes = SHAPES[how]
    q, k, v = torch.randn(2, 5, 12), torch.randn(2, 7, sizes.get("kdim", 12)), torch.randn(2, 7, sizes.get("vdim", 12))
    inputs = [x.double() if "batch_first" in sizes else x.double().transpose(0, 1) for x in (q, k, v)]
    padding = torch.zeros(2, 7, dtype=torch.bool)
    padding[1, 4:] = True
    causal = torch.ones(5, 7, dtype=torch.bool).triu(1)
    for masks in (
        {},
        {"key_padding_mask": padding},
        {"attn_mask": causal},
        {"attn_mask": causal, "is_causal": True},
        {"attn_mask": torch.randn(6, 5, 7).double(), "key_padding_mask": torch.randn(2, 7).double()},
        {"attn_mask": causal, "key_padding_mask": padding, "average_attn_weights": False},
    ):
        if "is_causal" in masks and "added tokens" in how:
            continue  # torch drops the mask there and then differs from itself
        for need_weights in (True, False):
            found = ours(*inputs, need_weights=need_weights, **masks)
            expected = theirs(*inputs, need_weights=need_weights, **masks)
            torch.testing.assert_close(found, expected)
    alone = [x.double()[0] for x in (q, k, v)]
    torch.testing.assert_close(ours(*alone, key_padding_mask=padding[1]), theirs(*alone, key_padding_mask=padding[1]))


@pytest.mark.parametrize("name", [name for name in NAMES if not name.startswith("elliptical")])
def test_multihead_formulas_equal_the_replica_under_masks(name: str) -> None:
    torch.manual_seed(0)
    layer = drawn(MultiheadAttention(12, 2, batch_first=True, attention=name).double())
    x = torch.randn(2, 5, 12).double()
    q, k, v = (layer.in_proj_weight.chunk(3)[part] for part in range(3))
    q, k, v = (
        (x @ weight.T + bias).unflatten(-1, (2, 6)).transpose(1, 2)
        for weight, bias in zip((q, k, v), layer.in_proj_bias.chunk(3), strict=True)
    )
    parameters = dict(layer.named_parameters())
    if name == "qana":
        parameters["network"] = layer.query_network(x).unflatten(-1, (2, -1)).transpose(1, 2)
    causal = torch.ones(5, 5, dtype=torch.bool).triu(1)
    weights = slow_scores(name, q, k, v, None, parameters).masked_fill(causal, -math.inf).softmax(-1)
    expected = layer.out_proj((weights @ v).transpose(1, 2).flatten(2))
    for need_weights in (True, False):
        found, seen = layer(x, x, x, attn_mask=causal, need_weights=need_weights)
        torch.testing.assert_close(found, expected)
        assert (seen is None) != need_weights
    torch.testing.assert_close(layer(x, x, x, attn_mask=causal)[1], weights.mean(1))
    later = x.clone()
    later[:, 3:] += 1
    torch.testing.assert_close(layer(later, later, later, attn_mask=causal)[0][:, :3], expected[:, :3])


@pytest.mark.parametrize("name", NAMES)
def test_torchvisions_vit_takes_every_formula(name: str) -> None:
    torch.manual_seed(0)
    shape = {"image_size": 16, "patch_size": 8, "num_layers": 3, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 16}
    model: Any = drawn(VisionTransformer(num_classes=4, **shape)).eval()  # type: ignore[arg-type]
    images = torch.rand(2, 3, 16, 16)
    expected, names = model(images), list(model.state_dict())
    set_attention(model, name)
    assert get_attention(model) == name
    found = model(images)
    assert torch.allclose(found, expected, atol=1e-4) == (name in ("standard", "qana"))
    with capture(model) as captured:
        torch.testing.assert_close(model(images), found)
    assert [tuple(s.shape) for s in captured.attention] == [(2, 2, 5, 5)] * 3
    torch.testing.assert_close(pickle.loads(pickle.dumps(model))(images), found)
    if name.startswith("elliptical"):
        layers = [block.self_attention for block in model.encoder.layers]
        assert len({id(layer.handover) for layer in layers}) == 1
        assert [layer.position for layer in layers] == [0, 1, 2]
    set_attention(model, "standard")
    assert list(model.state_dict()) == names
    assert torch.equal(model(images), expected)
    assert {type(block.self_attention) for block in model.encoder.layers} == {nn.MultiheadAttention}


def test_torchs_encoder_does_not_go_round_the_formula() -> None:
    """In inference torch computes the layers of an encoder by itself, in one kernel that knows standard attention."""
    model = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2, enable_nested_tensor=False)
    model, x = drawn(model).eval(), torch.randn(2, 5, 8)
    with torch.no_grad():
        standard = model(x)
        set_attention(model, "quest")
        fast = model(x)
    slow = model.requires_grad_(True)(x)  # with gradients it calls the layers
    torch.testing.assert_close(fast, slow)
    assert not torch.allclose(fast, standard, atol=1e-3)
    with torch.no_grad():
        torch.testing.assert_close(set_attention(model, "standard")(x), standard)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.parametrize("name", ["quest", "qana", "softcap", "qknorm-ln"])
def test_torchs_encoder_with_padding_in_inference(name: str) -> None:
    """Where torch would cut padded tokens off, and give its layers nested tensors."""
    model = drawn(nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)).eval()
    x, padding = torch.randn(2, 5, 8), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        standard = model(x, src_key_padding_mask=padding)
        with capture(model) as captured:
            seen = model(x, src_key_padding_mask=padding)
        torch.testing.assert_close(seen[~padding], standard[~padding])
        assert captured.attention[0][1, :, :, 3:].abs().max() == 0
        torch.testing.assert_close(model(x, src_key_padding_mask=padding), standard)  # nested again
        set_attention(model, name)
        found = model(x, src_key_padding_mask=padding)
        alone = model(x[1:, :3])
        torch.testing.assert_close(found[1, :3], alone[0])
        torch.testing.assert_close(set_attention(model, "standard")(x, src_key_padding_mask=padding), standard)
    assert model.use_nested_tensor


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"attn_mask": torch.zeros(1, 4)}, r"attn_mask has shape \(1, 4\); expected \(3, 4\) or \(4, 3, 4\)"),
        ({"attn_mask": torch.zeros(2, 3, 4)}, r"attn_mask has shape \(2, 3, 4\)"),
        ({"key_padding_mask": torch.zeros(1, 4)}, r"key_padding_mask has shape \(1, 4\); expected \(2, 4\)"),
        ({"attn_mask": torch.zeros(3, 4, dtype=torch.uint8)}, "attn_mask is of torch.uint8; expected torch.bool"),
        ({"key": torch.zeros(1, 4, 8)}, r"queries have shape \(2, 3, 8\) and keys \(1, 4, 8\)"),
        ({"key": torch.zeros(2, 4, 6)}, r"key has shape \(2, 4, 6\); expected \(2, 4, 8\)"),
        ({"value": torch.zeros(2, 5, 8)}, r"value has shape \(2, 5, 8\); expected \(2, 4, 8\)"),
    ],
)
def test_shapes_that_torch_refuses_are_not_broadcast(options: dict[str, Tensor], words: str) -> None:
    inputs = {"query": torch.zeros(2, 3, 8), "key": torch.zeros(2, 4, 8), "value": torch.zeros(2, 4, 8)}
    layer = MultiheadAttention(8, 2, batch_first=True, attention="quest")
    assert layer(**inputs)[0].shape == (2, 3, 8)
    with pytest.raises(ModelError, match=words):
        layer(**{**inputs, **options})
    with pytest.raises((RuntimeError, AssertionError)):
        nn.MultiheadAttention(8, 2, batch_first=True)(**{**inputs, **options})


def test_elliptical_attention_where_its_metric_has_no_meaning_is_refused() -> None:
    x = torch.randn(1, 3, 8)
    layer = MultiheadAttention(8, 2, batch_first=True, attention="elliptical")
    padding = torch.tensor([[False, False, True]])
    for mask in (padding, torch.zeros(1, 3).masked_fill(padding, -math.inf)):
        with pytest.raises(
            ModelError, match="all tokens, padded ones too; expected a batch of one length, without pad"
        ):
            layer(x, x, x, key_padding_mask=mask)
    torch.testing.assert_close(layer(x, x, x, key_padding_mask=torch.zeros_like(padding))[0], layer(x, x, x)[0])
    parallel = small_vit(block_fn=ParallelThingsBlock)
    with pytest.raises(ModelError, match=r"'blocks\.0\.attns\.0\.attn' is one of several side by side"):
        set_attention(parallel, "elliptical-quest")
    assert get_attention(set_attention(parallel, "quest")) == "quest"


CAUSAL = torch.ones(4, 4, dtype=torch.bool).triu(1)
LEAK = "it compares the values of all tokens, hidden ones too, which would leak them; leave the mask out"


@pytest.mark.parametrize("name", ["elliptical", "elliptical-quest"])
@pytest.mark.parametrize("how", ["bool", "-inf", "lowest", "is_causal"])
def test_elliptical_attention_under_a_mask_that_hides_keys_is_refused(name: str, how: str) -> None:
    """A later token would reach an earlier query through the metric, as it does not under another formula."""
    hidden = {"-inf": -math.inf, "lowest": torch.finfo(torch.float32).min}.get(how)
    mask = CAUSAL if hidden is None else torch.zeros(4, 4).masked_fill(CAUSAL, hidden)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    encoder = drawn(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)).eval()
    x = torch.randn(2, 4, 8)
    later = x.clone()
    later[:, 3] += 1
    set_attention(encoder, "quest")
    options = {"mask": mask, "is_causal": how == "is_causal"}
    torch.testing.assert_close(encoder(x, **options)[:, :3], encoder(later, **options)[:, :3])
    set_attention(encoder, name)
    said = f"^{re.escape(name)} attention with attn_mask: {LEAK}"
    with pytest.raises(ModelError, match=said):
        encoder(x, **options)
    alone = MultiheadAttention(8, 2, batch_first=True, attention=name)
    with pytest.raises(ModelError, match=said):
        alone(x, x, x, attn_mask=mask, is_causal=how == "is_causal")
    bias = torch.randn(4, 4)  # hides nothing
    assert encoder(x, mask=bias).isfinite().all() and not torch.equal(encoder(x, mask=bias), encoder(x))
    vit = set_attention(small_vit(img_size=32), name)
    tokens = torch.randn(2, 4, 32)
    with pytest.raises(ModelError, match=f"^{re.escape(name)} attention with (is_causal|attn_mask): {LEAK}"):
        vit.blocks[0].attn(tokens, **({"is_causal": True} if how == "is_causal" else {"attn_mask": ~CAUSAL}))
    assert vit.blocks[0].attn(tokens, attn_mask=torch.ones(4, 4, dtype=torch.bool)).isfinite().all()
    assert vit.blocks[0].attn(tokens[:, :1], is_causal=True).isfinite().all()  # one token sees all there are


def test_causal_hint_without_a_mask_is_refused() -> None:
    x = torch.randn(1, 3, 8)
    with pytest.raises(ModelError, match="is_causal without attn_mask"):
        MultiheadAttention(8, 2, batch_first=True, attention="quest")(x, x, x, is_causal=True)
    with pytest.raises(ModelError, match="unknown attention 'qest'; did you mean 'quest'"):
        MultiheadAttention(8, 2, attention="qest")
