"""Formulas as attention functions of transformers: masks, grouped keys, causality, scaling, what is refused."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from robustkit.attention import capture, get_attention, scores, set_attention
from robustkit.attention.interface import PREFIX, register_all
from robustkit.attention.registry import FORMULAS
from robustkit.errors import ModelError

transformers = pytest.importorskip("transformers", reason='transformers is an extra: pip install ".[hf]"')
pytestmark = pytest.mark.usefixtures("one_thread")
TEXT: dict[str, Any] = {"vocab_size": 40, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
LANGUAGE: dict[str, Callable[[], Any]] = {
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, **TEXT)),
    "llama": lambda: transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            **TEXT,
        )
    ),
}
OF_QKV = [name for name in FORMULAS if not FORMULAS[name].elliptical and FORMULAS[name].network is None]


@pytest.fixture(params=LANGUAGE)
def language(request: pytest.FixtureRequest) -> Any:
    torch.manual_seed(0)
    return LANGUAGE[request.param]().eval()


def tokens(length: int = 12) -> Tensor:
    return torch.randint(0, 40, (2, length), generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("formula", OF_QKV)
def test_the_future_changes_nothing(language: Any, formula: str) -> None:
    set_attention(language, formula)
    ids = tokens()
    logits = language(ids).logits
    later = ids.clone()
    later[:, 7:] = (later[:, 7:] + 1) % 40
    assert torch.equal(language(later).logits[:, :7], logits[:, :7])
    assert not torch.equal(language(later).logits[:, 7:], logits[:, 7:])
    cached = language(ids[:, :6], use_cache=True)
    cache = "cache" if "cache" in cached else "past_key_values"  # its name before transformers 5.24
    more = language(ids[:, 6:], **{cache: cached[cache]}).logits
    torch.testing.assert_close(more, logits[:, 6:], rtol=1e-4, atol=1e-5)
    with capture(language) as captured:
        torch.testing.assert_close(language(ids).logits, logits, rtol=1e-4, atol=1e-5)
    assert all((part.triu(1) == 0).all() for part in captured.attention) and len(captured.attention) == 2


def test_padded_tokens_are_not_seen(language: Any) -> None:
    set_attention(language, "quest")
    ids, mask = tokens(), torch.ones(2, 12, dtype=torch.long)
    mask[1, :4] = 0
    seen = language(ids, attention_mask=mask).logits
    other = ids.clone()
    other[1, :4] = 7
    torch.testing.assert_close(language(other, attention_mask=mask).logits[1, 4:], seen[1, 4:], rtol=0, atol=1e-6)


def test_standard_through_our_function_is_the_librarys_own(language: Any) -> None:
    register_all()
    expected = language(tokens()).logits
    language.set_attn_implementation(f"{PREFIX}standard")
    assert get_attention(language) == "standard"
    torch.testing.assert_close(language(tokens()).logits, expected, rtol=1e-4, atol=1e-5)


class Layer(nn.Module):
    """What a layer of the library is to an attention function."""

    is_causal = False


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize("formula", ["standard", "quest", "qnorm", "softcap"])
@pytest.mark.parametrize("masked", ["", "bool", "numbers", "causal", "position_bias", "position_bias and bool"])
def test_a_call_by_hand(formula: str, masked: str, fused: bool) -> None:
    register_all()
    attend = transformers.AttentionInterface()[f"{PREFIX}{formula}"]
    draw = torch.Generator().manual_seed(5)
    q = torch.randn(2, 4, 5, 8, generator=draw, dtype=torch.float64).requires_grad_()
    k, v = (torch.randn(2, 2, 5, 8, generator=draw, dtype=torch.float64) for _ in "kv")  # two heads for four queries
    layer, mask, options = Layer(), None, {}
    layer.__dict__["fused_attn"] = fused
    allowed = torch.ones(5, 5, dtype=torch.bool).tril()
    bias = torch.randn(1, 4, 5, 5, generator=draw, dtype=torch.float64)
    if masked == "bool":
        mask, bias = allowed[None, None], torch.zeros(5, 5).masked_fill(~allowed, float("-inf"))
    elif masked == "numbers":
        mask = bias
    elif masked == "causal":
        layer.is_causal, bias = True, torch.zeros(5, 5).masked_fill(~allowed, float("-inf"))
    elif masked == "position_bias":
        options["position_bias"] = bias
    elif masked == "position_bias and bool":
        mask, options["position_bias"] = allowed[None, None], bias
        bias = bias.masked_fill(~allowed, float("-inf"))
    else:
        bias = torch.zeros(5, 5)
    whole_k, whole_v = (part.repeat_interleave(2, dim=1) for part in (k, v))
    factor = 3.0  # of the library's own scaling, 1/sqrt(8)
    own = scores(formula, q, whole_k)
    own = own * factor
    if formula == "softcap":  # the factor is of what is capped
        own = 50 * torch.tanh(scores("standard", q, whole_k) * factor / 50)
    expected = (own + bias).softmax(dim=-1) @ whole_v
    found, _ = attend(layer, q, k, v, mask, scaling=factor * 8**-0.5, **options)
    torch.testing.assert_close(found, expected.transpose(1, 2))
    gradients = [torch.autograd.grad(part.square().sum(), q)[0] for part in (found, expected)]
    torch.testing.assert_close(*gradients)


def test_dropout_is_of_the_call_and_of_training_alone() -> None:
    register_all()
    attend = transformers.AttentionInterface()[f"{PREFIX}quest"]
    q, k, v = torch.randn(3, 1, 1, 50, 8)
    layer = Layer().train()
    layer.__dict__["fused_attn"] = False
    _, dropped = attend(layer, q, k, v, None, dropout=0.5)
    share = (dropped == 0).double().mean()
    assert 0.45 < share < 0.55
    assert (attend(layer.eval(), q, k, v, None, dropout=0.5)[1] > 0).all()


def test_what_a_call_cannot_compute_is_refused(language: Any) -> None:
    register_all()
    for formula, why in (
        ("elliptical", "compares the values of neighbouring blocks; call robustkit.attention.set_attention"),
        ("qknorm-hs", "has tensors of its own"),
    ):
        language.set_attn_implementation(f"{PREFIX}{formula}")
        with pytest.raises(ModelError, match=why):
            language(tokens())
    language.set_attn_implementation("eager")
    with pytest.raises(ModelError, match="qana attention computes from a layer's input"):
        set_attention(language, "qana")
    set_attention(language, "elliptical-quest")
    with pytest.raises(ModelError, match="would leak them"):
        language(tokens())
    attend = transformers.AttentionInterface()[f"{PREFIX}quest"]
    q = torch.randn(1, 1, 4, 8)
    with pytest.raises(ModelError, match=r"asks for attention sinks \(s_aux\)"):
        attend(Layer(), q, q, q, None, s_aux=torch.zeros(1))
    layer = Layer()
    layer.is_causal = True
    with pytest.raises(ModelError, match="was given 2 queries of 4 keys"):
        attend(layer, q[:, :, :2], q, q, None)


def test_copies_and_pickles_keep_their_formula() -> None:
    torch.manual_seed(0)
    small = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 32}
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**small, image_size=16, patch_size=8)).eval()
    images = torch.rand(2, 3, 16, 16)
    plain = model(images).logits
    set_attention(model, "elliptical-quest")
    expected = model(images).logits
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert get_attention(other) == "elliptical-quest" and torch.equal(other(images).logits, expected)
        with capture(other), pytest.raises(ModelError, match="while it is captured"):
            set_attention(other, "quest")
        set_attention(other, "standard")
        assert torch.equal(other(images).logits, plain)
    assert torch.equal(model(images).logits, expected) and not torch.equal(expected, plain)


def test_fused_and_plain_are_the_same_numbers() -> None:
    attend = functional.scaled_dot_product_attention
    q, k, v = torch.randn(3, 1, 2, 9, 8, dtype=torch.float64)
    register_all()
    found, weights = transformers.AttentionInterface()[f"{PREFIX}quest"](Layer(), q, k, v, None)
    expected = attend(q, functional.normalize(k, dim=-1), v, scale=1.0)
    torch.testing.assert_close(found, expected.transpose(1, 2))
    assert weights is None


def test_norms_of_the_librarys_own_are_not_applied_twice() -> None:
    shape = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "vocab_size": 9, "head_dim": 16}
    config = transformers.Qwen3Config(num_attention_heads=2, num_key_value_heads=2, **shape)
    model = transformers.Qwen3ForCausalLM(config)
    assert get_attention(model) == "standard"  # of queries and keys that the layer has normalised
    with pytest.raises(ModelError, match="qk-rms attention would normalise twice: the layer has its own norms; use"):
        set_attention(model, "qk-rms")
    assert get_attention(set_attention(model, "quest")) == "quest"
