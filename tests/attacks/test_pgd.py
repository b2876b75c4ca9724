"""FGSM and PGD: closed forms, the paper's loop, passes counted, early leaving, restarts."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
import torch
from attack_oracles import Draws, pgd_slowly, random_images, tiny_cnn
from torch import Tensor, nn

import attacks
from attacks import FGSM, PGD, ThreatModel, pgd


def linear(weights: Tensor) -> nn.Module:
    """Two classes over flat pixels with logits (0, weights · x)."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(weights.numel(), 2, bias=False))
    model[1].weight.data = torch.stack([torch.zeros_like(weights), weights])
    return model


class Passes:
    """Rows that went through a model, forwards and backwards, by hooks."""

    def __init__(self, model: nn.Module) -> None:
        self.forwards: list[int] = []
        self.backwards: list[int] = []
        model.register_forward_hook(lambda _, inputs, output: self.forwards.append(len(inputs[0])))
        model.register_full_backward_hook(lambda _, gradients, outputs: self.backwards.append(len(outputs[0])))


@pytest.mark.parametrize("attack", [FGSM, PGD])
def test_linear_optimum(attack: type[FGSM] | type[PGD]) -> None:
    weights = torch.tensor([3.0, -4.0, 0.0, 12.0])
    images = torch.full((1, 4), 0.5).expand(2, 4)
    labels = torch.tensor([0, 1])
    away = torch.tensor([[1.0], [-1.0]])  # class 0 wants weights · x raised, class 1 lowered
    options = {} if attack is FGSM else {"steps": 30, "random_start": False}
    box = attack(ThreatModel("linf", 0.1), **options)(linear(weights), images, labels)
    torch.testing.assert_close(box, 0.5 + 0.1 * away * torch.tensor([1.0, -1.0, 0.0, 1.0]))
    round_ = attack(ThreatModel("l2", 0.13), **options)(linear(weights), images, labels)
    torch.testing.assert_close(round_, 0.5 + away * torch.tensor([0.03, -0.04, 0.0, 0.12]))


def test_bounds_cut_the_step_by_hand() -> None:
    images = torch.tensor([[0.98, 0.5, 0.01]])
    moved = FGSM(ThreatModel("linf", 0.1))(linear(torch.tensor([1.0, 1.0, -1.0])), images, torch.tensor([0]))
    torch.testing.assert_close(moved, torch.tensor([[1.0, 0.6, 0.0]]))
    free = FGSM(ThreatModel("linf", 0.1, None))(linear(torch.tensor([1.0, 1.0, -1.0])), images, torch.tensor([0]))
    torch.testing.assert_close(free, torch.tensor([[1.08, 0.6, -0.09]]))


@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.03), ("l2", 0.4)])
@pytest.mark.parametrize("random_start", [True, False])
def test_pgd_is_the_paper_s_loop(norm: Any, eps: float, random_start: bool) -> None:
    model, images, labels = tiny_cnn().double(), random_images(6).double(), torch.arange(6) % 5
    threat, draws = ThreatModel(norm, eps), Draws(range(6))
    ours = PGD(threat, steps=7, step_size=eps / 4, random_start=random_start)(model, images, labels, rng=draws)
    if norm == "linf":
        start = (2 * draws.uniform((3, 8, 8), "pgd/start/0").double() - 1) * eps
    else:
        normal = draws.normal((3, 8, 8), "pgd/start/0/direction").double()
        radius = draws.uniform((1,), "pgd/start/0/radius").double()[:, :, None, None] ** (1 / 192)
        start = eps * radius * normal / normal.flatten(1).norm(dim=1)[:, None, None, None]
    for i in range(6):
        change = start[i] if random_start else torch.zeros_like(start[i])
        slow = pgd_slowly(model, images[i], int(labels[i]), change, norm, eps, eps / 4, 7)
        torch.testing.assert_close(ours[i], slow, rtol=0, atol=1e-5 * eps)


def test_step_size_is_a_share_of_eps() -> None:
    model, images, labels = tiny_cnn(), random_images(4), torch.arange(4)
    threat = ThreatModel("linf", 0.02)
    stated = PGD(threat, steps=3, step_size=0.003)(model, images, labels, rng=Draws(range(4)))
    torch.testing.assert_close(PGD(threat, steps=3)(model, images, labels, rng=Draws(range(4))), stated)
    threat = ThreatModel("l2", 0.2)
    stated = PGD(threat, steps=3, step_size=0.07)(model, images, labels, rng=Draws(range(4)))
    torch.testing.assert_close(PGD(threat, steps=3)(model, images, labels, rng=Draws(range(4))), stated)


def test_passes_of_the_batch() -> None:
    images, labels, threat = random_images(5), torch.arange(5), ThreatModel("linf", 0.02)
    cases = [
        (FGSM(threat), labels, 1, 1),
        (FGSM(threat), None, 1, 1),
        (PGD(threat, steps=5), labels, 5, 5),  # too few to see a circle
        (PGD(threat, steps=5), None, 6, 5),
        (PGD(threat, steps=5, random_start=False), None, 5, 5),
        (PGD(threat, steps=4, restarts=3), labels, 3 * 5, 3 * 4),
    ]
    for attack, given, forwards, backwards in cases:
        model = tiny_cnn()
        passes = Passes(model)
        result = attack.run(model, images, given)
        assert passes.forwards == [5] * forwards and passes.backwards == [5] * backwards, attack
        assert result.forwards.tolist() == [forwards] * 5 and result.backwards.tolist() == [backwards] * 5
        assert result.steps.tolist() == [backwards] * 5


class Ridge(nn.Module):
    """Two classes over (B, 1, 1) points: the first is weakest at `top`, and steps of a fixed length turn around it.
    shared: adds the same to the gradients of all rows, by how many there are. noise: adds a random part to each."""

    def __init__(self, top: float = 0.5, shared: bool = False, noise: bool = False) -> None:
        super().__init__()
        self.top, self.shared, self.noise = top, shared, noise

    def forward(self, points: Tensor) -> Tensor:
        away = -((points - self.top) ** 2).flatten(1).sum(dim=1)
        if self.shared:
            away = away + 1e-3 * len(points) * points.flatten(1).sum(dim=1)
        if self.noise:
            away = away + (1e-3 * torch.rand_like(points) * points).flatten(1).sum(dim=1)
        return torch.stack([1 - away, torch.zeros_like(away)], dim=1)


def walks(
    monkeypatch: pytest.MonkeyPatch, model: nn.Module, images: Tensor, **options: Any
) -> tuple[attacks.AttackResult, attacks.AttackResult]:
    """Return a run that looks for circles, and one that does not."""
    labels = model(images).argmax(dim=1)
    settings: dict[str, Any] = {"steps": 60, "random_start": False, **options}
    attack = PGD(ThreatModel("linf", 0.25), **settings)
    found = attack.run(model, images, labels, rng=Draws(range(len(images))))
    with monkeypatch.context() as patch:
        patch.setattr(pgd, "FIRST_ANCHOR", 10**9)
        whole = attack.run(model, images, labels, rng=Draws(range(len(images))))
    assert torch.equal(found.adversarials, whole.adversarials)
    assert attack.restarts > 1 or torch.equal(found.broken_at, whole.broken_at)  # counts the updates of all restarts
    assert whole.cycle_at is not None and (whole.cycle_at == -1).all()
    return found, whole


@pytest.mark.parametrize("steps", [60, 61])
def test_a_circle_ends_a_walk_where_it_would_have_ended(monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """In a step of 1/32 the first image gets from 1/4 to the top after 8 steps, and then to and fro; the second reaches
    the edge of its ball after 8 and stays; so both are where they were at step 8, the first after 2 steps."""
    images = torch.tensor([0.25, 0.0])[:, None, None] + 1 / 128
    found, whole = walks(monkeypatch, Ridge(), images, steps=steps, step_size=1 / 32)
    assert found.cycle_at is not None and found.cycle_at.tolist() == [17, 16]  # 15 is the step to compare with
    assert whole.forwards.tolist() == [steps] * 2 and (found.steps == 20 - steps % 2).all()
    few, _ = walks(monkeypatch, Ridge(), images, steps=20, step_size=1 / 32)
    assert few.cycle_at is not None and few.cycle_at.tolist() == [-1, -1]  # where nothing could be saved


@pytest.mark.parametrize("options", [{}, {"restarts": 3, "random_start": True}, {"loss": "margin"}])
def test_circles_change_no_bit(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    images = random_images(12).double()[:, :, :2, :2]
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    found, whole = walks(monkeypatch, model, images, steps=200, **options)
    assert found.cycle_at is not None and (found.cycle_at >= 0).any()
    assert found.forwards.sum() < whole.forwards.sum() / 2


def test_what_is_no_circle_is_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A random model stands at the edge, too, with another gradient each time. Where gradients depend on the batch,
    a sample that is done goes along with the others, so that these see what they would have seen."""
    images = torch.tensor([0.25, 0.0, 0.9])[:, None, None] + 1 / 128
    labels = torch.zeros(3, dtype=torch.int64)
    noisy = PGD(ThreatModel("linf", 0.25), steps=40, random_start=False).run(Ridge(noise=True), images, labels)
    assert noisy.cycle_at is not None and noisy.cycle_at.tolist() == [-1] * 3 and noisy.forwards.tolist() == [40] * 3
    slow = torch.tensor([0.25, 0.484375] * 12)[:, None, None]  # every other one is done long before the others
    for shared in (False, True):
        found, _ = walks(monkeypatch, Ridge(0.49, shared=shared), slow, step_size=1 / 512, steps=200)
        assert found.cycle_at is not None and (found.cycle_at >= 0).all()
        steps, more = found.steps.tolist(), (found.forwards - found.steps).tolist()
        assert len(set(steps)) == 1 + (not shared) and max(steps) < 200
        # One pass shows whether the slow ones, and others up to 16, need the rest; one more is the last of all.
        assert sorted(more) == [1] * 8 + [2] * 16
    straight = linear(torch.tensor([1.0, -1.0]))  # has the same gradient everywhere, on the way to the edge, too
    found, _ = walks(monkeypatch, straight, torch.full((1, 2), 0.5), step_size=1 / 128, loss="margin")
    assert found.cycle_at is not None and found.cycle_at.tolist() == [34]


@pytest.mark.parametrize("kind", ["torch's generator", "Python's generator", "one of its own"])
def test_a_model_that_tosses_a_coin_goes_in_no_circle(kind: str) -> None:
    """Its gradient is the same in every other pass; the edge of the ball, where it stands, is no proof."""
    own, net, images = torch.Generator().manual_seed(0), tiny_cnn(), random_images(16)
    tosses = {
        "torch's generator": lambda: bool(torch.rand(()) < 0.5),
        "Python's generator": lambda: random.random() < 0.5,
        "one of its own": lambda: bool(torch.rand((), generator=own) < 0.5),
    }

    def model(points: Tensor) -> Tensor:
        return net(points.flip(-1) if tosses[kind]() else points)

    attack = PGD(ThreatModel("linf", 0.03), steps=100)
    found = attack.run(model, images, net(images).argmax(dim=1), rng=Draws(range(16)))
    assert found.cycle_at is not None and (found.cycle_at == -1).all() and (found.forwards == 100).all()
    assert (attack.run(net, images, net(images).argmax(dim=1), rng=Draws(range(16))).forwards < 100).all()
    early = PGD(ThreatModel("linf", 0.03), steps=100, early_stop=True).run(net, images, rng=Draws(range(16)))
    assert early.cycle_at is not None and (early.cycle_at == -1).all()


def test_looking_for_circles_costs_a_pass_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    images = random_images(40).double()[:, :, :2, :2]
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    for steps in range(18, 30):
        found, whole = walks(monkeypatch, model, images, steps=steps)
        assert found.forwards.sum() <= whole.forwards.sum() + 40, steps
    assert found.forwards.sum() < whole.forwards.sum()


def test_fgsm_notes_what_was_wrong_before() -> None:
    model, images = tiny_cnn(), random_images(4)
    labels = model(images).argmax(dim=1)
    labels[2] = (labels[2] + 1) % 5
    assert FGSM().run(model, images, labels).broken_at.tolist() == [-1, -1, 0, -1]


def test_predicted_labels_are_those_of_the_clean_images() -> None:
    model, images = tiny_cnn(), random_images(6)
    predicted = model(images).argmax(dim=1)
    threat = ThreatModel("linf", 0.1)  # wide enough for predictions to turn on the way
    for attack in (FGSM(threat), PGD(threat, steps=8), PGD(threat, steps=8, random_start=False)):
        given = attack(model, images, predicted, rng=Draws(range(6)))
        assert torch.equal(attack(model, images, rng=Draws(range(6))), given)


def test_early_stop_leaves_at_the_first_wrong_iterate() -> None:
    model, images, labels = tiny_cnn(), random_images(12), tiny_cnn()(random_images(12)).argmax(dim=1)
    threat, draws = ThreatModel("linf", 0.06), Draws(range(12))
    iterates = [PGD(threat, steps=n)(model, images, labels, rng=draws) for n in range(1, 9)]
    wrong = torch.stack([model(points).argmax(dim=1) != labels for points in iterates])
    passes = Passes(model)
    result = PGD(threat, steps=8, early_stop=True).run(model, images, labels, rng=draws)
    assert 0 < (result.broken_at > 0).sum() < 12
    for i in range(12):
        first = int(result.broken_at[i])
        if first < 0:  # the last iterate is returned unseen
            assert not wrong[:-1, i].any() and result.steps[i] == 8 and result.forwards[i] == 8
            first = 8
        else:
            assert wrong[first - 1, i] and not wrong[: first - 1, i].any()
            assert result.steps[i] == first and result.forwards[i] == first + 1
        torch.testing.assert_close(result.adversarials[i], iterates[first - 1][i], rtol=0, atol=1e-6)
    whole = PGD(threat, steps=8).run(tiny_cnn(), images, labels, rng=draws)
    assert torch.equal(whole.broken_at, result.broken_at)
    assert passes.forwards == sorted(passes.forwards, reverse=True)
    assert sum(passes.forwards) == result.forwards.sum()


def test_restarts_keep_the_worst_point() -> None:
    model, images, labels = tiny_cnn(), random_images(30), tiny_cnn()(random_images(30)).argmax(dim=1)
    threat, draws = ThreatModel("linf", 0.035), Draws(range(30))

    def badness(restarts: int, early_stop: bool) -> tuple[Tensor, Tensor]:
        attack = PGD(threat, steps=3, step_size=0.01, restarts=restarts, early_stop=early_stop)
        logits = model(attack(model, images, labels, rng=draws))
        return logits.argmax(dim=1) != labels, nn.functional.cross_entropy(logits, labels, reduction="none")

    runs = [badness(n, False) for n in range(1, 6)]
    for (broken, loss), (still, higher) in itertools.pairwise(runs):
        assert (broken <= still).all()
        assert (higher >= loss - 1e-6)[broken == still].all()
    assert runs[0][0].sum() < runs[-1][0].sum() < 30
    assert (runs[0][1] < runs[-1][1]).any()
    early = badness(5, True)[0]
    assert (early >= runs[-1][0]).all()


def test_restarts_spend_only_on_survivors() -> None:
    images, labels = random_images(12), tiny_cnn()(random_images(12)).argmax(dim=1)
    model = tiny_cnn()
    passes = Passes(model)
    attack = PGD(ThreatModel("linf", 0.05), steps=4, restarts=3, early_stop=True)
    result = attack.run(model, images, labels, rng=Draws(range(12)))
    broken = model(result.adversarials).argmax(dim=1) != labels
    assert 0 < broken.sum() < 12
    assert torch.equal(result.broken_at >= 0, broken)  # restarts score the last point too
    assert (result.forwards[~broken] == 15).all() and (result.forwards[broken] < 15).all()
    # Five forwards a whole restart, the fifth a score; one that breaks is followed by nothing.
    whole, rest = result.forwards // 5, result.forwards % 5
    assert torch.equal(result.steps, 4 * whole + (rest - 1).clamp(min=0))
    assert sum(passes.forwards) - 12 == result.forwards.sum()


@pytest.mark.parametrize("attack", [PGD(steps=6), PGD(steps=6, restarts=2, early_stop=True), FGSM()])
def test_batch_and_order_do_not_matter(attack: PGD | FGSM) -> None:
    model, images, labels = tiny_cnn().double(), random_images(9).double(), torch.arange(9) % 5
    whole = attack.run(model, images, labels, rng=Draws(range(9)))
    order = torch.tensor([7, 2, 8, 0, 4])
    part = attack.run(model, images[order], labels[order], rng=Draws(order.tolist()))
    torch.testing.assert_close(part.adversarials, whole.adversarials[order], rtol=0, atol=1e-9)
    for name in ("steps", "forwards", "backwards", "broken_at"):
        assert torch.equal(getattr(part, name), getattr(whole, name)[order])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps is 0; expected 1 or more"),
        ({"restarts": 0}, "restarts is 0; expected 1 or more"),
        ({"step_size": -1.0}, "step_size is -1.0; expected a finite number above 0, or None for a share of eps"),
        ({"restarts": 2, "random_start": False}, "without random_start every restart is the same; use 1"),
    ],
)
def test_rejects(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PGD(**arguments)
