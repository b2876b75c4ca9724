"""Corruptions behind the seam of families."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..family import Family, Overview
from .condition import Corrupted, parse_corrupted

if TYPE_CHECKING:
    from ...common.randomness import SampleRng
    from ...protocol.condition import Condition
    from ..rows import Reading
    from ..subject import Batch, Shown, Subject


class Corruptions(Family):
    """Images as they come out of bad weather, noise, blur or compression."""

    name = "corruptions"
    in_means = True

    def overview(self, reading: Reading) -> Overview:
        from .overview import MeanErrors

        return MeanErrors(reading)

    def label(self, text: str) -> str:
        part = parse_corrupted(text)
        return text if part is None else f"{part.name}, severity {part.severity}"

    def show(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
        from ..evaluator import show_pixels

        pixels, corrupted = batch.pixels.to(subject.settings.device), condition.payload
        assert isinstance(corrupted, Corrupted)
        if corrupted.released:  # they come corrupted from their files
            return show_pixels(subject, batch, pixels, known=False)
        made = corrupted.make(subject.settings.frost_dir)
        return show_pixels(subject, batch, made.apply(pixels, made.draw(pixels.shape[1:], corrupted.severity, rng)))


FAMILY = Corruptions()
