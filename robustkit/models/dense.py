"""A network of normalised images as a segmenter of pixels: its output in the size of the image, its windows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..errors import ModelError
from .identity import Classifier
from .segmenter_network import SegmenterNetwork
from .windows import Windows

_EXPECTED = "logits (batch, classes, height, width), or a dict that holds them as 'out'"


class Dense(nn.Module):
    """A network whose logits are given the size of its normalised images: (B, 3, H, W) to (B, K, H, W).

    windows: how the network sees images; None where it takes any size. Its output may be a dict with `out`, as
    torchvision's, and may be smaller than the image: it is enlarged bilinearly.
    """

    def __init__(self, network: nn.Module, windows: Windows | None) -> None:
        super().__init__()
        self.network = network
        self.windows = windows
        if windows is not None and isinstance(network, SegmenterNetwork):
            network.enlarge = False  # windows are enlarged and averaged in one

    def forward(self, images: Tensor) -> Tensor:
        if self.windows is not None:
            return self.windows(self._output, images)
        logits = self._output(images)
        size = images.shape[-2:]
        return logits if logits.shape[-2:] == size else functional.interpolate(logits, size, mode="bilinear")

    def _output(self, images: Tensor) -> Tensor:
        logits = self.network(images)
        logits = logits["out"] if isinstance(logits, Mapping) else logits
        if not isinstance(logits, Tensor) or logits.ndim != 4:
            what = f"shape {tuple(logits.shape)}" if isinstance(logits, Tensor) else f"a {type(logits).__name__}"
            raise ModelError(f"{type(self.network).__name__} returned {what}; expected {_EXPECTED}")
        return logits


class Segmenter(Classifier):
    """Pixels in [0, 1], (B, 3, H, W) of any size, to logits (B, K, H, W). Evaluation mode, frozen parameters."""

    network: Dense

    @property
    def windows(self) -> dict[str, Any] | None:
        """The settings of its windows that decide the logits, in JSON types; None if the network sees whole images."""
        windows = self.network.windows
        if windows is None:
            return None
        said = {"size": list(windows.size), "stride": list(windows.stride), "short_side": windows.short_side}
        return said if windows.resize is None else {**said, "resize": windows.resize}


def count_classes(dense: Dense, size: tuple[int, int]) -> int:
    """Return K, by one forward of zeros. ModelError where the network does not give (B, K, H, W)."""
    name = type(dense.network).__name__
    try:
        with torch.no_grad():
            logits = dense.eval()(torch.zeros(1, 3, *size))
    except ModelError:
        raise
    except Exception as error:  # the user's own code
        said = (str(error).splitlines() or [""])[0][:160]
        raise ModelError(
            f"{name} fails on an image of {size[0]}x{size[1]} ({type(error).__name__}: {said}); expected {_EXPECTED}"
        ) from error
    return int(logits.shape[1])
