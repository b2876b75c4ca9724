"""Protocol cards: all parameters behind a number, in a small versioned data file.

A card says in which space an attack works (pixels, the normalised tensor of some published code, or values in units of
each channel's standard deviation), whose labels it attacks, its threat model, and each attack's parameters. Its tag
`name@version:digest` stands next to every number.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, cast, get_args

from ..common.files import parse_toml, written_text
from ..common.names import canonical, norm_name
from ..common.plugins import built_in, declared, shipped_files
from ..common.preprocessing import Preprocessing, is_real
from ..errors import ProtocolError, unknown

Space = Literal["pixels", "normalised", "sigma"]
"""Where attacks work: on pixels, on the normalised tensor of some published code, or on series (sigma)."""


class SampleWords(NamedTuple):
    """What a task's samples are called: one, and several."""

    one: str
    many: str


TASKS = dict.fromkeys(("classification", "segmentation"), SampleWords("image", "images"))  # the tasks of the core
_TABLES = {"threat", "scoring", "preprocessing", "attention", "attacks"}
_TOP = {"name", "version", "task", "summary", "source", "caveats", *_TABLES}
_DECIMAL = re.compile(r"[+-]?(\d{1,30}\.?\d{0,30}|\.\d{1,30})([eE][+-]?\d{1,2})?")
_PREPROCESSING = {"input_size", "interpolation", "crop_pct", "crop_mode"}
_THREAT = {"space", "labels", "norm", "eps", "bounds"}


def parse_number(
    text: object, what: str = "number", expected: str = "a number such as 1/255, 0.5/255 or 0.004"
) -> Fraction:
    """Parse a finite number: `1/255`, `0.004`, `2e-3`; a long decimal means what it is the nearest float to.

    what, expected: for the message of the ProtocolError.
    """
    try:
        top, *bottom = map(str.strip, str(text).split("/"))
        if isinstance(text, bool) or len(bottom) > 1 or not all(map(_DECIMAL.fullmatch, (top, *bottom))):
            raise ValueError(text)
        value = Fraction(top) / Fraction(bottom[0] if bottom else 1)
        if max(abs(value.numerator), value.denominator) >= 10**30:  # its text must be read back as the same
            raise ValueError(text)
        return value if bottom else _meant(value, top)
    except (ValueError, ZeroDivisionError):
        raise ProtocolError(f"{what} {str(text)!r}: expected {expected}") from None


def _meant(value: Fraction, text: str) -> Fraction:
    """Return the number that a decimal with more than six places stands for: a short decimal, or one over 255.

    It is the nearest float to that number, in double or single precision, or gives it to all its digits. Else the same.
    """
    mantissa, _, exponent = text.lower().partition("e")
    places = len(mantissa.partition(".")[2]) - int(exponent or 0)
    if places <= _SHORT or not value:
        return value
    rounded = max(Fraction(1, 2 * 10**places), abs(value) / 2**51)
    if abs(value) > _SMALLEST and struct.unpack("<f", struct.pack("<f", value))[0] == float(value):
        rounded = max(rounded, abs(value) / 2**24)  # as of a tensor's item()
    for unit, parts in itertools.product((1, 255), (1, 2, *(10**power for power in range(1, _SHORT + 1)))):
        near = Fraction(round(value * unit * parts), unit * parts)
        by_chance = 2 * rounded * unit * parts  # the share of all numbers that lie as close to one of these
        if near and abs(near - value) <= rounded and by_chance < _BY_CHANCE:
            return near
    return value


_SHORT = 6  # places of a decimal that is taken as it is written
_SMALLEST = Fraction(1, 10**30)
_BY_CHANCE = Fraction(1, 100)


def format_number(value: Fraction) -> str:
    """Return the shortest exact text that `parse_number` reads back: `0.1`, `1/255`, `0.25/255`."""
    for unit, suffix in ((1, ""), (255, "/255")):
        scaled = value * unit
        if (scaled * 10**6).denominator == 1:
            return f"{float(scaled):.6f}".rstrip("0").rstrip(".") + suffix
    return str(value)


def samples_of(task: str) -> SampleWords:
    """Return what the samples of a task are called; simply so for a plug-in's."""
    if entry := built_in("tasks").get(task):
        return cast("SampleWords", entry.load().samples)
    return TASKS.get(task, SampleWords("sample", "samples"))


@cache
def _presets() -> dict[str, dict[str, dict[str, str | int]]]:
    path = Path(__file__).with_name("presets.toml")
    return parse_toml(path.read_text("utf-8"), str(path), ProtocolError)


def presets_of(task: str) -> Mapping[str, Mapping[str, str | int]]:
    """Return the options of each preset of a task, by name; none of a slice's or a plug-in's."""
    return _presets().get(task, {})


@dataclass(frozen=True)
class Card:
    """A protocol. `attacks` maps an attack's name to its parameters (eps and norm among them where they differ)."""

    name: str
    version: int
    summary: str
    digest: str
    space: Space
    labels: Literal["true", "predicted"]
    norm: str
    eps: Fraction
    bounds: tuple[float, float] | None
    attacks: Mapping[str, Mapping[str, Any]]
    source: str = ""
    caveats: tuple[str, ...] = ()
    task: str = "classification"
    scoring: Mapping[str, Any] = field(default_factory=dict)
    preprocessing: Mapping[str, Any] = field(default_factory=dict)
    attention: Mapping[str, str] = field(default_factory=dict)

    @property
    def tag(self) -> str:
        return f"{self.name}@{self.version}:{self.digest[:8]}"

    @property
    def score_autocast(self) -> bool:
        return bool(self.scoring.get("autocast", False))

    @property
    def parameters(self) -> dict[str, dict[str, Any]]:
        """All that the card decides, by part, in JSON types: threat, scoring, preprocessing, attention, attacks."""
        threat = {"space": self.space, "labels": self.labels, "norm": self.norm, "eps": format_number(self.eps)}
        if self.bounds:
            threat["bounds"] = f"[{', '.join(repr(bound).removesuffix('.0') for bound in self.bounds)}]"
        rest = {name: dict(getattr(self, name)) for name in ("scoring", "preprocessing", "attention")}
        return {
            **({"threat": threat} if self.attacks else {}),
            **{name: options for name, options in rest.items() if any(options.values())},
            **{name: dict(options) for name, options in self.attacks.items()},
        }

    def preprocess(self, preprocessing: Preprocessing) -> tuple[Preprocessing, str]:
        """Return the preprocessing under this card, and a line that says what the card changed (empty: nothing)."""
        rule = dict(self.preprocessing)
        if not rule:
            return preprocessing, ""
        size = tuple(rule.pop("input_size"))
        if size != preprocessing.input_size:
            text = f"{preprocessing.input_size[0]}x{preprocessing.input_size[1]}"
            rule_of = f"card {self.name} has a resize rule for {size[0]}x{size[1]} only"
            return preprocessing, f"{rule_of}; the model's {text} is kept"
        changed = replace(preprocessing, **rule)
        if changed == preprocessing:
            return preprocessing, ""
        return changed, f"card {self.name}: {changed.crop_mode} crop {changed.crop_pct}, {changed.interpolation}"


class Parameters(Protocol):
    """What decides of a card, as a `Card` and run.json have it."""

    @property
    def task(self) -> str: ...
    @property
    def space(self) -> str: ...
    @property
    def labels(self) -> str: ...
    @property
    def parameters(self) -> Mapping[str, Mapping[str, Any]]: ...


_SHARED = ("threat", "scoring", "preprocessing", "attention")
_WORD = re.compile(r"[a-z][a-z0-9_-]*")


def digest_of_part(card: Parameters, condition: str, whole: bool = False) -> str:
    """Return the SHA-256 (hex) of what a condition uses of a card: task, space, labels, and `used_parameters`."""
    decides = [card.task, card.space, card.labels, used_parameters(card, condition, whole)]
    canonical = json.dumps(decides, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(canonical.encode()).hexdigest()


def used_parameters(card: Parameters, condition: str, whole: bool = False) -> dict[str, dict[str, Any]]:
    """Return the parameters of a card that a condition uses: the shared settings, and those of each attack that its
    text names, itself or inside another. whole: all parameters."""
    named = {*_SHARED, *_WORD.findall(condition)}
    return {name: dict(options) for name, options in card.parameters.items() if whole or name in named}


def card_names() -> list[str]:
    return sorted(shipped_files("robustkit.protocol", "cards"))


def load_card(spec: str) -> Card:
    """Load a card by name, or from the user's own TOML file. Raises ProtocolError where it is missing or malformed."""
    shipped = shipped_files("robustkit.protocol", "cards")
    if (file := shipped.get(name := canonical(spec, shipped))) is not None:
        return _card(file.read_text(encoding="utf-8"), name)
    path = Path(spec)
    if path.suffix == ".toml" and path.is_file():
        return _card(written_text(path, str(path), ProtocolError), str(path))
    raise ProtocolError(unknown("protocol", spec, card_names(), remedy="or give the path of a TOML card"))


def _card(text: str, where: str) -> Card:
    data = parse_toml(text, where, ProtocolError)
    attacked = "scoring" not in data or {"threat", "attacks"} & data.keys()
    if missing := {"name", "version", *(("threat", "attacks") if attacked else ())} - data.keys():
        raise ProtocolError(f"protocol card {where}: missing {', '.join(sorted(missing))}")
    _check_keys(data, _TOP, where)
    threat = _table(data, "threat", where)
    _check_keys(threat, _THREAT, f"{where} [threat]")
    space, labels = threat.get("space", "pixels"), threat.get("labels", "true")
    if space not in get_args(Space) or labels not in ("true", "predicted"):
        expected = f"{', '.join(get_args(Space))}, and true or predicted"
        raise ProtocolError(f"protocol card {where}: space {space!r}, labels {labels!r}; expected {expected}")
    task = data.get("task", "classification")
    tasks = (*TASKS, *built_in("tasks"), *(plugin.name for plugin in declared("tasks")))
    if task not in tasks:
        raise ProtocolError(f"protocol card {where}: " + unknown("task", str(task), tasks))
    version, rule = data["version"], _table(data, "preprocessing", where)
    if isinstance(version, bool) or not isinstance(version, int):
        raise ProtocolError(f"protocol card {where}: version {version!r}; expected a whole number")
    _check_keys(rule, _PREPROCESSING, f"{where} [preprocessing]")
    size = rule.get("input_size")
    if rule and not (isinstance(size, list) and len(size) == 2 and all(isinstance(side, int) for side in size)):
        raise ProtocolError(f"protocol card {where}: input_size {size!r}; expected [height, width]")
    bounds = threat.get("bounds")
    if bounds is not None and space != "pixels":
        raise ProtocolError(f"protocol card {where}: bounds are of pixels; leave them out where space is {space}")
    attacks = {name: _table(data["attacks"], name, where) for name in _table(data, "attacks", where)}
    for limits in (bounds, *(options.get("bounds") for options in attacks.values())):
        if limits is not None and not (isinstance(limits, list) and len(limits) == 2 and all(map(is_real, limits))):
            raise ProtocolError(f"protocol card {where}: bounds {limits!r}; expected two numbers such as [0.0, 1.0]")
    if not is_real(rule.get("crop_pct", 1)):
        raise ProtocolError(f"protocol card {where}: crop_pct {rule['crop_pct']!r}; expected a number such as 0.875")
    formulas = _table(data, "attention", where)
    if not all(isinstance(value, str) for value in formulas.values()):
        raise ProtocolError(f"protocol card {where}: [attention] has {formulas}; expected names of formulas")
    caveats = data.get("caveats", [])
    if not isinstance(caveats, list):
        raise ProtocolError(f"protocol card {where}: caveats is {caveats!r}; expected a list of texts")
    try:
        canonical = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as fault:
        why = f"protocol card {where}: holds a value that no card can have ({fault})"
        raise ProtocolError(f"{why}; expected texts, finite numbers, true or false, lists and tables") from None
    return Card(
        name=str(data["name"]),
        version=version,
        summary=str(data.get("summary", "")),
        source=str(data.get("source", "")),
        caveats=tuple(map(str, caveats)),
        task=task,
        digest=hashlib.sha256(canonical.encode()).hexdigest(),
        space=cast("Space", space),
        labels=cast("Literal['true', 'predicted']", labels),
        norm=norm_name(threat.get("norm", "linf")),
        eps=parse_number(threat.get("eps", "1/255"), "eps"),
        bounds=(float(bounds[0]), float(bounds[1])) if bounds else None,
        scoring=_table(data, "scoring", where),
        preprocessing=rule,
        attention=formulas,
        attacks=attacks,
    )


def _table(data: Mapping[str, Any], key: str, where: str) -> dict[str, Any]:
    value = data.get(key, {})
    if not isinstance(value, dict):
        raise ProtocolError(f"protocol card {where}: [{key}] is {value!r}; expected a table")
    return value


def _check_keys(table: Mapping[str, Any], allowed: set[str], where: str) -> None:
    for key in table:
        if key not in allowed:
            raise ProtocolError(f"protocol card {where}: " + unknown("field", key, allowed))
