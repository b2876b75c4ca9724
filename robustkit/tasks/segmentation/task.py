"""Segmentation behind the seam of tasks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from ..task import Task

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from ...display.section import Section
    from ...evaluations.family import Looks, Results
    from ...evaluations.rows import Parts, Reading
    from ...runs.folder import RunFolder


class Segmentation(Task):
    """One class per pixel."""

    name, headline, compared = "segmentation", "miou", True

    def rows(self, reading: Reading, conditions: Sequence[str]) -> Parts:
        from .metrics import segmentation_rows

        return segmentation_rows(reading, conditions)

    def flag_lines(self, run: RunFolder, results: Results) -> Iterable[str]:
        from .tables import scene_tables

        return (flag for table in scene_tables(results, run.manifest) for flag in table.flags)

    def terminal(self, run: RunFolder, results: Results) -> Iterable[Table | Text]:
        from .tables import scene_tables, terminal_scenes

        return terminal_scenes(scene_tables(results, run.manifest))

    def sections(self, run: RunFolder, results: Results, looks: Looks) -> Iterable[Section]:
        from ...display.section import Section
        from ...evaluations.attacks.figures import curve_figures, curves
        from ...evaluations.corruptions.figures import bar_figures, retention_bars
        from ...evaluations.corruptions.tables import left_out_lines
        from .figures import class_figures, class_ious
        from .sheet import sheet_uri
        from .tables import scene_tables

        manifest, title = run.manifest, "What is left of mIoU under corruption"
        claims, in_pixels = manifest.claims, manifest.protocol.space == "pixels"
        drawn = [
            *curve_figures(curves(results, claims), looks, "miou", "segmentation", in_pixels),
            *class_figures(class_ious(results, claims)),
            *bar_figures(retention_bars(results), looks, "segmentation", title, "retention"),
        ]

        def values() -> dict[str, Any]:
            examples, left_out = sheet_uri(run), left_out_lines(run)
            return {"scenes": scene_tables(results, manifest), "examples": examples, "left_out": left_out}

        yield Section("segmentation", "Segmentation", values, tuple(drawn))
        yield Section("corruptions", "Corruptions", lambda: {"corruptions": [], "left_out": left_out_lines(run)})


TASK = Segmentation()
