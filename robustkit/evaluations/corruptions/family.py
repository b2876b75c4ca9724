"""Corruptions behind the seam of families."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from ..family import Family, Overview
from .condition import Corrupted

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from ...common.randomness import SampleRng
    from ...display.section import Section
    from ...protocol.condition import Condition
    from ...runs.folder import RunFolder
    from ..family import Looks, Results
    from ..rows import Reading
    from ..subject import Batch, Shown, Subject


class Corruptions(Family):
    """Images as they come out of bad weather, noise, blur or compression."""

    name = "corruptions"

    def overview(self, reading: Reading) -> Overview:
        from .overview import MeanErrors

        return MeanErrors(reading)

    def flag_lines(self, results: Results) -> Iterable[str]:
        from .tables import corruption_tables

        return (f"{table.checkpoint}, {flag}" for table in corruption_tables(results) for flag in table.flags)

    def terminal(self, run: RunFolder, results: Results) -> Iterable[Table | Text]:
        from .tables import corruption_tables, terminal_corruptions

        return terminal_corruptions(corruption_tables(results))

    def sections(self, run: RunFolder, results: Results, looks: Looks) -> Iterable[Section]:
        from ...display.section import Section
        from .figures import accuracy_bars, bar_figures
        from .tables import corruption_tables, left_out_lines

        drawn = bar_figures(accuracy_bars(results), looks, "corruptions", "Accuracy under corruption", "accuracy")
        yield Section(
            "corruptions",
            "Corruptions",
            lambda: {"corruptions": corruption_tables(results), "left_out": left_out_lines(run)},
            tuple(drawn),
        )

    def show(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
        from ..evaluator import show_pixels

        pixels, corrupted = batch.inputs.to(subject.settings.device), condition.payload
        assert isinstance(corrupted, Corrupted)
        if corrupted.released:  # they come corrupted from their files
            return show_pixels(subject, batch, pixels, known=False)
        made = corrupted.make(subject.settings.frost_dir)
        return show_pixels(subject, batch, made.apply(pixels, made.draw(pixels.shape[1:], corrupted.severity, rng)))


FAMILY = Corruptions()
