"""What the numbers of a segmenter are."""

from dataclasses import replace

from ...evaluations.metrics import Metric, Term, mean_share

METRICS = (
    replace(mean_share("miou", "mIoU %", drafted=True, hub=("mean_iou", "mIoU")), also=("iou", "jaccard")),
    Metric("miou_worst", "worst-case mIoU %", 100, 1, share=True),
    replace(
        mean_share("pixel_accuracy", "pixel accuracy %", hub=("pixel_accuracy", "pixel accuracy")), short="pixel acc. %"
    ),
    replace(
        mean_share("mean_accuracy", "mean accuracy %", hub=("mean_accuracy", "mean class accuracy")),
        short="mean acc. %",
    ),
    Metric("nll", "NLL", better=-1, paired=True, least=0, bare=True),
    Metric("retention", "retention %", 100, 1, hub=("retention", "share of clean mIoU"), least=0),
    Metric("iou(", "IoU % of a class", 100, 1, share=True, parametric=True),
)
TERMS = (
    Term(
        "IoU",
        "Intersection over union of a class: the pixels that are of this class in prediction and truth, divided by "
        "those that are in either; over all images together.",
    ),
    Term("mIoU", "The mean of IoU over the classes."),
    Term(
        "worst-case mIoU",
        "mIoU where of each image that run of the attack counts which lowers the mIoU of all images most: chosen image "
        "by image, in the order of their names, until nothing changes. Never above the mIoU of the points that the "
        "attack keeps, which are the worst of each image by itself. Its interval takes the choice as given.",
    ),
    Term("pixel accuracy", "The share of pixels whose class is predicted right.", ("pixel acc.",)),
    Term(
        "mean accuracy", "The mean over classes of the share of their pixels that is predicted right.", ("mean acc.",)
    ),
    Term("retention", "mIoU under a condition divided by the clean mIoU: what is left of it. 100 % means no loss."),
    Term(
        "NLL", "Negative log-likelihood: minus the natural logarithm of the probability of the right class, as a mean."
    ),
    Term("largest |δ|", "The largest change of a pixel value, or its length under L2, that was measured in any image."),
)
