"""How often checkpoints predict what the one that they were made from predicts: exported, quantised or pruned ones.

Under an attack each checkpoint sees its own adversarial images; under transfer all see those found for the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ...common.differences import Difference, holm, of_means
from ...common.figure import Figure
from ...common.finding import Finding
from ...common.intervals import share_of
from ...display.format import counted, figure_cell, p_equals, percent, scaled
from ...display.table import Table
from ...evaluations.aggregate import RecordReader, Results, column_of, readable_rows
from ...evaluations.condition import in_means, name_of, shows, takes_images, words_of
from ...evaluations.metrics import Metric
from ...evaluations.presenting import short_names
from ...evaluations.records import common_places
from ...protocol.condition import CLEAN

AGREEMENT = Metric("parity", scale=100, better=1, binary=True, drafted=True, noun="agreement")
_COLUMNS = ("sample_id", "error", "prediction", "correct")
DIFFERS = "parity/differs"
_LEVEL = 0.05
_SINGLES = 8  # single corruptions in a table: those with the lowest agreement


def agreement_results(reading: RecordReader, conditions: Sequence[str]) -> list[Figure]:
    """Return how often a checkpoint predicts what the one does that a run names for parity; nothing for that one.

    A condition under which their accuracy differs significantly is flagged: by McNemar's exact test, or of groups,
    corrected by Holm for all conditions.
    """
    first = reading.manifest.parity
    if not isinstance(first, str) or first == reading.checkpoint:
        return []
    theirs = RecordReader(reading.run, reading.manifest, first, {})
    texts = {text for name, text in reading.run.units() if name == first}
    agreements = [
        (text, *compared)
        for text in conditions
        if text in texts and _has_predictions(text) and (compared := _compare(theirs, reading, text))
    ]
    corrected = holm([difference.p_value for *_, difference in agreements])
    return [
        agreed.of(text, AGREEMENT.name, _flags(first, difference, p, len(agreements)))
        for (text, agreed, difference), p in zip(agreements, corrected, strict=True)
    ]


def _has_predictions(condition: str) -> bool:
    """Whether the predictions under a condition are its own; watched attention has those of what it watches."""
    words = words_of(condition)
    return shows(condition) or (takes_images(condition) and words.metrics[0].binary)  # its first number is an accuracy


def _compare(first: RecordReader, second: RecordReader, condition: str) -> tuple[Figure, Difference] | None:
    """Return the agreement of two checkpoints on the samples that both have, and how the second's accuracy differs."""
    tables = [readable_rows(each.joined(each.shards(condition, _COLUMNS))[0]) for each in (first, second)]
    if not all("prediction" in table.column_names for table in tables):
        return None
    places = common_places([table["sample_id"] for table in tables])
    before, after = (column_of(table, "prediction")[place] for table, place in zip(tables, places, strict=True))
    if not len(before):
        return None
    right = [column_of(table, "correct")[place] for table, place in zip(tables, places, strict=True)]
    groups = first.groups(tables[0]["sample_id"].take(places[0]))
    return share_of((before == after) & (before >= 0), groups), of_means(right[0], right[1], True, groups)


def _flags(first: str, difference: Difference, p: float, conditions: int) -> list[Finding]:
    if not p < _LEVEL:
        return []
    counted = f"{conditions} condition{'s' * (conditions > 1)}"
    values = {"second": 100 * difference.second, "before": 100 * difference.first}
    return [Finding.of(DIFFERS, first=first, p=p_equals(p), conditions=counted, **values)]


def _differs(row: Figure) -> bool:
    return any(finding.code == DIFFERS for finding in row.findings)


def parity_tables(results: Results) -> list[Table]:
    """Return a table for each checkpoint that others were compared with the first: a row a condition."""
    manifest = results.manifest
    if not isinstance(first := manifest.parity, str):
        return []
    tables, called = [], short_names(manifest.names)
    for name in manifest.names:
        agreed = _agreed(results, name)
        texts, note = _listed_conditions(agreed)
        rows = tuple(
            (
                name_of(text, "table", manifest),
                counted(agreed[text]),
                figure_cell(agreed[text]),
                *(_accuracy(results, each, text) for each in (first, name)),
                "⚑" if _differs(agreed[text]) else "",
            )
            for text in texts
        )
        headings = ("condition", "n", "agreement % [95 %]", f"{called[first]} %", f"{called[name]} %", "differs")
        title = f"{called[name]} and {called[first]}: how often both predict the same class"
        tables += [Table(title, headings, rows, (), note, name).said_once("n")] if rows else []
    return tables


def _agreed(results: Results, name: str) -> dict[str, Figure]:
    return {text: row for (text, metric), row in results.cells[name].items() if metric == AGREEMENT.name}


def _listed_conditions(agreed: dict[str, Figure]) -> tuple[list[str], str]:
    """Return the conditions of a table, of many single corruptions those with the lowest agreement; and its note."""
    note = (
        "Under an attack each checkpoint has its own adversarial images, under transfer both have those found for one. "
        "Agreement with 95 % intervals; accuracies in %; ⚑: they differ significantly (paired test, corrected by "
        "Holm for all conditions)."
    )
    singles = [text for text in agreed if in_means(text) and not words_of(text).in_results]
    lowest = sorted(singles, key=lambda text: agreed[text].value)[:_SINGLES]
    if len(lowest) < len(singles):
        mean = sum(agreed[text].value for text in singles) / len(singles)
        note += f" The {_SINGLES} corruptions of {len(singles)} with the lowest agreement; the mean of all is "
        note += f"{percent(mean)}."
    return [text for text in agreed if text not in singles or text in lowest], note


def _accuracy(results: Results, name: str, condition: str) -> str:
    metrics = ("top1", *(metric.name for metric in words_of(condition).metrics))
    figures = (results.cells[name].get((condition, metric)) for metric in metrics)
    return scaled(figure.value if (figure := next(filter(None, figures), None)) else None)


def parity_sentences(results: Results) -> Iterator[tuple[str, str]]:
    """Yield the name of each compared checkpoint, and a sentence on its agreement with the first; the lowest first."""
    manifest = results.manifest
    if not isinstance(first := manifest.parity, str):
        return
    called = short_names(manifest.names)
    every = {name: agreed for name in manifest.names if (agreed := _agreed(results, name))}
    lowest = {name: min(agreed, key=lambda text: agreed[text].value) for name, agreed in every.items()}
    for name, worst in sorted(lowest.items(), key=lambda pair: every[pair[0]][pair[1]].value):
        agreed = every[name]
        start, row = agreed.get(CLEAN.text) or next(iter(agreed.values())), agreed[worst]
        sentence = f"{called[name]} agrees with {called[first]} on {percent(start.value)} of {start.n} "
        sentence += manifest.protocol.samples.many
        if row.value < start.value:
            sentence += f", on {percent(row.value)} at worst ({name_of(worst, 'sentence', manifest)})"
        odd = [text for text, row in agreed.items() if _differs(row)]
        conditions = f"{len(agreed)} condition{'s' * (len(agreed) > 1)}"
        how = f"differs significantly under {len(odd)} of" if odd else "shows no significant difference in"
        yield name, f"{sentence}; accuracy {how} {conditions}."
