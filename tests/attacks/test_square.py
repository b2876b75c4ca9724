"""Square: the schedule, the bumps and the proposals of the paper, one query after the other, on images of any shape."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from attack_oracles import Draws, Tagged, random_images, slow_bump, square_slowly, tagged, tiny_cnn
from torch import Tensor

from attacks import LOSSES, Square, ThreatModel, queries
from attacks.queries import _bump_on, _sides

pytestmark = pytest.mark.usefixtures("one_thread")


def sides_of(attack: Square, height: int, width: int) -> list[int]:
    sides: list[int] = _sides(attack, height, width)
    return sides


def test_sides_by_hand() -> None:
    """p = 0.8 for 32 x 32 pixels: 0.8 * 1024 = 819.2 is 28.6 squared, and p halves after 10, 50, 200, 500 queries."""
    sides = sides_of(Square(ThreatModel("linf"), 1200, rescale_schedule=False), 32, 32)
    changes = [(query, after) for query, (before, after) in enumerate(itertools.pairwise(sides), 1) if before != after]
    assert sides[0] == 29 and changes == [(11, 20), (51, 14), (201, 10), (501, 7), (1001, 5)]
    rescaled = sides_of(Square(ThreatModel("linf"), 1000), 32, 32)
    changes = [(query, now) for query, (past, now) in enumerate(itertools.pairwise(rescaled), 1) if past != now]
    assert changes == [(2, 20), (6, 14), (21, 10), (51, 7), (101, 5), (201, 4), (401, 3), (601, 2), (801, 1)]
    odd = sorted(set(sides_of(Square(ThreatModel("l2"), 1000), 32, 32)))
    assert odd == [3, 5, 7, 11, 15, 21, 29]


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("rescale", [True, False])
@pytest.mark.parametrize("queries", [40, 1000, 5000, 9000])
def test_sides_are_the_authors(norm: Any, rescale: bool, queries: int) -> None:
    peer = pytest.importorskip("pyautoattack.square", reason="pyautoattack is not installed")
    theirs = peer.SquareAttack(None, p_init=0.8, n_queries=queries, eps=0.1, resc_schedule=rescale)
    for height, width in ((32, 32), (224, 224), (5, 9)):
        ours = sides_of(Square(ThreatModel(norm), queries, rescale_schedule=rescale), height, width)
        for query, side in enumerate(ours):
            expected = max(round((theirs.p_selection(query) * height * width) ** 0.5), 1 if norm == "linf" else 3)
            if norm == "l2" and expected % 2 == 0:
                expected += 1
            assert side == min(expected, height, width), query


@pytest.mark.parametrize("side", [1, 2, 3, 4, 5, 7, 8, 13, 20])
def test_bumps_are_the_authors(side: int) -> None:
    bump = _bump_on(torch.device("cpu"), torch.float32, side)
    torch.testing.assert_close(bump, torch.tensor(slow_bump(side)))
    assert bump.norm().item() == pytest.approx(1)
    peer = pytest.importorskip("pyautoattack.square", reason="pyautoattack is not installed")
    theirs = peer.SquareAttack(None, "L2", eps=0.1, device="cpu").eta(side)
    gap = min(float((bump - turned).abs().max()) for turned in (theirs, theirs.T))
    if side > 1:  # 1 x 1 is NaN there
        assert gap < 1e-6


SHAPES = [(3, 8, 8), (1, 6, 9), (1, 9, 6), (2, 11, 10), (1, 4, 4), (3, 1, 1)]


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("shape", SHAPES)
def test_is_the_paper_s_search(norm: Any, shape: tuple[int, int, int]) -> None:
    """The start, then all points asked about, one at a time: each a proposal from the best one so far."""
    eps, queries = (0.05 if norm == "linf" else 0.4), 30
    asked: list[Tensor] = []
    weights = torch.randn(5, *shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def model(points: Tensor) -> Tensor:
        asked.append(points.clone())
        logits = torch.tanh(torch.einsum("nchw,kchw->nk", points, weights))
        return logits + torch.tensor([10.0, 0, 0, 0, 0])  # class 0, whatever happens

    images = torch.rand(3, *shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    attack, draws = Square(ThreatModel(norm, eps), queries), Draws([7, 8, 9])
    result = attack.run(model, images, rng=draws)
    assert len(asked) == 1 + 1 + queries and result.forwards.tolist() == [32] * 3
    assert torch.equal(asked[0], images) and result.steps.tolist() == [queries] * 3
    every = torch.stack([points.clone() for points in asked])
    losses = torch.stack([LOSSES["margin"](model(points), torch.zeros(3, dtype=torch.int64)) for points in every])
    c, h, w = shape
    numbers = draws.uniform((queries, c + (2 if norm == "linf" else 5)), "square/queries/0").double()
    if norm == "linf":
        start = draws.uniform((c, 1, w), "square/start/0").double()
        change = torch.where(start < 0.5, -eps, eps).expand(3, *shape)
    else:
        tile = max(1, h // 5)
        start = draws.uniform((c, h // tile, w // tile), "square/start/0").double()
        change = torch.zeros(3, *shape).double()
        bump = torch.tensor(slow_bump(tile)).double()
        for i, j in itertools.product(range(h // tile), range(w // tile)):
            signs = torch.where(start[:, :, i, j] < 0.5, -1.0, 1.0)[:, :, None, None]
            change[:, :, i * tile : (i + 1) * tile, j * tile : (j + 1) * tile] = signs * bump
        change *= eps / change.flatten(1).norm(dim=1)[:, None, None, None]
    torch.testing.assert_close(every[1], (images + change).clamp(0, 1), rtol=0, atol=1e-6 * eps + 1e-12)
    assert (attack.threat.distance(every.flatten(0, 1), images.repeat(len(every), 1, 1, 1)) <= eps + 1e-9).all()
    assert every.min() >= 0 and every.max() <= 1
    if norm == "l2" and h == w == 1:  # a bump of one pixel and what it falls on cancel, except for rounding
        return
    sides = sides_of(attack, h, w)
    accepted = 0
    for i in range(3):
        best = 1
        for query in range(queries):
            slow = square_slowly(every[best, i], images[i], sides[query], numbers[i, query].tolist(), norm, eps)
            torch.testing.assert_close(every[2 + query, i], slow, rtol=0, atol=3e-6 * eps)
            if losses[2 + query, i] > losses[best, i]:
                best, accepted = 2 + query, accepted + 1
        torch.testing.assert_close(result.adversarials[i], every[best, i], rtol=0, atol=0)
    assert accepted > 0


@pytest.mark.parametrize("loss", ["margin", "ce"])
def test_points_of_a_box_are_at_its_faces(loss: str) -> None:
    model, images = tiny_cnn(), random_images(10)
    labels, eps = model(images).argmax(dim=1), 0.02
    result = Square(ThreatModel("linf", eps), 60, loss=loss).run(model, images, labels, rng=Draws(range(10)))
    faces = torch.stack([(images + eps).clamp(0, 1), (images - eps).clamp(0, 1)])
    standing = result.broken_at < 0
    assert standing.sum() > 0
    assert (faces - result.adversarials).abs().amin(dim=0).max() < 1e-7
    before, after = (LOSSES[loss](model(points), labels) for points in (images, result.adversarials))
    # All queries cost the loss nothing: more queries with the same squares never end lower.
    fewer = Square(ThreatModel("linf", eps), 59, loss=loss, rescale_schedule=False)
    more = Square(ThreatModel("linf", eps), 60, loss=loss, rescale_schedule=False)
    ends = [LOSSES[loss](model(attack(model, images, labels, rng=Fixed(10))), labels) for attack in (fewer, more)]
    assert (ends[1] >= ends[0]).all() and (after > before).float().mean() > 0.7


class Fixed(Draws):
    """Draws whose first rows stay the same when more are asked for."""

    def __init__(self, count: int) -> None:
        super().__init__(range(count))

    def uniform(self, shape: Any, purpose: str) -> Tensor:
        return super().uniform((100, *shape[1:]), purpose)[:, : shape[0]]

    def take(self, index: Tensor) -> Draws:
        return self


def test_asks_once_a_query_and_stops_at_the_first_wrong_point() -> None:
    images = tagged(random_images(12))
    for norm, eps in (("linf", 0.045), ("l2", 0.45)):
        log = Tagged(tiny_cnn())
        labels = log(images).argmax(dim=1)
        log.forwards.clear()
        threat = ThreatModel(norm, eps)  # type: ignore[arg-type]
        result = Square(threat, 40, restarts=2).run(log, images, labels, rng=Draws(range(12)), batch_size=5)
        broken = result.broken_at >= 0
        assert 0 < broken.sum() < 12
        assert sum(map(len, log.forwards)) == result.forwards.sum() and not log.backwards
        if norm == "linf":  # an l2 bump may move a pixel by more than tags can bear
            assert log.count(12) == result.forwards.tolist()
        assert max(map(len, log.forwards)) == 5
        # Clean, and two runs of a start and 40 queries each.
        assert (result.forwards[~broken] == 1 + 2 * 41).all() and (result.steps[~broken] == 2 * 40).all()
        first = broken & (result.forwards <= 42)
        assert torch.equal(result.forwards[first], 2 + result.broken_at[first])
        assert (result.forwards[first] < 42).all() and first.any()
        assert result.backwards.tolist() == [0] * 12
        assert torch.equal(log(result.adversarials).argmax(dim=1) != labels, broken)
        assert (threat.distance(result.adversarials, images) <= eps + 1e-6).all()


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_asking_ahead_changes_nothing_but_the_number_of_passes(
    monkeypatch: pytest.MonkeyPatch, norm: Any, early_stop: bool
) -> None:
    """Queries asked at once are those of one after another: the first change that stays throws the later ones away."""
    images = random_images(12).double()
    log = Tagged(tiny_cnn().double())
    labels = log(images).argmax(dim=1)
    attack = Square(ThreatModel(norm, 0.045 if norm == "linf" else 0.45), 40, restarts=2, early_stop=early_stop)
    found = []
    for most in (1, 5):
        monkeypatch.setitem(queries.AHEAD, "cpu", most)
        log.forwards.clear()
        result = attack.run(log, images, labels, rng=Draws(range(12)), batch_size=24)
        assert max(map(len, log.forwards)) <= 24
        found.append((result, len(log.forwards)))
    (one, passes), (ahead, fewer) = found
    assert 0 < (one.broken_at >= 0).sum() < 12
    assert torch.equal(one.adversarials, ahead.adversarials)
    assert torch.equal(one.broken_at, ahead.broken_at) and torch.equal(one.steps, ahead.steps)
    assert fewer < passes and torch.equal(one.forwards, ahead.forwards)


def test_without_early_leaving_the_worst_point_is_wrong_and_has_the_highest_loss() -> None:
    asked: list[Tensor] = []
    net = tiny_cnn()

    def model(points: Tensor) -> Tensor:
        asked.append(points.clone())
        return net(points)

    images = random_images(8)
    labels = net(images).argmax(dim=1)
    attack = Square(ThreatModel("linf", 0.06), 50, early_stop=False)
    result = attack.run(model, images, labels, rng=Draws(range(8)))
    assert result.forwards.tolist() == [52] * 8
    with torch.no_grad():
        logits = torch.stack([net(points) for points in asked[1:]])
    wrong = logits.argmax(dim=2) != labels
    losses = torch.stack([LOSSES["margin"](each, labels) for each in logits])
    assert 0 < wrong.any(dim=0).sum() < 8 and torch.equal(wrong.any(dim=0), result.broken_at >= 0)
    top = losses.argmax(dim=0)
    assert torch.equal(torch.stack(asked[1:])[top, torch.arange(8)], result.adversarials)
    # Cross-entropy may rise where the prediction turns right again: a wrong point stays before a right one.
    answers = [[9.0, 0, 0], [0, 0.1, -9], [0.01, 0, 0], [0.01, 0, 0]]  # losses 0, 0.7, 1.1, 1.1
    asked.clear()

    def scripted(points: Tensor) -> Tensor:
        asked.append(points.clone())
        return torch.tensor([answers[len(asked) - 1]])

    other = Square(ThreatModel("linf", 0.06), 2, loss="ce", early_stop=False).run(scripted, images[:1])
    assert len(asked) == 4 and torch.equal(other.adversarials, asked[1]) and other.broken_at >= 0


def test_needs_images() -> None:
    with pytest.raises(ValueError, match=r"Square attacks images \(B, C, H, W\); these have shape \(2, 4\)"):
        Square()(lambda points: points, torch.rand(2, 4))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"queries": 0}, "queries is 0; expected 1 or more"),
        ({"restarts": 0}, "restarts is 0; expected 1 or more"),
        ({"p_init": 0.0}, "p_init is 0.0; expected a share above 0, at most 1"),
        ({"p_init": 1.1}, "p_init is 1.1; expected a share above 0, at most 1"),
        ({"loss": "dlr"}, "loss is 'dlr'; expected one of: margin, ce"),
    ],
)
def test_rejects(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Square(**arguments)


def test_under_a_judge_square_is_the_judge_s_own_search() -> None:
    """A model whose logits are rounded to an eighth hides small gains: its own search ends elsewhere."""
    images, judge = random_images(6).double(), tiny_cnn().double()
    labels = judge(images).argmax(dim=1)
    attack = Square(ThreatModel("linf", 0.05), 30, early_stop=False)

    def coarse(points: Tensor) -> Tensor:
        return (judge(points) * 8).round() / 8

    alone, under, itself = (
        attack.run(model, images, labels, rng=Draws(range(6)), judge=agreed)
        for model, agreed in ((judge, None), (coarse, judge), (coarse, None))
    )
    assert torch.equal(under.adversarials, alone.adversarials)
    assert not torch.equal(itself.adversarials, alone.adversarials)
