"""torchattacks and foolbox, given the same model and parameters, reach the same accuracy."""

from __future__ import annotations

from typing import Any

import pytest
from attack_oracles import random_images, tiny_cnn
from torch import Tensor

from attacks import FGSM, PGD, ThreatModel

pytestmark = pytest.mark.filterwarnings("ignore")  # the peers' own
STEPS = 20


def torchattacks(norm: str, eps: float, steps: int) -> Any:
    peer = pytest.importorskip("torchattacks", reason="torchattacks is not installed")
    model = tiny_cnn()
    if steps == 1:
        return peer.FGSM(model, eps)
    if norm == "linf":
        return peer.PGD(model, eps, 0.15 * eps, steps, random_start=False)
    return peer.PGDL2(model, eps, 0.15 * eps, steps, random_start=False, eps_for_division=1e-12)


def foolbox(norm: str, eps: float, steps: int) -> Any:
    peer = pytest.importorskip("foolbox", reason="foolbox is not installed")
    model = peer.PyTorchModel(tiny_cnn(), bounds=(0, 1), device="cpu")
    if steps == 1:
        attack = peer.attacks.LinfFastGradientAttack(random_start=False)
    else:
        kind = peer.attacks.LinfPGD if norm == "linf" else peer.attacks.L2PGD
        attack = kind(rel_stepsize=0.15, steps=steps, random_start=False)
    return lambda images, labels: attack(model, images, labels, epsilons=eps)[1]


@pytest.mark.parametrize("peer", [torchattacks, foolbox])
@pytest.mark.parametrize(("norm", "eps", "steps"), [("linf", 0.03, 1), ("linf", 0.03, STEPS), ("l2", 0.3, STEPS)])
def test_same_accuracy(peer: Any, norm: Any, eps: float, steps: int) -> None:
    theirs = peer(norm, eps, steps)
    model, images = tiny_cnn(), random_images(100)
    labels = model(images).argmax(dim=1)
    threat = ThreatModel(norm, eps)
    ours = FGSM(threat) if steps == 1 else PGD(threat, steps=steps, random_start=False)

    def standing(points: Tensor) -> int:
        return int((model(points).argmax(dim=1) == labels).sum())

    mine, other = standing(ours(model, images, labels)), standing(theirs(images, labels))
    assert 5 < mine < 95
    assert abs(mine - other) <= 1
