"""The loss that draws queries to the keys of a patch: value and gradient against loops, grids, and refusals."""

from __future__ import annotations

import math

import pytest
import torch
from formula_vits import NAMES, drawn, small_vit
from torch import Tensor, nn

from attacks import Patch, ThreatModel
from robustkit.attention import set_attention
from robustkit.attention.surrogates import key_loss, patches
from robustkit.errors import ModelError

BOXES = torch.tensor([[0, 0, 8], [8, 8, 8], [4, 12, 8]])
COVERED = ([1], [5], [2, 3, 5, 6])  # tokens of a grid of 2 x 3 after the class token


def images() -> Tensor:
    return torch.rand(3, 3, 16, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def by_hand(seen: list[Tensor], of_class: bool) -> Tensor:
    """The loss (3,) from the projections (B, N, 3 x heads x d) of each layer, by loops."""
    every = []
    for sample, tokens in enumerate(COVERED):
        layers = []
        for projected in seen:
            heads = []
            for head in range(2):
                q, k, _ = projected[sample].reshape(7, 3, 2, 16)[:, :, head].unbind(1)
                q = q / torch.stack([row.norm() for row in q]).mean()
                k = k / torch.stack([row.norm() for row in k]).mean()
                asking = [0] if of_class else range(7)
                drawn_to = [sum(q[j] @ k[i] for i in tokens) / len(tokens) / 4 for j in asking]
                heads.append(sum(drawn_to) / len(drawn_to))
            layers.append(sum(math.e**one for one in heads).log())  # type: ignore[union-attr]
        every.append(sum(one.exp() for one in layers).log())  # type: ignore[union-attr]
    return torch.stack(every)


@pytest.mark.parametrize("of_class", [False, True])
@pytest.mark.parametrize("name", ["standard", "quest", "elliptical-quest"])
def test_value_and_gradient_are_those_of_loops(name: str, of_class: bool) -> None:
    model = drawn(set_attention(small_vit(), name)).double()
    points, seen = images().requires_grad_(), list[Tensor]()
    logits, loss = key_loss(model, model, points, BOXES, of_class)
    for block in model.blocks:
        block.attn.qkv.register_forward_hook(lambda module, inputs, output: seen.append(output))
    assert torch.allclose(model(points), logits)
    replica = by_hand(seen, of_class)
    torch.testing.assert_close(loss, replica)
    gradients = [torch.autograd.grad(one.sum(), points, retain_graph=True)[0] for one in (loss, replica)]
    assert gradients[0].abs().max() > 0
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("name", NAMES)
def test_a_patch_draws_attention_to_itself_under_every_formula(name: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = drawn(set_attention(small_vit(), name))

        def forward(self, x: Tensor) -> Tensor:
            return 1e-3 * self.network(x)  # type: ignore[no-any-return]

        def key_loss(self, x: Tensor, boxes: Tensor, of_class: bool) -> tuple[Tensor, Tensor]:
            return key_loss(self.network, self, x, boxes, of_class)

    model, x = Model().eval(), images().float()
    boxes = torch.tensor([[0, 0, 8]] * 3)
    options = {"steps": 15, "early_stop": False}
    attacks = {loss: Patch(ThreatModel("patch", size=8), loss=loss, **options) for loss in ("ce", "kq")}  # type: ignore[arg-type]
    torch.manual_seed(0)
    ends = {loss: attack(model, x) for loss, attack in attacks.items()}
    drawn_to = {loss: model.key_loss(end, boxes, False)[1].detach() for loss, end in ends.items()}
    assert (drawn_to["kq"] > drawn_to["ce"]).all()


def test_grids_are_found_and_what_has_none_is_refused() -> None:
    assert patches(197, 224, 224) == (1, 16) and patches(198, 224, 224) == (2, 16) and patches(64, 64, 64) == (0, 8)
    assert patches(7, 16, 24) == (1, 8)
    with pytest.raises(ModelError, match="45 tokens of an image of 64 x 64 pixels do not form a square grid"):
        patches(45, 64, 64)
    bare = small_vit(class_token=False, global_pool="avg")
    with pytest.raises(ModelError, match="the model has none; use loss kq"):
        key_loss(bare, bare, images().float(), BOXES, True)
