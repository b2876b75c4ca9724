"""Attacks as a family of evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ..family import Family, Overview, family_of
from .condition import VOCABULARY

if TYPE_CHECKING:
    import pyarrow as pa

    from attacks import ThreatModel

    from ...common.plugins import Plugin
    from ...common.randomness import SampleRng
    from ...display.svg import Figure
    from ...display.table import Section, TextTable
    from ...protocol.card import Card
    from ...protocol.condition import Condition
    from ...runs.folder import RunFolder
    from ...runs.manifest import Manifest
    from ..aggregate import Gatherer, Number, Reading, Results
    from ..family import Looks
    from ..interface import Clause, Cost
    from ..metrics import Cells, Metric
    from ..subject import Batch, Evaluation, Shown, Subject


class Attacks(Family):
    """Images changed, within a ball around each, to mislead the model."""

    name, words = "attacks", VOCABULARY

    def overview(self, reading: Reading) -> Overview:
        from .ranking import OrderOfAttacks

        return OrderOfAttacks(reading)

    def gatherers(self) -> Sequence[type[Gatherer]]:
        from .results import Stages

        return (Stages,)

    def doubts(self, reading: Reading, condition: str, read: pa.Table) -> list[str]:
        from .results import dossier_of, stages_of

        of = reading.run, reading.manifest, reading.checkpoint, condition
        dossier = dossier_of(*of, len(read), stages_of(read))
        return [finding.flag for finding in dossier if finding.flag]

    def wants(self, column: str) -> bool:
        from .results import is_stage_column

        return is_stage_column(column)

    def numbers(self, read: pa.Table) -> Iterable[Number]:
        from .results import stage_numbers

        return stage_numbers(read)

    def lacks(self, run: RunFolder, checkpoint: str, condition: str) -> list[str]:
        from .gradient_masking import NO_EVIDENCE

        wanted = condition in run.manifest.evidence
        return [NO_EVIDENCE.flag] if wanted and run.evidence(checkpoint, condition) is None else []

    def clauses(self, cells: Cells, manifest: Manifest, headline: Metric) -> Iterable[Clause]:
        from .results import clauses

        return clauses(cells, manifest, headline)

    def called(self, text: str, manifest: Manifest) -> str:
        from .results import called

        return called(text, manifest)

    def where(self, text: str, manifest: Manifest) -> str:
        name, _, rest = self.called(text, manifest).partition(", ")
        return f"under {name} ({rest})"

    def title(self, text: str, manifest: Manifest) -> str:
        from .results import title

        return title(text, manifest)

    def figures(self, results: Results, looks: Looks, headline: Metric, section: str) -> Iterable[Figure]:
        from .figures import curve_figures, curves

        manifest = results.manifest
        return curve_figures(curves(results, manifest.claims), looks, headline.name, section, manifest.protocol.space)

    def terminal(self, results: Results) -> Iterable[TextTable]:
        from .results import terminal_stages

        return terminal_stages(results)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        from ...display.table import Section
        from .figures import curve_figures, curves, stage_figures, standings
        from .results import dossier_grids, stage_grids, strength_grids

        claims, space = results.manifest.claims, results.manifest.protocol.space
        drawn = tuple(curve_figures(curves(results, claims), looks, "top1", "attacks", space))
        yield Section("attacks", "Robust accuracy against ε", figures=drawn)
        yield Section(
            "stages",
            "Attacks in stages",
            lambda: {"grids": stage_grids(results), "strengths": strength_grids(results)},
            tuple(stage_figures(standings(results), looks)),
        )
        yield Section("doubts", "Can these numbers be trusted?", lambda: {"grids": dossier_grids(results)})

    def plugins(self, condition: Condition) -> Iterable[Plugin]:
        from .condition import EVERY_ATTACK

        plugged, under = EVERY_ATTACK.plugin(condition.name), condition.under
        beneath = () if under is None else family_of(under.name).plugins(under)
        return (*(() if plugged is None else (plugged,)), *beneath)

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        from ..interface import Cost
        from .build import attack_cost

        beneath = Cost(0) if condition.under is None else Cost(0, extra=0.2)
        return attack_cost(condition, card, classes) + Cost() + beneath

    def takes_shards(self, condition: Condition, card: Card) -> bool:
        from .build import build_attack

        return bool(getattr(build_attack(condition, card), "queues", False))

    def ball(self, condition: Condition, card: Card) -> ThreatModel | None:
        from .build import build_attack

        attack = build_attack(condition, card)
        return None if attack is None else attack.threat

    def show(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
        from .evaluate import show

        return show(subject, batch, condition, rng)

    def evaluate(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        from .evaluate import evaluate

        return evaluate(subject, batch, condition, rng)


FAMILY = Attacks()
