"""What a family of evaluations tells of its conditions: texts, names, costs, groups. Loads no torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, TypeAlias

from ..protocol.card import Card
from ..protocol.condition import CLEAN, Condition, ConditionPattern, Value, parse_parameters, show
from .metrics import Metric, SummaryRow, Term, is_finite, named

BACKWARD = 1.5
"""Forwards that a backward to the input takes as long as, on a ViT on a CPU; measured seconds soon replace it."""
_REACHED = 0.3
"""Share of an upper bound that is expected, since samples leave when they fall."""


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


Place: TypeAlias = Literal["table", "sentence", "axis", "badge"]
"""Where the name of a condition stands."""


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


class Vocabulary:
    """The words of one family.

    name: of the family, for people. presenter_in: the module next to this one that shows its results.
    parameters: of its conditions, each with its usual value, which tells the type; where `parse` is not its own.
    defaults: what the text of a condition leaves out. telling: parameters without which another condition is meant.
    in_sentence: how a sentence says that something is so under a condition, `{}` being its name there.
    in_results: whether its conditions stand in the task's table of results. in_means: whether they are part of means
    over conditions. metrics: its own numbers. benchmark: the kind of mean that is preferred to all its others.
    expected: whether a sentence about a run mentions that none of its conditions was evaluated. published_metrics:
    numbers that published tables have and no run computes. terms: what the words of its tables mean.
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
    published_metrics: ClassVar[tuple[str, ...]] = ()
    terms: ClassVar[tuple[Term, ...]] = ()

    # Texts

    def distance_norm(self, text: str) -> str:
        """Return the norm in which records of a condition have the `distance` of the smallest change that misleads;
        empty where they have none.
        """
        return ""

    def shows(self, kind: str) -> bool:
        """Whether conditions of a kind show images, on which others can be evaluated."""
        return self.in_results or self.in_means

    def starts_from(self, text: str) -> str:
        """Return the text of the condition whose images a condition changes."""
        return CLEAN.text

    def computed_with(self, checkpoint: str, text: str) -> tuple[str, str]:
        """Return the checkpoint and the condition whose images a condition takes from the process that made them."""
        return checkpoint, text

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
        inside = ",".join(f"{key}={show(value)}" for key, value in given.items())
        return Condition(kind, f"{kind}({inside})" if inside else kind, tuple(given.items()))

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        """Raise ProtocolError where there is no such condition, parameter or value. other: checks another condition."""
        self.parse(pattern.text)

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        """Yield the words of a command that evaluate a condition. other: reads another condition."""
        yield from ("--attacks", "none", "--evaluations", pattern.text)

    def metric(self, name: str) -> Metric | None:
        """Return its metric of this name; None where it has none."""
        return named(self.metrics, name)

    def is_remark(self, flag: str) -> bool:
        """Whether a flag raises no doubt."""
        return False

    def is_control(self, text: str) -> bool:
        """Whether a condition is a yardstick for others and says nothing of the model."""
        return False

    # Conditions that belong together

    def group(self, text: str) -> str:
        """Return the text of the group that is counted and shown together, such as all severities of a corruption."""
        return text

    def shares(self, text: str) -> dict[str, float]:
        """Return the conditions whose records a result is a mean over, and the share of each."""
        return {text: 1.0}

    def means(self, texts: Sequence[str]) -> Iterator[str]:
        """Yield the texts of the means over conditions that may be made of `texts`."""
        yield from ()

    def needs(self, text: str, metric: str, conditions: Iterable[str]) -> list[str]:
        """Return the conditions whose records a number needs. conditions: those of the run."""
        return [*self.shares(text)]

    def in_short(self, texts: Sequence[str]) -> Sequence[str]:
        """Return those of its conditions that a short table shows."""
        return texts

    def view(self, text: str) -> View | None:
        """Return how the sample browser shows a condition; None where its records hold no predictions."""
        return View(text) if self.in_results or self.in_means else None

    def chief(self, values: Mapping[tuple[str, str], float], metric: str) -> Iterator[tuple[str, str, str]]:
        """Yield the few of its figures that sum up a checkpoint: condition, metric, and in words why this one.

        values: by condition and metric. metric: the task's headline.
        """
        if self.in_results:
            yield from ((text, name, "") for text, name in values if name == metric)

    def estimated(self, text: str, metric: str) -> str:
        """Return the text of the condition whose headline figure this one of its own estimates; empty where none."""
        return ""

    # Figures that others published

    def published_names(self) -> Sequence[str]:
        """Return the names of its conditions in published tables."""
        return ()

    def published_name(self, text: str) -> str:
        """Return the name of a condition in published tables; empty where they do not have it."""
        return text.partition("(")[0]

    def published_as(self, text: str) -> str:
        """Return the name of a condition that is exactly the paper's; empty where only its text identifies it."""
        return ""

    def unlike_published(self, text: str) -> str:
        """Say how a condition differs from the one that `published_as` names; empty where it does not."""
        return ""

    def is_of_card(self, name: str) -> bool:
        """Whether a name in a published table means a condition that a card completes."""
        return False

    def text_under(self, name: str, card: Card) -> str:
        """Return the text of the condition that a name means under a card. Raises ProtocolError where it means none."""
        return name

    def is_fixed(self, name: str) -> bool:
        """Whether a name in a published table means the same condition under every card.

        Raises:
            ProtocolError: it is of this family, but not understood.
        """
        return False
