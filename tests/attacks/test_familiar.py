"""Attacks as people of other libraries write them: parts of a threat model by name, and AutoAttack's own interface."""

from __future__ import annotations

import inspect
import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from attack_oracles import random_images, tiny_cnn
from torch import Tensor

import attacks
from attacks import ATTACKS, DENSE_ATTACKS, FEATURE_ATTACKS, PGD, Attack, AutoAttack, ThreatModel

EVERY = [(registry, name) for registry in (ATTACKS, DENSE_ATTACKS, FEATURE_ATTACKS) for name in registry]


@pytest.mark.parametrize(("registry", "name"), EVERY)
def test_every_attack_is_made_of_the_parts_of_a_threat_model(registry: Mapping[str, Any], name: str) -> None:
    kind = registry[name]
    norm = kind.norms[-1]
    made = kind(eps=0.5, norm=norm, bounds=[0, 2])
    usual = kind().threat
    assert made == kind(replace(usual, norm=norm, eps=0.5, bounds=(0, 2)))
    assert hash(made) == hash(kind(threat=made.threat))
    shown = inspect.signature(kind).parameters
    assert next(iter(shown)) == "threat" and shown["norm"].default == usual.norm and "eps" in shown
    with pytest.raises(TypeError, match=rf"{kind.__name__} has threat and norm; expected one of the two"):
        kind(ThreatModel(norm), norm=norm)


def test_what_is_left_out_is_usual() -> None:
    assert PGD(steps=3) == PGD(ThreatModel(), steps=3) and PGD(norm="l2").threat == ThreatModel("l2")
    assert attacks.DDN(steps=3, bounds=None).threat == ThreatModel("l2", math.inf, None)
    assert attacks.DDN(steps=3).threat == ThreatModel("l2", math.inf)  # also where no part of it is said
    assert attacks.PGD().threat == ThreatModel("linf", 1 / 255)
    assert attacks.Patch(size=8).threat == ThreatModel("patch", math.inf, size=8)
    with pytest.raises(TypeError, match=r"PGD has no size; did you mean step_size\? it takes eps, norm, bounds"):
        PGD(size=8)


def test_an_attack_of_a_plug_in_knows_nothing_of_it() -> None:
    @dataclass(frozen=True)
    class Grey(Attack):
        share: float = 1.0

        def _points(self, oracle: Any, clean: Tensor, labels: Any, rng: Any, tally: Any) -> Tensor:
            return self.threat.project(clean.mean(dim=1, keepdim=True).expand_as(clean), clean)

    class Own(Grey):
        def __init__(self, share: float) -> None:
            super().__init__(ThreatModel("l2", 3), share)

    assert Grey(eps=0.25, norm="L2", share=0.5) == Grey(ThreatModel("l2", 0.25), 0.5)
    images = random_images(2)
    found = Grey(eps=0.25)(tiny_cnn(), images)
    assert (found - images).abs().max() <= 0.25 + 1e-6 and not torch.equal(found, images)
    assert Own(0.5).threat == ThreatModel("l2", 3) and Own(share=0.5).share == 0.5


@pytest.mark.parametrize("norm", ["Linf", "inf", "L_inf", "l-inf", "L∞", math.inf, "linf"])
def test_the_largest_change_by_any_name(norm: Any) -> None:
    assert ThreatModel(norm) == ThreatModel("linf")


def test_other_norms_by_other_names() -> None:
    assert [ThreatModel(each, 2).norm for each in ("L2", 2, 2.0, "2", "L1", 1, "l0", 0)] == (
        ["l2"] * 4 + ["l1"] * 2 + ["l0"] * 2
    )
    for none in ("L3", "l", 7, "patched"):
        with pytest.raises(ValueError, match=f"norm is {none!r}; expected one of: linf, l2"):
            ThreatModel(none)  # type: ignore[arg-type]


# AutoAttack's own interface


def setting(count: int = 20) -> tuple[Any, Tensor, Tensor]:
    model, images = tiny_cnn(), random_images(count)
    labels = model(images).argmax(dim=1)
    labels[:3] = (labels[:3] + 1) % 5  # wrong from the start
    return model, images, labels


@pytest.mark.slow
@pytest.mark.parametrize("steps", [20, 100])
@pytest.mark.parametrize(("norm", "eps"), [("Linf", 0.03), ("L2", 0.4)])
@pytest.mark.filterwarnings("ignore")  # the peer's own
def test_the_line_of_autoattack_reaches_the_same_accuracy(norm: Any, eps: float, steps: int) -> None:
    peer = pytest.importorskip("pyautoattack", reason="pyautoattack is not installed")
    model, images, labels = setting()
    other = peer.AutoAttack(model, norm=norm, eps=eps, seed=0, device="cpu")
    other.verbose = False
    other.fab.n_target_classes = other.apgd_targeted.n_target_classes = 4
    if steps < 100:
        for member in (other.apgd, other.apgd_targeted, other.fab):
            member.n_iter = member.n_iter_orig = steps
        for member in (other.apgd, other.apgd_targeted):
            member.n_iter_2, member.n_iter_min, member.size_decr = 4, 1, 1
        other.square.n_queries = 60
    with torch.random.fork_rng():
        theirs, predicted = other.run_standard_evaluation(images, labels, batch_size=16)
    logging.getLogger("auto-attack").handlers.clear()
    ours = AutoAttack(model, norm=norm, eps=eps, version="standard", seed=0, verbose=False, device="cpu")
    if steps < 100:
        ours.attack = replace(ours.attack, steps=steps, queries=60)
    found, said = ours.run_standard_evaluation(images, labels, bs=16, return_labels=True)
    assert found.shape == theirs.shape and said.shape == predicted.shape and found.dtype == theirs.dtype
    standing = int((predicted == labels).sum())
    assert 0 < standing < 17 and int((said == labels).sum()) == standing
    assert torch.equal(found[:3], images[:3]) and ThreatModel(norm, eps).distance(found, images).max() <= eps + 1e-6
    torch.rand(7)
    again = ours.run_standard_evaluation(images, labels, bs=16)
    assert isinstance(again, Tensor) and torch.equal(again, found)  # the seed decides


def test_each_attack_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, images, labels = setting(8)
    log = tmp_path / "log.txt"
    adversary = AutoAttack(model, "Linf", 0.03, log_path=log, version="custom", attacks_to_run=["apgd-ce", "fab-t"])
    adversary.attack = replace(adversary.attack, steps=10)
    each = adversary.run_standard_evaluation_individual(images, labels, bs=8)
    assert list(each) == ["apgd-ce", "fab-t"] and all(found.shape == images.shape for found in each.values())
    lines = capsys.readouterr().out.splitlines()
    assert lines == log.read_text().splitlines()
    assert lines[0] == "initial accuracy: 62.50%" and lines[1].startswith("robust accuracy after APGD-CE: ")
    assert adversary.clean_accuracy(images, labels) == 0.625
    robust = adversary.clean_accuracy(each["apgd-ce"], labels)
    assert lines[1].startswith(f"robust accuracy after APGD-CE: {robust:.2%} (total time ")
    state = torch.get_rng_state()
    other = AutoAttack(model, eps=0.03, seed=3, verbose=False, version="rand")
    other.attack = replace(other.attack, steps=2)
    other.run_standard_evaluation(images, labels)
    assert torch.equal(torch.get_rng_state(), state)


def test_what_the_line_does_not_take() -> None:
    with pytest.raises(ValueError, match=r"attacks_to_run is \['square'\], version 'standard'; expected both"):
        AutoAttack(tiny_cnn(), attacks_to_run=["square"])
    with pytest.raises(TypeError, match=r"state_path: .*robustkit audit resumes a run that was stopped"):
        AutoAttack(tiny_cnn(), verbose=False).run_standard_evaluation(random_images(1), state_path="x", y_orig=None)
    with pytest.raises(ValueError, match="version is 'quick'; expected one of: standard"):
        AutoAttack(tiny_cnn(), version="quick")
