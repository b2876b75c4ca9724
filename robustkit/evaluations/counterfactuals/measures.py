"""What the numbers of changed images are."""

from ..metric import Metric, of_samples
from ..term import Term

FLIPPED = Metric("flipped", "flips %", 100, paired=True, binary=True, noun="predictions that flip")
FOLLOWED = Metric("followed", "flips to what was put in %", 100, paired=True, binary=True)
CHANGE = Metric("mass_change", "change of mass on the object, points", 100, paired=True, least=-1, most=1)
BEFORE = Metric("mass_before", "mass on the object before %", 100, least=0, most=1)
RIGHT = of_samples("changed_top1", "top-1 % of changed images")
METRICS = (RIGHT, FLIPPED, FOLLOWED, BEFORE, CHANGE)
TERMS = (
    Term(
        "changed images",
        "Each image is shown again with one thing changed, all else the same: the colour of its shape, which becomes "
        "that of another class; the outline, which becomes that of the same other class and so decides the label; or "
        "the photograph behind it.",
        ("Changed images", "top-1 % of changed images"),
    ),
    Term(
        "flips",
        "Of the images that are predicted right as they are, the share whose prediction is another one once the image "
        "is changed. A model that goes by the outline alone flips with it always, with colour and background never.",
    ),
    Term(
        "flips to what was put in",
        "The share of the same images whose prediction becomes the class whose colour, or outline, was put in. For the "
        "colour it is the part of the predictions that a shortcut decides.",
    ),
    Term(
        "mass on the object",
        "The share of the sum of a map, of the predicted class, that lies on the object. Its change is paired.",
        ("change of mass on the object", "mass on the object before"),
    ),
)
