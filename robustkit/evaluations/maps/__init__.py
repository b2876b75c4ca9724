"""Evaluate what a model looks at: explanation maps, their scores next to controls, galleries.

Maps as conditions: `cam(agcam)` and `stability(agcam,…)`; their numbers and costs. Loads no torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from cam.registry import CONTROLS, METHODS

from ...common.names import canonical
from ...errors import ProtocolError, unknown
from ...protocol.card import parse_number
from ...protocol.condition import CLEAN, ON, Condition, ConditionPattern, Value, split_list
from ..condition import Claims, Named, Place, PublishedNames, View, Vocabulary, name_of, vocabulary_of
from ..metrics import WEIGHT, Metric, mean_share, plain_name, scored_by, supported_name
from .methods import (
    METHOD_NAMES,
    Chosen,
    check_names,
    method_names,
    method_text,
    option_texts,
    take_options,
)

_SCORES = (
    replace(mean_share("cam_pixel_accuracy", "pixel accuracy %"), short="pixel acc."),
    replace(mean_share("cam_iou", "IoU %", drafted=True), noun="overlap with the object (IoU)"),
    mean_share("cam_dice", "DICE %"),
    mean_share("cam_precision", "precision %"),
    mean_share("cam_recall", "recall %"),
)
_ON_OBJECTS = (
    replace(
        mean_share("pointing_game", "pointing game %"),
        noun="share of maxima on the object (pointing game)",
        short="pointing",
    ),
    replace(mean_share("energy_inside", "energy inside %"), noun="share of energy inside the object"),
)
_POOLED = (
    Metric("pxap", "PxAP %", 100, 1, least=0, most=1),
    Metric("max_box_acc", "MaxBoxAcc %", 100, 1, least=0, most=1, short="MaxBoxAccV2"),
)
_MEANS = (
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
OF_OBJECTS = frozenset(metric.name for metric in (*_SCORES, *_ON_OBJECTS, *_POOLED))
"""Scores that hold a map against the object, which some image may not show."""
FAITHFUL = tuple(metric for metric in _MEANS if metric.name in ("abpc", "insertion_auc", "deletion_auc"))
"""Scores that a model's confidence supports where they are of few samples."""
STABILITY = (
    Metric("rank_correlation", "rank correlation", better=1, paired=True, least=-1, most=1),
    Metric("map_iou", "IoU of maps %", 100, 1, paired=True, least=0, most=1),
)
CONTROLLED = (*_SCORES, *_ON_OBJECTS, *_POOLED, *_MEANS)  # each has its `…_over_control`
SCORE_HEADINGS, FREE_HEADINGS = (
    {metric.name: (metric.short or metric.word) + " ↓" * (metric.better < 0) for metric in some}
    for some in (_SCORES, CONTROLLED[len(_SCORES) :])
)
METRICS = (
    *CONTROLLED,
    *STABILITY,
    *(replace(score, name=score.name + group, paired=False) for score in STABILITY for group in ("_held", "_fell")),
)


PLAIN = {metric.name.removesuffix("_auc"): metric.name for metric in (*_ON_OBJECTS, *_MEANS)}

TARGETS = ("predicted", "label")
FAITHFULNESS = ("none", "abpc", "all")
SHARED = ("threshold", "target", "faithfulness", "on")
MODES = ("mask", "box")  # what is compared with the truth: pixels above the threshold, or boxes around their contours
BOXES_GIVEN = "boxes of "  # begins a note of the data where only boxes say where objects are
SCORES = ("pixel_accuracy", "iou", "dice", "precision", "recall")
_FORM = re.compile(r"(cam|stability)\(\s*([\w-]+)\s*((?:,.*)?)\)", re.DOTALL)
_CANONICAL = re.compile(r"cam\(\s*([\w-]+)\s*(?:,([^()]*))?\)")
_ITEM = re.compile(r"\s*([A-Za-z](?:[\w -]*[\w-])?\+*)\s*(?:\(([^()]*)\))?\s*")


@dataclass(frozen=True)
class MapSpec:
    """target: `predicted` or `label`. faithfulness: `none`, `abpc`, or `all` tests. on: samples drawn for it; 0 takes
    all. under: the condition whose map is compared with the clean one; empty for scores."""

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
        inside = ",".join([self.method, *option_texts(self.options), *(f"{key}={getattr(self, key)}" for key in odd)])
        return f"{'stability' if self.under else 'cam'}({inside})"

    @property
    def called(self) -> str:
        return method_text(self.method, self.options)

    @property
    def kind(self) -> MapSpec:
        return replace(self, method="", options=())

    @property
    def is_control(self) -> bool:
        return self.method in CONTROLS

    def compared_under(self, condition: str) -> MapSpec:
        return replace(self, faithfulness="abpc", under=condition)

    def control(self, name: str) -> MapSpec:
        return replace(self, method=name, options=())


def parse_explained(text: str) -> MapSpec | None:
    """Return a map's parts, None of another condition. Raises ProtocolError where it is not understood."""
    if not text.startswith(("cam(", "stability(")):
        return None
    form = _FORM.fullmatch(text)
    if not form:
        raise ProtocolError(f"condition {text!r}: expected such as cam(agcam,threshold=0.5)")
    arguments, _, under = form[3].partition(",under=")
    if (form[1] == "stability") != bool(under):
        raise ProtocolError(f"condition {text!r}: expected such as stability(agcam,under=pgd(eps=1/255,steps=20))")
    parse = _of_built_in if form[2] in METHODS else _explained  # options of a plug-in's may change
    return replace(parse(form[2], arguments, text), under=under)


def parse_cams(text: str | Iterable[str], faithfulness: str = "abpc") -> tuple[MapSpec, ...]:
    """Return the maps of a list, `agcam,rollout(threshold=0.3)`, and their controls. Raises ProtocolError."""
    named = parse_named(text, faithfulness)
    return tuple(dict.fromkeys([*named, *(spec.control(name) for spec in named for name in CONTROLS)]))


def parse_named(text: str | Iterable[str], faithfulness: str = "abpc") -> tuple[MapSpec, ...]:
    specs: dict[MapSpec, None] = {}
    for part in split_list(text):
        form = _ITEM.fullmatch(part)
        if form and form[1] == "cam":  # as records call it
            form = _CANONICAL.fullmatch(part)
        if not form:
            expected = "a method or method(key=value,...), such as agcam(threshold=0.3)"
            raise ProtocolError(f"map {part!r}: expected {expected}")
        explained = _explained(form[1].lower(), form[2] or "", part)
        if "faithfulness" not in (form[2] or ""):
            explained = replace(explained, faithfulness=faithfulness)
        specs[explained] = None
    if not specs:
        raise ProtocolError(f"maps {text!r}: none is left; expected methods such as agcam,grad-cam")
    return tuple(specs)


def _explained(method: str, arguments: str, where: str) -> MapSpec:
    method = canonical(method, method_names())
    if method not in method_names():
        raise ProtocolError(unknown("map", method, method_names()))
    items = (item.partition("=") for item in arguments.split(",") if item.strip())
    pairs = {key.strip(): value.strip() for key, _, value in items}
    for key, choices in (("target", TARGETS), ("faithfulness", FAITHFULNESS)):
        if key in pairs and pairs[key] not in choices:
            raise ProtocolError(f"{where}: " + unknown(key, pairs[key], choices))
    check_names(method, pairs, SHARED, where)
    options = take_options(method, pairs, where)
    threshold = float(parse_number(pairs.pop("threshold", "0.5"), f"{where}: threshold", "a number above 0, at most 1"))
    if not 0 < threshold <= 1:
        raise ProtocolError(f"{where}: threshold {threshold:g}; expected a number above 0, at most 1")
    on = parse_number(pairs.pop("on", "0"), f"{where}: on", "how many samples, such as on=200")
    if on.denominator != 1 or on < 0:
        raise ProtocolError(f"{where}: on {on}; expected how many samples, such as on=200")
    return MapSpec(method, threshold, on=int(on), options=options, **pairs)


_of_built_in = lru_cache(1024)(_explained)
"""A page asks for the same few of them thousands of times."""


def parts_of(condition: str) -> tuple[MapSpec, str] | None:
    """Return a map's condition in results and its mode ('' without one); None for other conditions."""
    text, _, mode = condition.partition(",mode=")
    explained = parse_explained(text + ")" if mode else text)
    return None if explained is None else (explained, mode.rstrip(")"))


def of_mode(explained: MapSpec, mode: str) -> str:
    """Return the condition of a map's scores at its threshold: `cam(agcam,mode=box)`."""
    return f"{explained.text[:-1]},mode={mode})"


def methods_of(conditions: Sequence[Condition]) -> list[tuple[str, Chosen]]:
    """Return each method with its options that some condition scores, controls left out."""
    specs = [each.payload for each in conditions if isinstance(each.payload, MapSpec) and not each.payload.under]
    return list(dict.fromkeys((spec.method, spec.options) for spec in specs if not spec.is_control))


def map_condition(explained: MapSpec, under: Condition | None = None) -> Condition:
    draws = MapSpec(explained.method).text  # the method's own, whatever else is measured
    if under is None:
        return Condition("cam", explained.text, payload=explained, draws=draws, needs_truth=True)
    explained = explained.compared_under(under.text)
    return Condition("stability", explained.text, payload=explained, under=under, released=under.released, draws=draws)


def explained_of(condition: Condition) -> MapSpec | None:
    return condition.payload if isinstance(condition.payload, MapSpec) else None


BEST = "best control: "  # begins the flag of a lead over controls
_KINDS = ("", "-mask", "-faithfulness", "-stability")


def only_boxes(manifest: Named) -> bool:
    """Whether the objects of a run are known by boxes alone: what is called a mask then is their union."""
    option = manifest.arguments.get("boxes") is not None
    return option or any(note.startswith(BOXES_GIVEN) for note in manifest.data.notes)


def is_control(text: str) -> bool:
    parts = parts_of(text)
    return parts is not None and parts[0].is_control


def shares_of(text: str) -> dict[str, float]:
    parts = parts_of(text)
    return {text if parts is None else parts[0].text: 1.0}


def as_published(text: str) -> str:
    """Return the published name of a condition that is the paper's, such as `agcam-mask`; empty for others."""
    parts, paper = parts_of(text), MapSpec("agcam")
    if parts is None or parts[0].is_control:
        return ""
    explained, mode = parts
    kind = "stability" if explained.under else {"box": "", "mask": "mask", "": "faithfulness"}[mode]
    usual = (explained.threshold, explained.target) == (paper.threshold, paper.target)
    return "-".join(filter(None, (explained.method, kind))) if usual else ""


def _is_fixed(name: str) -> bool:
    method = next((name.removesuffix(kind) for kind in _KINDS[1:] if name.endswith(kind)), name)
    return method in METHODS or parts_of(name) is not None


class CamWords(Vocabulary):
    name = "maps"
    claims = Claims(
        "on attribution maps", "", "", "in its maps ({})", "Maps are compared on images that both classify correctly."
    )
    published = PublishedNames([f"{method}{kind}" for method in METHODS for kind in _KINDS], _is_fixed, as_published)
    parameters: ClassVar[Mapping[str, Value]] = {"threshold": 0.5, "target": "predicted", "faithfulness": "abpc"}
    telling = (ON,)
    metrics = (*METRICS, *map(supported_name, FAITHFUL), WEIGHT)

    def label(self, text: str, place: Place = "axis", manifest: Named | None = None) -> str:
        parts = parts_of(text)
        if parts is None or place in ("axis", "badge") or manifest is None:
            return text
        explained, mode = parts
        words = [METHOD_NAMES.get(explained.method, explained.method)]
        words += [option.replace("=", " ") for option in option_texts(explained.options)]
        masks = "pixels against boxes" if only_boxes(manifest) else "masks"
        words += [{"box": "boxes", "mask": masks}[mode]] if mode else []
        words += [f"threshold {explained.threshold:g}"] if explained.threshold != 0.5 else []
        words += ["of the label's class"] if explained.target == "label" else []
        words += [f"clean against {name_of(explained.under, 'table', manifest)}"] if explained.under else []
        return ", ".join(words)

    def chief(self, values: Mapping[tuple[str, str], float], metric: str) -> Iterator[tuple[str, str, str]]:
        scores = ("cam_iou", "pointing_game", "abpc")  # the first of these that a run has
        if first := next((key for score in scores for key in values if scored_by(key[1]) == score), None):
            yield (*first, "lead of the maps over the best control, which does not look at the image")

    def needs(self, text: str, metric: str, conditions: Iterable[str]) -> list[str]:
        return [
            *shares_of(text),
            *([CLEAN.text] if plain_name(metric) else []),
            *(condition for condition in conditions if scored_by(metric) and condition.startswith("cam(")),
        ]

    def view(self, text: str) -> View:
        explained = parse_explained(text)
        assert explained is not None
        scores = {} if explained.under else {"mask_iou": "IoU", "box_iou": "box IoU", "abpc": "ABPC"}
        return View(text, over=explained.under or "clean", scores=scores, drawn=not explained.is_control)

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        parameters = pattern.given
        if parameters.get("mode", "mask") not in MODES:
            raise ProtocolError(f"{text}: " + unknown("mode", parameters["mode"], MODES))
        pairs = [pair for pair in pattern.pairs if not pair.startswith("mode=")]
        parse_explained(f"{pattern.name}({','.join([pattern.what, *pairs])})")
        if "under" in parameters:
            other(parameters["under"])

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        under = other(pattern.given.get("under", "clean"))
        pairs = ",".join(pair for pair in pattern.pairs if not pair.startswith(("mode=", "under=")))
        yield from vocabulary_of(under.name).command(under, other)
        yield from ("--cams", f"{pattern.what}({pairs})" if pairs else pattern.what)
        yield from ("--stability",) if pattern.name == "stability" else ()


VOCABULARY = CamWords()
