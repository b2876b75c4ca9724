"""SEA: its losses by hand, what it keeps, SegPGD as a lower bound, passes counted, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from attack_oracles import Draws
from torch import Tensor, nn

from attacks import SEA, DensePGD, ThreatModel
from attacks.dense import _accuracy, _iou, balanced, jensen_shannon, masked

pytestmark = pytest.mark.usefixtures("one_thread")


def scene(count: int = 5, classes: int = 4, seed: int = 0) -> tuple[nn.Module, Tensor, Tensor]:
    """A net that predicts a class for each pixel, images of 8 x 8 pixels, and masks near what it predicts."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GELU(), nn.Conv2d(8, classes, 3, padding=1)).eval()
    draw = torch.Generator().manual_seed(seed)
    images = torch.rand(count, 3, 8, 8, generator=draw)
    masks = net(images).argmax(dim=1)
    masks[:, :1] = -1
    masks[:, 1:2] = (masks[:, 1:2] + 1) % classes
    return net, images, masks


def test_losses_by_hand() -> None:
    logits = torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    masks = logits.argmax(dim=1)
    masks[0, 0], masks[0, 1, 0], masks[1, 2, 2] = -1, (masks[0, 1, 0] + 1) % 4, (masks[1, 2, 2] + 2) % 4
    for image in range(2):
        js, of_right, of_class, sizes = [], [], dict[int, float](), dict[int, int]()
        for y in range(3):
            for x in range(3):
                label = int(masks[image, y, x])
                if label < 0:
                    continue
                p = logits[image, :, y, x].softmax(0)
                one = torch.nn.functional.one_hot(torch.tensor(label), 4).double()
                middle = (p + one) / 2
                js.append(0.5 * float((p * (p / middle).log()).sum()) + 0.5 * float(-(middle[label]).log()))
                loss = -math.log(float(p[label])) if int(p.argmax()) == label else 0.0
                of_right.append(loss)
                of_class[label] = of_class.get(label, 0.0) + loss
                sizes[label] = sizes.get(label, 0) + 1
        assert float(jensen_shannon(logits, masks)[image]) == pytest.approx(sum(js) / len(js))
        assert float(masked(logits, masks)[image]) == pytest.approx(sum(of_right) / len(of_right))
        mean = sum(of_class[label] / sizes[label] for label in sizes) / len(sizes)
        assert float(balanced(logits, masks)[image]) == pytest.approx(mean)


def test_scores_of_images_by_hand() -> None:
    logits = torch.zeros(1, 3, 1, 5)
    for place, predicted in enumerate((0, 0, 1, 2, 2)):
        logits[0, predicted, 0, place] = 1.0
    masks = torch.tensor([[[0, 1, 1, -1, 0]]])
    assert float(_accuracy(logits, masks)) == 0.5
    assert float(_iou(logits, masks)) == pytest.approx((1 / 3 + 1 / 2) / 2)  # of classes 0 and 1, which the mask shows
    logits[0, 1, 0, 0] = math.nan
    assert float(_accuracy(logits, masks)) == 0.25


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("worst", ["accuracy", "iou"])
def test_of_each_image_the_worst_is_kept_and_segpgd_does_no_more(norm: Any, worst: Any) -> None:
    net, images, masks = scene()
    threat = ThreatModel(norm, 0.03 if norm == "linf" else 0.4)
    found = SEA(threat, steps=12, worst=worst).run(net, images, masks, rng=Draws(range(5)))
    weighed = DensePGD(threat, steps=12, weighting="segpgd")(net, images, masks, rng=Draws(range(5)))
    score = {"accuracy": _accuracy, "iou": _iou}[worst]
    with torch.no_grad():
        ours, theirs, clean = (score(net(points), masks) for points in (found.adversarials, weighed, images))
    assert (ours <= theirs + 1e-6).all() and (ours < theirs - 1e-6).any() and (ours < clean).all()
    assert (threat.distance(found.adversarials, images) <= threat.eps + 1e-6).all()
    assert found.adversarials.min() >= 0 and found.adversarials.max() <= 1
    assert found.forwards.tolist() == [4 * 13] * 5 and found.backwards.tolist() == [4 * 12] * 5
    alone = SEA(threat, steps=12, worst=worst)(net, images[3:4], masks[3:4], rng=Draws([3]))
    torch.testing.assert_close(alone, found.adversarials[3:4], rtol=0, atol=1e-5)


def test_without_masks_the_models_own_predictions_are_attacked() -> None:
    net, images, _ = scene()
    threat = ThreatModel("linf", 0.03)
    own = net(images).argmax(dim=1)
    one, other = (SEA(threat, steps=3).run(net, images, m, rng=Draws(range(5))) for m in (None, own))
    assert torch.equal(one.adversarials, other.adversarials) and (one.forwards == other.forwards + 1).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SEA(steps=2), "steps is 2; expected 3 or more"),
        (lambda: SEA(rho=0), "rho is 0; expected a share above 0"),
        (lambda: SEA(worst="dice"), "worst is 'dice'; expected one of: accuracy, iou"),  # type: ignore[arg-type]
        (lambda: SEA(ThreatModel("l1")), "norm is 'l1'; SEA knows linf, l2"),
        (lambda: DensePGD(ThreatModel("l0")), "norm is 'l0'"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()
