"""QK-Norm as its document has it, QANA, and attention that is not square: CrossViT's and torch's multi-head layers."""

from __future__ import annotations

import copy
import json
import math
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from formula_vits import drawn, small_vit
from places import SHARED
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.models import VisionTransformer

from robustkit import audit, load
from robustkit.attention import MultiheadAttention, get_attention, scores, set_attention
from robustkit.attention.formulas import Network, find_formula, rotate_halves
from robustkit.errors import CheckpointError, ModelError

pytestmark = pytest.mark.usefixtures("one_thread", "pageless")

# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("qana", "qana"),
        ("qana()", "qana"),
        (" qana( rope=true, hidden=4 ) ", "qana(rope=true)"),
        ("qana(gate=true,hidden=8,activation=relu)", "qana(hidden=8,activation=relu,gate=true)"),
        ("softcap(cap=50)", "softcap"),
        ("softcap(cap=0.1)", "softcap(cap=0.1)"),
        ("qk-l2(temperature=8)", "qk-l2(temperature=8)"),
        ("qk-l2(temperature=learned)", "qk-l2(temperature=learned)"),
        (f"softcap(cap={1 / 3!r})", f"softcap(cap={1 / 3!r})"),
    ],
)
def test_names_with_options_have_one_form(text: str, canonical: str) -> None:
    formula = find_formula(text)
    assert formula.name == canonical
    assert find_formula(canonical) == formula
    assert pickle.loads(pickle.dumps(formula)) == copy.deepcopy(formula) == formula


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("qnorm(hidden=3)", r"'qnorm\(hidden=3\)': qnorm takes no options; expected qnorm alone"),
        ("elliptical(delta=2)", "delta 2 has no effect, since scale=max cancels it; leave delta out, or give scale="),
        ("elliptical(average=mode)", "elliptical: average 'mode'; expected mean or median"),
        ("qk-rms(eps=0)", "qk-rms: eps '0'; expected a number above 0"),
        ("qanna(hidden=3)", "unknown attention 'qanna'; did you mean 'qana'"),
        ("qana(hiden=3)", "unknown option of attention qana 'hiden'; did you mean 'hidden'"),
        ("qana(hidden=0)", "qana: hidden '0'; expected a whole number, 1 or more"),
        ("qana(hidden=2,hidden=4)", "qana: hidden is given twice"),
        ("qana(hidden)", "qana: hidden without a value; expected a whole number"),
        ("qana(activation=elu)", "qana: activation 'elu'; expected gelu, relu, silu, tanh, sigmoid"),
        ("qana(rope=yes)", "qana: rope 'yes'; expected true or false"),
        ("softcap(cap=-1)", "softcap: cap '-1'; expected a number above 0"),
        ("softcap(cap=inf)", "softcap: cap 'inf'; expected a number above 0"),
        ("qk-l2(temperature=nan)", "expected a number above 0, learned or sqrt"),
        ("qana(hidden=3", "unknown attention"),
    ],
)
def test_names_that_are_not_understood(text: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        find_formula(text)


# --- QK-Norm ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 1e-6])  # with small rows the eps decides
@pytest.mark.parametrize("temperature", [None, 3.0])
@pytest.mark.parametrize("kind", ["l2", "layer-norm"])
def test_qk_norm_is_the_documents(kind: str, temperature: float | None, scale: float) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(2, 3, 5, 8)) * size for size in (scale, scale, 1.0))
    normal = {
        "l2": lambda x: x / np.sqrt((x**2).sum(-1, keepdims=True) + 1e-12),
        "layer-norm": lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5),
    }[kind]
    logits = normal(q) @ normal(k).swapaxes(-1, -2) * (np.sqrt(8) if temperature is None else temperature)
    weights = np.exp(logits - logits.max(-1, keepdims=True))
    expected = weights / weights.sum(-1, keepdims=True) @ v
    name = f"qk-{kind}" if temperature is None else f"qk-{kind}(temperature={temperature:g})"
    found = scores(name, torch.tensor(q), torch.tensor(k)).softmax(-1) @ torch.tensor(v)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6, atol=1e-9)
    learned = {"temperature": torch.tensor(temperature or 8**0.5)}
    again = scores(f"qk-{kind}(temperature=learned)", torch.tensor(q), torch.tensor(k), parameters=learned)
    np.testing.assert_allclose(again.numpy(), logits, rtol=1e-6)


def test_learned_temperature_is_a_tensor_of_the_checkpoint_and_learns() -> None:
    model = set_attention(small_vit(), "qk-l2(temperature=learned)")
    assert model.state_dict()["blocks.1.attn.temperature"] == 4.0  # sqrt(16)
    model(torch.rand(2, 3, 16, 24)).square().sum().backward()
    assert model.blocks[0].attn.temperature.grad.abs() > 0
    assert "blocks.1.attn.temperature" not in set_attention(model, "qk-l2").state_dict()


# --- QANA ------------------------------------------------------------------------------------------------------------


def test_rows_of_a_query_are_the_documents() -> None:
    network = Network(4, "gelu", gate=False, rope=False)
    assert 64 + network.rows(64) == 329
    u, v, b, c = network.split(torch.arange(265.0))
    assert (u.shape, u[1, 0], u[3, 63]) == ((4, 64), 64, 255)
    assert (v.tolist(), b.tolist(), c.tolist()) == ([256, 257, 258, 259], [260, 261, 262, 263], [264])


@pytest.mark.parametrize("rope", [True, False])
def test_with_rope_scores_depend_on_relative_positions_only(rope: bool) -> None:
    torch.manual_seed(0)
    name = f"qana(hidden=3,activation=tanh,rope={str(rope).lower()})"
    q, k, weights = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 3 * 8 + 7)
    same = [tensor.double().expand(1, 1, 9, -1) for tensor in (q, k, weights)]  # one query and one key at all places
    found = scores(name, same[0], same[1], parameters={"network": same[2]})[0, 0]
    for offset in range(-8, 9):
        diagonal = found.diagonal(offset)
        torch.testing.assert_close(diagonal, diagonal[:1].expand_as(diagonal))
    assert (found.max() - found.min() > 0.1) == rope  # without RoPE, positions make no difference at all


def test_rotation_by_hand() -> None:
    x = torch.tensor([[1.0, 2.0, 3.0, 4.0]]).expand(3, 4).double()
    turned = rotate_halves(x)
    c, s = math.cos(2 * 0.01), math.sin(2 * 0.01)  # token 2, second pair: 10000^(-2/4) = 0.01
    assert turned[0].tolist() == [1, 2, 3, 4]
    assert turned[2, [1, 3]].tolist() == pytest.approx([2 * c - 4 * s, 4 * c + 2 * s], rel=1e-12)
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))


@pytest.mark.parametrize("gate", ["true", "false"])
def test_swap_keeps_the_function_and_then_learns(gate: str) -> None:
    model, images = drawn(small_vit()), torch.rand(4, 3, 16, 24)
    expected = model(images)
    set_attention(model, f"qana(gate={gate})")
    torch.testing.assert_close(model(images), expected, rtol=1e-5, atol=1e-6)
    tail = {name: p for name, p in model.named_parameters() if "query_network" in name or name.endswith("alpha")}
    assert len(tail) == (6 if gate == "true" else 4)
    frozen = set_attention(small_vit().requires_grad_(False), f"qana(gate={gate})")
    assert not any(parameter.requires_grad for parameter in frozen.parameters())
    model.requires_grad_(False)
    for parameter in tail.values():
        parameter.requires_grad_(True)
    optimiser = torch.optim.AdamW(tail.values(), lr=0.05)
    for _ in range(10):  # the tail alone
        optimiser.zero_grad()
        functional.cross_entropy(model(images), torch.arange(4)).backward()
        optimiser.step()
    assert (model(images) - expected).abs().max() > 1e-2


def test_all_rows_zero_is_where_no_gradient_comes() -> None:
    """The document's start: a reason for ours."""
    for activation in ("gelu", "sigmoid"):
        model = set_attention(drawn(small_vit()).double(), f"qana(activation={activation})")
        for block in model.blocks:
            for parameter in block.attn.query_network.parameters():
                nn.init.zeros_(parameter)
        functional.cross_entropy(model(torch.rand(3, 3, 16, 24).double()), torch.arange(3)).backward()
        for block in model.blocks:
            assert block.attn.query_network.weight.grad.abs().max() < 1e-15
            assert block.attn.qkv.weight.grad.abs().max() > 1e-4


class Largest(TorchDispatchMode):
    """The most numbers in one tensor that any operation made."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in made if isinstance(made, tuple | list) else (made,):
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.numel())
        return made


def test_memory_never_holds_every_hidden_unit() -> None:
    network = Network(16, "gelu", gate=False, rope=True)
    k = torch.randn(2, 3, 64, 4, requires_grad=True)
    weights = torch.randn(2, 3, 64, network.rows(4), requires_grad=True)
    square, inputs = 2 * 3 * 64 * 64, weights.numel() + k.numel()
    kept: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes() // 4
        return tensor

    with Largest() as largest:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            made = network.logits(weights, k)
        made.sum().backward()
    assert largest.numbers <= max(square, weights.numel())
    assert sum(kept.values()) < 3 * inputs + square  # and not 16 squares


def test_gradients_equal_those_of_the_whole_network_at_once() -> None:
    torch.manual_seed(0)
    network = Network(3, "silu", gate=True, rope=False)
    k, alpha = torch.randn(2, 2, 5, 4).double().requires_grad_(), torch.tensor(0.3).double().requires_grad_()
    weights = torch.randn(2, 2, 6, network.rows(4)).double().requires_grad_()
    toward = torch.randn(2, 2, 6, 5).double()

    def at_once() -> Tensor:
        u, v, b, c = network.split(weights)
        hidden = functional.silu(torch.einsum("bhnld,bhmd->bhnml", u, k) + b[:, :, :, None])
        return alpha * ((hidden * v[:, :, :, None]).sum(-1) + c)

    expected = torch.autograd.grad((at_once() * toward).sum(), (weights, k, alpha))
    found = torch.autograd.grad((network.logits(weights, k, alpha) * toward).sum(), (weights, k, alpha))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.slow
@pytest.mark.shared
def test_swap_of_the_real_vit_tiny() -> None:
    weights = SHARED / "weights" / "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"
    if not weights.exists():
        pytest.skip(f"no real weights at {weights}")
    model = load(weights, attention="standard").network
    images = torch.randn(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = model(images)
    set_attention(model, "qana")
    with torch.no_grad():
        assert (model(images) - expected).abs().max() < 1e-5
    model.train().requires_grad_(True)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4)
    before = model.blocks[0].attn.query_network.weight.detach().clone()
    for _ in range(10):
        optimiser.zero_grad()
        functional.cross_entropy(model(images), torch.tensor([3])).backward()
        optimiser.step()
    assert (model.blocks[0].attn.query_network.weight - before).abs().max() > 1e-4
    with torch.no_grad():
        assert (model.eval()(images) - expected).abs().max() > 0.1


@pytest.mark.parametrize("make", [lambda: small_vit(embed_dim=30), lambda: MultiheadAttention(30, 2)])
def test_rope_on_an_odd_head_is_refused_before_anything_changes(make: Callable[[], nn.Module]) -> None:
    model = make()
    names = list(model.state_dict())
    with pytest.raises(ModelError, match="RoPE turns pairs of channels, and the head size is 15; expected an even"):
        set_attention(model, "qana(rope=true)")
    assert (get_attention(model), list(model.state_dict())) == ("standard", names)


# --- as checkpoints --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("qana(hidden=2,gate=true)", "qk-l2(temperature=learned)", "softcap(cap=2)", "qk-layer-norm"),
        *("qk-rms(scale=heads)", "qk-rms(on=keys)", "elliptical(scale=mean,average=median)"),
    ],
)
def test_a_checkpoint_says_its_formula_with_options(name: str, tmp_path: Path) -> None:
    model = drawn(set_attention(small_vit(img_size=32), name))
    kwargs = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}
    said = {"arch": "vit_tiny_patch16_224", "arch_kwargs": json.dumps(kwargs), "num_classes": "5"}
    said |= {"mean": "[0, 0, 0]", "std": "[1, 1, 1]", "input_size": "[32, 32]"}
    path, images = tmp_path / "m.safetensors", torch.rand(2, 3, 32, 32)
    save_file(model.state_dict(), path, metadata=said | {"attention": f" {name} ".replace(",", ", ")})
    found = load(path)
    assert (found.identity.attention, found.identity.attention_source) == (name, "metadata")
    torch.testing.assert_close(found(images), model(images))
    save_file(model.state_dict(), path, metadata=said)
    assert load(path, attention=name).identity.attention_source == "option"
    if name.startswith(("qana", "qk-rms")) or "learned" in name:
        with pytest.raises(CheckpointError, match=r"unexpected: .* check --attention"):
            load(path)


def test_an_audit_of_a_vit_of_torchvisions_under_another_formula(tmp_path: Path) -> None:
    """From a factory and --attention to records of an attack, as of any other model."""
    (tmp_path / "nets.py").write_text(
        "from torchvision.models import VisionTransformer\n"
        "def small():\n"
        "    return VisionTransformer(64, 16, num_layers=1, num_heads=2, hidden_dim=16, mlp_dim=16, num_classes=10)\n"
    )
    shape = {"num_layers": 1, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 16}
    save_file(drawn(VisionTransformer(64, 16, num_classes=10, **shape)).state_dict(), tmp_path / "m.safetensors")
    model = {"arch": f"{tmp_path}/nets.py:small", "num_classes": 10, "mean": (0.5,) * 3, "std": (0.5,) * 3}
    options: Any = {"data_dir": "embedded:shapes", "attacks": ["fgsm"], "limit": 3}
    results = {}
    for name in ("standard", "qana(hidden=1)", "quest"):
        if name.startswith("qana"):
            with pytest.raises(CheckpointError, match=r"2 missing: .*query_network.* check --attention"):
                audit([tmp_path / "m.safetensors"], model={**model, "attention": name}, **options)
            continue
        run = audit(
            [tmp_path / "m.safetensors"],
            model={**model, "attention": name},
            out=tmp_path / name,
            **options,
        )
        assert run.manifest.checkpoints[0].attention == name
        results[name] = [row["value"] for row in run.results().to_dict("records") if row["metric"] == "nll"]
    assert results["standard"] != results["quest"]
