"""SPSA: the paper's loop, the published error, forwards counted, chunks that do not matter."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attack_oracles import Draws, random_images, spsa_slowly, tiny_cnn
from torch import Tensor, nn

from attacks import SPSA, ThreatModel, TorchRng


@pytest.mark.parametrize("gradient_at", ["iterate", "doubled-input"])
def test_is_the_paper_s_loop(gradient_at: Any) -> None:
    model, images, labels, draws = (
        tiny_cnn().double(),
        random_images(3).double(),
        torch.tensor([0, 1, 2]),
        Draws([4, 5, 6]),
    )
    eps, lr, delta = 0.05, 0.01, 0.02
    attack = SPSA(ThreatModel("linf", eps), 4, lr, delta, directions=6, gradient_at=gradient_at, chunk=8)
    ours = attack(model, images, labels, rng=draws)
    start = (2 * draws.uniform((3, 8, 8), "spsa/start").double() - 1) * eps
    signs = torch.stack([draws.signs((6, 3, 8, 8), f"spsa/step/{step}") for step in range(1, 5)], dim=1).double()
    for i in range(3):
        with torch.no_grad():
            doubled = gradient_at == "doubled-input"
            at = (model, images[i], int(labels[i]), start[i], signs[i], eps, lr, delta, doubled)
        torch.testing.assert_close(ours[i], spsa_slowly(*at), rtol=0, atol=1e-7)


def test_the_two_variants_differ() -> None:
    model, images, labels = tiny_cnn(), random_images(3), torch.tensor([0, 1, 2])
    correct, doubled = (SPSA(steps=2, directions=4, gradient_at=at) for at in ("iterate", "doubled-input"))
    assert not torch.equal(
        correct(model, images, labels, rng=Draws([0, 1, 2])), doubled(model, images, labels, rng=Draws([0, 1, 2]))
    )


def test_raises_the_margin_of_a_linear_model_to_its_optimum() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2, bias=False))
    weights = torch.tensor([3.0, -4.0, 2.0, 12.0])
    model[1].weight.data = torch.stack([torch.zeros(4), weights])
    images = torch.full((2, 4), 0.5)
    found = SPSA(ThreatModel("linf", 0.05), steps=30, directions=64)(
        model, images, torch.tensor([0, 1]), rng=Draws([0, 1])
    )
    torch.testing.assert_close(found, images + 0.05 * torch.tensor([[1.0], [-1.0]]) * weights.sign())


def test_asks_256_times_a_step_and_nothing_else() -> None:
    rows: list[int] = []
    spread: list[float] = []

    def model(points: Tensor) -> Tensor:
        assert torch.is_inference_mode_enabled()
        rows.append(len(points))
        spread.append(float(points.max()))
        return points.flatten(1)[:, :5]

    images, labels = random_images(3), torch.tensor([0, 1, 2])
    result = SPSA(steps=2, chunk=100).run(model, images, labels)
    assert sum(rows) == 3 * 2 * 256 and max(rows) == 100
    assert result.forwards.tolist() == [512] * 3 and result.backwards.tolist() == [0] * 3
    assert result.steps.tolist() == [2] * 3 and result.broken_at.tolist() == [-1] * 3
    assert max(spread) > 1.0  # asked outside the bounds
    assert result.adversarials.max() <= 1.0
    rows.clear()
    assert SPSA(steps=2).run(model, images).forwards.tolist() == [513] * 3
    assert sum(rows) == 3 * 513


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_chunks_batch_and_order_do_not_matter(norm: Any) -> None:
    model, images, labels = tiny_cnn().double(), random_images(5).double(), torch.arange(5)
    threat = ThreatModel(norm, 0.05)
    whole = SPSA(threat, steps=3, directions=8)(model, images, labels, rng=Draws(range(5)))
    order = torch.tensor([3, 0, 4])
    for chunk in (2, 7, 16, 33):
        part = SPSA(threat, steps=3, directions=8, chunk=chunk)(
            model, images[order], labels[order], rng=Draws([3, 0, 4])
        )
        torch.testing.assert_close(part, whole[order], rtol=0, atol=1e-9)
    assert (threat.distance(whole, images) <= 0.05 + 1e-6).all()


def test_values_that_are_not_finite_do_not_spread() -> None:
    def model(points: Tensor) -> Tensor:
        logits = points.flatten(1)[:, :5].clone()
        logits[points[:, 0, 0, 0] > 0.9] = float("nan")
        return logits

    images, labels = random_images(2), torch.tensor([0, 0])
    images[:, 0, 0, 0] = torch.tensor([1.0, 0.5])
    attack = SPSA(ThreatModel("linf", 0.01), steps=2, directions=8, random_start=False)
    found = attack(model, images, labels, rng=Draws([0, 1]))
    assert torch.equal(found[0], images[0])
    assert (found[1] != images[1]).any() and found.isfinite().all()


def test_torch_rng_draws_fair_signs() -> None:
    torch.manual_seed(0)
    signs = TorchRng(3).signs((50, 7, 11), "any")
    assert signs.shape == (3, 50, 7, 11) and signs.dtype == torch.float32
    assert signs.abs().eq(1).all() and signs.mean().abs() < 0.03
    assert not torch.equal(signs[0], signs[1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps is 0; expected 1 or more"),
        ({"directions": 0}, "directions is 0; expected 1 or more"),
        ({"delta": 0.0}, "delta is 0.0; expected a finite number above 0"),
        ({"lr": float("nan")}, "lr is nan; expected a finite number above 0"),
        ({"chunk": 1}, "chunk is 1; expected 2 or more"),
        ({"gradient_at": "2x"}, "gradient_at is '2x'; expected one of: iterate, doubled-input"),
    ],
)
def test_rejects(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SPSA(**arguments)
