"""A model that `asks_rows`: every attack tells it which sample each point is of, as if each sample were alone."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from attack_oracles import Draws, random_images, tiny_cnn
from torch import Tensor, nn

import attacks

pytestmark = pytest.mark.usefixtures("one_thread")
_BALL: dict[str, Any] = {"eps": 0.1}
ATTACKS = [
    attacks.FGSM(**_BALL, loss="bce"),
    attacks.PGD(**_BALL, steps=6),
    attacks.PGD(**_BALL, steps=60, step_size=0.1, random_start=False),  # long enough to look for circles
    attacks.PGD(**_BALL, steps=5, restarts=2, early_stop=True),
    attacks.PGD(**_BALL, steps=5, restarts=2),
    attacks.SPSA(**_BALL, steps=3, directions=6, loss="bce"),
    attacks.APGD(**_BALL, steps=8, loss="bce"),
    attacks.APGD(**_BALL, steps=8, loss="margin-targeted", order="malt", targets=2),
    attacks.FAB(**_BALL, steps=8, targets=2, relinearise=True, early_stop=False),
    attacks.Square(**_BALL, queries=30, loss="bce"),
    attacks.FMN(norm="linf", steps=20),
    attacks.HopSkipJump(norm="l2", queries=80),
    attacks.Patch(size=5, steps=9, where="random"),
    attacks.Spatial(),
    attacks.AutoAttack(**_BALL, steps=5, queries=10),
]


class Shuffled(nn.Module):
    """Classes in an order of each sample's own. clean: the samples, which points must be near to; None: any point."""

    asks_rows = True

    def __init__(self, model: nn.Module, orders: Tensor, clean: Tensor | None = None) -> None:
        super().__init__()
        self.model, self.orders, self.clean = model, orders, clean

    def forward(self, images: Tensor, rows: Tensor) -> Tensor:
        if self.clean is not None:
            assert ((images - self.clean[rows]).abs().flatten(1).median(dim=1).values < 0.15).all()
        logits: Tensor = self.model(images)
        return logits.gather(1, self.orders[rows])


@pytest.mark.parametrize("judged", [False, True], ids=["trusted", "judged"])
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: f"{type(attack).__name__}-{getattr(attack, 'loss', '')}")
def test_each_sample_is_attacked_as_if_it_were_alone(attack: Any, judged: bool) -> None:
    model, images = tiny_cnn().double(), random_images(5).double()
    orders = torch.stack([torch.arange(5).roll(place) for place in range(5)])
    moves_far = isinstance(attack, attacks.HopSkipJump | attacks.Spatial | attacks.AutoAttack)
    whole = Shuffled(model, orders, None if moves_far else images)
    labels = whole(images, torch.arange(5)).argmax(dim=1)
    assert len(set(labels.tolist())) > 1  # with another sample's order a right prediction is wrong
    labels[3] = (labels[3] + 1) % 5
    together = attack.run(whole, images, labels, rng=Draws(range(5)), judge=whole if judged else None, batch_size=3)
    for place in range(5):
        alone = Shuffled(model, orders[place : place + 1])
        one, judge = slice(place, place + 1), alone if judged else None
        once = attack.run(alone, images[one], labels[one], rng=Draws([place]), judge=judge)
        torch.testing.assert_close(together.adversarials[one], once.adversarials, rtol=0, atol=1e-9)
        assert together.broken_at[place] == once.broken_at[0]


def test_predicted_labels_are_those_of_each_sample(one_thread: None) -> None:
    model, images = tiny_cnn().double(), random_images(5).double()
    whole = Shuffled(model, torch.stack([torch.arange(5).roll(place) for place in range(5)]))
    labels = whole(images, torch.arange(5)).argmax(dim=1)
    for attack in (attacks.PGD(**_BALL, steps=3), attacks.SPSA(**_BALL, steps=2, directions=4), attacks.Spatial()):
        with_labels, with_predictions = (
            attack.run(whole, images, targets, rng=Draws(range(5))) for targets in (labels, None)
        )
        torch.testing.assert_close(with_labels.adversarials, with_predictions.adversarials, rtol=0, atol=0)
