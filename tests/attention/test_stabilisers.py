"""The baselines next to QuacK: fixed rates, QK clip, σReparam, and capped logits as an attention."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import timm
import torch
from torch import Tensor, nn

from robustkit.attention import capture, set_attention
from robustkit.attention.layers import LatentAttention
from robustkit.errors import ModelError, ProtocolError
from robustkit.slices.optim.projections import projections
from robustkit.slices.optim.stabilisers import (
    FixedRates,
    QKClip,
    QuacK,
    remove_sigma_reparam,
    sigma_reparam,
    stabiliser,
)

pytestmark = pytest.mark.usefixtures("one_thread")
WIDTH, HEADS = 12, 3


def vit(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    model = timm.create_model(
        "vit_tiny_patch16_224", img_size=16, patch_size=8, embed_dim=WIDTH, depth=2, num_heads=HEADS, num_classes=3
    )
    for block in model.blocks:
        nn.init.normal_(block.attn.qkv.weight)
        nn.init.normal_(block.attn.qkv.bias)
    return model


def images(seed: int = 0) -> Tensor:
    return torch.randn(4, 3, 16, 16, generator=torch.Generator().manual_seed(seed))


def largest_logits(model: nn.Module, *batches: Tensor) -> Tensor:
    """(layers, heads) over all batches, signed."""
    found = []
    for batch in batches:
        with torch.no_grad(), capture(model) as captured:
            model(batch)
        found.append(torch.stack([scores.amax((0, 2, 3)) for scores in captured.scores]))
    return torch.stack(found).amax(0)


def still(model: nn.Module) -> torch.optim.Optimizer:
    """An optimiser that does not move."""
    return torch.optim.SGD(model.parameters(), lr=0.0)


# fixed rates


def test_queries_and_keys_take_a_fixed_share_of_the_step() -> None:
    model, plain = vit(), vit()
    start = {name: value.detach().clone() for name, value in model.named_parameters()}
    fixed = FixedRates(torch.optim.Adam(model.parameters(), lr=0.01), model, factor=0.25)
    bare = torch.optim.Adam(plain.parameters(), lr=0.01)
    for network, optimiser in ((model, fixed), (plain, bare)):
        network(images()).square().sum().backward()
        optimiser.step()
    for name, value in plain.named_parameters():
        share = torch.ones(len(value)) if value.ndim else torch.ones(())
        if ".qkv." in name:
            share[: 2 * WIDTH] = 0.25
        share = share.reshape(share.shape + (1,) * (value.ndim - share.ndim))
        expected = start[name] + share * (value - start[name])
        torch.testing.assert_close(model.get_parameter(name).detach(), expected.detach(), rtol=1e-5, atol=1e-7)


# QK clip


def test_heads_above_the_threshold_come_down_to_it_and_others_stay() -> None:
    model = vit()
    before = largest_logits(model, images(0), images(1))[0]  # of the first block: the second sees its output
    threshold = before.sort().values[1].item() - 1e-3  # two heads are above it
    clip = QKClip(still(model), model, threshold=threshold)
    plain = copy.deepcopy(model.state_dict())
    model.train()
    for seed in (0, 1, 0):  # the largest of all passes since the last step counts, first or last
        model(images(seed))
    clip.step()
    model.eval()
    after = largest_logits(model, images(0), images(1))[0]
    torch.testing.assert_close(after, before.clamp(max=threshold), rtol=1e-5, atol=1e-5)
    changed = model.blocks[0].attn.qkv.weight / plain["blocks.0.attn.qkv.weight"]
    share = (threshold / before).clamp(max=1).sqrt().repeat_interleave(WIDTH // HEADS)
    expected = torch.cat([share, share, torch.ones(WIDTH)])[:, None].expand(-1, WIDTH)
    torch.testing.assert_close(changed, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(model.blocks[0].mlp.fc1.weight, plain["blocks.0.mlp.fc1.weight"])
    model.load_state_dict(plain)
    model(images(1))
    clip.step()  # nothing was seen in training since
    assert torch.equal(model.blocks[0].attn.qkv.weight, plain["blocks.0.attn.qkv.weight"])


def test_the_clip_comes_after_the_step_of_the_optimiser() -> None:
    model, plain = vit(), vit()
    clip = QKClip(torch.optim.SGD(model.parameters(), lr=0.01), model, threshold=1e-3)
    bare = torch.optim.SGD(plain.parameters(), lr=0.01)
    seen = largest_logits(model, images())
    for network, optimiser in ((model, clip), (plain, bare)):
        network.train()(images()).square().sum().backward()
        optimiser.step()
    for index, (found, moved) in enumerate(zip(model.blocks, plain.blocks, strict=True)):
        share = (1e-3 / seen[index]).sqrt().repeat_interleave(WIDTH // HEADS)
        expected = moved.attn.qkv.weight.detach().clone()
        expected[: 2 * WIDTH] *= torch.cat([share, share])[:, None]
        torch.testing.assert_close(found.attn.qkv.weight.detach(), expected, rtol=1e-4, atol=1e-6)


def test_latent_attention_shrinks_its_own_parts_and_leaves_what_heads_share() -> None:
    torch.manual_seed(0)
    layer = LatentAttention(8, 3, nope=4, rope=2, value=4, query_latent=5, key_latent=6)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    x = torch.randn(2, 5, 8)

    def logits() -> Tensor:
        q, k = layer.queries_and_keys(x)
        return (q @ k.mT * layer.scale).detach()

    before = logits()
    largest = before.amax((0, 2, 3))
    threshold = largest.median().item()
    clip = QKClip(still(layer), layer, threshold=threshold)
    shared = {name: getattr(layer, name).weight.clone() for name in ("dq", "dkv", "kr", "uv")}
    layer.train()(x)
    clip.step()
    ratio = (threshold / largest).clamp(max=1)
    assert (ratio < 1).sum() == 1
    torch.testing.assert_close(logits(), before * ratio[:, None, None])
    assert all(torch.equal(getattr(layer, name).weight, value) for name, value in shared.items())


def test_a_removed_clip_sees_nothing_and_broken_logits_change_nothing() -> None:
    model = vit().train()
    clip = QKClip(still(model), model, threshold=1e-6)
    before = model.blocks[0].attn.qkv.weight.detach().clone()
    model(torch.full((1, 3, 16, 16), torch.nan))
    assert all(largest.isnan().all() for largest in clip.largest.values())
    clip.step()
    clip.largest["blocks.0.attn"] = torch.full((HEADS,), torch.inf)
    clip.step()
    assert torch.equal(model.blocks[0].attn.qkv.weight, before)
    clip.remove()
    model(images())
    clip.step()
    assert torch.equal(model.blocks[0].attn.qkv.weight, before)


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (lambda: set_attention(vit(), "quest"), "FormulaAttention, quest"),
        (lambda: set_attention(vit(), "softcap(cap=9)"), r"FormulaAttention, softcap\(cap=9\)"),
        (lambda: set_attention(vit(), "qknorm-ln"), "Attention"),
        (lambda: nn.MultiheadAttention(4, 2), "MultiheadAttention, standard"),
    ],
)
def test_attention_that_does_not_shrink_with_its_weights_is_refused(model: Any, found: str) -> None:
    made = model()
    with pytest.raises(ModelError, match=f"QK clip needs the standard attention of timm's ViTs, .* found {found}"):
        QKClip(still(made), made)


# σReparam


def test_reparametrised_weights_are_gamma_times_a_matrix_of_norm_one() -> None:
    model, plain = vit(), vit()
    sigma_reparam(model)
    torch.testing.assert_close(model.eval()(images()), plain.eval()(images()), rtol=1e-4, atol=1e-5)
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    assert len(layers) == 2 * 4 + 1
    assert all("parametrizations.weight.original" in dict(layer.named_parameters()) for layer in layers)
    layer = layers[0]
    gamma = layer.parametrizations.weight[0].gamma
    torch.testing.assert_close(gamma, torch.linalg.svdvals(plain.blocks[0].attn.qkv.weight)[0])
    gamma.detach().fill_(3.0)
    layer.parametrizations.weight.original.detach().mul_(50.0)
    torch.testing.assert_close(torch.linalg.svdvals(layer.weight)[0].item(), 3.0, rtol=1e-5, atol=0)


def test_power_iteration_follows_a_weight_that_moves_in_training_alone() -> None:
    model = vit()
    sigma_reparam(model)
    layer = model.blocks[1].mlp.fc1
    with torch.no_grad():
        nn.init.normal_(layer.parametrizations.weight.original)
    gamma = layer.parametrizations.weight[0].gamma.item()

    def excess() -> float:
        return float(torch.linalg.svdvals(layer.weight.detach())[0] / gamma - 1)

    model.eval()
    first = excess()
    assert first > 0.05  # the vector is of the old weight
    for _ in range(100):
        assert excess() == first
    model.train()
    for _ in range(100):
        _ = layer.weight
    assert abs(excess()) < 1e-3


def test_its_gradient_runs_through_sigma_as_the_closed_form_says() -> None:
    """d(γ W/σ) against a direction G: γ/σ (G - <G, W> / σ · uvᵀ), with the singular vectors u and v of W."""
    torch.manual_seed(0)
    linear = nn.Sequential(nn.Linear(5, 4, bias=False).double())
    W, G = linear[0].weight.detach().clone(), torch.randn(4, 5, dtype=torch.double)
    sigma_reparam(linear)
    (linear[0].weight * G).sum().backward()
    u, s, v = torch.linalg.svd(W, full_matrices=False)
    expected = G - (G * W).sum() / s[0] * torch.outer(u[:, 0], v[0])  # γ = σ
    torch.testing.assert_close(linear[0].parametrizations.weight.original.grad, expected)
    torch.testing.assert_close(linear[0].parametrizations.weight[0].gamma.grad, (G * W).sum() / s[0])


def test_removed_it_leaves_a_usual_model_of_the_same_outputs() -> None:
    model = vit()
    sigma_reparam(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.05)
    for step in range(3):
        optimiser.zero_grad()
        model.train()(images(step)).square().sum().backward()
        optimiser.step()
    expected = model.eval()(images())
    remove_sigma_reparam(model.train())
    usual = vit(seed=1)
    usual.load_state_dict(model.state_dict())
    assert torch.equal(usual.eval()(images()), expected)


def test_what_has_no_norm_or_no_rows_of_its_own_is_refused() -> None:
    model = vit()
    nn.init.zeros_(model.blocks[1].attn.proj.weight)
    with pytest.raises(ModelError, match=r"blocks\.1\.attn\.proj\.weight is zero; σReparam divides by its norm"):
        sigma_reparam(model)
    assert not hasattr(model.blocks[0].attn.qkv, "parametrizations")  # none was changed
    with pytest.raises(ModelError, match="Conv2d has no linear layer; σReparam needs weights of linear layers"):
        sigma_reparam(nn.Conv2d(3, 3, 1))
    model = vit()
    sigma_reparam(model)
    with pytest.raises(ModelError, match=r"blocks\.0\.attn\.qkv: a parametrization computes its weight from others"):
        QuacK(torch.optim.SGD(model.parameters(), lr=0.1), model)


# all


@pytest.mark.parametrize("name", ["quack", "qk-clip", "fixed-rates", "sigma-reparam", "none"])
def test_a_stabiliser_by_name_prepares_wraps_and_finishes(name: str) -> None:
    model = vit()
    keys = list(model.state_dict())
    made = stabiliser(name)
    made.prepare(model)
    optimiser = made.wrap(torch.optim.SGD(model.parameters(), lr=0.01), model)
    wrapper = {"quack": QuacK, "qk-clip": QKClip, "fixed-rates": FixedRates}.get(name, torch.optim.SGD)
    assert type(optimiser) is wrapper
    assert (list(model.state_dict()) == keys) == (name != "sigma-reparam")
    made.finish(model)
    assert list(model.state_dict()) == keys
    assert stabiliser(made.text) == made


@pytest.mark.parametrize(
    "make", [lambda m: FixedRates(still(m), m, factor=0.0), lambda m: QKClip(still(m), m, threshold=-1)]
)
def test_parameters_out_of_range_are_refused(make: Any) -> None:
    with pytest.raises(ProtocolError, match="expected a number above 0"):
        make(vit())


def test_rows_of_crossvit_are_those_of_its_class_tokens_too() -> None:
    """Zero rows of a head give even attention in that head alone, in both kinds of layers."""
    torch.manual_seed(0)
    model = timm.create_model("crossvit_tiny_240", num_classes=3).eval()
    found = projections(model)
    kinds = {type(layer.layer).__name__: layer for layer in found}
    assert set(kinds) == {"Attention", "CrossAttention"}
    names = [layer.name for layer in found]
    for layer in kinds.values():
        layer.rows["key"].views[0][1] = 0
    with torch.no_grad(), capture(model) as captured:
        model(torch.randn(1, 3, 240, 240))
    for layer in kinds.values():
        weights = captured.attention[names.index(layer.name)]
        even = (weights - 1 / weights.shape[-1]).abs().amax((0, 2, 3)) < 1e-6
        assert even.tolist() == [head == 1 for head in range(len(even))]


def test_logits_beyond_half_precision_are_clipped_too() -> None:
    """The fused kernel of the layer keeps them to itself, so outputs stay finite."""
    model = vit()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight.mul_(700)
    clip = QKClip(still(model), model)
    norm = model.blocks[0].attn.qkv.weight[: 2 * WIDTH].norm().item()
    with torch.autocast("cpu", torch.float16):
        assert model(images()).isfinite().all()
    assert all(largest.isfinite().all() and (largest > 65504).any() for largest in clip.largest.values())
    clip.step()
    assert model.blocks[0].attn.qkv.weight[: 2 * WIDTH].norm().item() < 0.2 * norm


def test_a_copy_of_the_model_says_nothing_of_the_model() -> None:
    model = vit()
    clip = QKClip(still(model), model)
    copied = copy.deepcopy(model).train()
    with torch.no_grad():
        copied.blocks[0].attn.qkv.weight.mul_(100)
    copied(images())
    assert clip.largest == {}
    model(images())
    assert len(clip.largest) == 2


def test_rows_that_two_layers_share_have_no_rate_of_their_own() -> None:
    model = vit()
    model.blocks[1].attn.qkv.weight = model.blocks[0].attn.qkv.weight
    for wrap in (lambda: QuacK(still(model), model), lambda: FixedRates(still(model), model, factor=0.5)):
        with pytest.raises(ModelError, match=r"blocks\.0\.attn and blocks\.1\.attn share a query or key weight"):
            wrap()
    with pytest.raises(ModelError, match="linear layers share a weight; σReparam would separate them"):
        sigma_reparam(model)
    with pytest.raises(ModelError, match=r"self_attn: queries, keys and values of nn\.MultiheadAttention are no"):
        sigma_reparam(nn.TransformerEncoderLayer(8, 2, 16))
    frozen = vit().requires_grad_(False)
    sigma_reparam(frozen)
    assert not any(parameter.requires_grad for parameter in frozen.parameters())


def test_names_keep_all_digits() -> None:
    texts = {stabiliser(f"quack(tau={value!r})").text for value in (0.12345671, 0.12345674, 0.5)}
    assert texts == {f"quack(tau={value!r},norm=frobenius)" for value in (0.12345671, 0.12345674, 0.5)}
    for text, words in (
        ("quack(tau=1,tau=2)", "tau is given twice"),
        ("quack(tau=x)", "tau 'x': expected a number above 0"),
        ("qk-clip(threshold=inf)", "threshold inf: expected a number above 0"),
    ):
        with pytest.raises(ProtocolError, match=words):
            stabiliser(text)
