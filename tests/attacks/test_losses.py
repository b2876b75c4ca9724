"""Losses by hand, their signs, and what they refuse."""

from __future__ import annotations

import math

import pytest
import torch

from attacks import LOSSES, SPSA, cross_entropy, dlr, dlr_targeted, margin, probability_margin
from attacks.model_access import margin_targeted

LOGITS = torch.tensor([[4.0, 1.0, 3.0, 0.0], [4.0, 1.0, 3.0, 0.0]])
LABELS = torch.tensor([0, 1])


def test_values_by_hand() -> None:
    total = math.log(math.exp(4) + math.exp(1) + math.exp(3) + 1)
    assert cross_entropy(LOGITS, LABELS).tolist() == pytest.approx([total - 4, total - 1])
    assert margin(LOGITS, LABELS).tolist() == [-1.0, 3.0]
    shares = [math.exp(logit - total) for logit in (4, 1, 3, 0)]
    assert probability_margin(LOGITS, LABELS).tolist() == pytest.approx([shares[2] - shares[0], shares[0] - shares[1]])
    sets = torch.tensor([[0, 3], [1, 2]])  # the sum of a set's; the logits' margin takes its largest
    expected = [shares[2] - shares[0] - shares[3], shares[0] - shares[1] - shares[2]]
    assert probability_margin(LOGITS, sets).tolist() == pytest.approx(expected)
    each = (
        [math.log1p(math.exp(gap)) for gap in (1 - 4, 3 - 4, 0 - 4)],
        [math.log1p(math.exp(gap)) for gap in (3, 2, -1)],
    )
    assert LOSSES["bce"](LOGITS, LABELS).tolist() == pytest.approx([sum(part) for part in each])
    assert LOSSES["bce"](LOGITS, sets)[0].item() == pytest.approx(math.log1p(math.exp(-3)) + math.log1p(math.exp(-1)))
    # First minus third is 4 - 1.
    assert dlr(LOGITS, LABELS).tolist() == pytest.approx([-1 / 3, 1.0])
    torch.testing.assert_close(dlr(7 * LOGITS - 2, LABELS), dlr(LOGITS, LABELS))


def test_targeted_values_by_hand() -> None:
    targets = torch.tensor([2, 3])
    assert margin_targeted(LOGITS, LABELS, targets).tolist() == [3.0 - 4.0, 0.0 - 1.0]
    # First minus the mean of third and fourth is 4 - (1 + 0) / 2.
    assert dlr_targeted(LOGITS, LABELS, targets).tolist() == pytest.approx([-1 / 3.5, -1 / 3.5])
    torch.testing.assert_close(dlr_targeted(7 * LOGITS - 2, LABELS, targets), dlr_targeted(LOGITS, LABELS, targets))


@pytest.mark.parametrize("name", LOSSES)
def test_each_loss_falls_with_the_label_s_logit(name: str) -> None:
    labels = torch.tensor([0, 3])  # the third's logit moves numerator and denominator of dlr alike
    logits = LOGITS.clone().requires_grad_()
    LOSSES[name](logits, labels).sum().backward()
    assert logits.grad is not None
    assert (logits.grad[[0, 1], labels] < 0).all()


def test_refusals() -> None:
    with pytest.raises(ValueError, match="dlr loss needs at least 3 classes, the model has 2; use 'ce'"):
        dlr(LOGITS[:, :2], LABELS)
    with pytest.raises(ValueError, match="margin loss needs at least 2 classes, the model has 1"):
        margin(LOGITS[:, :1], LABELS)
    with pytest.raises(ValueError, match="pma loss needs at least 2 classes, the model has 1"):
        probability_margin(LOGITS[:, :1], LABELS)
    with pytest.raises(ValueError, match="targeted dlr loss needs at least 4 classes, the model has 3"):
        dlr_targeted(LOGITS[:, :3], LABELS, LABELS)
    with pytest.raises(ValueError, match="loss is 'mse'; expected one of: ce, margin, dlr, pma"):
        SPSA(loss="mse")
