"""Surrogates: the model's outputs, and gradients as a network written by hand has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from formula_vits import NAMES, drawn, small_vit
from torch import Tensor, nn

from attacks import AutoAttack, ThreatModel
from robustkit.attention import set_attention
from robustkit.attention.surrogates import (
    SOFT,
    LogitMargins,
    Softened,
    can_be_seen,
    hidden_keys,
    logit_deviation,
    surrogates,
)

KINDS = ("attention fixed", "values fixed", "softened", "logits")


def images(seed: int = 0) -> Tensor:
    return torch.rand(3, 3, 16, 24, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def by_hand(model: Any, x: Tensor, kind: str, margins: list[Tensor]) -> Tensor:
    """The forward of a ViT, written out, with what a surrogate does to gradients."""
    x = model._pos_embed(model.patch_embed(x))
    for block in model.blocks:
        y, (B, N, C) = block.norm1(x), x.shape
        q, k, v = block.attn.qkv(y).reshape(B, N, 3, 2, C // 2).permute(2, 0, 3, 1, 4)
        logits = q @ k.transpose(-2, -1) / (C // 2) ** 0.5
        attention = logits.softmax(dim=-1)
        deviation = logits.std(dim=-1, keepdim=True, correction=0).detach()
        if kind == "attention fixed":
            attention = attention.detach()
        if kind == "values fixed":
            v = v.detach()
        if kind == "softened":
            soft = (logits / torch.clamp(deviation / SOFT, min=1)).softmax(dim=-1)
            attention = attention.detach() + soft - soft.detach()
        scaled = (logits / torch.clamp(deviation, min=1)).sort(dim=-1).values
        margins.append((scaled[..., :-1].exp().sum(dim=-1).log() - scaled[..., -1]).mean(dim=(1, 2)))
        x = x + block.attn.proj((attention @ v).transpose(1, 2).flatten(2))
        x = x + block.mlp(block.norm2(x))
    return model.head(model.norm(x)[:, 0])  # type: ignore[no-any-return]


@pytest.mark.parametrize("scale", [1.0, 30.0])
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_are_those_of_a_network_written_by_hand(kind: str, scale: float) -> None:
    model = drawn(small_vit()).double()
    with torch.no_grad():
        for block in model.blocks:
            block.attn.qkv.weight[:32] *= scale
    ask = surrogates(model, model)[kind]
    gradients = []
    for forward in (ask, None):
        points, margins = images().requires_grad_(), list[Tensor]()
        logits = by_hand(model, points, kind, margins) if forward is None else forward(points)
        torch.testing.assert_close(logits, model(images()), rtol=1e-9, atol=1e-9)
        loss = nn.functional.cross_entropy(logits, torch.tensor([0, 1, 2]), reduction="none")
        if forward is None and kind == "logits":
            loss = loss + torch.stack(margins).mean(dim=0)
        gradients.append(torch.autograd.grad(loss.sum(), points)[0])
    assert gradients[1].abs().max() > 0
    torch.testing.assert_close(*gradients, rtol=1e-7, atol=1e-9 * float(gradients[1].abs().max()))


@pytest.mark.parametrize("name", NAMES)
def test_under_every_formula_outputs_are_the_model_s_and_another_gradient_flows(name: str) -> None:
    model = drawn(set_attention(small_vit(), name)).double()
    points = images().requires_grad_()
    plain = torch.autograd.grad(model(points)[:, 0].sum(), points)[0]
    for kind, ask in surrogates(model, model).items():
        logits = ask(points)
        torch.testing.assert_close(logits, model(points), rtol=1e-9, atol=1e-9)
        gradient = torch.autograd.grad(logits[:, 0].sum(), points)[0]
        assert gradient.isfinite().all()
        if kind != "softened":  # where no head is sharp, it is the model's own
            assert not torch.allclose(gradient, plain)


def test_spread_leaves_hidden_keys_out_and_networks_without_attention_have_no_surrogates() -> None:
    expected = pytest.approx(float(torch.tensor([3.0, -1.0, 7.0]).std(correction=0)))
    for mask in (-torch.inf, torch.finfo(torch.float32).min, -100.0):
        bias = torch.tensor([[0.0, 0.0, mask, 1.0]])
        logits = torch.tensor([[3.0, -1.0, 0.0, 6.0]]) + bias
        hidden = hidden_keys(logits, bias)
        assert hidden.tolist() == [[False, False, True, False]] and float(logit_deviation(logits, hidden)) == expected
        causal = torch.full((1, 1, 3, 3), mask).triu(1)
        free = torch.randn(1, 1, 3, 3).mul_(50).requires_grad_()
        watched = LogitMargins()
        soft = Softened().attended(0, free + causal, (free + causal).softmax(dim=-1), causal)
        watched.attended(0, free + causal, soft, causal)
        gradient = torch.autograd.grad(watched.loss(1).sum() + soft[..., 0].sum(), free)[0]
        assert gradient.isfinite().all() and (gradient[0, 0, 1:, :2] != 0).all() and (gradient[0, 0, 0] == 0).all()
    assert can_be_seen(small_vit()) and not can_be_seen(nn.Linear(2, 2))


class Hard(nn.Module):
    """A ViT whose queries are so long that each attends to one key, as the models of `surrogates` see it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = drawn(small_vit(), seed=1)
        with torch.no_grad():
            for block in self.network.blocks:
                block.attn.qkv.weight[:32] *= 1e4
            self.network.head.weight *= 0.05

    def forward(self, x: Tensor) -> Tensor:
        return self.network(x)  # type: ignore[no-any-return]


class Seen(Hard):
    @property
    def surrogates(self) -> dict[str, Callable[[Tensor], Tensor]]:
        return surrogates(self.network, self)


def test_autoattack_attention_is_standard_and_a_stage_by_surrogates() -> None:
    x = images(3).float()
    options: dict[str, Any] = {"steps": 10, "targets": 2, "queries": 20}
    threat = ThreatModel("linf", 0.001)
    model = Seen()
    torch.manual_seed(0)
    first = AutoAttack(threat, **options).run(model, x)
    torch.manual_seed(0)
    result = AutoAttack(threat, version="attention", **options).run(model, x)
    assert result.stages == (*first.stages, "attention")
    kept = first.broken_by >= 0
    assert torch.equal(result.broken_by[kept], first.broken_by[kept]) and not kept.all()
    assert (result.stage_forwards[-1][~kept] > 0).all() and (result.stage_forwards[-1][kept] == 0).all()
    answers = model(x).argmax(dim=1), model(result.adversarials).argmax(dim=1)
    assert torch.equal(answers[0] != answers[1], result.broken_by >= 0)
    with pytest.raises(ValueError, match="no surrogates; expected one with a supported attention"):
        AutoAttack(threat, version="attention", **options).run(Hard(), x)


class Opposed(Hard):
    """Its one surrogate has all answers the other way round, so that the model itself never agrees."""

    @property
    def surrogates(self) -> dict[str, Callable[[Tensor], Tensor]]:
        return {"opposed": lambda x: -self(x)}


def test_a_surrogate_with_which_the_model_disagrees_does_not_repeat_the_first_stage() -> None:
    attack = AutoAttack(ThreatModel("linf", 1e-5), version="attention", steps=10, targets=2, queries=5)
    result = attack.run(Opposed(), images(3).float())
    assert (result.broken_by < 0).all() and (result.stage_backwards[-1] == 10).all()


class Misleading(nn.Module):
    """A linear model whose own gradient leads the other way, and a surrogate that has the right one."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.honest(x).detach() - self.honest(x)

    def honest(self, x: Tensor) -> Tensor:
        score = (x - 0.5).flatten(1).sum(dim=1)
        return torch.stack([score, -score], dim=1)

    @property
    def surrogates(self) -> dict[str, Callable[[Tensor], Tensor]]:
        return {"around": self.honest}


def test_the_stage_breaks_what_the_model_s_own_gradient_cannot() -> None:
    offsets = torch.tensor([0.042, 0.044, 0.046, 0.08]).reshape(-1, 1, 1, 1)
    x, labels = 0.5 + offsets.expand(-1, 1, 16, 16), torch.zeros(4, dtype=torch.int64)
    options: dict[str, Any] = {"steps": 10, "targets": 1, "queries": 1, "version": "attention"}
    result = AutoAttack(ThreatModel("linf", 0.05), **options).run(Misleading(), x, labels)
    assert [result.stages[by] if by >= 0 else "" for by in result.broken_by.tolist()] == ["attention"] * 3 + [""]
