"""Find the classes that a classifier gets right least often, clean and under attack, and what it takes them for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ...common.intervals import wilson
from ...display.table import TextTable
from ...evaluations.results import Results
from ...evaluations.rows import Gatherer
from ...protocol.condition import CLEAN

if TYPE_CHECKING:
    import pyarrow as pa

    from ...runs.manifest import Manifest

MOST = 8
"""Classes in a table."""
FEWEST = 5
"""Classes with fewer samples are left out."""
_COLUMNS = ("sample_id", "label", "prediction", "correct", "error")
_CHANCE = "An interval is for its class alone: the lowest of many classes are low partly by chance."

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class ClassTally:
    """The predictions of the samples under one condition.

    ids: of the samples. label, prediction, correct: (n,), of each.
    """

    ids: pa.ChunkedArray
    label: Ints
    prediction: Ints
    correct: NDArray[np.bool_]

    @classmethod
    def of(cls, table: pa.Table) -> ClassTally:
        """Return the tally of a condition's records; samples that were not read or have no label are left out."""
        import pyarrow.compute as pc

        read = table.filter(pc.and_(table["error"].is_null(), pc.and_(table["correct"].is_valid(), _known(table))))
        label, prediction = (read[name].to_numpy().astype(np.int64) for name in ("label", "prediction"))
        return cls(read["sample_id"], label, prediction, read["correct"].to_numpy().astype(bool))

    def beside(self, other: ClassTally) -> tuple[ClassTally, ClassTally]:
        """Return this tally and the other on the samples that both have, in one order."""
        if self.ids.equals(other.ids):
            return self, other
        import pyarrow.compute as pc

        places = pc.index_in(self.ids, value_set=other.ids.combine_chunks())
        mine = np.flatnonzero(places.is_valid().to_numpy())
        return self.take(mine), other.take(places.drop_null().to_numpy().astype(np.int64))

    def take(self, rows: Ints) -> ClassTally:
        """Return the samples at these rows."""
        return ClassTally(self.ids.take(rows), self.label[rows], self.prediction[rows], self.correct[rows])

    def counts(self, classes: int) -> tuple[Ints, Ints]:
        """Return the number of samples of each class, and of those predicted right."""
        n = np.bincount(self.label, minlength=classes)
        return n, np.bincount(self.label[self.correct], minlength=len(n))

    def mistaken(self, label: int) -> list[tuple[int, int]]:
        """Return what samples of a class are mistaken for and how often, most often first."""
        taken = self.prediction[(self.label == label) & ~self.correct]
        which, often = np.unique(taken, return_counts=True)
        return sorted(zip(which.tolist(), often.tolist(), strict=True), key=lambda pair: (-pair[1], pair[0]))


def _known(table: pa.Table) -> Any:
    import pyarrow.compute as pc

    return pc.greater_equal(pc.fill_null(table["label"], -1), 0)


class WeakClasses(Gatherer):
    """One table per checkpoint on clean images, and one per attack; none where nothing is wrong."""

    def __init__(self, manifest: Manifest) -> None:
        super().__init__(manifest)
        self.tables: list[TextTable] = []
        self._clean: dict[str, ClassTally] = {}
        self._names = manifest.data.class_names or ()

    def wants(self, checkpoint: str, condition: str) -> bool:
        return condition == CLEAN.text or condition in self.manifest.claims

    def needs(self, column: str) -> bool:
        return column in _COLUMNS

    def take(self, checkpoint: str, condition: str, read: pa.Table) -> None:
        tally, table = ClassTally.of(read), None
        if condition == CLEAN.text:
            self._clean = {checkpoint: tally}  # the others are no longer needed
            table = _lowest(checkpoint, tally, self._names)
        elif checkpoint in self._clean:
            table = _largest_drops(checkpoint, condition, *self._clean[checkpoint].beside(tally), self._names)
        self.tables += [] if table is None else [table]


def weak_spots(results: Results) -> list[TextTable]:
    """Return the tables of a run."""
    return results.gathered(WeakClasses).tables


def _lowest(checkpoint: str, tally: ClassTally, names: Sequence[str]) -> TextTable | None:
    n, right = tally.counts(int(tally.label.max(initial=-1)) + 1)
    judged = np.flatnonzero((n >= FEWEST) & (right < n))
    order = judged[np.argsort(right[judged] / n[judged], kind="stable")][:MOST].tolist()
    rows = tuple(
        (name_of(place, names), str(n[place]), _share(right[place], n[place]), _taken(tally, place, names))
        for place in order
    )
    headings = ("class", "n", "right % [95 %]", "mistaken most for")
    note = _note(n, len(order), len(judged), "lowest", "mistakes")
    title = f"{checkpoint}: classes with the lowest accuracy, clean"
    return TextTable(title, headings, rows, (), note, checkpoint=checkpoint) if rows else None


def _largest_drops(
    checkpoint: str, condition: str, clean: ClassTally, attacked: ClassTally, names: Sequence[str]
) -> TextTable | None:
    classes = int(clean.label.max(initial=-1)) + 1  # on the same samples as attacked
    n, before = clean.counts(classes)
    _, after = attacked.counts(classes)
    judged = np.flatnonzero((n >= FEWEST) & (after < before))
    drops = (before - after)[judged] / n[judged]
    order = judged[np.lexsort((after[judged] / n[judged], -drops))][:MOST].tolist()
    rows = tuple(
        (
            *(name_of(place, names), str(n[place]), f"{100 * before[place] / n[place]:.1f}"),
            *(_share(after[place], n[place]), f"−{100 * (before[place] - after[place]) / n[place]:.1f}"),
            _taken(attacked, place, names),
        )
        for place in order
    )
    headings = ("class", "n", "clean %", "right % [95 %]", "points", "mistaken most for")
    title = f"{checkpoint}: classes with the largest drop under {condition}"
    note = _note(n, len(order), len(judged), "largest", "a drop")
    return TextTable(title, headings, rows, (), note, checkpoint=checkpoint) if rows else None


def name_of(label: int, names: Sequence[str]) -> str:
    """Return the name of a class, or its number."""
    return str(names[label]) if 0 <= label < len(names) else str(label)


def _share(right: int, n: int) -> str:
    low, high = wilson(int(right), int(n))
    return f"{100 * right / n:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _taken(tally: ClassTally, label: int, names: Sequence[str]) -> str:
    """Return `ring (3 of 4)`: the class predicted most often instead, how often, and all wrong predictions."""
    pairs = tally.mistaken(label)
    often, wrong = pairs[0][1], sum(count for _, count in pairs)
    most = [name_of(which, names) for which, count in pairs if count == often]
    said = ", ".join(most[:2]) + (f" and {len(most) - 2} more" if len(most) > 2 else "")
    return f"{said} ({often} of {wrong}{' each' if len(most) > 1 else ''})"


def _note(n: Ints, shown: int, judged: int, which: str, what: str) -> str:
    rare = int(((n > 0) & (n < FEWEST)).sum())
    parts = [f"The {shown} {which} of {judged} classes with {what}." if shown < judged else "", _CHANCE]
    if rare:
        parts.append(f"{rare} {'class' if rare == 1 else 'classes'} with fewer than {FEWEST} samples left out.")
    return " ".join(filter(None, parts))
