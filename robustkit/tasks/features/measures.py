"""What the numbers of features are."""

from __future__ import annotations

from ...evaluations.metrics import Metric, Term, mean_share, of_samples

METRICS = (
    of_samples("knn", "kNN %", True, ("accuracy", "accuracy of nearest neighbours")),
    of_samples("probe", "linear probe %", hub=("probe_accuracy", "accuracy of a linear probe")),
    mean_share("retrieval", "retrieval mAP %", hub=("map", "mAP of nearest-neighbour retrieval")),
    Metric("moved", "features moved", better=-1, paired=True, least=0),
    Metric("knn(", "kNN % at k", 100, 1, paired=True, binary=True, parametric=True),
    Metric("few_shot(", "few-shot %", 100, 1, paired=True, share=True, parametric=True),
    Metric("few_shot_spread(", "spread of few-shot %", 100, parametric=True, least=0, most=1),
)


TERMS = (
    Term(
        "kNN",
        "The share of images whose class the nearest training images vote for: the k with the most similar features by "
        "their cosine, each with the weight exp(cosine / temperature). Where no k is named it is the one of the heads, "
        "which the results name.",
        ("kNN at k", "nearest neighbours"),
    ),
    Term(
        "linear probe",
        "The share of images that a logistic regression on the features predicts right. It learned from all training "
        "images, with l2 regularisation.",
    ),
    Term(
        "few-shot",
        "The same for a logistic regression that learned from so many training images of each class, as a mean over "
        "draws of them. Its interval is for other images, not for other draws.",
        ("1-shot", "2-shot", "5-shot"),
    ),
    Term(
        "spread of few-shot",
        "The standard deviation of few-shot accuracy over the draws of training images.",
        ("spread over draws",),
    ),
    Term(
        "retrieval mAP",
        "Mean average precision: all training images are ranked by the cosine of their features with those of an "
        "image; its average precision is the mean, over training images of its class, of the share of its class down "
        "to there.",
        ("mAP",),
    ),
    Term(
        "features moved",
        "1 minus the cosine between the features of the changed image and of the clean one, as a mean: 0 where they "
        "point the same way, 1 where they have nothing in common, at most 2.",
        ("moved",),
    ),
    Term(
        "largest |δ|",
        "The largest change of any image that was measured, in pixel units: of a pixel value under L∞, of the length "
        "of the whole change under L2. It should not exceed the radius ε that the condition names.",
        ("largest linf |δ|", "largest l2 |δ|", "|δ|"),
    ),
)
