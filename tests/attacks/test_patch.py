"""Patches: closed form on a linear model, places, what stays, counts, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacks import PGD, Patch, PatchResult, ThreatModel
from robustkit.common.determinism import SampleRng

SIZE = 4


def patch(where: str = "corner", **options: Any) -> Patch:
    return Patch(ThreatModel("patch", size=SIZE, where=where), **{"steps": 60} | options)


class Linear(nn.Module):
    def __init__(self, bias: float = 0.0) -> None:
        super().__init__()
        self.weight = torch.randn(3, 12, 16, generator=torch.Generator().manual_seed(0))
        self.bias = bias

    def forward(self, x: Tensor) -> Tensor:
        score = (x * self.weight).flatten(1).sum(dim=1) + self.bias
        return torch.stack([score, -score], dim=1) * 0.1


def images(count: int = 6) -> Tensor:
    return torch.rand(count, 3, 12, 16, generator=torch.Generator().manual_seed(1))


def changed(result: PatchResult, x: Tensor) -> Tensor:
    return (result.adversarials != x).any(dim=1)


def test_on_a_linear_model_the_values_go_to_the_ends_of_the_bounds() -> None:
    model, x = Linear(bias=60.0), images()  # too far to be broken, so that all steps are made
    result = patch().run(model, x, torch.zeros(6, dtype=torch.int64))
    assert isinstance(result, PatchResult)
    best = (model.weight[:, :SIZE, :SIZE] < 0).float().expand(6, -1, -1, -1)
    torch.testing.assert_close(result.adversarials[:, :, :SIZE, :SIZE], best, rtol=0, atol=1e-6)
    inside = torch.zeros(12, 16, dtype=torch.bool)
    inside[:SIZE, :SIZE] = True
    assert torch.equal(result.adversarials[:, :, ~inside], x[:, :, ~inside])
    assert (result.places == 0).all() and (result.broken_at == -1).all()
    assert result.steps.tolist() == result.backwards.tolist() == [60] * 6 and result.forwards.tolist() == [62] * 6
    assert ThreatModel("patch", size=SIZE).distance(result.adversarials, x).tolist() == pytest.approx([16 / 192] * 6)


def test_broken_samples_leave_with_their_place_and_wrong_ones_are_not_touched() -> None:
    x = images(40)
    model = Linear()
    score = 10 * model(x)[:, 0]
    labels = (score < 0).long()
    labels[0] = 1 - labels[0]  # wrong as it is
    most = torch.where(model.weight > 0, x, x - 1) * model.weight  # what each value can take from the score
    room = nn.functional.avg_pool2d(most.sum(dim=1), SIZE).flatten(1) * SIZE**2  # (40, places)
    for where, runs in (("corner", 1), ("random", 1), ("worst-of-12", 12), ("worst-of-500", 12)):
        torch.manual_seed(0)
        result = patch(where).run(model, x, labels)
        assert isinstance(result, PatchResult)
        assert result.broken_at[0] == 0 and not changed(result, x)[0].any() and result.forwards[0] == 1
        wrong = model(result.adversarials).argmax(dim=1) != labels
        assert torch.equal(wrong, result.broken_at >= 0)
        assert (result.places % SIZE == 0).all() and (len(result.places[1:].unique(dim=0)) == 1) == (where == "corner")
        for index in range(1, 40):
            top, left = result.places[index].tolist()
            outside = changed(result, x)[index].clone()
            outside[top : top + SIZE, left : left + SIZE] = False
            assert not outside.any()
        if runs == 12:  # all places are tried: a sample stands exactly where none has room enough
            flipped = torch.where(labels == 0, room.amax(dim=1) > score, False)
            assert torch.equal(wrong[1:][labels[1:] == 0], flipped[1:][labels[1:] == 0])


def test_a_sample_s_patch_is_its_own_and_momentum_counts_the_past() -> None:
    x, model, labels = images(5), Linear(), torch.zeros(5, dtype=torch.int64)
    rng = SampleRng.of(list("abcde"), seed=0, condition="patch", device="cpu")
    whole = patch("worst-of-3", steps=7, early_stop=False).run(model, x, labels, rng=rng)
    rows = torch.tensor([3, 1])
    part = patch("worst-of-3", steps=7, early_stop=False).run(model, x[rows], labels[rows], rng=rng.take(rows))
    assert torch.equal(part.adversarials, whole.adversarials[rows]) and torch.equal(part.steps, whole.steps[rows])
    assert whole.steps.tolist()[1:] != [0] * 4


class Swinging(nn.Module):
    """Its answer changes with every small step, so that a wrong point is hardly ever the last one."""

    def forward(self, x: Tensor) -> Tensor:
        score = (300 * x.flatten(1).sum(dim=1)).sin() + 0.5
        return torch.stack([score, -score], dim=1)


@pytest.mark.parametrize("where", ["corner", "worst-of-3"])
def test_without_early_stop_the_first_wrong_point_is_returned(where: str) -> None:
    x, model, labels = images(40), Swinging(), torch.zeros(40, dtype=torch.int64)
    rng = SampleRng.of([f"s{i}" for i in range(40)], seed=0, condition="patch", device="cpu")
    early, result = (patch(where, steps=12, early_stop=stops).run(model, x, labels, rng=rng) for stops in (True, False))
    broken = result.broken_at >= 0
    assert torch.equal(model(result.adversarials).argmax(dim=1) != labels, broken) and broken.sum() > 30
    assert isinstance(early, PatchResult) and isinstance(result, PatchResult)
    assert torch.equal(early.adversarials[broken], result.adversarials[broken])
    assert torch.equal(early.places[broken], result.places[broken])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ThreatModel("patch", size=0), "size is 0; expected 1 pixel"),
        (lambda: ThreatModel("patch", where="worst-of-0"), "where is 'worst-of-0'; expected corner, random"),
        (lambda: patch(loss="banana"), "loss is 'banana'; expected one of: ce, kq, kq-cls"),
        (lambda: patch(steps=0), "steps is 0"),
        (lambda: patch(step_size=float("nan")), "step_size is nan"),
        (lambda: patch()(Linear(), images()[:, :, :3]), "expected .B, C, H, W., 4 x 4 at least"),
        (
            lambda: Patch(ThreatModel("patch", bounds=None, size=2))(Linear(), images()),
            "no bounds are given; state them",
        ),
        (lambda: Patch(ThreatModel("linf"))(Linear(), images()), "norm is 'linf'; Patch knows patch"),
        (lambda: PGD(ThreatModel("patch"))(Linear(), images()), "norm is 'patch'; PGD knows linf, l2"),
        (
            lambda: patch(loss="kq")(Linear(), images()),
            "the model has no key_loss; expected one with a supported attention",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(make: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()
