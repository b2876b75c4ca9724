"""FMN and DDN: projections, a slow replica, closed forms of a linear model, passes counted, what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from attack_oracles import Draws, Tagged, minimal_slowly, onto_ball_slowly, random_images, tagged, tiny_cnn
from torch import Tensor, nn

from attacks import DDN, FMN, PGD, ThreatModel
from attacks.threat import Norm, distance, onto_ball

pytestmark = pytest.mark.usefixtures("one_thread")
NORMS: tuple[Norm, ...] = ("linf", "l2", "l1", "l0")


@pytest.mark.parametrize("norm", NORMS)
def test_points_come_onto_the_ball_by_the_shortest_way(norm: Norm) -> None:
    draw = torch.Generator().manual_seed(0)
    changes = torch.randn(6, 3, 4, 5, generator=draw, dtype=torch.float64)
    changes[4] = 0
    radii = torch.tensor([0.3, 1.7, 12.4, 1e6, 0.5, math.inf], dtype=torch.float64)
    moved = onto_ball(norm, changes, radii)
    for change, radius, ours in zip(changes, radii.tolist(), moved, strict=True):
        torch.testing.assert_close(ours, onto_ball_slowly(change, norm, radius), rtol=0, atol=1e-9)
    sizes = distance(norm, moved, torch.zeros_like(moved))
    assert (sizes <= radii.clamp(max=1e9) + 1e-9).all() and torch.equal(moved[[3, 5]], changes[[3, 5]])


@pytest.mark.parametrize(("name", "norm"), [*(("fmn", norm) for norm in NORMS), ("ddn", "l2")])
def test_each_sample_goes_the_way_of_a_slow_replica(name: str, norm: Norm) -> None:
    model, images = tiny_cnn().eval().double(), random_images(6).double()
    labels = model(images).argmax(dim=1)
    labels[5] = (labels[5] + 1) % 5  # wrong as it is
    attack = {"fmn": FMN, "ddn": DDN}[name](ThreatModel(norm, math.inf), steps=40, alpha=2.0)
    ends = attack.run(model, images, labels, batch_size=4).adversarials
    sizes = distance(norm, ends, images)
    met = 0
    for place, image in enumerate(images):
        best, found = minimal_slowly(name, model, image, int(labels[place]), norm, 40, alpha=2.0)
        torch.testing.assert_close(ends[place], found if math.isfinite(best) else image, rtol=0, atol=1e-6)
        assert float(sizes[place]) == pytest.approx(best if math.isfinite(best) else 0.0, abs=1e-6)
        met += 0 < best < math.inf
    assert met >= 4 and sizes[5] == 0


class Plane(nn.Module):
    """Two classes on either side of a plane; `weights` are its normal."""

    def __init__(self, weights: Tensor, offset: float) -> None:
        super().__init__()
        self.weights, self.offset = weights, offset

    def forward(self, images: Tensor) -> Tensor:
        gap = (images.flatten(1) * self.weights).sum(dim=1) - self.offset
        return torch.stack([-gap, gap], dim=1)


@pytest.mark.parametrize("norm", NORMS)
def test_the_distance_to_a_plane_is_the_closed_form(norm: Norm) -> None:
    draw = torch.Generator().manual_seed(3)
    weights = torch.randn(48, generator=draw, dtype=torch.float64)
    images = torch.rand(8, 3, 4, 4, generator=draw, dtype=torch.float64) * 0.2 + 0.4
    model = Plane(weights, float((images.flatten(1) @ weights).median()) + 0.1)
    gaps = model(images)[:, 0].abs()
    threat = ThreatModel(norm, math.inf)
    found = FMN(threat, steps=300).run(model, images)
    sizes = distance(norm, found.adversarials, images)
    if norm == "l0":  # the values that reach furthest, as far as the bounds let them
        points, sides = images.flatten(1), model(images)[:, :1].sign() * weights
        reach = torch.where(sides > 0, 1 - points, points) * weights.abs()
        enough = reach.sort(dim=1, descending=True).values.cumsum(dim=1) < gaps[:, None]
        least = enough.sum(dim=1) + 1.0
        assert (sizes >= least).all() and (sizes <= least + 1).all()
        return
    dual = {"linf": 1.0, "l2": 2.0, "l1": math.inf}[norm]
    least = gaps / torch.linalg.vector_norm(weights, ord=dual)
    assert (sizes >= least * (1 - 1e-9)).all()
    # One value cannot change by more than the bounds allow, so that l1 needs several.
    assert (sizes <= least * (1.5 if norm == "l1" else 1.03)).all()
    if norm == "l2":
        apart = DDN(threat, steps=300).run(model, images).adversarials
        assert (distance(norm, apart, images) <= least * 1.03).all()


@pytest.mark.parametrize("batch_size", [None, 1, 3])
def test_passes_are_counted_and_batches_change_nothing(batch_size: int | None) -> None:
    model, images = tiny_cnn().eval(), tagged(random_images(7))
    labels = model(images).argmax(dim=1)
    labels[2] = (labels[2] + 1) % 5
    logged = Tagged(model)
    attack = FMN(ThreatModel("linf", math.inf), steps=9)
    # Tags survive changes of less than 0.05, so the way is kept short.
    short = FMN(ThreatModel("linf", 0.04), steps=9, alpha=0.01)
    result = short.run(logged, images, labels, batch_size=batch_size, rng=Draws(range(7)))
    attacked = [1 if place == 2 else 11 for place in range(7)]
    assert result.forwards.tolist() == attacked
    assert result.backwards.tolist() == result.steps.tolist() == [0 if place == 2 else 9 for place in range(7)]
    whole = attack.run(model, images, labels)
    again = attack.run(model, images, labels, batch_size=batch_size)
    torch.testing.assert_close(again.adversarials, whole.adversarials, rtol=0, atol=1e-5)
    assert whole.broken_at[2] == 0 and torch.equal(whole.adversarials[2], images[2])


def test_eps_says_which_wrong_points_count() -> None:
    model, images = tiny_cnn().eval(), random_images(8)
    far = FMN(ThreatModel("l2", math.inf), steps=60, alpha=3.0).run(model, images)
    sizes = distance("l2", far.adversarials, images)
    eps = float(sizes.median())
    near = FMN(ThreatModel("l2", eps), steps=60, alpha=3.0).run(model, images)
    found = near.broken_at >= 0
    assert 0 < int(found.sum()) < 8 and torch.equal(near.adversarials[~found], images[~found])
    assert (distance("l2", near.adversarials, images) <= eps + 1e-6).all()


def test_a_model_without_slope_is_not_found_wrong() -> None:
    images = random_images(3)

    def flat(points: Tensor) -> Tensor:
        return torch.stack([points.flatten(1).sum(dim=1) * 0 + 1, points.flatten(1).sum(dim=1) * 0], dim=1)

    for norm in NORMS:
        result = FMN(ThreatModel(norm, math.inf), steps=5).run(flat, images)
        assert result.broken_at.tolist() == [-1] * 3 and torch.equal(result.adversarials, images)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: FMN(steps=0), "steps is 0; expected 1 or more"),
        (lambda: FMN(alpha=math.nan), "alpha is nan; expected a finite number above 0"),
        (lambda: DDN(gamma=1.0), "gamma is 1.0; expected a share between 0 and 1"),
        (lambda: DDN(ThreatModel("linf")).run(tiny_cnn(), random_images(1)), "norm is 'linf'; DDN knows l2"),
        (lambda: PGD(ThreatModel("l1")).run(tiny_cnn(), random_images(1)), "norm is 'l1'; PGD knows linf, l2"),
        (lambda: PGD(ThreatModel("l2", math.inf)).run(tiny_cnn(), random_images(1)), "eps is inf; PGD needs a finite"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
