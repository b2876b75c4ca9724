"""Images as they come out of bad weather, noise, blur or compression."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ...common.determinism import SampleRng
from ...common.plugins import Plugin
from ...data.images import unit_pixels
from ...errors import PluginError
from ...models.device import has_float64
from ...protocol.card import Card
from ...protocol.condition import Condition
from ..condition import Cost
from ..family import Evaluator
from ..subject import Batch, EvaluatedModel, Shown
from . import EVERY_CORRUPTION, VOCABULARY, Corrupted, Pictures


def _place(device: torch.device) -> torch.device:
    """Return where corruptions are made for a device: many of them need float64."""
    return device if has_float64(device) else torch.device("cpu")


def lines_on_device(conditions: Iterable[Condition], device: torch.device) -> list[str]:
    """Return a line where a device cannot make the corruptions among some conditions."""
    made = any(isinstance(each.payload, Corrupted) and not each.payload.released for each in conditions)
    possible = not made or _place(device) == device
    return [] if possible else [f"{device.type} has no float64: corruptions are made on the CPU"]


def corrupt(part: Corrupted, pixels: torch.Tensor, rng: SampleRng, pictures: Pictures) -> torch.Tensor:
    """Return (B, C, H, W) pixels corrupted, on their device, which those given are not changed by. Corruptions are
    defined on 8 bits: floating pixels are rounded to 256 levels first."""
    made, where = part.make(pictures), _place(pixels.device)
    draws = made.draw(pixels.shape[1:], part.severity, rng.to(where))
    levels = (pixels * 255).round().to(torch.uint8) if pixels.is_floating_point() else pixels
    corrupted = made.apply(levels.to(where, copy=True), draws).to(pixels.device)
    return unit_pixels(corrupted) if pixels.is_floating_point() and corrupted.dtype == torch.uint8 else corrupted


class CorruptionsEvaluator(Evaluator):
    words, keeps_places = VOCABULARY, True

    def plugins(self, condition: Condition) -> Iterable[Plugin]:
        plugged = EVERY_CORRUPTION.plugin(condition.payload.name) if isinstance(condition.payload, Corrupted) else None
        return (*filter(None, [plugged]), *super().plugins(condition))

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        return Cost(1, extra=0.2)  # a seventh of the time of both on ViT-Tiny, on average over the 15

    def show(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
        pixels, corrupted = batch.inputs.to(subject.settings.device), condition.payload
        assert isinstance(corrupted, Corrupted)
        if corrupted.released:  # the files hold them corrupted
            return subject.show_pixels(batch, pixels, are_changed=False)
        view = corrupt(corrupted, pixels, rng, subject.settings.pictures)
        if view.shape != pixels.shape or view.dtype != pixels.dtype:
            raise PluginError(
                f"{condition.text} gives {view.dtype} of {tuple(view.shape)}; expected {pixels.dtype} of "
                f"{tuple(pixels.shape)}"
            )
        return subject.show_pixels(batch, view)
