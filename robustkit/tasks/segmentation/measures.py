"""What the numbers of a segmenter are."""

from ...evaluations.metric import Metric, mean_share

METRICS = (
    mean_share("miou", "mIoU %", drafted=True, hub=("mean_iou", "mIoU")),
    mean_share("pixel_accuracy", "pixel accuracy %", hub=("pixel_accuracy", "pixel accuracy")),
    mean_share("mean_accuracy", "mean accuracy %", hub=("mean_accuracy", "mean class accuracy")),
    Metric("retention", "retention %", 100, 1, hub=("retention", "share of clean mIoU")),
    Metric("iou(", "IoU % of a class", 100, 1, share=True, parametric=True),
)
