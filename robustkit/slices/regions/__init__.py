"""Drown a region of each image in noise: the object, the background, or what a map shows.

A condition is `region-noise(region=object)`. This module loads no torch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar

from ...common.names import canonical
from ...errors import ProtocolError, unknown
from ...evaluations.condition import Named, Place, View
from ...evaluations.family import LazyFamily
from ...evaluations.maps import MapWords, split_options, with_options
from ...evaluations.metrics import Metric, of_samples
from ...protocol.condition import (
    Condition,
    Value,
    format_value,
    parse_parameters,
    split_condition,
)

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

AREA = Metric("region_area", "drowned area %", 100, least=0, most=1, short="area %")
ACCURACY = replace(
    of_samples("region_top1", "top-1 % without the region"), noun="accuracy without the region", short="top-1 %"
)
KEPT = replace(of_samples("region_kept", "accuracy kept %"), noun="accuracy kept without the region", short="kept %")
KEPT_RANDOM = replace(
    of_samples("region_random_kept", "kept without a random region %"), paired=False, short="random %"
)
LEAD = Metric("region_over_random", "kept over random, points", 100, paired=True, least=-1, most=1, short="difference")


KIND = "region-noise"
LOCATED, OF_MAP, RANDOM = ("object", "background"), ("map-top", "map-bottom"), "random"
REGIONS = (*LOCATED, *OF_MAP, RANDOM)


class RegionWords(MapWords):
    """share: of the pixels of the image, not RISE's."""

    name = "regions"
    claims = MapWords.claims._replace(under="with {}")
    parameters: ClassVar[Mapping[str, Value]] = {"region": "", "map": "agcam", "share": Fraction(1, 2), "severity": 5}
    metrics = (AREA, ACCURACY, KEPT, KEPT_RANDOM, LEAD)

    def parse(self, text: str) -> Condition:
        """Return the condition, whose draws are the same for all regions and severities, which share their noise."""
        name, inside = split_condition(text)
        first, comma, rest = (inside or "").partition(",")
        if first and "=" not in first:  # as in region-noise(object)
            text = f"{name}(region={canonical(first, REGIONS)}{comma}{rest})"
        plain, options = split_options(text, "agcam", kept=self.parameters)
        kind, parameters = parse_parameters(plain, self.parameters)
        region, share, severity = str(parameters["region"]), Fraction(str(parameters["share"])), parameters["severity"]
        if region not in REGIONS:
            raise ProtocolError(f"{text}: " + unknown("region", region, REGIONS))
        if severity not in (1, 2, 3, 4, 5):
            raise ProtocolError(f"{text}: severity {severity}; expected a whole number from 1 to 5")
        if not 0 < share < 1:
            given_share = format_value(share)
            raise ProtocolError(f"{text}: share {given_share}; expected a part of the image, above 0 and below 1")
        keys = ["region", *["map"] * (region in OF_MAP), *["share"] * (region not in LOCATED), "severity"]
        if idle := [key for key in self.parameters if key not in keys and f"{key}=" in plain.replace(" ", "")]:
            raise ProtocolError(f"{text}: {idle[0]} does nothing for the region {region}; leave it out")
        pairs = tuple((key, parameters[key]) for key in keys)
        inside = ",".join(f"{key}={format_value(value)}" for key, value in pairs)
        named = with_options(f"{KIND}({inside})", options)
        return Condition(kind, named, pairs, payload=options, draws=KIND, needs_truth=region in LOCATED)

    def label(self, text: str, place: Place = "axis", manifest: Named | None = None) -> str:
        if place in ("table", "sentence"):
            return f"noise on the {self.label(text)}"
        parameters = given_of(text)
        severity, kind = parameters["severity"], parameters["region"]
        percent = f"{100 * float(Fraction(parameters['share'])):.4g} %" if "share" in parameters else ""
        if kind not in OF_MAP:
            return f"{kind} {percent}".rstrip() + f", severity {severity}"
        options = ",".join(f"{key}={value}" for key, value in parameters.items() if key not in self.parameters)
        named = f"{parameters['map']}({options})" if options else parameters["map"]
        return f"{'highest' if kind == 'map-top' else 'lowest'} {percent} of {named}, severity {severity}"

    def view(self, text: str) -> View:
        line, _, level = self.label(text).rpartition(", severity ")
        return View(f"noise on: {line}", level, "severity")

    def chief(self, values: Mapping[tuple[str, str], float], metric: str) -> Iterator[tuple[str, str, str]]:
        texts = [text for text, name in values if name == LEAD.name]
        if texts:
            yield max(texts, key=lambda text: abs(values[text, LEAD.name])), LEAD.name, "largest of the regions"


VOCABULARY = RegionWords()
FAMILY = LazyFamily(VOCABULARY)


def given_of(text: str) -> dict[str, str]:
    return dict(item.split("=", 1) for item in text.partition("(")[2].rstrip(")").split(","))


def which_count(text: str, area: npt.NDArray[np.float64]) -> npt.NDArray[np.bool_]:
    """Return whether images count: with the region, and another place for a random one. area: (n,) shares."""
    return (area > 0) & ((area < 1) | (given_of(text)["region"] == RANDOM))
