"""A figure for each sample, to compare two checkpoints."""

from __future__ import annotations

import pyarrow as pa

from ..recorded import PerSample, Recorded, not_paired
from .measures import ACCURACY, AREA, LEAD, METRICS
from .vocabulary import which_count


def per_sample(side: Recorded, condition: str, metric: str) -> PerSample:
    """Return a figure of the samples that are counted; what is kept, of those that are predicted right as they are.

    Raises:
        RunError: there are no records, or it is no figure of samples.
    """
    if metric not in (known := [number.name for number in METRICS if number.paired]):
        raise not_paired(condition, metric, known)
    columns = ["correct", "clean_correct", AREA.name, *(["random_correct"] if metric == LEAD.name else [])]
    read = side.samples(condition, columns)
    figures, counted = read.columns["correct"], which_count(condition, read.columns[AREA.name])
    if metric == LEAD.name:
        figures = figures - read.columns["random_correct"]
    if metric != ACCURACY.name:
        counted &= read.columns["clean_correct"] > 0
    return read.ids.filter(pa.array(counted)), figures[counted]
