"""Show tables and lines in a notebook, as HTML that escapes every text."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from html import escape
from typing import Any

from .table import TextTable


def as_html(tables: Iterable[TextTable], lines: Iterable[str] = ()) -> str:
    """Return lines as paragraphs, then the tables, each under its title, with its flags, and notes once."""
    parts, notes = [f"<p>{escape(line)}</p>" for line in lines], dict[str, None]()
    for table in tables:
        above, below = dict(table.heads), list(table.below)
        rows = ["".join(f"<th>{escape(heading)}</th>" for heading in table.headings)]
        for place, row in enumerate(table.rows):
            whole = f'<th colspan="{len(table.headings)}">'
            rows += [f"{whole}{escape(above[place])}</th>"] if place in above else []
            rows.append("".join(f"<td>{escape(cell)}</td>" for cell in row))
            rows += [f"{whole.replace('th', 'td')}{escape(text)}</td>" for at, text in below if at == place]
        body = "\n".join(f"<tr>{row}</tr>" for row in rows)
        parts.append(f"<table>\n<caption>{escape(table.title)}</caption>\n{body}\n</table>")
        parts += (f"<p>⚑ {escape(flag)}</p>" for flag in table.flags)
        notes |= {table.note: None} if table.note else {}
    return "\n".join([*parts, *(f"<p><small>{escape(note)}</small></p>" for note in notes)])


def finite_json(content: Any) -> str:
    """Return JSON in which None stands for what is not finite."""

    def finite(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: finite(each) for key, each in value.items()}
        if isinstance(value, list | tuple):
            return [finite(each) for each in value]
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return json.dumps(finite(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
