"""A run's results into the figures of its report."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ..display.svg import Figure, style
from ..evaluations.attacks.figures import curve_figures, curves, stage_figures, standings
from ..evaluations.corruptions.figures import accuracy_bars, bar_figures, retention_bars
from ..evaluations.maps.figures import map_figures, scores
from ..tasks.classification.calibration import calibration_figures, reliabilities
from ..tasks.segmentation.figures import class_figures, class_ious

if TYPE_CHECKING:
    from ..runs.folder import RunFolder


def figures(run: RunFolder, results: Sequence[dict[str, Any]]) -> list[Figure]:
    """What can be drawn of a run, in the order of a page. results: rows of its summary.

    A checkpoint looks alike in all figures.
    """
    return list(_figures(run, [_with_none(row) for row in results]))


def _with_none(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row with None for nan, as the summary's JSON has it."""
    return {key: None if isinstance(value, float) and value != value else value for key, value in row.items()}


def _figures(run: RunFolder, results: Sequence[dict[str, Any]]) -> Iterator[Figure]:
    manifest = run.manifest
    looks = {known["name"]: style(place) for place, known in enumerate(manifest["checkpoints"])}
    claims, in_pixels = manifest.get("claims", {}), manifest["protocol"].get("space", "pixels") == "pixels"
    if manifest["protocol"].get("task") == "segmentation":
        yield from curve_figures(curves(results, claims), looks, "miou", "segmentation", in_pixels)
        yield from class_figures(class_ious(results, claims))
        title = "What is left of mIoU under corruption"
        yield from bar_figures(retention_bars(results), looks, "segmentation", title, "retention")
        return
    yield from curve_figures(curves(results, claims), looks, "top1", "attacks", in_pixels)
    title = "Accuracy under corruption"
    yield from bar_figures(accuracy_bars(results), looks, "corruptions", title, "accuracy")
    yield from calibration_figures(reliabilities(run), looks)
    yield from stage_figures(standings(results), looks)
    yield from map_figures(scores(results), looks)
