"""Models that look robust and are not: each is flagged except one that says why it is not; honest ones never are."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from attack_oracles import Draws, random_images, tiny_cnn
from cheating_models import CHEATS, UNFLAGGED, Known, Net, changed_gradient
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attacks import FGSM, PGD, Attack, AutoAttack, ThreatModel
from robustkit.slices.evidence.examining import examine, examine_before
from robustkit.slices.evidence.gradient_masking import checks_of

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
    "shadow class": "zero gradients",
    "batch turned": "full batch",
    "batch crowd": "full batch",
    "winners": "path",
    "cached answers": "path",
    **dict.fromkeys(("table fourier", "table sorted", "table kernel"), "known images"),
    **dict.fromkeys(("anti adversary", "table colour"), "path"),
    "batch tail": "slope",
} | dict.fromkeys(
    (
        *("loss aware", "loss saturated", "grid gradient", "edge gradient", "block gradient", "blinkers"),
        *("one channel", "few pixels", "neighbour", "half honest", "mild", "rounded block gradient"),
        *("rolled gradient", "sign trap", "seesaw", "slow dice", "late gradient"),
    ),
    "slope aside",
)


@cache
def known() -> Known:
    images, net = (random_images(16) * 255).round() / 255, tiny_cnn()
    with torch.no_grad():
        return Known(net, images, net(images).argmax(dim=1), EPS)


def look(model: Net, images: Tensor, labels: Tensor, attack: Attack = SHORT, **options: Any) -> dict[str, Any]:
    torch.manual_seed(0)
    rng = Draws(range(len(images)))
    return examine(
        model, images, labels, attack.threat, rng=rng, batch_size=16, attack=attack, attack_batch=32, **options
    )


def doubted(figures: dict[str, Any], averaged: bool = False) -> set[str]:
    """Return the names of the checks with a finding."""
    return {check.name for check in checks_of(figures, averaged=averaged) if check.finding}


@pytest.mark.parametrize("name", CHEATS)
def test_each_cheat_is_flagged(name: str) -> None:
    k = known()
    brief = name not in UNFLAGGED  # without the sweep of radii, which no kind is there for
    found = doubted(look(CHEATS[name](k), k.images, k.labels, brief=brief))
    assert bool(found) != (name in UNFLAGGED)
    assert name not in OWN or OWN[name] in found


def test_there_are_enough_of_them_and_one_is_not_caught() -> None:
    assert len(CHEATS) >= 71 and set(UNFLAGGED) < set(CHEATS) and len(UNFLAGGED) == 1
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
    """Computes in a half precision, by autocast or with weights that are cast."""

    def __init__(self, dtype: torch.dtype, cast: bool) -> None:
        super().__init__()
        self.dtype, self.cast, self.net = dtype, cast, tiny_cnn().to(dtype if cast else torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", self.dtype, enabled=not self.cast):
            logits: Tensor = self.net(x.to(self.dtype) if self.cast else x)
        return logits.float() * 1.01 - 0.01  # no longer on the grid of the dtype


def eight_bits() -> Net:
    """Weights in 256 levels."""
    net = tiny_cnn()
    with torch.no_grad():
        for weight in (each for each in net.parameters() if each.ndim > 1):
            level = weight.abs().amax() / 127
            weight.copy_((weight / level).round() * level)
    return net


def cropped(x: Tensor) -> Tensor:
    return nn.functional.interpolate(x[..., 1:-1, 1:-1], size=x.shape[-2:], mode="bilinear", antialias=True)


HONEST: dict[str, Net] = {
    "bfloat16": Rounding(torch.bfloat16, cast=False),
    "bfloat16 weights": Rounding(torch.bfloat16, cast=True),
    "float16": Rounding(torch.float16, cast=False),
    "float16 weights": Rounding(torch.float16, cast=True),
    "int8 weights": eight_bits(),
    "crop": lambda x: tiny_cnn()(cropped(x)),
    "sharp": lambda x: 10 * tiny_cnn()(x),
    "soft": lambda x: 0.1 * tiny_cnn()(x),
    "checkpoints": lambda x: checkpoint(tiny_cnn(), x, use_reentrant=False),
    "reentrant checkpoints": lambda x: checkpoint(tiny_cnn(), x, use_reentrant=True),
    "a class off": lambda x: torch.cat([tiny_cnn()(x), torch.full((len(x), 1), -torch.inf)], dim=1),
}


@pytest.mark.parametrize("name", HONEST)
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_honest_ways_to_compute_raise_no_flag(name: str) -> None:
    images, model = known().images, HONEST[name]
    figures = look(model, images, model(images).argmax(dim=1), PGD(THREAT), brief=True)
    assert doubted(figures) == set()
    half = {"bfloat16": "bfloat16", "float16": "float16"}.get(name.split(" ")[0], "")
    assert figures["half"] == half and figures["aside"] < 0.06
    (said,) = (check.figure for check in checks_of(figures) if check.name == "precision")
    assert said == (
        f"computes in half precision ({half}): slopes are of the same operations in float32" if half else "float32"
    )


def test_a_model_that_changes_during_the_attack_is_found_when_it_is_asked_again() -> None:
    """The first does not change; the last cheats until the attack has ended."""
    k, late = known(), False
    turn = changed_gradient(lambda gradient, _: -gradient if late else gradient)
    mask = changed_gradient(lambda gradient, x: gradient * (x > x.mean()) if late else gradient)
    changes: list[Net] = [
        k.net,
        lambda x: k.net(turn(x)),
        lambda x: k.net(mask(x)),
        lambda x: k.net(k.leak(x) if late else x),
        lambda x: k.net(x if late else k.leak(x)),
    ]
    for place, model in enumerate(changes):
        late, rng = False, Draws(range(len(k.images)))
        before = examine_before(model, k.images, k.labels, THREAT, rng=rng, batch_size=8)
        assert before["passes_before"] == 8 * (7 + 5)
        late = True
        figures = look(model, k.images, k.labels, PGD(THREAT), brief=True)
        assert "afterwards" not in doubted(figures)
        del figures["unasked"]["afterwards"]
        assert ("afterwards" in doubted(figures | before)) == (place > 0)
        assert place or figures["rise_after"] == pytest.approx(before["rise_before"], rel=1e-4)


@pytest.mark.parametrize("attack", [SHORT, PGD(THREAT), FGSM(ThreatModel("l2", 0.5)), PGD(ThreatModel(eps=0.25 / 255))])
def test_an_honest_model_raises_no_flag_and_brief_evidence_lacks_what_it_says(attack: Attack) -> None:
    k = known()
    brief = not isinstance(attack, AutoAttack)
    figures = look(k.net, k.images, k.labels, attack, brief=brief)
    assert doubted(figures) == set() and figures["unmeasured"] == {}
    assert (figures["accuracy"] is None) == brief and figures["loss_steps"] == ([0, 1, 5] if brief else [0, 1, 5, 20])
    silent = {check.name: check.figure for check in checks_of(figures) if "not measured" in check.figure}
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
    assert (figures["saved_lost"], figures["hidden"]) == (0, 0) and "survives saving" not in doubted(figures)


def test_a_random_model_is_random_and_nothing_else() -> None:
    k = known()
    figures = look(lambda x: k.net(nn.functional.dropout(x, 0.1)), k.images, k.labels)
    asked = {"graph", "batches", "called again", "caller", "under attack"}
    assert "random outputs" in doubted(figures) and not doubted(figures) & asked
    assert not doubted(figures, averaged=True) & {*asked, "random outputs", "continuity", "path"}


def test_a_model_that_turns_in_the_end_is_found() -> None:
    """It is honest until all but the last question are asked."""
    k, calls = known(), list[int]()

    def fickle(x: Tensor) -> Tensor:
        calls.append(len(x))
        return k.net(x).roll(int(len(calls) > last), dims=1)

    last = 10**9
    assert doubted(look(fickle, k.images, k.labels)) == set()
    last = len(calls) - 1
    calls.clear()
    assert doubted(look(fickle, k.images, k.labels)) == {"called again"}


def test_a_probe_that_fails_is_a_finding_and_the_others_go_on() -> None:
    k = known()

    def picky(x: Tensor) -> Tensor:
        if len(x) == 1 and torch.is_inference_mode_enabled():
            raise ValueError("expected more than 1 image\nand more")
        return k.net(x)

    figures = look(picky, k.images, k.labels)
    assert figures["unmeasured"] == {"batches": "ValueError: expected more than 1 image"}
    (found,) = (check.finding for check in checks_of(figures) if check.finding)
    assert found.code == "masking/unmeasured"
    assert found.text == "batches: could not be measured: ValueError: expected more than 1 image"
    assert figures["path"] is not None and figures["again"] == 0
