"""What attacks and corruptions may ask of a device: counts, not times, on the stand-in."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from stand_in import Counts
from torch import Tensor, nn

import attacks
from attacks import APGD, FAB, FGSM, PGD, SPSA, Attack, AutoAttack, Square, ThreatModel
from corruptions import corruption
from corruptions.base import Draws
from robustkit.common.determinism import SampleRng

pytestmark = pytest.mark.gpu
BATCH = 24


class Watched(nn.Module):
    """Ten logits of 8 x 8 images, with what the host had waited for at each pass. sure: class 0 always wins."""

    def __init__(self, seen: Counts, sure: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.GELU(), nn.Flatten(), nn.Linear(512, 10))
        self.layers[3].bias.data[0] += 1e3 * sure  # type: ignore[union-attr, operator]
        self.seen = seen
        self.stops: list[int] = []
        self.rows: list[int] = []

    def forward(self, images: Tensor) -> Tensor:
        self.stops.append(self.seen.stops)
        self.rows.append(len(images))
        logits: Tensor = self.layers(images)
        return logits


def attacked(seen: Counts, attack: Attack, sure: bool = False, **options: Any) -> tuple[Watched, attacks.AttackResult]:
    model = Watched(seen, sure).to("cuda")
    images = torch.rand(BATCH, 3, 8, 8, generator=torch.Generator().manual_seed(1)).to("cuda")
    labels = model.layers(images).argmax(1)
    seen.forget()
    return model, attack.run(model, images, labels, **options)


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("kind", [FGSM, PGD])
def test_a_gradient_attack_waits_at_most_five_times(kind: Callable[..., Attack], norm: str, seen: Counts) -> None:
    model, _ = attacked(seen, kind(ThreatModel(norm, 0.1)))  # type: ignore[arg-type]
    assert len(model.stops) == (20 if kind is PGD else 1)
    assert model.stops[0] <= 2 and seen.stops <= 5
    assert model.stops[-1] == model.stops[0]  # none of them on the way


QUEUED: dict[str, Attack] = {
    "apgd-ce": APGD(ThreatModel(eps=0.02), steps=8),
    "apgd-dlr, restarts": APGD(ThreatModel(eps=0.02), steps=8, restarts=3, loss="dlr"),
    "apgd-t": APGD(ThreatModel(eps=0.02), steps=8, loss="dlr-targeted", targets=3),
    "apgd, to the end": APGD(ThreatModel(eps=0.02), steps=8, early_stop=False),
    "apgd, l2, averaged": APGD(ThreatModel("l2", 0.2), steps=10, eot=2),
    "fab-t": FAB(ThreatModel(eps=0.02), steps=5, targets=3),
    "fab-t, l2": FAB(ThreatModel("l2", 0.2), steps=4, targets=3, restarts=2),
    "fab, relinearised": FAB(ThreatModel(eps=0.02), steps=8, targets=2, relinearise=True, early_stop=False),
    "square": Square(ThreatModel(eps=0.02), queries=30),
    "square, l2": Square(ThreatModel("l2", 0.2), queries=12, restarts=2),
}


@pytest.mark.parametrize("sure", [False, True], ids=["samples fall", "none falls"])
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if "l2" in name else []) for name in QUEUED]
)
def test_a_queued_attack_waits_at_most_twice_a_step(name: str, sure: bool, seen: Counts) -> None:
    model, result = attacked(seen, QUEUED[name], sure, batch_size=10)
    steps = Counter(after - before for before, after in zip(model.stops, model.stops[1:], strict=False))
    assert max(steps) <= 2, (steps, seen.waits)
    assert seen.stops <= 2 * len(model.stops) + 6
    fallen = int((result.broken_at >= 0).sum())
    assert fallen == 0 if sure else fallen > 0


def test_autoattack_waits_at_most_twice_a_step(seen: Counts) -> None:
    model, _ = attacked(seen, AutoAttack(ThreatModel(eps=0.02), steps=10, targets=3, queries=40), batch_size=10)
    assert seen.stops <= 2 * len(model.stops) + 8


@pytest.mark.parametrize("batch_size", [1, 7, 64])
def test_spsa_never_asks_for_more_rows_than_the_batch_size(batch_size: int, seen: Counts) -> None:
    model, result = attacked(seen, SPSA(steps=2, directions=5), batch_size=batch_size)
    assert max(model.rows) <= batch_size and sum(model.rows) == 2 * 2 * 5 * BATCH
    assert result.forwards.tolist() == [20] * BATCH
    assert model.stops[-1] <= 3


def test_pgd_asks_the_judge_once_of_each_sample_that_breaks(seen: Counts) -> None:
    judge = Watched(seen).to("cuda")
    attack = PGD(ThreatModel(eps=0.01), steps=12)
    _, alone = attacked(seen, attack)
    _, judged = attacked(seen, attack, judge=judge)
    broken = alone.broken_at >= 0
    assert 3 < int(broken.sum()) < BATCH
    assert torch.equal(judged.broken_at, alone.broken_at) and torch.equal(judged.adversarials, alone.adversarials)
    assert torch.equal(judged.forwards, alone.forwards + broken.long()) and sum(judge.rows) == int(broken.sum())


@pytest.mark.parametrize(("name", "most"), [("motion_blur", 260), ("snow", 260), ("defocus_blur", 20)])
@pytest.mark.parametrize("variant", ["hendrycks", "bethgelab"])
def test_a_corruption_of_128_images_takes_few_launches(name: str, most: int, variant: str, seen: Counts) -> None:
    images = torch.randint(0, 256, (128, 3, 24, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    made = corruption(name, variant=variant)
    rng = SampleRng.of([str(i) for i in range(128)], seed=0, condition=name, device="cpu")
    for severity in (1, 5):
        draws = made.draw(images.shape[1:], severity, rng)
        there = Draws(severity, {key: values.to("cuda") for key, values in draws.numbers.items()})
        shown = images.to("cuda")
        made.apply(shown, there)  # what depends on the size alone is made once
        seen.forget()
        result = made.apply(shown, there)
        assert seen.launched <= most and seen.stops <= 2
        assert torch.equal(result.cpu(), made.apply(images, draws))
