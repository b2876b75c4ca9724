"""APGD: the paper's algorithm, its checkpoints, a closed form, the authors' results, passes counted."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attack_oracles import Draws, Tagged, apgd_slowly, random_images, tagged, tiny_cnn
from torch import Tensor, nn

from attacks import APGD, ThreatModel
from attacks.apgd import checkpoint_steps
from attacks.attack import Tally
from attacks.model_access import Oracle
from attacks.queue import AttackState

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        # The paper's shares 0, 0.22, 0.41, 0.57, 0.70, 0.80, 0.87, 0.93, 0.99 of 100 steps.
        (100, [22, 41, 57, 70, 80, 87, 93, 99]),
        (40, [8, 15, 21, 26, 30, 33, 35, 37, 39]),  # windows 8, 7, 6, 5, 4, 3, then 0.06 * 40 = 2
        (10, [2, 3, 4, 5, 6, 7, 8, 9, 10]),
        (3, [1, 2, 3]),
        (1, [1]),
    ],
)
def test_checkpoints(steps: int, expected: list[int]) -> None:
    assert checkpoint_steps(steps) == expected


def start_of(draws: Draws, images: Tensor, norm: str, eps: float, purpose: str) -> Tensor:
    """A point of the ball as the draws give it, cut to the bounds."""
    shape = images.shape[1:]
    if norm == "linf":
        change = (2 * draws.uniform(shape, purpose).to(images) - 1) * eps
    else:
        normal = draws.normal(shape, f"{purpose}/direction").to(images)
        radius = draws.uniform((1,), f"{purpose}/radius").to(images)[:, :, None, None] ** (1 / shape.numel())
        change = eps * radius.clamp(max=1 - 1e-6) * normal / normal.flatten(1).norm(dim=1)[:, None, None, None]
    return (images + change).clamp(0, 1)


class Scripted(nn.Module):
    """Two classes whose logits at each pass are given, and whose gradients point anywhere; the first one is right."""

    def __init__(self, heights: list[int]) -> None:
        super().__init__()
        self.heights = heights
        self.asked: list[Tensor] = []

    def forward(self, points: Tensor) -> Tensor:
        number = len(self.asked)
        self.asked.append(points.detach().clone())
        slope = torch.randn(points.shape[1:], generator=torch.Generator().manual_seed(number), dtype=points.dtype)
        gap = 0.01 * self.heights[number] - 1 + ((points - points.detach()) * slope).flatten(1).sum(dim=1)
        return torch.stack([torch.zeros_like(gap), gap], dim=1)


@pytest.mark.parametrize("start", [0, 20])
def test_halves_where_the_highest_point_stays(start: int) -> None:
    """Losses that rise nearly always and reach no new height halve the step size too, but not twice in a row, and not
    at the first checkpoint (for which the start at 20 is made)."""
    heights = [start, *range(1, 9), *range(-20, -13), *range(-12, 4), *range(30, 39)]
    assert len(heights) == 41
    image, draws = random_images(1).double(), Draws([3])
    ours = Scripted([0, *heights])  # the clean image is asked about first
    APGD(ThreatModel("l2", 0.3), 40).run(ours, image, torch.tensor([0]), rng=draws)
    halving = [8, 15, 21, 26, 30, 33, 35, 37, 39]
    begin = start_of(draws, image, "l2", 0.3, "apgd-ce/start/0")[0]

    # The gradients of a pass depend on its number, which is one more in ours.
    shifted = Scripted([0, *heights])
    shifted.asked.append(image)
    points = apgd_slowly(shifted, image[0], 0, 0, begin, "l2", 0.3, 40, halving, "ce")[0]
    torch.testing.assert_close(torch.cat(ours.asked[1:]), torch.stack(points), rtol=0, atol=1e-9)


@pytest.mark.parametrize("loss", ["ce", "dlr", "dlr-targeted"])
@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.045), ("l2", 0.4)])
def test_is_the_paper_s_algorithm(norm: Any, eps: float, loss: str) -> None:
    model, images, draws = tiny_cnn().double(), random_images(8, seed=3).double(), Draws(range(8))
    logits = model(images).detach()
    labels = logits.argmax(dim=1)
    ranked = logits.argsort(dim=1, descending=True)
    runs = 2  # restarts, or targets
    targeted = loss == "dlr-targeted"
    options = {"targets": runs} if targeted else {"restarts": runs}
    stop, go = (
        APGD(ThreatModel(norm, eps), 40, loss=loss, early_stop=early, **options).run(model, images, labels, rng=draws)  # type: ignore[arg-type]
        for early in (True, False)
    )
    stage = "apgd-t" if targeted else f"apgd-{loss}"
    starts = [start_of(draws, images, norm, eps, f"{stage}/start/{run}") for run in range(runs)]
    halving = [8, 15, 21, 26, 30, 33, 35, 37, 39]
    broken = seen = 0
    for i in range(8):
        label, forwards, highest = int(labels[i]), 1, (-torch.inf, images[i])
        for run in range(runs):
            target = int(ranked[i, 1 + run])
            slow = apgd_slowly(model, images[i], label, target, starts[run][i], norm, eps, 40, halving, loss)
            points, values, wrongs = slow
            if any(wrongs):
                break
            forwards += 41
            top = max(range(41), key=lambda k: values[k])
            highest = max(highest, (values[top], points[top]), key=lambda pair: pair[0])
        if any(wrongs):
            broken += 1
            first, last = wrongs.index(True), 40 - wrongs[::-1].index(True)
            torch.testing.assert_close(stop.adversarials[i], points[first], rtol=0, atol=1e-8)
            assert stop.broken_at[i] == first and go.broken_at[i] >= 0
            if loss != "dlr" or max(values) < 0.999:  # at 1 its gradient is nothing but rounding
                seen += 1
                torch.testing.assert_close(go.adversarials[i], points[last], rtol=0, atol=1e-8)
            assert stop.forwards[i] == forwards + first + 1 and go.forwards[i] == forwards + 41
        else:
            for result in (stop, go):
                torch.testing.assert_close(result.adversarials[i], highest[1], rtol=0, atol=1e-8)
                assert result.broken_at[i] == -1 and result.forwards[i] == forwards == 1 + runs * 41
    assert seen > 0 and broken < 8


@pytest.mark.parametrize(
    ("norm", "eps", "change"), [("linf", 0.1, (0.1, -0.1, 0.0, 0.1)), ("l2", 0.13, (0.03, -0.04, 0, 0.12))]
)
def test_linear_optimum(norm: Any, eps: float, change: tuple[float, ...]) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 2))
    model[1].weight.data = torch.tensor([[0.0] * 4, [3.0, -4.0, 0.0, 12.0]])
    model[1].bias.data = torch.tensor([0.0, -9.0])  # class 0, and so it stays
    images = torch.full((3, 4), 0.5)
    images[:, 2] = torch.tensor([0.0, 0.5, 1.0])
    found = APGD(ThreatModel(norm, eps), 60)(model, images, rng=Draws(range(3))) - images
    if norm == "linf":  # the third pixel keeps its start
        found[:, 2] = 0
    torch.testing.assert_close(found, torch.tensor(change).expand(3, 4), rtol=0, atol=2e-3 if norm == "l2" else 1e-6)


@pytest.mark.filterwarnings("ignore")  # the peer's own
@pytest.mark.parametrize(
    ("norm", "eps"),
    [
        ("linf", 0.055),
        ("l2", 0.3),
        *(pytest.param(*each, marks=pytest.mark.slow) for each in (("linf", 0.03), ("l2", 0.6))),
    ],
)
@pytest.mark.parametrize("loss", ["ce", "dlr", "dlr-targeted"])
def test_breaks_what_the_authors_code_breaks(norm: Any, eps: float, loss: str) -> None:
    peer = pytest.importorskip("pyautoattack.autopgd_base", reason="pyautoattack is not installed")
    model, images = tiny_cnn(), random_images(40)
    labels = model(images).argmax(dim=1)
    name = "Linf" if norm == "linf" else "L2"
    if loss == "dlr-targeted":
        theirs = peer.APGDAttack_targeted(model, 50, name, eps=eps, seed=0, n_target_classes=4, device="cpu")
    else:
        theirs = peer.APGDAttack(model, 50, name, eps=eps, seed=0, loss=loss, device="cpu")
    with torch.random.fork_rng():
        other = model(theirs.perturb(images, labels)).argmax(dim=1) != labels
    ours = APGD(ThreatModel(norm, eps), 50, loss=loss, targets=4)(model, images, labels, rng=Draws(range(40)))
    mine = model(ours).argmax(dim=1) != labels
    assert 3 < mine.sum() < 37
    assert (mine != other).sum() <= 1


def test_passes_of_each_sample() -> None:
    images = tagged(random_images(12))
    labels = Tagged(tiny_cnn())(images).argmax(dim=1)
    for early_stop in (True, False):
        attack = APGD(ThreatModel("linf", 0.045), 10, restarts=2, early_stop=early_stop)
        model = Tagged(tiny_cnn())
        result = attack.run(model, images, labels, rng=Draws(range(12)), batch_size=5)
        assert 0 < (result.broken_at >= 0).sum() < 12
        assert model.count(12) == result.forwards.tolist()
        assert model.count(12, backwards=True) == result.backwards.tolist() == result.steps.tolist()
        assert all(model.backwards) and all(len(set(batch)) <= 5 for batch in model.forwards)
        model.backwards.clear()
        model.graphs = 0
        attack.run(model, images, labels, rng=Draws(range(12)), batch_size=1)
        assert model.graphs - len(model.backwards) == (early_stop and int((result.broken_at >= 0).sum()))
        # A run is its updates and a forward more; the clean image is another forward.
        standing = result.broken_at < 0
        assert (result.steps[standing] == 20).all() and (result.forwards[standing] == 1 + 2 * 11).all()


def test_averages_over_passes() -> None:
    """eot = 3 on a model that answers in turn like three models is APGD on the mean of their logits."""
    models = [tiny_cnn().double() for _ in range(3)]
    with torch.no_grad():
        for number, model in enumerate(models):
            model[7].bias += torch.linspace(-0.3, 0.3, 5) * number
    calls: list[int] = []

    def in_turn(points: Tensor) -> Tensor:
        calls.append(len(points))
        return models[len(calls) % 3](points)

    def mean(points: Tensor) -> Tensor:
        return torch.stack([model(points) for model in models]).mean(dim=0)

    images, labels = random_images(5).double(), mean(random_images(5).double()).argmax(dim=1)
    # The margin: of the mean of the logits the same as the mean of margins where the runner-up is the same.
    options = {"steps": 6, "loss": "margin-targeted", "targets": 2}
    for early_stop in (True, False):
        calls.clear()
        result = APGD(ThreatModel("linf", 0.01), eot=3, early_stop=early_stop, **options).run(  # type: ignore[arg-type]
            in_turn, images, labels, rng=Draws(range(5))
        )
        assert sum(calls) == result.forwards.sum()
        once = APGD(ThreatModel("linf", 0.01), early_stop=early_stop, **options).run(  # type: ignore[arg-type]
            mean, images, labels, rng=Draws(range(5))
        )
        torch.testing.assert_close(result.adversarials, once.adversarials, rtol=0, atol=1e-9)
        assert torch.equal(result.backwards, 3 * once.backwards) and torch.equal(result.steps, once.steps)
        assert torch.equal(result.forwards - 1, 3 * (once.forwards - 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps is 0; expected 1 or more"),
        ({"restarts": 0}, "restarts is 0; expected 1 or more"),
        ({"targets": 0}, "targets is 0; expected 1 or more"),
        ({"order": "likely"}, "order is 'likely'; expected one of: logits, malt"),
        ({"eot": 0}, "eot is 0; expected 1 or more"),
        ({"rho": 0.0}, "rho is 0.0; expected a share above 0, at most 1"),
        ({"loss": "cw"}, "loss is 'cw'; expected one of: ce, dlr, margin, pma, bce, dlr-targeted, margin-targeted"),
    ],
)
def test_rejects(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        APGD(**arguments)


@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2)])
def test_malts_order_is_that_of_the_distances_of_a_linear_model(norm: Any, dual: int) -> None:
    """12 classes: the nine likeliest are ordered; the others come behind none of them, and with few targets never."""
    images = random_images(6).double()
    torch.manual_seed(0)
    layer = nn.Linear(images[0].numel(), 12).double()
    layer.weight.data *= torch.linspace(0.2, 3, 12)[torch.randperm(12)][:, None]
    model = nn.Sequential(nn.Flatten(), layer)
    with torch.no_grad():
        logits = model(images)
    labels = logits.argmax(dim=1)
    labels[5] = logits[5].argmin()  # wrong as it is: not asked again
    front = AttackState(
        Oracle(model, images.dtype, labels, None, 4, 2),
        images,
        labels,
        Draws(range(6)),
        tally := Tally(6, images.device, None),
    )
    near = front.nearest_targets(5, norm)
    for row in range(5):
        likely = [k for k in logits[row].argsort(descending=True).tolist() if k != labels[row]][:9]
        away = {
            k: float(logits[row, labels[row]] - logits[row, k])
            / float(torch.linalg.vector_norm((layer.weight[labels[row]] - layer.weight[k]).detach(), ord=dual))
            for k in likely
        }
        expected = sorted(likely, key=away.__getitem__)
        assert near[row].tolist() == expected[:5] and expected != likely
    assert torch.equal(near[5], front.targets(5)[5])
    assert tally.forwards.tolist() == [2] * 5 + [1] and tally.backwards.tolist() == [9] * 5 + [0]
    assert torch.equal(front.nearest_targets(9, norm)[:, :5], near) and tally.forwards[0] == 2, "it is asked once"


def test_labels_of_a_set_are_no_targets_before_others_in_malts_order() -> None:
    """Ten classes of which four are right: the six others come first, nearest first."""
    images = random_images(4).double()
    torch.manual_seed(1)
    model = nn.Sequential(nn.Flatten(), nn.Linear(images[0].numel(), 10).double())
    sets = model(images).argsort(dim=1, descending=True)[:, [0, 2, 4, 9]].detach()
    front = AttackState(
        Oracle(model, images.dtype, sets, None, None, 2), images, sets, Draws(range(4)), Tally(4, images.device, None)
    )
    near = front.nearest_targets(9, "linf")
    for row in range(4):
        assert {*near[row, :6].tolist()} == {*range(10)} - {*sets[row].tolist()}


def test_classes_that_no_step_reaches_come_last_in_malts_order() -> None:
    images = random_images(1).double()
    layer = nn.Linear(images[0].numel(), 4).double()
    with torch.no_grad():
        layer.weight[1:3] = layer.weight[0]  # the same slopes as the label's: one behind it, one level with it
        layer.bias[:] = torch.tensor([100.0, 99.0, 100.0, 0.0])
        layer.weight[3] = -layer.weight[0]
    model, labels = nn.Sequential(nn.Flatten(), layer), torch.tensor([0])
    tally = Tally(1, images.device, None)
    front = AttackState(Oracle(model, images.dtype, labels, None, None, 2), images, labels, Draws([0]), tally)
    assert front.nearest_targets(3, "linf").tolist() == [[3, 2, 1]]
