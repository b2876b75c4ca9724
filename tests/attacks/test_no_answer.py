"""Logits that are not numbers: a sample whose model gives them is broken there, in every attack and in the records."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
import torch
from attack_oracles import Draws, random_images, tiny_cnn
from evaluating import evaluate
from torch import Tensor, nn

import robustkit
from attacks import APGD, FAB, FGSM, PGD, SPSA, Attack, AutoAttack, DensePGD, Square, StagedResult, ThreatModel
from attacks.model_access import OFF, is_missed, with_all_classes
from robustkit.data.layouts import Sample
from robustkit.evaluations.attacks.evaluate import parse_condition
from robustkit.evaluations.subject import Batch, Settings
from robustkit.models.identity import Classifier
from robustkit.protocol.card import load_card
from robustkit.protocol.condition import CLEAN
from robustkit.tasks.labelled.subject import ClassifierSubject

THREAT = ThreatModel("linf", 3.5 / 255)  # not a whole number of levels
ATTACKS: list[Attack] = [
    FGSM(THREAT),
    PGD(THREAT, steps=3),
    PGD(THREAT, steps=3, random_start=False, loss="margin"),
    PGD(ThreatModel("l2", 0.2), steps=3, restarts=2),
    PGD(THREAT, steps=3, restarts=2, early_stop=True),
    SPSA(THREAT, steps=2, directions=4),
    APGD(THREAT, steps=3),
    APGD(ThreatModel("l2", 0.2), steps=3, loss="dlr-targeted", targets=2, early_stop=False),
    FAB(THREAT, steps=20, targets=2),
    FAB(ThreatModel("l2", 0.2), steps=20, targets=0, early_stop=False),
    Square(THREAT, queries=5),
    Square(ThreatModel("l2", 0.2), queries=5, early_stop=False),
    AutoAttack(THREAT, steps=3, targets=2, queries=5),
    AutoAttack(THREAT, steps=3, version="rand"),
]
every_attack = pytest.mark.parametrize(
    "attack", ATTACKS, ids=lambda attack: f"{type(attack).__name__}-{attack.threat.norm}"
)


def on_grid(points: Tensor) -> Tensor:
    """(B, 1) whether all values are those of 8-bit pixels."""
    levels = points.detach() * 255
    return ((levels - levels.round()).abs() < 1e-3).flatten(1).all(dim=1, keepdim=True)


class OffGrid(nn.Module):
    """A network that leaves its logits alone on 8-bit pictures, and adds `poison` to its own class elsewhere."""

    def __init__(self, network: nn.Module, poison: float) -> None:
        super().__init__()
        self.network, self.poison = network, poison

    def forward(self, points: Tensor) -> Tensor:
        logits = self.network(points)
        own = torch.zeros_like(logits).scatter_(1, logits.argmax(dim=1, keepdim=True), self.poison)
        return torch.where(on_grid(points), logits, logits + own)


@every_attack
@pytest.mark.parametrize("poison", [math.inf, math.nan])
def test_a_model_that_gives_no_numbers_off_the_grid_does_not_stand(attack: Attack, poison: float) -> None:
    model, images = OffGrid(tiny_cnn(), poison), (random_images(6) * 255).round() / 255
    labels = model(images).argmax(dim=1)
    result = attack.run(model, images, labels, rng=Draws(range(6)))
    assert (attack.threat.distance(result.adversarials, images) <= attack.threat.eps + 1e-6).all()
    assert is_missed(with_all_classes(model(result.adversarials)), labels).all()
    if not isinstance(attack, SPSA | FGSM):  # these see no attacked point
        assert (result.broken_at >= 0).all()
    if isinstance(result, StagedResult):
        assert set(result.broken_by.tolist()) == {1}


@every_attack
def test_a_class_that_is_switched_off_is_an_answer(attack: Attack) -> None:
    """A logit of -inf next to finite ones ranks last; a single finite one among them ranks nothing."""
    network, images, labels = tiny_cnn(), random_images(6), torch.arange(6) % 5

    def off(points: Tensor, by: float) -> Tensor:
        logits = network(points)
        last = torch.full_like(logits[:, :1], -math.inf) if math.isinf(by) else logits.amin(dim=1, keepdim=True) - by
        return torch.cat([logits, last.detach()], dim=1)

    found, like = (attack.run(partial(off, by=by), images, labels, rng=Draws(range(6))) for by in (math.inf, OFF))
    assert torch.equal(found.adversarials, like.adversarials) and torch.equal(found.broken_at, like.broken_at)
    none = attack.run(lambda x: network(x).masked_fill(torch.arange(5) > 0, -math.inf), images, labels)
    assert (none.broken_at == 0).all() or isinstance(attack, SPSA | FGSM | PGD)


def test_clean_images_without_an_answer_are_wrong_from_the_start() -> None:
    def model(points: Tensor) -> Tensor:
        logits = network(points)
        return torch.where(points[:, :1, 0, 0] == images[1, 0, 0, 0], logits.cumsum(dim=1) * math.inf, logits)

    network, images = tiny_cnn(), random_images(4) / 2 + 0.25
    labels = network(images).argmax(dim=1)
    for attack in ATTACKS:
        if isinstance(attack, SPSA) or getattr(attack, "random_start", False):
            continue  # these never ask about the image
        for given in (labels, None):
            result = attack.run(model, images, given, rng=Draws(range(4)))
            assert result.broken_at[1] == 0 and torch.equal(result.adversarials[1], images[1]), attack


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_pgd_stays_where_there_is_no_answer(norm: Any) -> None:
    """Gradients are sound there, so that it could walk on, to where the model says its class again."""
    network, images = tiny_cnn().double(), random_images(6).double() / 2 + 0.25
    labels, heard, step = network(images).argmax(dim=1), list[Tensor](), 0.003
    wide = 1.5 * step * (math.sqrt(192) if norm == "linf" else 1)

    def model(points: Tensor) -> Tensor:
        heard.append(points.detach().clone())
        logits, away = network(points), (points - images).detach().flatten(1).norm(dim=1, keepdim=True)
        own = torch.zeros_like(logits).scatter_(1, labels[:, None], math.inf)
        return logits + torch.where((away > 0) & (away < wide), own, 0.0)

    attack = PGD(ThreatModel(norm, 0.02), steps=6, step_size=step, random_start=False, loss="margin")
    result = attack.run(model, images, labels)
    assert torch.equal(result.adversarials, heard[1]) and not torch.equal(heard[1], images)
    assert result.broken_at.tolist() == [1] * 6 and result.forwards.tolist() == [6] * 6
    assert result.steps.tolist() == result.backwards.tolist() == [6] * 6


def test_pixels_without_an_answer_do_not_shield_the_others() -> None:
    def model(points: Tensor) -> Tensor:
        logits = network(points)
        lost = torch.zeros_like(logits, dtype=torch.bool)
        lost[:, 1, 2, 3] = True
        return torch.where(lost, math.inf, logits)

    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = nn.Conv2d(3, 4, 3, padding=1)
    images = torch.rand(3, 3, 4, 5, generator=torch.Generator().manual_seed(1))
    masks = torch.randint(0, 4, (3, 4, 5), generator=torch.Generator().manual_seed(2))
    ignored = masks.clone()
    ignored[:, 2, 3] = -1
    for weighting in ("uniform", "segpgd", "cospgd"):
        attack = DensePGD(THREAT, steps=5, weighting=weighting)  # type: ignore[arg-type]
        found = attack(model, images, masks, rng=Draws(range(3)))
        assert torch.equal(found, attack(network, images, ignored, rng=Draws(range(3))))


# --- the records -----------------------------------------------------------------------------------------------------


def cheating(poison: float) -> Classifier:
    classifier = robustkit.load("zoo:shapes-vit-standard")
    classifier.network = _Shifted(classifier.network, classifier, poison)
    return classifier


class _Shifted(OffGrid):
    """`OffGrid` behind the normalisation."""

    def __init__(self, network: nn.Module, classifier: Classifier, poison: float) -> None:
        super().__init__(network, poison)
        self.mean, self.std = classifier.mean, classifier.std

    def forward(self, points: Tensor) -> Tensor:
        logits = self.network(points)
        own = torch.zeros_like(logits).scatter_(1, logits.argmax(dim=1, keepdim=True), self.poison)
        return torch.where(on_grid(points * self.std + self.mean), logits, logits + own)


@pytest.mark.parametrize("poison", [math.inf, math.nan])
def test_records_count_what_is_no_number_as_wrong(poison: float) -> None:
    from robustkit.data.dataset import open_dataset
    from robustkit.data.images import to_pixels

    classifier, card = cheating(poison), load_card("standard")
    dataset = open_dataset("embedded:shapes").select(limit=6, ids=None, seed=0)
    pixels = torch.stack([to_pixels(dataset.image(s), classifier.identity.preprocessing) for s in dataset.samples])
    subject = ClassifierSubject(classifier, card, Settings(), None)
    samples = list(dataset.samples)
    assert sum(evaluate(subject, Batch(pixels, samples), CLEAN).columns["correct"]) >= 4
    for text in (
        "autoattack(eps=1.5/255,steps=2,targets=2,queries=5)",
        "autoattack(eps=1.5/255,version=rand,steps=2)",
        "pgd(eps=1.5/255,steps=2)",
        "fgsm(eps=1.5/255)",
    ):
        rows = evaluate(subject, Batch(pixels, samples), parse_condition(text, card)).columns
        assert rows["correct"] == [False] * 6 and None not in rows["broken_by"]
        lost = [said == -1 for said in rows["prediction"]]
        assert lost == [math.isnan(value) for value in rows["nll"]] and sum(lost) >= 4
    logits = torch.tensor([[0.0, 2.0, 1.0], [poison, 1.0, 0.0], [0.0, 1.0, -math.inf]])
    for label, right in ((1, [True, False, True]), (-1, [None] * 3)):
        rows = subject.score(logits, Batch(pixels[:3], [Sample(str(place), label) for place in range(3)]))
        assert rows["prediction"] == [1, -1, 1] and rows["correct"] == rows["top5"] == right
