"""A run as users hold it: the folder and its results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..runs.folder import SUMMARY_COLUMNS, RunFolder
from .summary import summarise

if TYPE_CHECKING:
    import pandas as pd


class Run(RunFolder):
    """A run folder and its results, which come from the records alone: no model is needed."""

    def results(self) -> pd.DataFrame:
        """Return the rows of summary.json with the columns of `SUMMARY_COLUMNS`, computed from the records."""
        import pandas as pd

        return pd.DataFrame(summarise(self), columns=list(SUMMARY_COLUMNS))
