"""What a family of evaluations tells of its conditions: texts, names, costs, groups. Loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

from ..protocol.condition import Condition, ConditionPattern, Value, format_value, parse_parameters
from .metrics import Metric, SummaryRow, Term, is_finite

BACKWARD = 1.5
"""Forwards that a backward to the input takes as long as, on a ViT on a CPU; measured seconds soon replace it."""
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
        return Cost(
            self.forwards + other.forwards,
            self.backwards + other.backwards,
            self.extra + other.extra,
            self.at_most or other.at_most,
        )

    def __mul__(self, times: float) -> Cost:
        return Cost(self.forwards * times, self.backwards * times, self.extra * times, self.at_most)

    def __str__(self) -> str:
        """Forwards + backwards."""
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
    def data(self) -> Any: ...
    @property
    def protocol(self) -> Any: ...


class ShortRow(NamedTuple):
    """A row of the short table of a run.

    section: the heading that it stands under. label: what it is. condition, metric: where its numbers are.
    """

    section: str
    label: str
    condition: str
    metric: Metric


@dataclass(frozen=True)
class Clause:
    """A statement about some conditions. rows: the results that it gives with their intervals."""

    text: str
    rows: tuple[SummaryRow, ...] = ()


def percent(value: float) -> str:
    """Return `93.3 %`."""
    return f"{100 * value:.1f} %"


def share(row: SummaryRow) -> str:
    """Return `93.3 % [84.1, 97.4]`."""
    low, high = row["ci_low"], row["ci_high"]
    bounds = f" [{100 * low:.1f}, {100 * high:.1f}]" if is_finite(low) and is_finite(high) else ""
    return percent(row["value"]) + bounds


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


class Vocabulary:
    """The words of one family.

    name: of the family, for people. presenter_in: the module next to this one that shows its results.
    parameters: of its conditions, each with its usual value, which tells the type; where `parse` is not its own.
    defaults: what the text of a condition leaves out. telling: parameters without which another condition is meant.
    in_sentence: how a sentence says that something is so under a condition, `{}` being its name there.
    in_results: whether its conditions stand in the task's table of results. in_means: whether they are part of means
    over conditions. metrics: its own numbers. benchmark: the kind of mean that is preferred to all its others.
    expected: whether a sentence about a run mentions that none of its conditions was evaluated. results_only: kinds of
    its conditions that are means of results. images_of_under: whether a condition takes the images of its `under`, of
    the checkpoint `from` where it names one, from the process that made them. levels: a regular expression of what the
    texts of conditions differ in that are counted and shown as one group. derived_metrics: numbers made of `metrics`,
    which lists leave out. remarks: how flags begin that raise no doubt. published: what published tables call them.
    terms: what the words of its tables mean.
    """

    name: ClassVar[str] = ""
    presenter_in: ClassVar[str] = "results"
    parameters: ClassVar[Mapping[str, Value]] = {}
    defaults: ClassVar[Mapping[str, str]] = {}
    telling: ClassVar[tuple[str, ...]] = ()
    in_sentence: ClassVar[str] = "under {}"
    in_results: ClassVar[bool] = False
    in_means: ClassVar[bool] = False
    metrics: ClassVar[tuple[Metric, ...]] = ()
    benchmark: ClassVar[str] = ""
    expected: ClassVar[bool] = False
    results_only: ClassVar[Container[str]] = ()
    images_of_under: ClassVar[bool] = False
    levels: ClassVar[str] = ""
    derived_metrics: ClassVar[tuple[Metric, ...]] = ()
    remarks: ClassVar[tuple[str, ...]] = ()
    published: ClassVar[PublishedNames] = PublishedNames()
    terms: ClassVar[tuple[Term, ...]] = ()

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
        kind, given = parse_parameters(text, self.parameters)
        inside = ",".join(f"{key}={format_value(value)}" for key, value in given.items())
        return Condition(kind, f"{kind}({inside})" if inside else kind, tuple(given.items()))

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        """Raise ProtocolError where there is no such condition, parameter or value. other: checks another condition."""
        self.parse(pattern.text)

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        """Yield the words of a command that evaluate a condition. other: reads another condition."""
        yield from ("--attacks", "none", "--evaluations", pattern.text)

    def needs(self, text: str, metric: str, conditions: Iterable[str]) -> list[str]:
        """Return the conditions whose records a number needs. conditions: those of the run."""
        return [text]

    def view(self, text: str) -> View | None:
        """Return how the sample browser shows a condition; None where its records hold no predictions."""
        return View(text) if self.in_results or self.in_means else None

    def chief(self, values: Mapping[tuple[str, str], float], metric: str) -> Iterator[tuple[str, str, str]]:
        """Yield the few of its figures that sum up a checkpoint: condition, metric, and in words why this one.

        values: by condition and metric. metric: the task's headline.
        """
        if self.in_results:
            yield from ((text, name, "") for text, name in values if name == metric)
