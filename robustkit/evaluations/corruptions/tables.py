"""Show the corruptions of a run as tables: error by corruption and severity, and the means of named sets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...display.table import CardPart, TextTable
from ..cells import percent_cell
from ..metric import Metric, named
from ..short_row import ShortRow
from .condition import Corrupted, parse_corrupted
from .measures import METRICS
from .sets import category_of, corruption_names, definition_of, set_of, span
from .vocabulary import VOCABULARY

ERROR_HEADINGS = ("corruption", "1", "2", "3", "4", "5", "mean", "CE %", "NLL", "ECE %")
MEAN_HEADINGS = ("mean over", "n", "error % [95 %]", "mCE % [95 %]", "relative mCE %", "NLL", "ECE %")
_OF_ALEXNET = {"CE %", "mCE % [95 %]", "relative mCE %"}

Figures = Mapping[tuple[str, str], Mapping[str, Any]]


@dataclass(frozen=True)
class CorruptionTable:
    """One checkpoint under the corruptions of one definition (preset, variant, source).

    errors: rows under `error_headings`, each with its category and its errors as fractions (None: not evaluated).
    means: rows under `mean_headings`. Without AlexNet as a yardstick, its columns are left out.
    """

    checkpoint: str
    definition: str
    error_headings: tuple[str, ...]
    mean_headings: tuple[str, ...]
    errors: tuple[tuple[str, tuple[str, ...], tuple[float | None, ...]], ...]
    means: tuple[tuple[str, ...], ...]

    @property
    def title(self) -> str:
        return f"{self.checkpoint}: error in % by corruption and severity, {self.source}"

    @property
    def source(self) -> str:
        """Where the corrupted images come from and which constants made them, in words."""
        where = "corrupted in memory after resize and crop"
        if "source=released" in self.definition:
            where = "released files"
        words = {"preset=cifar": "CIFAR-10-C's constants", "variant=bethgelab": "the code of imagecorruptions"}
        return ", ".join([where, *(said for key, said in words.items() if key in self.definition)])


def corruption_tables(results: Sequence[Mapping[str, Any]]) -> list[CorruptionTable]:
    """Return the tables of all checkpoints, from the rows of the summary."""
    figures: dict[str, dict[tuple[str, str], Mapping[str, Any]]] = {}
    for row in results:
        figures.setdefault(row["checkpoint"], {})[row["condition"], row["metric"]] = row
    tables = []
    for checkpoint, rows_of in figures.items():
        parts = [part for condition, _ in rows_of if (part := parse_corrupted(condition)) is not None]
        for definition in dict.fromkeys(part.definition for part in parts):
            examples = {part.label: part.mean for part in parts if part.definition == definition}
            found = sorted(examples.values(), key=lambda part: corruption_names().index(part.name))
            by_name = [_errors(part, rows_of) for part in found]
            error_headings, cells = _used(ERROR_HEADINGS, [row for row, _ in by_name])
            mean_headings, means = _used(MEAN_HEADINGS, list(_means(definition, rows_of)))
            values = (errors for _, errors in by_name)
            errors = tuple(zip((category_of(part.name) for part in found), cells, values, strict=True))
            tables.append(CorruptionTable(checkpoint, definition, error_headings, mean_headings, errors, means))
    return tables


def _used(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> tuple[tuple[str, ...], tuple[Any, ...]]:
    """Return the table without AlexNet's columns if all their cells are dashes."""
    kept = [
        place
        for place, heading in enumerate(headings)
        if heading not in _OF_ALEXNET or any(row[place] != "–" for row in rows)
    ]
    return tuple(headings[place] for place in kept), tuple(tuple(row[place] for place in kept) for row in rows)


def _errors(part: Corrupted, results_of: Figures) -> tuple[tuple[str, ...], tuple[float | None, ...]]:
    mean, texts = part.text, [replace(part, severity=severity).text for severity in (1, 2, 3, 4, 5)]
    values = [1 - results_of[text, "top1"]["value"] if (text, "top1") in results_of else None for text in texts]
    some = [severity for severity, value in enumerate(values, start=1) if value is not None]
    whole, only = (mean, "mean_error") in results_of, f" ({span(some)})" if some else ""
    means = {metric: _value(results_of, mean, metric) for metric in ("mean_error", "nll", "ece")}
    if not whole:  # over the severities that were evaluated, which the cells name
        by_metric = {
            metric: [_value(results_of, texts[severity - 1], metric) for severity in some] for metric in ("nll", "ece")
        }
        by_metric["mean_error"] = [values[severity - 1] for severity in some]
        means = {metric: _mean(figures) for metric, figures in by_metric.items()}
    values.append(means["mean_error"])
    nll = "–" if means["nll"] is None else f"{means['nll']:.3f}"
    ends = [
        percent_cell(means["mean_error"]),
        percent_cell(_value(results_of, mean, "ce")),
        nll,
        percent_cell(means["ece"]),
    ]
    cells = [cell if whole or cell == "–" else cell + only for cell in ends]
    return (part.label, *(percent_cell(value) for value in values[:5]), *cells), tuple(values)


def _mean(figures: Sequence[float | None]) -> float | None:
    present = [figure for figure in figures if figure is not None]
    return sum(present) / len(present) if present and len(present) == len(figures) else None


def _means(definition: str, figures: Figures) -> Iterator[tuple[str, ...]]:
    for text in [condition for condition, metric in figures if metric == "mean_error"]:
        name, some, of = set_of(text) or ("", (), "")
        if not name or definition_of(of) != definition:
            continue
        error, mce = figures[text, "mean_error"], figures.get((text, "mce"))
        nll, relative = _value(figures, text, "nll"), _value(figures, text, "relative_mce")
        yield (
            name + (f", severity {span(some)} only" if some else "") + _of_frost(of),
            str(error["n"]),
            _with_interval(error),
            _with_interval(mce) if mce else "–",
            percent_cell(relative),
            "–" if nll is None else f"{nll:.3f}",
            percent_cell(_value(figures, text, "ece")),
        )


def _of_frost(rest: str) -> str:
    return " (frost: texture=own)" if "texture=own" in rest else ""


def _value(figures: Figures, condition: str, metric: str) -> float | None:
    row = figures.get((condition, metric))
    return None if row is None or row["value"] is None else float(row["value"])


def _with_interval(row: Mapping[str, Any]) -> str:
    return f"{100 * row['value']:.1f} [{100 * row['ci_low']:.1f}, {100 * row['ci_high']:.1f}]"


def card_parts(results: Sequence[Mapping[str, Any]]) -> Iterator[CardPart]:
    """Yield the tables for a model card."""
    for part in corruption_tables(results):
        by_error = ("By severity", part.error_headings, [cells for _, cells, _ in part.errors])
        means = [("Means over sets", part.mean_headings, part.means)] if part.means else []
        yield CardPart("Corruptions", f"Error in %, {part.source}.", [*means, by_error])


def short(texts: Sequence[str], headline: Metric) -> Iterator[ShortRow]:
    """Yield what the short table of a run may show: of a metric of single samples the mean errors, else the means."""
    means = [named(METRICS, name) for name in ("mean_error", "mce")] if headline.binary else []
    for metric in (*filter(None, means), headline):
        for text in VOCABULARY.in_short(texts):
            yield ShortRow(f"under corruption: {metric.heading}", VOCABULARY.label(text), text, metric)


def terminal_corruptions(tables: Sequence[CorruptionTable]) -> Iterator[TextTable]:
    """Yield the tables for a terminal: by corruption and severity, and the means over sets."""
    for table in tables:
        kinds = [f"{kind}:" for kind, _, _ in table.errors]
        rows = tuple((kind, *cells) for kind, cells, _ in table.errors)
        shown = TextTable(table.title, ("", *table.error_headings), rows, spare=("ECE %", "NLL", "CE %"))
        yield shown.under_heads(kinds)
        if table.means:
            title = f"{table.checkpoint}: means over sets of corruptions"
            spare = ("ECE %", "NLL", "n", "relative mCE %")
            yield TextTable(title, table.mean_headings, table.means, spare=spare).said_once("n")
