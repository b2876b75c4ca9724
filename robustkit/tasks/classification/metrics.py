"""Top-1, top-5, NLL and calibration of records of classifiers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from ...common.intervals import Floats, bootstrap, calibration_error, calibration_interval, wilson
from ...evaluations.attacks.order import Right, is_compared, order_flag
from ...evaluations.attacks.stages import dossier_of, is_stage_column, stages_of
from ...evaluations.attention.condition import under_of
from ...evaluations.attention.metrics import HeadSums, Sampled, attention_rows, is_wanted_of_attention
from ...evaluations.corruptions.condition import parse_corrupted
from ...evaluations.corruptions.metrics import Outcome
from ...evaluations.maps.condition import parse_explained
from ...evaluations.maps.metrics import Figures, Pooled, is_wanted_of_maps, map_figures, map_rows, stability_rows
from ...evaluations.rows import Parts, column_of, joined, readable, record_flags, result_row
from ...runs.folder import RunFolder
from .means import corruption_means

if TYPE_CHECKING:
    import pyarrow as pa

_READ = {"sample_id", "correct", "top5", "nll", "confidence", "linf", "l2"}


def classification_rows(
    run: RunFolder, manifest: dict[str, Any], checkpoint: str, conditions: Sequence[str], unread: dict[str, str]
) -> Parts:
    rows: list[dict[str, Any]] = []
    outcomes: dict[str, Outcome] = {}
    figures: list[Figures] = []
    undisturbed: Sampled | None = None
    rights: dict[str, Right] = {}
    for condition in conditions:
        if (under := under_of(condition)) is not None:
            sums = HeadSums(run.shard_path(checkpoint, condition, 0).parent)
            parts = run.shards(checkpoint, condition, is_wanted_of_attention)
            table, _ = joined(map(sums.taken, parts), unread)
            sampled = Sampled.of(readable(table))
            flags = record_flags(table, readable(table), manifest, checkpoint, condition)
            watched = attention_rows(condition, sampled, undisturbed, sums.heads(), flags)
            rows += [result_row(checkpoint, manifest, row) for row in watched]
            undisturbed = sampled if under == "clean" else undisturbed
            continue
        explained, pooled = parse_explained(condition), Pooled()
        shards = partial(run.shards, checkpoint, condition, _is_wanted if explained is None else is_wanted_of_maps)
        table, notes = joined(map(pooled.taken, shards()), unread)
        read = readable(table)
        flags = [*record_flags(table, read, manifest, checkpoint, condition), *notes]
        flags += [finding.flag for finding in dossier_of(run, manifest, checkpoint, condition, read) if finding.flag]
        if explained is not None:
            keep = bool(manifest.get("keep_misclassified"))
            if explained.under:
                rows += [result_row(checkpoint, manifest, row) for row in stability_rows(table, explained, keep, flags)]
            else:
                figures.append(map_figures(shards, table, pooled, explained, keep, flags))
            continue
        early = bool(manifest.get("claims", {}).get(condition, {}).get("early_stop"))
        found = _classification(read, early)
        if found and is_compared(condition):
            rights[condition] = Right.of(read)
        rows += [result_row(checkpoint, manifest, (condition, *figure, flags)) for figure in found]
        if found and (condition == "clean" or parse_corrupted(condition)):
            outcomes[condition] = Outcome.of(read, flags, like=next(iter(outcomes.values()), None))
    odd = {condition: order_flag(manifest, condition, rights) for condition in rights}
    rows = [row | {"flags": [*row["flags"], flag]} if (flag := odd.get(row["condition"])) else row for row in rows]
    means = list(corruption_means(manifest, checkpoint, outcomes))
    return rows, means, [result_row(checkpoint, manifest, row) for row in map_rows(figures)]


def _is_wanted(column: str) -> bool:
    """Whether results of a condition other than a map need a column."""
    return column in _READ or is_stage_column(column)


def _classification(read: pa.Table, early: bool) -> list[tuple[str, float, int, float, float]]:
    """Metric, value, n and interval. `early`: samples left at their first wrong prediction, so that only top-1 means
    something.
    """
    n = len(read)
    if n == 0:
        return []
    correct = column_of(read, "correct")
    rows = []
    for name, column in (("top1", correct), ("top5", column_of(read, "top5"))):
        hits = int(column.sum())
        rows.append((name, hits / n, n, *wilson(hits, n)))
    rows = rows[:1] if early else [*rows, *_losses(read, correct)]
    for norm in ("linf", "l2"):
        largest = float(column_of(read, norm).max())
        if largest > 0:
            rows.append((f"{norm}_max", largest, n, math.nan, math.nan))
    for stage in stages_of(read):
        rows.append((f"top1_after_{stage.name}", stage.standing / n, n, *wilson(stage.standing, n)))
    return rows


def _losses(read: pa.Table, correct: Floats) -> list[tuple[str, float, int, float, float]]:
    """NLL and calibration error."""
    n, confidence, nll = len(read), column_of(read, "confidence"), column_of(read, "nll")
    finite = np.isfinite(confidence)
    sure, right = confidence[finite], correct[finite]
    loss = float(nll.mean())

    def resampled(counts: Floats) -> Floats:
        with np.errstate(invalid="ignore"):  # 0 times an infinite loss is no number
            return counts @ nll / n

    return [
        ("nll", loss, n, *bootstrap(resampled, n, [loss])[0]),
        ("ece", calibration_error(sure, right), n, *calibration_interval(sure, right)),
    ]
