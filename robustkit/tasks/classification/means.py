"""Mean errors over corruptions, from records of classifiers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...evaluations.corruptions.metrics import Outcome, conditions_of, corruption_rows, doubts, why_no_mce
from ...evaluations.rows import result_row


def corruption_means(
    manifest: dict[str, Any], checkpoint: str, outcomes: dict[str, Outcome]
) -> Iterator[dict[str, Any]]:
    described = next(known for known in manifest["checkpoints"] if known["name"] == checkpoint)
    size, trees = described["preprocessing"]["input_size"], manifest.get("corrupted", {}).get("released", {})
    rows = corruption_rows(outcomes, manifest["data"]["n"], why_no_mce(manifest))
    for condition, metric, value, n, low, high, flags in rows:
        released = [trees[text] for text in conditions_of(condition) if text in trees]
        flags = [*flags, *doubts(condition, size, released)]
        yield result_row(checkpoint, manifest, (condition, metric, value, n, low, high, flags))
