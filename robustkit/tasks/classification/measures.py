"""What the numbers of a classifier of images are."""

from ...evaluations.metrics import Term
from ...protocol.card import samples_of
from ..labelled.measures import METRICS as METRICS
from ..labelled.measures import terms

TERMS = (
    *terms(samples_of("classification")),
    Term(
        "largest |δ|",
        "The largest change of any image that was measured, in pixel units: of a pixel value under L∞, of the length "
        "of the whole change under L2. It should not exceed the radius ε that the condition names.",
        ("largest linf |δ|", "largest l2 |δ|", "|δ|"),
    ),
)
