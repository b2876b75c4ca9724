"""What the numbers of drowned regions are."""

from dataclasses import replace

from ..metric import Metric, of_samples
from ..term import Term

ACCURACY = replace(of_samples("region_top1", "top-1 % without the region"), noun="accuracy without the region")
KEPT = replace(of_samples("region_kept", "accuracy kept %"), noun="accuracy kept without the region")
RANDOM = replace(of_samples("region_random_kept", "kept without a random region %"), paired=False)
LEAD = Metric("region_over_random", "kept over random, points", 100, paired=True, least=-1, most=1)
AREA = Metric("region_area", "drowned area %", 100, least=0, most=1)
METRICS = (ACCURACY, KEPT, RANDOM, LEAD, AREA)
TERMS = (
    Term(
        "region noise",
        "Noise drowns one region of each image, and the rest stays: the object, the background, or the highest or "
        "lowest part of a map. Severities 1 to 4 add Gaussian noise with a standard deviation of 0.1, 0.2, 0.4 or 0.8 "
        "of the range of pixels, cut off at its ends; severity 5 puts uniform noise in place of the region, "
        "whose outline stays visible as that of the noise.",
        ("Region noise", "drowned area", "without the region"),
    ),
    Term(
        "accuracy kept",
        "Of the images that are predicted right as they are, the share that is still right with a region drowned.",
        ("kept",),
    ),
    Term(
        "random region",
        "The same region at a random place: moved by a drawn number of rows and columns, around the borders. So it has "
        "the same area and shape, and the same noise drowns it. Images that a region fills are left out, since there "
        "is no other place for it; a large one overlaps with its own random region. A model needs a region where it "
        "keeps less accuracy without it than without the random one.",
        ("kept without a random region", "kept over random"),
    ),
)
