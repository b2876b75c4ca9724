"""Probes by themselves: what is saved in 8 bits, how far two answers are apart, and where a path jumps."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from attack_oracles import Draws
from cheating_models import changed_gradient
from torch import Tensor

from attacks import ThreatModel
from robustkit.slices.evidence import probes
from robustkit.slices.evidence.probes import (
    Asker,
    answer_difference,
    in_full_batch,
    largest_jump,
    round_to_8_bits,
    under_attack,
    when_moved,
    why_not_saved,
)

GREY = 1 / 255


def asker(model: object, threat: ThreatModel | None = None) -> Asker:
    return Asker(model, torch.float32, None, threat or ThreatModel(eps=8 * GREY), 4)  # type: ignore[arg-type]


def of_values(change: Callable[[Tensor, Tensor], Tensor], net: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    through = changed_gradient(change)
    return lambda x: net(through(x))


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


def test_gradients_are_compared_with_those_of_a_batch_of_different_images() -> None:
    weights = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    images, labels = torch.tensor([[0.75, 0.25], [0.6, 0.1], [0.5, 0.5], [0.2, 0.7]]), torch.tensor([0, 0, 0, 1])
    rows, rng = torch.tensor([0, 1, 3]), Draws(range(4))

    def apart(change: Callable[[Tensor, Tensor], Tensor], losses: tuple[str, ...] = ("ce",)) -> tuple[Any, Asker]:
        asked = asker(of_values(change, lambda x: x @ weights))
        found = in_full_batch(asked, images, labels, rows, rng, 8, losses)
        return [round(value, 4) for value in found.tolist()], asked

    same, asked = apart(lambda gradient, _: gradient)
    assert same == [0, 0, 0] and (asked.forwards, asked.backwards) == (11, 11)
    assert apart(lambda gradient, _: -gradient if len(gradient) > 7 else gradient)[0] == [2, 2, 2]
    assert apart(lambda gradient, _: -gradient if len(gradient) > 8 else gradient)[0] == [0, 0, 0]
    # The images are at places 0, 2 and 5 of the eight.
    tail = torch.arange(8)[:, None] >= 5
    assert apart(lambda gradient, _: torch.where(tail[: len(gradient)], 0.5, 1.0) * gradient)[0] == [0, 0, 0.5]
    assert apart(lambda gradient, _: math.nan * gradient if len(gradient) > 7 else gradient)[0] == [1e6] * 3
    assert apart(lambda gradient, _: 0 * gradient)[0] == [0, 0, 0]
    # Only where the loss is the margin, which looks at two classes of three.
    third = torch.cat([weights, torch.tensor([[0.5], [0.5]])], dim=1)
    turn = changed_gradient(lambda g, _: -g if len(g) > 7 and bool((g == 0).any()) else g)
    watched = asker(lambda x: turn(x @ third))
    found = [in_full_batch(watched, images, labels, rows, rng, 8, each).amax() for each in (("ce",), ("ce", "margin"))]
    assert found[0] == 0 and found[1] == 2
    seen = list[Tensor]()
    wide = torch.rand(3, 3, 4, 4, generator=torch.Generator().manual_seed(0))

    def watching(x: Tensor) -> Tensor:
        seen.append(x.detach().clone())
        return x.flatten(1)[:, :2]

    in_full_batch(asker(watching), wide, labels[1:], torch.tensor([0, 2]), Draws(range(3)), 64, ["margin"])
    few, many = seen
    assert len(many) == 64 and many[[0, 32]].equal(few) and 61 <= len(many.flatten(1).unique(dim=0)) <= 64
    assert (few - wide[[0, 2]]).abs().amax() <= 8 * GREY + 1e-6 and not few.isclose(wide[[0, 2]]).any(dim=0).all()


def test_images_are_moved_and_their_own_answers_counted() -> None:
    """Of even images no move but darkness changes anything; the sides of others change places when they are flipped."""
    halves = torch.ones(16, 16)
    halves[:, 8:] = -1

    def model(x: Tensor) -> Tensor:
        score = (x - 0.5).mean(dim=(1, 2, 3)) + (halves * x).mean(dim=(1, 2, 3))
        return torch.stack([score, -score], dim=1)

    images = torch.tensor([204 * GREY, 133 * GREY])[:, None, None, None].repeat(2, 1, 16, 16)
    images[2:] += 25 * GREY * halves
    labels, watched = torch.zeros(4, dtype=torch.int64), asker(model)
    found = when_moved(watched, images, labels, Draws(range(4)), 5, 1.0)
    assert not found["forgotten"].any()
    stored = when_moved(asker(model), images[:2], labels[:2] + 1, Draws(range(2)), 1, 0.0)  # as if 1 was known
    assert stored["forgotten"].all() and {"rise_blurred", "rise_shifted"} < stored.keys()
    for name in ("rise_blurred", "rise_shifted"):
        assert stored[name].amin() > 0 and stored[name].shape == (2,)
    # Detail of single pixels is gone where an image is rotated or cropped; that is not forgetting.
    fine = images[:2] + 10 * GREY * (torch.arange(16)[:, None] + torch.arange(16)).remainder(2)

    def detailed(x: Tensor) -> Tensor:
        spread = x.std(dim=(1, 2, 3)) - 5 * GREY / 2
        return torch.stack([spread, -spread], dim=1)

    blurred = when_moved(asker(detailed), fine, labels[:2], Draws(range(2)), 1, 1.0)
    assert not blurred["kept"][:, 0].any() and not blurred["forgotten"].any() and "rise_blurred" not in blurred
    assert found["kept"].tolist() == [[True] * 3] * 3 + [[True, True, False]]
    even = found["sure"][:2]
    assert even.flatten().tolist() == pytest.approx([0.6] * 3 + [11 * GREY] * 3, abs=1e-5)
    assert found["sure"][2:, 2].tolist() == pytest.approx([103 * GREY, 39 * GREY], abs=1e-5)
    # All values move by eps at most, which a linear model feels wherever the image is.
    assert found["rise_moved"].amax() <= 2 * 8 * GREY + 1e-5 and found["rise_moved"].amin() > 4 * GREY
    assert (watched.forwards, watched.backwards) == (4 * 10, 4 * 5)
    between = torch.tensor([100.4, 100.6, 256.0]) * GREY
    assert watched.as_image(between).tolist() == pytest.approx([100 * GREY, 101 * GREY, 1.0])
    assert asker(model, ThreatModel(eps=GREY, bounds=None)).as_image(between).equal(between)


def test_moves_are_of_half_to_all_of_the_most_and_crops_leave_the_edge_out(monkeypatch: pytest.MonkeyPatch) -> None:
    seen, shown = list[Tensor](), list[Tensor]()

    def watch(images: Tensor, moves: Tensor, border: Any) -> Tensor:
        seen.append(moves)
        return probes.attacked_move(images, moves, border)  # type: ignore[attr-defined,no-any-return]

    monkeypatch.setattr(probes, "attacked_move", probes.move, raising=False)
    monkeypatch.setattr(probes, "move", watch)

    def model(x: Tensor) -> Tensor:
        shown.append(x)
        return torch.eye(3)[int(len(shown) == 1)].repeat(len(x), 1) + 0 * x.flatten(1)[:, :1]

    images = torch.zeros(64, 1, 40, 40)
    images[..., :2], images[..., -2:] = 1.0, 1.0
    at_once = Asker(model, torch.float32, None, ThreatModel(eps=GREY), 64)
    found = when_moved(at_once, images, torch.full((64,), 2), Draws(range(64)), 1, 1e9)
    assert not found["forgotten"].any() and not found["kept"].any()  # rotated and cropped, of different classes
    alone, both = seen[0], seen[1]
    assert not alone[:, 1:].any() and alone[:, 0].equal(both[:, 0])
    for column, most in enumerate((10, 0.08, 0.08)):
        sizes = both[:, column].abs()
        assert most / 2 <= sizes.amin() < 0.6 * most and 0.9 * most < sizes.amax() <= most
        assert 16 < (both[:, column] > 0).sum() < 48
    assert shown[1].amax() < 0.6 and images.amax() == 1  # two of forty columns at each side are gone


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
