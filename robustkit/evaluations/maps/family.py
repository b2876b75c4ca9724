"""Explanation maps behind the seam of families."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ..family import Family, Summary, family_of

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.table import Table
    from rich.text import Text

    from ...common.plugins import Plugin
    from ...common.randomness import SampleRng
    from ...display.section import Section
    from ...protocol.condition import Condition
    from ...runs.folder import RunFolder
    from ..family import Looks, Results
    from ..rows import Reading
    from ..subject import Batch, Evaluation, Subject


class Maps(Family):
    """What a model looks at: the scores of maps that explain a class, and how they change with the images."""

    name = "maps"

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        from .evaluate import COLUMNS

        return COLUMNS

    def summary(self, reading: Reading) -> Summary:
        from .summary import MapSummary

        return MapSummary(reading)

    def flag_lines(self, results: Results) -> Iterable[str]:
        from .tables import map_tables

        tables = map_tables(results)
        return dict.fromkeys(f"{table.checkpoint}, {flag}" for table in tables for flag in table.flags)

    def terminal(self, run: RunFolder, results: Results) -> Iterable[Table | Text]:
        from .tables import map_tables, terminal_maps

        return terminal_maps(map_tables(results))

    def sections(self, run: RunFolder, results: Results, looks: Looks) -> Iterable[Section]:
        from ...display.section import Section
        from .figures import map_figures, scores
        from .tables import map_tables
        from .thumbnail import gallery_uri

        yield Section(
            "maps",
            "What it looks at",
            lambda: {"maps": map_tables(results), "gallery": gallery_uri(run)},
            tuple(map_figures(scores(results), looks)),
        )

    def plugins(self, condition: Condition) -> Iterable[Plugin]:
        from .condition import explained_of
        from .registry import EVERY_EXPLAINER

        spec = explained_of(condition)
        if spec is not None and (plugged := EVERY_EXPLAINER.plugin(spec.method)) is not None:
            yield plugged
        if condition.under is not None:
            yield from family_of(condition.under.name).plugins(condition.under)

    def evaluate(self, subject: Subject, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        from .evaluate import evaluate

        return evaluate(subject, batch, condition, rng)


FAMILY = Maps()
