"""Words of conditions: what each family says about its own, and which family a text is of. Loads no torch."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pkgutil import resolve_name
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

from attacks.registry import ATTACKS, DENSE_ATTACKS, WITHOUT_RADIUS

from ..common.figure import Figure
from ..common.names import canonical, norm_name
from ..common.plugins import Registry, built_in, declared
from ..errors import ProtocolError
from ..protocol.card import parse_number
from ..protocol.condition import Condition, ConditionPattern, Value, format_value, parse_parameters, split_list
from .metrics import ESTIMATED, Metric, lead_over_control, metric_named, scored_by

BACKWARD = 1.5  # forwards that a backward takes as long as, on a ViT on a CPU; measured seconds soon replace it
_REACHED = 0.3  # share of an upper bound that is expected, since samples leave when they fall


@dataclass(frozen=True)
class Cost:
    """What one sample costs under a condition.

    forwards, backwards: passes through the model. extra: other work, in forwards. at_most: whether the passes are an
    upper bound, because a sample leaves once it has fallen.
    """

    forwards: float = 1.0
    backwards: float = 0.0
    extra: float = 0.0
    at_most: bool = False

    def __add__(self, other: Cost) -> Cost:
        extra, at_most = self.extra + other.extra, self.at_most or other.at_most
        return Cost(self.forwards + other.forwards, self.backwards + other.backwards, extra, at_most)

    def __mul__(self, times: float) -> Cost:
        return Cost(self.forwards * times, self.backwards * times, self.extra * times, self.at_most)

    def __str__(self) -> str:
        return f"{'at most ' * self.at_most}{self.forwards:.0f} + {self.backwards:.0f}"

    @property
    def most(self) -> float:
        """All of it in forwards, by what a backward usually takes."""
        return self.forwards + BACKWARD * self.backwards + self.extra

    @property
    def expected(self) -> float:
        """What is expected of it, in forwards."""
        return self.most * (_REACHED if self.at_most else 1.0)


Place: TypeAlias = Literal["table", "sentence", "axis", "badge"]  # where the name of a condition stands


class Named(Protocol):
    """What the names of conditions take from the manifest of their run, which lies in a higher room."""

    @property
    def arguments(self) -> Mapping[str, Any]: ...
    @property
    def claims(self) -> Mapping[str, Any]: ...
    @property
    def conditions(self) -> Sequence[str]: ...
    @property
    def data(self) -> Any: ...
    @property
    def protocol(self) -> Any: ...


SHORT, FIRST = ("short",), ("first",)
"""Where a brief row stands: in the short table of a run, on the first screen of its page."""


class BriefRow(NamedTuple):
    """A figure of all checkpoints that sums up a run. condition, metric: where its numbers are. label: what it is.
    section: the heading that it stands under in a short table. places: of SHORT and FIRST.
    """

    section: str
    label: str
    condition: str
    metric: Metric
    places: tuple[str, ...] = SHORT


@dataclass(frozen=True)
class Clause:
    """A statement about some conditions. rows: the results that it gives with their intervals."""

    text: str
    rows: tuple[Figure, ...] = ()


@dataclass(frozen=True)
class View:
    """How the sample browser shows a condition.

    line: the heading of its line, which all conditions with the same one share. level: its place on that line, such as
    `3`; unit: what levels are called, such as `severity`. over: the condition over whose images its map is laid; None
    where it shows images of its own. scores: columns of its records that stand under the map, and what they are called.
    drawn: whether its images are shown, or only what a model predicts for them.
    """

    line: str
    level: str = ""
    unit: str = ""
    over: str | None = None
    scores: Mapping[str, str] = field(default_factory=dict)
    drawn: bool = True


@dataclass(frozen=True)
class PublishedNames:
    """How published tables name the conditions of a family.

    names: that the tables have. is_fixed: whether a name means the same condition under every card; it raises
    ProtocolError for a name of this family that is not understood. as_published: the name of a condition that is
    exactly the paper's; empty where only its text identifies it. metrics: numbers that the tables have and no run
    computes.
    """

    names: Sequence[str] = ()
    is_fixed: Callable[[str], bool] = lambda name: False
    as_published: Callable[[str], str] = lambda text: ""
    metrics: tuple[str, ...] = ()


class Claims(NamedTuple):
    """What a verdict says about a family: where a checkpoint is best, `{many}` being what samples are called, and that
    it does better, or worse, than another one; families may share an area. Empty ones: it says neither. under: how a
    sentence says that something is so under a condition, `{}` being its name there. compared: how figures of two
    checkpoints are compared, where not by means over the samples that both have."""

    area: str = "in other evaluations"
    better: str = "does better"
    worse: str = "does worse"
    under: str = "under {}"
    compared: str = ""


UNDER_ATTACK = Claims("under attack", "is more robust", "is less robust")


class Vocabulary:
    """The words of one family.

    name: of the family, for people.
    parameters: of its conditions, each with its usual value, which tells the type, and which counts where a text leaves
    it out. telling: parameters without which another condition is meant. claims: of verdicts. in_results: whether its
    conditions stand in the task's table of results. metrics: its own numbers; a lead over the best control is known by
    its score. levels: a regular expression of what the texts of conditions differ in that are counted and shown as one
    group. published: what published tables call them.

    What the words of its tables mean is the `meaning` of its metrics, and for robustkit's own families in the TOML file
    next to them, `{one}` and `{many}` standing for the task's samples.
    """

    name: ClassVar[str] = ""
    parameters: ClassVar[Mapping[str, Value]] = {}
    telling: ClassVar[tuple[str, ...]] = ()
    claims: ClassVar[Claims] = Claims()
    in_results: ClassVar[bool] = False
    metrics: ClassVar[tuple[Metric, ...]] = ()
    levels: ClassVar[str] = ""
    published: ClassVar[PublishedNames] = PublishedNames()

    # Texts

    def label(self, text: str, place: Place = "axis", manifest: Named | None = None) -> str:
        """Return what people call a condition where it stands: in a row of a table, in a sentence, on an axis or as the
        heading of a column, or on a badge. manifest: of the run; None with an axis alone.
        """
        return text

    def read(self, text: str, read: Callable[[str], ConditionPattern]) -> ConditionPattern | None:
        """Return the parts of a text that is not of the usual form; None where it is. read: of another condition."""
        return None

    def parse(self, text: str) -> Condition:
        """Return the condition that a text means: `rotation(degrees=30)`, with all parameters.

        Raises:
            ProtocolError: an unknown parameter, or a value of the wrong type.
        """
        return parsed(text, self.parameters)

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        """Raise ProtocolError where there is no such condition, parameter or value. other: checks another condition."""
        self.parse(pattern.text)

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        """Yield the words of a command that evaluate a condition. other: reads another condition."""
        yield from ("--attacks", "none", "--evaluations", pattern.text)

    def needs(self, text: str, metric: str, conditions: Iterable[str]) -> list[str]:
        """Return the conditions whose records a number needs. conditions: those of the run."""
        return [text]

    def extend(self, conditions: Sequence[Condition], data: Any) -> Sequence[Condition]:
        """Return a run's conditions, in their order, with those that they bring along. data: its `Dataset`."""
        return conditions

    def view(self, text: str) -> View | None:
        """Return how the sample browser shows a condition; None where it has no records of predictions, as a mean over
        conditions."""
        return View(text) if self.in_results or in_means(text) else None

    def chief(self, values: Mapping[tuple[str, str], float], metric: str) -> Iterator[tuple[str, str, str]]:
        """Yield the few of its figures that sum up a checkpoint: condition, metric, and in words why this one.

        values: by condition and metric. metric: the task's headline.
        """
        if self.in_results:
            yield from ((text, name, "") for text, name in values if name == metric)


def parsed(text: str, parameters: Mapping[str, Value]) -> Condition:
    """Return the condition that a text means, with all parameters. Raises ProtocolError, as `Vocabulary.parse`."""
    kind, values = parse_parameters(text, parameters)
    inside = ",".join(f"{key}={format_value(value)}" for key, value in values.items())
    return Condition(kind, f"{kind}({inside})" if inside else kind, tuple(values.items()))


FOLDERS = {
    "clean": "clean",
    "corruption": "corruptions",
    **dict.fromkeys(
        ("in-c", "in-c-extra", "segformer-16", "fan-19", "in-c-bar", "cifar-c-bar", "laion-c"), "corruptions"
    ),
    **dict.fromkeys(("noise", "blur", "weather", "digital"), "corruptions"),
    **dict.fromkeys(("in-c-quick", "in-c-bar-quick", "cifar-c-bar-quick", "laion-c-quick"), "corruptions"),
    "cam": "maps",
    "stability": "maps",
}
"""The folder of each kind's family, or MODULE:NAME of a family in one file; means in results included, slices not."""
PUBLISHED_SETS = {
    "in-c": ("IN-C", "ImageNet-C"),
    "in-c-bar": ("IN-C-bar", "ImageNet-C-bar"),
    "cifar-c-bar": ("CIFAR-C-bar", "CIFAR-10-C-bar"),
    "laion-c": ("LAION-C", "LAION-C"),
    "segformer-16": ("SegFormer-16", "SegFormer's corruptions"),
}
"""What papers call sets of corruptions in the heading of a table and in a sentence, by kind."""
OWN_KINDS = (*FOLDERS, *built_in("families"), "")
"""The kinds of robustkit's families, those of slices among them; the last stands for all attacks."""
ATTACK_NAMES = tuple(name for name in dict.fromkeys((*ATTACKS, *DENSE_ATTACKS)) if name not in WITHOUT_RADIUS)
"""Each is a kind of condition of the folder `attacks`."""
_ATTACKS = "attacks"


def _with_words(value: Any) -> Any:
    if isinstance(value, type) or not isinstance(getattr(value, "words", None), Vocabulary):
        raise TypeError(f"it provides {value!r}; expected an instance of robustkit.evaluations.family.Family")
    if value.name in {(family_object(kind) or vocabulary_of(kind)).name for kind in OWN_KINDS}:
        raise TypeError(f"its family is called {value.name!r}, as one of robustkit's own; rename it")
    return value


EVERY_FAMILY: Registry[Any] = Registry(
    "families", {**FOLDERS, **built_in("families")}, _with_words, ATTACK_NAMES, same_name=False
)
"""By kind, without attacks: where robustkit's family is (`FOLDERS`), or the family of a slice or plug-in."""


ALSO = {"aa": "autoattack", "imagenetc": "in-c"}
"""What else people call some kinds, in the form of `common.names.plain`."""


def kind_named(name: str) -> str:
    """Return the kind of condition that a name spells, such as `autoattack` for `Auto-Attack` or `AA`; otherwise the
    name in lower case."""
    brought = (plugin.name for plugin in declared("attacks"))
    return canonical(name.lower(), dict.fromkeys((*ATTACK_NAMES, *EVERY_FAMILY, *brought)), ALSO)


def is_attack(kind: str) -> bool:
    """Whether a kind of condition is the name of an attack: one that no other family has."""
    return kind not in EVERY_FAMILY


def family_object(kind: str) -> Any:
    """Return the family of a kind that is one object, of a file here, a slice or a plug-in; None for a folder."""
    place = FOLDERS.get(kind)
    if place is None:
        return EVERY_FAMILY[kind] if kind in EVERY_FAMILY else None  # noqa: SIM401, for a KeyError while it is loaded
    return resolve_name(f"{__package__}.{place}") if ":" in place else None


def _package_of(kind: str) -> Any:
    return import_module(f"{__package__}.{FOLDERS.get(kind, _ATTACKS)}")


def kind_of(text: str) -> str:
    """Return the first word of a condition's text; for a map of a segmenter's class, `cam(agcam,of=road)`, `cam-of`."""
    kind = text.partition("(")[0]
    return f"{kind}-of" if kind in ("cam", "stability") and ",of=" in text.partition(",under=")[0] else kind


def spelled_kind(name: str, inside: str | None) -> str:
    """Return the kind of a condition as a user spells it. inside: what its brackets hold."""
    return kind_of(f"{kind_named(name)}({inside}".replace(" ", ""))


def vocabulary_of(kind: str) -> Vocabulary:
    """Return the vocabulary of a kind of condition, such as `cam`."""
    family = family_object(kind)
    words: Vocabulary = _package_of(kind).VOCABULARY if family is None else family.words
    return words


def vocabularies() -> list[Vocabulary]:
    """Return the vocabulary of robustkit's families and of those of plug-ins that were loaded, once each."""
    return list(dict.fromkeys((*map(vocabulary_of, OWN_KINDS), *(family.words for family in EVERY_FAMILY.loaded))))


def extended(conditions: Sequence[Condition], data: Any) -> tuple[Condition, ...]:
    """Return a run's conditions with those that families bring along. data: its `Dataset`."""
    for words in vocabularies():
        conditions = words.extend(conditions, data)
    return tuple(conditions)


def words_of(text: str) -> Vocabulary:
    return vocabulary_of(kind_of(text))


def name_of(text: str, place: Place, manifest: Named) -> str:
    """Return what people call a condition of a run in a place, in a sentence as `under fog`."""
    words = words_of(text)
    return (words.claims.under if place == "sentence" else "{}").format(words.label(text, place, manifest))


def in_means(text: str) -> bool:
    """Whether a condition is part of means over conditions: clean, or a corruption."""
    return FOLDERS.get(kind_of(text)) in ("clean", "corruptions")


def estimated(text: str, metric: str = ESTIMATED) -> str:
    """Return the text of the attack whose headline figure a figure under a condition estimates, such as that of
    two-phase(autoattack(…),…); empty where it estimates none. metric: of the figure; by default any."""
    ours = any(each.name.startswith(ESTIMATED) for each in words_of(text).metrics)
    return pattern_of(text).given.get("under", "") if ours and metric.startswith(ESTIMATED) else ""


def takes_images(text: str) -> bool:
    """Whether a condition takes the images of another, which its text begins with, such as attention(clean)."""
    parameters = pattern_of(text).parameters
    return bool(parameters) and parameters[0][0] == "under"


def shows(text: str) -> bool:
    """Whether a condition shows images, on which others can be evaluated; one that only measures does not."""
    words = words_of(text)
    return (words.in_results or in_means(text)) and words.view(text) is not None


SINGLES = 8  # single corruptions up to which each is looked at by itself


def results_and_singles(conditions: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return which of these stand in the task's table of results, and the single corruptions; none of more than
    SINGLES."""
    results, singles = list[str](), list[str]()
    for text in conditions:
        (results if words_of(text).in_results else singles if in_means(text) else list[str]()).append(text)
    return results, singles if len(singles) <= SINGLES else []


def metric_in(words: Vocabulary, name: str) -> Metric | None:
    """Return the metric of this name that a family has; None where it has none."""
    if score := scored_by(name):
        metric = metric_named(words.metrics, score)
        return None if metric is None else lead_over_control(metric)
    return metric_named(words.metrics, name)


def shares_of(text: str) -> dict[str, float]:
    """Return the conditions whose records a result is a mean over, and the share of each."""
    kind = kind_of(text)
    averaged = FOLDERS.get(kind) in ("corruptions", "maps")  # their results may be over the records of other conditions
    shares: dict[str, float] = _package_of(kind).shares_of(text) if averaged else {text: 1.0}
    return shares


def group_of(text: str) -> str:
    """Return the text of the group that is counted and shown together, such as all severities of a corruption."""
    levels = words_of(text).levels
    return re.sub(levels, "", text) if levels else text


def is_over_groups(text: str) -> bool:
    """Whether a result is a mean over several groups of conditions, such as corruptions."""
    return len(set(map(group_of, shares_of(text)))) > 1


def by_words(texts: Iterable[str]) -> list[tuple[Vocabulary, list[str]]]:
    """Return conditions by family, in the order of families; only families that have any."""
    groups: dict[Vocabulary, list[str]] = {words: [] for words in vocabularies()}
    for text in texts:
        groups.setdefault(words_of(text), []).append(text)
    return [(words, some) for words, some in groups.items() if some]


CORRUPTION = "corruption"


def pattern_of(text: str) -> ConditionPattern:
    """Return the parts of a condition's text, whether it makes sense or not."""
    form = re.fullmatch(r"\s*([A-Za-z][\w-]*)\s*(?:\((.*)\))?\s*", text, re.DOTALL)
    if not form:
        return ConditionPattern(text, text)
    items = split_list(form[2] or "")
    split = [item.partition("=") for item in items]
    pairs = tuple((key.strip(), value.strip()) for key, equals, value in split if equals)
    what = ",".join(key for key, equals, _ in split if not equals)
    name = spelled_kind(form[1], form[2])
    if not what and is_attack(name) and name not in ATTACK_NAMES:  # as --corruptions spells one: fog(severity=3)
        corruption = canonical(name, _names_in(CORRUPTION))
        name, what = (CORRUPTION, corruption) if corruption in _names_in(CORRUPTION) else (name, what)
    what = canonical(what, _names_in(name))
    pairs = tuple((key, norm_name(value) if key == "norm" else value) for key, value in pairs)
    special = vocabulary_of(name).read(text.strip(), pattern_of)
    if special is not None:
        return special
    plain = f"{name}({','.join(['='.join(pair) for pair in ((what,), *pairs) if any(pair)])})"
    return ConditionPattern(plain if what or items else name, name, what, pairs)


def _names_in(kind: str) -> Collection[str]:
    """Return the names allowed as the first argument of a kind of condition, such as `fog` in `corruption(fog)`."""
    registry = {"corruptions": "corruptions:EVERY_CORRUPTION", "maps": "maps:EVERY_EXPLAINER"}
    folder = FOLDERS.get(kind, "")
    names: Collection[str] = resolve_name(f"{__package__}.{registry[folder]}") if folder in registry else ()
    return names


def with_usual(pattern: ConditionPattern) -> dict[str, str]:
    """Return the parameters of a pattern, those that it leaves out with their usual values."""
    usual = vocabulary_of(pattern.name).parameters
    return {**{key: format_value(value) for key, value in usual.items()}, **pattern.given}


def stops_early(text: str, manifest: Named) -> bool:
    """Whether samples leave at their first wrong prediction, so that their losses mean nothing."""
    claim = manifest.claims.get(text)
    if claim is not None:
        return bool(claim.early_stop)
    return bool(words_of(text).parameters.get("early_stop")) and "early_stop=false" not in text


def matches(pattern: ConditionPattern, condition: str) -> bool:
    """Whether the pattern means a run's condition."""
    other = pattern_of(condition)
    if (pattern.name, pattern.what) != (other.name, other.what):
        return False
    vocabulary, ours = vocabulary_of(pattern.name), pattern.given
    theirs = with_usual(other)
    if any(key in theirs and key not in ours for key in vocabulary.telling):
        return False  # without a severity, it means the mean over all
    return all(key in theirs and _equal(key, value, theirs[key]) for key, value in pattern.parameters)


def is_exactly(pattern: ConditionPattern, condition: str) -> bool:
    """Whether a run's condition is this one, with nothing more."""
    return matches(pattern, condition) and matches(pattern_of(condition), pattern.text)


def check_condition(text: str) -> ConditionPattern:
    """Check a condition of a rule and return it. Raises ProtocolError where it, a parameter or value is unknown."""
    pattern = pattern_of(text)
    vocabulary_of(pattern.name).check(pattern, text, check_condition)
    return pattern


def _equal(key: str, expected: str, actual: str) -> bool:
    if key == "under":
        return matches(pattern_of(expected), actual)
    if expected == actual:
        return True
    try:
        return math.isclose(float(parse_number(expected)), float(parse_number(actual)), rel_tol=1e-9)
    except (ProtocolError, OverflowError):
        return False
