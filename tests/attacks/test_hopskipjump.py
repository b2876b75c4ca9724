"""HopSkipJump: a slow replica, the distance to a plane, classes only, queries counted, what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from attack_oracles import Draws, hopskipjump_slowly, random_images, tiny_cnn
from torch import Tensor, nn

from attacks import HopSkipJump, ThreatModel
from attacks.threat import Norm, distance

pytestmark = pytest.mark.usefixtures("one_thread")
NORMS: tuple[Norm, ...] = ("linf", "l2")


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("batch_size", [None, 5])
def test_each_sample_goes_the_way_of_a_slow_replica(norm: Norm, batch_size: int | None) -> None:
    model, images = tiny_cnn().eval().double(), random_images(5).double()
    labels = model(images).argmax(dim=1)
    labels[4] = (labels[4] + 1) % 5  # wrong as it is
    attack, rng = HopSkipJump(ThreatModel(norm, math.inf), queries=300, directions=20), Draws(range(5))
    found = attack.run(model, images, labels, rng=rng, batch_size=batch_size)
    sizes, rounds = distance(norm, found.adversarials, images), found.steps.tolist()
    for place in range(4):
        one = rng.take(torch.tensor([place]))
        best, point, asked = hopskipjump_slowly(model, images[place], int(labels[place]), norm, 300, 20, one)
        torch.testing.assert_close(found.adversarials[place], point, rtol=0, atol=1e-9)
        assert float(sizes[place]) == pytest.approx(best, abs=1e-9) and math.isfinite(best) and rounds[place] > 3
        assert int(found.forwards[place]) == asked + 1 <= 301
    assert sizes[4] == 0 and found.forwards[4] == 1 and found.backwards.sum() == 0


class Plane(nn.Module):
    """Two classes on either side of a plane, of which no more is told than which it is."""

    def __init__(self, weights: Tensor, offset: float) -> None:
        super().__init__()
        self.weights, self.offset = weights, offset

    def forward(self, images: Tensor) -> Tensor:
        right = (images.flatten(1) * self.weights).sum(dim=1) > self.offset
        return nn.functional.one_hot(right.long(), 2).to(images)


@pytest.mark.parametrize(("norm", "dual", "most"), [("linf", 1.0, 1.07), ("l2", 2.0, 1.03)])
def test_the_distance_to_a_plane_is_the_closed_form(norm: Norm, dual: float, most: float) -> None:
    draw = torch.Generator().manual_seed(3)
    weights = torch.randn(48, generator=draw, dtype=torch.float64)
    images = torch.rand(8, 3, 4, 4, generator=draw, dtype=torch.float64) * 0.2 + 0.4
    products = images.flatten(1) @ weights
    offset = float(products.median()) + 0.1
    least = (products - offset).abs() / torch.linalg.vector_norm(weights, ord=dual)
    attack = HopSkipJump(ThreatModel(norm, math.inf), queries=3000)
    found = attack.run(Plane(weights, offset), images, rng=Draws(range(8)))
    ratios = distance(norm, found.adversarials, images) / least
    assert (ratios >= 1 - 1e-9).all() and ratios.median() < most and (found.forwards <= 3001).all()


def test_where_every_start_is_right_nothing_is_found() -> None:
    images = random_images(3)
    found = HopSkipJump(eps=math.inf, queries=30).run(lambda points: points.flatten(1)[:, :2] * 0 + LEAN, images)
    assert torch.equal(found.adversarials, images)
    assert found.forwards.tolist() == [31] * 3 and found.broken_at.tolist() == [-1] * 3


LEAN = torch.tensor([1.0, 0.0])


def test_eps_and_the_judge_say_which_wrong_points_count() -> None:
    model, images = tiny_cnn().eval(), random_images(6)
    attack = HopSkipJump(ThreatModel("l2", math.inf), queries=200)
    sizes = distance("l2", attack.run(model, images, rng=Draws(range(6))).adversarials, images)
    near = HopSkipJump(ThreatModel("l2", float(sizes.median())), queries=200)
    ends = near.run(model, images, rng=Draws(range(6))).adversarials
    assert torch.equal(distance("l2", ends, images), torch.where(sizes <= sizes.median(), sizes, 0.0))
    labels = model(images).argmax(dim=1)
    never = attack.run(
        model, images, labels, rng=Draws(range(6)), judge=lambda x: torch.eye(5)[labels[:1]].expand(len(x), 5)
    )
    assert torch.equal(never.adversarials[labels == labels[0]], images[labels == labels[0]])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HopSkipJump(queries=0), "queries is 0; expected 1 or more"),
        (lambda: HopSkipJump(ThreatModel("l2", math.inf, None)), "bounds are None; expected such as"),
        (lambda: HopSkipJump(ThreatModel("l1")).run(tiny_cnn(), random_images(1)), "norm is 'l1'; HopSkipJump knows"),
        (lambda: HopSkipJump()(lambda x: x, torch.rand(2, 5)), r"attacks images \(B, C, H, W\); these have"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
