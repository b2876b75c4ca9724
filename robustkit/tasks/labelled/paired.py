"""Compare the labels of two classifiers' samples."""

from __future__ import annotations

import numpy as np

from ...evaluations.recorded import Recorded, common_ids


def other_label(first: Recorded, second: Recorded, condition: str) -> tuple[int, str]:
    """Return how many samples both have, and which of them has another label; empty if none."""
    sides = [side.samples(condition, ["label", "correct", "nll"]) for side in (first, second)]
    ids = common_ids([side.ids for side in sides])
    before, after = (side.of("label", ids) for side in sides)
    places = np.flatnonzero(before != after)[:1]
    return len(ids), "".join(f"the label of {ids[p].as_py()} is {before[p]:.0f} and {after[p]:.0f}" for p in places)
