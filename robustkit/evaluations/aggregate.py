"""Turn the columns of records into rows of results, in one reading."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, TypeVar, overload

import numpy as np
from numpy.typing import NDArray

from ..common.figure import FEWEST, Figure
from ..common.finding import Finding
from ..common.groups import Groups, suspected_groups
from ..common.intervals import Floats
from ..display.format import amount
from ..protocol.condition import CLEAN, samples_named
from ..runs.folder import RunFolder
from ..runs.manifest import Manifest
from ..runs.metadata import SampleGroups, groups_of_run
from .clean import AT_32, PIXELS
from .metrics import Cells
from .setup_findings import guessing, odd_outputs, setup_findings, ties

if TYPE_CHECKING:
    import pyarrow as pa

EXCEEDS = 1e-6  # by how much a perturbation may exceed its eps: float32 rounding, in the units of records

Parts = tuple[list[Figure], list[Figure], list[Figure]]
"""Figures of single conditions, of means over corruptions, and of maps."""


Rows = NDArray[np.int64]


def readable_rows(table: pa.Table) -> pa.Table:
    return table if table["error"].null_count == len(table) else table.filter(table["error"].is_null())


def column_of(table: pa.Table, name: str) -> Floats:
    values: Floats = table[name].to_numpy(zero_copy_only=False).astype(np.float64)
    return values


class Gatherer:
    """What a section of the page gathers from records that the task scores, while the summary reads them.

    It keeps figures, not records: those of all samples would not fit into memory.
    """

    def __init__(self, run: RunFolder) -> None:
        self.run, self.manifest = run, run.manifest

    @cached_property
    def sample_groups(self) -> SampleGroups | None:
        """The groups of the run's samples; None where each stands for itself."""
        return groups_of_run(self.run)

    def wants(self, checkpoint: str, condition: str) -> bool:
        """Whether it takes the records of a checkpoint under a condition, which come in the order of the run."""
        raise NotImplementedError

    def needs(self, column: str) -> bool:
        raise NotImplementedError

    def take(self, checkpoint: str, condition: str, read: pa.Table) -> None:
        """Take the rows of samples that could be read, with at least the columns that it needs."""
        raise NotImplementedError

    def read(self) -> None:
        """Take everything it wants from the records, where no summary has read them for it."""
        for checkpoint, condition in self.run.units():
            if self.wants(checkpoint, condition):
                self.take(checkpoint, condition, readable_rows(self.run.table(checkpoint, condition, self.needs)))


@dataclass
class RecordReader:
    """The records of one checkpoint, as families and tasks read them.

    unread: why a sample could not be read, by its id; filled while records are read. gatherers: what else takes them.
    """

    run: RunFolder
    manifest: Manifest
    checkpoint: str
    unread: dict[str, str]
    gatherers: Mapping[type[Gatherer], Gatherer] = field(default_factory=dict)

    def shards(self, condition: str, columns: Collection[str] | Callable[[str], bool]) -> Iterator[pa.Table]:
        is_asked = columns if callable(columns) else columns.__contains__
        both = (PIXELS, AT_32) if condition == CLEAN.text else ()
        return self.run.shards(self.checkpoint, condition, lambda name: name in both or is_asked(name))

    def joined(self, shards: Iterable[pa.Table]) -> tuple[pa.Table, list[Finding]]:
        """Return the table of a condition, and how it was not evaluated as asked, each deviation once."""
        import pyarrow as pa

        tables, notes = [], dict[str, None]()
        for shard in shards:
            packed = (shard.schema.metadata or {}).get(b"notes", b"[]")
            notes |= dict.fromkeys(map(str, json.loads(packed)))
            if shard["error"].null_count < len(shard):
                lost = shard.filter(shard["error"].is_valid())
                self.unread |= zip(lost["sample_id"].to_pylist(), lost["error"].to_pylist(), strict=True)
            tables.append(shard.replace_schema_metadata())
        deviations = [Finding.parse(note) or Finding.of("run/note", text=note) for note in notes]
        return pa.concat_tables(tables, promote_options="default"), deviations

    def groups(self, ids: pa.Array | pa.ChunkedArray | Sequence[str]) -> Groups | None:
        """Return the groups that samples are in; None where each stands for itself."""
        return None if self.sample_groups is None else self.sample_groups.of(ids)

    @cached_property
    def sample_groups(self) -> SampleGroups | None:
        """The groups of the run's samples."""
        return groups_of_run(self.run)

    def dependence(
        self, condition: str, ids: pa.Array | pa.ChunkedArray, outcomes: Floats, labels: Floats | None = None
    ) -> list[Finding]:
        """Return a finding where samples seem to belong together, and no groups are given. outcomes: how well each is
        predicted on clean images, (n,). labels: (n,), where each has one."""
        finite = np.isfinite(outcomes)
        if self.sample_groups is not None or condition != CLEAN.text or not finite.any():
            return []
        classes = None if labels is None else labels[finite].astype(np.int64)
        names = [name for name, counts in zip(ids.to_pylist(), finite, strict=True) if counts]
        suspicion = suspected_groups(names, outcomes[finite], classes)
        return [] if suspicion is None else [Finding.of("data/suspected-groups", **asdict(suspicion))]

    def findings(self, condition: str, table: pa.Table, claimed: str = "") -> list[Finding]:
        """Return a condition's findings that do not depend on the family, from `table`.
        claimed: the attack whose claim its records must keep, if not its own.
        """
        manifest, read = self.manifest, readable_rows(table)
        raised = list[Finding]()
        if len(table) != (expected := min(manifest.data.n, samples_named(condition) or manifest.data.n)):
            raised.append(Finding.of("run/incomplete", have=len(table), expected=expected))
            raised += [Finding.of("run/stopped-early")] if manifest.is_sequential else []
        described = manifest.checkpoint(self.checkpoint)
        if described.weights.endswith("in part"):
            raised.append(Finding.of("model/partial-weights"))
        raised += manifest.data.findings("labels")
        if (groups := self.sample_groups) is not None and groups.count < FEWEST:
            raised.append(Finding.of("data/few-groups", count=groups.count, column=groups.column))
        claim = manifest.claims.get(claimed or condition)
        changes = read.filter(read[claim.norm].is_valid()) if claim else read  # null where an attack took no part
        if claim and len(changes):
            largest = float(column_of(changes, claim.norm).max())
            space = manifest.protocol.space
            unit = "" if space == "sigma" else " in pixels"
            measured = f"largest {claim.norm} perturbation {amount(largest, claim.norm, space)}{unit}"
            if space == "normalised":
                raised.append(Finding.of("attack/normalised-eps", eps=claim.eps, measured=measured))
            # In normalised units a step of eps is eps * std in pixels, at most that of the widest channel.
            allowed = claim.eps * (max(described.preprocessing.std) if space == "normalised" else 1)
            if largest > allowed + EXCEEDS:
                claims = amount(allowed, claim.norm, space)
                raised.append(Finding.of("attack/exceeds-eps", measured=measured, claimed=claims))
        scored = [name for name in ("correct", "nll") if name in read.column_names and not read[name].null_count]
        if len(read) and len(scored) == 2:  # else there is no label, or no loss
            broken = int((~np.isfinite(column_of(read, "nll"))).sum())
            if broken:
                raised.append(Finding.of("model/non-finite-logits", count=broken, n=len(read)))
        raised += ties(read)
        some_compete = manifest.data.layout in ("imagenet-a", "imagenet-r")
        classes = manifest.data.classes if some_compete else described.num_classes
        raised += odd_outputs(read, described, classes)
        if condition == CLEAN.text:
            raised += copies(read)
            raised += guessing(read, classes, manifest.arguments)
        if unread := len(table) - len(read):
            many = manifest.protocol.samples.many
            raised.append(Finding.of("data/unreadable", count=unread, n=len(table), samples=many))
        return [*raised, *self._of_setup]

    @cached_property
    def _of_setup(self) -> list[Finding]:
        return setup_findings(self.manifest, self.checkpoint, self.run.evidence(self.checkpoint, CLEAN.text))

    def figures(self, figures: Iterable[Figure]) -> list[Figure]:
        """Return them as figures of this checkpoint under the run's protocol."""
        tag = self.manifest.protocol.tag
        return [replace(figure, checkpoint=self.checkpoint, protocol=tag) for figure in figures]


def copies(read: pa.Table) -> Iterator[Finding]:
    """Yield findings on images, of readable rows, that occur more than once, and on others that nearly do."""
    if not {PIXELS, AT_32} <= {*read.column_names} or read[PIXELS].null_count or not len(read):
        return
    ids, pixels, means = read["sample_id"].to_pylist(), *(read[name].to_numpy() for name in (PIXELS, AT_32))
    same, alike = (np.unique(values, return_inverse=True, return_counts=True)[1:] for values in (pixels, means))
    exact, near = (counts[inverse] > 1 for inverse, counts in (same, alike))
    for code, those, digests in (("data/duplicates", exact, pixels), ("data/near-duplicates", near & ~exact, means)):
        if those.any():
            first = int(np.flatnonzero(those)[0])
            other = next(place for place in np.flatnonzero(digests == digests[first]) if place != first)
            yield Finding.of(code, count=int(those.sum()), n=len(read), first=ids[first], second=ids[other])


Gathering = TypeVar("Gathering", bound=Gatherer)


@dataclass(frozen=True)
class Results(Sequence[Figure]):
    """Rows of the summary, in the order of the run's checkpoints and conditions.

    unread: why a sample could not be read, by its id. gatherers: what sections of the page gathered from the records.
    """

    run: RunFolder
    rows: Sequence[Figure]
    unread: Mapping[str, str] = field(default_factory=dict)
    gatherers: dict[type[Gatherer], Gatherer] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def of(cls, run: RunFolder, rows: Sequence[Figure]) -> Results:
        """Return the rows of a run's summary as its results; results are returned unchanged."""
        return rows if isinstance(rows, Results) else cls(run, rows)

    @overload
    def __getitem__(self, place: int) -> Figure: ...

    @overload
    def __getitem__(self, place: slice) -> Sequence[Figure]: ...

    def __getitem__(self, place: int | slice) -> Figure | Sequence[Figure]:
        return self.rows[place]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Figure]:
        return iter(self.rows)

    @cached_property
    def manifest(self) -> Manifest:
        return self.run.manifest

    kind: ClassVar[str] = "checkpoints"

    @property
    def names(self) -> list[str]:
        """The names of what has figures: of the checkpoints."""
        return self.manifest.names

    @cached_property
    def cells(self) -> Mapping[str, Cells]:
        """A row for each condition and metric, by checkpoint, including those without results."""
        cells: dict[str, dict[tuple[str, str], Figure]] = {name: {} for name in self.manifest.names}
        for row in self.rows:
            cells.setdefault(row.checkpoint, {})[row.key] = row
        return dict(cells)

    @property
    def bad_images(self) -> list[dict[str, str]]:
        """Samples that could not be read under some condition: id and reason."""
        return [{"sample_id": name, "error": self.unread[name]} for name in sorted(self.unread)]

    def changed(self, change: Callable[[Figure], Figure]) -> Results:
        return Results(self.run, [change(row) for row in self.rows], self.unread, self.gatherers)

    def gathered(self, kind: type[Gathering]) -> Gathering:
        """Return what a section gathered from the records; they are read now if the summary did not gather it."""
        gatherer = self.gatherers.get(kind)
        if gatherer is None:
            gatherer = self.gatherers[kind] = kind(self.run)
            gatherer.read()
        assert isinstance(gatherer, kind)
        return gatherer
