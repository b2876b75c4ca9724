"""Models that look robust and are not: each is flagged except one that says why it is not; honest ones never are."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from attack_oracles import Draws, random_images, tiny_cnn
from cheating_models import CHEATS, UNFLAGGED, Known, Net
from torch import Tensor, nn

from attacks import FGSM, PGD, Attack, AutoAttack, ThreatModel
from robustkit.evaluations.attacks.examining import examine
from robustkit.evaluations.attacks.gradient_masking import findings

pytestmark = pytest.mark.usefixtures("one_thread")
EPS = 8 / 255
THREAT = ThreatModel("linf", EPS)
SHORT = AutoAttack(THREAT, steps=5, targets=2, queries=20)
OWN = {  # the check that each kind is there for
    "graph leaf": "graph",
    "graph inference": "graph",
    "hash unknown": "continuity",
    "grid infinite": "finite answers",
    "grid stored": "continuity",
    "grid leak": "slope aside",
    "ripple inside": "slope afar",
    "offset": "slope",
    "seeded": "continuity",
    "table leak": "path",
    "table everywhere": "path",
    "table smooth": "known images",
    "stack attacks": "caller",
    "stack apgd": "under attack",
    "stack thread": "caller",
    "batch mean": "batches",
    "batch first": "batches",
    "counter": "path",
    "straight through": "slope",
}


@cache
def known() -> Known:
    images, net = (random_images(16) * 255).round() / 255, tiny_cnn()
    with torch.no_grad():
        return Known(net, images, net(images).argmax(dim=1), EPS)


def look(model: Net, images: Tensor, labels: Tensor, attack: Attack = SHORT, **options: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    rng = Draws(range(len(images)))
    return examine(model, images, labels, attack.threat, rng=rng, batch_size=16, attack=attack, **options)


def flags(figures: dict[str, Any]) -> set[str]:
    return {finding.check for finding in findings(figures) if finding.flag}


@pytest.mark.parametrize("name", CHEATS)
def test_each_cheat_is_flagged(name: str) -> None:
    k = known()
    found = flags(look(CHEATS[name](k), k.images, k.labels))
    assert bool(found) != (name in UNFLAGGED)
    assert name not in OWN or OWN[name] in found


def test_there_are_enough_of_them_and_one_is_not_caught() -> None:
    assert len(CHEATS) >= 27 and set(UNFLAGGED) < set(CHEATS) and len(UNFLAGGED) == 1
    assert set(OWN) <= set(CHEATS)
    assert all(maker.__doc__ for maker in CHEATS.values())


@pytest.mark.parametrize("name", ["table smooth", "stack attacks"])
def test_such_a_model_stands_where_its_network_falls(name: str) -> None:
    """Without this the cheats would prove nothing. Infinite answers off the grid, however, count as wrong."""
    k = known()

    def standing(model: Net) -> int:
        result = SHORT.run(model, k.images, k.labels, rng=Draws(range(16)), batch_size=16)
        return int((result.broken_by < 0).sum())

    honest, cheating = standing(k.net), standing(CHEATS[name](k))
    assert cheating >= honest + 3
    assert standing(CHEATS["grid infinite"](k)) <= honest


class Rounding(nn.Module):
    """Rounds inside as bfloat16 does: batch sizes then show, and nothing is hidden."""

    def __init__(self) -> None:
        super().__init__()
        self.net = tiny_cnn()

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.net(x).float()  # type: ignore[no-any-return]


def test_the_answers_of_a_model_in_bfloat16_are_alike() -> None:
    model, images = Rounding(), known().images
    labels = model(images).argmax(dim=1)
    asked = {"graph", "batches", "called again", "caller", "under attack", "path", "continuity", "known images"}
    assert not flags(look(model, images, labels)) & asked


@pytest.mark.parametrize("attack", [SHORT, PGD(THREAT), FGSM(ThreatModel("l2", 0.5)), PGD(ThreatModel(eps=0.25 / 255))])
def test_an_honest_model_raises_no_flag_and_brief_evidence_lacks_what_it_says(attack: Attack) -> None:
    k = known()
    brief = not isinstance(attack, AutoAttack)
    figures = look(k.net, k.images, k.labels, attack, brief=brief)
    assert flags(figures) == set() and figures["unmeasured"] == {}
    assert (figures["accuracy"] is None) == brief and figures["loss_steps"] == ([0, 1, 5] if brief else [0, 1, 5, 20])
    silent = {finding.check: finding.figure for finding in findings(figures) if "not measured" in finding.figure}
    assert ("accuracy by radius" in silent) == brief
    fine = attack.threat.norm == "linf" and attack.threat.eps < 1 / 255
    assert ("one grey level" in silent.get("survives saving", "")) == fine
    assert figures["noise"] == 0 and figures["graph"] < 1e-5 and figures["batch"] < 1e-5 and figures["jump"] < 0.01


@pytest.mark.parametrize("share", [0.9, 0.97])
def test_saving_that_leads_further_than_pgd_went_is_no_flag(share: float) -> None:
    """A linear model of which all samples fall at `share` of a grey level, where five steps of PGD end at 0.75."""
    images = torch.full((16, 1, 8, 8), 128 / 255)
    weights = torch.stack([torch.ones(64), -torch.ones(64)], dim=1)
    shift = torch.tensor([64 * share / 255, 0.0]) * 2

    def model(x: Tensor) -> Tensor:
        return (x - 128 / 255).flatten(1) @ weights + shift

    figures = look(model, images, torch.zeros(16, dtype=torch.int64), PGD(ThreatModel(eps=1 / 255)), brief=True)
    assert (figures["saved_samples"], figures["saved_same"]) == (16, 0)
    assert (figures["saved_lost"], figures["hidden"]) == (0, 0) and "survives saving" not in flags(figures)


def test_a_random_model_is_random_and_nothing_else() -> None:
    k = known()
    figures = look(lambda x: k.net(nn.functional.dropout(x, 0.1)), k.images, k.labels)
    asked = {"graph", "batches", "called again", "caller", "under attack"}
    assert "random outputs" in flags(figures) and not flags(figures) & asked
    averaged = {finding.check for finding in findings(figures, averaged=True) if finding.flag}
    assert not averaged & {*asked, "random outputs", "continuity", "path"}


def test_a_model_that_turns_in_the_end_is_found() -> None:
    """It is honest until all but the last question are asked."""
    k, calls = known(), list[int]()

    def fickle(x: Tensor) -> Tensor:
        calls.append(len(x))
        return k.net(x).roll(int(len(calls) > last), dims=1)

    last = 10**9
    assert flags(look(fickle, k.images, k.labels)) == set()
    last = len(calls) - 1
    calls.clear()
    assert flags(look(fickle, k.images, k.labels)) == {"called again"}


def test_a_probe_that_fails_is_a_flag_and_the_others_go_on() -> None:
    k = known()

    def picky(x: Tensor) -> Tensor:
        if len(x) == 1 and torch.is_inference_mode_enabled():
            raise ValueError("expected more than 1 image\nand more")
        return k.net(x)

    figures = look(picky, k.images, k.labels)
    assert figures["unmeasured"] == {"batches": "ValueError: expected more than 1 image"}
    (found,) = (finding for finding in findings(figures) if finding.flag)
    assert found.flag == "batches: could not be measured: ValueError: expected more than 1 image"
    assert figures["path"] is not None and figures["again"] == 0
