"""The clean images: shown as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..family import Family
from .vocabulary import VOCABULARY

if TYPE_CHECKING:
    from ...common.randomness import SampleRng
    from ...protocol.condition import Condition
    from ...runs.manifest import Manifest
    from ..subject import Batch, Shown, Subject


class Clean(Family):
    """The images themselves, without any change."""

    name, words = "clean", VOCABULARY

    def where(self, text: str, manifest: Manifest) -> str:
        return f"on clean {manifest.protocol.samples.many}"

    def show(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
        from ..shown import show_pixels

        return show_pixels(subject, batch, batch.inputs.to(subject.settings.device))


FAMILY = Clean()
