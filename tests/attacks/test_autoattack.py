"""AutoAttack: what its stages break and what they cost, whatever the batch and the order; the authors' accuracy."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest
import torch
from attack_oracles import Draws, Tagged, random_images, tagged, tiny_cnn
from torch import Tensor, nn

from attacks import APGD, FAB, AutoAttack, Square, StagedResult, ThreatModel

pytestmark = pytest.mark.usefixtures("one_thread")
THREAT = ThreatModel("linf", 0.048)
SMALL = AutoAttack(THREAT, steps=8, queries=40, targets=4)
STANDARD = ("clean", "apgd-ce", "apgd-t", "fab-t", "square")
COUNT = 24


class Astray(nn.Module):
    """Gradients are 0 where a marked pixel is near 0.5; near 0.25 they point backwards, except for the clean image,
    where FAB begins and APGD does not: so that each stage finds samples to break.
    """

    def __init__(self) -> None:
        super().__init__()
        self.net = tiny_cnn()

    def forward(self, images: Tensor) -> Tensor:
        mark = images.detach()[:, 1, 0, 0]
        logits = self.net(images)
        way = torch.where((mark > 0.6) | (mark == 0.25), 1.0, torch.where(mark > 0.4, 0.0, -1.0))[:, None]
        return logits.detach() + way * (logits - logits.detach())


def setting() -> tuple[Tagged, Tensor, Tensor]:
    """A model that knows its samples, in float64; images; labels, of which two are wrong from the start."""
    model, images = Tagged(Astray().double()), tagged(random_images(COUNT)).double()
    images[:, 1, 0, 0] = torch.tensor([0.25, 0.5, 0.75]).double().repeat(COUNT // 3)
    labels = model(images).argmax(dim=1)
    labels[[4, 11]] = (labels[[4, 11]] + 1) % 5
    model.forwards.clear()
    return model, images, labels


def run(
    attack: AutoAttack, model: Any, images: Tensor, labels: Tensor | None = None, ids: Any = None, **options: Any
) -> StagedResult:
    result = attack.run(model, images, labels, rng=Draws(range(len(images)) if ids is None else ids), **options)
    assert isinstance(result, StagedResult)
    return result


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("batch_size", [None, 6])
def test_counts_are_what_the_model_saw(early_stop: bool, batch_size: int | None) -> None:
    model, images, labels = setting()
    attack = AutoAttack(THREAT, steps=8, queries=40, targets=4, early_stop=early_stop)
    result = run(attack, model, images, labels, batch_size=batch_size)
    assert model.count(COUNT) == result.forwards.tolist()
    assert model.count(COUNT, backwards=True) == result.backwards.tolist()
    assert all(model.backwards), "a backward that no run used"
    assert max(map(len, model.forwards)) <= (batch_size or COUNT)
    assert torch.equal(result.stage_forwards.sum(dim=0), result.forwards)
    assert torch.equal(result.stage_backwards.sum(dim=0), result.backwards)
    assert result.stages == STANDARD and result.stage_forwards.shape == (5, COUNT) and len(result.seconds) == 5
    assert all(seconds >= 0 for seconds in result.seconds) and result.notes == ()
    # Clean images once, and nothing else of a sample that was wrong.
    assert (result.stage_forwards[0] == 1).all()
    assert result.forwards[[4, 11]].tolist() == [1, 1] and result.backwards[[4, 11]].tolist() == [0, 0]
    # A sample asks for nothing after the stage that broke it.
    stage = torch.arange(5)[:, None]
    after = (stage > result.broken_by) & (result.broken_by >= 0)
    assert (result.stage_forwards[after] == 0).all() and (result.stage_forwards[~after] > 0).all()
    standing = result.broken_by < 0
    assert result.broken_by.unique().tolist() == [-1, 0, 1, 2, 3, 4]
    # A standing sample's whole bill: a forward more than updates in each run; FAB may ask twice a step.
    fab = result.stage_forwards[3, standing]
    expected = torch.tensor([1, 9, 4 * 9, 4 * 9, 41])
    for number in (0, 1, 2, 4):
        assert (result.stage_forwards[number, standing] == expected[number]).all()
    assert (fab == 4 * 9).all() if early_stop else (fab >= 4 * 9).all()
    assert (result.stage_backwards[:, standing] == torch.tensor([0, 8, 32, 32, 0])[:, None]).all() or not early_stop
    if early_stop:  # each backward is followed by an update, and nothing else makes one but a query of Square
        queries = (result.stage_forwards[4] - 1).clamp(min=0)
        assert torch.equal(result.backwards + queries, result.steps)


def in_turn(attack: AutoAttack, model: Any, images: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Forwards (S, B) and positions of the breaking stages (B,), as each stage alone takes one sample at a time."""
    with torch.no_grad():
        standing = model(images).argmax(dim=1) == labels
    members = attack.stages(5)
    forwards = torch.zeros(1 + len(members), len(images), dtype=torch.int64)
    forwards[0] = 1
    broken_by = torch.where(standing, -1, 0)
    for number, member in enumerate(members, 1):
        for i in standing.nonzero().flatten().tolist():
            alone = member.run(model, images[i : i + 1], labels[i : i + 1], rng=Draws([i]), batch_size=1)
            forwards[number, i] = alone.forwards.item() - 1  # the clean image is known
            if alone.broken_at.item() >= 0:
                standing[i], broken_by[i] = False, number
    return forwards, broken_by


@pytest.mark.slow
def test_costs_what_leaving_early_costs() -> None:
    model, images, labels = setting()
    forwards, broken_by = in_turn(SMALL, model, images, labels)
    assert broken_by.unique().tolist() == [-1, 0, 1, 2, 3, 4]
    alone = run(SMALL, model, images, labels, batch_size=1)
    assert torch.equal(alone.stage_forwards, forwards) and torch.equal(alone.broken_by, broken_by)
    for batch_size in (9, None):
        result = run(SMALL, model, images, labels, batch_size=batch_size)
        assert torch.equal(result.broken_by, broken_by)
        assert (result.stage_forwards.sum(dim=1) <= 1.05 * forwards.sum(dim=1)).all(), batch_size


def test_flags_are_those_of_the_points() -> None:
    for early_stop in (True, False):
        model, images, labels = setting()
        attack = AutoAttack(THREAT, steps=8, queries=40, targets=4, early_stop=early_stop)
        result = run(attack, model, images, labels)
        broken = result.broken_by >= 0
        assert torch.equal(model(result.adversarials).argmax(dim=1) != labels, broken)
        assert torch.equal(result.broken_at >= 0, broken)
        assert (result.broken_by[[4, 11]] == 0).all() and (result.broken_at[[4, 11]] == 0).all()
        assert torch.equal(result.adversarials[~broken], images[~broken])
        assert torch.equal(result.adversarials[[4, 11]], images[[4, 11]])
        assert (THREAT.distance(result.adversarials, images) <= THREAT.eps + 1e-9).all()
        assert result.adversarials.min() >= 0 and result.adversarials.max() <= 1


@pytest.mark.filterwarnings("ignore")  # the peer's own
@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.045), pytest.param("l2", 0.5, marks=pytest.mark.slow)])
def test_stands_as_in_the_authors_code(norm: Any, eps: float) -> None:
    peer = pytest.importorskip("pyautoattack", reason="pyautoattack is not installed")
    model, images = tiny_cnn(), random_images(30)
    labels = model(images).argmax(dim=1)
    theirs = peer.AutoAttack(model, norm="Linf" if norm == "linf" else "L2", eps=eps, seed=0, device="cpu")
    theirs.verbose = False
    theirs.fab.n_target_classes = theirs.apgd_targeted.n_target_classes = 4
    for member in (theirs.apgd, theirs.apgd_targeted, theirs.fab):
        member.n_iter = 25
    for member in (theirs.apgd, theirs.apgd_targeted):
        member.n_iter_orig, member.n_iter_2, member.n_iter_min, member.size_decr = 25, 5, 1, 1
    theirs.square.n_queries = 60
    counts = []
    with torch.random.fork_rng():
        for stages in (1, 2, 3, 4):
            theirs.attacks_to_run = ["apgd-ce", "apgd-t", "fab-t", "square"][:stages]
            points, _ = theirs.run_standard_evaluation(images, labels, batch_size=30)
            counts.append(int((model(points).argmax(dim=1) == labels).sum()))
    logging.getLogger("auto-attack").handlers.clear()
    for early_stop in (True, False):
        attack = AutoAttack(ThreatModel(norm, eps), steps=25, queries=60, early_stop=early_stop)
        result = run(attack, model, images, labels)
        mine = [int(((result.broken_by < 0) | (result.broken_by > stage)).sum()) for stage in (1, 2, 3, 4)]
        assert mine[-1] > 2 and mine[0] < 28
        assert all(ours <= theirs + 1 for ours, theirs in zip(mine, counts, strict=True)), (mine, counts)


@pytest.mark.parametrize("early_stop", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_batches_and_order_do_not_matter(early_stop: bool) -> None:
    model, images, labels = setting()
    attack = AutoAttack(THREAT, steps=8, queries=40, targets=4, early_stop=early_stop)
    first = run(attack, model, images, labels, batch_size=1)
    order = torch.randperm(COUNT, generator=torch.Generator().manual_seed(5))
    whole, back = slice(None), order.argsort()
    for batch_size, ids, place in ((7, whole, whole), (None, whole, whole), (None, order, back)):
        samples = torch.arange(COUNT)[ids].tolist()
        result = run(attack, model, images[ids], labels[ids], ids=samples, batch_size=batch_size)
        assert torch.equal(result.broken_by[place], first.broken_by)
        points = result.adversarials[place]
        same = (result.stage_forwards[:, place] == first.stage_forwards).all(dim=0)
        same &= result.broken_at[place] == first.broken_at
        # Runs of one sample go side by side only where places are left over, and never without early leaving.
        assert same.float().mean() > 0.7 if early_stop else same.all()
        torch.testing.assert_close(points[same], first.adversarials[same], rtol=0, atol=1e-9)


def test_without_early_leaving_the_last_wrong_point_of_the_first_stage_is_found() -> None:
    model, images, labels = setting()
    early, late = (
        run(AutoAttack(THREAT, steps=8, queries=40, targets=4, early_stop=stop), model, images, labels)
        for stop in (True, False)
    )
    first = early.broken_by == 1
    assert torch.equal(late.broken_by == 1, first) and first.any()
    for i in first.nonzero().flatten().tolist():
        points: list[Tensor] = []

        def watch(asked: Tensor, points: list[Tensor] = points) -> Tensor:
            points.append(asked.detach().clone())
            return model(asked)

        APGD(THREAT, 8, early_stop=False).run(watch, images[i : i + 1], labels[i : i + 1], rng=Draws([i]))
        wrong = [point for point in points[1:] if (model(point).argmax(dim=1) != labels[i]).all()]
        torch.testing.assert_close(late.adversarials[i], wrong[-1][0], rtol=0, atol=1e-9)
        torch.testing.assert_close(early.adversarials[i], wrong[0][0], rtol=0, atol=1e-9)


def test_a_judge_who_disagrees_lets_all_stand() -> None:
    """A model that is wrong everywhere, and a judge who is right everywhere: no break counts, all steps are made, and
    again at the judge, which Square alone asks.
    """
    model, images, _ = setting()
    labels = torch.full((COUNT,), 3)
    judged: list[int] = []

    def judge(points: Tensor) -> Tensor:
        judged.append(len(points))
        return torch.eye(5)[torch.full((len(points),), 3)] + 0 * points.mean((1, 2, 3))[:, None]

    assert not (model(images).argmax(dim=1) == 3).any()
    model.forwards.clear()
    wide = AutoAttack(THREAT, steps=6, queries=10, targets=2)
    result = run(wide, model, images, labels, judge=judge, batch_size=8)
    assert (result.broken_by == -1).all() and (result.broken_at == -1).all()
    assert torch.equal(result.adversarials, images)
    updates = 2 * torch.tensor([0, 6, 12, 12, 0])
    assert (result.stage_backwards == updates[:, None]).all()
    assert (result.steps == 2 * (6 + 2 * 6 + 2 * 6) + 10).all()
    asked = torch.tensor(model.count(COUNT))
    assert (asked == 1 + 7 + 2 * 7 + 2 * 7).all()
    assert sum(judged) == (result.forwards - asked).sum() and max(judged) <= 8
    # A question for every pass, except for points of FAB outside the ball, and the judge's own passes.
    assert (result.stage_forwards[[0, 1, 2, 4]] == torch.tensor([[2], [21], [42], [11]])).all()


def test_a_judge_who_agrees_changes_nothing_but_the_count() -> None:
    model, images, labels = setting()
    plain = run(SMALL, model, images, labels)
    judged = run(SMALL, model, images, labels, judge=Tagged(model.model))
    assert torch.equal(judged.adversarials, plain.adversarials) and torch.equal(judged.broken_by, plain.broken_by)
    square = plain.stages.index("square")
    asked = (plain.broken_by >= 0) & (plain.broken_by < square)  # one question, about the point that breaks
    assert (plain.broken_by == square).any()
    assert torch.equal(judged.forwards - plain.forwards, asked.long())


def doubtful_setting(started: bool = False) -> tuple[Tagged, Any, Tensor, Tensor]:
    """A judge, and a model without a slope that takes near samples for wrong: its search is blind, often doubted.

    started: it takes all for wrong from where a value fell at the random start, and no others.
    """
    judge, images, labels = setting()
    sure = Tagged(judge.model)

    def coarse(points: Tensor) -> Tensor:
        logits = sure(points)
        samples = torch.tensor(sure.forwards[-1])
        own = nn.functional.one_hot(labels[samples], 5)
        far = 9.0 * (points[:, 2, 3, 3] < images[samples, 2, 3, 3])[:, None] if started else 0.3
        return (logits - far * own).detach() + 0 * logits

    return judge, coarse, images, labels


def test_a_sample_about_which_the_judge_once_disagreed_falls_as_in_its_own_attack() -> None:
    judge, coarse, images, labels = doubtful_setting()
    attack = replace(SMALL, only="apgd-ce+apgd-t")
    alone = run(attack, judge, images, labels)
    result = run(attack, coarse, images, labels, judge=judge)
    doubted = (coarse(images).argmax(dim=1) != labels) & (judge(images).argmax(dim=1) == labels)
    fell = doubted & (alone.broken_by > 0)
    assert 1 < fell.sum() < COUNT and (doubted & (alone.broken_by < 0)).any() and (result.broken_by == -1).any()
    assert torch.equal(result.adversarials[doubted], alone.adversarials[doubted])
    assert torch.equal(result.broken_by[doubted], alone.broken_by[doubted])


def test_two_halves_under_a_judge_are_the_whole() -> None:
    judge, coarse, images, labels = doubtful_setting(started=True)
    told: list[tuple[str, int, float]] = []
    whole = run(SMALL, coarse, images, labels, judge=judge, tell=lambda *said: told.append(said))
    standing, shares = [standing for _, standing, _ in told], [share for stage, _, share in told if stage == "apgd-t"]
    assert standing == sorted(standing, reverse=True) and shares == sorted(shares)
    first = run(replace(SMALL, only="apgd-ce"), coarse, images, labels, judge=judge)
    stands = (first.broken_by < 0).nonzero().flatten()
    rest = replace(SMALL, only="apgd-t+fab-t+square")
    second = run(rest, coarse, images[stands], labels[stands], ids=stands.tolist(), judge=judge)
    assert torch.equal(whole.broken_by[stands] < 0, second.broken_by < 0)
    assert torch.equal(whole.adversarials[stands], second.adversarials)
    left = second.broken_by < 0  # the passes of others depend on how full their batch was
    assert 0 < left.sum() < len(left)
    assert torch.equal(whole.stage_backwards[2:, stands[left]], second.stage_backwards[1:, left])


def test_a_judge_without_a_gradient_still_judges() -> None:
    judge, coarse, images, labels = doubtful_setting()
    result = run(SMALL, coarse, images, labels, judge=lambda points: judge(points).detach())
    assert any("the judge has no gradient" in note for note in result.notes)
    assert (judge(result.adversarials).argmax(dim=1) != labels)[result.broken_by >= 0].all()
    assert (result.broken_by < 0).any()


def test_two_classes() -> None:
    net = tiny_cnn().double()

    def model(points: Tensor) -> Tensor:
        return net(points)[:, [1, 2]]

    images = random_images(10).double()
    result = run(AutoAttack(THREAT, steps=8, queries=20), model, images)
    assert result.notes == (
        "2 classes: DLR needs more classes, so the difference of logits is used as loss",
        "2 classes: 1 target instead of 9",
    )
    assert result.stages == STANDARD
    standing = result.broken_by < 0
    assert standing.any()
    assert (result.stage_forwards[:, standing] == torch.tensor([1, 9, 9, 9, 21])[:, None]).all()
    assert [attack.loss for attack in AutoAttack().stages(2)[:2]] == ["ce", "margin-targeted"]  # type: ignore[attr-defined]
    assert AutoAttack().stages(3)[1].loss == "margin-targeted" and AutoAttack().stages(4)[1].loss == "dlr-targeted"  # type: ignore[attr-defined]
    plus = run(AutoAttack(THREAT, "plus", steps=3, queries=5), model, images)
    assert plus.stages == ("clean", "apgd-ce", "apgd-margin", "fab", "square", "apgd-t", "fab-t")
    with pytest.raises(ValueError, match="the model has 1 class; an attack needs at least 2"):
        AutoAttack(THREAT)(lambda points: net(points)[:, :1], images)


@pytest.mark.slow
def test_one_sample_none_and_all_wrong() -> None:
    model, images, labels = setting()
    whole = run(SMALL, model, images, labels, batch_size=1)
    for i in (0, 4, int((whole.broken_by == 1).nonzero()[0])):
        one = run(SMALL, model, images[i : i + 1], labels[i : i + 1], ids=[i])
        assert one.broken_by.tolist() == [whole.broken_by[i].item()]
        if i == 4 or one.broken_by.item() in (-1, 1):  # else runs may go side by side, even of one sample
            torch.testing.assert_close(one.adversarials[0], whole.adversarials[i], rtol=0, atol=1e-9)
    model.forwards.clear()
    wrong = run(SMALL, model, images, (model.model(images).argmax(dim=1) + 1) % 5)
    assert len(model.forwards) == 1 and wrong.forwards.tolist() == [1] * COUNT
    assert (wrong.broken_by == 0).all() and torch.equal(wrong.adversarials, images)
    for still in (
        run(AutoAttack(ThreatModel("linf", 0.0)), model, images),
        run(AutoAttack(THREAT), model, images[:0], labels[:0]),
    ):
        assert len(model.forwards) == 1  # not asked
        assert still.stages == ("clean",) and still.forwards.sum() == 0 and (still.broken_by == -1).all()
        assert still.stage_forwards.shape == (1, len(still.adversarials))


def test_predicted_labels_are_those_of_the_clean_images() -> None:
    model, images, _ = setting()
    given = run(SMALL, model, images, model(images).argmax(dim=1))
    model.forwards.clear()
    predicted = run(SMALL, model, images)
    assert torch.equal(predicted.adversarials, given.adversarials) and torch.equal(predicted.forwards, given.forwards)
    assert model.count(COUNT) == predicted.forwards.tolist()


def test_stages_are_those_of_the_paper() -> None:
    square = Square(THREAT, 5000, rescale_schedule=False)
    ce, dlr, targeted = APGD(THREAT, 100), APGD(THREAT, 100, loss="dlr"), APGD(THREAT, 100, loss="dlr-targeted")
    assert AutoAttack(THREAT).stages(1000) == (ce, targeted, FAB(THREAT, 100), square)
    five, fab = {"restarts": 5}, FAB(THREAT, 100, targets=0, restarts=5)
    plus = (replace(ce, **five), replace(dlr, **five), fab, square, targeted, FAB(THREAT, 100))
    assert AutoAttack(THREAT, "plus").stages(10) == plus
    assert AutoAttack(THREAT, "rand").stages(10) == (replace(ce, eot=20), replace(dlr, eot=20))
    near = APGD(THREAT, 100, loss="dlr-targeted", targets=3, order="malt")
    assert AutoAttack(THREAT, "fast").stages(10) == (replace(near, loss="pma"), near, FAB(THREAT, 100), square)
    assert AutoAttack(THREAT, "fast", targets=2).stages(10)[1] == replace(near, targets=2)
    late = AutoAttack(THREAT, early_stop=False).stages(5)
    assert late[2] == FAB(THREAT, 100, targets=4, relinearise=True, early_stop=False)
    assert [member.early_stop for member in late] == [False, False, False, True]  # type: ignore[attr-defined]


def test_plus() -> None:
    model, images, labels = setting()
    attack = AutoAttack(THREAT, "plus", steps=4, targets=2, queries=10)
    result = run(attack, model, images, labels, batch_size=6)
    assert result.stages == ("clean", "apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t")
    standing = result.broken_by < 0
    assert 0 < standing.sum() < COUNT - 2
    runs = torch.tensor([1, 5 * 5, 5 * 5, 5 * 5, 11, 2 * 5, 2 * 5])
    assert (result.stage_forwards[:, standing] == runs[:, None]).all()
    # Untargeted FAB: five restarts, a backward for each of five classes a step.
    backwards = torch.tensor([0, 20, 20, 5 * 5 * 4, 0, 8, 8])
    assert (result.stage_backwards[:, standing] == backwards[:, None]).all()
    assert model.count(COUNT) == result.forwards.tolist()


def test_fast_asks_for_the_order_of_targets_once_and_its_halves_are_the_whole() -> None:
    model, images, labels = setting()
    attack = AutoAttack(THREAT, "fast", steps=4, queries=10)
    result = run(attack, model, images, labels, batch_size=6)
    assert result.stages == ("clean", "apgd-pma", "apgd-t", "fab-t", "square")
    assert model.count(COUNT) == result.forwards.tolist()
    assert model.count(COUNT, backwards=True) == result.backwards.tolist()
    standing = result.broken_by < 0
    assert 0 < standing.sum() < COUNT - 2
    # Of targeted APGD: three runs, and the order: a forward, and a backward for each of four classes.
    assert (result.stage_forwards[2, standing] == 3 * 5 + 1).all()
    assert (result.stage_backwards[2, standing] == 3 * 4 + 4).all()
    first = run(replace(attack, only="apgd-pma+apgd-t"), model, images, labels)
    left = first.broken_by < 0
    rest = run(
        replace(attack, only="fab-t+square"), model, images[left], labels[left], ids=left.nonzero().flatten().tolist()
    )
    assert torch.equal(standing[left], rest.broken_by < 0) and not standing[~left].any()


class Noisy(nn.Module):
    """A model with random logits, from a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.net = tiny_cnn()
        self.generator = torch.Generator().manual_seed(0)
        self.rows = 0

    def forward(self, images: Tensor) -> Tensor:
        self.rows += len(images)
        return self.net(images) + 0.02 * torch.randn(len(images), 5, generator=self.generator)


def test_rand_averages_twenty_passes() -> None:
    images = random_images(8)
    labels = tiny_cnn()(images).argmax(dim=1)
    model = Noisy()
    result = run(AutoAttack(THREAT, "rand", steps=5), model, images, labels)
    assert result.stages == ("clean", "apgd-ce", "apgd-dlr") and result.notes == ()
    assert model.rows == result.forwards.sum()
    standing = result.broken_by < 0
    assert 0 < standing.sum() < 8
    assert (result.stage_forwards[:, standing] == torch.tensor([1, 20 * 6, 20 * 6])[:, None]).all()
    assert (result.stage_backwards[:, standing] == torch.tensor([0, 20 * 5, 20 * 5])[:, None]).all()
    # Without noise it is APGD as ever.
    quiet = run(AutoAttack(THREAT, "rand", steps=5), tiny_cnn().double(), images.double(), labels)
    once = APGD(THREAT, 5).run(tiny_cnn().double(), images.double(), labels, rng=Draws(range(8)))
    assert torch.equal(quiet.broken_by == 1, once.broken_at >= 0)


def test_tells_how_far_it_is() -> None:
    model, images, labels = setting()
    heard: list[tuple[str, int, float]] = []
    result = run(SMALL, model, images, labels, batch_size=6, tell=lambda *said: heard.append(said))
    assert list(dict.fromkeys(stage for stage, _, _ in heard)) == list(STANDARD[1:])
    standing = [count for _, count, _ in heard]
    assert standing == sorted(standing, reverse=True)
    assert standing[0] == COUNT - 2 and standing[-1] == (result.broken_by < 0).sum()
    for number, name in enumerate(STANDARD[1:], 1):
        # Runs under way are not done: at first those samples are that have fallen before.
        if name == "apgd-ce":
            assert heard[1] == (name, standing[1], pytest.approx(1 - standing[1] / COUNT))
        shares = [share for stage, _, share in heard if stage == name]
        assert shares[0] == 0 and shares[-1] == 1 and shares == sorted(shares) and len(shares) > 3
        last = [count for stage, count, _ in heard if stage == name][-1]
        assert last == ((result.broken_by < 0) | (result.broken_by > number)).sum()


def test_parameters_take_no_gradient() -> None:
    net = tiny_cnn()
    heard: list[Tensor] = []
    for parameter in net.parameters():
        parameter.register_hook(heard.append)
    run(AutoAttack(THREAT, steps=3, targets=2, queries=4), net, random_images(6))
    assert not heard and all(p.grad is None and p.requires_grad for p in net.parameters())


def test_images_outside_the_bounds_are_cut_where_that_is_asked_for() -> None:
    images = random_images(10) * 1.1 - 0.05
    threat = ThreatModel("linf", 0.1, cut_images=True)
    with pytest.raises(ValueError, match="outside the bounds"):
        run(AutoAttack(ThreatModel("linf", 0.1)), tiny_cnn(), images)
    result = run(AutoAttack(threat, steps=6, queries=10), tiny_cnn(), images)
    broken = result.broken_by > 0
    assert broken.sum() > 3
    points = result.adversarials[broken]
    assert points.min() >= 0 and points.max() <= 1
    assert (tiny_cnn()(points).argmax(dim=1) != tiny_cnn()(images[broken]).argmax(dim=1)).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"version": "custom"}, "version is 'custom'; expected one of: standard, plus, rand, attention, fast"),
        ({"steps": 0}, "steps is 0; expected 1 or more"),
        ({"targets": 0}, "targets is 0; expected 1 or more"),
        ({"queries": 0}, "queries is 0; expected 1 or more"),
    ],
)
def test_rejects(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AutoAttack(**arguments)
