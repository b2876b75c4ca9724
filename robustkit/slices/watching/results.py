"""Records of watched attention into results, tables and plots."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from ...common.figure import BOOTSTRAP, FEWEST, Figure
from ...common.finding import Finding
from ...common.intervals import Floats, bootstrap, mean_of
from ...display.format import MISSING, NOT_FINITE, Cell, count, number, percent, wide_number
from ...display.svg import INK, Plot, Style, labels, legend, shorten_name, space_panels, style
from ...display.table import Section, Table, join_tables, with_flags
from ...errors import DamagedRecord
from ...evaluations.aggregate import Gatherer, RecordReader, Results, column_of, readable_rows
from ...evaluations.condition import SHORT, BriefRow, kind_of, name_of, words_of
from ...evaluations.family import Aggregator, Presenter, Summary
from ...evaluations.layers import Layer, decode_layers, head_name
from ...evaluations.metrics import Metric, by_checkpoint
from ...evaluations.presenting import finding_lines, of_family
from ...evaluations.records import CheckpointRecords, Pairings, PerSample, common_places, not_paired
from ...runs.folder import RunFolder
from ...runs.manifest import Manifest
from ...runs.metadata import SampleGroups
from . import COLUMN_NAMES, LISTS, MEANS, VOCABULARY, under_of

if TYPE_CHECKING:
    import pyarrow as pa
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Canvas

    from ...evaluations.family import Looks


EXPLOSION = 100.0
"""A |logit| above which a head is flagged: tau of QK-Clip (Moonshot 2025). From 64 on bfloat16 has steps of 0.5, which
change weights by up to 28 %. ViT-Tiny on ImageNet reaches 29, the shipped checkpoints at most 37."""
COLLAPSE = 0.01
"""Mean entropy as a share of log N below which a head is flagged (Zhai et al. 2023): of 197 keys 1.05 are attended to.
Sharp heads are natural: ViT-Tiny has one at 0.19 clean, 0.017 under gaussian noise of severity 5."""


@dataclass(frozen=True)
class Heads:
    """values: by column (T,), over the finite of n samples: the largest of logits, means of the others, nan where there
    is none. broken: (T,) samples whose figure is not finite. lost: samples with one in any head."""

    layers: tuple[Layer, ...]
    n: int
    values: Mapping[str, Floats]
    broken: Floats
    lost: int

    @cached_property
    def shares(self) -> Floats:
        """Mean entropies as shares of log N; nan with a single key, where they say nothing."""
        keys = np.array([layer.keys for layer in self.layers for _ in range(layer.heads)], float)
        with np.errstate(divide="ignore", invalid="ignore"):
            shares: Floats = self.values["attention_entropies"] / np.log(keys)
        return shares

    def figures(self, name: str) -> Floats:
        """Return one of `LISTS`, or `entropy_shares`, (T,)."""
        return self.shares if name == "entropy_shares" else self.values[name]

    def by_layer(self, name: str) -> list[Floats]:
        return np.split(self.figures(name), np.cumsum([layer.heads for layer in self.layers])[:-1])

    def name(self, place: int) -> str:
        return head_name(self.layers, place)

    @property
    def findings(self) -> list[Finding]:
        """Doubts, each with the head that gives the strongest reason for it."""
        raised = []
        if self.lost:
            first = int(np.flatnonzero(self.broken)[0])
            raised.append(Finding.of("attention/not-finite", count=self.lost, n=self.n, head=self.name(first)))
        logits = self.values["largest_logits"]
        high = np.flatnonzero(logits > EXPLOSION)
        if len(high):
            worst = int(high[logits[high].argmax()])
            where = {"head": self.name(worst), "more": _more(high)}
            raised.append(Finding.of("attention/logit-explosion", largest=logits[worst], limit=EXPLOSION, **where))
        low = np.flatnonzero(self.shares < COLLAPSE)
        if len(low):
            worst = int(low[self.shares[low].argmin()])
            where = {"head": self.name(worst), "more": _more(low)}
            share, limit = 100 * self.shares[worst], 100 * COLLAPSE
            raised.append(Finding.of("attention/entropy-collapse", share=share, limit=limit, **where))
        return raised


def _more(places: Any) -> str:
    others = len(places) - 1
    return "" if not others else f" and {others} more {'head' if others == 1 else 'heads'}"


class HeadSums:
    """Sums over samples, shard by shard. where: the place of the records, for messages. lists: the columns with a
    figure for each head; those of watched attention may all be missing."""

    def __init__(self, where: Path, lists: Sequence[str] = LISTS) -> None:
        self.where, self.lists = where, lists
        self.layers: tuple[Layer, ...] = ()
        self.n = self.lost = 0
        self._largest = np.array([name == "largest_logits" for name in lists])  # a head's largest, all else a mean

    def taken(self, shard: pa.Table) -> pa.Table:
        """Take the columns per head from a shard; return the rest."""
        here = [name for name in self.lists if name in shard.column_names]
        read = readable_rows(shard)
        if len(read) and (here or self.lists is not LISTS):
            layers = decode_layers(shard.schema.metadata, self.where)
            if lacking := [name for name in self.lists if name not in here]:
                raise DamagedRecord(f"{self.where}: a record without {lacking[0]}; delete it and run again")
            width = sum(layer.heads for layer in layers)
            self.add(layers, {name: self._matrix(read[name], width) for name in self.lists})
        return shard.drop_columns(here)

    def add(self, layers: tuple[Layer, ...], figures: Mapping[str, Floats]) -> None:
        """Add more samples: (n, T) by name of `lists`."""
        if not self.layers:
            width = sum(layer.heads for layer in layers)
            self.layers, self._broken = layers, np.zeros(width)
            self._counts, self._sums = np.zeros((2, len(self.lists), width))
            self._sums[self._largest] = -math.inf
        if layers != self.layers:
            raise DamagedRecord(f"{self.where}: records with different layers than the rest; delete them and run again")
        values = np.stack([figures[name] for name in self.lists])
        finite = np.isfinite(values)
        infinite_heads, counted = np.logical_not(finite.all(axis=0)), np.where(finite, values, 0)
        self.n += values.shape[1]
        self.lost += int(infinite_heads.any(axis=1).sum())
        self._broken += infinite_heads.sum(axis=0)
        self._counts += finite.sum(axis=1)
        highest = np.where(finite, values, -math.inf).max(axis=1)
        self._sums = np.where(self._largest[:, None], np.maximum(self._sums, highest), self._sums + counted.sum(axis=1))

    def _matrix(self, column: pa.ChunkedArray, width: int) -> Floats:
        import pyarrow.compute as pc

        lists = column.combine_chunks()
        if lists.null_count or not pc.all(pc.equal(pc.list_value_length(lists), width)).as_py():
            raise DamagedRecord(f"{self.where}: a record without a figure for each head; delete it and run again")
        values: Floats = lists.flatten().to_numpy(zero_copy_only=False).astype(np.float64)
        return values.reshape(len(lists), width)

    def heads(self) -> Heads | None:
        if not self.n:
            return None
        with np.errstate(invalid="ignore"):
            figures = self._sums / np.where(self._largest[:, None], self._counts > 0, self._counts)
        return Heads(self.layers, self.n, dict(zip(self.lists, figures, strict=True)), self._broken, self.lost)


class WatchedHeads(Gatherer):
    """The heads by checkpoint and condition, for each condition whose records have them. kind: of these conditions."""

    kind: ClassVar[str] = "attention"
    lists: ClassVar[Sequence[str]] = LISTS

    def __init__(self, run: RunFolder) -> None:
        super().__init__(run)
        self.by_unit: dict[tuple[str, str], Heads] = {}

    def wants(self, checkpoint: str, condition: str) -> bool:
        return False  # its own summary puts them here

    def put(self, checkpoint: str, condition: str, heads: Heads | None) -> None:
        if heads is not None:
            self.by_unit[checkpoint, condition] = heads

    def read(self) -> None:
        for checkpoint, condition in self.run.units():
            if under_of(condition, self.kind) is not None:
                self.put(checkpoint, condition, heads_of(self.run, checkpoint, condition, self.lists))


def heads_of(run: RunFolder, checkpoint: str, condition: str, lists: Sequence[str] = LISTS) -> Heads | None:
    """Return the heads; None where no sample could be read. Raises RunError without records, or of damaged ones."""
    sums = HeadSums(run.shard_path(checkpoint, condition, 0).parent, lists)
    for shard in run.shards(checkpoint, condition, (*lists, "error", "sample_id")):
        sums.taken(shard)
    return sums.heads()


@dataclass(frozen=True)
class Sampled:
    """(n, M) figures of `METRICS` by sample, nan for what a record lacks, and the (n,) ids."""

    ids: pa.Array
    values: Floats

    @classmethod
    def of(cls, read: pa.Table) -> Sampled:
        empty = np.full(len(read), math.nan)
        names = set(read.column_names)
        columns = [column_of(read, name) if name in names else empty for name in COLUMN_NAMES]
        return cls(read["sample_id"].combine_chunks(), np.stack(columns, axis=1))

    def minus(self, other: Sampled) -> Sampled:
        """Return the differences of the samples that both have."""
        mine, theirs = common_places([self.ids, other.ids])
        with np.errstate(invalid="ignore"):
            return Sampled(self.ids.take(mine), self.values[mine] - other.values[theirs])


def attention_rows(
    condition: str,
    sampled: Sampled,
    clean: Sampled | None,
    heads: Heads | None,
    flags: Sequence[Finding],
    sample_groups: SampleGroups | None = None,
) -> Iterator[Figure]:
    """Yield the means; `<metric>_change` is the difference from the clean images, paired by sample."""
    lines = [*flags, *(heads.findings if heads else ())]
    parts = [("", sampled), *([] if clean is None else [("_change", sampled.minus(clean))])]
    for suffix, part in parts:
        groups = None if sample_groups is None else sample_groups.of(part.ids)
        means = _means(part.values) if groups is None else (mean_of(each, groups) for each in part.values.T)
        for name, figure in zip(COLUMN_NAMES, means, strict=len(part.ids) > 0):
            yield figure.of(condition, name + suffix, lines)


def _means(values: Floats) -> list[Figure]:
    """Return the mean of each column of (n, M) with its interval, nan for a few samples and for what is not finite."""
    n = len(values)
    if not n:
        return []
    with np.errstate(invalid="ignore"):
        means = values.mean(axis=0)
    finite = np.isfinite(means)
    bounds = np.full((len(means), 2), math.nan)
    if n >= FEWEST and finite.any():
        columns = values[:, finite]
        bounds[finite] = bootstrap(lambda counts: counts @ columns / n, n, means[finite])
    ends = zip(means.tolist(), bounds.tolist(), strict=True)
    return [Figure(mean, n, low, high, BOOTSTRAP) for mean, (low, high) in ends]


class AttentionSummary(Summary):
    def __init__(self, reading: RecordReader) -> None:
        self.reading = reading
        self.clean: Sampled | None = None

    def add(self, condition: str) -> list[Figure]:
        reading = self.reading
        sums = HeadSums(reading.run.shard_path(reading.checkpoint, condition, 0).parent)
        shards = reading.shards(condition, (*COLUMN_NAMES, *LISTS, "sample_id", "error"))
        table, _ = reading.joined(map(sums.taken, shards))
        sampled = Sampled.of(readable_rows(table))
        heads, flags = sums.heads(), reading.findings(condition, table)
        if isinstance(gatherer := reading.gatherers.get(WatchedHeads), WatchedHeads):
            gatherer.put(reading.checkpoint, condition, heads)
        rows = list(attention_rows(condition, sampled, self.clean, heads, flags, reading.sample_groups))
        if under_of(condition) == "clean":
            self.clean = sampled
        return rows


_FORMS = {
    "largest_logit": ("largest |logit|", 1, 1),
    "entropy_share": ("entropy, % of log N", 100, 1),
    "strongest_key": ("strongest key, %", 100, 1),
    "softmax_slope": ("softmax slope", 1, 3),
}
HEADINGS = {m.name: _FORMS.get(m.name, (m.label, 1, 2)) for m in MEANS if m.name != "attention_entropy"}
LAYERS = (
    ("largest_logits", "largest |logit|", 1, 1),
    ("query_norms", "query norm", 1, 1),
    ("key_norms", "key norm", 1, 1),
    ("attention_entropies", "entropy, nats", 1, -1),
    ("entropy_shares", "entropy, % of log N", 100, -1),
    ("strongest_keys", "strongest key, %", 100, 1),
    ("softmax_slopes", "softmax slope", 1, -1),
)  # figure of a head, name, factor; 1: the highest is the worst, -1: the lowest
_MOST = 64  # layers in a table
_NOTE = (
    "Means over samples; per sample the largest |logit| of all heads and means over the heads of all layers. With a "
    "sign: the change against clean, paired by sample, of percentages in points."
)
_OF_LAYERS = (
    "Mean over the heads of a layer, then the worst of them with its number from 0 on; a head's logit is the largest "
    "over all samples, everything else is a mean over samples and tokens."
)

Rows = Sequence[Figure]


def attention_tables(results: Rows, manifest: Manifest) -> list[Table]:
    return [_table(checkpoint, some, manifest) for checkpoint, some in by_checkpoint(results, under_of).items()]


def _table(checkpoint: str, conditions: Mapping[str, Mapping[str, Figure]], manifest: Manifest) -> Table:
    rows = []
    counts = {under: next(iter(figures.values())).n for under, figures in conditions.items()}
    several = len(set(counts.values())) > 1
    for under, figures in conditions.items():
        pairs = [(figures.get(f"{name}_change") if under != "clean" else None, figures.get(name)) for name in HEADINGS]
        cells = (_cell(*pair, *HEADINGS[name][1:]) for name, pair in zip(HEADINGS, pairs, strict=True))
        label = name_of(under, "table", manifest)
        rows.append((label, *([count(counts[under])] if several else []), *cells))
    headings = ("condition", *(["n"] if several else []), *(name for name, _, _ in HEADINGS.values()))
    title = f"{checkpoint}: attention" + ("" if several else f", n = {counts[next(iter(counts))]}")
    return Table(title, headings, tuple(rows), (), _NOTE, checkpoint=checkpoint, places=("terminal", "page"))


def _cell(change: Figure | None, value: Figure | None, factor: int, decimals: int) -> Cell:
    """Return `12.30 [12.10, 12.50]`, or of a change `+0.31 [+0.20, +0.42]`."""
    row, sign = (change, "+") if change is not None else (value, "")
    decimals = max(decimals, 2) if sign and factor == 1 else decimals
    if row is None:
        return MISSING
    text, low, high = (wide_number(factor * end, decimals, sign) for end in (row.value, row.low, row.high))
    return Cell(f"{text} [{low}, {high}]" if row.has_interval else text, row.value, row)


def layer_table(heads: Heads, title: str) -> Table:
    headings = ("layer", "heads", "N", *(name for _, name, _, _ in LAYERS))
    parts = [(heads.by_layer(name), factor, worst) for name, _, factor, worst in LAYERS]
    rows = [
        (
            *(layer.name, count(layer.heads), count(layer.keys)),
            *(_mean_and_worst(factor * values[place], worst, percent=factor == 100) for values, factor, worst in parts),
        )
        for place, layer in enumerate(heads.layers[:_MOST])
    ]
    more = len(heads.layers) - len(rows)
    note = _OF_LAYERS + (f" {more} more layers are left out." if more else "")
    return Table(title, headings, tuple(rows), tuple(map(str, heads.findings)), note)


def _mean_and_worst(values: Floats, sign: int, percent: bool) -> Cell:
    """Return `8.25, 10.12 (2)`: the mean, the worst and its head; `nan` where nothing is finite."""
    finite = np.flatnonzero(np.isfinite(values))
    if not len(finite):
        return NOT_FINITE
    worst = int(finite[(sign * values[finite]).argmax()])
    digits = 1 if percent or float(np.abs(values[finite]).max()) >= 10 else 2
    mean, most = (wide_number(float(value), digits) for value in (values[finite].mean(), values[worst]))
    return mean.followed_by(f", {most} ({worst})")


class AttentionAggregator(Aggregator):
    words = VOCABULARY
    summary = AttentionSummary

    def compared(
        self, first: CheckpointRecords, second: CheckpointRecords, common: Sequence[str], compared: Pairings
    ) -> Iterator[tuple[str, str]]:
        yield from ()  # its figures are so closely related that they would only weaken a correction

    def per_sample(self, side: CheckpointRecords, condition: str, metric: str) -> PerSample:
        if (figures := super().per_sample(side, condition, metric)) is None:
            raise not_paired(condition, metric, [number.name for number in self.words.metrics if number.paired])
        return figures

    def gatherers(self) -> Sequence[type[Gatherer]]:
        return (WatchedHeads,)


PANELS = tuple(row for row in LAYERS if row[0] != "attention_entropies")  # as shares of log N they compare
COLUMNS = 2  # checkpoints in a figure
LINES = 6  # conditions in a panel: clean, and those under which entropy changes most
_WIDE_RANGE = 30  # the highest figure over the lowest, above which an axis is logarithmic; of shares it never is


Watched = Mapping[str, Mapping[str, Heads]]  # heads by checkpoint and condition, clean first


def watched_heads(results: Results) -> Watched:
    entries: dict[str, dict[str, Heads]] = {}
    for (checkpoint, condition), heads in results.gathered(WatchedHeads).by_unit.items():
        entries.setdefault(checkpoint, {})[under_of(condition) or ""] = heads
    return {name: dict(sorted(some.items(), key=lambda item: item[0] != "clean")) for name, some in entries.items()}


def attention_figures(entries: Watched) -> Iterator[Plot]:
    if not entries:
        return
    conditions = _drawn_conditions(entries)
    looks = {condition: style(place) for place, condition in enumerate(conditions)}
    every = [heads[condition] for heads in entries.values() for condition in conditions if condition in heads]
    limits = {name: _limits([heads.figures(name) for heads in every], factor) for name, _, factor, _ in PANELS}
    names, words = labels(entries, 30), _legend(conditions)
    lost = max(map(len, entries.values())) - len(conditions)
    for start in range(0, len(entries), COLUMNS):
        group = dict([*entries.items()][start : start + COLUMNS])

        def paint(canvas: Canvas, group: Watched = group) -> None:
            space_panels(canvas)
            grid = canvas.subplots(len(PANELS), len(group), squeeze=False, sharey="row", sharex="col")
            for column, (checkpoint, heads) in enumerate(group.items()):
                present = [condition for condition in conditions if condition in heads]
                for row, (name, title, factor, _) in enumerate(PANELS):
                    axes = grid[row, column]
                    for condition in present:
                        _curve(axes, heads[condition].by_layer(name), factor, looks[condition].colour)
                    for condition in present:
                        _line(axes, heads[condition].by_layer(name), factor, looks[condition])
                    _finish(axes, name, limits[name])
                    axes.set_xlim(-0.25, max(len(each.layers) for each in heads.values()) - 0.75)
                    axes.set_title(f"{names[checkpoint]}\n{title}" if row == 0 else title)
                grid[-1, column].set_xlabel("layer")
                grid[-1, column].xaxis.get_major_locator().set_params(integer=True)
            legend(canvas, {words[condition]: looks[condition] for condition in conditions}, columns=2)

        several = ", ".join(names[checkpoint] for checkpoint in group)
        yield Plot(
            "attention",
            f"Attention over the layers of {several}",
            50 + 17 * -(-len(conditions) // 2) + 118 * len(PANELS),
            paint,
            alt=" ".join(_description(heads, names[checkpoint]) for checkpoint, heads in group.items()),
            caption="Lines are means over the heads of a layer, bands reach from the lowest head to the highest. A "
            "head's logit is its largest over all samples, everything else is a mean over samples and tokens."
            + (" Dotted: where a head is flagged." if any(map(_bound, limits, limits.values())) else "")
            + (f" Under the other {lost} conditions the entropy changes less; see the tables." if lost > 0 else ""),
            name=several,
        )


def _legend(conditions: Sequence[str]) -> dict[str, str]:
    """Return conditions as a legend names them: `fog, severity 3`, in full where two would be alike."""
    short = {text: words_of(text).label(text) for text in conditions}
    often = Counter(short.values())
    names = {text: name if often[name] == 1 else text for text, name in short.items()}
    cut = labels(names.values(), 34)
    return {text: cut[name] for text, name in names.items()}


def _drawn_conditions(entries: Watched) -> list[str]:
    """Return clean, and the conditions with the largest change of entropy in any layer, in their order."""
    every = dict.fromkeys(condition for heads in entries.values() for condition in heads)
    moved = dict.fromkeys(every, 0.0)
    for by_condition in entries.values():
        clean = by_condition.get("clean")
        for condition, heads in by_condition.items():
            if clean is not None and clean.layers == heads.layers:
                change = np.abs(heads.shares - clean.shares)
                moved[condition] = max(moved[condition], float(np.nanmax(np.nan_to_num(change), initial=0.0)))
    ranked = sorted(every, key=lambda condition: (condition != "clean", -moved[condition]))[:LINES]
    return [condition for condition in every if condition in ranked]


def _limits(values: Sequence[Floats], factor: int) -> tuple[float, float, bool]:
    """Return the lowest and highest finite figure with a margin, and whether the axis is logarithmic."""
    every = factor * np.concatenate(values)
    finite = every[np.isfinite(every)]
    if not len(finite):
        return 0.0, 1.0, False
    low, high = float(finite.min()), float(finite.max())
    if factor == 1 and low > 0 and high / low > _WIDE_RANGE:
        return low / 1.3, high * 1.3, True
    pad = 0.06 * (high - low) or 0.05 * abs(high) or 0.05
    return low - pad, high + pad, False


def _curve(axes: Axes, layers: Sequence[Floats], factor: int, colour: str) -> None:
    """Draw the band from the lowest head to the highest."""
    every = {place: factor * values[np.isfinite(values)] for place, values in enumerate(layers)}
    finite = {place: values for place, values in every.items() if len(values)}
    low, high = ([float(end(values)) for values in finite.values()] for end in (np.min, np.max))
    axes.fill_between(list(finite), low, high, color=colour, alpha=0.12, linewidth=0)


def _line(axes: Axes, layers: Sequence[Floats], factor: int, look: Style) -> None:
    finite = (values[np.isfinite(values)] for values in layers)
    means = [factor * float(values.mean()) if len(values) else math.nan for values in finite]
    axes.plot(means, color=look.colour, marker=look.marker, linestyle=look.line, markersize=4, linewidth=1.4)


def _finish(axes: Axes, name: str, limits: tuple[float, float, bool]) -> None:
    low, high, logarithmic = limits
    if logarithmic:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")  # no formulas: the page's text is plain
        axes.yaxis.set_minor_formatter(lambda *_: "")
    axes.set_ylim(low, high)
    axes.tick_params(length=0, which="both")
    if bound := _bound(name, limits):
        axes.axhline(bound, color=INK, linestyle=":", linewidth=1.2)


def _bound(name: str, limits: tuple[float, float, bool]) -> float:
    """Return the value at which heads are flagged, if a panel shows it; else 0."""
    bound = {"largest_logits": EXPLOSION, "entropy_shares": 100 * COLLAPSE}.get(name, 0.0)
    return bound if limits[0] < bound < limits[1] else 0.0


def _description(by_condition: Mapping[str, Heads], name: str) -> str:
    clauses = []
    for condition, heads in list(by_condition.items())[:LINES]:
        logits, shares = heads.figures("largest_logits"), heads.shares
        parts = []
        if np.isfinite(logits).any():
            place = int(np.nanargmax(logits))
            parts.append(f"largest logit {number(logits[place], 1)} in {heads.name(place)}")
        if np.isfinite(shares).any():
            place = int(np.nanargmin(shares))
            lowest = f"{percent(shares[place])} in {heads.name(place)}"
            parts.append(f"mean entropy {percent(float(np.nanmean(shares)))} of log N, lowest {lowest}")
        clauses.append(f"{shorten_name(condition, 80)}: {', '.join(parts) or 'nothing finite'}")
    return f"{name}. {'; '.join(clauses)}."


class HeadsPresenter(Presenter):
    """What heads do: figures that say how a model computes, not how well."""

    def brief(self, keys: Sequence[tuple[str, str]], manifest: Manifest, headline: Metric) -> Iterable[BriefRow]:
        return (row for row in super().brief(keys, manifest, headline) if row.places == SHORT)

    def section_values(self, results: Results, by_layer: Iterable[Table]) -> dict[str, Any]:
        """Return what its section shows: tables with their flags, checkpoints together, then, folded, each layer's."""
        tables = with_flags(join_tables(self.tables(results)), finding_lines(results, of_family(self.name)))
        return {"grids": [*tables, *(replace(table, folded=True) for table in by_layer)]}


class AttentionPresenter(HeadsPresenter):
    words = VOCABULARY

    def tables(self, results: Results) -> Sequence[Table]:
        return attention_tables(results, results.manifest)

    def sections(self, results: Results, looks: Looks) -> Iterable[Section]:
        heads = watched_heads(results)
        first = [(name, *each) for name, some in heads.items() for each in list(some.items())[:1]]

        def values() -> dict[str, Any]:
            layers = (layer_table(some, f"{name}: {under}, layer by layer") for name, under, some in first)
            return self.section_values(results, layers)

        yield Section("attention", "Attention stability", values, tuple(attention_figures(heads)))

    def brief(self, keys: Sequence[tuple[str, str]], manifest: Manifest, headline: Metric) -> Iterable[BriefRow]:
        for text in dict.fromkeys(text for text, _ in keys):
            label = name_of(under_of(text, kind_of(text)) or text, "table", manifest)
            plain = [metric for metric in self.words.metrics if not metric.name.endswith("_change")]
            yield from (BriefRow(self.name, f"{label}: {metric.label}", text, metric) for metric in plain)
