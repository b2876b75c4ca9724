"""Attention whose keys have a size of their own: as torch's, and as optimisers of queries and keys see it."""

from __future__ import annotations

import warnings

import pytest
import torch
from quack_layers import inputs
from torch import Tensor, nn

from robustkit.attention import set_attention
from robustkit.attention.layers import SelfAttention
from robustkit.errors import ModelError
from robustkit.slices.optim.projections import projections
from robustkit.slices.optim.stabilisers import QKClip, QuacK

pytestmark = pytest.mark.usefixtures("one_thread")


def layer(key: int | None = None) -> SelfAttention:
    torch.manual_seed(0)
    made = SelfAttention(12, 3, key=key).double()
    for parameter in made.parameters():
        nn.init.normal_(parameter)
    return made


@pytest.mark.parametrize("causal", [False, True])
def test_with_keys_as_large_as_values_it_is_torchs_layer(causal: bool) -> None:
    ours, theirs = layer(), nn.MultiheadAttention(12, 3, batch_first=True).double()
    with torch.no_grad():
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in (ours.wq, ours.wk, ours.wv)]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in (ours.wq, ours.wk, ours.wv)]))
        theirs.out_proj.load_state_dict(ours.proj.state_dict())
    x, hidden = inputs(0), torch.ones(5, 5).triu(1).bool() if causal else None
    torch.testing.assert_close(ours(x, is_causal=causal), theirs(x, x, x, attn_mask=hidden)[0])
    mask = None if hidden is None else ~hidden  # of scaled_dot_product_attention: True where attention may go
    torch.testing.assert_close(ours(x, mask), theirs(x, x, x, attn_mask=hidden)[0])


def test_optimisers_find_the_rows_of_each_head() -> None:
    made = layer(key=2)
    (found,) = projections(made)
    assert (found.kind, found.rows["query"].heads) == ("mha", 3)
    for which, linear in (("query", made.wq), ("key", made.wk)):
        expected = torch.stack([linear.weight[2 * head : 2 * head + 2].norm() for head in range(3)])
        torch.testing.assert_close(found.rows[which].norms("frobenius"), expected.detach())
    quack = QuacK(torch.optim.SGD(made.parameters(), lr=1e-3), made)
    with torch.no_grad():
        made.wk.weight[2:4].mul_(4)
    torch.testing.assert_close(quack.rates()[""]["query"], torch.tensor([1, 0.25, 1]).double())


@pytest.mark.parametrize("given", ["by position", "by name"])
def test_a_clip_brings_the_largest_logit_to_the_threshold(given: str) -> None:
    made, x = layer(key=2).train(), inputs(1)

    def largest() -> Tensor:
        q, k = made.queries_and_keys(x)
        return (q @ k.mT * made.scale).amax((0, 2, 3)).detach()

    before = largest()
    threshold = before.median().item()
    clip = QKClip(torch.optim.SGD(made.parameters(), lr=0.0), made, threshold=threshold)
    made(x, None, True) if given == "by position" else made(x=x, is_causal=True)
    clip.step()
    torch.testing.assert_close(largest(), before.clamp(max=threshold))
    clip.remove()
    with pytest.raises(ModelError, match="found SelfAttention, quest; use another stabiliser"):
        QKClip(torch.optim.SGD(made.parameters(), lr=0.1), set_attention(made, "quest"))


def test_the_documents_start_of_qana_is_said_not_to_learn_and_does_not() -> None:
    made, x = layer(key=4), inputs(2)
    with pytest.warns(UserWarning, match=r"qana\(start=zero\): no gradient reaches .* leave start out to train them"):
        set_attention(made, "qana(start=zero)")
    expected = layer(key=4)(x)
    torch.testing.assert_close(made(x), expected)
    optimiser = torch.optim.SGD(made.parameters(), lr=1e-3)
    for _ in range(3):
        optimiser.zero_grad()
        made(x).square().sum().backward()
        optimiser.step()
    assert (made(x) - expected).abs().max() > 1e-3  # all else learns
    u, v, b, _ = made.formula.network.split(made.query_network(x).unflatten(-1, (3, -1)))
    assert not (u.any() or v.any() or b.any())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        set_attention(made, "qana")
    assert made.query_network.weight.any()


def test_impossible_sizes_are_refused() -> None:
    with pytest.raises(ModelError, match="key 0: expected a size of 1 or more"):
        SelfAttention(12, 3, key=0)
    with pytest.raises(ModelError, match="5 heads for 12 channels; expected a number that divides them"):
        SelfAttention(12, 5)
