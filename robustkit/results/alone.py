"""Say in three sentences how the one checkpoint of a run did: clean and attacked, corrupted, and what raises doubt."""

from __future__ import annotations

from collections.abc import Iterator

from ..display.svg import plain
from ..evaluations.cells import is_finite
from ..evaluations.family import by_family
from ..evaluations.gaps import gaps_of
from ..evaluations.kinds import words_of
from ..evaluations.results import Results
from ..protocol.condition import CLEAN
from ..tasks.task import task_of

_LONGEST = 48


def alone(results: Results) -> Iterator[str]:
    """Yield the sentences."""
    manifest, task = results.manifest, task_of(results.manifest)
    name = manifest.names[0]
    cells = {key: row for key, row in results.cells[name].items() if is_finite(row["value"])}
    clauses = []
    if (clean := cells.get((CLEAN.text, task.headline))) is not None:
        clauses.append(task.clean_clause(clean))
    for family, conditions in by_family(dict.fromkeys(condition for condition, _ in cells)):
        if conditions:
            clauses += [clause.text for clause in family.clauses(cells, manifest, task.headline_metric)]
    if clauses:
        yield f"{plain(name, _LONGEST)}: {'; '.join(clauses[:2])}."
    if clauses[2:]:
        yield f"{_capital(clauses[2])}."
    if doubt := _doubt(results, name):
        yield doubt


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]


def _doubt(results: Results, name: str) -> str:
    """Return whether any flag raises doubt about the results, and the first; empty where some are still missing."""
    flags: dict[str, str] = {}
    for (condition, _), row in results.cells[name].items():
        for flag in row["flags"]:
            if not words_of(condition).is_remark(flag):
                flags.setdefault(flag, condition)
    if not flags:
        return "" if gaps_of(results.run) else "No flag was raised about these numbers."
    first, condition = next(iter(flags.items()))
    count = "One flag raises" if len(flags) == 1 else f"{len(flags)} flags raise"
    return f"{count} doubt about these numbers{'' if len(flags) == 1 else ', the first'} ({condition}): {first}."
