"""DensePGD and DenseFGSM: closed forms, the paper's loop pixel by pixel, ignored pixels, passes, messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from attack_oracles import Draws, into_ball
from torch import Tensor, nn

from attacks import PGD, SEA, CosPGD, DenseFGSM, DensePGD, ThreatModel

THREAT = ThreatModel("linf", 4 / 255)
SHORT = [
    DenseFGSM(THREAT),
    DensePGD(THREAT, steps=3),
    DensePGD(THREAT, steps=3, weighting="segpgd"),
    CosPGD(THREAT, steps=3),
]
every_attack = pytest.mark.parametrize("attack", SHORT, ids=["fgsm", "pgd", "segpgd", "cospgd"])
# 0: no pixel ignored; 1: some; 2: all; 3: wrong everywhere (class 3 is never predicted).
MASKS = torch.randint(0, 3, (4, 4, 5), generator=torch.Generator().manual_seed(2))
MASKS[1, 0], MASKS[2], MASKS[3] = -1, -1, 3


def tiny_net(classes: int = 4) -> nn.Module:
    """Pixels to logits of a pixel, through neighbours, batch normalisation and dropout; always the same weights."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.GELU(),
            nn.Dropout(0.5),
            nn.Conv2d(8, classes, 3, padding=1),
        )
    net[4].weight.data *= 8
    net[4].bias.data[-1] = -20.0
    return net.eval()


def some_images(count: int = 4) -> Tensor:
    """(count, 3, 4, 5) in [0, 1], with some values at the very ends."""
    images = torch.rand(count, 3, 4, 5, generator=torch.Generator().manual_seed(1))
    return (images * 1.2 - 0.1).clamp(0, 1)


def pixelwise(weights: Tensor) -> nn.Module:
    """Two classes with logits (0, weights · x) of each pixel x: a 1x1 convolution."""
    model = nn.Conv2d(3, 2, 1, bias=False)
    model.weight.data = torch.stack([torch.zeros_like(weights), weights])[:, :, None, None]
    return model


def pgd_pixel_by_pixel(
    model: nn.Module,
    image: Tensor,
    mask: list[list[int]],
    change: Tensor,
    norm: str,
    eps: float,
    size: float,
    steps: int,
    weighting: str,
) -> Tensor:
    """Gu et al. (2022), algorithm 1, for one image from the perturbation `change`; "uniform" leaves out its weights."""
    change = (image + into_ball(change, norm, eps)).clamp(0, 1) - image
    for t in range(1, steps + 1):
        change = change.clone().requires_grad_()
        logits = model((image + change)[None])[0]
        loss, pixels = (0 * logits).sum(), 0
        for y, row in enumerate(mask):
            for x, label in enumerate(row):
                if label < 0:
                    continue
                pixels += 1
                scores = logits[:, y, x]
                wrong = any(other > scores.tolist()[label] for other in scores.tolist())
                weight = 1.0
                if weighting == "cospgd":
                    shares = [other / sum(scores.exp().tolist()) for other in scores.exp().tolist()]
                    weight = shares[label] / sum(share * share for share in shares) ** 0.5
                if weighting == "segpgd":
                    weight = (t - 1) / (2 * steps) if wrong else 1 - (t - 1) / (2 * steps)
                loss = loss + weight * (scores.exp().sum().log() - scores[label])
        (gradient,) = torch.autograd.grad(loss / max(pixels, 1), change)
        length = float((gradient * gradient).sum()) ** 0.5
        direction = gradient.sign() if norm == "linf" else gradient / (length or 1.0)
        change = into_ball(change.detach() + size * direction, norm, eps)
        change = (image + change).clamp(0, 1) - image
    return image + change


@pytest.mark.parametrize("weighting", ["uniform", "segpgd", "cospgd"])
def test_linear_optimum(weighting: Any) -> None:
    weights = torch.tensor([2.0, -1.0, -1.0])  # at grey both classes have logit 0, and every pixel pulls as hard
    grey, masks = torch.full((1, 3, 1, 4), 0.5), torch.tensor([[[0, 1, -1, 0]]])
    away = torch.tensor([1.0, -1.0, 0.0, 1.0])[None, :] * weights[:, None]  # class 0 wants weights · x raised
    model = pixelwise(weights)
    box = DensePGD(ThreatModel("linf", 0.1), steps=30, random_start=False, weighting=weighting)
    torch.testing.assert_close(box(model, grey, masks)[0, :, 0], 0.5 + 0.1 * away.sign())
    torch.testing.assert_close(
        DenseFGSM(ThreatModel("linf", 0.1))(model, grey, masks)[0, :, 0], 0.5 + 0.1 * away.sign()
    )
    # Three pixels of squared length 6: the step of l2 length eps is eps / sqrt(18) times them.
    round_ = DenseFGSM(ThreatModel("l2", 0.3))(model, grey, masks)
    torch.testing.assert_close(round_[0, :, 0], 0.5 + 0.3 / 18**0.5 * away)


def test_bounds_cut_the_step_by_hand() -> None:
    images, masks = torch.tensor([0.98, 0.5, 0.01]).reshape(1, 3, 1, 1), torch.zeros(1, 1, 1, dtype=torch.int64)
    model = pixelwise(torch.tensor([1.0, 1.0, -1.0]))
    moved = DenseFGSM(ThreatModel("linf", 0.1))(model, images, masks)
    torch.testing.assert_close(moved.flatten(), torch.tensor([1.0, 0.6, 0.0]))
    first = DensePGD(ThreatModel("linf", 0.1, None), steps=1, random_start=False)  # 0.15 * 0.1
    torch.testing.assert_close(first(model, images, masks).flatten(), torch.tensor([0.995, 0.515, -0.005]))


@pytest.mark.parametrize(
    ("weighting", "lambdas"), [("uniform", None), ("segpgd", [0.0, 0.125, 0.25, 0.375])], ids=["uniform", "segpgd"]
)
def test_the_gradient_of_each_step_by_hand(weighting: Any, lambdas: list[float] | None) -> None:
    seen: list[Tensor] = []

    def model(images: Tensor) -> Tensor:
        # Logits (ln 3, 0) everywhere: probabilities 3/4 and 1/4, class 0 predicted.
        logits = torch.zeros(2, 2, 2, 2) + torch.tensor([3.0, 1.0]).log()[:, None, None]
        logits = logits + (images - images.detach()).mean(dim=1, keepdim=True)
        logits.register_hook(lambda gradient: seen.append(gradient.clone()))
        return logits

    masks = torch.tensor([[[0, 1], [-5, 1]], [[0, 0], [0, 0]]])
    DensePGD(THREAT, steps=4, weighting=weighting)(model, torch.full((2, 3, 2, 2), 0.5), masks)
    assert len(seen) == 4
    for step, gradient in enumerate(seen):
        right, wrong = (1.0, 1.0) if lambdas is None else (1 - lambdas[step], lambdas[step])
        # Of class 1: its probability, less 1 where it is the label; over 3 pixels that count, and over 4.
        first = torch.tensor([[right * 0.25 / 3, wrong * -0.75 / 3], [0.0, wrong * -0.75 / 3]])
        second = torch.full((2, 2), right * 0.25 / 4)
        expected = torch.stack([first, second])
        torch.testing.assert_close(gradient, torch.stack([-expected, expected], dim=1))


@pytest.mark.parametrize("weighting", ["uniform", "segpgd", "cospgd"])
@pytest.mark.parametrize(("norm", "eps"), [("linf", 0.06), ("l2", 0.4)])
@pytest.mark.parametrize("random_start", [True, False])
def test_the_paper_s_loop(weighting: Any, norm: Any, eps: float, random_start: bool) -> None:
    model, images, draws = tiny_net().double(), some_images().double(), Draws(range(4))
    attack = DensePGD(ThreatModel(norm, eps), 6, eps / 4, random_start, weighting)
    ours = attack(model, images, MASKS, rng=draws)
    if norm == "linf":
        start = (2 * draws.uniform((3, 4, 5), "pgd/start/0").double() - 1) * eps
    else:
        normal = draws.normal((3, 4, 5), "pgd/start/0/direction").double()
        radius = draws.uniform((1,), "pgd/start/0/radius").double()[:, :, None, None] ** (1 / 60)
        start = eps * radius * normal / normal.flatten(1).norm(dim=1)[:, None, None, None]
    for i in range(4):
        change = start[i] if random_start else torch.zeros_like(start[i])
        mask = MASKS[i].tolist()
        slow = pgd_pixel_by_pixel(model, images[i], mask, change, norm, eps, eps / 4, 6, weighting)
        torch.testing.assert_close(ours[i], slow, rtol=0, atol=1e-6)


def test_the_weightings_differ_and_both_turn_pixels() -> None:
    model, images = tiny_net(), some_images(8)
    masks = model(images).argmax(dim=1)
    found = [
        DensePGD(ThreatModel("linf", 0.1), weighting=weighting)(model, images, masks, rng=Draws(range(8)))
        for weighting in ("uniform", "segpgd", "cospgd")
    ]
    assert (found[0] != found[1]).any()
    for points in found:
        assert (model(points).argmax(dim=1) != masks).float().mean() > 0.2


@pytest.mark.parametrize("weighting", ["uniform", "segpgd", "cospgd"])
def test_ignored_pixels_have_no_part(weighting: Any) -> None:
    net, images, draws = tiny_net(), some_images(), Draws(range(4))
    attack = DensePGD(THREAT, steps=5, weighting=weighting)
    expected = attack(net, images, MASKS, rng=draws)
    for other in (-7, -100, -128):
        masks = MASKS.masked_fill(MASKS < 0, other).to(torch.int8)
        assert torch.equal(attack(net, images, masks, rng=draws), expected)

    def elsewhere(points: Tensor) -> Tensor:
        return net(points).masked_fill((MASKS < 0)[:, None], 40.0) * (1 + 0 * points.mean())

    torch.testing.assert_close(attack(elsewhere, images, MASKS, rng=draws), expected, rtol=0, atol=1e-6)
    # All ignored: nowhere to go.
    assert torch.equal(expected[2], THREAT.random_start(images, draws, "pgd/start/0")[2])
    assert (expected[2] != images[2]).any()
    assert torch.equal(replace(attack, random_start=False)(net, images, MASKS)[2], images[2])
    nothing = torch.full_like(MASKS, -1)
    assert torch.equal(DenseFGSM(ThreatModel("l2", 1.0), weighting)(net, images, nothing), images)


def test_segpgd_begins_with_the_right_pixels() -> None:
    model, images = tiny_net(), some_images()
    for steps, moves in ((1, False), (2, True)):
        attack = DensePGD(THREAT, steps=steps, random_start=False, weighting="segpgd")
        found = attack(model, images, MASKS)
        assert (found[0] != images[0]).any()
        assert torch.equal(found[3], images[3]) is not moves  # wrong everywhere


@pytest.mark.parametrize("masks", [MASKS, None], ids=["masks", "predicted"])
@every_attack
def test_batch_and_order_do_not_matter(attack: DensePGD, masks: Tensor | None) -> None:
    model, images, order = tiny_net().double(), some_images().double(), torch.tensor([3, 1, 0])
    for norm, eps in (("linf", 0.05), ("l2", 0.5)):
        attack = replace(attack, threat=ThreatModel(norm, eps))
        whole = attack(model, images, masks, rng=Draws(range(4)))
        part = attack(model, images[order], None if masks is None else masks[order], rng=Draws(order.tolist()))
        torch.testing.assert_close(part, whole[order], rtol=0, atol=1e-9)


def test_passes_of_the_batch() -> None:
    images = some_images()
    cases = [
        (DenseFGSM(THREAT), MASKS, 1, 1),
        (DenseFGSM(THREAT), None, 1, 1),
        (DensePGD(THREAT), MASKS, 20, 20),
        (DensePGD(THREAT, weighting="segpgd"), None, 21, 20),
        (DensePGD(THREAT, steps=5, random_start=False), None, 5, 5),
        (SEA(THREAT, steps=3), MASKS, 16, 12),
        (SEA(THREAT, steps=7), MASKS, 32, 28),
    ]
    for attack, masks, forwards, backwards in cases:
        model, passes = tiny_net(), {"forward": 0, "backward": 0}

        def note(_: Any, inputs: Any, output: Tensor, passes: dict[str, int] = passes) -> None:
            def back(gradient: Tensor) -> None:
                passes["backward"] += 1

            passes["forward"] += 1
            if output.requires_grad:
                output.register_hook(back)

        model.register_forward_hook(note)
        result = attack.run(model, images, masks)
        assert passes == {"forward": forwards, "backward": backwards}, attack
        assert result.forwards.tolist() == [forwards] * 4 and result.backwards.tolist() == [backwards] * 4
        assert result.steps.tolist() == [backwards] * 4
        assert result.broken_at.tolist() == [-1] * 4


def test_predicted_masks_are_those_of_the_clean_images() -> None:
    model, images = tiny_net(), some_images()
    predicted, draws = model(images).argmax(dim=1), Draws(range(4))
    threat = ThreatModel("linf", 0.1)  # wide enough for pixels to turn on the way, and at the start
    for attack in (DenseFGSM(threat), DensePGD(threat, 8), DensePGD(threat, 8, random_start=False)):
        assert torch.equal(attack(model, images, rng=draws), attack(model, images, predicted, rng=draws))
    assert (model(threat.random_start(images, draws, "pgd/start/0")).argmax(dim=1) != predicted).any()


def test_starts_where_pgd_starts() -> None:
    images, ignored = some_images(), torch.full_like(MASKS, -1)
    flat = nn.Sequential(tiny_net(), nn.Flatten())
    for norm, eps in (("linf", 0.1), ("l2", 0.7)):
        threat = ThreatModel(norm, eps)
        torch.manual_seed(5)
        expected = PGD(threat, steps=1, step_size=1e-12)(flat, images, torch.zeros(4, dtype=torch.int64))
        torch.manual_seed(5)
        found = DensePGD(threat, steps=1, step_size=1e-12)(tiny_net(), images, ignored)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)


def test_fgsm_is_one_step_of_pgd() -> None:
    images = some_images()
    one = DensePGD(THREAT, steps=1, step_size=4 / 255, random_start=False)
    assert torch.equal(DenseFGSM(THREAT)(tiny_net(), images, MASKS), one(tiny_net(), images, MASKS))
    fast = replace(DenseFGSM(THREAT), threat=ThreatModel("l2", 0.25))
    assert (fast.steps, fast.step_size, fast.random_start, fast.weighting) == (1, 0.25, False, "uniform")


@every_attack
@pytest.mark.parametrize("fails", [False, True])
def test_leaves_the_model_as_found(attack: DensePGD, fails: bool) -> None:
    model = tiny_net().train()
    model[1].eval()
    model[4].weight.requires_grad_(False)
    model[0].weight.grad = torch.full_like(model[0].weight, 7.0)
    modes = [part.training for part in model.modules()]

    def during(part: nn.Module, inputs: tuple[Tensor]) -> None:
        assert not any(part.training for part in model.modules())
        assert not any(parameter.requires_grad for parameter in model.parameters())
        if fails:
            raise RuntimeError("no more memory")

    model.register_forward_pre_hook(during)
    images, masks = some_images().requires_grad_(), MASKS.clone()
    if fails:
        with pytest.raises(RuntimeError, match="no more memory"):
            attack(model, images, masks)
    else:
        assert not attack(model, images, masks).requires_grad
    assert [part.training for part in model.modules()] == modes
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["4.weight"]
    assert model[0].weight.grad.eq(7).all() and all(p.grad is None for p in list(model.parameters())[1:])
    assert torch.equal(images, some_images()) and images.grad is None and torch.equal(masks, MASKS)


@every_attack
def test_works_where_gradients_are_off(attack: DensePGD) -> None:
    model = tiny_net()
    for masks in (MASKS, None):
        expected = attack(model, some_images(), masks, rng=Draws(range(4)))
        with torch.inference_mode():
            given = None if masks is None else masks.clone()
            found = attack(lambda points: model(points), some_images(), given, rng=Draws(range(4)))
        assert torch.equal(found, expected) and not found.is_inference() and not found.requires_grad


@every_attack
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("norm", "eps"), [("linf", 1 / 255), ("l2", 0.1)])
def test_inside_ball_and_bounds_in_any_dtype(attack: DensePGD, dtype: torch.dtype, norm: Any, eps: float) -> None:
    model, images, threat = tiny_net().to(dtype), some_images().to(dtype), ThreatModel(norm, eps)
    seen: set[torch.dtype] = set()
    model.register_forward_pre_hook(lambda _, inputs: seen.add(inputs[0].dtype))
    found = replace(attack, threat=threat)(model, images, MASKS, rng=Draws(range(4)))
    assert found.dtype == dtype and seen == {dtype} and found.isfinite().all()
    assert (threat.distance(found, images) <= eps + (1e-12 if dtype == torch.float64 else 1e-7)).all()
    assert found.min() >= 0 and found.max() <= 1
    assert (found[0] != images[0]).any() and (found[1] != images[1]).any()


def test_small_steps_in_half_precision_add_up() -> None:
    model, images = pixelwise(torch.tensor([1.0, 1.0, 1.0])).bfloat16(), torch.full((1, 3, 2, 2), 0.75).bfloat16()
    attack = DensePGD(ThreatModel("linf", 4 / 255), steps=20, step_size=0.001, random_start=False)
    found = attack(model, images, torch.zeros(1, 2, 2, dtype=torch.int64))
    assert found.eq(0.75 + 2**-8 * 4).all()  # 4/255 is just above 4/256; a bfloat16 step of 0.001 would be lost


def test_half_precision_counts_many_pixels() -> None:
    model, images = pixelwise(torch.ones(3)).half(), torch.full((1, 3, 256, 257), 0.5).half()
    found = DenseFGSM(ThreatModel("linf", 0.25))(model, images, torch.zeros(1, 256, 257, dtype=torch.int64))
    assert found.eq(0.75).all()  # 65792 is infinity in float16


def test_memory_format_is_kept() -> None:
    model, seen = tiny_net().to(memory_format=torch.channels_last), []
    model.register_forward_pre_hook(
        lambda _, inputs: seen.append(inputs[0].is_contiguous(memory_format=torch.channels_last))
    )
    images = some_images().contiguous(memory_format=torch.channels_last)
    found = DensePGD(THREAT, steps=2)(model, images, MASKS)
    assert seen == [True, True] and found.is_contiguous(memory_format=torch.channels_last)


def test_nothing_to_do() -> None:
    def model(images: Tensor) -> Tensor:
        raise AssertionError("asked in vain")

    images = some_images()
    for kind in (DensePGD, DenseFGSM):
        empty = kind(THREAT).run(model, torch.empty(0, 3, 4, 5), torch.empty(0, 4, 5, dtype=torch.int64))
        assert empty.adversarials.shape == (0, 3, 4, 5) and empty.steps.shape == (0,)
        still = kind(ThreatModel("linf", 0.0)).run(model, images)
        assert torch.equal(still.adversarials, images) and still.adversarials.data_ptr() != images.data_ptr()
        assert still.forwards.tolist() == still.steps.tolist() == [0] * 4 and still.broken_at.tolist() == [-1] * 4


def test_nan_of_one_image_stays_there() -> None:
    net = tiny_net()

    def model(points: Tensor) -> Tensor:
        return net(points) * torch.tensor([float("nan"), 1.0, 1.0, 1.0])[:, None, None, None]

    for norm in ("linf", "l2"):
        attack = DensePGD(ThreatModel(norm, 0.05), steps=3, random_start=False)
        found = attack(model, some_images(), MASKS)
        assert torch.equal(found[0], some_images()[0])
        torch.testing.assert_close(found[1:], attack(net, some_images(), MASKS)[1:], rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps is 0; expected 1 or more"),
        ({"step_size": 0.0}, "step_size is 0.0; expected a finite number above 0, or None for a share of eps"),
        ({"weighting": "focal"}, "weighting is 'focal'; expected one of: uniform, segpgd, cospgd"),
    ],
)
def test_rejects(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DensePGD(**arguments)


def test_fgsm_rejects_what_pgd_does() -> None:
    with pytest.raises(ValueError, match="weighting is 'focal'"):
        DenseFGSM(weighting="focal")  # type: ignore[arg-type]


@every_attack
@pytest.mark.parametrize(
    ("images", "masks", "error", "message"),
    [
        (some_images() * 255, MASKS, ValueError, r"images go from 0 to 255, outside the bounds \[0, 1\]"),
        (some_images().mul(255).byte(), MASKS, TypeError, "images are torch.uint8; expected a floating-point tensor"),
        (torch.rand(4, 3, 5), MASKS[:, 0], ValueError, r"images have shape \(4, 3, 5\); expected \(B, 3, H, W\)"),
        (some_images(), MASKS.float(), TypeError, "masks are torch.float32; .* class indices, negative where ignored"),
        (some_images(), MASKS > 0, TypeError, "masks are torch.bool; expected a tensor of integer class indices"),
        (some_images(), [[0]], TypeError, "masks are list; expected a tensor"),
        (
            some_images(),
            MASKS[:, None],
            ValueError,
            r"masks have shape \(4, 1, 4, 5\) for images \(4, 3, 4, 5\); expected \(4, 4, 5\)$",
        ),
        (some_images(), MASKS.mT, ValueError, r"masks have shape \(4, 5, 4\) for images"),
        (some_images(), MASKS[:3], ValueError, r"masks have shape \(3, 4, 5\) for images"),
    ],
)
def test_bad_arguments(attack: DensePGD, images: Tensor, masks: Any, error: Any, message: str) -> None:
    def model(images: Tensor) -> Tensor:
        raise AssertionError("asked before the arguments were checked")

    with pytest.raises(error, match=message) as caught:
        attack(model, images, masks)
    assert "\n" not in str(caught.value)


def test_masks_beyond_the_classes() -> None:
    message = (
        r"go up to 255, the model has 4 classes \(0 to 3\); .*ignored pixels to -1 \(uint8 must become int64 before\)"
    )
    with pytest.raises(ValueError, match=message):
        DensePGD(THREAT)(tiny_net(), some_images(), MASKS.byte())
    with pytest.raises(ValueError, match="masks go up to 4, the model has 4 classes"):
        DenseFGSM(THREAT)(tiny_net(), some_images(), MASKS + 1)


def test_bad_models() -> None:
    net, images = tiny_net(), some_images()
    expected = (
        r"for images \(4, 3, 4, 5\); expected logits \(4, classes, 4, 5\), classes 2 or more; resize inside the model"
    )
    answers = [
        (lambda points: net(points)[:, :, ::2, ::2], rf"the model returned \(4, 4, 2, 3\) {expected}"),
        (lambda points: net(points)[:, :1], r"the model returned \(4, 1, 4, 5\) for"),
        (lambda points: net(points)[:1], r"the model returned \(1, 4, 4, 5\) for"),
        (lambda points: net(points).mean(dim=(2, 3)), r"the model returned \(4, 4\) for"),
        (lambda points: {"out": net(points)}, "the model returned dict for"),
    ]
    for model, message in answers:
        for masks in (MASKS, None):
            with pytest.raises(ValueError, match=message):
                DensePGD(THREAT)(model, images, masks)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the model's output has no gradient with respect to its input"):
        DensePGD(THREAT)(lambda points: net(points).detach(), images, MASKS)
