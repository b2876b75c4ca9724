"""The queue: which runs share a batch, who goes first, and that nothing is asked about a sample that fell."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace

import pytest
import torch
from attack_oracles import Draws
from torch import Tensor

from attacks import ThreatModel
from attacks.queue import AttackState, Places, QueuedAttack, Restarts

# (sample, run, pass of that run) in every pass
Log = list[list[tuple[int, int, int]]]


@dataclass(frozen=True)
class _Plain(Restarts):
    points: Tensor


@dataclass(frozen=True)
class Scripted(QueuedAttack):
    """Runs of `length` passes; run r of sample i breaks it at pass `falls[i, r]`, and writes down r as its point."""

    length: int = 4
    restarts: int = 3
    alone: int | None = 2
    falls: tuple[tuple[int, int, int], ...] = ()
    losses: tuple[float, ...] = (0.0, 0.0, 0.0)

    @property
    def stage(self) -> str:
        return "scripted"

    @property
    def _alone(self) -> int | None:
        return self.alone

    def _begin(self, front: AttackState, rows: Tensor, runs: Tensor, places: Places) -> Restarts:
        return _Plain(rows, runs, torch.zeros_like(rows), places, front.clean[rows])

    def _advance(self, front: AttackState, state: Restarts) -> Restarts:
        assert isinstance(state, _Plain)
        asked = list(zip(state.rows.tolist(), state.run.tolist(), state.step.tolist(), strict=True))
        LOG.append(asked)
        assert asked == list(zip(*astuple(state.places), strict=True))  # as the host has it
        falls = [one in self.falls for one in asked]
        done = [step == self.length - 1 and not fell for (_, _, step), fell in zip(asked, falls, strict=True)]
        points = state.points * 0 + (state.run.float()[:, None] + 1) / 100
        front.report(state, points, torch.tensor([self.losses[run] for _, run, _ in asked]), falls, done)
        state, _ = state.leave([fell or over for fell, over in zip(falls, done, strict=True)])
        return replace(state, step=state.step + 1, places=state.places.later())


LOG: Log = []


def drain(attack: Scripted, samples: int, batch_size: int | None = None) -> tuple[Log, Tensor, Tensor]:
    LOG.clear()
    images = torch.zeros(samples, 2)
    result = attack.run(
        lambda points: torch.tensor([[1.0, 0.0]]).repeat(len(points), 1),
        images,
        rng=Draws(range(samples)),
        batch_size=batch_size,
    )
    assert result.forwards.tolist() == [1] * samples
    return list(LOG), result.adversarials[:, 0], result.broken_at


WIDE = ThreatModel("linf", 0.5)


@pytest.mark.parametrize("alone", [None, 1, 2])
@pytest.mark.parametrize("batch_size", [1, 2, 3, 5, 7, None])
def test_every_run_goes_all_its_way_once(batch_size: int | None, alone: int | None) -> None:
    passes, _, broken = drain(Scripted(WIDE, alone=alone), 5, batch_size)
    asked = [one for batch in passes for one in batch]
    assert sorted(asked) == [(i, run, step) for i in range(5) for run in range(3) for step in range(4)]
    assert all(asked.index((i, r, s)) < asked.index((i, r, s + 1)) for i, r, s in asked if s < 3)
    assert max(map(len, passes)) <= (batch_size or 5) and broken.tolist() == [-1] * 5
    # Batches stay full until there is less left than they hold.
    if batch_size in (1, 5, 7, None):
        assert len(passes) == 60 // min(batch_size or 5, 5)
    if alone is None:  # never two runs of one sample side by side
        assert all(len({i for i, _, _ in batch}) == len(batch) for batch in passes)


def test_first_runs_go_first_and_second_ones_fill_the_places_that_are_left() -> None:
    passes, _, _ = drain(Scripted(WIDE, length=3, restarts=2, alone=1), 3, 2)
    assert passes == [
        [(0, 0, 0), (1, 0, 0)],
        [(0, 0, 1), (1, 0, 1)],
        [(0, 0, 2), (1, 0, 2)],
        [(2, 0, 0), (0, 1, 0)],
        [(2, 0, 1), (0, 1, 1)],
        [(2, 0, 2), (0, 1, 2)],
        [(1, 1, 0), (2, 1, 0)],
        [(1, 1, 1), (2, 1, 1)],
        [(1, 1, 2), (2, 1, 2)],
    ]
    # Sample 1 falls: its place goes to the next run of sample 0, which has been alone for long enough.
    passes, ends, broken = drain(Scripted(WIDE, length=4, restarts=2, alone=2, falls=((1, 0, 1),)), 2)
    assert passes == [
        [(0, 0, 0), (1, 0, 0)],
        [(0, 0, 1), (1, 0, 1)],
        [(0, 0, 2), (0, 1, 0)],
        [(0, 0, 3), (0, 1, 1)],
        [(0, 1, 2)],
        [(0, 1, 3)],
    ]
    assert broken.tolist() == [-1, 1] and ends[1] == pytest.approx(0.01)
    # Not before `alone` updates, and where that is None, not at the same time at all.
    passes, _, _ = drain(Scripted(WIDE, length=4, restarts=2, alone=3, falls=((1, 0, 1),)), 2)
    assert passes[2:4] == [[(0, 0, 2)], [(0, 0, 3), (0, 1, 0)]]
    passes, _, _ = drain(Scripted(WIDE, length=4, restarts=2, alone=None, falls=((1, 0, 1),)), 2)
    assert passes[2:5] == [[(0, 0, 2)], [(0, 0, 3)], [(0, 1, 0)]]


def test_a_fall_ends_all_runs_of_the_sample_and_the_first_run_counts() -> None:
    attack = Scripted(WIDE, length=4, restarts=3, alone=1, falls=((0, 0, 3), (0, 1, 2), (1, 0, 0), (2, 0, 0)))
    passes, ends, broken = drain(attack, 3)
    # With two samples gone, sample 0 has three places: runs 1 and 2 begin with run 0 at its second pass.
    assert passes == [
        [(0, 0, 0), (1, 0, 0), (2, 0, 0)],
        [(0, 0, 1), (0, 1, 0), (0, 2, 0)],
        [(0, 0, 2), (0, 1, 1), (0, 2, 1)],
        [(0, 0, 3), (0, 1, 2), (0, 2, 2)],
    ]
    assert broken.tolist() == [3, 0, 0]  # runs 0 and 1 break it in the same pass
    assert ends.tolist() == pytest.approx([0.01, 0.01, 0.01])
    # The one that breaks it earlier counts, whichever it is, and ends the others.
    passes, ends, broken = drain(replace(attack, falls=((0, 0, 3), (0, 2, 1), (1, 0, 0), (2, 0, 0))), 3)
    assert len(passes) == 3 and broken.tolist() == [1, 0, 0] and ends[0] == pytest.approx(0.03)
    # It stays, where another run of the sample ends unbroken in the same pass.
    passes, ends, _ = drain(replace(attack, falls=((0, 1, 2), (1, 0, 0), (2, 0, 0))), 3)
    assert (0, 0, 3) in passes[-1] and ends[0] == pytest.approx(0.02)


def test_the_highest_loss_of_all_runs_is_returned() -> None:
    for losses, best in (((1.0, 3.0, 2.0), 1), ((1.0, 1.0, 1.0), 0), ((float("nan"), -5.0, -9.0), 1)):
        for batch_size in (1, None):
            _, ends, _ = drain(Scripted(WIDE, losses=losses), 2, batch_size)
            assert ends.tolist() == pytest.approx([(best + 1) / 100] * 2)
    # A run that breaks the sample wins over any loss.
    _, ends, broken = drain(Scripted(WIDE, losses=(9.0, 9.0, 0.0), falls=((0, 2, 0),)), 1)
    assert ends.tolist() == pytest.approx([0.03]) and broken.tolist() == [0]
