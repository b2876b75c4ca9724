"""The drop-in on sets of points, on synthetic solids: attention without positions, whose answer no order may change."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from robustkit.attention import capture, get_attention, set_attention
from robustkit.attention.registry import FORMULAS

pytestmark = pytest.mark.usefixtures("one_thread")
SOLIDS = ("sphere", "cube", "cylinder", "cone")
POINTS = 48


def surface(solid: str, count: int, stream: torch.Generator) -> Tensor:
    """Points (count, 3) drawn evenly from the surface of a solid that fits into [-1, 1]³."""
    u, v, which = torch.rand(3, count, generator=stream, dtype=torch.double)
    angle = 2 * torch.pi * u
    circle = torch.stack((angle.cos(), angle.sin()), dim=1)
    if solid == "sphere":
        height = 2 * v - 1
        return torch.cat(((1 - height**2).sqrt()[:, None] * circle, height[:, None]), dim=1)
    if solid == "cube":
        points = torch.stack((2 * u - 1, 2 * v - 1, torch.where(which < 0.5, -1.0, 1.0)), dim=1)
        turn = (6 * which).long() % 3
        return points.gather(1, (torch.arange(3) + turn[:, None]) % 3)
    if solid == "cylinder":  # radius 1, height 2: two lids of pi, a side of 4 pi
        radius = torch.where(which < 1 / 3, v.sqrt(), 1.0)
        height = torch.where(which < 1 / 6, -1.0, torch.where(which < 1 / 3, 1.0, 2 * v - 1))
        return torch.cat((radius[:, None] * circle, height[:, None]), dim=1)
    side = 5**0.5 / (1 + 5**0.5)  # cone, radius 1, height 2: a side of pi sqrt(5), a base of pi
    radius = v.sqrt()
    height = torch.where(which < side, 1 - 2 * radius, -1.0)
    return torch.cat((radius[:, None] * circle, height[:, None]), dim=1)


def clouds(count: int, seed: int, jitter: float = 0.0) -> tuple[Tensor, Tensor]:
    """Clouds (4 · count, POINTS, 3), each turned about the vertical and with noise, and their solids (4 · count,)."""
    stream = torch.Generator().manual_seed(seed)
    made, labels = [], []
    for label, solid in enumerate(SOLIDS):
        for _ in range(count):
            angle = 2 * torch.pi * torch.rand((), generator=stream, dtype=torch.double)
            turn = torch.eye(3, dtype=torch.double)
            turn[:2, :2] = torch.stack((angle.cos(), -angle.sin(), angle.sin(), angle.cos())).view(2, 2)
            points = surface(solid, POINTS, stream) @ turn.T
            made.append(points + jitter * torch.randn(points.shape, generator=stream, dtype=torch.double))
            labels.append(label)
    return torch.stack(made).float(), torch.tensor(labels)


class Block(nn.Module):
    """Anyone's code: torch's own attention over the points of a cloud, and an MLP."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attn = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, padding: Tensor | None) -> Tensor:
        y = self.norms[0](x)
        x = x + self.attn(y, y, y, key_padding_mask=padding, need_weights=False)[0]
        return x + self.mlp(self.norms[1](x))  # type: ignore[no-any-return]


class OfPoints(nn.Module):
    """Clouds (B, N, 3) to logits (B, 4), from the mean of all points. missing: (B, N), True for points to leave out."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(3, width), nn.GELU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(2))
        self.head = nn.Linear(width, len(SOLIDS))

    def forward(self, points: Tensor, missing: Tensor | None = None) -> Tensor:
        x = self.embed(points)
        for block in self.blocks:
            x = block(x, missing)
        kept = torch.ones_like(x[..., :1]) if missing is None else (~missing)[..., None].to(x.dtype)
        return self.head((x * kept).sum(dim=1) / kept.sum(dim=1))  # type: ignore[no-any-return]


def network(formula: str) -> OfPoints:
    torch.manual_seed(0)
    return set_attention(OfPoints(), formula)


def test_the_solids_are_what_they_are_called() -> None:
    stream = torch.Generator().manual_seed(1)
    sphere, cube, cylinder, cone = (surface(solid, 20_000, stream) for solid in SOLIDS)
    torch.testing.assert_close(sphere.norm(dim=1), torch.ones(20_000, dtype=torch.double))
    assert (cube.abs().amax(dim=1) == 1).all()
    on_side = torch.isclose(cylinder[:, :2].norm(dim=1), torch.ones((), dtype=torch.double))
    assert (on_side | (cylinder[:, 2].abs() == 1)).all()
    on_side = torch.isclose(cone[:, :2].norm(dim=1), (1 - cone[:, 2]) / 2)
    assert (on_side | (cone[:, 2] == -1)).all()
    for points, mean, second in (
        (sphere, 0, 1 / 3),
        (cube, 0, 5 / 9),
        (cylinder, 0, 5 / 9),
        (cone, -(1 / 3 * 5**0.5 + 1) / (5**0.5 + 1), None),
    ):  # evenly drawn: mean height and mean squared height
        assert points[:, 2].mean().item() == pytest.approx(mean, abs=0.02)
        assert second is None or points[:, 2].square().mean().item() == pytest.approx(second, abs=0.02)


@pytest.mark.parametrize("name", FORMULAS)
def test_no_order_of_the_points_changes_the_answer(name: str) -> None:
    points, _ = clouds(2, seed=3)
    model = network(name).eval()
    assert get_attention(model) == name
    order = torch.randperm(POINTS, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        expected = model(points)
        torch.testing.assert_close(model(points[:, order]), expected, rtol=1e-4, atol=1e-5)
        with capture(model) as captured:
            torch.testing.assert_close(model(points), expected, rtol=1e-4, atol=1e-5)
            first = captured.attention[0]
            model(points[:, order])
        torch.testing.assert_close(captured.attention[0], first[:, :, order][..., order], rtol=1e-4, atol=1e-6)
    assert (expected - model(points.flip(2))).abs().max() > 1e-3  # other points are


def test_a_formula_with_positions_sees_the_order() -> None:
    points, _ = clouds(2, seed=3)
    model = network("qana(rope=true)").eval()
    with torch.no_grad():
        assert (model(points.flip(1)) - model(points)).abs().max() > 1e-3


@pytest.mark.parametrize("name", [name for name in FORMULAS if not FORMULAS[name].elliptical])
def test_points_that_are_masked_are_as_if_they_were_not_there(name: str) -> None:
    points, _ = clouds(2, seed=3)
    model = network(name).eval()
    missing = torch.zeros(len(points), POINTS, dtype=torch.bool)
    missing[:, 30:] = True
    with torch.no_grad():
        torch.testing.assert_close(model(points, missing), model(points[:, :30]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["standard", "quest", "elliptical-quest"])
def test_it_learns_solids_and_keeps_them_under_noise_and_dropping(name: str) -> None:
    points, labels = clouds(48, seed=0)
    model = network(name)
    before = copy.deepcopy(model)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    stream = torch.Generator().manual_seed(0)
    for _ in range(8):
        for places in torch.randperm(len(points), generator=stream).split(32):
            loss = nn.functional.cross_entropy(model(points[places]), labels[places])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    model.eval()

    def right(some: nn.Module, jitter: float, kept: int = POINTS) -> float:
        other, truth = clouds(24, seed=1, jitter=jitter)
        with torch.no_grad():
            return float((some(other[:, :kept]).argmax(dim=1) == truth).double().mean())

    clean, noisy, few = right(model, 0), right(model, 0.05), right(model, 0, kept=24)
    assert right(before, 0) < 0.5 < 0.8 < min(clean, noisy, few)
    assert right(model, 1.0) < clean - 0.2  # where the noise is as large as the solid, it does not
