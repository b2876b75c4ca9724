"""A table until it is written, and a part of a page; of several checkpoints, what is alike stands side by side in one
table. `console` writes tables for a terminal, `html` for pages and notebooks; `as_markdown`, `as_latex`, `as_csv`.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from .format import MISSING, Cell
from .svg import Plot
from .text import Made, capital, escape_markdown, markdown_table, no_controls, no_formula, one_line

Row = tuple[str, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class Table:
    title: str
    """What is shown; it begins with the name of the checkpoint that the table is about."""
    headings: Row
    rows: tuple[Row, ...]
    """Texts, and for numbers `Cell`, as `display.format` writes them."""
    flags: Row = ()
    """Lines that raise a doubt."""
    note: str = ""
    """A line that explains the columns."""
    checkpoint: str = ""
    """The one that the table is about."""
    spare: Row = ()
    """Headings of columns to leave out where room is short, the first of them first."""
    heads: tuple[tuple[int, str], ...] = ()
    """Headings that stand above rows, each with the place of its row."""
    below: tuple[tuple[int, str], ...] = ()
    """Lines that stand below rows, in their order."""
    keys: int = 1
    """How many columns, from the first on, say what a row is of."""
    shaded: Row = ()
    """Headings of columns whose cells are shares, which a page shades."""
    dark: str = "low"
    """Which shares are dark: `low` or `high` ones."""
    folded: bool = False
    """Whether a page shows it only when asked for."""
    places: Row = ("terminal", "page", "card")
    """Where it is shown."""

    @property
    def numeric(self) -> set[int]:
        """The columns of numbers, which stand on the right: those whose cells are numbers, or empty."""
        places = range(self.keys, len(self.headings))
        return {place for place in places if all(isinstance(row[place], Cell) or not row[place] for row in self.rows)}

    @property
    def repeats(self) -> set[int]:
        """The rows that begin as the one above."""
        return {place for place in range(1, len(self.rows)) if self.rows[place][0] == self.rows[place - 1][0]}

    def shade(self, row: int, column: int) -> float | None:
        """Return how dark a cell is, in [0, 1]; None where it is not shaded."""
        cell = self.rows[row][column]
        if self.headings[column] not in self.shaded or not isinstance(cell, Cell) or not math.isfinite(cell.value):
            return None
        return min(max(1 - cell.value if self.dark == "low" else cell.value, 0.0), 1.0)

    def under_heads(self, heads: Sequence[str], width: int = 1) -> Table:
        """Return the table without its first columns: where they change, a heading (of each row) stands above."""
        starts = [row[:width] for row in self.rows]
        first = [place for place, start in enumerate(starts) if not place or starts[place - 1] != start]
        return replace(
            self,
            headings=self.headings[width:],
            rows=tuple(row[width:] for row in self.rows),
            heads=tuple((place, heads[place]) for place in first),
        )

    def without_empty(self) -> Table:
        """Return the table without columns in which no row has anything."""
        empty = (MISSING, "")
        columns = range(len(self.headings))
        places = [at for at in columns if at < self.keys or any(row[at] not in empty for row in self.rows)]
        headings, *rows = (tuple(row[at] for at in places) for row in (self.headings, *self.rows))
        return replace(self, headings=headings, rows=tuple(rows))

    def said_once(self, heading: str) -> Table:
        """Return the table without a column whose cells say the same or nothing: its title says it."""
        if heading not in self.headings or not self.rows:
            return self
        place = self.headings.index(heading)
        if len(values := {row[place] for row in self.rows} - {""}) != 1:
            return self
        headings, *rows = (row[:place] + row[place + 1 :] for row in (self.headings, *self.rows))
        return replace(self, title=f"{self.title}; {heading} = {values.pop()}", headings=headings, rows=tuple(rows))


@dataclass(frozen=True)
class Section:
    """One part of a page, left out where its template shows nothing.

    name: of the template and of the anchor. title: the heading. values: makes what the template shows. figures: of the
    section, in their order. template: its template, if not that of the name.
    """

    name: str
    title: str
    values: Callable[[], Mapping[str, Any]] = dict
    figures: tuple[Plot, ...] = ()
    template: str = ""


class CardPart(NamedTuple):
    """A section of a model card. note: a line under its title."""

    title: str
    note: str
    tables: Sequence[Table]


def of_tables(name: str, title: str, tables: tuple[Table, ...], figures: tuple[Plot, ...] = ()) -> Section:
    """Return a section of tables under their titles, after its figures."""
    return Section(name, title, lambda: {"tables": tables}, figures, template="tables")


def side_by_side(title: str, tables: Sequence[Table], *, headline: str = "", note: str = "") -> list[Table]:
    """Return the tables of several checkpoints as one: a row names its checkpoint after its keys, and the same rows of
    all stand together; before it the column of a `headline`, a checkpoint per column."""
    if not tables:
        return []
    first, several = tables[0], len(tables) > 1
    keys, flags = first.keys, tuple(dict.fromkeys(flag for table in tables for flag in table.flags))
    columns = list(dict.fromkeys(column for table in tables for column in _counted(table.headings)[keys:]))
    named = [{key: row for row, key in enumerate(_counted(row[:keys] for row in table.rows))} for table in tables]
    rows = list[Row]()
    for key in dict.fromkeys(key for lines in named for key in lines):
        for table, lines in zip(tables, named, strict=True):
            if key in lines:
                row = table.rows[lines[key]]
                cells = dict(zip(_counted(table.headings), row, strict=True))
                of = [table.checkpoint] if several else []
                rows.append((*row[:keys], *of, *(cells.get(column, MISSING) for column in columns)))
    headings = (*first.headings[:keys], *(["checkpoint"] if several else []), *(heading for heading, _ in columns))
    whole = Table(title, headings, tuple(rows), flags, note, keys=keys + several, shaded=first.shaded, dark=first.dark)
    whole = whole.without_empty()
    if not several or not headline:
        return [whole]
    short = replace(_of_one(first, tables, named, headline), title=f"{title}: {headline}", flags=flags, note=note)
    return [short, replace(whole, title=f"{title}: all figures", flags=(), note="", folded=True)]


def _of_one(first: Table, tables: Sequence[Table], named: Sequence[Mapping[Any, int]], headline: str) -> Table:
    """Return a table of one figure: a row for each key, a column for each checkpoint."""
    rows = []
    for key in dict.fromkeys(key for lines in named for key in lines):
        cells = []
        for table, lines in zip(tables, named, strict=True):
            is_there = key in lines and headline in table.headings
            cells.append(table.rows[lines[key]][table.headings.index(headline)] if is_there else MISSING)
        rows.append((*key[0], *cells))
    names = tuple(table.checkpoint for table in tables)
    shaded = names if headline in first.shaded else ()
    headings = (*first.headings[: first.keys], *names)
    return Table("", headings, tuple(rows), keys=first.keys, shaded=shaded, dark=first.dark)


def _counted(things: Iterable[T]) -> list[tuple[T, int]]:
    """Return each heading, or keys of each row, with the number of those before it that are the same."""
    seen, counted = Counter[T](), []
    for thing in things:
        counted.append((thing, seen[thing]))
        seen[thing] += 1
    return counted


def tables_for(place: str, tables: Iterable[Table]) -> list[Table]:
    """Return the tables that are shown in a place."""
    return [table for table in tables if place in table.places]


def with_flags(tables: Sequence[Table], flags: Row) -> list[Table]:
    return [replace(tables[0], flags=(*tables[0].flags, *flags)), *tables[1:]] if tables else []


def join_tables(tables: Iterable[Table]) -> list[Table]:
    """Return the tables; those of several checkpoints whose titles are alike except for the name become one."""
    groups: dict[tuple[str, str], list[Table]] = {}
    for place, table in enumerate(tables):
        alone = "" if table.checkpoint else str(place)
        groups.setdefault((alone, table.title.removeprefix(f"{table.checkpoint}: ")), []).append(table)
    joined = list[Table]()
    for (_, title), some in groups.items():
        if len(some) == 1:
            joined.append(some[0])
            continue
        notes = dict.fromkeys(table.note for table in some)
        joined += side_by_side(capital(title), some, note=" ".join(filter(None, notes)))
    return joined


@dataclass(frozen=True)
class Form:
    """How a format writes texts that are not its own, marks of cells, and intervals."""

    escape: Callable[[str], str]
    best: str = "{}"
    close: str = "{}"
    flagged: str = "{}"
    interval: str = " [{}, {}]"

    def write(self, text: str) -> str:
        """Return a text, or a cell with its marks, in the format."""
        if not isinstance(text, Cell):
            return self.escape(text)
        written = {"best": self.best, "close": self.close, "": "{}"}[text.mark].format(self.escape(text.alone))
        written = self.flagged.format(written) if text.flagged else written
        return written + (self.interval.format(*map(self.escape, text.ends)) if text.ends[0] else "")


_SIGNS = '\\~^|<>[]*"–…†−±×↓↑≥≤σεδλ⚑�'
_IN_LATEX = (
    r"\textbackslash{} \textasciitilde{} \textasciicircum{} \textbar{} \textless{} \textgreater{} {[} {]} {*} {''} "
    r"\textendash{} \ldots{} \textdagger{} $-$ $\pm$ $\times$ $\downarrow$ $\uparrow$ $\geq$ $\leq$ $\sigma$ "
    r"$\varepsilon$ $\delta$ $\lambda$ \textbullet{} ?"
)
_TO_LATEX = str.maketrans(dict(zip(_SIGNS, _IN_LATEX.split(), strict=True)) | {sign: f"\\{sign}" for sign in "&%$#_{}"})
"""Brackets and asterisks, too: after the end of a row they would be its arguments."""


def escape_latex(text: str) -> str:
    """Return a text that LaTeX shows literally, on one line; hyphens stay as many."""
    text = re.sub("-(?=-)", "-{}", one_line(text).translate(_TO_LATEX))
    return text.replace("ℓ∞", r"$\ell_\infty$").replace("ℓ2", r"$\ell_2$")


_LATEX = Form(
    escape_latex,
    best=r"\textbf{{{}}}",
    close=r"\underline{{{}}}",
    flagged=r"{}\textsuperscript{{\textdagger}}",
    interval=r" {{\scriptsize [{}, {}]}}",
)
_MARKDOWN = Form(
    lambda text: text if isinstance(text, Made) else escape_markdown(text), "**{}**", "<u>{}</u>", flagged="{}†"
)


def _written(table: Table, form: Form) -> Iterator[list[str]]:
    """Yield headings, then rows, as a format writes them. A line above a row is bold; it fills one cell, as those
    below rows do."""
    yield [form.escape(heading) for heading in table.headings]
    above, blank = dict(table.heads), [""] * (len(table.headings) - 1)
    for place, row in enumerate(table.rows):
        if place in above:
            yield [form.best.format(form.escape(above[place])), *blank]
        yield [form.write(cell) for cell in row]
        yield from ([form.escape(text), *blank] for at, text in table.below if at == place)


def as_markdown(table: Table) -> Made:
    """Return a table without its title: numbers stand on the right."""
    headings, *rows = ([Made(text) for text in line] for line in _written(table, _MARKDOWN))
    return markdown_table(rows, headings, table.numeric)


def as_latex(table: Table, label: str) -> str:
    """Return a table environment with the rules of booktabs; the title is its caption, flags are comments. label: for
    \\ref."""
    lines = [r"% \usepackage{booktabs}", *(f"% {one_line(flag)}" for flag in table.flags)]
    lines += [r"\begin{table}[t]", r"\centering", rf"\caption{{{escape_latex(table.title)}}}", rf"\label{{{label}}}"]
    headings, *rows = (" & ".join(line) + r" \\" for line in _written(table, _LATEX))
    columns = "l" * table.keys + "r" * (len(table.headings) - table.keys)
    lines += [rf"\begin{{tabular}}{{{columns}}}", r"\toprule", headings, r"\midrule", *rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def as_csv(table: Table, intervals: bool) -> str:
    """Return headings and cells without marks, with the minus sign that programs read. Lines above rows are in a first
    column. intervals: whether their ends stand in columns of their own; else they are left out."""
    ends = ("", " low", " high") if intervals else ("",)
    above, head, first = dict(table.heads), "", [""] if table.heads else []
    lines = [[*first, *table.headings[: table.keys]]]
    lines[0] += [f"{heading}{end}" for heading in table.headings[table.keys :] for end in ends]
    for place, row in enumerate(table.rows):
        head = above.get(place, head)
        cells = (cell if isinstance(cell, Cell) else Cell(cell) for cell in row[table.keys :])
        parts = (part.replace("−", "-") for cell in cells for part in (cell.alone, *cell.ends)[: len(ends)])
        lines.append([*(head for _ in first), *row[: table.keys], *parts])
    sheet = io.StringIO()
    csv.writer(sheet, lineterminator="\n").writerows([no_controls(no_formula(text)) for text in line] for line in lines)
    return sheet.getvalue()
