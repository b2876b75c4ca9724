"""What the numbers of maps are."""

from dataclasses import replace

from ..metric import Metric, mean_share

_SCORES = (
    mean_share("cam_pixel_accuracy", "pixel accuracy %"),
    replace(mean_share("cam_iou", "IoU %", drafted=True), noun="overlap with the object (IoU)"),
    mean_share("cam_dice", "DICE %"),
    mean_share("cam_precision", "precision %"),
    mean_share("cam_recall", "recall %"),
)
_MEANS = (
    replace(mean_share("pointing_game", "pointing game %"), noun="share of maximums on the object (pointing game)"),
    replace(mean_share("energy_inside", "energy inside %"), noun="share of energy inside the object"),
    Metric("abpc", "ABPC", better=1, paired=True, noun="faithfulness (ABPC)"),
    Metric("insertion_auc", "insertion", better=1, paired=True),
    Metric("deletion_auc", "deletion", better=-1, paired=True),
    Metric("head_correlation", "head redrawn"),
)
_POOLED = (Metric("pxap", "PxAP %", 100, 1), Metric("max_box_acc", "MaxBoxAcc %", 100, 1))
STABILITY = (
    Metric("rank_correlation", "rank correlation", better=1, paired=True),
    Metric("map_iou", "IoU of maps %", 100, 1, paired=True),
)
CONTROLLED = (*_SCORES, *_MEANS, *_POOLED)
"""Scores of a map that are compared with those of controls: each also has its `…_over_control`."""
METRICS = (
    *CONTROLLED,
    *STABILITY,
    *(replace(score, name=score.name + group, paired=False) for score in STABILITY for group in ("_held", "_fell")),
)
