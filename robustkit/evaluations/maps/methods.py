"""Methods of maps: names, own parameters, and cost. Loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, cast

from cam.registry import CONTROLS, METHODS

from ...common.names import canonical
from ...common.plugins import Registry, declared, subclass_of
from ...errors import ProtocolError, unknown
from ...protocol.card import format_number, parse_number
from ...protocol.condition import Condition, ConditionPattern, split_condition
from ..condition import Claims, Cost, Vocabulary

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
