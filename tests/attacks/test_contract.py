"""What every attack promises: model and images are left alone, bad arguments are named, dtypes and edges work."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
from attack_oracles import Draws, random_images, tiny_cnn
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attacks import APGD, FAB, FGSM, PGD, SPSA, Attack, AutoAttack, HopSkipJump, Square, ThreatModel

THREAT = ThreatModel("linf", 4 / 255)
ATTACKS = [
    FGSM(THREAT),
    PGD(THREAT, steps=3),
    PGD(THREAT, steps=3, restarts=2, early_stop=True),
    SPSA(THREAT, steps=2, directions=4),
    APGD(THREAT, steps=3),
    APGD(THREAT, steps=3, loss="dlr-targeted", targets=2, early_stop=False),
    FAB(THREAT, steps=3, targets=2),
    Square(THREAT, queries=5),
    AutoAttack(THREAT, steps=3, targets=2, queries=5),
    HopSkipJump(THREAT, queries=40, directions=8),
]
IDS = ["fgsm", "pgd", "pgd-restarts", "spsa", "apgd", "apgd-t", "fab", "square", "autoattack", "hopskipjump"]
every_attack = pytest.mark.parametrize("attack", ATTACKS, ids=IDS)
LABELS = torch.arange(4)


@every_attack
def test_a_model_of_one_logit_is_refused(attack: Attack) -> None:
    for labels in (torch.zeros(4, dtype=torch.int64), None):
        with pytest.raises(ValueError, match="the model has 1 class; an attack needs at least 2"):
            attack(tiny_cnn(1), random_images(4), labels)


@every_attack
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_gradient_checkpoints_change_nothing(attack: Attack, reentrant: bool) -> None:
    network, images = tiny_cnn(), random_images(4)

    def model(points: Tensor) -> Tensor:
        return checkpoint(network, points, use_reentrant=reentrant)  # type: ignore[no-any-return]

    found, like = (attack(each, images, LABELS, rng=Draws(range(4))) for each in (model, network))
    assert torch.equal(found, like)


@every_attack
@pytest.mark.parametrize("fails", [False, True])
def test_leaves_the_model_as_found(attack: Attack, fails: bool) -> None:
    model = tiny_cnn().train()
    model[1].eval()  # a frozen batch norm, and a frozen layer
    model[3].weight.requires_grad_(False)
    first = model[0].weight
    first.grad = torch.full_like(first, 7.0)
    heard: list[str] = []
    first.register_hook(lambda gradient: heard.append("parameter"))
    model[6].register_forward_hook(lambda *_: heard.append("forward"))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [part.training for part in model.modules()]

    def during(part: nn.Module, inputs: tuple[Tensor]) -> None:
        assert not any(part.training for part in model.modules())
        assert not any(parameter.requires_grad for parameter in model.parameters())
        if fails:
            raise RuntimeError("no more memory")

    handle = model.register_forward_pre_hook(during)
    images = random_images(4)
    kept = images.clone()
    if fails:
        with pytest.raises(RuntimeError, match="no more memory"):
            attack(model, images, LABELS)
    else:
        attack(model, images, LABELS)
        assert "forward" in heard and "parameter" not in heard
    handle.remove()
    assert [part.training for part in model.modules()] == modes
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["3.weight"]
    assert first.grad.eq(7).all() and all(p.grad is None for p in model.parameters() if p is not first)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(images, kept) and not images.requires_grad
    model(images).sum().backward()  # and it still learns
    assert "parameter" in heard and not first.grad.eq(7).all()  # a dead unit may get none


@every_attack
@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_works_where_gradients_are_off(attack: Attack, context: Any) -> None:
    model = tiny_cnn()
    for labels in (LABELS, None):
        expected = attack(model, random_images(4), labels, rng=Draws(range(4)))
        with context():
            given = None if labels is None else labels.clone()
            found = attack(model, random_images(4), given, rng=Draws(range(4)))
        assert torch.equal(found, expected) and not found.is_inference() and not found.requires_grad


@every_attack
def test_a_function_serves_as_model(attack: Attack) -> None:
    model = tiny_cnn()
    asked = attack(lambda images: model(images), random_images(4), LABELS, rng=Draws(range(4)))
    assert torch.equal(asked, attack(model, random_images(4), LABELS, rng=Draws(range(4))))
    assert all(parameter.grad is None for parameter in model.parameters())


@every_attack
def test_images_that_require_gradients_stay_leaves(attack: Attack) -> None:
    images = random_images(4).requires_grad_()
    found = attack(tiny_cnn(), images, LABELS)
    assert images.requires_grad and images.grad is None and not found.requires_grad


@every_attack
def test_nothing_to_do(attack: Attack) -> None:
    def model(images: Tensor) -> Tensor:
        raise AssertionError("asked in vain")

    empty = attack.run(model, torch.empty(0, 3, 8, 8), torch.empty(0, dtype=torch.int64))
    assert empty.adversarials.shape == (0, 3, 8, 8) and empty.steps.shape == (0,)
    images = random_images(4)
    still = type(attack)(ThreatModel("linf", 0.0)).run(model, images)
    assert torch.equal(still.adversarials, images) and still.adversarials.data_ptr() != images.data_ptr()
    assert still.forwards.tolist() == [0] * 4 and still.broken_at.tolist() == [-1] * 4


@every_attack
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_dtypes(attack: Attack, dtype: torch.dtype) -> None:
    model, images = tiny_cnn().to(dtype), random_images(4).to(dtype)
    # Such attacks want a right prediction to begin with; FAB returns what it broke, and here that is enough.
    searches = attack.queues or attack.minimal
    labels = model(images).argmax(dim=1) if searches else LABELS
    wide = ThreatModel("linf", 1.0 if attack.minimal else 0.1) if searches else THREAT
    found = replace(attack, threat=wide)(model, images, labels)
    assert found.dtype == dtype and (found != images).any()
    assert (wide.distance(found, images) <= wide.eps + 1e-6).all()
    assert found.min() >= 0 and found.max() <= 1


@every_attack
def test_memory_format_is_kept(attack: Attack) -> None:
    model = tiny_cnn().to(memory_format=torch.channels_last)
    seen: list[bool] = []
    model.register_forward_pre_hook(
        lambda _, inputs: seen.append(inputs[0].is_contiguous(memory_format=torch.channels_last))
    )
    images = random_images(4).contiguous(memory_format=torch.channels_last)
    for labels in (LABELS, None):
        found = attack(model, images, labels, rng=Draws(range(4)))
        assert all(seen) and found.is_contiguous(memory_format=torch.channels_last)
        plain = attack(tiny_cnn(), random_images(4), labels, rng=Draws(range(4)))
        apart = (found - plain).abs() > 1e-3  # where a gradient is nearly 0, rounding decides its sign
        assert apart.float().mean() < 0.01


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_nan_gradients_do_not_spread(norm: Any) -> None:
    def model(images: Tensor) -> Tensor:
        factor = torch.where(images[:, :1, 0, 0] > 0.9, float("nan"), 1.0)
        return images.flatten(1)[:, :3] * factor

    images = random_images(2)
    images[:, 0, 0, 0] = torch.tensor([1.0, 0.5])
    for attack in (FGSM(ThreatModel(norm, 0.01)), PGD(ThreatModel(norm, 0.01), random_start=False)):
        found = attack(model, images, torch.tensor([0, 0]))
        assert torch.equal(found[0], images[0])
        assert (found[1] != images[1]).any() and found.isfinite().all()


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack.queues])
def test_nan_logits_do_not_spread_in_a_queue(attack: Attack) -> None:
    def model(images: Tensor) -> Tensor:
        factor = torch.where(images[:, :1, 0, 0] > 0.9, float("nan"), 1.0)
        return images.flatten(1)[:, 1:6] * factor  # NaN counts as the largest: class 0

    images = random_images(3)
    images[:, 0, 0, 0] = torch.tensor([1.0, 0.5, 0.5])
    found = attack(model, images, rng=Draws([4, 5, 6]))
    assert found.isfinite().all() and (THREAT.distance(found, images) <= THREAT.eps + 1e-6).all()
    alone = attack(model, images[1:], rng=Draws([5, 6]))
    torch.testing.assert_close(found[1:], alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("attack", [attack for attack in ATTACKS if attack.queues])
def test_a_queue_keeps_to_its_batch_size(attack: Attack) -> None:
    model, rows = tiny_cnn(), []
    model.register_forward_pre_hook(lambda _, inputs: rows.append(len(inputs[0])))
    result = attack.run(model, random_images(4), rng=Draws(range(4)), batch_size=3)
    assert max(rows) == 3 and rows[:2] == [3, 1] and sum(rows) == result.forwards.sum()
    with pytest.raises(ValueError, match="batch_size is 0; expected 1 or more, or None for all at once"):
        attack.run(model, random_images(4), batch_size=0)


@every_attack
@pytest.mark.parametrize(
    ("images", "labels", "error", "message"),
    [
        (random_images(4) * 2 - 1, LABELS, ValueError, r"images go from -1 to 1, outside .*\[0, 1\].*inside the model"),
        (random_images(4) * 255, LABELS, ValueError, r"images go from 0 to 255, outside the bounds \[0, 1\]"),
        (random_images(4) * float("nan"), LABELS, ValueError, "images contain NaN"),
        (random_images(4).mul(255).byte(), LABELS, TypeError, r"images are torch.uint8; .*images.float\(\) / 255"),
        (torch.rand(4), LABELS, ValueError, r"images have shape \(4,\); expected a batch"),
        (random_images(4), LABELS.float(), TypeError, "labels are torch.float32; expected .* integer class indices"),
        (random_images(4), LABELS[:3], ValueError, r"labels have shape \(3,\) for 4 images; expected \(4,\)"),
        (random_images(4), LABELS - 1, ValueError, "labels go down to -1; expected class indices, 0 or more"),
        (random_images(4), LABELS + 2, ValueError, r"labels go up to 5, the model has 5 classes \(0 to 4\)"),
    ],
)
def test_bad_arguments(attack: Attack, images: Tensor, labels: Tensor, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        attack(tiny_cnn(), images, labels)


def test_bad_models() -> None:
    with pytest.raises(ValueError, match=r"the model returned \(4, 5, 1\) for 4 images; expected logits"):
        FGSM()(lambda images: tiny_cnn()(images)[..., None], random_images(4), LABELS)
    with pytest.raises(ValueError, match="the model returned tuple for 4 images"):
        PGD()(lambda images: (tiny_cnn()(images),), random_images(4), LABELS)  # type: ignore[arg-type,return-value]
    with pytest.raises(ValueError, match=r"no gradient with respect to its input.*such as SPSA"):
        FGSM()(lambda images: tiny_cnn()(images).detach(), random_images(4), LABELS)
    constant = torch.zeros(4, 5, requires_grad=True)
    with pytest.raises(ValueError, match="no gradient with respect to its input"):
        FGSM()(lambda images: constant, random_images(4), LABELS)


def test_imports_torch_and_nothing_of_the_house() -> None:
    code = (
        "import torch, sys; before = set(sys.modules); import attacks; "
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before}))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "['attacks', 'lazy_loader']"


@pytest.mark.parametrize("norm", ["linf", "l2"])
@every_attack
def test_a_model_that_begins_with_a_sum_can_be_attacked(attack: Attack, norm: str) -> None:
    """Its gradient is one number for all channels, seen from many places in memory."""
    attack = replace(attack, threat=ThreatModel(norm, 0.5))  # type: ignore[arg-type]
    images, weights = torch.full((4, 3, 4, 4), 0.5), torch.linspace(-1, 1, 40).reshape(4, 10)

    def model(points: Tensor) -> Tensor:
        return points.flatten(1).sum(dim=1, keepdim=True).expand(-1, 4).cos() @ weights

    found = attack(model, images, LABELS)
    assert found.shape == images.shape and bool(torch.isfinite(found).all())
