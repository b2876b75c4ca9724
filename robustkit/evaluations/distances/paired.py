"""A figure for each sample, to compare two checkpoints."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from ...protocol.card import number
from ..recorded import PerSample, Recorded, not_paired
from .measures import AREA, FURTHEST, RATIO
from .summary import distances_of
from .vocabulary import norm_of


def per_sample(side: Recorded, condition: str, metric: str) -> PerSample:
    """Return ln distances of the samples that are predicted right, shares of the area, or whether samples stand at a
    radius. Raises RunError for another metric.
    """
    read = side.samples(condition, ["distance"])
    distances = distances_of(read.columns["distance"])
    if metric == RATIO.name:
        right = distances > 0
        return read.ids.filter(pa.array(right)), np.log(distances[right])
    if metric == AREA.name:
        furthest = FURTHEST[norm_of(condition)]
        return read.ids, np.minimum(distances, furthest) / furthest
    if metric.startswith("accuracy_at(") and metric.endswith(")"):
        return read.ids, (distances > float(number(metric[12:-1]))).astype(np.float64)
    raise not_paired(condition, metric, [RATIO.name, AREA.name, "accuracy_at(RADIUS)"])
