"""A classifier as attacks see it, in the dtype that they compute in."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from ..attention.surrogates import can_be_seen, key_loss, surrogates
from ..models.identity import Classifier
from ..protocol.card import Card


class Lens(nn.Module):
    """A classifier as an attack under some card sees it: tensors of the card's space in, float32 logits out.

    network: the bare network; pixels are normalised before it. dtype: of the pass. valid: the classes that compete,
    (K,) on the device.
    """

    def __init__(self, classifier: Classifier, card: Card, dtype: torch.dtype, valid: Tensor | None) -> None:
        super().__init__()
        self.classifier = classifier
        self.network: Callable[[Tensor], Tensor] = low_precision(classifier.network, dtype)
        self.from_pixels = card.space == "pixels"
        self.dtype = dtype
        self.valid = valid
        self.eval()

    @property
    def surrogates(self) -> dict[str, Callable[[Tensor], Tensor]]:
        """The same answers with other gradients through attention, by name; empty where attention is not understood."""
        network = self.network
        return surrogates(network, self) if isinstance(network, nn.Module) and can_be_seen(network) else {}

    def key_loss(self, images: Tensor, boxes: Tensor, of_class: bool) -> tuple[Tensor, Tensor]:
        """Return the logits (B, K), and how far queries are drawn to the keys of boxes (B, 3).

        Raises ModelError where attention is not understood.
        """
        network = self.network if isinstance(self.network, nn.Module) else self.classifier.network
        return key_loss(network, self, images, boxes, of_class)

    def forward(self, images: Tensor) -> Tensor:
        if self.from_pixels:
            images = self.classifier.normalize(images)
        if self.dtype is torch.float32:
            logits = self.network(images).float()
        else:
            with torch.autocast(images.device.type, self.dtype):
                logits = self.network(images).float()
        return logits if self.valid is None else logits[:, self.valid]


def low_precision(network: nn.Module, dtype: torch.dtype) -> nn.Module:
    """Return a copy for autocast to `dtype` whose large weights are already cast; for float32 the network itself.

    Autocast casts weights that take no gradient again in each pass, which costs more than a small batch. The results
    are the same to the bit.
    """
    if dtype is torch.float32:
        return network
    copied = copy.deepcopy(network)
    for part in nn.Module.modules(copied):
        if type(part) in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d):  # subclasses may use their weights in other ways
            part.to(dtype)
    return copied
