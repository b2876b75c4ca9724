"""Render the pages of an index: self-contained, fetching nothing, all text escaped."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from markupsafe import Markup

from ...display.table import TextTable
from ..pages import environment, rendered
from .history import Pairs, histories
from .own_files import MARK
from .reading import IndexRun
from .words import figure_name, figure_text

if TYPE_CHECKING:
    from .runs import Listed


def index_page(folder: Path, listed: Listed, pairs: Pairs, served: bool = False) -> str:
    """Return the page that lists all runs beneath a folder. served: by `serve`, not read from a file."""
    families = dict.fromkeys(
        figure.family
        for run in listed.runs.values()
        for one in run.checkpoints
        for figure in one.figures
        if figure.chief
    )
    every = [(path, run) for path, run in listed.runs.items()]
    return _rendered(
        "index.html.j2",
        ["index.js"],
        title=folder.resolve().name or "/",
        folder=str(folder),
        served=served,
        families=list(families),
        runs=every,
        checkpoints=sum(len(run.checkpoints) for _, run in every),
        names=sorted({one.name for _, run in every for one in run.checkpoints}),
        cards=sorted({run.card for _, run in every}),
        data=sorted({run.data for _, run in every}),
        unfinished=sum(not run.is_whole for _, run in every),
        unreadable=listed.unreadable,
        links=listed.links,
        histories=histories(listed.runs),
        pairs=pairs,
    )


def comparison_page(first: str, second: str, tables: Sequence[TextTable], alone: Sequence[str]) -> str:
    """Return the page that compares two runs, named by their paths beneath the folder."""
    return _rendered("pair.html.j2", [], first=first, second=second, tables=tables, alone=alone)


def _rendered(template: str, scripts: Sequence[str], **values: Any) -> str:
    templates = environment(address=address, words=_words)
    helpers: dict[str, Any] = {
        "mark": Markup(MARK),
        "figure_name": figure_name,
        "figure_text": figure_text,
        "quoted": shlex.quote,
        "at": lambda *names: str(PurePosixPath(*names)),
    }
    return rendered(templates, template, ("style.css", "index.css"), scripts, **helpers, **values)


def address(path: str) -> Markup:
    """Return a path beneath the folder as a relative URL, which has no character of HTML."""
    return Markup(quote(os.fsencode(path)))


def _words(run: IndexRun) -> str:
    """Return what a filter looks for in a run, lower case."""
    return " ".join((run.card, run.data, run.started)).lower()
