"""No formula that is accepted under a causal mask lets the future in: fused, captured, watched, or by gradients."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from formula_vits import drawn, small_vit
from torch import Tensor, nn

from robustkit.attention import Formula, MultiheadAttention, Watcher, capture, set_attention
from robustkit.attention.apply import watching
from robustkit.attention.formulas import FAMILIES, find_formula
from robustkit.attention.layers import LatentAttention
from robustkit.attention.registry import EVERY_FORMULA, FORMULAS
from robustkit.attention.surrogates import FixedAttention, FixedValues, LogitMargins, Softened
from robustkit.common.plugins import Registry, instance_of
from robustkit.errors import ModelError
from robustkit.slices.optim.stabilisers import sigma_reparam

pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings(r"ignore:qana\(start=zero\)"),  # networks that do not learn may not leak, either
]
VALUES: dict[str, tuple[str, ...]] = {
    "temperature": ("learned", "3"),
    "hidden": ("1",),
    "activation": ("relu", "silu", "tanh", "sigmoid"),
    "gate": ("true",),
    "rope": ("true",),
    "cap": ("2",),
    "start": ("zero",),
    "eps": ("1e-3",),
    "on": ("keys",),
    "scale": ("none",),
    "average": ("median",),
    "affine": ("scale", "none"),
    "delta": (),  # with scale=none alone
}
"""Values of each option of a formula besides the usual one; a new option is to be added."""
EVERY = (
    *FORMULAS,
    *(f"{name}({key}={value})" for name, (options, _) in FAMILIES.items() for key in options for value in VALUES[key]),
)
ELLIPTICAL = [name for name in EVERY if find_formula(name).elliptical]
ACCEPTED = [name for name in EVERY if name not in ELLIPTICAL]
LEAK = "it compares the values of all tokens, hidden ones too, which would leak them; leave the mask out"
TOKENS, WIDTH = 3, 32
HIDDEN = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)

Ask = Callable[[Tensor], Tensor]
WAYS: dict[str, Callable[[nn.Module], AbstractContextManager[Any]]] = {
    "fused": lambda model: nullcontext(),
    "captured": capture,
    **{
        kind.__name__: lambda model, kind=kind: watching(model, kind())  # type: ignore[misc]
        for kind in (Watcher, FixedAttention, FixedValues, Softened, LogitMargins)
    },
}


def ways(name: str) -> list[Callable[[nn.Module], AbstractContextManager[Any]]]:
    """All of them for each formula, the first two for its options, which no watcher asks for."""
    return list(WAYS.values())[: None if name in FORMULAS else 2]


def softly(model: Any) -> Any:
    """Draw every parameter, so small that no attention is a single key's."""
    with torch.no_grad():
        for parameter in drawn(model).parameters():
            parameter.mul_(0.3)
    return model


def blocks_of_timm(name: str, masks: dict[str, Any]) -> tuple[nn.Module, Ask]:
    """The blocks of a ViT, each set to be causal."""
    vit = set_attention(small_vit(), name)

    def ask(x: Tensor) -> Tensor:
        for block in vit.blocks:
            x = x + block.attn(block.norm1(x), **masks)
            x = x + block.mlp(block.norm2(x))
        return x

    return softly(vit).double(), ask


def blocks_of_words(name: str, is_latent: bool) -> tuple[nn.Module, Ask]:
    """The blocks of our own language model, with its own attention or latent one."""
    words = pytest.importorskip("robustkit.slices.text.language_model")
    blocks: Any = nn.Sequential(*(words.CausalBlock(words.ModelShape(WIDTH, 2, 2, TOKENS, 48), 0.0) for _ in range(2)))
    for block in blocks if is_latent else ():
        block.attn = LatentAttention(WIDTH, 2, nope=4, rope=2, value=6, query_latent=6, key_latent=7)
    return softly(set_attention(blocks, name)).double(), blocks


def encoder_of_torch(name: str, mask: Tensor) -> tuple[nn.Module, Ask]:
    """torch's encoder, whose layers ask for no weights: its fused way."""
    layer = nn.TransformerEncoderLayer(WIDTH, 2, 48, dropout=0.0, batch_first=True)
    encoder = set_attention(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), name)
    return softly(encoder).double().eval(), lambda x: encoder(x, mask=mask)


def one_layer(name: str, mask: Tensor) -> tuple[nn.Module, Ask]:
    """Our own layer, asked for its weights: its slow way."""
    layer = MultiheadAttention(WIDTH, 2, batch_first=True, attention=name)
    return softly(layer).double(), lambda x: layer(x, x, x, attn_mask=mask, need_weights=True)[0]


def added(hidden: float) -> Tensor:
    return torch.zeros(TOKENS, TOKENS, dtype=torch.double).masked_fill(HIDDEN, hidden)


MODELS: dict[str, Callable[[str], tuple[nn.Module, Ask]]] = {
    "timm, is_causal": lambda name: blocks_of_timm(name, {"is_causal": True}),
    "timm, bool": lambda name: blocks_of_timm(name, {"attn_mask": ~HIDDEN}),
    "torch, bool": lambda name: encoder_of_torch(name, HIDDEN),
    "torch, lowest": lambda name: encoder_of_torch(name, added(torch.finfo(torch.float32).min)),
    "words": lambda name: blocks_of_words(name, is_latent=False),
    "latent": lambda name: blocks_of_words(name, is_latent=True),
    "weights, -inf": lambda name: one_layer(name, added(-math.inf)),
}


def assert_causal(ask: Ask, x: Tensor, change: Callable[[Tensor, int], Tensor]) -> None:
    """Token t changes nothing before it, to the bit, and does change what is at t and after it."""
    before = ask(x)
    for token in range(x.shape[1]):
        after = ask(change(x, token))
        assert torch.equal(after[:, :token], before[:, :token])
        assert (after[:, token:] - before[:, token:]).flatten(2).abs().amax(2).min() > 1e-12


def assert_no_gradient(ask: Ask, x: Tensor) -> None:
    """d out[<t] / d in[>=t] is exactly 0, and there is a gradient."""
    x = x.clone().requires_grad_()
    out = ask(x)
    weights = torch.randn(out.shape, dtype=out.dtype, generator=torch.Generator().manual_seed(9))
    for token in (1, x.shape[1] - 1):
        (gradient,) = torch.autograd.grad((weights * out)[:, :token].sum(), x, retain_graph=True)
        assert gradient[:, token:].abs().max() == 0
    assert gradient.abs().max() > 0


def moved(x: Tensor, token: int) -> Tensor:
    changed = x.clone()
    changed[:, token] = 1 - 2 * changed[:, token].flip(-1)
    return changed


@pytest.fixture
def x() -> Tensor:
    return torch.randn(2, TOKENS, WIDTH, dtype=torch.double, generator=torch.Generator().manual_seed(4))


def test_every_option_of_every_formula_is_tried() -> None:
    assert {key for options, _ in FAMILIES.values() for key in options} == VALUES.keys()
    assert set(FORMULAS) <= set(EVERY) and ELLIPTICAL[:2] == ["elliptical", "elliptical-quest"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ACCEPTED)
def test_the_future_changes_nothing(name: str, model: str, x: Tensor) -> None:
    network, ask = MODELS[model](name)
    for watch in ways(name):
        with watch(network):
            with torch.no_grad():
                assert_causal(ask, x, moved)
            assert_no_gradient(ask, x)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", ELLIPTICAL)
def test_a_formula_that_averages_over_all_tokens_is_refused(name: str, model: str, x: Tensor) -> None:
    network, ask = MODELS[model](name)
    said = f"^{re.escape(name)} attention with (is_causal|attn_mask): {LEAK}"
    for watch in WAYS.values():
        with watch(network), pytest.raises(ModelError, match=said):
            ask(x)


def test_the_test_sees_what_the_elliptical_ones_would_leak(x: Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robustkit.attention.layers._check_sees_all", lambda *_: None)
    for model in ("timm, is_causal", "torch, bool"):
        _, ask = MODELS[model]("elliptical")
        with pytest.raises(AssertionError), torch.no_grad():
            assert_causal(ask, x, moved)


@pytest.fixture
def centred(monkeypatch: pytest.MonkeyPatch) -> str:
    """The formula of a plug-in that is made of all tokens without saying so: keys less their mean."""
    formula = Formula("centred", "Q (K - mean)ᵀ", "a test", True, lambda q, k, p: (q, k - k.mean(-2, keepdim=True)))
    registry = Registry("formulas", {**FORMULAS, formula.name: formula}, instance_of(Formula))
    monkeypatch.setattr("robustkit.attention.formulas.EVERY_FORMULA", registry)
    return formula.name


@pytest.mark.parametrize("model", MODELS)
def test_a_formula_that_mixes_tokens_is_refused(centred: str, model: str, x: Tensor) -> None:
    network, ask = MODELS[model](centred)
    for watch in WAYS.values():
        with watch(network), pytest.raises(ModelError, match="it mixes queries or keys of all tokens, hidden ones too"):
            ask(x)
    assert one_layer(centred, torch.zeros(TOKENS, TOKENS))[1](x).isfinite().all()


def test_which_formulas_mix_tokens() -> None:
    assert not any(find_formula(name).mixes_tokens for name in EVERY)

    def raising(q: Tensor, k: Tensor, p: Any) -> tuple[Tensor, Tensor]:
        raise RuntimeError("64 channels only")

    assert Formula("other", "", "", True, raising).mixes_tokens
    assert set(FORMULAS) <= set(EVERY_FORMULA)


def test_reparametrised_weights_and_masks_of_latent_attention(x: Tensor) -> None:
    network, ask = MODELS["timm, is_causal"]("quest")
    sigma_reparam(network)
    layer, _ = MODELS["latent"]("quest")
    asks = {
        network: ask,
        layer: lambda x: layer[0].attn(x, attn_mask=~HIDDEN),  # type: ignore[index]
    }
    for each, by in asks.items():
        for watch in (WAYS["fused"], WAYS["captured"]):
            with watch(each):
                with torch.no_grad():
                    assert_causal(by, x, moved)
                assert_no_gradient(by, x)


@pytest.mark.parametrize("name", EVERY)
def test_a_model_of_words(name: str) -> None:
    own = pytest.importorskip("robustkit.slices.text.language_model")
    sizes = own.ModelShape(WIDTH, 2, 2, TOKENS, 48)
    if name in ELLIPTICAL:
        with pytest.raises(ModelError, match="would leak future tokens to a language model"):
            own.WordModel(40, sizes, name)
        return
    model = softly(own.WordModel(40, sizes, name)).double().eval()
    words = torch.randint(0, 40, (2, TOKENS), generator=torch.Generator().manual_seed(3))
    for watch in ways(name):
        with watch(model), torch.no_grad():
            assert_causal(model, words, other_word)


# Models of transformers


def language_models() -> Iterator[Any]:
    transformers = pytest.importorskip("transformers", reason='an extra: pip install ".[hf]"')
    words = {"vocab_size": 40, "bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    torch.manual_seed(0)
    yield transformers.GPT2LMHeadModel(transformers.GPT2Config(n_embd=32, n_layer=2, n_head=4, **words))
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(num_key_value_heads=2, **small, **words)
    yield transformers.LlamaForCausalLM(config)


@pytest.mark.parametrize("name", ACCEPTED)
def test_the_future_changes_nothing_in_a_language_model(name: str) -> None:
    for model in language_models():
        softly(model).eval()
        if find_formula(name).network is not None:
            with pytest.raises(ModelError, match="computes from a layer's input"):
                set_attention(model, name)
            continue
        set_attention(model, name)
        ids = torch.randint(0, 40, (2, TOKENS), generator=torch.Generator().manual_seed(3))
        embedded = model.get_input_embeddings()(ids).detach()
        ask, ask_embedded = of_words(model), of_embedded(model)
        for watch in ways(name):
            with watch(model):
                with torch.no_grad():
                    assert_causal(ask, ids, other_word)
                assert_no_gradient(ask_embedded, embedded)


def of_words(model: Any) -> Ask:
    return lambda ids: model(ids).logits  # type: ignore[no-any-return]


def of_embedded(model: Any) -> Ask:
    return lambda embedded: model(inputs_embeds=embedded).logits  # type: ignore[no-any-return]


def other_word(ids: Tensor, token: int) -> Tensor:
    changed = ids.clone()
    changed[:, token] = (changed[:, token] + 7) % 40
    return changed


@pytest.mark.parametrize("name", ELLIPTICAL)
def test_a_language_model_refuses_a_formula_that_averages_over_all_tokens(name: str) -> None:
    for model in language_models():
        set_attention(model.eval(), name)
        for watch in WAYS.values():
            with watch(model), pytest.raises(ModelError, match=LEAK):
                model(torch.zeros(1, TOKENS, dtype=torch.long))
