"""Several labels that count as right: losses by hand, bytes of single labels, brute force, plain loops, targets."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from attack_oracles import Draws, random_images, tiny_cnn
from evaluating import evaluate
from places import SHARED
from torch import Tensor, nn

import robustkit
from attacks import APGD, FAB, FGSM, LOSSES, PGD, SPSA, Attack, AutoAttack, Square, ThreatModel, dlr, dlr_targeted
from attacks.model_access import INTEGERS, check_labels, fill_label_sets, margin_targeted
from robustkit.data.dataset import open_dataset
from robustkit.data.images import to_pixels
from robustkit.data.layouts import Sample
from robustkit.errors import DataError
from robustkit.evaluations.attacks.evaluate import parse_condition
from robustkit.evaluations.subject import Batch, Settings
from robustkit.models.identity import Classifier
from robustkit.protocol.card import load_card
from robustkit.protocol.condition import CLEAN
from robustkit.tasks.labelled.subject import ClassifierSubject

pytestmark = pytest.mark.usefixtures("pageless")

THREAT = ThreatModel("linf", 4 / 255)
ATTACKS = [
    FGSM(THREAT),
    FGSM(ThreatModel("l2", 0.3), loss="dlr"),
    PGD(THREAT, steps=3),
    PGD(THREAT, steps=3, restarts=2, early_stop=True, loss="dlr"),
    SPSA(THREAT, steps=2, directions=4),
    SPSA(THREAT, steps=2, directions=4, loss="ce"),
    APGD(THREAT, steps=8),
    APGD(ThreatModel("l2", 0.3), steps=8, loss="dlr-targeted", early_stop=False),
    FAB(THREAT, steps=5),
    FAB(THREAT, steps=3, targets=0, relinearise=True),
    Square(THREAT, queries=20),
    AutoAttack(THREAT, steps=5, queries=20),
    pytest.param(AutoAttack(THREAT, steps=3, queries=20, version="plus"), marks=pytest.mark.slow),
    AutoAttack(THREAT, steps=3, version="rand"),
]
LOGITS = torch.tensor([[4.0, 1.0, 3.0, 0.0, 2.5]] * 3)
SETS = torch.tensor([[0, 2, 2], [3, 1, 4], [2, 2, 2]])  # the two on top; three in the middle; one alone


def test_losses_by_hand() -> None:
    weights = [math.exp(value) for value in LOGITS[0].tolist()]
    expected = [math.log(sum(weights) / sum(weights[place] for place in own)) for own in ((0, 2), (1, 3, 4), (2,))]
    assert LOSSES["ce"](LOGITS, SETS).tolist() == pytest.approx(expected)
    assert LOSSES["margin"](LOGITS, SETS).tolist() == [2.5 - 4, 4 - 2.5, 4 - 3]
    # Of what competes: 4, 2.5, 1, 0; then 4, 3, 2.5 and no fourth; then all five.
    assert dlr(LOGITS, SETS).tolist() == pytest.approx([-1.5 / 3, 1.5 / 1.5, 1 / 1.5])
    targets = torch.tensor([1, 2, 0])
    assert margin_targeted(LOGITS, SETS, targets).tolist() == [1 - 4, 3 - 2.5, 4 - 3]
    expected = [-3 / (4 - 0.5), 0.5, 1 / (4 - (2.5 + 1) / 2)]  # the second has three classes left: the plain margin
    assert dlr_targeted(LOGITS, SETS, targets).tolist() == pytest.approx(expected)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: type(attack).__name__)
def test_one_hot_rows_are_refused(attack: Attack) -> None:
    labels, images = torch.tensor([3, 0, 4, 2]), random_images(4)
    rows = nn.functional.one_hot(labels, 5)
    for dtype in INTEGERS:
        with pytest.raises(ValueError, match=r"look one-hot: each of the 4 rows .*labels.argmax\(dim=1\)"):
            attack(tiny_cnn(), images, rows.to(dtype))
    several = rows | nn.functional.one_hot(labels.flip(0), 5)
    for odd in (several, 2 * rows - 1, nn.functional.one_hot(labels % 2, 5)):  # seen once the model has answered
        with pytest.raises(ValueError, match="look one-hot: "):
            attack(tiny_cnn(), images, odd)
    for soft in (rows.bool(), rows * 0.9 + 0.02):
        with pytest.raises(TypeError, match=r"for one-hot rows or probabilities: labels.argmax\(dim=1\)"):
            attack(tiny_cnn(), images, soft)
    check_labels(nn.functional.one_hot(labels, 5) * 2, 4)  # 0 and 2: sets


def test_sets_that_could_be_mistaken_stay_legal() -> None:
    for sets in (
        [[0, 1], [1, 0]],
        [[0, 1, 0], [0, 0, 0]],
        [[1, -1, -1], [0, 1, -1]],
        [[0, 0, 0, 0, 0]] * 2,
        [[1] * 5] * 2,
    ):
        PGD(THREAT, steps=1)(tiny_cnn(), random_images(2), torch.tensor(sets))
    with pytest.raises(ValueError, match="rows of 2, as many as the model has classes, of 0 and 1"):
        PGD(THREAT, steps=1)(tiny_cnn(2), random_images(2), torch.tensor([[0, 1], [1, 0]]))


def test_all_classes_valid_leave_nothing_to_gain() -> None:
    logits = LOGITS[:1].clone().requires_grad_()
    everything = torch.arange(5)[None]
    assert LOSSES["ce"](logits, everything).item() == pytest.approx(0, abs=1e-6)
    assert LOSSES["margin"](logits, everything).item() == dlr(logits, everything).item() == -math.inf
    found = AutoAttack(ThreatModel("linf", 0.5), steps=3, queries=5).run(
        tiny_cnn(), random_images(3), everything.expand(3, -1)
    )
    assert (found.broken_at == -1).all() and torch.equal(found.adversarials, random_images(3))
    assert FAB(steps=3).run(tiny_cnn(), random_images(3), everything.expand(3, -1)).forwards.tolist() == [1] * 3


@pytest.mark.parametrize("name", LOSSES)
def test_two_valid_labels_on_top_do_not_flatten_a_loss(name: str) -> None:
    logits = LOGITS[:1].clone().requires_grad_()
    LOSSES[name](logits, torch.tensor([[0, 2]])).sum().backward()
    assert logits.grad is not None
    assert logits.grad[0, 0] < 0 < logits.grad[0, 4] and logits.grad[0, 2] <= 0


def _equal(first: Any, second: Any, rows: slice) -> None:
    for name in ("adversarials", "steps", "forwards", "backwards", "broken_at"):
        assert torch.equal(getattr(first, name)[rows], getattr(second, name)[rows]), name


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: f"{type(attack).__name__}-{attack.threat.norm}")
def test_a_set_of_one_label_is_that_label_to_the_bit(attack: Attack) -> None:
    model, images = tiny_cnn(12), random_images(8)
    labels = model(images).argmax(dim=1)
    labels[3] = (labels[3] + 1) % 12
    plain = attack.run(model, images, labels, rng=Draws(range(8)), batch_size=3)
    single = torch.stack([labels, torch.full_like(labels, -1), labels], dim=1)
    _equal(attack.run(model, images, single, rng=Draws(range(8)), batch_size=3), plain, slice(8))
    # In a batch with a real set, too: the ninth sample is wrong from the start, so that it takes no place in a queue.
    worst = model(images[:1]).topk(2, largest=False).indices[0]
    nine = images[[*range(8), 0]]
    more = torch.cat([single, torch.cat([worst, worst[:1]])[None]])
    mixed = attack.run(model, nine, more, rng=Draws(range(9)), batch_size=3)
    plain = attack.run(model, nine, torch.cat([labels, worst[:1]]), rng=Draws(range(9)), batch_size=3)
    _equal(mixed, plain, slice(8))


def test_which_classes_a_set_holds_does_not_depend_on_how_it_is_written() -> None:
    model, images = tiny_cnn(12), random_images(6)
    first, _, third = model(images).topk(3).indices.unbind(1)
    none = torch.full_like(first, -1)
    for attack in (ATTACKS[2], ATTACKS[5], *ATTACKS[7:11]):
        found = [
            attack.run(model, images, torch.stack(written, dim=1).to(torch.int16), rng=Draws(range(6)), batch_size=4)
            for written in ((first, third), (third, first), (none, third, first, first), (third, none, none, first))
        ]
        for other in found[1:]:
            _equal(other, found[0], slice(6))
    assert fill_label_sets(torch.tensor([[-1, 4, 2]], dtype=torch.int8), images.device).tolist() == [[4, 4, 2]]


def grid_truth(weights: Tensor, bias: Tensor, centre: Tensor, eps: float, valid: set[int]) -> bool:
    """Whether some point of the box around `centre`, cut to [0, 1], is predicted as none of the valid classes."""
    steps = torch.linspace(-eps, eps, 241, dtype=torch.float64)
    points = (centre + torch.cartesian_prod(steps, steps)).clamp(0, 1)
    predicted = (points @ weights.T + bias).argmax(dim=1)
    return any(int(one) not in valid for one in predicted.unique())


def test_autoattack_on_sets_breaks_what_can_be_broken() -> None:
    """Linear models of two pixels, against all points of a fine grid; leading away from the first label does not."""
    generator = torch.Generator().manual_seed(3)
    threat, count, stand, kept_by_first = ThreatModel("linf", 0.2), 20, 0, 0
    for classes in (5, 8):
        net = nn.Sequential(nn.Flatten(), nn.Linear(2, classes).double())
        weights = 4 * torch.randn(classes, 2, generator=generator, dtype=torch.float64)
        bias = torch.randn(classes, generator=generator, dtype=torch.float64) / 2 - weights.sum(dim=1) / 2
        net[1].weight.data, net[1].bias.data = weights, bias  # boundaries meet about the middle
        points = torch.rand(count, 2, generator=generator, dtype=torch.float64)
        ranked = net(points).argsort(dim=1, descending=True)
        size = torch.randint(1, classes - 1, (count,), generator=generator)
        sets, images = torch.where(torch.arange(classes) < size[:, None], ranked, -1), points.reshape(-1, 1, 1, 2)
        attack = AutoAttack(threat, steps=20, queries=40)
        found = attack.run(net, images, sets, rng=Draws(range(count)))
        first = net(APGD(threat)(net, images, ranked[:, 0], rng=Draws(range(count)))).argmax(dim=1).tolist()
        for row in range(count):
            valid = set(sets[row].tolist()) - {-1}
            sure, at_all = (grid_truth(weights, bias, points[row], threat.eps * part, valid) for part in (0.97, 1.03))
            if sure == at_all:  # not on the edge
                assert bool(found.broken_at[row] >= 0) == sure, (classes, row)
                stand += not sure
                kept_by_first += sure and first[row] in valid
        wrong = ~(net(found.adversarials).argmax(dim=1)[:, None] == sets).any(dim=1)
        assert torch.equal(wrong, found.broken_at >= 0)
    assert 5 < stand < 35 and kept_by_first > 3, (stand, kept_by_first)


def test_targets_are_the_classes_outside_the_set() -> None:
    """A radius too small to break anything: each run goes to its end, so the passes tell how many runs there were."""
    model, images = tiny_cnn(12).double(), random_images(4).double()
    ranked = model(images).argsort(dim=1, descending=True)
    sets = torch.where(torch.arange(12) < torch.tensor([[1], [2], [5], [11]]), ranked, -1)
    threat = ThreatModel("linf", 1e-9)
    for attack in (APGD(threat, steps=4, loss="dlr-targeted"), FAB(threat, steps=4)):
        result = attack.run(model, images, sets, rng=Draws(range(4)), batch_size=3)
        assert result.forwards.tolist() == [1 + 5 * targets for targets in (9, 9, 7, 1)]
        assert result.notes == ("samples with many valid labels: all other classes as targets, fewer than 9",)
    staged = AutoAttack(threat, steps=2, queries=3).run(model, images, sets, rng=Draws(range(4)))
    assert staged.notes[0] == "samples for which fewer than 4 classes compete: the difference of logits in place of DLR"
    assert AutoAttack(threat, steps=2, queries=3).run(model, images[:2], sets[:2], rng=Draws(range(2))).notes == ()


@pytest.mark.parametrize(
    ("labels", "error", "message"),
    [
        (
            torch.tensor([[0, 1], [2, -2]]),
            ValueError,
            "labels go down to -2; .* 0 or more, and -1 where a set has fewer",
        ),
        (
            torch.tensor([[0, 1], [-1, -1]]),
            ValueError,
            "the set of labels of image 1 is empty; expected at least one class",
        ),
        (
            torch.zeros(2, 0, dtype=torch.int64),
            ValueError,
            r"labels have shape \(2, 0\) for 2 images; expected \(2,\), or",
        ),
        (torch.zeros(2, 1, 1, dtype=torch.int64), ValueError, r"labels have shape \(2, 1, 1\) for 2 images"),
        (torch.tensor([[0, 1], [5, -1]]), ValueError, r"labels go up to 5, the model has 5 classes \(0 to 4\)"),
        (torch.tensor([[True, False], [True, True]]), TypeError, "labels are torch.bool; expected a tensor of integer"),
    ],
)
def test_odd_sets_are_named(labels: Tensor, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        PGD()(tiny_cnn(), random_images(2), labels)


@pytest.mark.parametrize("engine", ["pyautoattack", "torchattacks"])
def test_peers_refuse_sets(engine: str) -> None:
    pytest.importorskip(engine, reason=f"{engine} is not installed")
    from robustkit.slices.engines import peer

    with pytest.raises(ValueError, match=f"{engine} leads away from one label; for several .* use --engine robustkit"):
        peer(engine, "apgd", THREAT, {}).run(tiny_cnn(), random_images(2), torch.tensor([[0, 1], [2, 3]]))


# --- through the toolkit ---------------------------------------------------------------------------------------------


def pgd_on_sets(model: nn.Module, images: Tensor, sets: list[list[int]], eps: float, steps: int = 20) -> list[bool]:
    """Plain PGD in steps of 0.15 eps from the images, away from all valid labels; which still stand."""
    points = images.clone()
    for _ in range(steps):
        points.requires_grad_()
        logits = model(points)
        loss = torch.zeros(())
        for row, valid in zip(logits, sets, strict=True):
            loss = loss + row.exp().sum().log() - sum(row[place].exp() for place in valid).log()
        (gradient,) = torch.autograd.grad(loss, points)
        points = (points.detach() + 0.15 * eps * gradient.sign()).clamp(images - eps, images + eps).clamp(0, 1)
    with torch.no_grad():
        return [best in valid for best, valid in zip(model(points).argmax(dim=1).tolist(), sets, strict=True)]


def with_sets(classifier: Classifier, images: Tensor, ids: list[str], labels: list[int], seed: int) -> list[Sample]:
    """Sets of one to three: the label and, drawn for each, one or two of the model's five likeliest."""
    draw = np.random.Generator(np.random.PCG64(seed))
    with torch.no_grad():
        top = torch.cat([classifier(part) for part in images.split(16)]).topk(5).indices.tolist()
    found = []
    for place, label, best in zip(ids, labels, top, strict=True):
        extra = draw.choice([one for one in best if one != label], size=draw.integers(0, 3), replace=False)
        found.append(Sample(place, label, tuple(int(one) for one in (label, *extra))))
    return found


@pytest.mark.slow
def test_accuracy_under_attack_is_that_of_a_plain_loop_sample_by_sample() -> None:
    classifier, card = robustkit.load("zoo:shapes-vit-standard").requires_grad_(False), load_card("standard")
    dataset = open_dataset("embedded:shapes").select(limit=24, ids=None, seed=0)
    pixels = torch.stack([to_pixels(dataset.image(s), classifier.identity.preprocessing) for s in dataset.samples])
    images, ids = pixels.float() / 255, [sample.id for sample in dataset.samples]
    samples = with_sets(classifier, images, ids, [sample.label for sample in dataset.samples], seed=1)
    sets = [list(sample.valid or ()) for sample in samples]
    expected = pgd_on_sets(classifier, images, sets, 4 / 255)
    subject = ClassifierSubject(classifier, card, Settings(batch_size=16), None)
    condition = parse_condition("pgd(eps=4/255,random_start=false)", card)
    assert (
        evaluate(subject, Batch(pixels, samples), condition).columns["correct"] == expected and 3 < sum(expected) < 21
    )
    # Away from the first label alone, more would seem to stand.
    naive = evaluate(subject, Batch(pixels, [replace(s, valid=None) for s in samples]), condition).columns["prediction"]
    assert sum(said in valid for said, valid in zip(naive, sets, strict=True)) > sum(expected)
    condition = parse_condition("autoattack(eps=4/255,steps=20,queries=5,targets=2)", card)
    auto = evaluate(subject, Batch(pixels[:10], samples[:10]), condition).columns
    assert set(auto["broken_by"]) >= {None, "apgd-ce"} and 0 < sum(auto["correct"]) <= sum(expected[:10])
    with torch.no_grad():
        chance = classifier(images[:10]).softmax(dim=1).tolist()
    nll = [-math.log(sum(row[place] for place in valid)) for row, valid in zip(chance, sets, strict=False)]
    assert evaluate(subject, Batch(pixels[:10], samples[:10]), CLEAN).columns["nll"] == pytest.approx(nll, abs=1e-4)


def test_which_attacks_are_refused_where_several_labels_are_right(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from robustkit.pipeline.classification import check_one_label

    # the refusal comes before the engine runs, so the peer need not be installed
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())

    card, paper = load_card("standard"), load_card("quest-paper")
    dataset = open_dataset(place / "images", num_classes=3)
    several, same = (
        replace(dataset, samples=tuple(replace(s, valid=v) for s in dataset.samples)) for v in ((0, 1), (1, 1))
    )
    peer = parse_condition("pgd(engine=torchattacks)", card)
    stopping = parse_condition("pgd(early_stop=true)", paper)
    for one in (dataset, same):
        check_one_label(one, [peer], card)
        check_one_label(one, [stopping], paper)
    check_one_label(several, [parse_condition("autoattack", card), parse_condition("pgd", card), CLEAN], card)
    check_one_label(several, [parse_condition("pgd", paper)], paper)
    with pytest.raises(
        DataError,
        match=r"pgd\(.*torchattacks moves away from a single label, but several count as "
        r"correct",
    ):
        check_one_label(several, [CLEAN, peer], card)
    with pytest.raises(DataError, match=r"pgd\(.*stops at the first changed prediction, but several"):
        check_one_label(several, [stopping], paper)


VIT = SHARED / "weights" / "vit_tiny_patch16_224.augreg_in21k_ft_in1k.safetensors"
VAL = SHARED / "data" / "imagenet-val" / "val"


@pytest.mark.shared
@pytest.mark.slow
@pytest.mark.skipif(not SHARED.is_dir(), reason="needs the real data and weights of ../shared")
def test_real_images_with_reals_lists_of_labels(tmp_path: Path) -> None:
    """An audit with a JSON of valid labels, compared with a plain loop on timm's model, on 60 images of ImageNet."""
    paths = sorted(VAL.glob("*/*.JPEG"), key=lambda path: path.name)[:60]
    ids = [str(path.relative_to(VAL)) for path in paths]
    classifier = robustkit.load(VIT).requires_grad_(False)
    wnids = [line.split()[0] for line in (SHARED / "data/imagenet-val/synsets.txt").read_text().splitlines()]
    dataset = open_dataset(VAL, num_classes=1000)
    by_id = {sample.id: sample for sample in dataset.samples}
    pixels = torch.stack([to_pixels(dataset.image(by_id[one]), classifier.identity.preprocessing) for one in ids])
    images = pixels.float() / 255
    samples = with_sets(classifier, images, ids, [wnids.index(one.split("/")[0]) for one in ids], seed=2)
    lists: list[list[int]] = [[] for _ in range(max(int(path.stem[-8:]) for path in paths))]
    for path, sample in zip(paths, samples, strict=True):
        lists[int(path.stem[-8:]) - 1] = list(sample.valid or ())
    (tmp_path / "real.json").write_text(json.dumps(lists))
    text = "pgd(eps=0.25/255,steps=8,random_start=false)"
    # Only the 60 in a folder of their own: the others have no entry in the JSON.
    for one in ids:
        (tmp_path / "val" / one).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(VAL / one, tmp_path / "val" / one)
    options = {"attacks": text, "data": {"real_labels": tmp_path / "real.json"}, "batch_size": 16, "device": "cpu"}
    run = robustkit.audit([VIT], data_dir=tmp_path / "val", out=tmp_path / "run", **options)
    rows = run.table(run.manifest.checkpoints[0].name, text).to_pylist()
    expected: dict[str, bool] = {}
    for part in (slice(start, start + 15) for start in range(0, 60, 15)):
        sets = [list(sample.valid or ()) for sample in samples[part]]
        expected |= zip(ids[part], pgd_on_sets(classifier, images[part], sets, 0.25 / 255, steps=8), strict=True)
    assert {row["sample_id"]: row["correct"] for row in rows} == expected and 10 < sum(expected.values()) < 50
