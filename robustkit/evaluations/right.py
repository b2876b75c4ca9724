"""Whether samples are predicted right under several conditions, paired by their ids."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa

Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Right:
    """Whether samples, by their ids, were predicted right under some condition."""

    ids: pa.ChunkedArray
    right: Bools

    @classmethod
    def of(cls, table: pa.Table) -> Right:
        """Return the answers of a condition's readable rows."""
        return cls(table["sample_id"], table["correct"].fill_null(False).to_numpy().astype(bool))


def aligned(rights: Sequence[Right]) -> list[Bools]:
    """Return one array for each condition, of the samples that all of them have."""
    if all(each.ids.equals(rights[0].ids) for each in rights[1:]):
        return [each.right for each in rights]
    by_id = [dict(zip(each.ids.to_pylist(), each.right.tolist(), strict=True)) for each in rights]
    common = [name for name in by_id[0] if all(name in each for each in by_id[1:])]
    return [np.array([each[name] for name in common], dtype=bool) for each in by_id]


def chance(more: int, fewer: int) -> float:
    """Return the probability that a fair coin gives at least `more` heads in `more + fewer` throws: McNemar's exact
    test, one-sided.
    """
    n = more + fewer
    if n > 1000:  # the normal approximation, with the correction for continuity
        return 0.5 * math.erfc((more - fewer - 1) / math.sqrt(2 * n))
    return float(sum(math.comb(n, heads) for heads in range(more, n + 1)) / 2**n)
