"""Patches as a family of evaluations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ...family import Family
from .condition import VOCABULARY

if TYPE_CHECKING:
    import pyarrow as pa

    from ....common.randomness import SampleRng
    from ....protocol.card import Card
    from ....protocol.condition import Condition
    from ....runs.manifest import Manifest
    from ...interface import Cost
    from ...subject import Batch, Evaluation, Shown, Subject


class Patches(Family):
    """A square of each image takes the values that mislead the model most."""

    name, words = "patches", VOCABULARY

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        import pyarrow as pa

        return {"patch_top": pa.int32(), "patch_left": pa.int32(), "patch_share": pa.float32()}

    def where(self, text: str, manifest: Manifest) -> str:
        return f"under a {self.called(text, manifest)}"

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        from ...interface import Cost

        given = dict(condition.parameters)
        where = str(given["where"])
        steps, runs = int(given["steps"]), int(where.removeprefix("worst-of-")) if where.startswith("worst") else 1
        return Cost(runs * (steps + 1) + 2, runs * steps, at_most=bool(given["early_stop"]))

    def show(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
        from .evaluate import show

        return show(subject, batch, condition, rng)

    def evaluate(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        from .evaluate import evaluate

        return evaluate(subject, batch, condition, rng)


FAMILY = Patches()
