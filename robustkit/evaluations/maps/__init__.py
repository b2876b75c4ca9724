"""Evaluate what a model looks at: explanation maps, their scores next to controls, galleries.

Maps as conditions: `cam(agcam)` and `stability(agcam,…)`; their numbers and costs. Loads no torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar, cast

from cam.registry import CONTROLS, METHODS

from ...common.names import canonical
from ...common.plugins import Registry, declared, subclass_of
from ...errors import ProtocolError, unknown
from ...protocol.card import format_number, parse_number
from ...protocol.condition import CLEAN, ON, Condition, ConditionPattern, Value, split_condition, split_list
from ..condition import Claims, Cost, Named, Place, PublishedNames, View, Vocabulary, name_of, vocabulary_of
from ..metrics import WEIGHT, Metric, mean_share, plain_name, scored_by, supported_name

if TYPE_CHECKING:
    import cam


EVERY_EXPLAINER: Registry[type[cam.Explainer]] = Registry("explainers", METHODS, subclass_of("cam.explainer:Explainer"))


FULL = "full"  # the control that is 1 everywhere: removed from both ends are the same pixels, so its ABPC is 0


def method_names() -> tuple[str, ...]:
    names = [name for name in METHODS if name not in CONTROLS]
    return tuple(dict.fromkeys((*names, *(one.name for one in declared("explainers")), *CONTROLS)))


def check_method(method: str, where: str) -> None:
    if method not in method_names():
        raise ProtocolError(f"{where}: " + unknown("map", method, method_names()))


@dataclass(frozen=True)
class MethodOption:
    """A number that a method takes, from `low` to `high`, both included. whole: whether only whole numbers will do."""

    usual: Fraction
    what: str
    low: Fraction
    high: Fraction
    whole: bool = True

    def read(self, text: str, where: str) -> Fraction:
        kind = "a whole number" if self.whole else "a number"
        expected = f"{kind} from {format_number(self.low)} to {format_number(self.high)}"
        value = parse_number(text, where, expected)
        if not self.low <= value <= self.high or (self.whole and value.denominator != 1):
            raise ProtocolError(f"{where} {text}; expected {expected}")
        return value


def _whole(usual: int, what: str, low: int = 1, high: int = 100_000) -> MethodOption:
    return MethodOption(Fraction(usual), what, Fraction(low), Fraction(high))


def _share(usual: str, what: str, low: str = "1/100", high: str = "99/100") -> MethodOption:
    return MethodOption(Fraction(usual), what, Fraction(low), Fraction(high), whole=False)


OPTIONS: Mapping[str, Mapping[str, MethodOption]] = {
    "legrad": {"layers": _whole(0, "blocks that count, from the last back; 0: all", low=0, high=1000)},
    "rise": {
        "masks": _whole(1000, "random masks"),
        "cells": _whole(7, "of a side of a mask's grid", low=2, high=64),
        "share": _share("0.5", "of cells that show the image"),
    },
    "integrated-gradients": {"steps": _whole(32, "on the way from the plain image", high=1000)},
    "smooth-grad": {
        "samples": _whole(25, "noisy copies"),
        "noise": _share("0.15", "standard deviation, of the range of the image's values", high="10"),
    },
}

Chosen = tuple[tuple[str, Fraction], ...]  # options that differ from the usual ones, in the order of `OPTIONS`


def take_options(method: str, pairs: dict[str, str], where: str) -> Chosen:
    """Take the method's own options out of `pairs`. Raises ProtocolError for a value that will not do."""
    options = OPTIONS.get(method, {})
    values = {key: option.read(pairs.pop(key), f"{where}: {key}") for key, option in options.items() if key in pairs}
    return tuple((key, value) for key, value in values.items() if value != options[key].usual)


def split_options(text: str, usual: str, kept: Collection[str] = ()) -> tuple[str, Chosen]:
    """Return a condition's text without its map's own options, and these. usual: the method where none is named. kept:
    names that are the condition's, whatever the map has. Raises ProtocolError for a value that will not do."""
    kind, inside = split_condition(text)
    pairs = dict(part.partition("=")[::2] for part in (inside or "").split(",") if part)
    if "map" in pairs:
        pairs["map"] = canonical(pairs["map"], method_names())
    rest = {key: value for key, value in pairs.items() if key not in kept}
    options = take_options(pairs.get("map", usual), rest, text)
    plain = ",".join(f"{key}={value}" for key, value in pairs.items() if key in kept or key in rest)
    return (f"{kind}({plain})" if plain else kind), options


def with_options(text: str, chosen: Chosen) -> str:
    """Return a condition's text, which has parentheses, with its map's own options at the end."""
    return f"{','.join([text.removesuffix(')'), *option_texts(chosen)])})"


def option_texts(chosen: Chosen) -> list[str]:
    return [f"{key}={format_number(value)}" for key, value in chosen]


def method_text(method: str, chosen: Chosen) -> str:
    return f"{method}({','.join(option_texts(chosen))})" if chosen else method


def as_numbers(method: str, chosen: Chosen) -> dict[str, int | float]:
    return {key: int(value) if OPTIONS[method][key].whole else float(value) for key, value in chosen}


def check_names(method: str, pairs: Mapping[str, str], others: tuple[str, ...], where: str) -> None:
    names = (*others, *OPTIONS.get(method, {}))
    if odd := pairs.keys() - set(names):
        raise ProtocolError(f"{where}: " + unknown("parameter", min(odd), names))


def chosen_of(condition: Condition) -> Chosen:
    return cast("Chosen", condition.payload)


class MapWords(Vocabulary):
    """Conditions with a map, whose own options may stand with it. usual: the map where none is named."""

    claims = Claims("on attribution maps")
    usual: ClassVar[str] = "agcam"

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        super().check(pattern, text, other)
        if method := pattern.given.get("map", self.usual):
            check_method(method, text)

    def map_of(self, pattern: ConditionPattern) -> str:
        """Return the map with its own options, as `--cams` names it; empty where there is none."""
        parameters = pattern.given
        options = ",".join(f"{key}={value}" for key, value in parameters.items() if key not in self.parameters)
        method = parameters.get("map", self.usual)
        return f"{method}({options})" if options and method else method


CHANNELS = 512  # forwards that Score-CAM is expected to take: ResNet-18's last layer has so many channels


def map_with_logits(method: str, options: Chosen = (), targets: int = 1) -> Cost:
    """Return the passes of the maps of some classes, and of the logits that tell which class is predicted."""
    if method in CONTROLS:
        return Cost(0)
    alone = map_of_class(method, options)
    return Cost(alone.forwards + (1 if _turns(method, options) else 0), alone.backwards * targets)


def map_of_class(method: str, options: Chosen = ()) -> Cost:
    if turns := _turns(method, options):
        return Cost(turns, 0 if method == "rise" else turns)
    return Cost(1 + CHANNELS) if method == "score-cam" else Cost(1, 0 if method == "rollout" else 1)


def needs_gradients(method: str) -> bool:
    """Whether a map is made of gradients; a plug-in's is not known to be."""
    return method in METHODS and map_with_logits(method).backwards > 0


def _turns(method: str, options: Chosen) -> int:
    """Return how often a method asks that has no need of the image's own answer; 0 for others."""
    name = {"rise": "masks", "integrated-gradients": "steps", "smooth-grad": "samples"}.get(method)
    return 0 if name is None else int(dict(options).get(name, OPTIONS[method][name].usual))


METHOD_NAMES = {
    "agcam": "AG-CAM",
    "agcam-full": "AG-CAM (full gradient)",
    "legrad": "LeGrad",
    "chefer": "Chefer's rollout",
    "rollout": "rollout",
    "grad-cam": "Grad-CAM",
    "grad-cam-pp": "Grad-CAM++",
    "layer-cam": "LayerCAM",
    "score-cam": "Score-CAM",
    "rise": "RISE",
    "gradient": "the gradient",
    "integrated-gradients": "integrated gradients",
    "smooth-grad": "SmoothGrad",
}


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
SCORES = tuple(metric.name.removeprefix("cam_") for metric in _SCORES)
ON_OBJECTS = tuple(metric.name for metric in _ON_OBJECTS)
MOVED = tuple(metric.name for metric in STABILITY)
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
        unusual = (key for key in keys if getattr(self, key) != getattr(default, key))
        inside = ",".join(
            [self.method, *option_texts(self.options), *(f"{key}={getattr(self, key)}" for key in unusual)]
        )
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
