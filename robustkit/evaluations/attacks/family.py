"""Attacks behind the seam of families."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..family import Family, Overview

if TYPE_CHECKING:
    import pyarrow as pa

    from ...common.randomness import SampleRng
    from ...protocol.card import Card
    from ...protocol.condition import Condition
    from ..rows import Reading
    from ..subject import Batch, Evaluation, Shown, Subject


class Attacks(Family):
    """Images changed, within a ball around each, to lead the model astray."""

    name = "attacks"

    def overview(self, reading: Reading) -> Overview:
        from .order import OrderOfAttacks

        return OrderOfAttacks(reading)

    def doubts(self, reading: Reading, condition: str, read: pa.Table) -> list[str]:
        from .stages import dossier_of

        found = dossier_of(reading.run, reading.manifest, reading.checkpoint, condition, read)
        return [finding.flag for finding in found if finding.flag]

    def takes_shards(self, condition: Condition, card: Card) -> bool:
        from .build import build_attack

        return bool(getattr(build_attack(condition, card), "queues", False))

    def show(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
        from .evaluate import show

        return show(subject, batch, condition, rng)

    def evaluate(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        from .evaluate import evaluate

        return evaluate(subject, batch, condition, rng)


FAMILY = Attacks()
