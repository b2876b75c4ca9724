"""A run and its results, for a program or a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..display.notebook import as_html, as_json
from ..evaluations.presenting import flag_lines, left_out_lines
from ..runs.folder import SUMMARY_COLUMNS, RunFolder
from .paper import PaperTable, table
from .summary_text import summary_sentences
from .survey import survey as survey
from .survey import write_summary as write_summary
from .tables import short_tables

if TYPE_CHECKING:
    import pandas as pd


class Run(RunFolder):
    """A run folder and its results, which come from the records alone: no model is needed."""

    def results(self) -> pd.DataFrame:
        """Return the rows of summary.json with the columns of `SUMMARY_COLUMNS`, computed from the records."""
        import pandas as pd

        return pd.DataFrame([*survey(self)], columns=list(SUMMARY_COLUMNS))

    def tabulate(self, **options: Any) -> PaperTable:
        """Return `robustkit.table` of this run: what it shows, in LaTeX by `to_latex`."""
        return table(self, **options)

    to_frame = results

    def to_json(self) -> str:
        """Return the rows of `results` as JSON."""
        return as_json([dict(row) for row in survey(self)])

    def _repr_html_(self) -> str:
        """Return what the command prints of a run: sentences, the short table, flags."""
        found = survey(self)
        flags = (f"⚑ {line}" for line in (*flag_lines(found), *left_out_lines(self)))
        return f"{as_html(short_tables(found), summary_sentences(found))}\n{as_html((), flags)}"
