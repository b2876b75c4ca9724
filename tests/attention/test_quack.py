"""QuacK: rates of single heads in fused weights, both algorithms, the bound of Lemma 1, a state that comes back."""

from __future__ import annotations

import io
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import timm
import torch
from quack_layers import HEADS, SIZE, WIDTH, attention, inputs, latent, vit
from torch import Tensor, nn
from torch.func import functional_call

from robustkit.errors import CheckpointError, ModelError, ProtocolError
from robustkit.slices.optim.projections import projections
from robustkit.slices.optim.stabilisers import QuacK, mla_factors

pytestmark = pytest.mark.usefixtures("one_thread")
OPTIMISERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05),
    "sgd-nesterov": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1, foreach=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.02, weight_decay=0.1, foreach=False),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.3, foreach=False),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.3, foreach=True),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.3, fused=True),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.02),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.02),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.02),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.02),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.02, momentum=0.9, centered=True),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
}


class Apart:
    """A timm layer whose qkv is assembled from parameters of its own for each head: what torch can give rates to."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        blocks = layer.qkv.weight.detach().reshape(3, HEADS, SIZE, WIDTH).clone()
        biases = layer.qkv.bias.detach().reshape(3, HEADS, SIZE).clone()
        places = list(itertools.product(range(3), range(HEADS)))
        self.weights = {place: nn.Parameter(blocks[place].clone()) for place in places}
        self.biases = {place: nn.Parameter(biases[place].clone()) for place in places}
        self.rest = dict(layer.proj.named_parameters())

    def groups(self) -> list[dict[str, Any]]:
        own = [{"params": [self.weights[place], self.biases[place]]} for place in self.weights]
        return [*own, {"params": list(self.rest.values())}]

    def fused(self) -> dict[str, Tensor]:
        return {
            "qkv.weight": torch.cat([self.weights[place] for place in sorted(self.weights)]),
            "qkv.bias": torch.cat([self.biases[place] for place in sorted(self.biases)]),
        }

    def __call__(self, x: Tensor) -> Tensor:
        return functional_call(self.layer, self.fused(), (x,))

    def loss(self, step: int) -> Tensor:
        return loss_of(self(inputs(step))) + self.fused()["qkv.bias"].sin().mean()


def loss_with_bias(layer: Any, step: int) -> Tensor:
    """Softmax hides the keys' bias, whose gradient would be rounding, which Adam blows up; so it is in the loss too."""
    return loss_of(layer(inputs(step))) + layer.qkv.bias.sin().mean()


def loss_of(output: Tensor) -> Tensor:
    return (output - 1).square().mean() + output.sin().mean()


@pytest.mark.parametrize("kind", OPTIMISERS)
def test_fused_weights_move_as_parameters_of_each_head_with_rates_of_their_own(kind: str) -> None:
    """Algorithm 1, step by step, by an optimiser that has a group for each head."""
    tau = 0.7
    layer = attention()
    apart = Apart(attention())
    quack = QuacK(OPTIMISERS[kind](layer.parameters()), layer, tau=tau)
    bare = OPTIMISERS[kind](apart.groups())
    base = bare.param_groups[0]["lr"]
    start = {place: weight.norm().item() for place, weight in apart.weights.items()}
    moved = []
    for step in range(6):
        for group, (part, head) in zip(bare.param_groups, apart.weights, strict=False):
            other = (1 - part, head)
            if part < 2:
                group["lr"] = tau * base * start[other] / apart.weights[other].norm().item()
                moved.append(group["lr"] / base)
        quack.zero_grad()
        bare.zero_grad()
        loss_with_bias(layer, step).backward()
        apart.loss(step).backward()
        quack.step()
        bare.step()
    for name, value in apart.fused().items():
        torch.testing.assert_close(layer.get_parameter(name), value, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(layer.proj.weight, apart.layer.proj.weight, rtol=1e-9, atol=1e-12)
    assert max(moved) - min(moved) > 1e-3  # norms did move


@pytest.mark.parametrize("kind", OPTIMISERS)
def test_with_constant_norms_it_is_the_bare_optimiser_with_scaled_rates(kind: str) -> None:
    """Norms are put back after each step, and those at the start are set to ratios that differ from head to head."""
    layer, apart = attention(), Apart(attention())
    quack = QuacK(OPTIMISERS[kind](layer.parameters()), layer, tau=2.0)
    ratios = {"query": torch.tensor([0.1, 1.0, 0.5]), "key": torch.tensor([0.25, 0.7, 1.3])}
    state = quack.state_dict()
    for name, ratio in ratios.items():
        state["quack"]["initial"][""][name] = quack.initial[""][name] / ratio
    quack.load_state_dict(state)
    bare = OPTIMISERS[kind](apart.groups())
    for group, (part, head) in zip(bare.param_groups, apart.weights, strict=False):
        group["lr"] *= 2 * ratios[("query", "key")[part]][head].item() if part < 2 else 1
    norms = layer.qkv.weight.detach().reshape(9, -1).norm(dim=1)
    for step in range(6):
        quack.zero_grad()
        bare.zero_grad()
        loss_with_bias(layer, step).backward()
        apart.loss(step).backward()
        quack.step()
        bare.step()
        blocks = layer.qkv.weight.detach().view(9, SIZE, WIDTH)
        blocks *= (norms / blocks.flatten(1).norm(dim=1))[:, None, None]
        for norm, weight in zip(norms, apart.weights.values(), strict=True):
            weight.detach().mul_(norm / weight.detach().norm())
    for name, value in apart.fused().items():
        torch.testing.assert_close(layer.get_parameter(name), value, rtol=1e-9, atol=1e-12)


def test_latent_attention_moves_as_a_loop_over_heads_says() -> None:
    """Algorithm 2 spelled out, with a group of a plain optimiser for each matrix, per head where it has heads."""
    layer, other = latent(), latent()
    x = [inputs(step, 10) for step in range(5)]
    quack = QuacK(torch.optim.AdamW(layer.parameters(), lr=0.05, weight_decay=0.2), layer, tau=0.6)
    heads = {name: other.get_submodule(name).weight.detach().chunk(3) for name in ("uq", "uk", "qr")}
    parts = {(name, h): nn.Parameter(rows.clone()) for name, blocks in heads.items() for h, rows in enumerate(blocks)}
    single = {name: other.get_submodule(name).weight for name in ("dq", "dkv", "kr")}
    rest = [other.uv.weight, other.o.weight]

    def factors() -> dict[Any, float]:
        n = {key: value.detach().norm().item() for key, value in {**parts, **single}.items()}
        found: dict[Any, float] = {}
        for h in range(3):
            found["uq", h] = 1 / (n["dq"] * n["uk", h] * n["dkv"])
            found["uk", h] = 1 / (n["uq", h] * n["dq"] * n["dkv"])
            found["qr", h] = 1 / (n["dq"] * n["kr"])
        found["dq"] = min(
            1 / max(n["uq", h] * n["uk", h] * n["dkv"] for h in range(3)),
            1 / max(n["qr", h] * n["kr"] for h in range(3)),
        )
        found["dkv"] = 1 / max(n["uq", h] * n["dq"] * n["uk", h] for h in range(3))
        found["kr"] = 1 / max(n["qr", h] * n["dq"] for h in range(3))
        return found

    named = {**parts, **single}
    bare = torch.optim.AdamW(
        [*({"params": [value]} for value in named.values()), {"params": rest}], lr=0.05, weight_decay=0.2
    )
    start = factors()
    for step in range(5):
        now = factors()
        for group, name in zip(bare.param_groups, named, strict=False):
            group["lr"] = 0.6 * 0.05 * now[name] / start[name]
        assembled = {f"{name}.weight": torch.cat([parts[name, h] for h in range(3)]) for name in heads}
        quack.zero_grad()
        bare.zero_grad()
        loss_of(layer(x[step])).backward()
        loss_of(functional_call(other, assembled, (x[step],))).backward()
        quack.step()
        bare.step()
    final = {f"{name}.weight": torch.cat([parts[name, h] for h in range(3)]) for name in heads}
    final |= {name: value for name, value in other.named_parameters() if name not in final}
    for name, value in layer.named_parameters():
        torch.testing.assert_close(value, final[name], rtol=1e-9, atol=1e-12, msg=name)
    assert abs(now["dq"] / start["dq"] - 1) > 0.02


def test_the_smaller_of_two_bounds_is_the_rate_of_the_query_latent() -> None:
    norms = {name: torch.tensor([value]) for name, value in (("dq", 2.0), ("dkv", 0.5), ("kr", 3.0))}
    norms |= {"uq": torch.tensor([1.0, 4.0]), "uk": torch.tensor([2.0, 1.0]), "qr": torch.tensor([5.0, 1.0])}
    factors = {name: factor.tolist() for name, factor in mla_factors(norms).items()}
    assert factors["uq"] == pytest.approx([1 / 2, 1 / 1])
    assert factors["uk"] == pytest.approx([1 / 1, 1 / 4])
    assert factors["qr"] == pytest.approx([1 / 6] * 2)
    assert factors["dq"] == pytest.approx([1 / 15])  # of position; content would give 1/2
    assert factors["dkv"] == pytest.approx([1 / 8])
    assert factors["kr"] == pytest.approx([1 / 10])


# layers


def test_norms_are_those_of_each_head() -> None:
    layer = attention()
    blocks = layer.qkv.weight.detach().reshape(3, HEADS, SIZE, WIDTH)
    (found,) = projections(layer)
    for part, rows in enumerate(found.rows.values()):
        singular = torch.linalg.svdvals(blocks[part])
        torch.testing.assert_close(rows.norms("spectral"), singular[:, 0])
        torch.testing.assert_close(rows.norms("frobenius"), singular.square().sum(1).sqrt())
    layer.qkv.weight.detach()[0, 0] = torch.nan
    assert found.rows["query"].norms("spectral").isnan().tolist() == [True, False, False]


@pytest.mark.parametrize("fused", [True, False])
def test_multihead_attention_of_torch_has_its_rows_by_head(fused: bool) -> None:
    """What a head's logits are made of: turning off one head's rows makes its attention even, and no other's."""
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True, kdim=None if fused else 7, vdim=None if fused else 7)
    nn.init.normal_(layer.in_proj_bias)
    (found,) = projections(layer)
    keys = torch.randn(2, 5, WIDTH if fused else 7)
    for which, head in itertools.product(("query", "key"), range(HEADS)):
        before = [view[head].clone() for view in found.rows[which].views]
        for view in found.rows[which].views:
            view[head] = 0
        _, weights = layer(torch.randn(2, 5, WIDTH), keys, keys, average_attn_weights=False)
        first = ("query", "key").index(which) * WIDTH + head * SIZE
        assert (layer.in_proj_bias == 0).nonzero().flatten().tolist() == list(range(first, first + SIZE))
        even = (weights - 0.2).abs().amax((0, 2, 3)) < 1e-6
        assert even.tolist() == [other == head for other in range(HEADS)]
        for view, old in zip(found.rows[which].views, before, strict=True):
            view[head] = old


def test_only_queries_and_keys_have_other_rates() -> None:
    model, plain = vit(), vit()
    quack = QuacK(torch.optim.SGD(model.parameters(), lr=0.1), model, tau=0.5)
    bare = torch.optim.SGD(plain.parameters(), lr=0.1)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    for network, optimiser in ((model, quack), (plain, bare)):
        network(torch.ones(2, 3, 16, 16)).square().sum().backward()
        optimiser.step()
    for name, value in plain.named_parameters():
        half = model.get_parameter(name).clone()
        if ".attn.qkv." in name:
            rows = slice(0, 2 * WIDTH)
            half[rows] = 2 * half[rows] - before[name][rows]
            assert not torch.equal(half[rows], before[name][rows]) or name.endswith("bias")
            torch.testing.assert_close(half, value)
        else:
            assert torch.equal(half, value)


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="this torch has no Muon")
def test_muon_keeps_its_direction_of_the_whole_matrix() -> None:
    layers = attention(), attention()
    start = layers[0].qkv.weight.detach().clone()
    bare = torch.optim.Muon([layers[0].qkv.weight], lr=0.1, weight_decay=0.5)
    quack = QuacK(torch.optim.Muon([layers[1].qkv.weight], lr=0.1, weight_decay=0.5), layers[1], tau=0.25)
    for layer, optimiser in zip(layers, (bare, quack), strict=True):
        loss_of(layer(inputs(0))).backward()
        optimiser.step()
    plain, scaled = (layer.qkv.weight.detach() - start for layer in layers)
    torch.testing.assert_close(scaled[: 2 * WIDTH], 0.25 * plain[: 2 * WIDTH])
    assert torch.equal(scaled[2 * WIDTH :], plain[2 * WIDTH :])
    assert (plain.abs().amax(1) > 0).all()


def test_at_the_start_with_tau_1_a_step_has_the_optimisers_bits() -> None:
    layers = attention(), attention()
    optimisers = [torch.optim.AdamW(layer.parameters(), lr=0.1) for layer in layers]
    for layer, optimiser in zip(layers, (optimisers[0], QuacK(optimisers[1], layers[1])), strict=True):
        loss_of(layer(inputs(0))).backward()
        optimiser.step()
    assert torch.equal(layers[0].qkv.weight, layers[1].qkv.weight)


def test_half_precision_weights_get_the_factor_in_full() -> None:
    """0.9 in bfloat16 would lead from 1 to 7.28."""
    layer = attention(bias=False).bfloat16()
    layer.qkv.weight.detach().fill_(1.0)
    quack = QuacK(torch.optim.SGD(layer.parameters(), lr=1.0), layer, tau=0.9)
    layer.qkv.weight.grad = torch.full_like(layer.qkv.weight, -7.0)
    quack.step()
    assert set(layer.qkv.weight[: 2 * WIDTH].flatten().tolist()) == {7.3125}  # the nearest to 1 + 0.9 * 7
    assert set(layer.qkv.weight[2 * WIDTH :].flatten().tolist()) == {8.0}


# an optimiser like any other


def test_schedulers_scalers_closures_and_hooks_take_it_for_an_optimiser() -> None:
    model = vit()
    quack = QuacK(torch.optim.SGD(model.parameters(), lr=0.4), model, tau=0.5)
    schedule = torch.optim.lr_scheduler.StepLR(quack, 1, gamma=0.5)
    seen = []
    quack.register_step_post_hook(lambda *_: seen.append(quack.param_groups[0]["lr"]))

    def closure() -> float:
        quack.zero_grad()
        loss = model(torch.ones(2, 3, 16, 16)).square().sum()
        loss.backward()
        return loss.item()

    first = closure()
    assert quack.step(closure) == first != closure()
    schedule.step()
    quack.step()
    assert seen == [0.4, 0.2]

    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    before = model.blocks[0].attn.qkv.weight.detach().clone()
    for bad in (True, False):
        quack.zero_grad()
        scaler.scale(model(torch.ones(2, 3, 16, 16)).square().sum()).backward()
        if bad:
            model.blocks[1].attn.qkv.weight.grad[0, 0] = torch.inf
        scaler.step(quack)
        scaler.update()
        assert torch.equal(model.blocks[0].attn.qkv.weight, before) == bad
    quack.add_param_group({"params": [nn.Parameter(torch.zeros(1))]})
    assert len(quack.optimizer.param_groups) == len(quack.param_groups) == 2
    assert quack.state is quack.optimizer.state
    assert len(pickle.loads(pickle.dumps(quack.optimizer.state_dict()))["param_groups"]) == 2


@pytest.mark.parametrize("build", [attention, latent])
def test_a_restored_state_goes_on_to_the_same_bits(build: Callable[[], Any]) -> None:
    width = 10 if build is latent else WIDTH

    def steps(model: Any, optimiser: QuacK, numbers: range) -> None:
        for step in numbers:
            optimiser.zero_grad()
            loss_of(model(inputs(step, width))).backward()
            optimiser.step()

    whole = build()
    quack = QuacK(torch.optim.AdamW(whole.parameters(), lr=0.1), whole, tau=0.3, norm="spectral")
    steps(whole, quack, range(3))
    file = io.BytesIO()
    torch.save({"model": whole.state_dict(), "optimiser": quack.state_dict()}, file)
    steps(whole, quack, range(3, 6))
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    again = build()
    again.load_state_dict(saved["model"])
    restored = QuacK(torch.optim.AdamW(again.parameters(), lr=0.1), again, tau=1.0, norm="spectral")
    restored.load_state_dict(saved["optimiser"])
    assert restored.tau == 0.3
    steps(again, restored, range(3, 6))
    for name, value in whole.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_a_state_of_something_else_is_refused_in_one_line() -> None:
    layer = attention()
    adam = torch.optim.Adam(layer.parameters())
    quack = QuacK(adam, layer)
    with pytest.raises(CheckpointError, match="no entry 'quack': it belongs to the bare optimiser; load it there"):
        quack.load_state_dict(adam.state_dict())
    with pytest.raises(CheckpointError, match="of norm frobenius, not spectral; give norm='frobenius'"):
        QuacK(adam, layer, norm="spectral").load_state_dict(quack.state_dict())
    other = vit()
    with pytest.raises(CheckpointError, match=r"of attention layers blocks\.0\.attn, blocks\.1\.attn with other heads"):
        quack.load_state_dict(QuacK(torch.optim.Adam(other.parameters()), other).state_dict())


def test_a_norm_that_falls_to_zero_or_is_no_number_leaves_the_rate_at_tau() -> None:
    layer = attention()
    quack = QuacK(torch.optim.SGD(layer.parameters(), lr=0.1), layer, tau=0.5)
    layer.qkv.weight.detach()[WIDTH : WIDTH + SIZE] = 0
    layer.qkv.weight.detach()[WIDTH + SIZE] = torch.nan
    rates = quack.rates()[""]["query"]
    assert rates.tolist() == pytest.approx([0.5, 0.5, 0.5])


@pytest.mark.parametrize(
    ("make", "options", "error", "message"),
    [
        (attention, {"tau": 0.0}, ProtocolError, "tau 0: expected a number above 0; it multiplies rates"),
        (attention, {"tau": -1.0}, ProtocolError, "tau -1: expected a number above 0"),
        (attention, {"tau": float("nan")}, ProtocolError, "tau nan: expected a number above 0"),
        (
            attention,
            {"norm": "nuclear"},
            ProtocolError,
            "unknown norm of weights 'nuclear'; known: frobenius, spectral",
        ),
        (attention, {"algorithm": "mqa"}, ProtocolError, "unknown algorithm 'mqa'; did you mean"),
        (
            vit,
            {"algorithm": "mla"},
            ModelError,
            r"algorithm 'mla' is for latent attention, but blocks\.0\.attn is multi-head attention \(Attention\); give "
            r"algorithm='mha' or 'auto'",
        ),
        (
            lambda: nn.Sequential(latent()),
            {"algorithm": "mha"},
            ModelError,
            r"algorithm 'mha' is for multi-head attention, but 0 is latent attention \(LatentAttention\); give "
            r"algorithm='mla' or 'auto'",
        ),
        (
            lambda: timm.create_model("resnet10t"),
            {},
            ModelError,
            "ResNet has no attention layer; expected that of timm's ViTs or CrossViT, nn.MultiheadAttention",
        ),
        (
            lambda: timm.create_model("swin_tiny_patch4_window7_224"),
            {},
            ModelError,
            "SwinTransformer has attention of class WindowAttention; expected",
        ),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(
    make: Callable[[], Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    model = make()
    with pytest.raises(error, match=message) as caught:
        QuacK(torch.optim.SGD(model.parameters(), lr=0.1), model, **options)
    assert "\n" not in str(caught.value)


def test_weights_of_norm_zero_and_optimisers_of_another_model_are_refused() -> None:
    layer = attention()
    layer.qkv.weight.detach()[WIDTH + SIZE : WIDTH + 2 * SIZE] = 0
    with pytest.raises(ModelError, match="the key weight of head 1 has norm 0; expected one above 0"):
        QuacK(torch.optim.SGD(layer.parameters(), lr=0.1), layer)
    with pytest.raises(ModelError, match="QuacK: SGD holds none of the model's query and key weights"):
        QuacK(torch.optim.SGD(attention().parameters(), lr=0.1), attention())
