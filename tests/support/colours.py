"""A classifier of colours whose right set-up is known, and images of them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from robustkit.common.preprocessing import Preprocessing
from robustkit.models.setup_check import NORMALISATIONS, Bench

TRUE = NORMALISATIONS["CLIP"]
OWN = Preprocessing((4, 4), *TRUE, crop_pct=1.0)
NUMBERED = {
    name: [(label + step) % 6 for label in range(6)]
    for name, step in (("as given", 0), ("label + 1", 1), ("label - 1", -1))
}


class Colours(nn.Module):
    """The best logits that there are for colours with noise, where they are normalised as in its training."""

    def __init__(self, centres: Tensor) -> None:
        super().__init__()
        mean, std = (torch.tensor(values) for values in TRUE)
        self.register_buffer("centres", (centres / 255 - mean) / std)
        self.asked = 0

    def forward(self, x: Tensor) -> Tensor:
        self.asked += len(x)
        return -2.6 * torch.cdist(x.mean(dim=(2, 3)), self.centres) ** 2


def bench(n: int, shift: int = 0, swapped: bool = False) -> tuple[Bench, Colours]:
    """A model of six colours on n images, whose labels are one too small, or channels swapped, if asked."""
    noise = torch.Generator().manual_seed(0)
    centres = torch.tensor(
        [[200, 40, 40], [40, 200, 40], [40, 40, 200], [150, 150, 20], [20, 150, 150], [90, 90, 90.0]]
    )
    net, truth = Colours(centres), torch.arange(n) % 6
    colours = centres[truth][:, :, None, None] + 30 * torch.randn((n, 3, 1, 1), generator=noise)
    pixels = (colours + 5 * torch.randn((n, 3, 4, 4), generator=noise)).clamp(0, 255).to(torch.uint8)
    pixels = pixels.flip(1) if swapped else pixels
    labels = (truth - shift) % 6

    def score(logits: Tensor, places: Sequence[int], order: str) -> Tensor:
        theirs = torch.tensor(NUMBERED[order])[labels[list(places)]]
        nll = nn.functional.cross_entropy(logits, theirs, reduction="none").double()
        return torch.stack([nll, (logits.argmax(dim=1) == theirs).double()], dim=1)

    return Bench(net, lambda place, _: pixels[place], n, score, 12, torch.device("cpu")), net
