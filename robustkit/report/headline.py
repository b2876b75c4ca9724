"""Sum up a run in a sentence per checkpoint: its clean result, its weakest one, what cannot be said; and its flags."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..evaluations.cells import Cells, Row, is_finite
from ..evaluations.family import by_family
from ..evaluations.kinds import words_of
from ..evaluations.results import Results
from ..evaluations.sentence import Clause
from ..protocol.condition import CLEAN
from ..tasks.task import Task, task_of

if TYPE_CHECKING:
    from ..runs.folder import RunFolder
    from ..runs.manifest import Manifest

WIDE = 0.2
"""The width of a 95 % interval above which a sentence says that samples are too few."""


@dataclass(frozen=True)
class Headline:
    """What the results say about a checkpoint, in one sentence. flags: each once, with the conditions that have it."""

    checkpoint: str
    sentence: str
    flags: tuple[str, ...]


def verdicts(run: RunFolder, rows: Sequence[Row]) -> list[Headline]:
    """Return the headlines of the run's checkpoints, in its order. rows: of its summary."""
    results = Results.of(run, rows)
    manifest = results.manifest
    task, headlines = task_of(manifest), []
    for checkpoint in manifest.checkpoints:
        every = results.cells[checkpoint.name]
        cells = {key: row for key, row in every.items() if is_finite(row["value"])}
        sentence = "; ".join(_parts(task, cells, manifest))
        start = sentence[:1] if sentence[1:2].isupper() else sentence[:1].upper()  # mIoU
        whole = f"{start}{sentence[1:]}." if sentence else "Nothing was evaluated."
        headlines.append(Headline(checkpoint.name, whole, tuple(_flags(every.values()))))
    return headlines


def _parts(task: Task, cells: Cells, manifest: Manifest) -> Iterator[str]:
    families = by_family(dict.fromkeys(condition for condition, _ in cells))
    clauses = []
    if (clean := cells.get((CLEAN.text, task.headline))) is not None:
        clauses.append(Clause(task.clean_clause(clean), (clean,)))
    for family, _ in families:
        clauses += family.clauses(cells, manifest, task.headline_metric)
    clauses += task.last_clauses(cells)
    yield from (clause.text for clause in clauses)
    if not cells:
        return
    lacking = [family.name for family, conditions in families if family.words.expected and not conditions]
    if lacking:
        yield f"no {' and no '.join(lacking)} were evaluated"
    yield from _widths([row for clause in clauses for row in clause.rows])


def _widths(rows: Sequence[Row]) -> Iterator[str]:
    """Yield what intervals are too wide to say."""
    if any(not (is_finite(row["ci_low"]) and is_finite(row["ci_high"])) for row in rows):
        yield "too few samples for intervals"
    elif any(row["ci_high"] - row["ci_low"] > WIDE for row in rows):
        yield f"intervals are wider than {100 * WIDE:.0f} points: too few samples to tell more"


def _flags(rows: Iterable[Row]) -> Iterator[str]:
    """Yield each doubt once, with its condition, or the number of conditions."""
    seen: dict[str, dict[str, None]] = {}
    for row in rows:
        for flag in row["flags"]:
            if not words_of(row["condition"]).is_remark(flag):
                seen.setdefault(flag, {})[row["condition"]] = None
    for flag, conditions in seen.items():
        where = next(iter(conditions)) if len(conditions) == 1 else f"{len(conditions)} conditions"
        yield f"{flag} ({where})"
