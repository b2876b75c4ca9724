"""What the numbers of maps are."""

from dataclasses import replace

from ..metric import Metric, mean_share
from ..term import Term

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
    Metric("abpc", "ABPC", better=1, paired=True, least=-1, most=1, noun="faithfulness (ABPC)"),
    Metric("insertion_auc", "insertion", better=1, paired=True, least=0, most=1),
    Metric("deletion_auc", "deletion", better=-1, paired=True, least=0, most=1),
    Metric("road", "ROAD", better=1, paired=True),
    Metric("road_lerf", "ROAD LeRF", better=1, paired=True),
    Metric("road_morf", "ROAD MoRF", better=-1, paired=True),
    Metric("infidelity", "infidelity", better=-1, paired=True, least=0),
    Metric("head_correlation", "head redrawn", least=-1, most=1),
    Metric("cascade_correlation", "model redrawn", least=-1, most=1),
    Metric("entropy_rise", "entropy rise"),
    Metric("max_sensitivity", "max sensitivity", least=0),
    Metric("mean_sensitivity", "mean sensitivity", least=0),
    Metric("map_entropy", "entropy of maps", least=0),
    Metric("map_gini", "Gini of maps", least=0, most=1),
)
_POOLED = (
    Metric("pxap", "PxAP %", 100, 1, least=0, most=1),
    Metric("max_box_acc", "MaxBoxAcc %", 100, 1, least=0, most=1),
)
FAITHFUL = tuple(metric for metric in _MEANS if metric.name in ("abpc", "insertion_auc", "deletion_auc"))
"""Scores that a model's confidence goes along with, and supports where they are of few samples."""
STABILITY = (
    Metric("rank_correlation", "rank correlation", better=1, paired=True, least=-1, most=1),
    Metric("map_iou", "IoU of maps %", 100, 1, paired=True, least=0, most=1),
)
CONTROLLED = (*_SCORES, *_MEANS, *_POOLED)
"""Scores of a map that are compared with those of controls: each also has its `…_over_control`."""
METRICS = (
    *CONTROLLED,
    *STABILITY,
    *(replace(score, name=score.name + group, paired=False) for score in STABILITY for group in ("_held", "_fell")),
)
TERMS = (
    Term(
        "map",
        "A picture of how much each part of an image counts for a class, by one method such as AG-CAM. Each runs from "
        "its own lowest to its own highest value, 0 to 1.",
        ("maps", "Maps"),
    ),
    Term(
        "control",
        "A map that does not look at the image: random values, a Gaussian in the centre (centre), or everything marked "
        "(full). A method that is not ahead of the best control has shown nothing.",
        ("controls", "best control"),
    ),
    Term(
        "lead",
        "The score of a map minus that of the best control, paired by image. Negative: behind the control.",
    ),
    Term(
        "mask mode",
        "The pixels of the map that reach the threshold are compared with the true object, pixel by pixel.",
    ),
    Term(
        "pixels against boxes",
        "The pixels of the map that reach the threshold are compared with the area of the true boxes, since the data "
        "has no masks. A map that follows the outline of an object does not reach 1.",
        ("IoU with boxes",),
    ),
    Term(
        "box mode",
        "Boxes are drawn around what reaches the threshold, and their union is compared with the union of true boxes.",
    ),
    Term("pixel accuracy", "The share of pixels on which map and truth agree: object or not.", ("pixel acc.",)),
    Term(
        "IoU",
        "Intersection over union: the pixels that map and truth both mark, divided by those that either marks. 1 is a "
        "perfect match.",
    ),
    Term("DICE", "Twice the pixels that map and truth both mark, divided by the sum of what each marks."),
    Term("precision", "The share of the pixels that the map marks which lie on the object."),
    Term("recall", "The share of the object's pixels that the map marks."),
    Term(
        "pointing game",
        "The share of images in which the highest point of the map lies on the object (Zhang et al. 2018), or in its "
        "box, where only boxes are known.",
        ("pointing",),
    ),
    Term(
        "energy inside",
        "The share of the map's sum that lies on the object (Wang et al. 2020). It needs no threshold; an even map "
        "scores the object's share of the image.",
    ),
    Term(
        "PxAP",
        "Pixel average precision: the area under the curve of precision against recall of all pixels over all "
        "thresholds (Choe et al. 2020). It needs no threshold.",
    ),
    Term(
        "MaxBoxAccV2",
        "The share of images in which a box around the map fits the true box: the best of 100 thresholds, averaged "
        "over the demands IoU 0.3, 0.5 and 0.7 (Choe et al. 2020). A maximum has no interval.",
        ("MaxBoxAcc",),
    ),
    Term(
        "ABPC",
        "Area between perturbation curves: pixels are removed in the map's order, and the probability of the class is "
        "watched. It is the mean gap between removing the least and the most important first. Higher is better; a "
        "random map has about 0.",
    ),
    Term(
        "insertion",
        "The area under the probability of the class while pixels are put in, the most important first (Petsiuk et al. "
        "2018). Higher is better.",
    ),
    Term("deletion", "The same while they are removed. Lower is better."),
    Term(
        "ROAD",
        "Remove and debias: as ABPC, but removed pixels become what those around them suggest, with a little noise, so "
        "that the outline of what is gone tells nothing (Rong et al. 2022). It is the mean gap at 10, 20, … 90 % of "
        "the pixels. Higher is better.",
    ),
    Term(
        "LeRF",
        "Least relevant first: the mean probability of the class while pixels are removed from the lowest value of the "
        "map up. Higher is better. ROAD is LeRF minus MoRF.",
        ("ROAD LeRF",),
    ),
    Term("MoRF", "Most relevant first: the same from the highest value down. Lower is better.", ("ROAD MoRF",)),
    Term(
        "head redrawn",
        "The rank correlation of the map with that of the same model after its last layer is drawn at random. It "
        "should be low: a map that stays the same does not depend on the class (Adebayo et al. 2018).",
    ),
    Term(
        "infidelity",
        "How badly a map tells what hiding a square of the image does to the probability of the class, over 32 random "
        "squares: 0 where it tells every fall, 1 where it tells none (Yeh et al. 2019, scaled). The scale may be "
        "negative: a map of what speaks against the class tells as much. Lower is better.",
    ),
    Term(
        "model redrawn",
        "The rank correlation of the map with those of the model whose layers are drawn at random from the head down, "
        "as a mean over eight stages (MPRT, Adebayo et al. 2018). It should be low.",
    ),
    Term(
        "entropy rise",
        "How much the entropy of a map's histogram rises, as a share, when the whole model is drawn at random "
        "(efficient MPRT, Hedström et al. 2024). It should be above 0.",
    ),
    Term(
        "sensitivity",
        "How far a map moves, as a share of its own norm, when noise of at most 0.02 is added to the image: the "
        "largest and the mean of ten draws (Yeh et al. 2019). Low is steady; a control, which does not look, has 0.",
        ("max sensitivity", "mean sensitivity"),
    ),
    Term(
        "entropy of maps",
        "The entropy of a map whose values are taken as shares, in nats: low where few pixels are marked (Bhatt et al. "
        "2020). The largest possible is the logarithm of the number of pixels.",
    ),
    Term(
        "Gini of maps",
        "The Gini index of a map's values: 0 where all are alike, near 1 where few pixels have all (Chalasani et al. "
        "2020).",
    ),
    Term(
        "rank correlation",
        "Spearman's correlation of the pixels of two maps: 1 where they order the pixels alike, about 0 where they "
        "have nothing in common.",
        ("rank corr.",),
    ),
    Term(
        "held",
        "Images whose prediction stays the same under the condition; the others fell. Maps of the two are kept apart, "
        "since a changed prediction explains another class.",
        ("n held", "n fell", "fell"),
    ),
    Term("AG-CAM", "Attention-guided class activation map, for Vision Transformers (Leem and Seo 2024).", ("agcam",)),
    Term("IoU of maps", "The IoU of what two maps mark at the threshold."),
)
