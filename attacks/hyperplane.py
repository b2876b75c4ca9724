"""The shortest way to a hyperplane that stays in a box."""

from __future__ import annotations

import torch
from torch import Tensor

from .threat import Norm

_ROUNDS = 60  # steps of Newton's method, which ends by itself after about five
_UNSEEN = 12  # steps on a device before the host looks whether it has ended, which makes it wait
_FAR = 1e18  # stand for bounds where there are none


def step_to_hyperplane(
    norm: Norm, points: Tensor, normals: Tensor, gaps: Tensor, bounds: tuple[float, float] | None
) -> Tensor:
    """Return the change d of least norm with `normals` · d = `gaps` and points + d inside the bounds.

    Where no point of the box reaches the plane, the corner nearest to it (Croce and Hein 2020, arXiv:1907.02044,
    section 2.1).

    points, normals: (n, ...), points inside the bounds. gaps: (n,). Returns (n, ...).

    Every component moves against its gap, as far as the least common length λ asks (times its own |normal| for l2) and
    at most as far as the bounds leave room. What is reached, T(λ) = Σ |normal| min(λ c, room), is concave and piecewise
    linear, so Newton's method from 0 climbs to the solution without passing it, in as many rounds as it meets pieces.
    """
    t, w = points.flatten(1), normals.flatten(1)
    sign = w.sign() * gaps.sign()[:, None]
    weight, want = w.abs(), gaps.abs()
    low, high = bounds or (-_FAR, _FAR)
    room = torch.where(sign > 0, high - t, t - low).clamp_(min=0)
    pace = torch.ones_like(weight) if norm == "linf" else weight
    way = torch.zeros_like(weight)
    length, reached = torch.zeros_like(want), torch.zeros_like(want)
    unseen = 1 if t.device.type == "cpu" else _UNSEEN
    for step in range(1, _ROUNDS + 1):
        slope = (weight * pace * (way < room)).sum(dim=1)
        more = (want - reached) / slope
        go = (slope > 0) & (more > length * torch.finfo(t.dtype).eps)
        if step % unseen == 0 and not go.any():
            break
        length = torch.where(go, length + more, length)
        way = torch.minimum(pace * length[:, None], room)
        reached = (weight * way).sum(dim=1)
    # Out of reach: all the way.
    way = torch.where((slope <= 0)[:, None] & (reached < want)[:, None], room, way)
    return (sign * way).reshape(points.shape)
