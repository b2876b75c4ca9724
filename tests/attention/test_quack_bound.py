"""QuacK's Lemma 1: the change of logits is bounded whatever the norms, and the bound is reached."""

from __future__ import annotations

import itertools

import pytest
import torch
from quack_layers import HEADS, SIZE, WIDTH, attention
from torch import Tensor

from robustkit.slices.optim.projections import projections
from robustkit.slices.optim.stabilisers import QuacK

pytestmark = pytest.mark.usefixtures("one_thread")
SPECTRAL_OR_NOT = pytest.mark.parametrize("norm", ["frobenius", "spectral"])


def of_norm(shape: tuple[int, ...], norm: str, size: float, seed: int) -> Tensor:
    """A random matrix for each head, whose norm is `size`."""
    made = torch.randn(shape, dtype=torch.double, generator=torch.Generator().manual_seed(seed))
    return made * size / torch.linalg.matrix_norm(made, 2 if norm == "spectral" else "fro")[..., None, None]


def worst_changes(norm: str, scales: tuple[float, float], coupled: bool, seed: int) -> tuple[Tensor, Tensor]:
    """(sqrt(d) times the worst change of a logit for unit inputs, the bound of Lemma 1), (heads,) each, of one step of
    gradients of norm D with weights that were scaled since the start."""
    rate, tau, D = 0.1, 0.8, 3.0
    layer = attention(bias=False)
    sgd = torch.optim.SGD(layer.parameters(), lr=rate)
    optimiser = QuacK(sgd, layer, tau=tau, norm=norm) if coupled else sgd
    (found,) = projections(layer)
    q0, k0 = (rows.norms(norm).clone() for rows in found.rows.values())
    query, key = (rows.views[0] for rows in found.rows.values())
    for part, block in enumerate((query, key)):
        block.copy_(of_norm((HEADS, SIZE, WIDTH), norm, 1.0, 10 * seed + part) * scales[part])
    layer.qkv.weight.grad = torch.cat(
        [of_norm((HEADS, SIZE, WIDTH), norm, D, 10 * seed + 2 + part).reshape(-1, WIDTH) for part in range(3)]
    )
    before = query.mT @ key
    optimiser.step()
    change = torch.linalg.matrix_norm(query.mT @ key - before, 2)
    tau_q, tau_k, c = tau * rate * k0, tau * rate * q0, min(scales)
    return change, tau_q * D + tau_k * D + tau_q * tau_k * D**2 / c**2


@SPECTRAL_OR_NOT
def test_the_change_of_logits_is_bounded_whatever_the_norms(norm: str) -> None:
    scales = (0.1, 1.0, 10.0, 1e3, 1e5)
    closest = 0.0
    for seed, pair in enumerate(itertools.product(scales, scales)):
        change, bound = worst_changes(norm, pair, True, seed)
        assert (change <= bound).all()
        if pair[0] == pair[1] >= 1e3:
            closest = max(closest, (change / bound).max().item())
    assert closest > (0.2 if norm == "spectral" else 0.05)  # the bound is not empty: steps were taken


@SPECTRAL_OR_NOT
def test_the_bound_is_reached_by_the_worst_gradient(norm: str) -> None:
    """Queries step along the left and keys against the right singular vectors of rank-one weights."""
    layer = attention(bias=False)
    quack = QuacK(torch.optim.SGD(layer.parameters(), lr=0.1), layer, norm=norm)
    (found,) = projections(layer)
    q0, k0 = (rows.norms(norm).clone() for rows in found.rows.values())
    query, key = (rows.views[0] for rows in found.rows.values())
    direction = of_norm((HEADS, SIZE, 1), norm, 1.0, 0) @ of_norm((HEADS, 1, WIDTH), norm, 1.0, 1)
    query.copy_(1e4 * direction)
    key.copy_(1e4 * direction)
    layer.qkv.weight.grad = torch.cat([-2 * direction.reshape(-1, WIDTH)] * 2 + [torch.zeros(WIDTH, WIDTH)])
    before = query.mT @ key
    quack.step()
    change = torch.linalg.matrix_norm(query.mT @ key - before, 2)
    torch.testing.assert_close(change, 0.1 * 2.0 * (q0 + k0), rtol=1e-6, atol=0)


@SPECTRAL_OR_NOT
def test_without_coupling_the_change_grows_with_the_norms(norm: str) -> None:
    small, large = (worst_changes(norm, (scale, scale), False, 0)[0] for scale in (1e2, 1e4))
    torch.testing.assert_close(large / small, torch.full((HEADS,), 100.0, dtype=torch.double), rtol=0.02, atol=0)
    small, large = (worst_changes(norm, (scale, scale), True, 0)[0] for scale in (1e2, 1e4))
    torch.testing.assert_close(large / small, torch.ones(HEADS, dtype=torch.double), rtol=0.02, atol=0)
