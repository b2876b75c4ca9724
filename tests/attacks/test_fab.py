"""FAB: projections onto hyperplanes against solvers, the authors' distances, a closed form, passes counted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from attack_oracles import Draws, Tagged, random_images, tagged, tiny_cnn
from torch import Tensor, nn

from attacks import FAB, ThreatModel
from attacks.threat import step_to_hyperplane

pytestmark = pytest.mark.usefixtures("one_thread")


def planes(count: int, size: int, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Points in [0, 1], normals and gaps in float64: with components 0, pixels at bounds, planes out of reach."""
    generator = torch.Generator().manual_seed(seed)
    points = (torch.rand(count, size, generator=generator, dtype=torch.float64) * 1.4 - 0.2).clamp(0, 1)
    normals = torch.randn(count, size, generator=generator, dtype=torch.float64)
    normals[torch.rand(count, size, generator=generator) < 0.2] = 0
    gaps = torch.randn(count, generator=generator, dtype=torch.float64) * size**0.5 * 0.6
    return points, normals, gaps


def reach(points: Tensor, normals: Tensor, gaps: Tensor) -> tuple[Tensor, Tensor]:
    """For each plane the corner (as a change) furthest to its side, and how far towards it that leads."""
    corner = torch.where(normals * gaps[:, None] > 0, 1 - points, -points) * (normals != 0)
    return corner, (corner * normals).sum(dim=1) * gaps.sign()


@pytest.mark.filterwarnings("ignore:Values in x were outside bounds")  # older scipy's own rounding
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_least_change_is_what_a_solver_finds(norm: Any) -> None:
    optimize = pytest.importorskip("scipy.optimize", reason="scipy is not installed")
    points, normals, gaps = planes(60, 7)
    changes = step_to_hyperplane(norm, points, normals, gaps, (0.0, 1.0))
    corner, most = reach(points, normals, gaps)
    far = most < gaps.abs()
    assert 5 < far.sum() < 55
    torch.testing.assert_close(changes[far], corner[far], rtol=0, atol=1e-12)
    for i in (~far).nonzero().flatten().tolist():
        p, w, gap, ours = points[i].numpy(), normals[i].numpy(), float(gaps[i]), changes[i].numpy()
        assert ours @ w == pytest.approx(gap, abs=1e-9)
        assert ((p + ours >= -1e-12) & (p + ours <= 1 + 1e-12)).all()
        room = list(zip(-p, 1 - p, strict=True))
        if norm == "linf":  # least s with -s <= d <= s
            both = [[*(sign * (j == k) for k in range(7)), -1.0] for sign in (1.0, -1.0) for j in range(7)]
            best = optimize.linprog(
                [0.0] * 7 + [1.0], both, [0.0] * 14, [[*w, 0.0]], [gap], [*room, (0, None)], method="highs"
            )
            assert best.success and abs(ours).max() == pytest.approx(best.fun, abs=1e-9)
        else:
            best = optimize.minimize(
                lambda d: d @ d, corner[i].numpy(), jac=lambda d: 2 * d, bounds=room, method="SLSQP",
                constraints={"type": "eq", "fun": lambda d, w=w, gap=gap: d @ w - gap, "jac": lambda d, w=w: w},
                options={"ftol": 1e-14, "maxiter": 200},
            )  # fmt: skip
            assert best.success and ours == pytest.approx(best.x, abs=1e-5)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_least_change_is_the_authors(norm: Any, dtype: torch.dtype) -> None:
    peer = pytest.importorskip("pyautoattack.fab_projections", reason="pyautoattack is not installed")
    points, normals, gaps = (part.to(dtype) for part in planes(300, 192, seed=1))
    gaps[:40] *= 10
    theirs = getattr(peer, f"projection_{norm}")(points, normals, gaps + (normals * points).sum(dim=1))
    ours = step_to_hyperplane(norm, points, normals, gaps, (0.0, 1.0))
    _, most = reach(points, normals, gaps)
    far = most < gaps.abs() * 1.001
    assert 10 < far.sum() < 200
    # Out of reach theirs goes all the way for l-inf; what it does for l2 is left alone.
    same = ~far if norm == "l2" else torch.ones_like(far)
    tolerance = 2e-4 if dtype == torch.float32 else 1e-9
    torch.testing.assert_close(ours[same], theirs[same], rtol=0, atol=tolerance)


def test_least_change_at_the_edges() -> None:
    point, normal, gap = torch.tensor([[0.5, 0.9, 0.2]]), torch.tensor([[3.0, -4.0, 0.0]]), torch.tensor([2.0])
    free = step_to_hyperplane("l2", point, normal, gap, None)
    torch.testing.assert_close(free, torch.tensor([[0.24, -0.32, 0.0]]))
    torch.testing.assert_close(step_to_hyperplane("linf", point, normal, gap, None), torch.tensor([[2 / 7, -2 / 7, 0]]))
    # Two pixels, the first with room for 0.5: the second makes up for it.
    tight = step_to_hyperplane("linf", point, normal, torch.tensor([5.0]), (0.0, 1.0))
    torch.testing.assert_close(tight, torch.tensor([[0.5, -0.875, 0.0]]))
    for norm in ("linf", "l2"):
        for bounds in ((0.0, 1.0), None):
            nothing = step_to_hyperplane(norm, point, normal, torch.zeros(1), bounds)  # type: ignore[arg-type]
            flat = step_to_hyperplane(norm, point, torch.zeros(1, 3), gap, bounds)  # type: ignore[arg-type]
            assert nothing.tolist() == flat.tolist() == [[0.0, 0.0, 0.0]]
        tiny = step_to_hyperplane(norm, point, normal * 1e-18, gap * 1e-18, (0.0, 1.0))  # type: ignore[arg-type]
        torch.testing.assert_close(tiny, step_to_hyperplane(norm, point, normal, gap, (0.0, 1.0)))  # type: ignore[arg-type]
    whole = step_to_hyperplane("l2", point.view(1, 3, 1, 1), normal.view(1, 3, 1, 1), gap, None)
    assert whole.shape == (1, 3, 1, 1) and torch.equal(whole.flatten(1), free)


@pytest.mark.filterwarnings("ignore")  # the peer's own
@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("alpha_max", [0.1, 0.002])
def test_finds_the_authors_distances(norm: Any, alpha_max: float) -> None:
    peer = pytest.importorskip("pyautoattack.fab_pt", reason="pyautoattack is not installed")
    model, images = tiny_cnn().double(), random_images(20).double()
    labels = model(images).argmax(dim=1)
    threat = ThreatModel(norm, 1.0 if norm == "linf" else 100.0)
    theirs = peer.FABAttack_PT(
        tiny_cnn(), "Linf" if norm == "linf" else "L2", n_iter=15, alpha_max=alpha_max, device="cpu"
    )
    theirs.target_class = 2
    other = threat.distance(theirs.attack_single_run(images.float(), labels, is_targeted=True), images.float())
    attack = FAB(threat, steps=15, targets=1, alpha_max=alpha_max, relinearise=True, early_stop=False)
    result = attack.run(model, images, labels, rng=Draws(range(20)))
    mine = threat.distance(result.adversarials, images)
    assert (result.broken_at >= 0).all()
    torch.testing.assert_close(mine.float(), other, rtol=1e-3, atol=0)
    assert (model(result.adversarials).argmax(dim=1) != labels).all()
    # With one forward a step the distances are as good, and each run costs exactly steps + 1 forwards.
    lean = replace(attack, relinearise=False).run(model, images, labels, rng=Draws(range(20)))
    assert lean.forwards.tolist() == [1 + 15 + 1] * 20 and lean.backwards.tolist() == lean.steps.tolist() == [15] * 20
    assert (result.forwards > 17).all() and (result.backwards >= 15).all()
    found = threat.distance(lean.adversarials, images)
    assert found.mean() <= mine.mean() * 1.002 and (found <= mine * 1.02).all()


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("relinearise", [True, False])
def test_distance_to_a_flat_boundary(norm: Any, relinearise: bool) -> None:
    weights = torch.linspace(-1, 1, 48).double()
    model = nn.Sequential(nn.Flatten(), nn.Linear(48, 2)).double()
    model[1].weight.data = torch.stack([-weights, weights])
    images = 0.4 + 0.2 * random_images(6).double()[:, :, :4, :4]
    heights = images.flatten(1) @ weights
    model[1].bias.data = torch.tensor([0.0, 1.2]).double()  # logits differ by 2 heights + 1.2
    distances = (2 * heights + 1.2).abs() / (2 * weights).norm(p=1 if norm == "linf" else 2)
    threat = ThreatModel(norm, 1.0 if norm == "linf" else 100.0)
    attack = FAB(threat, steps=12, relinearise=relinearise, early_stop=False)
    ratio = threat.distance(attack(model, images, rng=Draws(range(6))), images) / distances
    assert (ratio >= 1 - 1e-9).all() and (ratio < 1.01).all()
    # eta 1.05 leads to 1.05 of the way, and no further once it is there.
    once = FAB(threat, steps=1, relinearise=relinearise)(model, images, rng=Draws(range(6)))
    torch.testing.assert_close(threat.distance(once, images), 1.05 * distances)


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_untargeted_takes_the_nearest_of_all_classes(norm: Any) -> None:
    model, images = tiny_cnn().double(), tagged(random_images(10)).double()
    threat = ThreatModel(norm, 1.0 if norm == "linf" else 100.0)
    options = {"steps": 8, "early_stop": False}
    log = Tagged(model)
    untargeted = FAB(threat, targets=0, **options).run(log, images)  # type: ignore[arg-type]
    assert untargeted.forwards.tolist() == [1 + 8 + 1] * 10 == log.count(10)
    assert untargeted.backwards.tolist() == [5 * 8] * 10
    # That towards the label itself is counted, as in the published code, but has no gradient.
    assert log.count(10, backwards=True) == [4 * 8] * 10 and untargeted.steps.tolist() == [8] * 10
    distances = threat.distance(untargeted.adversarials, images)
    # The nearest of four boundaries, each sought alone in a model of two classes.
    mine = log(images).argmax(dim=1) == 2
    assert mine.sum() > 5
    each = []
    for target in (0, 1, 3, 4):

        def pair(points: Tensor, target: int = target) -> Tensor:
            return log(points)[:, [2, target]]

        found = FAB(threat, **options)(pair, images[mine])  # type: ignore[arg-type]
        each.append(threat.distance(found, images[mine]))
    nearest = torch.stack(each).amin(dim=0)
    torch.testing.assert_close(distances[mine], nearest, rtol=0.02, atol=0)


def test_first_step_of_the_untargeted_goes_to_the_nearest_plane() -> None:
    """Three flat boundaries at distances 0.3, 0.1 and 0.2 from the image: one step crosses the second."""
    model = nn.Linear(3, 4, bias=False).double()
    model.weight.data = torch.cat([torch.zeros(1, 3), torch.eye(3)]).double()
    model = nn.Sequential(model)
    image = torch.tensor([[-0.3, -0.1, -0.2]]).double()
    for norm in ("linf", "l2"):
        threat = ThreatModel(norm, 0.5, None)  # type: ignore[arg-type]
        found = FAB(threat, steps=1, targets=0)(model, image)
        torch.testing.assert_close(found, torch.tensor([[-0.3, 0.005, -0.2]]).double())
        third = FAB(threat, steps=1, targets=3, early_stop=True).run(model, image)
        assert third.broken_at.tolist() == [1] and third.adversarials.tolist() == found.tolist()


def test_nearest_is_measured_in_the_norm_of_the_threat() -> None:
    """The plane x = 0.12 is nearer in l2 (0.12 to 0.173), x + y + z = 0.3 in l-inf (0.12 to 0.1)."""
    model = nn.Sequential(nn.Linear(3, 3)).double()
    model[0].weight.data = torch.tensor([[0.0, 0, 0], [1, 0, 0], [1, 1, 1]]).double()
    model[0].bias.data = torch.tensor([0.0, -0.12, -0.3]).double()
    for norm, point in (("linf", [0.105, 0.105, 0.105]), ("l2", [0.126, 0.0, 0.0])):
        threat = ThreatModel(norm, 0.5, None)  # type: ignore[arg-type]
        found = FAB(threat, steps=1, targets=0)(model, torch.zeros(1, 3).double())
        torch.testing.assert_close(found, torch.tensor([point]).double())


def test_first_run_to_each_target_begins_at_the_image() -> None:
    model, images = tiny_cnn(), random_images(5)
    attack = FAB(ThreatModel("linf", 0.9), steps=2, targets=3, early_stop=False)
    one, other = (attack(model, images, rng=Draws(ids)) for ids in (range(5), range(5, 10)))
    assert torch.equal(one, other) and not torch.equal(one, images)
    asked: list[Tensor] = []

    def right(points: Tensor) -> Tensor:  # never wrong, so that all targets have their turn
        asked.append(points.detach().clone())
        return model(points) + 100 * torch.eye(5)[0]

    attack(right, images[:1])
    assert [torch.equal(points, images[:1]) for points in asked] == [True, *[True, False, False] * 3]


def test_restarts_begin_inside_half_the_ball() -> None:
    asked: list[Tensor] = []

    def model(points: Tensor) -> Tensor:
        asked.append(points.detach().clone())
        return tiny_cnn()(points)

    images = random_images(5)
    for norm, eps in (("linf", 0.004), ("l2", 0.04)):
        threat = ThreatModel(norm, eps)  # type: ignore[arg-type]
        asked.clear()
        result = FAB(threat, steps=2, targets=1, restarts=3).run(model, images, rng=Draws(range(5)))
        assert result.forwards.tolist() == [1 + 3 * 3] * 5
        _, first, _, _, second, *_ = asked
        assert torch.equal(first, images)
        far = threat.distance(second, images)
        assert (far <= eps / 2 + 1e-6).all() and (far > eps / 2 * 0.9).all()


def test_early_leaving_costs_each_sample_what_it_needs() -> None:
    images = tagged(random_images(14))
    plain = Tagged(tiny_cnn())
    labels = plain(images).argmax(dim=1)
    for relinearise in (False, True):
        log = Tagged(tiny_cnn())
        attack = FAB(ThreatModel("linf", 0.045), steps=10, targets=3, relinearise=relinearise)
        result = attack.run(log, images, labels, rng=Draws(range(14)), batch_size=4)
        broken = result.broken_at >= 0
        assert 0 < broken.sum() < 14
        assert torch.equal(plain(result.adversarials).argmax(dim=1) != labels, broken)
        assert (ThreatModel("linf", 0.045).distance(result.adversarials, images) <= 0.045 + 1e-6).all()
        assert torch.equal(result.adversarials[~broken], images[~broken])
        assert log.count(14) == result.forwards.tolist() and log.count(14, backwards=True) == result.backwards.tolist()
        assert all(log.backwards) and max(map(len, log.forwards)) <= 4
        assert (result.steps[~broken] == 30).all()
        if not relinearise:
            assert (result.forwards[~broken] == 1 + 3 * 11).all() and torch.equal(result.backwards, result.steps)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps is 0; expected 1 or more"),
        ({"restarts": 0}, "restarts is 0; expected 1 or more"),
        ({"targets": -1}, "targets is -1; expected 0 or more"),
        ({"alpha_max": 1.5}, "alpha_max is 1.5; expected a share from 0 to 1"),
        ({"beta": -0.1}, "beta is -0.1; expected a share from 0 to 1"),
        ({"eta": 0.9}, "eta is 0.9; expected 1 or more"),
        ({"eta": float("nan")}, "eta is nan; expected 1 or more"),
    ],
)
def test_rejects(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FAB(**arguments)
