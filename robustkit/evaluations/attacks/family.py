"""Attacks behind the seam of families."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..family import Family, Overview

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.table import Table
    from rich.text import Text

    from ...common.randomness import SampleRng
    from ...display.section import Section
    from ...protocol.card import Card
    from ...protocol.condition import Condition
    from ...runs.folder import RunFolder
    from ..family import Looks, Results
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

    def terminal(self, run: RunFolder, results: Results) -> Iterable[Table | Text]:
        from .tables import terminal_stages

        return () if (stages := terminal_stages(run)) is None else (stages,)

    def sections(self, run: RunFolder, results: Results, looks: Looks) -> Iterable[Section]:
        from ...display.section import Section
        from .figures import curve_figures, curves, stage_figures, standings
        from .tables import STAGE_HEADINGS, dossiers, stage_tables

        claims, space = run.manifest.claims, run.manifest.protocol.space
        drawn = tuple(curve_figures(curves(results, claims), looks, "top1", "attacks", space == "pixels"))
        yield Section("attacks", "Robust accuracy against ε", figures=drawn)
        yield Section(
            "stages",
            "Attacks in stages",
            lambda: {"stages": stage_tables(run), "stage_headings": STAGE_HEADINGS},
            tuple(stage_figures(standings(results), looks)),
        )
        yield Section("doubts", "Can these numbers be trusted?", lambda: {"dossiers": dossiers(run, results)})

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
