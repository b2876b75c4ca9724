"""Transfer in results: how right a checkpoint is on what was found for another, as matrices."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ....common.intervals import wilson
from ....display.grid import Grid, with_flags
from ....display.table import Section, TextTable
from ....errors import RunError
from ....runs.binding import PROVENANCE
from ....runs.kept_images import DIGEST
from ...aggregate import Reading, Result, Results, readable
from ...family import Aggregator, Overview, Presenter, Summary
from ...interface import ShortRow, percent
from ...metrics import interval_cell, is_finite
from ...presenting import flags_of, of_family, short_names
from ...records import Right, aligned_outcomes, chance
from ...registry import name_of, words_of
from .condition import ACCURACY, KEPT, VOCABULARY, Passed, passed_of

if TYPE_CHECKING:
    import pyarrow as pa

    from ....runs.manifest import Manifest
    from ...family import Looks
    from ...metrics import Metric
    from ...records import Compared, Recorded

CHANCE = 0.01
"""Probability below which more samples that fall only to another's images are not chance: McNemar's exact test."""
CHECK = "transfer: "


class Masked(Overview):
    """Attacks with a checkpoint's own gradients that do less than what was found with another's."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        every = [passed_of(text) for text in reading.manifest.conditions]
        others = [passed for passed in every if passed is not None and passed.source != reading.checkpoint]
        self.passed = others
        attacks = {passed.attack for passed in others}
        self.wanted = attacks | {words_of(attack).starts_from(attack) for attack in attacks}
        self.rights = dict[str, Right]()

    def take(self, condition: str, read: pa.Table, flags: Sequence[str]) -> None:
        if condition in self.wanted:
            self.rights[condition] = Right.of(read)

    def flags(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for passed in self.passed:
            if flag := self._flag(passed):
                found.setdefault(passed.attack, []).append(flag)
        return found

    def _flag(self, passed: Passed) -> str:
        own = self.rights.get(passed.attack)
        theirs = right_under(self.reading, f"transfer({passed.attack},from={passed.source})")
        if own is None or theirs is None:
            return ""
        start = self.rights.get(words_of(passed.attack).starts_from(passed.attack))
        mine, other, *before = aligned_outcomes([own, theirs, *([start] if start is not None else [])])
        if not len(mine):
            return ""
        shares = percent(float(mine.mean())), percent(float(other.mean()))
        counted = before[0] if before else mine | other
        more, fewer = int((mine & ~other & counted).sum()), int((other & ~mine & counted).sum())
        if (p := chance(more, fewer)) >= CHANCE:
            return ""
        return (
            f"{CHECK}its own attack leaves {shares[0]}, the images found for {passed.source} leave {shares[1]}; of "
            f"{int(counted.sum())} samples right before, {more} fall to those alone and {fewer} to its own alone "
            f"(p = {p:.1g}): gradients of this model may be masked"
        )


COLUMNS = ("sample_id", "error", "correct", "linf", "l2", "nll")


class TransferSummary(Summary):
    """The rows of each condition; of a checkpoint's own images also what rounding them to half precision changes."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading

    def add(self, condition: str) -> list[Result]:
        passed = passed_of(condition)
        assert passed is not None
        shards = list(self.reading.shards(condition, COLUMNS))
        table, notes = self.reading.joined(shards)
        read = readable(table)
        if not len(read):
            return []
        flags = [*self.reading.flags(condition, table, passed.attack), *notes, *self._strangers(passed, shards)]
        here = Right.of(read)
        hits, n = int(here.right.sum()), len(read)
        rows: list[Result] = [Result(condition, ACCURACY.name, hits / n, n, *wilson(hits, n), flags)]
        if passed.source == self.reading.checkpoint and (own := right_under(self.reading, passed.attack)) is not None:
            before, after = aligned_outcomes([own, here])
            alike, n = int((before == after).sum()), len(before)
            rows += [Result(condition, KEPT.name, alike / n, n, *wilson(alike, n), flags)] if n else []
        return rows

    def _strangers(self, passed: Passed, shards: Iterable[pa.Table]) -> list[str]:
        """Return a flag where images were scored that the records of their source are not about."""
        try:
            theirs = _digests(self.reading.run.shards(passed.source, passed.attack, ["sample_id"]))
        except RunError:
            return []  # none are there
        scored = _digests(shards)
        odd = [shard for shard, digest in scored.items() if theirs.get(shard, digest) != digest]
        if not odd:
            return []
        return [
            f"{len(odd)} of {len(scored)} shards were scored on other images than the records of {passed.source} are "
            "about; delete these records and run the same command again"
        ]


def right_under(reading: Reading, condition: str) -> Right | None:
    """Return which samples a checkpoint predicts right under a condition; None where there are no records."""
    try:
        return Right.of(readable(reading.run.table(reading.checkpoint, condition, ["sample_id", "error", "correct"])))
    except RunError:
        return None


def _digests(shards: Iterable[pa.Table]) -> dict[int, bytes]:
    """Return the digests of the adversarial images of records that state one, by shard."""
    stated = [shard.schema.metadata or {} for shard in shards]
    return {json.loads(each[PROVENANCE])["shard"]: each[DIGEST] for each in stated if DIGEST in each}


_OWN = "top1"
_NOTE = (
    "Rows: the checkpoint that the adversarial images were found for; columns: the one that is scored. On the diagonal "
    "its own attack. What others see is rounded to 16 bits. Verdicts kept: the share of samples on which a checkpoint "
    "is as right or wrong on its own images, rounded so, as before. 95 % intervals: Wilson's."
)
_FIRST, _LAST = "found for", "verdicts kept"

Cell = Mapping[str, Any]


@dataclass
class Matrix:
    """What one attack found and for whom. accuracy: by the checkpoint it was found for and the one that is scored.
    kept: by checkpoint.
    """

    attack: str
    accuracy: dict[tuple[str, str], Cell] = field(default_factory=dict)
    kept: dict[str, Cell] = field(default_factory=dict)


def matrices(results: Results) -> list[Matrix]:
    """Return a matrix for each attack whose images were passed on."""
    found: dict[str, Matrix] = {}
    for row in results:
        passed, name = passed_of(row["condition"]), row["checkpoint"]
        if passed is None:
            continue
        matrix = found.setdefault(passed.attack, Matrix(passed.attack))
        if row["metric"] == KEPT.name:
            matrix.kept[name] = row
        elif row["metric"] == ACCURACY.name:
            own = results.cells[name].get((passed.attack, _OWN)) if passed.source == name else None
            matrix.accuracy[passed.source, name] = row if own is None else own
    return list(found.values())


def transfer_tables(results: Results) -> list[TextTable]:
    """Return each matrix as a table."""
    return [_table(matrix, results) for matrix in matrices(results)]


def transfer_grids(results: Results) -> list[Grid]:
    """Return each matrix as a grid, darker where less is right."""
    grids = []
    for matrix in matrices(results):
        table = _table(matrix, results)
        sources, scored = _names(matrix, results)
        shades = {
            (row, column): 1 - float(cell["value"])
            for row, source in enumerate(sources)
            for column, name in enumerate(scored, start=1)
            if (cell := matrix.accuracy.get((source, name))) is not None and is_finite(cell["value"])
        }
        title = table.title[:1].upper() + table.title[1:]
        grids.append(Grid(title, table.headings, table.rows, 1, shades))
    return [*grids[:-1], *(replace(grid, note=_NOTE) for grid in grids[-1:])]


def _table(matrix: Matrix, results: Results) -> TextTable:
    sources, scored = _names(matrix, results)
    called = short_names(results.manifest.names)
    rows = [
        (called[source], *(interval_cell(matrix.accuracy.get((source, name))) for name in scored)) for source in sources
    ]
    if matrix.kept:
        rows.append((_LAST, *(interval_cell(matrix.kept.get(name)) for name in scored)))
    attack = name_of(matrix.attack, "table", results.manifest)
    sizes = sorted({str(cell["n"]) for cell in matrix.accuracy.values()}, key=int)
    title = f"transfer of {attack}: accuracy in %, n = {' to '.join(dict.fromkeys((sizes[0], sizes[-1])))}"
    return TextTable(title, (_FIRST, *(called[name] for name in scored)), tuple(rows), (), _NOTE)


def _names(matrix: Matrix, results: Results) -> tuple[list[str], list[str]]:
    """Return for whom images were found, and who is scored, in the order of the run."""
    names = results.manifest.names
    sources = {source for source, _ in matrix.accuracy}
    scored = {name for _, name in matrix.accuracy}
    return [name for name in names if name in sources], [name for name in names if name in scored]


class TransferAggregator(Aggregator):
    """Records of transfer into results."""

    words = VOCABULARY

    def summary(self, reading: Reading) -> Summary:
        return TransferSummary(reading)

    def overview(self, reading: Reading) -> Overview:
        return Masked(reading)

    def compared(
        self, first: Recorded, second: Recorded, common: Sequence[str], compared: Compared
    ) -> Iterator[tuple[str, str]]:
        yield from ()  # one of two checkpoints may be attacked with its own gradients, the other not

    def comparison_notes(self, shown: Sequence[str], there: Sequence[str]) -> list[str]:
        line = "Transfer is not compared here: its matrix is in each report and summary.json."
        return [line] if there else []


AGGREGATOR = TransferAggregator()


class TransferPresenter(Presenter):
    """Results of transfer for people."""

    words = VOCABULARY

    def front(self, keys: Sequence[tuple[str, str]], headline: Metric) -> Iterable[tuple[str, str]]:
        return ()  # a column for each checkpoint would not say whose images were found with whose gradients

    def tables(self, results: Results) -> Sequence[TextTable]:
        return transfer_tables(results)

    def short(self, texts: Sequence[str], manifest: Manifest, headline: Metric) -> Iterable[ShortRow]:
        for text in texts:
            yield ShortRow(ACCURACY.heading, name_of(text, "badge", manifest), text, ACCURACY)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        if grids := transfer_grids(results):
            masked = tuple(flag.line for flag in flags_of(results) if flag.text.startswith(CHECK))
            own = tuple(flag.line for flag in flags_of(results, of_family(self.name)))
            yield Section(
                "transfers",
                "Transfer between checkpoints",
                lambda: {"grids": with_flags(grids, tuple(dict.fromkeys((*masked, *own))))},
            )


PRESENTER = TransferPresenter()
