"""Compare the checkpoints of runs: what `robustkit compare` prints and writes, and a notebook shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..common.plugins import plugin_session
from ..data.metadata import Grouping
from ..display.html import as_html
from ..display.table import Table
from ..display.text import capital
from ..display.text import finite_json as json_of
from ..errors import RunError
from ..evaluations.condition import name_of
from ..evaluations.metrics import is_finite
from ..evaluations.records import check_plugins
from ..runs.folder import RunFolder
from ..tasks.task import task_of
from .comparison import HEADINGS, Comparison, ComparisonRow, by_mid_p, compare_sides, comparison_as_json
from .pairing import Side, checkpoint_pairs, unpaired_lines
from .published import Published, read_published
from .tables import Among, among_tables, compared_tables, found_among, sides_of, tables

if TYPE_CHECKING:
    import pandas as pd


PAIRS = 4
"""Pairs up to which a terminal shows the whole table of each."""


@dataclass(frozen=True)
class Compared:
    """Paired differences of checkpoints. unpaired: lines on those, and on published figures, that nothing is compared
    with. sides: checkpoints that have a place among published ones."""

    comparison: Comparison
    unpaired: tuple[str, ...] = ()
    sides: tuple[Side, ...] = ()

    @property
    def reference(self) -> Published | None:
        """The published figures that stand next to the differences."""
        return self.comparison.reference

    @property
    def placed(self) -> list[Table]:
        """The tables of places among published figures."""
        return [] if self.reference is None else among_tables(self.sides, self.reference)

    @property
    def tables(self) -> list[Table]:
        """The tables of all pairs, then those of places."""
        return [table.said_once("n") for table in (*compared_tables(self.comparison), *self.placed)]

    @property
    def sentences(self) -> list[str]:
        """What is significant of each pair, in a sentence; of many pairs those without a difference share one."""
        lines, alike = list[str](), list[str]()
        for pair in self.comparison.pairs:
            names, finite = " against ".join(pair.names[::-1]), [row for row in pair.rows if is_finite(row.p_value)]
            parts = [
                f"significantly {verdict}: {_listed(rows)}"
                for verdict in ("better", "worse", "higher", "lower")
                if (rows := [row for row in finite if row.verdict == verdict])
            ]
            if parts:
                lines.append(f"{names}: {'. '.join(map(capital, parts))}. {len(finite)} figures tested.")
            elif finite:
                alike.append(names)
        if len(self.comparison.pairs) <= PAIRS:
            return [*lines, *(f"{names}: no significant difference." for names in alike)]
        return [*lines, *([f"No significant difference: {'; '.join(alike)}."] if alike else [])]

    @property
    def brief_tables(self) -> list[Table]:
        """The tables of a terminal: of more than `PAIRS` pairs the significant differences alone."""
        if len(self.comparison.pairs) <= PAIRS:
            return self.tables
        column = HEADINGS.index("at 0.05")
        rows = {table: tuple(row for row in table.rows if row[column]) for table in tables(self.comparison)}
        return [*(replace(table, rows=some) for table, some in rows.items() if some), *self.placed]

    def to_dict(self) -> dict[str, Any]:
        """Return what the file of `robustkit compare --json` holds."""
        reference = self.reference
        placed = [_among(side, each) for side in self.sides if reference for each in found_among(side, reference)]
        return comparison_as_json(self.comparison) | {"unpaired": list(self.unpaired), "among": placed}

    def to_json(self) -> str:
        """Return the same as JSON."""
        return json_of(self.to_dict())

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each difference, with the names of its `first` and `second` checkpoint."""
        import pandas as pd

        pairs = self.comparison.pairs
        names = [dict(zip(("first", "second"), pair.names, strict=True)) for pair in pairs]
        rows = ((its, row.to_dict()) for its, pair in zip(names, pairs, strict=True) for row in pair.rows)
        named = {"first": "first_value", "second": "second_value"}
        return pd.DataFrame([{**its, **{named.get(k, k): value for k, value in row.items()}} for its, row in rows])

    def __repr__(self) -> str:
        return "\n".join(self.sentences)

    def _repr_html_(self) -> str:
        return as_html(self.tables, (*self.sentences, *(f"⚑ {line}" for line in self.unpaired)))


@plugin_session()
def compare(
    *runs: RunFolder | str | Path,
    checkpoints: Sequence[str] = (),
    against: str | None = None,
    reference: str | None = None,
    groups: str | None = None,
    groups_from: str | None = None,
    mid_p: bool = False,
) -> Compared:
    """Compare checkpoints on the same samples: paired differences with intervals and tests, from records only.

    Args:
        *runs: of one run, its checkpoints are compared with the first of them; of several, those of later runs with
            those of the same name in the first, or, where no name is shared, all with its first.
        checkpoints: only these, as second of a pair.
        against: the checkpoint of the first run to compare with.
        reference: published figures to show next to them, such as `quest`, a TOML file, or a JSON file of Every Eval
            Ever.
        groups: a column of the runs' metadata: samples of one value may resemble each other.
        groups_from: a regular expression that finds the group of a sample in its id.
        mid_p: with the mid-p form of McNemar's test, which takes fewer samples and keeps its level in practice only.

    Returns:
        Tables of paired differences; a notebook shows them.

    Raises:
        RunError: no run, runs that cannot be compared, or none of a name.
        ProtocolError: no such reference, or no regular expression.
        DataError: samples without a group, or all in one.

    Example:
        >>> compared = robustkit.compare("runs/reference", "runs/reference")
        >>> compared.to_frame()[["condition", "metric", "difference"]].values.tolist()[0]
        ['clean', 'top1', 0.0]
    """
    grouping = Grouping.of(groups, groups_from)
    opened = [RunFolder.opened(each, grouping) for each in runs]
    published = None if reference is None else read_published(reference)
    single = published is not None and len(opened) == 1 and len(opened[0].manifest.names) == 1
    if single:  # a checkpoint by itself has nothing to be paired with, and a place among published ones
        check_plugins(opened[0].manifest)
    pairs = [] if single else checkpoint_pairs(opened, checkpoints, against)
    sides = () if published is None else tuple(sides_of(opened, checkpoints))
    if published is not None:
        published = published.named_as(dict.fromkeys(row.condition for side in sides for row in side.results))
    lines = () if published is None else published.unmatched
    if single:
        result = Compared(Comparison((), published), lines, sides)
    else:
        unpaired = unpaired_lines(opened, checkpoints, against)
        comparison = compare_sides(pairs, published)
        result = Compared(by_mid_p(comparison) if mid_p else comparison, (*lines, *unpaired), sides)
    if published is None or result.placed:
        return result
    if single:
        lacking = f"{opened[0].path} has no figure that {published.name} has"
        raise RunError("; ".join([lacking, *lines, "audit a condition of it, or give another run"]))
    return replace(result, unpaired=(*result.unpaired, f"{published.name}: it has no figure of these checkpoints"))


def _listed(rows: Sequence[ComparisonRow]) -> str:
    """Return `accuracy on clean images; NLL under PGD (2/255); and 3 more`."""
    texts = []
    for row in rows:
        manifest, metric = row.second.manifest, row.shown[0]
        headline = task_of(manifest).headline_metric
        word = headline.noun if metric.label == headline.label else metric.word
        texts.append(f"{word} {name_of(row.condition, 'sentence', manifest)}")
    texts = [*dict.fromkeys(texts)]
    return "; ".join(texts if len(texts) < 5 else [*texts[:3], f"and {len(texts) - 3} more"])


def _among(side: Side, each: Among) -> dict[str, Any]:
    named = {"condition": each.row.condition, "metric": each.row.metric, "n": each.row.n}
    finite = each.row.value if each.row.is_finite else None
    published = {"published": each.levels, "spread": each.spreads, "places": each.places}
    return {"checkpoint": side.checkpoint, **named, "value": finite, **published}
