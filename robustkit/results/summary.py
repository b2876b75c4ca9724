"""A run and its results, for a program or a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..runs.folder import SUMMARY_COLUMNS, RunFolder
from .paper import PaperTable, table
from .survey import survey as survey
from .survey import write_summary as write_summary

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
