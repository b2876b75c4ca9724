"""Latent attention: its equations, its cache, its place in a ViT, and copies with their rows."""

from __future__ import annotations

import copy
import itertools
import pickle

import pytest
import torch
from quack_layers import WIDTH, inputs, latent, vit
from torch import Tensor, nn

from robustkit.attention import FORMULAS, capture, get_attention, scores, set_attention
from robustkit.attention.layers import LatentAttention, rotate
from robustkit.errors import ModelError
from robustkit.slices.optim.projections import projections
from robustkit.slices.optim.stabilisers import QuacK

pytestmark = pytest.mark.usefixtures("one_thread")


def slow_latent(layer: LatentAttention, x: Tensor) -> Tensor:
    """Equations 13, one head and one pair of tokens at a time; rotations as matrices."""
    w = {name.removesuffix(".weight"): value for name, value in layer.named_parameters()}
    batch, tokens, _ = x.shape
    rows = []

    def turn(vector: Tensor, position: int) -> Tensor:
        matrix = torch.zeros(layer.rope, layer.rope, dtype=x.dtype)
        for pair in range(layer.rope // 2):
            angle = torch.tensor(position * layer.base ** (-2 * pair / layer.rope), dtype=x.dtype)
            block = torch.stack([angle.cos(), -angle.sin(), angle.sin(), angle.cos()]).view(2, 2)
            matrix[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = block
        return matrix @ vector

    for b in range(batch):
        heads = []
        for h in range(layer.num_heads):
            uq, uk, uv, qr = (w[name].chunk(layer.num_heads)[h] for name in ("uq", "uk", "uv", "qr"))
            logits = torch.zeros(tokens, tokens, dtype=x.dtype)
            for i, j in itertools.product(range(tokens), range(tokens)):
                latent_q, latent_kv = w["dq"] @ x[b, i], w["dkv"] @ x[b, j]
                q = torch.cat((uq @ latent_q, turn(qr @ latent_q, i)))
                k = torch.cat((uk @ latent_kv, turn(w["kr"] @ x[b, j], j)))
                logits[i, j] = q @ k / (layer.nope + layer.rope) ** 0.5
            heads.append(logits.softmax(-1) @ (x[b] @ w["dkv"].T @ uv.T))
        rows.append(torch.cat(heads, -1) @ w["o"].T)
    return torch.stack(rows)


def test_latent_attention_is_what_its_equations_say() -> None:
    torch.manual_seed(1)
    layer = LatentAttention(10, 3, nope=4, rope=6, value=5, query_latent=6, key_latent=7).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    x = inputs(0, 10)
    torch.testing.assert_close(layer(x), slow_latent(layer, x), rtol=0, atol=1e-12)
    causal = layer(x, is_causal=True)
    torch.testing.assert_close(causal[:, :3], layer(x[:, :3], is_causal=True))
    shifted = layer(x, positions=torch.arange(5) + 4)
    torch.testing.assert_close(shifted, layer(x), rtol=0, atol=1e-12)
    single = copy.deepcopy(layer).float()
    torch.testing.assert_close(single(x.float()), layer(x).float(), rtol=1e-5, atol=1e-6)
    assert (layer(x, positions=2 * torch.arange(5)) - layer(x)).abs().max() > 1e-3


def test_its_logits_need_only_what_is_cached() -> None:
    """Absorbed: W_uk moves over to the queries, so that keys are c_kv and one turned part for all heads."""
    layer, x = latent(), inputs(3, 10)
    q, k = layer.queries_and_keys(x)
    cached = x @ layer.dkv.weight.T
    absorbed = torch.einsum("bhnd,hdc->bhnc", q[..., :4], layer.uk.weight.view(3, 4, 7))
    shared = rotate(x @ layer.kr.weight.T, torch.arange(5))
    logits = absorbed @ cached[:, None].mT + q[..., 4:] @ shared[:, None].mT
    torch.testing.assert_close(logits, q @ k.mT)


@pytest.mark.parametrize("name", [name for name, formula in FORMULAS.items() if not formula.elliptical])
def test_it_takes_any_formula_and_is_watched_as_others_are(name: str) -> None:
    layer, x = latent(), inputs(3, 10)
    before = layer(x)
    set_attention(layer, name)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5, generator=torch.Generator().manual_seed(parameter.numel()))
    q, k = layer.queries_and_keys(x)
    given = {key: value for key, value in layer.named_parameters() if "." not in key or "_norm" in key}
    if name == "qana":
        given["network"] = layer.query_network(x).view(2, 5, 3, -1).transpose(1, 2)
    logits = scores(name, q, k, parameters=given)
    v = (x @ layer.dkv.weight.T @ layer.uv.weight.T).view(2, 5, 3, 5).transpose(1, 2)
    expected = (logits.softmax(-1) @ v).transpose(1, 2).flatten(2) @ layer.o.weight.T
    torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-12)
    with capture(layer) as captured:
        torch.testing.assert_close(layer(x), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(captured.scores[0], logits, rtol=0, atol=1e-12)
    assert get_attention(layer) == name
    assert set(set_attention(layer, "standard").state_dict()) == set(latent().state_dict())
    assert torch.equal(latent()(x), before)


def test_an_elliptical_formula_needs_values_as_large_as_queries() -> None:
    with pytest.raises(ModelError, match="queries of 6 numbers and values of 5; expected the same size, or another"):
        set_attention(latent(), "elliptical")


def test_it_takes_the_place_of_attention_in_a_vit_and_trains_under_algorithm_2() -> None:
    model = vit(depth=1)
    model.blocks[0].attn = LatentAttention(WIDTH, 2, nope=4, rope=2, value=6, query_latent=5, key_latent=5)
    quack = QuacK(torch.optim.Adam(model.parameters(), lr=1e-2), model, algorithm="mla")
    images, labels = torch.randn(6, 3, 16, 16), torch.arange(6) % 3
    losses = []
    for _ in range(30):
        quack.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        quack.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 < losses[0]
    rates = quack.rates()["blocks.0.attn"]
    assert {name: len(rate) for name, rate in rates.items()} == {
        **dict.fromkeys(("uq", "uk", "qr"), 2),
        **dict.fromkeys(("dq", "dkv", "kr"), 1),
    }


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"rope": 3}, "rope 3: expected an even size: positions turn pairs of channels; give 4"),
        ({"nope": 0}, "nope 0:"),
    ],
)
def test_sizes_that_cannot_be_are_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        LatentAttention(8, 2, **{"nope": 4, "rope": 2, "value": 4, "query_latent": 4, "key_latent": 4, **sizes})


def test_formulas_and_copies_keep_their_rows() -> None:
    """Another formula changes a layer's class, and a copied model has rows of its own."""
    model = set_attention(vit(), "quest")
    other = copy.deepcopy(model)
    assert [layer.name for layer in projections(other)] == ["blocks.0.attn", "blocks.1.attn"]
    assert projections(other)[0].rows["key"].weight is other.blocks[0].attn.qkv.weight


def test_a_copy_with_its_scheduler_steps_the_copy() -> None:
    model = nn.Sequential(nn.MultiheadAttention(4, 2))
    optimiser = QuacK(torch.optim.SGD(model.parameters(), lr=1.0), model)
    torch.optim.lr_scheduler.StepLR(optimiser, 1)  # it patches `step` of the one it was given
    other, copied = copy.deepcopy((model, optimiser))
    for parameter in (*model.parameters(), *other.parameters()):
        parameter.grad = torch.ones_like(parameter)
    before = [part[0].in_proj_weight.detach().clone() for part in (model, other)]
    copied.step()
    assert torch.equal(model[0].in_proj_weight, before[0])
    assert not torch.equal(other[0].in_proj_weight, before[1])
    assert pickle.loads(pickle.dumps(optimiser)).tau == 1
