"""Rows of attacks: gradients and queries next to torchattacks, foolbox and pyautoattack, on images that stand."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from attacks import DDN, FAB, FGSM, FMN, PGD, SPSA, Attack, AutoAttack, Square, ThreatModel
from attacks.threat import distance
from robustkit.evaluations.subject import ScoringModel
from robustkit.protocol.card import load_card
from robustkit.slices.engines import make_perturb, peer

from .race import Agree, Row, Shown, Sides, Subject, passes, same, uncompared

SHARE = 0.15  # of eps, a step of PGD
SPSA_STEPS, QUERIES, FAB_STEPS, FAB_TARGETS, UPDATES = 2, 150, 20, 2, 50
BATCH = 64  # rows of a pass of AutoAttack, for both
SAME_IMAGES = 1e-6


class Bout(Shown):
    """A model with images that it classifies right; ours and theirs lead away from the classes."""

    def first(self, count: int) -> Bout:
        return Bout(self.model, self.images[:count], self.classes[:count])

    def against(self, ours: Attack, theirs: Any, agree: Agree) -> Sides:
        """Return both sides. theirs: from images and classes to adversarials."""
        return self.sides(partial(ours, self.model), theirs, agree)

    def standing(self, ours: Tensor, theirs: Tensor) -> tuple[bool, str]:
        """Compare which images both leave standing."""
        with torch.inference_mode():
            stand = [self.model(points).argmax(dim=1) == self.classes for points in (ours, theirs)]
        left, differ = [int(each.sum()) for each in stand], int((stand[0] != stand[1]).sum())
        if differ:
            return False, f"{left[0]} of {len(self.classes)} stand, theirs {left[1]}; {differ} differ"
        return True, f"the same {left[0]} of {len(self.classes)} stand"

    def distances(self, norm: Any, ours: Tensor, theirs: Tensor) -> tuple[bool, str]:
        """Compare the median distances of what both found: equal within two in a hundred."""
        medians = [float(distance(norm, points, self.images).median()) for points in (ours, theirs)]
        close = abs(medians[0] - medians[1]) <= 0.02 * max(medians)
        return close, f"median distances {medians[0]:.4g} and {medians[1]:.4g}"


def rows(
    subject: Subject, eps: float, large_eps: float, survivors: int, dtype: torch.dtype = torch.float32
) -> Iterator[Row]:
    """Yield the rows. survivors: images of the AutoAttack that is run to its end. dtype: of its search."""
    bout, threat = Bout(subject.model, *subject.right), ThreatModel("linf", eps)
    named = f"linf {255 * eps:g}/255"
    for steps in (1, 10, 20):
        ours: Attack = FGSM(threat) if steps == 1 else PGD(threat, steps=steps, random_start=False)
        what = f"{'FGSM' if steps == 1 else f'PGD, {steps} steps'}, {named}"
        yield Row(what, "torchattacks", partial(_torchattacks, bout, ours, steps, eps))
        yield Row(what, "foolbox", partial(_foolbox, bout, ours, steps, eps))
        if steps == 20:
            yield Row(what, "bare passes", partial(_bare, bout, ours, steps))
    spsa = f"SPSA, {SPSA_STEPS} steps of 256 queries, {named}"
    yield Row(spsa, "torchattacks", partial(_spsa, bout.first(2), threat))
    yield Row(f"FMN, {UPDATES} updates, linf", "foolbox", partial(_minimal, bout, "linf", FMN))
    yield Row(f"DDN, {UPDATES} updates, l2", "foolbox", partial(_minimal, bout, "l2", DDN))
    square = Square(threat, QUERIES)
    yield Row(f"Square, {QUERIES} queries, {named}", "pyautoattack", partial(_member, bout, "square", square))
    fab = FAB(threat, FAB_STEPS, FAB_TARGETS)
    what = f"FAB, {FAB_TARGETS} targets of {FAB_STEPS} steps, {named}"
    yield Row(what, "pyautoattack", partial(_member, bout, "fab", fab))
    search = "" if dtype is torch.float32 else f", search in {str(dtype).removeprefix('torch.')}"
    for few, radius in ((bout.first(survivors), eps), (bout, large_eps)):
        what = f"AutoAttack, standard{search}, linf {255 * radius:g}/255, {len(few.images)} images"
        if radius == eps:  # where images stand; where all fall at once there is hardly a pass
            yield Row(what, "bare passes", partial(_bound, few, radius, dtype, subject))
        yield Row(what, "pyautoattack", partial(_autoattack, few, radius, dtype, subject))


def _torchattacks(bout: Bout, ours: Attack, steps: int, eps: float) -> Sides:
    package: Any = import_module("torchattacks")
    theirs = package.FGSM(bout.model, eps)
    if steps > 1:
        theirs = package.PGD(bout.model, eps, SHARE * eps, steps, random_start=False)
    return bout.against(ours, theirs, same("images", SAME_IMAGES))


def _foolbox(bout: Bout, ours: Attack, steps: int, eps: float) -> Sides:
    attacks: Any = import_module("foolbox").attacks
    theirs = attacks.LinfFastGradientAttack(random_start=False)
    if steps > 1:
        theirs = attacks.LinfPGD(rel_stepsize=SHARE, steps=steps, random_start=False)
    return bout.against(ours, _called(bout, theirs, eps), same("images", SAME_IMAGES))


def _called(bout: Bout, attack: Any, eps: float | None) -> Any:
    """Return an attack of foolbox as one of images and labels. eps: None for one that looks for small distances."""
    model = import_module("foolbox").PyTorchModel(bout.model, bounds=(0, 1), device=bout.images.device)
    return lambda images, labels: attack(model, images, labels, epsilons=eps)[1]


def _bare(bout: Bout, ours: Attack, steps: int) -> Sides:
    """Return what no attack can do without: the forwards and backwards to the input."""

    def theirs(images: Tensor, labels: Tensor) -> None:
        for _ in range(steps):
            points = images.detach().requires_grad_()
            torch.autograd.grad(nn.functional.cross_entropy(bout.model(points), labels, reduction="sum"), points)

    return bout.against(ours, theirs, uncompared("no images to compare"))


def _spsa(bout: Bout, threat: ThreatModel) -> Sides:
    package: Any = import_module("torchattacks")
    theirs = package.SPSA(bout.model, threat.eps, nb_iter=SPSA_STEPS, nb_sample=128, max_batch_size=64)
    return bout.against(SPSA(threat, steps=SPSA_STEPS), theirs, bout.standing)


def _minimal(bout: Bout, norm: Any, kind: type[FMN] | type[DDN]) -> Sides:
    """Return both sides on as many points looked at: ours makes a forward for the last one, so one update less."""
    attacks: Any = import_module("foolbox").attacks
    theirs = attacks.LInfFMNAttack(steps=UPDATES)
    if kind is DDN:
        theirs = attacks.DDNAttack(steps=UPDATES, init_epsilon=1.0)
    ours = kind(ThreatModel(norm, math.inf), steps=UPDATES - 1)
    return bout.against(ours, _called(bout, theirs, None), partial(bout.distances, norm))


def _member(bout: Bout, name: str, ours: FAB | Square) -> Sides:
    parameters = {"square": ("queries",), "fab": ("steps", "targets")}[name]
    stage = peer("pyautoattack", name, ours.threat, {key: getattr(ours, key) for key in parameters}).stages[0]
    classes = bout.model(bout.images[:1]).shape[1]
    theirs = make_perturb("pyautoattack", stage, bout.model, ours.threat, 0, classes)
    return bout.against(ours, theirs, bout.standing)


def _autoattack(bout: Bout, eps: float, dtype: torch.dtype, subject: Subject) -> Sides:
    """Return both sides. Ours gets the model as an audit does: laid out and cast, with float32 as the judge."""
    package: Any = import_module("pyautoattack")
    options = {"eps": eps, "version": "standard", "seed": 0, "device": bout.images.device}

    def theirs() -> Tensor:
        attack = package.AutoAttack(bout.model, **options)
        found: Tensor = attack.run_standard_evaluation(bout.images, bout.classes, batch_size=BATCH)[0]
        return found

    return Sides(
        _our_autoattack(bout, eps, dtype, subject)[0], theirs, bout.standing, (len(bout.images), len(bout.images))
    )


def _bound(bout: Bout, eps: float, dtype: torch.dtype, subject: Subject) -> Sides:
    """Return what AutoAttack cannot do without: as many forwards, and backwards to the input, in full batches."""
    ours, search, images = _our_autoattack(bout, eps, dtype, subject)
    (forwards, backwards), _ = passes(subject.networks, ours)
    rows = torch.arange(BATCH, device=images.device) % len(images)
    batch, classes = images[rows], bout.classes[rows]

    def theirs() -> None:
        for _ in range(round(backwards / BATCH)):
            points = batch.detach().requires_grad_()
            torch.autograd.grad(nn.functional.cross_entropy(search(points), classes, reduction="sum"), points)
        with torch.inference_mode():
            for _ in range(round((forwards - backwards) / BATCH)):
                search(batch)

    return Sides(ours, theirs, uncompared("the share of the time that passes take"), (len(images), len(images)))


def _our_autoattack(
    bout: Bout, eps: float, dtype: torch.dtype, subject: Subject
) -> tuple[Callable[[], Tensor], ScoringModel, Tensor]:
    """Return the attack of an audit, the model that it searches, and images laid out for it."""
    classifier, images = subject.model, bout.images
    if classifier.identity.attention == "none":
        classifier = copy.deepcopy(classifier).to(memory_format=torch.channels_last)
        images = images.contiguous(memory_format=torch.channels_last)
    exact = ScoringModel(classifier, load_card("standard"), torch.float32, None)
    search = exact if dtype is torch.float32 else ScoringModel(classifier, load_card("standard"), dtype, None)
    subject.networks[1:] = {exact.network, search.network} - {subject.model.network}

    def ours() -> Tensor:
        judge = None if search is exact else exact
        attack = AutoAttack(ThreatModel("linf", eps))
        return attack.run(search, images, bout.classes, judge=judge, batch_size=BATCH).adversarials

    return ours, search, images
