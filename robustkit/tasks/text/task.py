"""Language modelling as a task, and what its numbers are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from ...common.differences import Difference
from ...display.table import Section
from ...evaluations.aggregate import readable_rows
from ...evaluations.metrics import Metric, mean_share
from ...evaluations.records import CheckpointRecords, Compared
from ...protocol.card import Samples
from ..task import Task
from .results import (
    FIGURES,
    SUMS,
    card_parts,
    figures,
    recorded_difference,
    result_grids,
    sums_of,
    terminal_table,
    text_rows,
)

if TYPE_CHECKING:
    from ...display.table import CardPart, TextTable
    from ...evaluations.aggregate import Parts, RecordReader, Results
    from ...evaluations.family import Looks
    from ...evaluations.metrics import SummaryRow
    from ...runs.folder import RunFolder

METRICS = (
    Metric(
        "perplexity",
        "perplexity",
        better=-1,
        drafted=True,
        hub=("perplexity", "perplexity of a token"),
        least=1,
        also=("ppl",),
    ),
    Metric("word_perplexity", "word perplexity", better=-1, hub=("word_perplexity", "perplexity of a word"), least=1),
    Metric("bits_per_byte", "bits a byte", better=-1, hub=("bits_per_byte", "bits a byte"), least=0),
    Metric("nll", "NLL", better=-1, paired=True, least=0),
    mean_share("token_accuracy", "top-1 % of tokens", hub=("accuracy", "top-1 accuracy of tokens")),
)


_COMPARED = ("perplexity", "token_accuracy")


class Text(Task):
    """The next token of a text."""

    name, headline, metrics = "text", "perplexity", METRICS
    compared = Compared(shown=_COMPARED, ended=_COMPARED, groups=(), sets=())
    paired: ClassVar[Mapping[str, str]] = {}
    shows_compared = True
    command, card, hub = "text", "text", "text-generation"
    samples = Samples("document", "documents")
    truth, differs = ("tokens",), "{} has {:.0f} and {:.0f} tokens to predict"

    def rows(self, reading: RecordReader, conditions: Sequence[str]) -> Parts:
        return text_rows(reading, conditions)

    def brief(self, run: RunFolder, checkpoint: str, condition: str) -> float | None:
        read = readable_rows(run.table(checkpoint, condition, [*SUMS, "error"]))
        return float(figures(sums_of(read).sum(axis=0))[0]) if len(read) else None

    def difference(
        self, first: CheckpointRecords, second: CheckpointRecords, condition: str, metric: str
    ) -> Difference:
        if metric in FIGURES:
            return recorded_difference(first, second, condition, metric)
        return super().difference(first, second, condition, metric)

    def clean_clause(self, row: SummaryRow) -> str:
        return f"perplexity {row['value']:.1f} on {row['n']} clean documents"

    def card_parts(self, checkpoint: str, results: Results) -> Iterable[CardPart]:
        return card_parts(checkpoint, results)

    def terminal(self, results: Results) -> Iterable[TextTable]:
        table = terminal_table(results)
        yield from [table] if table.rows else []

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        yield Section("results", "Results", lambda: {"grids": result_grids(results)}, template="texts")


TASK = Text()
