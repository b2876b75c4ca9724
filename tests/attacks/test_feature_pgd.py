"""PGD on features: closed forms, a search of the whole ball, what comes back and what it costs, messages."""

import itertools
import math
from typing import Any

import pytest
import torch
from attack_oracles import Draws
from torch import Tensor, nn
from torch.nn import functional

from attacks import FeaturePGD, ThreatModel

IMAGES = 0.2 + 0.6 * torch.rand(5, 3, 4, 4, generator=torch.Generator().manual_seed(0))


def test_the_pixels_themselves_move_to_a_corner_of_the_ball() -> None:
    """Of the squared distance of pixels the gradient is twice the change: each goes on to the side where it began."""
    attack = FeaturePGD(ThreatModel("linf", 4 / 255), steps=20, loss="l2")
    result = attack.run(nn.Flatten(), IMAGES)
    torch.testing.assert_close((result.adversarials - IMAGES).abs(), torch.full_like(IMAGES, 4 / 255))
    for counts, said in ((result.forwards, 22), (result.steps, 20), (result.backwards, 20), (result.broken_at, -1)):
        assert set(counts.tolist()) == {said}


def test_in_l2_a_linear_map_is_moved_along_its_first_singular_vector() -> None:
    weights = torch.randn(6, 48, generator=torch.Generator().manual_seed(1))
    attack = FeaturePGD(ThreatModel("l2", 0.1), steps=400, step_size=0.02, loss="l2")
    points = attack.run(lambda images: images.flatten(1) @ weights.T, IMAGES, rng=Draws(range(5))).adversarials
    moved = ((points - IMAGES).flatten(1) @ weights.T).square().sum(dim=1)
    torch.testing.assert_close(
        moved, torch.full((5,), float((0.1 * torch.linalg.matrix_norm(weights, 2)) ** 2)), rtol=1e-3, atol=0
    )


def test_the_angle_is_the_largest_of_the_ball() -> None:
    """The largest angle between two pixels and a point of a square around them is at one of its corners."""
    images = torch.tensor([[0.5, 0.3], [0.2, 0.7], [0.6, 0.6]])
    corners = torch.tensor(list(itertools.product((-0.1, 0.1), repeat=2)))
    best = (1 - functional.cosine_similarity(images[:, None] + corners, images[:, None], dim=2)).amax(dim=1)
    points = FeaturePGD(ThreatModel("linf", 0.1), restarts=8).run(nn.Identity(), images, rng=Draws(range(3)))
    torch.testing.assert_close(
        1 - functional.cosine_similarity(points.adversarials, images), best, rtol=1e-4, atol=1e-7
    )
    one, many = (
        1
        - functional.cosine_similarity(
            FeaturePGD(ThreatModel("linf", 0.1), steps=2, restarts=count)
            .run(torch.sin, images, rng=Draws(range(3)))
            .adversarials,
            images,
        )
        for count in (1, 4)
    )
    assert (many >= one).all()


def wild(images: Tensor) -> Tensor:
    """Features that are not finite once a pixel is above 0.5."""
    return images.flatten(1).masked_fill((images > 0.5).flatten(1).any(dim=1)[:, None], math.nan)


def test_points_stay_inside_and_features_that_are_not_finite_are_farthest() -> None:
    images = torch.full((3, 3, 4, 4), 0.49)
    points = FeaturePGD(ThreatModel("linf", 0.05), steps=3)(wild, images)
    assert wild(points).isnan().any(dim=1).all()
    edge = torch.rand(4, 3, 4, 4, generator=torch.Generator().manual_seed(2)).round()
    for norm, eps in (("linf", 8 / 255), ("l2", 0.5)):
        threat = ThreatModel(norm, eps)  # type: ignore[arg-type]
        points = FeaturePGD(threat, steps=4)(nn.Flatten(), edge)
        assert points.min() >= 0 and points.max() <= 1 and (threat.distance(points, edge) <= eps * (1 + 1e-6)).all()
    torch.testing.assert_close(FeaturePGD(ThreatModel("linf", 0.0))(nn.Flatten(), edge), edge, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"loss": "ce"}, "loss is 'ce'; expected one of: cosine, l2"),
        ({"steps": 0}, "steps is 0; expected 1 or more"),
        ({"restarts": 0}, "restarts is 0; expected 1 or more"),
        ({"step_size": -1.0}, "step_size is -1.0; expected a finite number above 0"),
    ],
)
def test_what_it_cannot_do_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        FeaturePGD(**given)
