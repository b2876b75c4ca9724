"""How docstrings are shown on the site: where they are not in sections, `name: meaning` is an entry of a list."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ENTRY = re.compile(r"(?m)^((?:\w+)(?:, \w+)*): (?=\S)")
_CODE = re.compile(r"(?m)(?<=:\n\n)((?: {4}.*\n|\n)+)")


class Shown(griffe.Extension):
    """The one extension of MkDocs' reader of docstrings."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of each object."""
        if obj.docstring is not None:
            obj.docstring.value = shown(obj.docstring.value)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Leave out options that are not explained, such as most of an audit: the signature has them."""
        for section in func.docstring.parsed if func.docstring is not None else ():
            if section.kind is griffe.DocstringSectionKind.parameters:
                section.value = [each for each in section.value if each.description]
            if section.kind is griffe.DocstringSectionKind.other_parameters:
                for each in section.value:
                    if each.name in func.parameters:
                        each.annotation = func.parameters[each.name].annotation


def shown(text: str) -> str:
    """Return a docstring as Markdown in which entries that stand in a paragraph are a list, and code is Python."""

    def entry(found: re.Match[str]) -> str:
        names = found[1].split(", ")
        return "- " + ", ".join(f"`{name}`" for name in names) + ": " if names[0][0].islower() else found[0]

    text = re.sub(r"(?m)^Example:$", "Examples:", text + "\n")  # the name that MkDocs knows
    code = _CODE.sub(lambda found: "```python\n" + re.sub(r"(?m)^ {4}", "", found[1]).strip("\n") + "\n```\n\n", text)
    listed = _ENTRY.sub(entry, code)
    # Markdown wants an empty line before a list that follows a sentence.
    return re.sub(r"(?m)^((?!- |  ).+)\n(- `)", r"\1\n\n\2", listed).rstrip("\n")
