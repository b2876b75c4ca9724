"""The results of a run, computed in one reading of its records, and passed to all that show or judge them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, TypeVar, overload

from .cells import Cells, Row
from .rows import Gatherer

if TYPE_CHECKING:
    from ..runs.folder import RunFolder
    from ..runs.manifest import Manifest


Gathering = TypeVar("Gathering", bound=Gatherer)


def gatherers_of(kinds: Iterable[type[Gatherer]], manifest: Manifest) -> dict[type[Gatherer], Gatherer]:
    """Return a gatherer of each kind, still empty."""
    return {kind: kind(manifest) for kind in kinds}


@dataclass(frozen=True)
class Results(Sequence[Row]):
    """Rows of the summary, in the order of the run's checkpoints and conditions.

    unread: why a sample could not be read, by its id. gatherers: what sections of the page gathered from the records.
    """

    run: RunFolder
    rows: Sequence[Row]
    unread: Mapping[str, str] = field(default_factory=dict)
    gatherers: dict[type[Gatherer], Gatherer] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, run: RunFolder, rows: Sequence[Row]) -> Results:
        """Return the rows of a run's summary as its results; results are returned unchanged."""
        return rows if isinstance(rows, Results) else cls(run, rows)

    @overload
    def __getitem__(self, place: int) -> Row: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Row]: ...

    def __getitem__(self, place: int | slice) -> Row | Sequence[Row]:
        return self.rows[place]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    @cached_property
    def manifest(self) -> Manifest:
        """What run.json holds."""
        return self.run.manifest

    @cached_property
    def cells(self) -> dict[str, Cells]:
        """A row for each condition and metric, by checkpoint, including those without results."""
        by_checkpoint: dict[str, dict[tuple[str, str], Row]] = {
            checkpoint.name: {} for checkpoint in self.manifest.checkpoints
        }
        for row in self.rows:
            by_checkpoint.setdefault(row["checkpoint"], {})[row["condition"], row["metric"]] = row
        return dict(by_checkpoint)

    @property
    def bad_images(self) -> list[dict[str, str]]:
        """Samples that could not be read under some condition: id and reason."""
        return [{"sample_id": name, "error": self.unread[name]} for name in sorted(self.unread)]

    def changed(self, change: Callable[[Row], Row]) -> Results:
        """Return the same with other rows."""
        return Results(self.run, [change(row) for row in self.rows], self.unread, self.gatherers)

    def gathered(self, kind: type[Gathering]) -> Gathering:
        """Return what a section gathered from the records; they are read now if the summary did not gather it."""
        gatherer = self.gatherers.get(kind)
        if gatherer is None:
            gatherer = self.gatherers[kind] = kind(self.manifest)
            gatherer.read(self.run)
        assert isinstance(gatherer, kind)
        return gatherer
