"""What the numbers of maps of two objects are."""

from ..metric import Metric, mean_share, of_samples
from ..term import Term

SHARE = mean_share("asked_share", "share of the asked object %")
ASKED = mean_share("asked_mass", "mass in the asked object %")
OTHER = Metric("other_mass", "mass in the other object %", 100, -1, least=0, most=1)
FOUND = of_samples("both_found", "both classes found %")
LEADS = {
    "other_mass": Metric("asked_over_other", "lead over the map of the other class, points", 100, least=-1, most=1),
    "centre_mass": Metric("asked_over_centre", "lead over a centred Gaussian, points", 100, least=-1, most=1),
    "random_mass": Metric("asked_over_random", "lead over a random map, points", 100, least=-1, most=1),
}
"""By the column of the control's mass in the asked object. What the map of the other class has there is what the map of
the asked class has in the other object, on average over both classes.
"""
METRICS = (SHARE, ASKED, OTHER, *LEADS.values(), FOUND)
TERMS = (
    Term(
        "two objects",
        "An image shows objects of two classes, and a map is asked for each class in turn. Figures of an image are "
        "means over both classes.",
        ("both classes found", "Two objects"),
    ),
    Term(
        "share of the asked object",
        "Of what a map has in both objects together, the share in the one whose class was asked for. A map that is the "
        "same for every class has exactly 50 %.",
    ),
    Term(
        "mass in the asked object",
        "The share of a map's sum that lies in the object whose class was asked for.",
        ("mass in the other object",),
    ),
    Term(
        "map of the other class",
        "A control that knows the image but not the question: what it has in an object, when the other one is asked "
        "for.",
        ("lead over the map of the other class", "lead over a centred Gaussian", "lead over a random map"),
    ),
)
