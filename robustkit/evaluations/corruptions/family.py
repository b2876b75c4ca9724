"""Corruptions as a family of evaluations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from ...errors import PluginError
from ..family import Family, Overview
from ..interface import ShortRow
from .condition import VOCABULARY, Corrupted

if TYPE_CHECKING:
    import torch

    from ...common.plugins import Plugin
    from ...common.randomness import SampleRng
    from ...display.svg import Figure
    from ...display.table import CardPart, HeatTable, Section, TextTable
    from ...protocol.card import Card
    from ...protocol.condition import Condition
    from ...runs.manifest import Manifest
    from ..aggregate import Reading, Results
    from ..family import Looks
    from ..interface import Clause, Cost
    from ..metrics import Cells, Metric
    from ..records import Compared, PerSample, Recorded
    from ..subject import Batch, Shown, Subject


class Corruptions(Family):
    """Images as they come out of bad weather, noise, blur or compression."""

    name, words = "corruptions", VOCABULARY

    def overview(self, reading: Reading) -> Overview:
        from .results import MeanErrors

        return MeanErrors(reading)

    def left_out(self, manifest: Manifest) -> list[str]:
        lines = manifest.corrupted.left_out.values()
        return [f"left out: {line}; means that need it are not given" for line in lines]

    def compared(
        self, first: Recorded, second: Recorded, common: Sequence[str], compared: Compared
    ) -> Iterator[tuple[str, str]]:
        from .results import compared as means

        return means(common, compared)

    def per_sample(self, side: Recorded, condition: str, metric: str) -> PerSample | None:
        from .results import mean_errors

        return mean_errors(side, condition) if metric == "mean_error" else None

    def not_compared(self, common: Sequence[str], shown: Sequence[str]) -> list[str]:
        from .results import not_compared

        return not_compared(common, shown)

    def front(self, keys: Sequence[tuple[str, str]], headline: Metric) -> Iterable[tuple[str, str]]:
        from .tables import front

        return front(keys, headline)

    def called(self, text: str, manifest: Manifest) -> str:
        from .tables import called

        return called(text)

    def clauses(self, cells: Cells, manifest: Manifest, headline: Metric) -> Iterable[Clause]:
        from .tables import clauses

        return clauses(cells, manifest, headline)

    def figures(self, results: Results, looks: Looks, headline: Metric, section: str) -> Iterable[Figure]:
        from .figures import bar_figures, retention_bars

        title = f"What is left of {headline.word} under corruption"
        return bar_figures(retention_bars(results), looks, section, title, "retention")

    def heat_tables(self, checkpoint: str, cells: Cells) -> Iterable[HeatTable]:
        from .tables import retention_tables

        return retention_tables(checkpoint, cells)

    def card(self, results: Results) -> Iterable[CardPart]:
        from .tables import card_parts

        return card_parts(results)

    def terminal(self, results: Results) -> Iterable[TextTable]:
        from .tables import corruption_tables, terminal_corruptions

        return terminal_corruptions(corruption_tables(results))

    def short(self, texts: Sequence[str], manifest: Manifest, headline: Metric) -> Iterable[ShortRow]:
        from .tables import short

        return short(texts, headline)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        from ...display.grid import with_flags
        from ...display.table import Section
        from ..presenting import flag_lines, left_out_lines, of_family
        from .figures import accuracy_bars, bar_figures
        from .tables import corruption_grids, corruption_tables

        lines = flag_lines(results, of_family(self.name))
        drawn = bar_figures(accuracy_bars(results), looks, "corruptions", "Accuracy under corruption", "accuracy")
        yield Section(
            "corruptions",
            "Corruptions",
            lambda: {
                "grids": with_flags(corruption_grids(corruption_tables(results)), lines),
                "left_out": left_out_lines(results.run),
            },
            tuple(drawn),
        )

    def elsewhere(self, condition: Condition, device: torch.device) -> str:
        made = isinstance(condition.payload, Corrupted) and not condition.payload.released
        there = not made or _place(device) == device
        return "" if there else f"{device.type} has no float64: corruptions are made on the CPU"

    def plugins(self, condition: Condition) -> Iterable[Plugin]:
        from .condition import EVERY_CORRUPTION

        plugged = EVERY_CORRUPTION.plugin(condition.payload.name) if isinstance(condition.payload, Corrupted) else None
        return () if plugged is None else (plugged,)

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        from ..interface import Cost

        return Cost(1, extra=0.2)  # a seventh of the time of both on ViT-Tiny, on average over the 15

    def show(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
        from ..subject import show_pixels

        pixels, corrupted = batch.inputs.to(subject.settings.device), condition.payload
        assert isinstance(corrupted, Corrupted)
        if corrupted.released:  # the files hold them corrupted
            return show_pixels(subject, batch, pixels, known=False)
        made, where = corrupted.make(subject.settings.frost_dir), _place(pixels.device)
        draws = made.draw(pixels.shape[1:], corrupted.severity, rng.to(where))
        shown = made.apply(pixels.to(where, copy=True), draws).to(pixels.device)
        if shown.shape != pixels.shape or shown.dtype != pixels.dtype:
            raise PluginError(
                f"{condition.text} gives {shown.dtype} of {tuple(shown.shape)}; expected {pixels.dtype} of "
                f"{tuple(pixels.shape)}"
            )
        return show_pixels(subject, batch, shown)


def _place(device: torch.device) -> torch.device:
    """Return where corruptions are made for a device: many of them need float64."""
    import torch

    from ...models.device import has_float64

    return device if has_float64(device) else torch.device("cpu")


FAMILY = Corruptions()
