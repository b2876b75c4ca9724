"""Rotations and translations: torchvision's affine, an exhaustive loop, a toy that no rotation misleads, masks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from attack_oracles import Draws, random_images, tiny_cnn
from torch import Tensor, nn
from torch.nn import functional
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2.functional import affine

from attacks import DenseSpatial, Spatial, SpatialResult
from attacks.spatial import grid_of_moves, move

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL: dict[str, Any] = {"degrees": 24, "shift": 0.2, "angles": 5, "shifts": 3}


def by_torchvision(image: Tensor, way: Tensor, nearest: bool = False) -> Tensor:
    """The move of one image (C, H, W)."""
    (angle, down, right), (height, width) = way.tolist(), image.shape[-2:]
    kind = InterpolationMode.NEAREST if nearest else InterpolationMode.BILINEAR
    shift = [right * width, down * height]
    moved: Tensor = affine(image, angle, shift, 1.0, [0.0, 0.0], interpolation=kind)
    return moved


def run(
    attack: Spatial | DenseSpatial, model: Any, images: Tensor, truths: Tensor | None, **options: Any
) -> SpatialResult:
    result = attack.run(model, images, truths, rng=Draws(range(len(images))), **options)
    assert isinstance(result, SpatialResult)
    return result


@pytest.mark.parametrize("way", [(30, 0.1, -0.05), (-12, 0, 0.1), (0, 0.1, 0.1), (90, 0, 0), (-180, -0.3, 0)])
def test_a_move_is_torchvisions_affine(way: tuple[float, float, float]) -> None:
    images = torch.rand(2, 3, 20, 28, generator=torch.Generator().manual_seed(0))
    ways = torch.tensor([way, (0, 0, 0)], dtype=torch.float64)
    assert (move(images, ways)[0] - by_torchvision(images[0], ways[0])).abs().max() < 1e-5
    nearest = move(images, ways, mode="nearest")[0]
    assert (nearest != by_torchvision(images[0], ways[0], nearest=True)).float().mean() < 0.01
    assert torch.equal(move(images, ways)[1], images[1]), "the identity changes no bit"


def test_half_precision_moves_as_float32_does() -> None:
    images, ways = torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(0)), torch.tensor([[20, 0.1, 0]])
    for kind in (torch.float16, torch.bfloat16):
        low = images.to(kind)
        assert (move(low, ways).float() - move(low.float(), ways)).abs().max() < 0.005 and move(low, ways).dtype == kind


def test_what_appears_at_each_border() -> None:
    images = torch.arange(1.0, 5)[None, None, None].expand(1, 1, 4, 4)
    ways = torch.tensor([[0, 0, 0.5]], dtype=torch.float64)
    rows = {name: move(images, ways, name, low=-9.0)[0, 0, 0].tolist() for name in ("black", "edge", "reflect")}  # type: ignore[arg-type]
    assert rows == {"black": [-9, -9, 1, 2], "edge": [1, 1, 1, 2], "reflect": [2, 1, 1, 2]}


def test_the_grid_has_the_identity_first_and_rises_by_angle() -> None:
    grid = grid_of_moves(30, 0.1, 31, 5)
    assert grid.shape == (775, 3) and grid[0].tolist() == [0, 0, 0]
    assert grid[:, 0].abs().diff().min() >= 0 and len({tuple(row) for row in grid.tolist()}) == 775
    assert grid[:, 0].unique().tolist() == pytest.approx(range(-30, 31, 2))
    assert grid[:, 1].unique().tolist() == grid[:, 2].unique().tolist() == pytest.approx([-0.1, -0.05, 0, 0.05, 0.1])
    assert grid[1:25, 0].eq(0).all() and grid[1:9, 1:].abs().max() <= 0.05 < grid[9, 1:].abs().max()
    assert grid_of_moves(30, 0.1, 2, 1).tolist() == [[0, 0, 0], [-30, 0, 0], [30, 0, 0]], "an even number lacks it"
    assert grid_of_moves(0, 0, 31, 5).tolist() == [[0, 0, 0]]


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("batch_size", [None, 7])
def test_it_is_an_exhaustive_loop(early_stop: bool, batch_size: int | None) -> None:
    """Which of 40 images fall, at which move, and the passes of each, with every image moved by torchvision."""
    net, images = tiny_cnn().double().eval(), random_images(40).double()
    labels = net(images).argmax(dim=1)
    labels[3] = (labels[3] + 1) % 5
    attack = Spatial(**SMALL, early_stop=early_stop)
    result = run(attack, net, images, labels, batch_size=batch_size)
    grid = grid_of_moves(24, 0.2, 5, 3)
    for row in range(40):
        with torch.no_grad():
            logits = net(torch.stack([by_torchvision(images[row], way) for way in grid]))
        wrong = logits.argmax(dim=1) != labels[row]
        losses = functional.cross_entropy(logits, labels[row].expand(len(grid)), reduction="none")
        at = int(wrong.float().argmax())
        worst = int(losses.masked_fill(~wrong, -math.inf).argmax()) if wrong.any() else int(losses.argmax())
        chosen = at if wrong.any() and early_stop else worst
        assert result.moves[row].tolist() == grid[chosen].tolist(), row
        assert float(result.first[row]) == (float(grid[at, 0].abs()) if wrong.any() else math.inf)
        assert int(result.broken_at[row]) == (at if wrong.any() else -1)
        assert int(result.forwards[row]) == (at + 1 if wrong.any() and early_stop else len(grid))
        assert (result.adversarials[row] - by_torchvision(images[row], grid[chosen])).abs().max() < 1e-5
    assert result.backwards.eq(0).all() and 5 < result.broken_at.ge(0).sum() < 40
    assert result.forwards[3] == (1 if early_stop else len(grid)) and result.first[3] == 0


class Mass(nn.Module):
    """How much of an image is bright, which no rotation about the centre changes."""

    def forward(self, images: Tensor) -> Tensor:
        mass = images.flatten(1).sum(dim=1)
        return torch.stack([mass, torch.full_like(mass, 50.0)], dim=1)


def test_a_model_that_no_rotation_changes_never_falls() -> None:
    across, along = torch.meshgrid(torch.linspace(-1, 1, 17), torch.linspace(-1, 1, 17), indexing="ij")
    disc = ((across**2 + along**2) < 0.5).double().expand(3, 3, 17, 17).clone()
    disc *= torch.tensor([1.0, 0.5, 0.1])[:, None, None, None]
    labels = torch.tensor([0, 0, 1])
    result = run(Spatial(degrees=180, shift=0, angles=37), Mass(), disc.double(), labels)
    assert result.broken_at.tolist() == [-1, -1, -1] and result.forwards.tolist() == [37] * 3
    assert run(Spatial(degrees=0, shift=0.9), Mass(), disc.double(), labels).broken_at.ge(0).tolist() == [
        True,
        True,
        False,
    ]


def test_random_draws_are_the_samples_own_and_rise_by_angle() -> None:
    images, model = random_images(6), tiny_cnn().eval()
    attack = Spatial(degrees=90, shift=0.5, draws=9, early_stop=False)
    result = run(attack, model, images, None)
    alone = run(attack, model, images, None, batch_size=2)
    assert torch.equal(result.moves, alone.moves) and result.forwards.tolist() == [11] * 6, "and labels of its own"
    ways = attack.moves_of(images, Draws(range(6)))
    assert ways.shape == (6, 10, 3) and ways[:, 0].eq(0).all() and ways[:, :, 0].abs().diff(dim=1).min() >= 0
    assert 45 < ways[:, :, 0].abs().max() <= 90 and 0.25 < ways[:, :, 1:].abs().max() <= 0.5
    assert len(ways[:, 1:].flatten().unique()) == 6 * 9 * 3
    part = attack.moves_of(images[:2], Draws([4, 1]))
    assert torch.equal(part, ways[[4, 1]])


def test_masks_move_with_their_images_and_what_appears_is_not_counted() -> None:
    torch.manual_seed(0)
    images, masks = torch.rand(3, 3, 12, 16), torch.randint(0, 3, (3, 12, 16))
    masks[0, :2] = -1
    masks[2] = -1
    net = nn.Conv2d(3, 3, 3, padding=1).eval()
    attack = DenseSpatial(degrees=40, shift=0.25, angles=3, shifts=3)
    result = run(attack, net, images, masks)
    grid = grid_of_moves(40, 0.25, 3, 3)
    for row in range(3):
        shares = []
        for way in grid:
            mask = by_torchvision((masks[row] + 1)[None].double(), way, nearest=True)[0] - 1
            with torch.no_grad():
                right = net(by_torchvision(images[row], way)[None]).argmax(dim=1)[0] == mask
            shares.append(float(right[mask >= 0].float().mean()) if (mask >= 0).any() else 1.0)
        assert result.moves[row].tolist() == grid[shares.index(min(shares))].tolist()
    moved = attack.move_masks(masks, result.moves)
    assert moved.dtype == masks.dtype and moved.min() == -1 and (moved[:2] >= 0).any()
    assert result.forwards.tolist() == [27] * 3 and result.broken_at.tolist() == [-1] * 3
    assert attack.move_masks(masks.clamp(min=0).byte(), result.moves).min() == -1, "bytes have no -1"
    edge = DenseSpatial(shift=0.25, degrees=0, border="edge").move_masks(masks[1:2], torch.tensor([[0, 0, 0.25]]))
    assert torch.equal(edge[0, :, 4:], masks[1, :, :12]) and edge[0, 3].tolist()[:4] == [int(masks[1, 3, 0])] * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"degrees": 181}, "degrees is 181; expected 0 to 180"),
        ({"shift": 1.0}, "shift is 1.0; expected a share of the sides"),
        ({"shift": -0.1}, "shift is -0.1; expected a share of the sides"),
        ({"angles": 0}, "angles is 0; expected 1 or more"),
        ({"draws": -1}, "draws is -1; expected 0 or more"),
        ({"bounds": None}, "black is the lower bound, and no bounds are given"),
        ({"border": "wrap"}, "border is 'wrap'; expected one of: black, edge, reflect"),
    ],
)
def test_rejects(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Spatial(**arguments)
    with pytest.raises(ValueError, match=message):
        DenseSpatial(**arguments)


def test_without_bounds_another_border_moves_values_of_any_size() -> None:
    images = 100 * torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    moved = Spatial(bounds=None, border="edge", degrees=0).moved(images, torch.tensor([[0, 0, 0.25]] * 2))
    assert torch.allclose(moved[..., 2:], images[..., :6], atol=1e-3) and torch.allclose(
        moved[..., 0], images[..., 0], atol=1e-3
    )
    low = Spatial(bounds=(-3.0, 5.0)).moved(torch.ones(1, 3, 8, 8), torch.tensor([[0, 0.5, 0]]))
    assert low[0, 0, :, 0].tolist() == pytest.approx([-3] * 4 + [1] * 4)
