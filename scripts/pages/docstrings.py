"""How docstrings are shown on the site: a line `name: meaning` is an entry of a list, and indented code is Python."""

from __future__ import annotations

import re
from typing import Any

import griffe

_ENTRY = re.compile(r"(?m)^((?:\w+)(?:, \w+)*): (?=\S)")
_CODE = re.compile(r"(?m)(?<=:\n\n)((?: {4}.*\n|\n)+)")
_ARGUMENTS = re.compile(r"(?m)^Args:\n((?: {4}.*\n|\n)+)")


class Shown(griffe.Extension):
    """The one extension of MkDocs' reader of docstrings."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of each object."""
        if obj.docstring is not None:
            obj.docstring.value = shown(obj.docstring.value)


def shown(text: str) -> str:
    """Return a docstring as Markdown in which entries that stand in a paragraph are a list."""

    def entry(found: re.Match[str]) -> str:
        names = found[1].split(", ")
        return "- " + ", ".join(f"`{name}`" for name in names) + ": " if names[0][0].islower() else found[0]

    text = _ARGUMENTS.sub(lambda found: "Arguments:\n\n" + re.sub(r"(?m)^ {4}", "", found[1]), text + "\n")
    code = _CODE.sub(
        lambda found: "```python\n" + re.sub(r"(?m)^ {4}", "", found[1]).strip("\n") + "\n```\n\n", text + "\n"
    )
    listed = _ENTRY.sub(entry, code)
    # Markdown wants an empty line before a list that follows a sentence.
    return re.sub(r"(?m)^((?!- |  ).+)\n(- `)", r"\1\n\n\2", listed).rstrip("\n")
