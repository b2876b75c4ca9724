"""A figure for each sample, to compare two checkpoints."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..recorded import PerSample, Recorded, not_paired
from .measures import METRICS


def per_sample(side: Recorded, condition: str, metric: str) -> PerSample:
    """Return a figure of the images whose objects are both in the frame.

    Raises:
        RunError: there are no records, or it is no figure of samples.
    """
    if metric not in (known := [number.name for number in METRICS if number.paired]):
        raise not_paired(condition, metric, known)
    read = side.samples(condition, [metric])
    figures = read.columns[metric]
    counted = np.isfinite(figures)
    return read.ids.filter(pa.array(counted)), figures[counted]
