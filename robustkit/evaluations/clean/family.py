"""The clean images: shown as they are."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from ..family import Family
from .condition import VOCABULARY

if TYPE_CHECKING:
    from ...common.randomness import SampleRng
    from ...protocol.condition import Condition
    from ...runs.manifest import Manifest
    from ..subject import Batch, Evaluation, Shown, Subject


class Clean(Family):
    """The images themselves, without any change."""

    name, words = "clean", VOCABULARY

    def where(self, text: str, manifest: Manifest) -> str:
        return f"on clean {manifest.protocol.samples.many}"

    def show(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
        from ..subject import show_pixels

        return show_pixels(subject, batch, batch.inputs.to(subject.settings.device))

    def evaluate(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        """Return how the model does; the first batch of a checkpoint also tells whether a sample alone is answered the
        same.
        """
        done = super().evaluate(subject, batch, condition, rng)
        if subject.asked_alone:
            return done
        from .evaluate import depends_on_batch

        subject.asked_alone = True
        ask = partial(super().evaluate, subject, condition=condition, rng=rng)
        return replace(done, notes=(*done.notes, *depends_on_batch(subject, batch, done, ask)))


FAMILY = Clean()
