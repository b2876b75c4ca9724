"""What the words about attacks mean, and their own number."""

from ..metric import Metric, of_samples
from ..term import Term

FOUND = Metric("found_of_broken", "found of all broken %", 100, binary=True)
TOP1 = of_samples("top1", "top-1 %")
TERMS = (
    Term(
        "found of all broken",
        "Of the samples that are right when clean and that any attack of the run in the same norm broke within the "
        "radius, the share that this attack broke itself. It says nothing of what all of them missed.",
    ),
    Term(
        "ε",
        "The radius of an attack: how far it may change an image. Under L∞, 1/255 lets each pixel value change by one "
        "of its 255 steps; under L2, it bounds the length of the whole change.",
        ("eps",),
    ),
    Term("FGSM", "Fast gradient sign method: one step of size ε in the direction that raises the loss.", ("fgsm",)),
    Term(
        "PGD",
        "Projected gradient descent: many small steps that raise the loss, each drawn back into the ball of radius ε.",
        ("pgd",),
    ),
    Term("SPSA", "An attack that estimates gradients from random directions, so it needs only answers.", ("spsa",)),
    Term(
        "AutoAttack",
        "Four attacks in turn, each on what the ones before left standing: APGD on cross-entropy, targeted APGD, FAB "
        "and Square (Croce and Hein 2020). The usual yardstick of robustness.",
        ("autoattack",),
    ),
    Term("APGD", "PGD that chooses its own step sizes (Croce and Hein 2020).", ("apgd-ce", "apgd-t", "apgd")),
    Term("FAB", "An attack that looks for the nearest point of another class.", ("fab-t", "fab")),
    Term("Square", "An attack by random squares, without gradients.", ("square",)),
    Term("CosPGD", "PGD for segmentation: each pixel weighs as much as it is still like its class.", ("cospgd",)),
    Term(
        "SEA",
        "The ensemble attack on segmentation: APGD on three losses, and of each image the worst point of all.",
        ("sea",),
    ),
    Term("SegPGD", "PGD for segmentation: pixels still right weigh more in its loss at first.", ("segpgd",)),
    Term("standing", "Samples that are still predicted right after a stage of an attack."),
    Term(
        "gradient masking",
        "The gradients of a model mislead the attacks that follow them: it looks robust and is not (Athalye et al. "
        "2018).",
    ),
)
