"""What the numbers of a segmenter are."""

from ...evaluations.metric import Metric, mean_share

METRICS = (
    mean_share("miou", "mIoU %"),
    mean_share("pixel_accuracy", "pixel accuracy %"),
    mean_share("mean_accuracy", "mean accuracy %"),
    Metric("retention", "retention %", 100, 1),
    Metric("iou(", "IoU % of a class", 100, 1, share=True, parametric=True),
)
