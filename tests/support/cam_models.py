"""Networks for maps, and what of them is counted."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import cam

CONTROLS = (cam.RandomMap, cam.CentredGaussian, cam.FullImage)


def close(ours: Tensor, slow: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(ours, slow, rtol=0, atol=atol)


def cnn(**options: Any) -> Any:
    """Five channels on the pixels' own grid, pooled and weighed."""
    torch.manual_seed(3)
    act = nn.ReLU(**options)
    return nn.Sequential(nn.Conv2d(3, 5, 1), act, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(5, 4)).eval()


class Passes:
    """Forwards of a model by a hook."""

    def __init__(self, model: nn.Module) -> None:
        self.count = 0
        model.register_forward_hook(self.note)

    def note(self, *_: object) -> None:
        self.count += 1
