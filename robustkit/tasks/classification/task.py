"""Classification behind the seam of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...evaluations.family import families
from ..task import Task

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from ...display.section import Section
    from ...evaluations.family import Looks, Results
    from ...evaluations.rows import Parts, Reading
    from ...runs.folder import RunFolder


class Classification(Task):
    """One class per image."""

    name, headline = "classification", "top1"

    def rows(self, reading: Reading, conditions: Sequence[str]) -> Parts:
        from .metrics import classification_rows

        return classification_rows(reading, conditions)

    def flag_lines(self, run: RunFolder, results: Results) -> Iterable[str]:
        from .tables import table_rows

        yield from (f"{row[0]}, {row[2]}: {row[9]}" for row in table_rows(run, results) if row[9])
        for family in families():
            yield from family.flag_lines(results)

    def terminal(self, run: RunFolder, results: Results) -> Iterable[Table | Text]:
        from .tables import terminal_table

        table = terminal_table(run, results)
        yield from [table] if table.row_count else []
        for family in families():
            yield from family.terminal(run, results)

    def sections(self, run: RunFolder, results: Results, looks: Looks) -> Iterable[Section]:
        from ...display.section import Section
        from .calibration import calibration_figures, reliabilities
        from .tables import HEADINGS, table_rows
        from .weak_classes import weak_spots

        def groups() -> dict[str, list[tuple[str, ...]]]:
            found: dict[str, list[tuple[str, ...]]] = {}
            for row in table_rows(run, results):
                found.setdefault(row[0], []).append(row)
            return found

        yield Section("results", "Results", lambda: {"groups": groups(), "headings": HEADINGS})
        yield Section("calibration", "Calibration", figures=tuple(calibration_figures(reliabilities(run), looks)))
        yield Section("classes", "Weak spots by class", lambda: {"weak_spots": weak_spots(run)})
        for family in families():
            yield from family.sections(run, results, looks)


TASK = Classification()
