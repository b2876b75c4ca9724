"""Transfer in results: how right a checkpoint is on what was found for another, as matrices."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache, partial
from typing import TYPE_CHECKING

from ...common.differences import sign_test
from ...common.figure import Figure
from ...common.finding import Finding
from ...common.intervals import share_of
from ...display.format import figure_cell, p_equals, percent
from ...display.table import Section, Table, with_flags
from ...display.text import capital
from ...errors import RunError
from ...evaluations.aggregate import RecordReader, Results, readable_rows
from ...evaluations.attacks import TOP1, starts_from
from ...evaluations.attacks.ranking import Outcomes, aligned_outcomes, evaluated
from ...evaluations.condition import BriefRow, name_of
from ...evaluations.family import Aggregator, Overview, Presenter, Summary
from ...evaluations.metrics import Metric
from ...evaluations.presenting import finding_lines, findings_of, of_family, short_names
from ...evaluations.records import common_places
from ...runs.kept_images import DIGEST
from ...runs.untrusted import PROVENANCE
from . import ACCURACY, SAME_VERDICT, VOCABULARY, Passed, passed_of

if TYPE_CHECKING:
    import pyarrow as pa

    from ...evaluations.family import Looks
    from ...runs.manifest import Manifest

CHANCE = 0.01  # probability below which more that fall only to another's images are no chance: McNemar's exact test


class Masked(Overview):
    """Attacks with a checkpoint's own gradients that do less than what was found with another's."""

    def __init__(self, reading: RecordReader) -> None:
        self.reading, self.right = reading, cache(partial(right_under, reading))

    def findings(self) -> dict[str, list[Finding]]:
        raised: dict[str, list[Finding]] = {}
        for text in self.reading.manifest.conditions:
            passed = passed_of(text)
            if (
                passed is not None
                and passed.source != self.reading.checkpoint
                and (masked := self._masked(text, passed))
            ):
                raised.setdefault(passed.attack, []).append(masked)
        return raised

    def _masked(self, text: str, passed: Passed) -> Finding | None:
        ours, theirs, start = map(self.right, (passed.attack, text, starts_from(passed.attack)))
        if ours is None or theirs is None:
            return None
        mine, other, *before = aligned_outcomes([ours, theirs, *([start] if start is not None else [])])
        if not len(mine):
            return None
        shares = percent(float(mine.mean())), percent(float(other.mean()))
        counted = before[0] if before else mine | other
        more, fewer = int((mine & ~other & counted).sum()), int((other & ~mine & counted).sum())
        if (p := sign_test(more, fewer)) >= CHANCE:
            return None
        values = {"own": shares[0], "theirs": shares[1], "source": passed.source, "n": int(counted.sum())}
        return Finding.of("masking/transfer", more=more, fewer=fewer, p=p_equals(p), **values)


class TransferSummary(Summary):
    """The rows of each condition; of a checkpoint's own images also what rounding them to half precision changes."""

    def __init__(self, reading: RecordReader) -> None:
        self.reading = reading

    def add(self, condition: str) -> list[Figure]:
        passed = passed_of(condition)
        assert passed is not None
        shards = list(self.reading.shards(condition, ("sample_id", "error", "correct", "linf", "l2", "nll")))
        table, notes = self.reading.joined(shards)
        read = readable_rows(table)
        if not len(read):
            return []
        flags = [*self.reading.findings(condition, table, passed.attack), *notes, *self._strangers(passed, shards)]
        here = Outcomes.of(read)
        groups = self.reading.groups(here.ids)
        rows = [share_of(here.right, groups).of(condition, ACCURACY.name, flags)]
        if passed.source == self.reading.checkpoint and (ours := right_under(self.reading, passed.attack)) is not None:
            mine, theirs = common_places([ours.ids, here.ids])
            same, groups = ours.right[mine] == here.right[theirs], self.reading.groups(here.ids.take(theirs))
            rows += [share_of(same, groups).of(condition, SAME_VERDICT.name, flags)] if len(same) else []
        return rows

    def _strangers(self, passed: Passed, shards: Iterable[pa.Table]) -> list[Finding]:
        """Return a flag where images were scored that the records of their source are not about."""
        try:
            theirs = _digests(self.reading.run.shards(passed.source, passed.attack, ["sample_id"]))
        except RunError:
            return []  # none are there
        scored = _digests(shards)
        odd = sum(theirs.get(shard, digest) != digest for shard, digest in scored.items())
        return [Finding.of("attack/other-images", count=odd, n=len(scored), source=passed.source)] if odd else []


def right_under(reading: RecordReader, condition: str) -> Outcomes | None:
    read = evaluated(reading, condition, ["sample_id", "correct"])
    return None if read is None else Outcomes.of(read)


def _digests(shards: Iterable[pa.Table]) -> dict[int, bytes]:
    """Return the digests of the adversarial images of records that state one, by shard."""
    stated = [shard.schema.metadata or {} for shard in shards]
    return {json.loads(each[PROVENANCE])["shard"]: each[DIGEST] for each in stated if DIGEST in each}


_NOTE = (
    "Rows: the checkpoint that the adversarial images were found for; columns: the checkpoint that is scored; "
    "diagonal: its own attack. Images shown to other checkpoints are rounded to 16 bits. Verdicts kept: the share of "
    "samples whose verdict survives this rounding on the checkpoint's own images."
    " 95 % intervals in brackets."
)


class Matrix:
    """What an attack found, by the checkpoint it was found for and the one that is scored, in the order of the run."""

    def __init__(self, attack: str, results: Results) -> None:
        self.attack, self.results = attack, results
        self.accuracy, self.same = dict[tuple[str, str], Figure](), dict[str, Figure]()
        for row in results:
            passed, name = passed_of(row.condition), row.checkpoint
            if passed is None or passed.attack != attack:
                continue
            if row.metric == SAME_VERDICT.name:
                self.same[name] = row
            elif row.metric == ACCURACY.name:
                attacked = results.cells[name].get((attack, TOP1.name)) if passed.source == name else None
                self.accuracy[passed.source, name] = row if attacked is None else attacked
        names = results.manifest.names
        self.sources = [name for name in names if any(source == name for source, _ in self.accuracy)]
        self.scored = [name for name in names if any(scored == name for _, scored in self.accuracy)]

    def table(self) -> Table:
        called, manifest = short_names(self.results.manifest.names), self.results.manifest
        cells = {source: [self.accuracy.get((source, name)) for name in self.scored] for source in self.sources}
        rows = [(called[source], *map(figure_cell, some)) for source, some in cells.items()]
        if self.same:
            rows.append(("verdicts kept", *(figure_cell(self.same.get(name)) for name in self.scored)))
        attack = name_of(self.attack, "table", manifest)
        sizes = [cell.n for cell in self.accuracy.values()]
        counted = " to ".join(dict.fromkeys(map(str, (min(sizes), max(sizes)))))
        title, headings = f"transfer of {attack}: accuracy in %, n = {counted}", [called[name] for name in self.scored]
        return Table(title, ("found for", *headings), tuple(rows), note=_NOTE)

    def grid(self) -> Table:
        table = self.table()
        return replace(table, title=capital(table.title), shaded=table.headings[1:], note="")


def matrices(results: Results) -> list[Matrix]:
    every = (passed_of(text) for text in dict.fromkeys(row.condition for row in results))
    return [Matrix(attack, results) for attack in dict.fromkeys(passed.attack for passed in every if passed)]


class TransferAggregator(Aggregator):
    words = VOCABULARY
    summary = TransferSummary
    overview = Masked


class TransferPresenter(Presenter):
    words = VOCABULARY

    def tables(self, results: Results) -> Sequence[Table]:
        return [matrix.table() for matrix in matrices(results)]

    def brief(self, keys: Sequence[tuple[str, str]], manifest: Manifest, headline: Metric) -> Iterable[BriefRow]:
        for text in dict.fromkeys(text for text, _ in keys):
            yield BriefRow(ACCURACY.heading, name_of(text, "table", manifest), text, ACCURACY)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        if grids := [matrix.grid() for matrix in matrices(results)]:
            masked = (each.line for each in findings_of(results) if each.finding.code == "masking/transfer")
            lines = tuple(dict.fromkeys((*masked, *finding_lines(results, of_family(self.name)))))
            grids[-1] = replace(grids[-1], note=_NOTE)
            yield Section("transfers", "Transfer between checkpoints", lambda: {"grids": with_flags(grids, lines)})
