"""Name the papers of what a run used, as BibTeX."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources

from ..common.figure import Figure
from ..runs.manifest import Manifest

_ENTRY = re.compile(r"^@\w+\{.*?^\}", re.MULTILINE | re.DOTALL)
_USES = re.compile(r"^ *for = \{(.*)\},\n", re.MULTILINE)
_FROM = re.compile(r"from=[^,)]*")  # the name of a checkpoint
_WORD = re.compile(r"[a-z][a-z0-9_-]*")


@cache
def references() -> Mapping[str, tuple[str, ...]]:
    """Return each entry of references.bib, with the words that ask for it."""
    text = (resources.files(__package__) / "references.bib").read_text("utf-8")
    return {_USES.sub("", entry): tuple(_USES.findall(entry)[0].split(", ")) for entry in _ENTRY.findall(text)}


def bibtex(manifest: Manifest, rows: Iterable[Figure]) -> str:
    """Return the entries of a run, each once: its formulas, attacks, corruptions, explainers and metrics, and this
    package. rows: of the summary. What plug-ins add has none."""
    used = {"robustkit", *(row.metric for row in rows)}
    for checkpoint in manifest.checkpoints:
        used |= set(_WORD.findall(str(getattr(checkpoint, "attention", "")))[:1])
    for text in manifest.conditions:
        used |= set(_WORD.findall(_FROM.sub("", text)))
    entries = (entry for entry, words in references().items() if not used.isdisjoint(words))
    return "\n\n".join(["% the papers of what this run used", *entries]) + "\n"
