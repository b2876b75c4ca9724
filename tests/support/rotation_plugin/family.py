"""Rotations behind the seam of families."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from robustkit.common.figure import Figure
from robustkit.common.finding import Finding
from robustkit.common.intervals import bootstrap
from robustkit.display.format import scaled, share
from robustkit.display.svg import Plot
from robustkit.display.table import Section, Table, of_tables
from robustkit.evaluations.aggregate import column_of
from robustkit.evaluations.condition import Clause
from robustkit.evaluations.family import Family
from robustkit.evaluations.metrics import Cells, Metric

from .vocabulary import VOCABULARY, degrees_of

if TYPE_CHECKING:
    from robustkit.evaluations.aggregate import Results
    from robustkit.evaluations.family import Looks


class Rotations(Family):
    """Images turned by some degrees, and whether the prediction stays."""

    name, words = "rotations", VOCABULARY

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        return {"agreement": pa.float32()}

    def extras(self, reading: Any, condition: str, read: pa.Table) -> tuple[list[Figure], list[Finding]]:
        values, n = column_of(read, "agreement"), len(read)
        mean = float(values.mean())
        ends = bootstrap(lambda counts: counts @ values / n, n, [mean])[0]
        return [Figure(mean, n, *ends, "bootstrap", metric="agreement")], []

    def clauses(self, cells: Cells, manifest: Mapping[str, Any], headline: Metric) -> Iterable[Clause]:
        for (condition, metric), row in cells.items():
            if metric == "agreement":
                yield Clause(f"{VOCABULARY.label(condition)} it keeps {share(row)} of its predictions", (row,))

    def tables(self, results: Results) -> Sequence[Table]:
        rows = tuple(
            (row.checkpoint, degrees_of(row.condition), scaled(row.value))
            for row in results
            if row.metric == "agreement"
        )
        return [Table("predictions that stay", ("checkpoint", "degrees", "agreement %"), rows)] if rows else []

    def sections(self, results: Results, looks: Looks) -> Iterator[Section]:
        if tables := self.tables(results):
            yield of_tables(self.name, "Rotations", tuple(tables), (_figure(tables[0]),))


def _figure(table: Table) -> Plot:
    def paint(canvas: Any) -> None:
        canvas.subplots().plot([int(row[1]) for row in table.rows], [float(row[2]) for row in table.rows], "o")

    return Plot("rotations", "Agreement by angle", 200, paint, alt="Agreement by angle.", caption="", name="")


FAMILY = Rotations()
