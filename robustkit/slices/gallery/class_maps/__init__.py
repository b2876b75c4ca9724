"""Evaluate what segmenters look at: maps of a class in a region, `cam(agcam,of=road,over=predicted)`, and under other
conditions, `stability(agcam,of=road,under=…)`; and the class with noise in or around it, `class-noise(of=road)`.

This module loads no torch.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from cam.registry import CONTROLS

from ....common.names import canonical
from ....data.class_names import target_of
from ....errors import ModelError, ProtocolError, unknown
from ....evaluations.condition import Claims, Named, Place, View, Vocabulary, kind_of, name_of, vocabulary_of
from ....evaluations.family import LazyFamily
from ....evaluations.maps import (
    FAITHFULNESS,
    FULL,
    METHOD_NAMES,
    Chosen,
    method_names,
    method_text,
    option_texts,
    take_options,
)
from ....evaluations.metrics import Metric, lead_over_control, mean_share
from ....protocol.card import parse_number
from ....protocol.condition import CLEAN, Condition, ConditionPattern, Value, split_condition, split_list

KIND, MOVED, NOISE = "cam-of", "stability-of", "class-noise"
LARGEST, EVERY = "largest", "*"
"""What `of` may be instead of a class: that of most pixels of the region, or each class that is there."""
OWN_MASK = "own-mask"
"""The control that marks the class's own pixels, and nothing else."""
RIVALS = tuple(name for name in CONTROLS if name != FULL)
"""The controls that a lead is over: they do not look at the image."""
EVERY_CONTROL = (*RIVALS, OWN_MASK)

_NUMBERS = {"predicted": (0,), "true": (0,), "component": (2,), "pixel": (2,), "box": (0, 4)}
_FORMS = (
    "predicted, true, box, component=ROW+COLUMN, pixel=ROW+COLUMN or box=TOP+LEFT+BOTTOM+RIGHT, such as pixel=120+64"
)


@dataclass(frozen=True)
class Region:
    """Where a class is explained: where it is `predicted` or `true`, in the `box` around what is predicted as it, or at
    `component=ROW+COLUMN`, `pixel=ROW+COLUMN`, `box=TOP+LEFT+BOTTOM+RIGHT`, whose last row and column are not in it;
    pixels of the image, from 0."""

    kind: str = "predicted"
    numbers: tuple[int, ...] = ()

    @classmethod
    def of(cls, text: str, where: str = "--over") -> Region:
        """Raise ProtocolError for anything else."""
        kind, _, inside = text.strip().partition("=")
        numbers = inside.split("+") if inside else []
        if len(numbers) not in _NUMBERS.get(kind, ()) or not all(re.fullmatch("[0-9]{1,6}", each) for each in numbers):
            raise ProtocolError(f"{where} {text}: expected {_FORMS}")
        return cls(kind, tuple(map(int, numbers)))

    @property
    def text(self) -> str:
        return f"{self.kind}={'+'.join(map(str, self.numbers))}" if self.numbers else self.kind

    @property
    def corners(self) -> tuple[int, ...]:
        """Top, left, bottom and right of what is named by numbers; empty without any."""
        return (*self.numbers, self.numbers[0] + 1, self.numbers[1] + 1)[:4] if self.numbers else ()

    def check(self, height: int, width: int, picture: str, where: str = "--over") -> None:
        """Raise ProtocolError where it is outside of a picture, or empty."""
        if self.numbers:
            top, left, bottom, right = self.corners
            if not (top < bottom <= height and left < right <= width):
                size = f"{height} rows and {width} columns"
                raise ProtocolError(f"{where} {self.text}: {picture} has {size}; expected a region inside, not empty")


@dataclass(frozen=True)
class ClassMap:
    """A map of a class. of: its name, `largest` or `*`. over: of a `Region`. faithfulness: `none`, `abpc` or `all`. on:
    images drawn for it; 0 takes all. under: the condition whose map is compared with the clean one. index: of the
    class, where it is named. method: empty for noise."""

    method: str
    options: Chosen = ()
    of: str = LARGEST
    over: str = "predicted"
    faithfulness: str = "abpc"
    on: int = 0
    under: str = ""
    index: int | None = None

    @property
    def text(self) -> str:
        usual = ClassMap(self.method)
        keys = (key for key in ("over", "faithfulness", "on", "under") if getattr(self, key) != getattr(usual, key))
        named = [] if self.method == "" else [self.method, *option_texts(self.options)]
        inside = ",".join([*named, f"of={self.of}", *(f"{key}={getattr(self, key)}" for key in keys)])
        return f"{'stability' if self.under else 'cam' if self.method else NOISE}({inside})"

    @property
    def called(self) -> str:
        return method_text(self.method, self.options)

    @property
    def class_in_words(self) -> str:
        return {LARGEST: "of the largest class", EVERY: "of each class"}.get(self.of, f"of {self.of}")

    @property
    def kind(self) -> ClassMap:
        """What maps share that can be compared."""
        return replace(self, method="", options=())

    @property
    def is_control(self) -> bool:
        return self.method in EVERY_CONTROL

    @property
    def region(self) -> Region:
        return Region.of(self.over, "over")

    def resolve(self, names: Sequence[str], unjudged: Sequence[int] = ()) -> ClassMap:
        """Return it with the index of its class, if it has one. Raises ProtocolError for an unknown or ignored class,
        or a name that several have."""
        if self.of in (LARGEST, EVERY):
            return self
        try:
            index = target_of(self.of, names)
        except ModelError as fault:
            raise ProtocolError(f"of={self.of}: {fault}") from None
        if index in unjudged:
            judged = [name for place, name in enumerate(names) if place not in unjudged]
            why = f"{names[index]} is ignored, so no label says where it is"
            raise ProtocolError(f"of={self.of}: {why}; name another class, such as {judged[0]}")
        return replace(self, index=index)

    def condition(self, under: Condition | None = None) -> Condition:
        """Return its condition. Draws are the method's own, whatever class is explained."""
        draws = f"cam({self.method})" if self.method else NOISE
        if under is None:
            return Condition(KIND if self.method else NOISE, self.text, payload=self, draws=draws)
        moved = replace(self, faithfulness="abpc", under=under.text)
        return Condition(MOVED, moved.text, payload=moved, under=under, released=under.released, draws=draws)


def parse_class_map(text: str) -> ClassMap:
    """Return a map as a record, or a list, names it: `cam(agcam,of=road)`, `agcam(of=road)`, `agcam`. Raises
    ProtocolError for what is not understood."""
    kind, inside = split_condition(text)
    items = split_list(inside or "")
    moved = kind == "stability"
    if kind in ("cam", "stability", KIND, MOVED):
        if not items or "=" in items[0] or kind in (KIND, MOVED):
            raise ProtocolError(f"{text}: expected a method first, such as cam(agcam,of=road)")
        kind, *items = items
    method = "" if kind == NOISE else canonical(kind, (*method_names(), OWN_MASK))
    every = [name for name in method_names() if name != FULL] + [OWN_MASK]
    if method and method not in every:
        raise ProtocolError(unknown("map", method, every))
    if bare := next((item for item in items if "=" not in item), None):
        raise ProtocolError(f"{text}: {bare!r} is not key=value; expected such as of=road")
    pairs = {key.strip(): value.strip() for key, _, value in (item.partition("=") for item in items)}
    if len(pairs) < len(items):
        raise ProtocolError(f"{text}: a parameter is given twice; expected it once")
    options = take_options(method, pairs, text)
    parameters: dict[str, Any] = {
        key: pairs.pop(key) for key in ("of", "over", "faithfulness", "on", "under") if key in pairs
    }
    if pairs:
        raise ProtocolError(f"{text}: " + unknown("parameter", min(pairs), ("of", "over", "faithfulness", "on")))
    if (chosen := parameters.get("faithfulness", "abpc")) not in FAITHFULNESS:
        raise ProtocolError(f"{text}: " + unknown("faithfulness", chosen, FAITHFULNESS))
    on = parse_number(parameters.pop("on", "0"), f"{text}: on", "how many images, such as on=200")
    if on.denominator != 1 or on < 0:
        raise ProtocolError(f"{text}: on {on}; expected how many images, such as on=200")
    if "over" in parameters:
        parameters["over"] = Region.of(parameters["over"], f"{text}: over").text
    if moved != ("under" in parameters):
        remedy = "stability(agcam,of=road,under=pgd) needs it, others do not have it; --stability makes such maps"
        raise ProtocolError(f"{text}: under; {remedy}")
    return ClassMap(method, options, on=int(on), **parameters)


ENERGY = mean_share("class_energy", "energy on the class %")
CONTEXT = replace(mean_share("class_context", "energy in its context %"), better=0, paired=False)
POINTING = mean_share("class_pointing", "pointing at the class %")
ABPC = Metric("class_abpc", "ABPC of its IoU", better=1, paired=True, least=-1, most=1)
INSERTION = Metric("class_insertion", "insertion of its IoU", better=1, paired=True, least=0, most=1)
DELETION = Metric("class_deletion", "deletion of its IoU", better=-1, paired=True, least=0, most=1)
HEAD = Metric("class_head_correlation", "head redrawn", least=-1, most=1)
SCORES = tuple(
    replace(metric, short=short)
    for metric, short in (
        (ENERGY, "energy on it %"),
        (POINTING, "pointing %"),
        (ABPC, "ABPC"),
        (INSERTION, "insertion"),
        (DELETION, "deletion ↓"),
    )
)
"""What leads over controls are in."""
OVER_MASK = "_over_own_mask"
LEADS = tuple(
    replace(lead_over_control(metric), name=metric.name + OVER_MASK, label=f"lead over the own mask in {metric.label}")
    for metric in SCORES[2:]
)
AREA = replace(mean_share("class_area", "area of the class %"), better=0, paired=False)
IN_OBJECT = replace(mean_share("class_noise_inside", "IoU left with noise on the class %"), short="noise on it %")
IN_CONTEXT = replace(
    mean_share("class_noise_around", "IoU left with noise around the class %"), short="noise around it %"
)
RANK = Metric("class_rank_correlation", "rank correlation", better=1, paired=True, least=-1, most=1)
OVERLAP = Metric("class_map_iou", "IoU of maps %", 100, 1, paired=True, least=0, most=1)
LEFT = replace(mean_share("class_iou_left", "IoU with the clean class %"), short="IoU left %")
HELD = replace(mean_share("class_held", "class held %"), paired=False, short="held %")
HEAD_ENERGY = Metric("class_head_energy", "energy on the class with the head redrawn %", 100, least=0, most=1)
HEAD_ABPC = Metric("class_head_abpc", "ABPC with the head redrawn", least=-1, most=1)
_MEASURED = (*SCORES, CONTEXT, AREA, HEAD, HEAD_ENERGY, HEAD_ABPC, IN_OBJECT, IN_CONTEXT, RANK, OVERLAP, LEFT, HELD)

FLAT = "class_flat"
COLUMNS_READ = ("explained", *(metric.name for metric in _MEASURED if metric not in (CONTEXT, HELD)), FLAT)
"""The columns of records: a list for each image, with a value for each of its classes that is explained."""


class ClassMapWords(Vocabulary):
    name = "maps of classes"
    claims = Claims(
        "on maps of classes", "", "", "in its maps ({})", "Maps are compared on images that show the class for both."
    )
    parameters: ClassVar[Mapping[str, Value]] = {"of": LARGEST, "over": "predicted", "faithfulness": "abpc"}
    telling = ("of",)
    metrics = (
        *_MEASURED,
        *LEADS,
        *(
            replace(each, name=each.name + group, paired=False)
            for each in (RANK, OVERLAP)
            for group in ("_held", "_fell")
        ),
        *(replace(each, name=f"{each.name}(", paired=False, parametric=True) for each in _MEASURED),
    )

    def read(self, text: str, read: Callable[[str], ConditionPattern]) -> ConditionPattern | None:
        kind, inside = split_condition(text)
        what, *rest = split_list(inside or "") or [""]
        if kind == NOISE or "=" in what:
            what, rest = "", [*filter(None, [what]), *rest]
        split = [tuple(map(str.strip, item.partition("=")[::2])) for item in rest]
        what = canonical(what, (*method_names(), OWN_MASK))
        plain = ",".join([*filter(None, [what]), *("=".join(filter(None, pair)) for pair in split)])
        pairs = tuple((key, value) for key, value in split)
        named = f"{kind}({plain})"
        return ConditionPattern(named, kind_of(named), what, pairs)

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        parse_class_map(pattern.text)
        if under := pattern.given.get("under"):
            other(under)

    def label(self, text: str, place: Place = "axis", manifest: Named | None = None) -> str:
        if place in ("axis", "badge") or manifest is None:
            return text
        spec = parse_class_map(text)
        options = ", ".join(option.replace("=", " ") for option in option_texts(spec.options))
        method = METHOD_NAMES.get(spec.method, spec.method) if spec.method else "noise"
        words = [f"{method} ({options}) {spec.class_in_words}" if options else f"{method} {spec.class_in_words}"]
        words += [f"over {spec.over}"] if spec.over != "predicted" else []
        words += [f"clean against {name_of(spec.under, 'table', manifest)}"] if spec.under else []
        return ", ".join(words)

    def needs(self, text: str, metric: str, conditions: Iterable[str]) -> list[str]:
        lead = metric.endswith((OVER_MASK, "_over_control"))
        return [text, *(each for each in conditions if lead and each != text and kind_of(each) == KIND)]

    def view(self, text: str) -> View | None:
        return None

    def chief(self, values: Mapping[tuple[str, str], float], metric: str) -> Iterator[tuple[str, str, str]]:
        if first := next((key for key in values if key[1] == f"{ABPC.name}_over_control"), None):
            yield (*first, "lead of the maps over the best control, which does not look at the image")

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        spec = parse_class_map(pattern.text)
        under = other(spec.under or CLEAN.text)
        yield from vocabulary_of(under.name).command(under, other)
        pairs = [f"{key}={value}" for key, value in pattern.parameters if key != "under"]
        method = spec.method or OWN_MASK  # noise comes with every map
        yield from ("--cams", f"{method}({','.join(pairs)})" if pairs else method)
        yield from ("--stability",) if spec.under else ()


VOCABULARY = ClassMapWords()
FAMILY = LazyFamily(VOCABULARY)
