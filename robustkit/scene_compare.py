"""The checkpoints of a segmentation run beside the first of them, paired by image."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .compare import Difference, Side, holm, paired_difference
from .errors import RunError
from .records import Run
from .scene_report import SceneTable

HEADINGS = ("condition", "metric", "n", "difference in points [95 %]", "p", "p, Holm")
_METRICS = {"miou": "mIoU", "pixel_accuracy": "pixel accuracy", "mean_accuracy": "mean accuracy"}


def difference_tables(run: Run, results: Sequence[Mapping[str, Any]]) -> list[SceneTable]:
    """What each later checkpoint has more than the first, under all but single corruptions; none for a run of one.

    p is Holm's over all rows of all tables (Holm 1979).
    """
    names = [known["name"] for known in run.manifest["checkpoints"]]
    conditions = dict.fromkeys(
        row["condition"]
        for row in results
        if row["metric"] == "miou" and not row["condition"].startswith("corruption(")
    )
    found: list[tuple[str, str, str, Difference]] = []
    for name in names[1:]:
        for condition in conditions:
            for metric in _METRICS:
                try:
                    difference = paired_difference(Side(run, names[0]), Side(run, name), condition, metric)
                except RunError:  # the records of one of them are not there yet
                    continue
                found.append((name, condition, metric, difference))
    corrected = holm([difference.p_value for *_, difference in found])
    rows: dict[str, list[tuple[str, ...]]] = {}
    for (name, condition, metric, difference), p_value in zip(found, corrected, strict=True):
        cells = (str(difference.n), _points(difference), _p(difference.p_value), _p(p_value))
        rows.setdefault(name, []).append((condition, _METRICS[metric], *cells))
    return [
        SceneTable(f"{name} against {names[0]}, paired by image", HEADINGS, tuple(own)) for name, own in rows.items()
    ]


def _points(difference: Difference) -> str:
    if not math.isfinite(difference.value):
        return "nan"
    if not math.isfinite(difference.ci_low):
        return f"{100 * difference.value:+.2f}"
    low, high = (100 * bound for bound in (difference.ci_low, difference.ci_high))
    return f"{100 * difference.value:+.2f} [{low:+.2f}, {high:+.2f}]"


def _p(value: float) -> str:
    return "nan" if not math.isfinite(value) else "< 0.001" if value < 0.001 else f"{value:.3f}"
