"""A figure for each sample, to compare two checkpoints."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..recorded import PerSample, Recorded, not_paired
from .measures import CHANGE, METRICS, RIGHT


def per_sample(side: Recorded, condition: str, metric: str) -> PerSample:
    """Return a figure of the samples that are predicted right as they are; of all where it is whether the changed image
    is predicted right.

    Raises:
        RunError: there are no records, or it is no figure of samples.
    """
    if metric not in (known := [number.name for number in METRICS if number.paired]):
        raise not_paired(condition, metric, known)
    if metric == RIGHT.name:
        read = side.samples(condition, ["correct"])
        return read.ids, read.columns["correct"]
    columns = ["mass_before", "mass_after"] if metric == CHANGE.name else [metric]
    read = side.samples(condition, ["clean_correct", *columns])
    figures = read.columns[columns[-1]]
    if metric == CHANGE.name:
        figures = figures - read.columns["mass_before"]
    counted = (read.columns["clean_correct"] > 0) & ~np.isnan(figures)
    return read.ids.filter(pa.array(counted)), figures[counted]
