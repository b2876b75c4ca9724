"""Write tables as HTML in which every text is escaped, and what pages share: how they look, enlarged pictures."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable, Iterable
from importlib import resources

from markupsafe import Markup, escape

from .format import Cell
from .table import Table

_EXPLAINED = ("condition", "figure", "score", "stage", "mean over", "under")  # headings of keys that have words
Write = Callable[[str], Markup]
LOOK, ENLARGE = "look.css", "enlarge.js"


def html_table(table: Table, words: Write = escape, names: Write = escape, numbers: Write = escape) -> Markup:
    """Return a table with its heads and the lines below its rows. words, names, numbers: write headings, texts and
    numbers as markup."""
    numeric, above = table.numeric, dict(table.heads)
    across, lines = Markup('<tr><th scope="rowgroup" colspan="{}">{}</th></tr>'), list[Markup]()
    headings = (
        Markup('<th scope="col"{}>{}</th>').format(Markup(' class="num"') if place in numeric else "", words(heading))
        for place, heading in enumerate(table.headings)
    )
    for row, cells in enumerate(table.rows):
        lines += [across.format(len(table.headings), names(above[row]))] if row in above else []
        again = Markup(' class="again"') if row in table.repeats else ""
        inside = Markup()
        for place, cell in enumerate(cells):
            if place < table.keys:
                key = words(cell) if table.headings[place] in _EXPLAINED else names(cell)
                inside += Markup('<th scope="row" class="plain">{}</th>').format(key)
                continue
            kind = "num" if place in numeric else "flag" if cell[:1] == "⚑" else "text"
            if (shade := table.shade(row, place)) is not None:
                kind = Markup('{} heat" style="--heat: {:.0f}%').format(Markup(kind), 70 * shade)
            text = _marked(cell, numbers if place in numeric else names)
            inside += Markup('<td class="{}">{}</td>').format(kind, text)
        lines.append(Markup("<tr{}>{}</tr>").format(again, inside))
        under = (names(text) for place, text in table.below if place == row)
        lines += (Markup('<tr><td colspan="{}">{}</td></tr>').format(len(table.headings), text) for text in under)
    top = Markup("<thead><tr>{}</tr></thead>").format(Markup().join(headings))
    return Markup("<table>\n{}\n<tbody>\n{}\n</tbody>\n</table>").format(top, Markup("\n").join(lines))


def _marked(text: str, write: Write) -> Markup:
    """Return a text as markup: the best in bold, what no test tells from it underlined, a dagger for a doubt."""
    if not isinstance(text, Cell) or not (text.mark or text.flagged):
        return write(text)
    number = {"best": Markup("<b>{}</b>"), "close": Markup("<u>{}</u>"), "": Markup("{}")}[text.mark]
    dagger = Markup("<sup>†</sup>") if text.flagged else ""
    return number.format(write(text.alone)) + dagger + write(text.removeprefix(text.alone))


def as_html(tables: Iterable[Table], lines: Iterable[str] = ()) -> str:
    """Return lines as paragraphs, then the tables, each under its title, with its flags, and notes once."""
    paragraph, parts, notes = Markup("<p>{}</p>"), list[Markup](), dict[str, None]()
    parts += map(paragraph.format, lines)
    for table in tables:
        caption = Markup("<table>\n<caption>{}</caption>").format(table.title)
        parts.append(caption + html_table(table).removeprefix("<table>"))
        parts += (paragraph.format(f"⚑ {flag}") for flag in table.flags)
        notes |= {table.note: None} if table.note else {}
    return str(Markup("\n").join([*parts, *(Markup("<p><small>{}</small></p>").format(note) for note in notes)]))


def shared(name: str) -> str:
    """Return a style sheet or a script, `LOOK` or `ENLARGE`."""
    return (resources.files(__package__) / "web" / name).read_text(encoding="utf-8")


def policy(script: str) -> str:
    """Return the Content-Security-Policy of a page that fetches nothing and runs this script alone; '' for none."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    source = f"'sha256-{digest}'" if script else "'none'"
    return (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src {source}; base-uri 'none'; "
        "form-action 'none'"
    )
