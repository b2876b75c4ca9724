"""Maps as conditions: from `cam(agcam)` and `stability(agcam,under=pgd(eps=1/255,steps=20))` to parts and back."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ...errors import ProtocolError, unknown
from ...protocol.card import number
from ...protocol.condition import Condition
from ..map_methods import CONTROLS, Chosen, check_names, method_names, method_text, shown, take_options

PLAIN = {
    "pointing_game": "pointing_game",
    "energy_inside": "energy_inside",
    "abpc": "abpc",
    "insertion": "insertion_auc",
    "deletion": "deletion_auc",
    "road": "road",
    "road_lerf": "road_lerf",
    "road_morf": "road_morf",
    "infidelity": "infidelity",
    "head_correlation": "head_correlation",
    "cascade_correlation": "cascade_correlation",
    "entropy_rise": "entropy_rise",
    "max_sensitivity": "max_sensitivity",
    "mean_sensitivity": "mean_sensitivity",
    "map_entropy": "map_entropy",
    "map_gini": "map_gini",
}
"""Columns whose mean is a metric, and its name."""

TARGETS = ("predicted", "label")
FAITHFULNESS = ("none", "abpc", "all")
SHARED = ("threshold", "target", "faithfulness", "on")
MODES = ("mask", "box")
"""What is compared with the truth: the pixels above the threshold, or the boxes around their contours."""
ASSUMED_BOXES = "boxes were assumed to be "
"""How a note of the data begins that is a flag on every score of a map."""
BOXES_GIVEN = "boxes of "
"""How a note of the data begins where only boxes say where objects are."""
SCORES = ("pixel_accuracy", "iou", "dice", "precision", "recall")
_FORM = re.compile(r"(cam|stability)\(\s*([\w-]+)\s*((?:,.*)?)\)", re.DOTALL)
_CANONICAL = re.compile(r"cam\(\s*([\w-]+)\s*(?:,([^()]*))?\)")
_ITEM = re.compile(r"\s*([A-Za-z][\w-]*)\s*(?:\(([^()]*)\))?\s*")


@dataclass(frozen=True)
class MapSpec:
    """A map of a class, its threshold, and what is measured on it.

    target: the class explained, `predicted` or `label`.
    faithfulness: `none`, `abpc`, or `all` (as well insertion, deletion, ROAD, infidelity, a redrawn head and the
        cascade, sensitivity, complexity).
    on: how many samples are drawn for it; 0 takes all.
    under: the text of the condition whose map is compared with the clean one; empty if the clean one is scored.
    options: the method's own, where they differ from the usual ones.
    """

    method: str
    threshold: float = 0.5
    target: str = "predicted"
    faithfulness: str = "abpc"
    on: int = 0
    under: str = ""
    options: Chosen = ()

    @property
    def text(self) -> str:
        """The canonical text, which names what differs from the published protocol."""
        default = MapSpec(self.method)
        keys = ("threshold", "target", "faithfulness", "on", "under")
        odd = (key for key in keys if getattr(self, key) != getattr(default, key))
        inside = ",".join([self.method, *shown(self.options), *(f"{key}={getattr(self, key)}" for key in odd)])
        return f"{'stability' if self.under else 'cam'}({inside})"

    @property
    def called(self) -> str:
        """The method with its own options, `rise(masks=200)`."""
        return method_text(self.method, self.options)

    @property
    def kind(self) -> MapSpec:
        """What maps of several methods share: all but method and options."""
        return replace(self, method="", options=())

    @property
    def is_control(self) -> bool:
        """Whether the map does not look at the image."""
        return self.method in CONTROLS

    def beside(self, condition: str) -> MapSpec:
        """Return the stability of this map under a condition."""
        return replace(self, faithfulness="abpc", under=condition)

    def control(self, name: str) -> MapSpec:
        """Return the control that this map is compared with."""
        return replace(self, method=name, options=())


def parse_explained(text: str) -> MapSpec | None:
    """Return the parts of a condition's text; None if it is not a map's.

    Raises:
        ProtocolError: it is one that is not understood.
    """
    if not text.startswith(("cam(", "stability(")):
        return None
    form = _FORM.fullmatch(text)
    if not form:
        raise ProtocolError(f"condition {text!r}: expected such as cam(agcam,threshold=0.5)")
    arguments, _, under = form[3].partition(",under=")
    if (form[1] == "stability") != bool(under):
        raise ProtocolError(f"condition {text!r}: expected such as stability(agcam,under=pgd(eps=1/255,steps=20))")
    return replace(_explained(form[2], arguments, text), under=under)


def parse_cams(text: str | Iterable[str], faithfulness: str = "abpc") -> tuple[MapSpec, ...]:
    """Return the maps that a user lists, `agcam,rollout(threshold=0.3)`, and the controls that they are compared with.

    Raises:
        ProtocolError: an unknown method or parameter, or a value that is none.
    """
    named = parse_named(text, faithfulness)
    return tuple(dict.fromkeys([*named, *(spec.control(name) for spec in named for name in CONTROLS)]))


def parse_named(text: str | Iterable[str], faithfulness: str = "abpc") -> tuple[MapSpec, ...]:
    """Return the maps that a user lists, alone. Raises ProtocolError as `parse_cams` does."""
    parts = re.split(r",(?![^(]*\))", text) if isinstance(text, str) else list(text)
    specs: dict[MapSpec, None] = {}
    for part in filter(None, map(str.strip, parts)):
        form = _ITEM.fullmatch(part)
        if form and form[1] == "cam":  # as records call it
            form = _CANONICAL.fullmatch(part)
        if not form:
            raise ProtocolError(
                f"map {part!r}: expected a method or method(key=value,...), such as agcam(threshold=0.3)"
            )
        explained = _explained(form[1].lower(), form[2] or "", part)
        if "faithfulness" not in (form[2] or ""):
            explained = replace(explained, faithfulness=faithfulness)
        specs[explained] = None
    if not specs:
        raise ProtocolError(f"maps {text!r}: none is left; expected methods such as agcam,grad-cam")
    return tuple(specs)


def _explained(method: str, arguments: str, where: str) -> MapSpec:
    if method not in method_names():
        raise ProtocolError(unknown("map", method, method_names()))
    given: dict[str, str] = {}
    for item in filter(None, map(str.strip, arguments.split(","))):
        key, _, value = (word.strip() for word in item.partition("="))
        given[key] = value
    for key, choices in (("target", TARGETS), ("faithfulness", FAITHFULNESS)):
        if key in given and given[key] not in choices:
            raise ProtocolError(f"{where}: " + unknown(key, given[key], choices))
    check_names(method, given, SHARED, where)
    options = take_options(method, given, where)
    threshold = float(number(given.pop("threshold", "0.5"), f"{where}: threshold", "a number above 0, at most 1"))
    if not 0 < threshold <= 1:
        raise ProtocolError(f"{where}: threshold {threshold:g}; expected a number above 0, at most 1")
    on = number(given.pop("on", "0"), f"{where}: on", "how many samples, such as on=200")
    if on.denominator != 1 or on < 0:
        raise ProtocolError(f"{where}: on {on}; expected how many samples, such as on=200")
    return MapSpec(method, threshold, on=int(on), options=options, **given)


def parts_of(condition: str) -> tuple[MapSpec, str] | None:
    """Return a map's condition in results and its mode ('' without one); None for other conditions."""
    text, _, mode = condition.partition(",mode=")
    explained = parse_explained(text + ")" if mode else text)
    return None if explained is None else (explained, mode.rstrip(")"))


def of_mode(explained: MapSpec, mode: str) -> str:
    """Return the condition of a map's scores at its threshold: `cam(agcam,mode=box)`."""
    return f"{explained.text[:-1]},mode={mode})"


def map_condition(explained: MapSpec, under: Condition | None = None) -> Condition:
    """Return the condition of a map's scores, or of its stability under another condition."""
    draws = MapSpec(explained.method).text  # the method's own, whatever else is measured
    if under is None:
        return Condition("cam", explained.text, payload=explained, draws=draws, needs_truth=True)
    explained = explained.beside(under.text)
    return Condition("stability", explained.text, payload=explained, under=under, released=under.released, draws=draws)


def explained_of(condition: Condition) -> MapSpec | None:
    """Return which map a condition is of; None for other conditions."""
    return condition.payload if isinstance(condition.payload, MapSpec) else None
