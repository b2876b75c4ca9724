"""What a run will take, by made-up clocks: conditions that differ a hundredfold, checkpoints that differ in pace."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from small_audit import audit

from attacks import Attack
from robustkit.evaluations.attacks.evaluate import attack_cost, build_attack, parse_condition
from robustkit.evaluations.condition import Cost
from robustkit.evaluations.family import family_of
from robustkit.evaluations.maps import map_condition, parse_cams
from robustkit.evaluations.maps.evaluate import MapsEvaluator
from robustkit.pipeline.plan import filling_batch
from robustkit.pipeline.progress import Estimate, Job, estimate_line, jobs_of, work_lines
from robustkit.protocol.card import load_card
from robustkit.protocol.condition import CLEAN

PASSES = {"clean": 1, "fog": 1, "snow": 1, "fgsm": 3, "map": 21, "control": 21, "pgd(20)": 50, "pgd(40)": 100}


def jobs(checkpoints: tuple[str, ...], samples: int) -> list[Job]:
    return [
        Job(checkpoint, name, name.partition("(")[0], "", samples, Cost(passes))
        for checkpoint in checkpoints
        for name, passes in PASSES.items()
    ]


def totals_at_a_quarter(pace: Callable[[str, str], float], checkpoints: tuple[str, ...], shards: int) -> list[float]:
    """Return, over the true seconds, the total as estimated and as samples alone would tell, after a quarter of a run.

    pace: true seconds per expected pass of a checkpoint and a condition.
    """
    now, samples, batch = [0.0], 64 * shards, 16
    todo = jobs(checkpoints, samples)
    truth = sum(job.samples * job.cost.forwards * pace(*job.key) for job in todo) + shards * len(todo)
    estimate = Estimate(todo, clock=lambda: now[0])
    done = 0
    for checkpoint in checkpoints:
        for _ in range(shards):
            for job in todo:
                if job.checkpoint != checkpoint:
                    continue
                now[0] += 1  # loading and writing
                estimate.start(*job.key)
                for _ in range(64 // batch):
                    now[0] += batch * job.cost.forwards * pace(*job.key)
                    estimate.advance(batch)
                    done += batch
                    if now[0] >= truth / 4:
                        total = estimate.total()
                        assert total is not None
                        return [total / truth, now[0] * len(todo) * samples / done / truth]
    raise AssertionError


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("checkpoints", [("a",), ("a", "b"), ("a", "b", "c", "d")])
def test_after_a_quarter_the_estimate_is_right_within_half(checkpoints: tuple[str, ...], shards: int) -> None:
    def pace(checkpoint: str, name: str) -> float:
        factor = {"clean": 2.0, "fog": 1.5, "control": 0.8, "fgsm": 1.3}.get(name, 1.0)  # what passes do not say
        return 0.05 * factor * {"a": 1.0, "b": 1.3, "c": 0.8, "d": 1.2}[checkpoint]

    estimated, naive = totals_at_a_quarter(pace, checkpoints, shards)
    assert 1 / 1.5 < estimated < 1.5
    if (checkpoints, shards) == (("a",), 1):
        assert not 1 / 1.5 < naive < 1.5  # samples alone would not do


def test_what_was_measured_counts_most() -> None:
    now = [0.0]
    todo = [Job(c, n, n, "", 10, Cost(1)) for c in ("a", "b") for n in ("clean", "slow", "late")]
    estimate = Estimate(todo, clock=lambda: now[0])
    assert estimate.left() is None and estimate.total() is None
    for key, seconds in ((("a", "clean"), 1.0), (("a", "slow"), 20.0), (("b", "clean"), 3.0)):
        estimate.start(*key)
        now[0] += seconds
        estimate.advance(10)
    # b is three times as slow: its slow takes 60. late was never measured: a has 21 s for two passes, b 3 for one
    assert estimate.left() == pytest.approx(60 + 21 / 2 + 3)
    estimate.start("b", "slow")
    now[0] += 40
    assert estimate.left() == pytest.approx(20 + 21 / 2 + 3)
    now[0] += 100  # longer than expected: never nothing
    left = estimate.left()
    assert left is not None and left > 140 / 4


def test_processes_share_what_is_left() -> None:
    now = [0.0]
    estimate = Estimate([Job("a", "clean", "clean", "", 100, Cost(1))], processes=4, clock=lambda: now[0])
    estimate.start("a", "clean")
    now[0] += 10
    estimate.advance(10)
    assert estimate.left() == pytest.approx(15)


EXACT = "fgsm", "pgd(steps=3)", "pgd(steps=2,restarts=2)", "spsa(steps=2,directions=4)"
BOUNDS = "apgd(steps=5)", "fab(steps=4)", "square(queries=20)", "autoattack(steps=3,targets=2,queries=10)"
OF_EACH_IMAGE = (
    *("autoattack(version=rand,steps=2)", "autoattack(steps=2,targets=2,queries=9)", "hopskipjump(queries=30)"),
    *("autoattack(version=fast,steps=3,queries=9)", "apgd(steps=2,loss=margin-targeted,order=malt,targets=1)"),
    *("fmn(steps=3)", "ddn(steps=2)", "patch(size=2,steps=3)", "patch(size=2,steps=2,where=worst-of-3)"),
)
WHOLE = (
    *("apgd(steps=5,early_stop=false)", "apgd(steps=4,loss=margin-targeted,targets=1,early_stop=false)"),
    *("fab(steps=4,targets=1,early_stop=false)", "fab(steps=3,targets=0,early_stop=false)"),
)


def test_planned_passes_are_those_of_the_records(place: Any, tmp_path: Any) -> None:
    run = audit(place, tmp_path, attacks=",".join((*EXACT, *BOUNDS, *WHOLE)), browse=0)
    card = load_card("standard")
    for text in (*EXACT, *BOUNDS, *WHOLE):
        condition = parse_condition(text, card, eps=parse_condition("fgsm(eps=8/255)", card).parameters[0][1])  # type: ignore[arg-type]
        cost = attack_cost(condition, card, 3)
        read = run.table("net", condition.text, ["forwards", "backwards"])
        most = max(read["forwards"].to_pylist()), max(read["backwards"].to_pylist())
        assert cost.at_most == (text not in (*EXACT, *WHOLE)), text
        if cost.at_most:
            assert most[0] <= cost.forwards and most[1] <= cost.backwards, (text, most, cost)
        else:
            assert most == (cost.forwards, cost.backwards), text


def test_a_sample_that_never_falls_takes_what_is_announced() -> None:
    card = load_card("standard")

    def firm(images: torch.Tensor) -> torch.Tensor:
        return torch.cat([torch.full((len(images), 1), 100.0), images.flatten(1)[:, :2]], dim=1)

    images = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    for text in OF_EACH_IMAGE:
        condition = parse_condition(text, card)
        attack = build_attack(condition, card)
        assert isinstance(attack, Attack)
        result = attack.run(firm, images, torch.zeros(2, dtype=torch.long))
        cost = family_of(condition.name).evaluator.cost(condition, card, 3)
        assert (cost.forwards, cost.backwards) == (result.forwards[0] + 1, result.backwards[0]), text
    scenes = load_card("segmentation")
    pgd, sea = (parse_condition(text, scenes) for text in ("pgd(steps=3)", "sea(steps=3)"))
    for condition, scored in ((pgd, 1), (sea, 5)):  # SEA's worst point, and the ends of its four runs
        announced = family_of(condition.name).evaluator.cost(condition, scenes, 3)
        assert announced.forwards - attack_cost(condition, scenes, 3).forwards == scored


def test_controls_of_maps_are_announced() -> None:
    card = load_card("standard")
    conditions = [CLEAN, *map(map_condition, parse_cams("agcam"))]
    assert [MapsEvaluator().cost(each, card, 10) for each in conditions[1:]] == [
        Cost(19, 1),
        Cost(18),
        Cost(18),
        Cost(1),
    ]
    lines = work_lines(conditions, 2, 60, 10, 0, [], card, 10)
    assert lines[0] == "to do: 2 checkpoints, 5 conditions, 60 samples: 10 units of work"
    assert lines[1] == "cost per image and checkpoint: 57 forward + 1 backward passes (clean 1+0, maps 56+1)"
    assert (
        lines[2].startswith("maps: 37 + 0 of their 56 + 1 passes are for controls")
        and "--faithfulness none" in lines[2]
    )
    assert work_lines(conditions, 2, 60, 10, 10, [], card, 10) == [lines[0] + ", of which 10 are already done"]


@pytest.mark.parametrize(("samples", "tried", "looked_at"), [(60, 16, 2), (12, 12, 2)])
def test_what_comes_before_the_conditions_is_announced_for_the_samples_that_it_takes(
    samples: int, tried: int, looked_at: int
) -> None:
    card = load_card("standard")
    attack = parse_condition("fgsm(eps=8/255)", card)
    doubted = {attack.text: (looked_at, Cost(70, 16))}
    lines = work_lines([CLEAN, attack], 2, samples, 4, 0, [*doubted.values()] * 2, card, 10, 1, ["it was already done"])
    assert lines[2:] == [
        f"set-up check: 1 time at least 15 + 0 passes, for {tried} samples",
        "set-up check skipped: it was already done",
        f"evidence on attacks: 2 times at least 70 + 16 passes, for {looked_at} samples",
    ]
    assert work_lines([CLEAN], 1, samples, 1, 1, [], card, 10, 0, ["as asked"])[1:] == []
    todo = jobs_of("a", [(CLEAN, 3), (attack, 0)], doubted, card, 10, samples, checked=True)
    names = ["set-up check", f"evidence on {attack.text}", "clean"]
    every = {job.name: job.samples for job in todo}
    assert [every[name] for name in names] == [tried, looked_at, 3] and [*every][-1] == names[1]
    now = [0.0]
    estimate = Estimate(todo, clock=lambda: now[0])
    for name in names[:2]:
        estimate.start("a", name)
        now[0] += 5
        estimate.advance(looked_at)
        assert estimate_line(estimate, "cpu") == ""  # what comes before says too little of the rest


def test_an_upper_bound_is_called_one() -> None:
    now = [0.0]
    todo = [Job("a", "clean", "clean", "", 10, Cost(1)), Job("a", "aa", "autoattack", "", 10, Cost(600, at_most=True))]
    estimate = Estimate(todo, clock=lambda: now[0])
    assert estimate_line(estimate, "cpu") == ""
    estimate.start("a", "clean")
    now[0] += 6
    estimate.advance(10)
    assert estimate_line(estimate, "cpu") == "about 18 min on cpu, at most 60 min; autoattack accounts for up to 100 %"


def test_an_accelerator_is_not_judged_by_what_the_host_does() -> None:
    """Of a clean pass the host takes most, so that only conditions of 10 passes or more tell about longer ones."""
    now, sizes = [0.0], {"set-up check": 15.0, "clean": 1.0, "short": 9.0, "pgd": 10.0, "long": 600.0}
    todo = [Job("a", name, name, "", 10, Cost(passes)) for name, passes in sizes.items()]
    estimate = Estimate(todo, clock=lambda: now[0], accelerated=True)
    for name, seconds in (("set-up check", 9.0), ("clean", 6.0), ("short", 6.0)):
        estimate.start("a", name)
        now[0] += seconds
        estimate.advance(10)
        assert estimate.left() is None and estimate_line(estimate, "cuda") == ""
    estimate.start("a", "pgd")
    now[0] += 1
    estimate.advance(10)
    assert estimate.left() == pytest.approx(60)
    few = Estimate(todo[1:3], clock=lambda: now[0], accelerated=True)  # where all are short, they tell of each other
    few.start("a", "clean")
    now[0] += 6
    few.advance(10)
    assert few.left() == pytest.approx(54)


def test_small_images_come_in_larger_batches_on_an_accelerator() -> None:
    sides = {(224, 224): 128, (225, 224): 128, (384, 384): 128, (159, 158): 128, (158, 158): 256, (64, 64): 1024}
    assert {side: filling_batch(128, [side]) for side in sides} == sides
    assert filling_batch(128, [(8, 8)]) == 1024 and filling_batch(128, [(32, 32), (112, 112)]) == 512
    assert filling_batch(128, []) == 128
