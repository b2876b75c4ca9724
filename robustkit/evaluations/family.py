"""A family of evaluations: everything about one kind of condition, behind one interface.

A family is loaded when a condition of its kind is met (`condition.EVERY_FAMILY`), and its computing code only when
something is computed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, cached_property
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, ClassVar, TypeAlias, TypeVar

from ..common.figure import Figure
from ..common.finding import Finding
from .condition import (
    EVERY_FAMILY,
    FIRST,
    OWN_KINDS,
    BriefRow,
    Clause,
    Cost,
    Vocabulary,
    family_object,
    kind_of,
    name_of,
    vocabulary_of,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from torch import Tensor

    from ..common.determinism import SampleRng
    from ..common.plugins import Plugin
    from ..display.svg import Style
    from ..display.table import Section, Table
    from ..protocol.card import Card
    from ..protocol.condition import Condition
    from ..runs.manifest import Manifest
    from .aggregate import Gatherer, RecordReader, Results
    from .metrics import Cells, Metric
    from .records import CheckpointRecords, Pairings, PerSample
    from .subject import Batch, EvaluatedModel, Evaluation, Shown

    Looks = Mapping[str, Style]  # the style of each checkpoint in all figures, by its name


class Summary:
    """The results of one checkpoint under the conditions of a family that has records of its own kind."""

    def add(self, condition: str) -> Iterable[Figure]:
        """Return the rows of one condition, in the order of the run."""
        raise NotImplementedError

    def finish(self) -> Iterable[Figure]:
        """Return the rows that combine several conditions."""
        return ()


class Overview:
    """What a family computes from a checkpoint's results on images, whatever condition shows them."""

    def take(self, condition: str, read: pa.Table, findings: Sequence[Finding]) -> None:
        """Take the rows of a condition's samples that could be read; at least one."""

    def findings(self) -> Mapping[str, Sequence[Finding]]:
        """Return findings that depend on other conditions, by condition."""
        return {}

    def rows(self) -> Iterable[Figure]:
        """Return rows of several conditions together."""
        return ()


class FamilyPart:
    """What the parts of a family share. words: what its conditions are called."""

    words: Vocabulary = Vocabulary()

    @property
    def name(self) -> str:
        """The name of the family, for people."""
        return self.words.name


class Evaluator(FamilyPart):
    """Conditions into records. Where they change images it implements `show`; otherwise `evaluate`.

    keeps_places: whether each pixel shows what it did before, so that segmenters can be scored by the same masks.
    """

    keeps_places: ClassVar[bool] = False

    @property
    def columns(self) -> Mapping[str, pa.DataType]:
        """The columns that its records have besides the task's."""
        return {}

    def plugins(self, condition: Condition) -> Iterable[Plugin]:
        """Return the plug-ins that a condition needs, and those of the condition whose images it takes."""
        plugin, under = EVERY_FAMILY.plugin(condition.name), condition.under
        beneath = () if under is None else family_of(under.name).evaluator.plugins(under)
        return (*filter(None, [plugin]), *beneath)

    def cost(self, condition: Condition, card: Card, classes: int) -> Cost:
        """Return what a sample costs under a condition, for an estimate: by default a forward. classes: the model's."""
        return Cost()

    def show(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Shown:
        """Return what the condition makes the network see."""
        raise NotImplementedError(f"{self.name} shows no images of its own")

    def evaluate(self, subject: EvaluatedModel, batch: Batch, condition: Condition, rng: SampleRng) -> Evaluation:
        """Return the columns of a batch: by default, how the model does on what the condition shows."""
        return subject.score_shown(batch, condition, self.show(subject, batch, condition, rng))


class Aggregator(FamilyPart):
    """Records into results, of one checkpoint and of two."""

    def summary(self, reading: RecordReader) -> Summary | None:
        """Return what summarises its records; None where the task does so, because its conditions show images.

        A subclass may name a class that takes the reading.
        """
        return None

    def overview(self, reading: RecordReader) -> Overview | None:
        """Return what it computes from all results of a checkpoint on images; None for nothing.

        A subclass may name a class that takes the reading.
        """
        return None

    def gatherers(self) -> Sequence[type[Gatherer]]:
        """Return what its sections of the page gather from records, besides the results."""
        return ()

    def extras(self, reading: RecordReader, condition: str, read: pa.Table) -> tuple[list[Figure], list[Finding]]:
        """Return what it adds to a condition whose samples the task scores: figures, each with its metric, and
        findings. read: the samples that could be read."""
        return [], []

    def compared(
        self, first: CheckpointRecords, second: CheckpointRecords, common: Sequence[str], compared: Pairings
    ) -> Iterator[tuple[str, str]]:
        """Yield condition and metric of its conditions in `common` to compare, besides what the task compares."""
        yield from ((text, metric.name) for text in common for metric in self.words.metrics if metric.paired)

    def per_sample(self, side: CheckpointRecords, condition: str, metric: str) -> PerSample | None:
        """Return a figure for each sample: by default, the column with the name of one of its own metrics.

        None where the task knows it. Raises RunError where there are no records, or no such metric.
        """
        if metric not in [number.name for number in self.words.metrics if number.paired]:
            return None
        read = side.samples(condition, [metric])
        return read.ids, read.columns[metric]


class Presenter(FamilyPart):
    """Results for people."""

    def clauses(self, cells: Cells, manifest: Manifest, headline: Metric) -> Iterable[Clause]:
        """Return what the sentence about a checkpoint says about its conditions. cells: all finite ones."""
        return ()

    def tables(self, results: Results) -> Iterable[Table]:
        """Return the tables of its rows of the summary, whose flags are shown apart; each says where it is shown."""
        return ()

    def brief(self, keys: Sequence[tuple[str, str]], manifest: Manifest, headline: Metric) -> Iterable[BriefRow]:
        """Return the few rows that sum up a run, those of a place in its order; rows that have no number are left out.

        keys: condition and metric of its results that some checkpoint has. headline: the task's metric.
        """
        paired = [headline, *(metric for metric in self.words.metrics if metric.paired and metric.label)]
        plain = [metric for metric in self.words.metrics if not metric.parametric]
        for text in dict.fromkeys(text for text, _ in keys):
            label = name_of(text, "table", manifest)
            if self.words.in_results:
                yield BriefRow(headline.heading, label, text, headline)
            else:
                yield from (BriefRow(self.name, f"{label}: {metric.label}", text, metric) for metric in plain)
            yield from (BriefRow("", label, text, metric, FIRST) for metric in paired)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        """Return its parts of the page. looks: how each checkpoint is drawn."""
        from ..display.table import of_tables, tables_for

        if tables := tables_for("page", self.tables(results)):
            yield of_tables(self.name, self.name.capitalize(), tuple(tables))


P = TypeVar("P", bound=FamilyPart)


class LazyFamily:
    """A family of robustkit's own, whose parts are loaded when they are asked for.

    Its words are in the package's `__init__.py`. The evaluator is in `evaluate`, the aggregator in `results` and the
    presenter in `tables` or `results`: the class that has these words. A family without one of them keeps
    to the defaults.
    """

    def __init__(self, words: Vocabulary) -> None:
        self.words, self.name = words, words.name

    @cached_property
    def evaluator(self) -> Evaluator:
        """What turns its conditions into records. It loads torch."""
        return self._part(Evaluator, "evaluate")

    @cached_property
    def aggregator(self) -> Aggregator:
        """What turns its records into results."""
        return self._part(Aggregator, "results")

    @cached_property
    def presenter(self) -> Presenter:
        """What shows its results."""
        return self._part(Presenter, "tables", "results")

    def _part(self, kind: type[P], *modules: str) -> P:
        places = (f"{type(self.words).__module__}.{module}" for module in modules)
        members = (each for place in places if find_spec(place) for each in vars(import_module(place)).values())
        parts = (each for each in members if isinstance(each, type) and vars(each).get("words") is self.words)
        part = next((each for each in parts if issubclass(each, kind)), kind)()
        part.words = self.words
        return part


class Family(Evaluator, Aggregator, Presenter):
    """A family whose parts are one object, as a plug-in brings it."""

    @property
    def evaluator(self) -> Family:
        """Itself, as are the other parts."""
        return self

    aggregator = presenter = evaluator


AnyFamily: TypeAlias = LazyFamily | Family


def families() -> list[AnyFamily]:
    """Return each of robustkit's families once."""
    return list(dict.fromkeys(map(family_of, OWN_KINDS)))


def families_of(manifest: Manifest, rows: Iterable[Figure] = ()) -> list[AnyFamily]:
    """Return the families of a run's conditions, those that were left out among them, in the usual order.

    rows: of the summary, whose families count, too.
    """
    texts = (*manifest.conditions, *manifest.corrupted.left_out, *(str(row.condition) for row in rows))
    used = dict.fromkeys(map(family_of, dict.fromkeys(map(kind_of, texts))))
    usual = families()
    return [*(family for family in usual if family in used), *(family for family in used if family not in usual)]


def family_of(kind: str) -> AnyFamily:
    """Return the family of the conditions of a kind, such as `cam`."""
    return family_object(kind) or _lazily(vocabulary_of(kind))


def summary_of(
    condition: str, reading: RecordReader, summaries: dict[AnyFamily, Summary | None]
) -> tuple[AnyFamily, Summary | None]:
    """Return a condition's family, and what summarises its records, one for all of its conditions; None where the task
    does."""
    family = family_of(kind_of(condition))
    if family not in summaries:
        summaries[family] = family.aggregator.summary(reading)
    return family, summaries[family]


def by_family(conditions: Iterable[str]) -> list[tuple[AnyFamily, list[str]]]:
    """Return every family with its conditions, first those that stand in the task's table of results."""
    ordered = sorted(families(), key=lambda family: not family.words.in_results)
    groups: dict[AnyFamily, list[str]] = {family: [] for family in ordered}
    for condition in conditions:
        groups.setdefault(family_of(kind_of(condition)), []).append(condition)
    return list(groups.items())


@cache
def _lazily(words: Vocabulary) -> LazyFamily:
    return LazyFamily(words)


def attacked_inputs(subject: EvaluatedModel, batch: Batch, condition: Condition) -> Tensor:
    """Return the inputs that an attack changes, (B, ...) in the card's space: clean, or as its `under` shows them."""
    return (
        subject.inputs(batch.inputs) if condition.under is None else shown_under(subject, batch, condition.under).inputs
    )


def inputs_under(subject: EvaluatedModel, batch: Batch, under: Condition) -> Tensor:
    """Return what the network sees under a condition, made as it is alone; (B, 3, H, W) in the card's space."""
    return subject.recall(under, batch.samples, lambda: shown_under(subject, batch, under).inputs)


def shown_under(subject: EvaluatedModel, batch: Batch, under: Condition) -> Shown:
    """Return what a condition shows the network, made as it is alone."""
    rng = subject.rng(batch.samples, under)
    alone = replace(batch, tell=None)
    return subject.steadily(under.text, rng, lambda: family_of(under.name).evaluator.show(subject, alone, under, rng))
