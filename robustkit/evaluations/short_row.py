"""A row of the short table that a terminal shows of a run."""

from __future__ import annotations

from typing import NamedTuple

from .metric import Metric


class ShortRow(NamedTuple):
    """A row of the short table of a run.

    section: the heading that it stands under. label: what it is. condition, metric: where its numbers are.
    """

    section: str
    label: str
    condition: str
    metric: Metric
