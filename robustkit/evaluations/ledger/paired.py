"""Figures of the logit ledger by sample, for pairs of checkpoints."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ..recorded import PerSample, Recorded, not_paired
from .measures import METRICS


def per_sample(side: Recorded, condition: str, metric: str) -> PerSample:
    """Return a figure for each sample that has it: what comes back is one of predictions that changed.

    Raises:
        RunError: there are no records, or no such metric.
    """
    names = [number.name for number in METRICS if number.paired]
    if metric not in names:
        raise not_paired(condition, metric, names)
    read = side.samples(condition, [metric])
    there = np.isfinite(read.columns[metric])
    return read.ids.filter(pa.array(there)), read.columns[metric][there]
