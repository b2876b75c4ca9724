"""Figures of attention: by hand, compared with a slow replica, alike in any batch, over layers that differ."""

from __future__ import annotations

import copy
import gc
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attack_oracles import slow_vit
from timm.models.vision_transformer import Attention
from torch import Tensor, nn
from vits import small_vit

from robustkit.attention import FORMULAS, set_attention
from robustkit.evaluations.layers import Layer
from robustkit.slices.watching import LISTS
from robustkit.slices.watching.evaluate import watch
from robustkit.slices.watching.results import HeadSums

pytestmark = pytest.mark.usefixtures("one_thread")


class Net(nn.Module):
    """Two heads of dimension 2 on four tokens: the rows of an identity, so that weights are what each token has."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = Attention(4, num_heads=2, qkv_bias=True)
        nn.init.zeros_(self.attn.qkv.weight)
        nn.init.zeros_(self.attn.qkv.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.attn(tokens).mean(dim=1)  # type: ignore[no-any-return]


TOKENS = torch.eye(4).expand(3, 4, 4)


def test_even_and_one_hot_attention_by_hand() -> None:
    net = Net()
    _, seen = watch(net, TOKENS)
    assert seen.layers == (Layer("attn", 2, 4),)
    assert seen.values["attention_entropies"].tolist() == [[pytest.approx(math.log(4))] * 2] * 3
    assert seen.values["strongest_keys"].tolist() == [[0.25, 0.25]] * 3
    assert not any(seen.values[name].any() for name in ("largest_logits", "query_norms", "key_norms"))
    with torch.no_grad():
        net.attn.qkv.bias[0] = 20.0  # every query of head 0 is (20, 0)
        net.attn.qkv.weight[4, 1] = -15.0  # its key of token 1 is (-15, 0), the others none
        net.attn.qkv.weight[4, 2] = 25.0  # and of token 2 (25, 0)
        net.attn.qkv.bias[2:4] = torch.tensor([3.0, 4.0])  # queries of head 1, whose keys are none
    output, seen = watch(net, TOKENS)
    assert torch.equal(output, net(TOKENS))
    found = {name: [round(value, 4) for value in values[0].tolist()] for name, values in seen.values.items()}
    assert found == {
        "largest_logits": [353.5534, 0.0],  # 20 * 25 / sqrt(2)
        "query_norms": [20.0, 5.0],
        "key_norms": [10.0, 0.0],  # (0 + 15 + 25 + 0) / 4
        "attention_entropies": [0.0, 1.3863],
        "strongest_keys": [1.0, 0.25],
        "softmax_slopes": [0.0, 0.25],  # of an even row of four the Jacobian is (I - 1/4) / 4
    }
    columns = seen.columns()
    assert columns["largest_logit"] == [pytest.approx(353.5534)] * 3
    assert (columns["query_norm"][0], columns["key_norm"][0]) == (12.5, 5.0)
    assert columns["entropy_share"] == [pytest.approx(0.5)] * 3
    assert columns["attention_entropy"][0] == pytest.approx(math.log(4) / 2)
    assert columns["strongest_key"] == [0.625] * 3


def test_over_a_single_key_attention_is_even() -> None:
    _, seen = watch(Net(), torch.ones(2, 1, 4))
    assert (seen.layers[0].keys, seen.columns()["entropy_share"], seen.columns()["strongest_key"]) == (
        1,
        [1, 1],
        [1, 1],
    )


@pytest.mark.parametrize("formula", FORMULAS)
def test_figures_equal_a_slow_replica_sample_by_sample(formula: str) -> None:
    model = set_attention(small_vit(sharp=3), formula)
    torch.manual_seed(2)
    for key, parameter in model.named_parameters():
        if "scale" in key or "_norm" in key:
            nn.init.uniform_(parameter, 0.5, 2.0)
    images = torch.rand(3, 3, 16, 24)
    tokens: list[Tensor] = []
    hooks = [b.attn.qkv.register_forward_pre_hook(lambda _, args: tokens.append(args[0])) for b in model.blocks]
    logits, seen = watch(model, images)
    for hook in hooks:
        hook.remove()
    assert torch.allclose(logits, model(images), atol=1e-5)
    columns = seen.columns()
    for sample in range(3):
        expected: dict[str, list[float]] = {name: [] for name in LISTS}
        exact = copy.deepcopy(model).double()
        _, scores, attention = slow_vit(exact, images[sample : sample + 1].double(), formula)
        for layer, block in enumerate(model.blocks):
            weight, bias = block.attn.qkv.weight.double().detach(), block.attn.qkv.bias.double().detach()
            projected = tokens[layer][sample].double() @ weight.T + bias  # (N, 3 * H * d)
            for head in range(2):
                rows = [row.tolist() for row in attention[layer][0, head].detach()]
                entropies = [-sum(p * math.log(p) for p in row if p > 0) for row in rows]
                expected["attention_entropies"].append(sum(entropies) / len(rows))
                expected["strongest_keys"].append(sum(map(max, rows)) / len(rows))
                rows_ = attention[layer][0, head].detach()
                jacobians = torch.diag_embed(rows_) - rows_[:, :, None] * rows_[:, None, :]
                slopes = torch.linalg.eigvalsh(jacobians)[:, -1].tolist()
                expected["softmax_slopes"].append(sum(slopes) / len(slopes))
                expected["largest_logits"].append(max(abs(s) for row in scores[layer][0, head].tolist() for s in row))
                for name, start in (("query_norms", 0), ("key_norms", 32)):
                    own = projected[:, start + 16 * head : start + 16 * head + 16].tolist()
                    expected[name].append(sum(math.sqrt(sum(x * x for x in row)) for row in own) / len(own))
        for name in LISTS:
            assert columns[name][sample] == pytest.approx(expected[name], rel=2e-4, abs=1e-6), name
        assert columns["largest_logit"][sample] == pytest.approx(max(expected["largest_logits"]), rel=2e-4)
        share = np.mean(expected["attention_entropies"]) / math.log(7)
        assert columns["entropy_share"][sample] == pytest.approx(share, rel=2e-4)


def test_a_sample_is_measured_alike_in_any_batch_and_no_maps_are_kept() -> None:
    model, images = small_vit(), torch.rand(4, 3, 16, 24)
    found = []

    def count(*_: Any) -> None:
        gc.collect()
        found.append(sum(type(one) is Tensor and one.shape == (4, 2, 7, 7) for one in gc.get_objects()))

    hook = model.blocks[-1].register_forward_pre_hook(count)
    _, whole = watch(model, images)
    assert found == [0]  # of the layers before it
    hook.remove()
    for place in range(4):
        _, alone = watch(model, images[place : place + 1])
        for name in LISTS:
            torch.testing.assert_close(alone.values[name][0], whole.values[name][place], rtol=1e-5, atol=1e-6)
    assert not model.blocks[0].attn._forward_hooks and type(model.blocks[0].attn) is Attention


def test_layers_may_differ_in_heads_and_keys() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.narrow = Attention(4, num_heads=4), Attention(4, num_heads=1)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.narrow(self.wide(tokens)[:, :3]).mean(dim=1)  # type: ignore[no-any-return]

    _, seen = watch(Two(), torch.rand(2, 5, 4))
    assert seen.layers == (Layer("wide", 4, 5), Layer("narrow", 1, 3))
    assert seen.values["key_norms"].shape == (2, 5)
    sums = HeadSums(Path("x"))
    sums.add(seen.layers, {name: values.numpy() for name, values in seen.values.items()})
    heads = sums.heads()
    assert heads is not None and [len(part) for part in heads.by_layer("query_norms")] == [4, 1]
    expected = seen.values["attention_entropies"].mean(0) / torch.tensor([5.0] * 4 + [3.0]).log()
    assert heads.shares.tolist() == pytest.approx(expected.tolist())
    assert seen.columns()["entropy_share"] == pytest.approx(
        (seen.values["attention_entropies"] / torch.tensor([5.0] * 4 + [3.0]).log()).mean(1).tolist()
    )
    assert [heads.name(place) for place in (0, 3, 4)] == ["wide head 0", "wide head 3", "narrow head 0"]
