"""Plan what maps show: which are scored, compared under other conditions, or tell noise which region to drown."""

from __future__ import annotations

from collections.abc import Sequence

from ..data.dataset import Dataset
from ..errors import ProtocolError
from ..evaluations.counterfactuals.vocabulary import CHANGES, counterfactual_conditions
from ..evaluations.kinds import shows
from ..evaluations.map_methods import check_method
from ..evaluations.maps.condition import MapSpec, map_condition, parse_cams
from ..evaluations.maps.truth import Truth
from ..evaluations.regions.vocabulary import chosen_of, parse_regions
from ..evaluations.two_objects.vocabulary import two_object_condition
from ..protocol.condition import CLEAN, Condition
from .request import ClassificationRequest


def maps_of(request: ClassificationRequest, only_corrupted: bool) -> tuple[MapSpec, ...]:
    """Return the maps that are scored, controls included."""
    maps = () if request.cams is None else parse_cams(request.cams, request.faithfulness)
    if maps and only_corrupted:
        raise ProtocolError(
            f"--cams {request.cams!r} on {request.data_dir}, a tree of corrupted images: expected the clean ones"
        )
    return maps


def regions_of(request: ClassificationRequest, only_corrupted: bool) -> tuple[Condition, ...]:
    """Return the regions that noise drowns. Raises ProtocolError for an unknown map, and without clean images."""
    if request.region_noise is None:
        return ()
    regions = parse_regions(request.region_noise)
    if only_corrupted:
        raise ProtocolError(
            f"--region-noise on {request.data_dir}, a tree of corrupted images: expected the clean ones"
        )
    for condition in regions:
        if method := method_of(condition):
            check_method(method, condition.text)
    return regions


def method_of(region: Condition) -> str:
    """Return the map that a region is of; empty where it is of none."""
    return str(dict(region.parameters).get("map", ""))


def maps_of_regions(regions: Sequence[Condition]) -> list[MapSpec]:
    """Return the maps that regions are of, with their own options."""
    return [MapSpec(method, options=chosen_of(each)) for each in regions if (method := method_of(each))]


def next_to(
    request: ClassificationRequest, shown: Sequence[Condition], maps: Sequence[MapSpec]
) -> tuple[Condition, ...]:
    """Return the maps under every attack and corruption that are compared with those of the clean images."""
    if not request.stability:
        return ()
    if any(condition.released for condition in shown):
        raise ProtocolError(
            "--stability with released corruptions: it needs the clean image next to the corrupted one; leave out "
            "--corrupted-dir, or --stability"
        )
    looking = [spec for spec in maps if not spec.is_control]
    return tuple(
        map_condition(spec, under) for under in shown if under != CLEAN and shows(under.text) for spec in looking
    )


def of_the_data(dataset: Dataset, maps: Sequence[MapSpec]) -> tuple[Condition, ...]:
    """Return the conditions that a data set brings along: maps of two objects, and images with one thing changed."""
    first = dataset.samples[0]
    asked = dict.fromkeys((spec.method, spec.options) for spec in maps if not spec.is_control)
    if dataset.objects(first) is not None:
        return tuple(two_object_condition(*each) for each in asked)
    if dataset.changed(first, CHANGES[0]) is not None:
        return tuple(condition for each in asked or [("", ())] for condition in counterfactual_conditions(*each))
    return ()


def check_located(regions: Sequence[Condition], truth: Truth) -> None:
    """Raise ProtocolError for a region that needs to know where objects are, where nobody says so."""
    unknown_place = next((condition for condition in regions if condition.needs_truth), None)
    if unknown_place is not None and not truth.is_known:
        raise ProtocolError(
            f"{unknown_place.text}: {truth.dataset.name} does not say where objects are; give --boxes or --masks, or "
            "drown a region of a map"
        )
