"""Probes by themselves: what is saved in 8 bits, how far two answers are apart, and where a path jumps."""

from __future__ import annotations

import math
import threading

import pytest
import torch
from attack_oracles import Draws
from torch import Tensor

from attacks import ThreatModel
from robustkit.slices.evidence.probes import (
    Asker,
    answer_difference,
    largest_jump,
    round_to_8_bits,
    under_attack,
    why_not_saved,
)

GREY = 1 / 255


def asker(model: object, threat: ThreatModel | None = None) -> Asker:
    return Asker(model, torch.float32, None, threat or ThreatModel(eps=8 * GREY), 4)  # type: ignore[arg-type]


def test_saved_points_are_the_nearest_8_bit_images_inside_the_ball() -> None:
    clean = torch.tensor([[10.0, 10.0, 10.0, 0.0, 255.0]]) * GREY
    points = torch.tensor([[11.5, 11.4, 8.4, 0.6, 253.6]]) * GREY
    levels = {eps: round_to_8_bits(points, clean, ThreatModel(eps=eps * GREY)) * 255 for eps in (1, 1.5, 2)}
    for eps in (1, 1.5):
        assert levels[eps].round().tolist() == [[11, 11, 9, 1, 254]]
    assert levels[2].round().tolist() == [[12, 11, 8, 1, 254]]
    assert torch.allclose(levels[2], levels[2].round(), atol=1e-4)
    far = round_to_8_bits(points, clean, ThreatModel("l2", 0.5)) * 255
    assert far.round().tolist() == [[12, 11, 8, 1, 254]]
    # No level lies in a ball of half a level around an image between two of them.
    between = torch.tensor([[10.5]]) * GREY
    assert (round_to_8_bits(between + 0.2 * GREY, between, ThreatModel(eps=0.3 * GREY)) * 255).round().tolist() == [
        [11]
    ]


def test_what_cannot_be_saved_says_why() -> None:
    assert why_not_saved(ThreatModel(eps=GREY), 12) == ""
    assert "below one grey level" in why_not_saved(ThreatModel(eps=0.99 * GREY), 12)
    assert "not pixels" in why_not_saved(ThreatModel(eps=GREY, bounds=None), 12)
    assert why_not_saved(ThreatModel("l2", 4 * GREY), 12) == ""
    assert "0.0039" in why_not_saved(ThreatModel("l2", 3.9 * GREY), 12)


def test_differences_are_relative_to_what_a_prediction_sees() -> None:
    first = torch.tensor([[101.0, 99.0], [math.inf, 0.0], [math.nan, 1.0], [0.0, 0.0]])
    other = torch.tensor([[101.3, 98.6], [math.inf, 0.0], [math.nan, 1.0], [0.0, 0.0]])
    # Without its mean, the first is (1, -1), of length 1.414; a hundredth of what it is with it is 1.4155.
    assert answer_difference(other, first).tolist() == pytest.approx([0.5 / math.hypot(1.01, 0.99), 0, 0, 0], rel=1e-3)
    # A class that is far below all does not make a difference of the others small.
    logits, far = torch.tensor([[3.0, 1.0, -1.0, 0.5]]), torch.tensor([[-100.0]])
    apart = answer_difference(torch.cat([logits + 0.1, far], dim=1), torch.cat([logits, far], dim=1))
    assert apart.item() > 0.1 * answer_difference(logits + 0.1, logits).item()
    assert answer_difference(torch.tensor([[0.0, 1.0]]), torch.tensor([[math.nan, 1.0]])).item() == 1e6
    assert answer_difference(torch.tensor([[math.inf, 1.0]]), torch.tensor([[2.0, 1.0]])).item() == 1e6


def test_a_path_finds_a_jump_and_lets_go_of_what_is_steep() -> None:
    images, ends, others = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.53, 0.5]]), torch.tensor([[0.9, 0.1]])

    def tears(height: float, rate: float) -> float:
        def model(x: Tensor) -> Tensor:
            step = height * (x[:, :1] > 0.7) + torch.tanh(rate * (x[:, :1] - 0.55))
            return torch.cat([1 + step, -1 - step], dim=1)

        return largest_jump(asker(model), images, ends, others).item()

    scale = 1 + math.tanh(0.0)  # of the answer at the image: its step is tanh(rate * -0.05)
    assert tears(0.0, 0.0) == pytest.approx(0, abs=1e-6)
    assert tears(0.3, 0.0) == pytest.approx(0.3 / scale, rel=0.01)
    assert tears(0.0, 20.0) < 0.02


def test_an_attack_is_answered_as_the_others_are_and_counts() -> None:
    from attacks import PGD

    weights, threads = torch.tensor([[1.0, -1.0], [-1.0, 1.0]]), []

    def model(x: Tensor) -> Tensor:
        threads.append(threading.current_thread() is threading.main_thread())
        return x @ weights

    images, labels = torch.tensor([[0.75, 0.25]]), torch.tensor([0])
    watched = asker(model)
    attack = PGD(watched.threat, steps=20, restarts=3)
    apart, errors = under_attack(watched, attack, images, labels, Draws([0]), 0.0)
    # Made short: two steps, one restart; each answer is asked for twice, and each gradient's slope in two directions.
    assert apart.item() == 0 and threads[:4] == [True, False] * 2 and all(threads[4:])
    assert (watched.forwards, watched.backwards) == (len(threads), 2) and len(errors) == 2
