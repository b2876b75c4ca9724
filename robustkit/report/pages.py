"""What the pages of this room share: their templates, their style and scripts, and texts that may break over lines."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from jinja2 import BytecodeCache, Environment, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket
from markupsafe import Markup, escape

from ..display.html import ENLARGE, LOOK, policy, shared
from ..display.text import no_controls, no_formula
from ..errors import RunError
from ..runs.folder import RunFolder

_HERE = Path(__file__).parent
_BREAKS = re.compile(r"(?<=[,:])|(?<=\w\()|(?<=/)(?<!\d/)|(?<=\d/)(?!\d)")
_FRACTION = re.compile(r"(?<![\w./])(\d+/\d+)(?![\w/])")
_WHOLE = Markup('<span class="whole">{}</span>')


class _Compiled(BytecodeCache):
    """Templates that this process has compiled: that takes longer than to fill them in."""

    def __init__(self) -> None:
        self.templates: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self.templates:
            bucket.bytecode_from_string(self.templates[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self.templates[bucket.key] = bucket.bytecode_to_string()


_COMPILED = _Compiled()


def environment(**filters: Callable[..., Any]) -> Environment:
    """Return the environment of the templates of this room and of slices: all text is escaped, no cell begins a
    formula. filters: further ones."""
    templates = Environment(
        loader=FileSystemLoader([_HERE / "templates", *sorted(_HERE.parent.glob("slices/*/templates"))]),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: no_formula(value) if isinstance(value, str) and not isinstance(value, Markup) else value,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=_COMPILED,
    )
    templates.filters |= {"breakable": allow_breaks, "unbroken": _unbroken, "trusted": Markup, **filters}
    return templates


def render_page(
    templates: Environment, template: str, styles: Sequence[str], scripts: Sequence[str], **values: Any
) -> str:
    """Return a page that fetches nothing and runs its own script alone. styles, scripts: among the templates' parts."""

    def part(name: str) -> str:
        if name in (LOOK, ENLARGE) or templates.loader is None:
            return shared(name)
        return templates.loader.get_source(templates, f"parts/{name}")[0]

    script = "\n".join(map(part, scripts))
    text = templates.get_template(template).render(
        **values, style=Markup("\n".join(map(part, (LOOK, *styles)))), script=Markup(script), policy=policy(script)
    )
    return no_controls(text, allowed="\n\t")


_UNBROKEN = re.compile(r"\[[^\]]*\]|\b[pn] [=<] [\d.]+|\d %|--\w+ '[^']*'")


def _unbroken(text: str) -> str:
    """Return a text in which no line breaks inside an interval, `p = 0.01`, `78 %` or `top-1`."""
    return _UNBROKEN.sub(lambda match: match[0].replace(" ", "\u00a0"), text).replace("top-1", "top\u20111")


_GATE = re.compile(r'(?<=<span class="gate">)[^<]*(?=</span>)')


def gate_text(run: RunFolder) -> str:
    """Return what the last check of a run said: `release.toml: passed, 3 pass, ... (28 Nov 2026)`."""
    if gate := run.gate():
        return f"{gate['policy']}: {gate['outcome']} ({gate['date']})"
    return "no policy was checked; robustkit check --init drafts one"


def show_gate(run: RunFolder) -> None:
    """Write what the last check said into the page of a run, if it has one."""
    path = run.path / "report.html"
    with suppress(OSError, RunError, UnicodeDecodeError):  # a page that cannot be written to stays as it is
        if path.is_file():
            text = escape(no_controls(gate_text(run)))
            run.write(path, _GATE.sub(lambda match: str(text), run.read_text(path), count=1).encode())


def allow_breaks(text: str) -> Markup:
    """Return a text as markup that may break after commas, colons, slashes and brackets, never in a fraction."""
    return break_part(no_formula(text))


def break_part(text: str) -> Markup:
    """Return `allow_breaks` of a part of a text, which may begin as a formula does."""

    def whole_fractions(text: str) -> Markup:
        parts = enumerate(_FRACTION.split(text))
        return Markup("").join(_WHOLE.format(part) if place % 2 else escape(part) for place, part in parts)

    return Markup("<wbr>").join(map(whole_fractions, _BREAKS.split(text)))


def figure(text: str) -> Markup:
    """Return a figure as markup that may break before its interval, and before its verdict."""
    return escape(no_formula(text)).replace(" [", Markup(" <wbr>[")).replace("] ", Markup("] <wbr>"))
