"""Threat models: the ball is where it should be, as measured in float32, in every dtype."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from attack_oracles import Draws, random_images, tiny_cnn

from attacks import APGD, FAB, FGSM, PGD, SPSA, Attack, Square, ThreatModel


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"norm": "l3"}, "norm is 'l3'; expected one of: linf, l2, l1, l0"),
        ({"eps": -0.1}, "eps is -0.1; expected a number, 0 or more"),
        ({"eps": math.nan}, "eps is nan; expected a number, 0 or more"),
        ({"bounds": (1.0, 0.0)}, r"bounds are \(1.0, 0.0\); expected \(lowest, highest\)"),
        ({"bounds": (0.0, math.nan)}, "expected .lowest, highest"),
        ({"eps": 8}, r"eps 8 is wider than the bounds \[0, 1\].*8/255"),
    ],
)
def test_rejects(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ThreatModel(**arguments)


def test_projects_by_hand() -> None:
    clean = torch.tensor([[0.5, 0.05, 0.9, 0.5]])
    wild = torch.tensor([[0.9, -0.3, 1.5, 0.55]])
    linf = ThreatModel("linf", 0.1).project(wild, clean)
    torch.testing.assert_close(linf, torch.tensor([[0.6, 0.0, 1.0, 0.55]]))
    assert wild[0, 0] == 0.9  # a copy was moved
    # The change (0.3, 0, 0.4, 0) has length 0.5; to length 0.25 it halves, and 0.9 + 0.2 is cut at 1.
    l2 = ThreatModel("l2", 0.25).project(clean + torch.tensor([[0.3, 0.0, 0.4, 0.0]]), clean)
    torch.testing.assert_close(l2, torch.tensor([[0.65, 0.05, 1.0, 0.5]]))
    inside = clean + torch.tensor([[0.03, 0.0, 0.04, 0.0]])
    torch.testing.assert_close(ThreatModel("l2", 0.25).project(inside, clean), inside, rtol=0, atol=0)
    assert ThreatModel("l2", 0.25).distance(inside, clean).item() == pytest.approx(0.05)
    assert ThreatModel("linf", 0.1).distance(inside, clean).item() == pytest.approx(0.04)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("norm", "eps"), [("linf", 1 / 255), ("linf", 0.3), ("l2", 0.05), ("l2", 1.0)])
@pytest.mark.parametrize("scale", [1.0, 200.0])
def test_never_outside(norm: Any, eps: float, scale: float, dtype: torch.dtype) -> None:
    threat = ThreatModel(norm, eps * scale, (0.0, scale))
    clean = random_images(40) * scale
    clean[20:] = clean[20:] / 2 + scale / 4  # where the ball, and not the bounds, holds
    clean = clean.to(dtype)
    draws = Draws(range(40))
    wild = clean + (draws.normal((3, 8, 8), "far") * 0.5 * scale).to(dtype)
    for points in (threat.project(wild, clean), threat.random_start(clean, draws, "start")):
        assert points.dtype == dtype
        assert (threat.distance(points, clean) <= eps * scale + 1e-6).all()
        assert points.min() >= 0 and points.max() <= scale
        assert (points != clean).any()


def test_random_start_fills_the_ball() -> None:
    clean = torch.full((4000, 2), 0.5)
    torch.manual_seed(0)
    draws = Draws(range(4000))
    box = ThreatModel("linf", 0.1).random_start(clean, draws, "a") - clean
    assert box.abs().max() > 0.0999 and box.mean(0).abs().max() < 0.005
    assert box.std(0).sub(0.2 / math.sqrt(12)).abs().max() < 0.002
    radius = (ThreatModel("l2", 0.1).random_start(clean, draws, "a") - clean).norm(dim=1) / 0.1
    # Uniform in a disc: the radius squared is uniform.
    quantiles = torch.quantile(radius.square(), torch.tensor([0.25, 0.5, 0.75]))
    torch.testing.assert_close(quantiles, torch.tensor([0.25, 0.5, 0.75]), atol=0.03, rtol=0)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("bounds", [(0.0, 1.0), None])
def test_balls_join_and_part(norm: Any, bounds: Any) -> None:
    clean, draws = random_images(6), Draws(range(6))
    threat = ThreatModel(norm, 0.1, bounds)
    wild = clean + draws.normal((3, 8, 8), "far")
    whole = threat.ball(clean)
    order = torch.tensor([4, 1, 5])
    joined = whole.take(order).join(threat.ball(clean[:2]))
    again = torch.cat([order, torch.tensor([0, 1])])
    assert torch.equal(joined.clean, clean[again])
    assert torch.equal(joined.project_(wild[again]), whole.project_(wild.clone())[again])
    assert not torch.equal(joined.project_(wild[again]), wild[again])


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_cut_images_takes_images_outside_and_asks_inside(norm: Any) -> None:
    images = random_images(6) * 1.4 - 0.2
    images[:, 0, 0, :2] = torch.tensor([-0.5, 1.5])  # further outside than eps
    threat = ThreatModel(norm, 0.1 if norm == "linf" else 1.0, cut_images=True)
    labels = tiny_cnn()(images).argmax(dim=1)
    attacks: list[Attack] = [
        FGSM(threat),
        PGD(threat, steps=2),
        SPSA(threat, steps=1, directions=2),
        APGD(threat, 4),
        Square(threat, 9),
    ]
    for attack in attacks:
        with pytest.raises(ValueError, match=r"images go from -0.5 to 1.5, outside the bounds \[0, 1\]"):
            type(attack)(ThreatModel(norm, threat.eps))(tiny_cnn(), images, labels)
        asked: list[torch.Tensor] = []

        def model(points: torch.Tensor, asked: list[torch.Tensor] = asked) -> torch.Tensor:
            asked.append(points.detach().clone())
            return tiny_cnn()(points)

        found = attack(model, images, labels, rng=Draws(range(6)))
        assert found.min() >= 0 and found.max() <= 1
        if not isinstance(attack, SPSA):  # which asks next to its points
            assert all(points.min() >= 0 and points.max() <= 1 for points in asked[1:])
    # FAB counts what lies inside the ball, and so little here.
    near = images.clamp(-0.01, 1.01)
    broken = FAB(threat, 5).run(tiny_cnn(), near, tiny_cnn()(near).argmax(dim=1))
    points = broken.adversarials[broken.broken_at > 0]
    assert len(points) and points.min() >= 0 and points.max() <= 1


def test_steepest_is_safe() -> None:
    nan, inf = math.nan, math.inf
    gradient = torch.tensor([[3.0, -4.0], [nan, 2.0], [0.0, 0.0], [inf, 1.0], [3e-30, -4e-30], [3e30, 4e30]])
    signs = ThreatModel("linf").steepest(gradient.clone())
    assert signs.tolist() == [[1, -1], [0, 1], [0, 0], [1, 1], [1, -1], [1, 1]]
    units = ThreatModel("l2").steepest(gradient.clone())
    expected = torch.tensor([[0.6, -0.8], [0.0, 1.0], [0.0, 0.0], [1.0, 0.0], [0.6, -0.8], [0.6, 0.8]])
    torch.testing.assert_close(units, expected)
