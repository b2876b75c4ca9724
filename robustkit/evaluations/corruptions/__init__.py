"""Evaluate a model on corrupted images: conditions, sets, released trees, mean errors and mCE.

Corruptions as conditions: `corruption(fog,severity=3)`, named sets, and what means are made of. Loads no torch.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from types import MappingProxyType
from typing import ClassVar

import corruptions
from corruptions.registry import CATEGORIES
from corruptions.registry import CORRUPTIONS as CORRUPTION_CLASSES

from ...common.names import canonical
from ...common.plugins import Registry, declared, subclass_of
from ...errors import ProtocolError, unknown
from ...protocol.condition import Condition, ConditionPattern, Value, split_list
from ..condition import ALSO, Claims, Named, Place, PublishedNames, View, Vocabulary, kind_of, words_of
from ..metrics import Metric, mean_share

BENCHMARK = "in-c"  # the set that a rule means where it names none
MOST_CE = 1 / 0.564592  # all wrong, where AlexNet's error is least (brightness)
METRICS = (
    replace(
        replace(mean_share("mean_error", "mean error %", -1, True, ("mean_error", "mean error")), complement="top-1 %"),
        under=BENCHMARK,
        noun="error",
        also=("error_rate",),
        short="error %",
    ),
    Metric("mce", "mCE %", 100, -1, under=BENCHMARK, drafted=True, hub=("mce", "mCE"), least=0, most=MOST_CE),
    Metric("relative_mce", "relative mCE %", 100, -1, under=BENCHMARK, hub=("relative_mce", "relative mCE"), bare=True),
    Metric("ce", "CE %", 100, -1, least=0, most=MOST_CE, also=("corruption_error",)),
)


CORRUPTIONS = tuple(name for names in CATEGORIES.values() for name in names)
TEST = (
    *("gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    *("snow", "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression"),
)
"""The 15 of ImageNet-C by name: a corruption that is added to a category enters no published set."""
_VALIDATION = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
FROST, TILED, TEXTURES = ("frost",), ("mosaic", "stickers"), ("photographs", "own")
TEXTURED = (*FROST, *TILED)
"""The kinds that take parts of other pictures: photographs of ice, or tiles of any images."""
_ALL, _MILD = (1, 2, 3, 4, 5), (1, 2, 3)
_NOISE = ("gaussian_noise", "impulse_noise", "shot_noise", "speckle_noise")
_SEGFORMER = (
    *("motion_blur", "defocus_blur", "glass_blur", "gaussian_blur", *_NOISE),
    *("brightness", "contrast", "saturate", "jpeg_compression", "snow", "spatter", "fog", "frost"),
)


@dataclass(frozen=True)
class Estimate:
    """What the mean of a quick set estimates, and how well. of: the whole set. off, most: misses in points, root mean
    square and largest, of `count` checkpoints that the choice had not seen. elsewhere: off, on data sets that it had
    not seen; 0 where there is none."""

    of: str
    kinds: tuple[str, ...]
    severity: int
    count: int
    off: float
    most: float
    elsewhere: float

    @property
    def others(self) -> dict[str, tuple[int, ...]]:
        """The whole set at this severity, which tells more; without textured kinds, whose mean may be another one."""
        return {kind: (self.severity,) for kind in SETS[self.of] if kind not in TEXTURED}


QUICK = {
    "in-c-quick": Estimate("in-c", ("shot_noise", "brightness", "elastic_transform"), 4, 19, 4.0, 8.2, 8.5),
    "in-c-bar-quick": Estimate(
        "in-c-bar", ("sparkles", "perlin_noise", "single_frequency_greyscale"), 4, 11, 3.6, 7.1, 6.9
    ),
    "cifar-c-bar-quick": Estimate(
        "cifar-c-bar", ("inverse_sparkles", "checkerboard_cutout", "pinch_and_twirl"), 3, 8, 3.2, 7.7, 0
    ),
    "laion-c-quick": Estimate(
        "laion-c", ("vertical_lines", "stickers", "luminance_checkerboard"), 2, 11, 1.9, 3.0, 7.1
    ),
}
"""Three kinds for a set: chosen, and judged, in scripts/studies/quick_corruptions."""
_BAR_AT_32 = ("inverse_sparkles", "sparkles", "blue_noise_sample", "checkerboard_cutout", "brownish_noise")
SETS: dict[str, dict[str, tuple[int, ...]]] = {
    "in-c": dict.fromkeys(TEST, _ALL),
    "in-c-extra": dict.fromkeys(_VALIDATION, _ALL),
    "segformer-16": {name: _MILD if name in _NOISE else _ALL for name in _SEGFORMER},
    "fan-19": dict.fromkeys((*TEST, *_VALIDATION), _MILD),
    "in-c-bar": dict.fromkeys(CATEGORIES["c-bar"], _ALL),
    "cifar-c-bar": dict.fromkeys((*_BAR_AT_32, *CATEGORIES["cifar-bar"]), _ALL),
    "laion-c": dict.fromkeys(CATEGORIES["laion"], _ALL),
    **{name: dict.fromkeys(quick.kinds, (quick.severity,)) for name, quick in QUICK.items()},
    **{
        category: dict.fromkeys([name for name in names if name in TEST], _ALL)
        for category, names in CATEGORIES.items()
        if set(names) & set(TEST)
    },
}
"""in-c: Hendrycks and Dietterich 2019. segformer-16: Xie et al. 2021. fan-19: Zhou et al. 2022.
in-c-bar, cifar-c-bar (for 32x32): Mintun et al. 2021. laion-c: Li et al. 2025."""


EVERY_CORRUPTION: Registry[type[corruptions.Corruption]] = Registry(
    "corruptions", CORRUPTION_CLASSES, subclass_of("corruptions.base:Corruption"), (*SETS, "corruption")
)


def categories() -> dict[str, tuple[str, ...]]:
    """Return the corruptions of each category; those of plug-ins are the last one, `plug-ins`."""
    brought = tuple(plugin.name for plugin in declared("corruptions"))
    return {**CATEGORIES, **({"plug-ins": brought} if brought else {})}


def category_of(name: str) -> str:
    return next((category for category, names in CATEGORIES.items() if name in names), "plug-ins")


def corruption_names() -> tuple[str, ...]:
    """Return all corruptions: the benchmark's in its order, then those of plug-ins, which no set has."""
    return *CORRUPTIONS, *(plugin.name for plugin in declared("corruptions"))


def set_of(condition: str) -> tuple[str, tuple[int, ...], str] | None:
    """Split `in-c(severity=1+3,preset=cifar)` into set, severities (none: its own) and the rest, `(preset=cifar)`."""
    name, _, rest = condition.partition("(")
    if name not in SETS:
        return None
    items = [item for item in rest.removesuffix(")").split(",") if item]
    some = [int(word) for item in items if item.startswith("severity=") for word in item[9:].split("+")]
    others = ",".join(item for item in items if not item.startswith("severity="))
    return name, tuple(some), f"({others})" if others else ""


def definition_of(rest: str) -> str:
    """Return the rest of a set's text, `(preset=cifar,texture=own)`, without the texture."""
    items = ",".join(item for item in rest[1:-1].split(",") if not item.startswith("texture="))
    return f"({items})" if items else ""


def sets_at(evaluated: Iterable[tuple[str, int]], definition: str, textures: str = "") -> list[str]:
    """Return the sets whose corruptions were all evaluated at all their severities, then those at the same others,
    `in-c(severity=3)`. A quick set is named where its `others` were not. definition: `(preset=cifar)` or empty.
    textures: what sets with textured kinds say besides."""
    by_name: dict[str, set[int]] = {}
    for name, severity in evaluated:
        by_name.setdefault(name, set()).add(severity)

    def within(members: Mapping[str, Collection[int]], others: Mapping[str, Collection[int]]) -> bool:
        return all(set(members[name]) <= set(others.get(name, ())) for name in members)

    def text(name: str, some: str = "") -> str:
        inside = ",".join(filter(None, (some, definition[1:-1], textures if has_textures(name) else "")))
        return f"{name}({inside})" if inside else name

    whole = [name for name, members in SETS.items() if within(members, by_name)]
    whole = [name for name in whole if name not in QUICK or not within(QUICK[name].others, by_name)]
    names = list(map(text, whole))
    for name, members in SETS.items():
        severities = {tuple(sorted(by_name.get(member, ()))) for member in members}
        some = severities.pop()
        here = dict.fromkeys(members, some)
        new = name not in whole and name not in QUICK and not any(within(here, SETS[other]) for other in whole)
        if new and some and not severities:
            names.append(text(name, f"severity={'+'.join(map(str, some))}"))
    return names


def has_textures(name: str) -> bool:
    """Whether a corruption, or a set, takes parts of other pictures."""
    return not set(TEXTURED).isdisjoint(SETS.get(name, (name,)))


def span(severities: Iterable[int]) -> str:
    """Return `3`, `1–3`, or `1,3`."""
    ordered = sorted(severities)
    whole = len(ordered) == ordered[-1] - ordered[0] + 1 and len(ordered) > 1
    return f"{ordered[0]}–{ordered[-1]}" if whole else ",".join(map(str, ordered))


_ITEM = re.compile(r"\s*(-?)\s*([A-Za-z](?:[\w -]*[\w-])?)\s*(?:\(([^()]*)\))?\s*")


@dataclass(frozen=True)
class _Asked:
    """An item of a user's list. without: it is taken away. severities, texture: empty where none are named."""

    without: bool
    name: str
    severities: tuple[int, ...]
    texture: str


def expand(text: str | Iterable[str]) -> dict[str, tuple[int, ...]]:
    """Return corruptions and severities, in the benchmark's order, from `in-c`, `fog,snow(severity=3)` or
    `in-c,-frost`. Raises ProtocolError for an unknown name, a severity that is none, or an empty choice."""
    chosen: dict[str, set[int]] = {}
    for item in _items(text):
        for member, severities in SETS.get(item.name, {item.name: _ALL}).items():
            mentioned = set(item.severities or severities)
            before = chosen.get(member, set())
            chosen[member] = before - mentioned if item.without else before | mentioned
    if not any(chosen.values()):
        raise ProtocolError(f"corruptions {text!r}: none is left; expected a name or a set, such as in-c")
    return {name: tuple(sorted(chosen[name])) for name in corruption_names() if chosen.get(name)}


def asked_texture(text: str | Iterable[str], kinds: tuple[str, ...] = FROST) -> str:
    """Return the texture of some kinds in `frost(texture=own)`; empty for none. Raises ProtocolError where the list
    names both."""
    named = {item.texture for item in _items(text) if set(kinds) & set(SETS.get(item.name, (item.name,)))} - {""}
    if len(named) > 1:
        which = " and ".join(kinds)
        raise ProtocolError(f"corruptions {text!r}: both textures of {which}; expected one, and a run for each")
    return named.pop() if named else ""


def _items(text: str | Iterable[str]) -> Iterator[_Asked]:
    for part in split_list(text):
        form = _ITEM.fullmatch(part)
        if not form:
            raise ProtocolError(f"corruption {part!r}: expected a name, a set, or fog(severity=1+3)")
        without, name, arguments = bool(form[1]), form[2].lower(), form[3]
        if name == "corruption" and arguments:  # the text of a condition
            name, _, arguments = (word.strip() for word in arguments.partition(","))
        name = canonical(name, (*SETS, *corruption_names()), ALSO)
        if name not in SETS and name not in corruption_names():
            raise ProtocolError(unknown("corruption", name, (*SETS, *corruption_names())))
        severities, texture = _arguments(part, arguments, has_textures(name))
        if name in QUICK and severities not in ((), (QUICK[name].severity,)):
            raise ProtocolError(f"{part}: {name} is of severity {QUICK[name].severity} alone; leave severity out")
        yield _Asked(without, name, severities, texture)


def _arguments(item: str, arguments: str | None, textured: bool) -> tuple[tuple[int, ...], str]:
    """Return the severities and the texture in an item's parentheses. textured: whether it may name one."""
    severities, texture = tuple[int, ...](), ""
    for argument in filter(None, (arguments or "").split(",")):
        key, equals, value = (word.strip() for word in argument.partition("="))
        if key == "texture" and textured:
            if value not in TEXTURES:
                raise ProtocolError(f"{item}: " + unknown("texture", value, TEXTURES))
            texture = value
            continue
        if key != "severity" or not equals:
            raise ProtocolError(f"{item}: {argument!r} is not severity=...; expected such as fog(severity=1+3)")
        numbers = [word.strip() for word in value.split("+")]
        if not all(number in ("1", "2", "3", "4", "5") for number in numbers):
            raise ProtocolError(f"{item}: severity {value!r}; expected whole numbers from 1 to 5, such as 3 or 1+2+3")
        severities = tuple(map(int, numbers))
    return severities, texture


PRESETS, VARIANTS, SOURCES = ("imagenet", "cifar"), ("hendrycks", "bethgelab"), ("memory", "released")
_FORM = re.compile(r"corruption\(\s*([\w-](?:[\w -]*[\w-])?)\s*((?:,[^,()]+)*)\)")


Pictures = Mapping[str, str | None]
"""Folders of pictures: `frost_dir`, `tiles_dir`."""


@dataclass(frozen=True)
class Corrupted:
    """severity: 1 to 5; 0, in results only, is the mean over all five. preset, variant: see `corruptions.Corruption`.
    source: `memory`, after resize and crop, or `released` files. texture: of `TEXTURED`, `photographs` or `own`."""

    name: str
    severity: int = 0
    preset: str = "imagenet"
    variant: str = "hendrycks"
    source: str = "memory"
    texture: str = "photographs"

    @property
    def text(self) -> str:
        """The canonical text, which names what is not the benchmark's default."""
        severity = f",severity={self.severity}" if self.severity else ""
        texture = f",{self.textures}" if self.textures and self.name in TEXTURED else ""
        definition = f",{self.definition[1:-1]}" if self.definition else ""
        return f"corruption({self.name}{severity}{definition}{texture})"

    @property
    def textures(self) -> str:
        """What a text says about textured kinds, and means that hold them: `texture=own`; empty for photographs."""
        return "" if self.texture == "photographs" else f"texture={self.texture}"

    @property
    def label(self) -> str:
        """The corruption in a table of its definition: `fog`, or `frost(texture=own)`."""
        return f"{self.name}({self.textures})" if self.textures and self.name in TEXTURED else self.name

    @property
    def definition(self) -> str:
        """What distinguishes two tables: `(preset=cifar)`; empty for the default. Without the texture."""
        default = Corrupted(self.name)
        unusual = [key for key in ("preset", "variant", "source") if getattr(self, key) != getattr(default, key)]
        return f"({','.join(f'{key}={getattr(self, key)}' for key in unusual)})" if unusual else ""

    @property
    def mean(self) -> Corrupted:
        return replace(self, severity=0)

    @property
    def released(self) -> bool:
        return self.source == "released"

    def make(self, pictures: Pictures = MappingProxyType({})) -> corruptions.Corruption:
        """Return the corruption. pictures: folders, as `corruptions.corruption` takes them. Raises ValueError where
        preset and variant do not fit, PluginError of a bad plug-in."""
        if self.name not in corruptions.CORRUPTIONS:
            return EVERY_CORRUPTION[self.name](self.preset, self.variant)
        options = {"preset": self.preset, "variant": self.variant, "texture": self.texture}
        return corruptions.corruption(
            self.name, frost_dir=pictures.get("frost_dir"), tiles_dir=pictures.get("tiles_dir"), **options
        )


def parse_corrupted(text: str) -> Corrupted | None:
    """Return a corruption's parts, None of another condition. Raises ProtocolError for an unknown or invalid part."""
    if not text.startswith("corruption("):
        return None
    form = _FORM.fullmatch(text)
    if not form:
        raise ProtocolError(f"condition {text!r}: expected such as corruption(fog,severity=3)")
    if (name := canonical(form[1], corruption_names())) not in corruption_names():
        raise ProtocolError(unknown("corruption", name, corruption_names()))
    options: dict[str, str] = {}
    for item in filter(None, form[2].split(",")):
        key, _, value = (word.strip() for word in item.partition("="))
        options[key] = value
    severity = options.pop("severity", "0")
    choices = {"preset": PRESETS, "variant": VARIANTS, "source": SOURCES}
    if name in TEXTURED and options.get("source") != "released":
        choices["texture"] = TEXTURES
    for key, value in options.items():
        if key == "constants":
            raise ProtocolError(f"{text}: --constants {value} is written preset={value} in a condition")
        if key not in choices:
            raise ProtocolError(f"{text}: " + unknown("parameter of corruption", key, ("severity", *choices)))
        if value not in choices[key]:
            raise ProtocolError(f"{text}: " + unknown(key, value, choices[key]))
    if severity not in ("0", "1", "2", "3", "4", "5"):
        raise ProtocolError(f"{text}: severity {severity!r}; expected a whole number from 1 to 5")
    return Corrupted(name, int(severity), **options)


def corruption_condition(part: Corrupted) -> Condition:
    group, level = part.mean.text, part.severity
    return Condition("corruption", part.text, payload=part, group=group, level=level, released=part.released)


def corrupted_of(condition: Condition) -> Corrupted | None:
    return condition.payload if isinstance(condition.payload, Corrupted) else None


_SOME_SEVERITIES = re.compile(r"severity=([1-5](?:\+[1-5])+)")


def split_severities(text: str) -> tuple[Corrupted | None, str]:
    """Return a corruption and its severities, `3`, `1+2+3` or empty; neither of any other condition."""
    several = _SOME_SEVERITIES.search(text)
    part = parse_corrupted(text.replace(several[0], "severity=1", 1) if several else text)
    return part, "" if part is None else several[1] if several else str(part.severity or "")


def by_definition(texts: Iterable[str]) -> Iterator[tuple[Corrupted, list[tuple[str, int]]]]:
    """Yield for each definition an example, and its corruptions and severities; once for each texture."""
    parts = [part for text in texts if (part := parse_corrupted(text)) is not None]
    for example in {part.definition: part for part in parts}.values():
        mine = [part for part in parts if part.definition == example.definition]
        for texture in dict.fromkeys(part.texture for part in mine if part.name in TEXTURED) or [example.texture]:
            fitting = [part for part in mine if part.name not in TEXTURED or part.texture == texture]
            yield replace(example, texture=texture), [(part.name, part.severity) for part in fitting]


def _means_of(example: Corrupted, evaluated: Iterable[tuple[str, int]]) -> Iterator[str]:
    for name in corruption_names():
        named = replace(example, name=name)
        for severities in dict.fromkeys(each[name] for of, each in SETS.items() if name in each and of not in QUICK):
            several = "severity=" + "+".join(map(str, severities))
            text = replace(named, severity=1).text
            yield named.mean.text if len(severities) == 5 else text.replace("severity=1", several, 1)
    yield from sets_at(evaluated, example.definition, example.textures)


def conditions_of(mean: str) -> list[str]:
    """Return the conditions that a mean is over: `corruption(fog)`, `in-c(source=released)` or `in-c(severity=3)`."""
    if (parts := set_of(mean)) is None:
        part = parse_corrupted(mean)
        assert part is not None
        return [replace(part, severity=severity).text for severity in (1, 2, 3, 4, 5)]
    name, some, definition = parts
    parameters = dict(item.split("=") for item in definition[1:-1].split(",") if item)
    return [
        Corrupted(member, severity, **parameters).text for member, s in SETS[name].items() for severity in some or s
    ]


def shares_of(condition: str) -> dict[str, float]:
    """Return the conditions that a result is over and their shares: means are over severities, then corruptions."""
    texts = [condition]
    if set_of(condition) or (condition.startswith("corruption(") and "severity=" not in condition):
        texts = conditions_of(condition)
    elif several := _SOME_SEVERITIES.search(condition):
        texts = [condition.replace(several[1], severity, 1) for severity in several[1].split("+")]
    of_one = Counter(text.partition(",")[0] for text in texts)
    return {text: 1 / len(of_one) / of_one[text.partition(",")[0]] for text in texts}


_OWN_TEXTURE = "texture=own"
_SEVERAL = re.compile(r"severity=([1-5])(?:\+[1-5])+(?=[,)])")


@lru_cache(maxsize=64)
def _several(conditions: tuple[str, ...]) -> bool:
    """Whether the corruptions of a run have more than one definition, so that a label must say which it is."""
    return len({part.definition for text in conditions if (part := parse_corrupted(text)) is not None}) > 1


def _in_table(text: str, in_full: bool) -> str:
    """Return `noise`, `all corruptions (in-c)`, `fog`, or `fog, severity 3`; in full: with what is not the
    benchmark's."""
    if (parts := set_of(text)) is not None:
        name, severities, definition = parts
        words = f"all corruptions ({name})" if name == BENCHMARK else name
        at = f", severity {'+'.join(map(str, severities))}" if severities else ""
        return f"{words}{at}{f' {definition}' if definition and in_full else ''}"
    part, at = split_severities(text)
    if part is None:
        return text
    definition = f" {part.definition}" if part.definition and in_full else ""
    return f"{part.name.replace('_', ' ')}{f', severity {at}' if at else ''}{definition}"


def possible_means(texts: Iterable[str]) -> Iterator[str]:
    yield from dict.fromkeys(text for each in by_definition(texts) for text in _means_of(*each))


def in_short(texts: Iterable[str]) -> list[str]:
    """Return the means over sets, those over severities that no set holds, and what neither holds."""
    texts = list(dict.fromkeys(texts))
    sets = [text for text in texts if kind_of(text) in SETS]
    means = [text for text in texts if "severity=" not in text]
    short, covered = list[str](), set[str]()
    for text in dict.fromkeys((*sets, *means, *texts)):
        if not (parts := set(shares_of(text))) <= covered:
            short.append(text)
            covered |= parts if "severity=" not in text or text in sets else set()
    return short


def as_published(text: str) -> str:
    """Return the condition with the benchmark's photographs, of which `unlike_published` says that they differ."""
    return re.sub(rf"\({_OWN_TEXTURE}\)|,{_OWN_TEXTURE}", "", text) if _OWN_TEXTURE in text else ""


def unlike_published(text: str) -> str:
    unlike = _OWN_TEXTURE in text and words_of(text) is VOCABULARY
    return "our own textures stand for the benchmark's photographs" if unlike else ""


def _is_fixed(name: str) -> bool:
    return kind_of(name) in SETS or parse_corrupted(name) is not None


class CorruptionWords(Vocabulary):
    name = "corruptions"
    claims = Claims("under corruption", "is more robust", "is less robust")
    parameters: ClassVar[Mapping[str, Value]] = {each.name: str(each.default) for each in fields(Corrupted)[2:]}
    telling = ("severity",)
    metrics = METRICS
    levels = r",severity=[0-5](?=[,)])"
    published = PublishedNames(tuple(SETS), _is_fixed, as_published, ("mce_16",))

    def needs(self, text: str, metric: str, conditions: Iterable[str]) -> list[str]:
        return [*shares_of(text), *(["clean"] if metric in ("relative_mce", "retention") else [])]

    def chief(self, values: Mapping[tuple[str, str], float], metric: str) -> Iterator[tuple[str, str, str]]:
        """Yield the errors of the benchmark's set; without it those of the three worst sets or corruptions."""
        short = in_short(text for text, _ in values)
        texts = [text for text in short if kind_of(text) == BENCHMARK] or short
        errors = [(text, "mean_error") for text in texts if (text, "mean_error") in values]
        scores = [(text, metric) for text in texts if (text, metric) in values]
        figures = sorted(errors, key=lambda key: -values[key]) or sorted(scores, key=lambda key: values[key])
        which = f", one of the three worst of {len(figures)}" if len(figures) > 3 else ""
        for text, name in figures[:3]:
            over = "severities" if kind_of(text) not in SETS else "corruptions and severities"
            yield text, name, f"mean over {over}{which}" if len(shares_of(text)) > 1 else f"one severity{which}"
        yield from ((text, "mce", "the benchmark's figure") for text in texts if (text, "mce") in values)

    def view(self, text: str) -> View | None:
        part = parse_corrupted(text)
        if part is None:  # a mean over several
            return None
        line = part.mean.text.removeprefix("corruption(").removesuffix(")")
        return View(line, str(part.severity or ""), "severity")

    def label(self, text: str, place: Place = "axis", manifest: Named | None = None) -> str:
        if place in ("table", "sentence"):
            return _in_table(text, manifest is None or _several(tuple(manifest.conditions)))
        part, at = split_severities(text)
        return text if part is None else f"{part.label}, severity {at}" if at else part.label

    def parse(self, text: str) -> Condition:
        part = parse_corrupted(text)
        if part is None or not part.severity:
            raise ProtocolError(f"condition {text!r}: expected a severity from 1 to 5, such as severity=3")
        return corruption_condition(part)

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        if pattern.name not in SETS:
            # A mean over some severities, severity=1+2+3, is a condition of results only.
            parse_corrupted(_SEVERAL.sub(r"severity=\1", pattern.text))
        elif pattern.what:
            raise ProtocolError(f"condition {text!r}: a set has its own corruptions; leave {pattern.what} out")
        else:
            of = next(filter(has_textures, SETS[pattern.name]), "fog")
            parse_corrupted(_SEVERAL.sub(r"severity=\1", f"corruption({','.join([of, *pattern.pairs])})"))

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        parameters, name = pattern.given, pattern.what or pattern.name
        inside = ",".join(f"{key}={parameters[key]}" for key in ("severity", "texture") if key in parameters)
        yield from ("--attacks", "none", "--corruptions", f"{name}({inside})" if inside else name)
        options = {"preset": "--constants", "variant": "--variant"}
        yield from (word for key, option in options.items() if key in parameters for word in (option, parameters[key]))


VOCABULARY = CorruptionWords()
