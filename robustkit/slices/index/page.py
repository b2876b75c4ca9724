"""Render the pages of an index of runs: self-contained, fetching nothing; and show them on this machine alone, with
comparisons on request, and the pages of the runs that it lists.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shlex
import sys
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path, PurePosixPath
from threading import Lock
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote_to_bytes, urlsplit

from markupsafe import Markup

from ...common.figure import Figure
from ...display.format import figure_cell
from ...display.svg import INK, Plot, dots, labels, legend, series_shift, shorten_name, style
from ...display.text import no_controls
from ...errors import RunError
from ...report.pages import environment, render_page
from ...results.comparison import compare_sides
from ...results.pairing import checkpoint_changes, checkpoint_pairs, run_changes, unpaired_lines
from ...results.tables import compared_tables
from ...runs.folder import RunFolder
from ...tasks import find_metric
from . import scan
from .scan import FOLDER, PAGE, IndexCheckpoint, Indexed, IndexRun, Listed

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas


def figure_name(indexed: Indexed) -> str:
    """Return `top-1 %, PGD, 1/255, 20 steps`."""
    figure = indexed.figure
    definition = find_metric(figure.metric)
    label = definition.label if definition and definition.label else figure.metric
    return f"{label}, {indexed.called}"


def index_text(figure: Figure) -> str:
    """Return `86.7 [75.8, 93.1]` under the metric's label."""
    definition = find_metric(figure.metric)
    return figure_cell(figure, definition.scale if definition else 1.0)


SERIES = 4  # in a chart
TICKS = 5  # at most, so that none touches another
CHARTS = 24  # drawn, of the names with the newest runs; the others have their tables

_CAPTION = "Each mark is a run with its 95 % interval; runs are in the order in which they started."
_OTHERS = "A dotted line marks a change of set-up: differences across it are not due to the checkpoint alone."
Key = tuple[str, str]  # Condition and metric
Entry = tuple[str, IndexRun, IndexCheckpoint]  # a run by its path, and what a checkpoint's name was there


@dataclass(frozen=True)
class History:
    """A checkpoint's name on one data set under one card. runs: the oldest first. changes: of each run, what differs
    from the run before. keys: of the figures shown. chart: None where none is in percent."""

    name: str
    data: str
    card: str
    runs: tuple[Entry, ...]
    changes: tuple[tuple[str, ...], ...]
    keys: tuple[Key, ...]
    chart: Plot | None = None

    @property
    def named(self) -> dict[Key, str]:
        """What people call each figure."""
        every = (indexed for _, _, checkpoint in self.runs for indexed in checkpoint.figures)
        return {indexed.figure.key: figure_name(indexed) for indexed in every}

    @property
    def headings(self) -> list[str]:
        return [self.named[key] for key in self.keys]

    def cells(self, checkpoint: IndexCheckpoint) -> list[str]:
        by_key = _by_key(checkpoint)
        return [index_text(by_key[key]) if key in by_key else "–" for key in self.keys]


@dataclass
class Pairs:
    """Comparisons of consecutive runs, by (older, newer). pages: where they lie. failed: why some cannot be. waiting:
    those for which there was no time. changes: what differs in the request in the newer run."""

    pages: dict[tuple[str, str], str] = field(default_factory=dict)
    failed: dict[tuple[str, str], str] = field(default_factory=dict)
    waiting: list[tuple[str, str]] = field(default_factory=list)
    changes: dict[tuple[str, str], list[str]] = field(default_factory=dict)


def histories(runs: Mapping[str, IndexRun]) -> list[History]:
    """Return the history of each name that several runs have, with charts for the first of them. runs: newest first."""
    result = list[History]()
    for newest_first in _by_name(runs):
        if len(newest_first) < 2:
            continue
        _, run, checkpoint = newest_first[0]
        keys, entries = tuple(each.figure.key for each in checkpoint.figures if each.chief), newest_first[::-1]
        changes = ((), *(tuple(_changes(older, newer)) for older, newer in pairwise(entries)))
        history = History(checkpoint.name, f"{run.n} samples of {run.data}", run.card, tuple(entries), changes, keys)
        result.append(replace(history, chart=_chart(history)) if len(result) < CHARTS else history)
    return result


def consecutive_runs(runs: Mapping[str, IndexRun]) -> dict[tuple[str, str], list[str]]:
    """Return (older, newer) paths of consecutive runs of a name, the newest first, with what differs in the request."""
    pairs: dict[tuple[str, str], list[str]] = {}
    for group in _by_name(runs):
        for newer, older in pairwise(group):
            changes = pairs.setdefault((older[0], newer[0]), [])
            changes += [change for change in _changes(older, newer) if change not in changes]
    place = {path: number for number, path in enumerate(runs)}
    return dict(sorted(pairs.items(), key=lambda item: (place[item[0][1]], place[item[0][0]])))


def _by_name(runs: Mapping[str, IndexRun]) -> list[list[Entry]]:
    """Return the entries of each name with figures on one data set under one card, in the order of the runs."""
    groups: dict[tuple[str, ...], list[Entry]] = {}
    for path, run in runs.items():
        for checkpoint in run.checkpoints:
            if checkpoint.figures:
                key = (checkpoint.name, run.data_digest, run.card, run.task)
                groups.setdefault(key, []).append((path, run, checkpoint))
    return list(groups.values())


def _changes(older: Entry, newer: Entry) -> list[str]:
    """Return what differs in the request: how the checkpoint was built and is shown images, seed, precision, files."""
    changes = checkpoint_changes(older[2].setup, newer[2].setup)
    lines = [*changes.values(), *(finding.text for finding in run_changes(older[1].setup, newer[1].setup))]
    return [shorten_name(line, 120) for line in lines]


def _by_key(checkpoint: IndexCheckpoint) -> dict[Key, Figure]:
    return {indexed.figure.key: indexed.figure for indexed in checkpoint.figures}


def _chart(history: History) -> Plot | None:
    """Draw the figures in percent over the runs, with their intervals. A line ends where another set-up begins."""
    keys = [key for key in history.keys if (metric := find_metric(key[1])) and metric.scale == 100][:SERIES]
    if not keys:
        return None
    entries = history.runs
    series = {key: [_by_key(checkpoint).get(key) for _, _, checkpoint in entries] for key in keys}
    called = history.named
    named = labels((called[key] for key in keys), 56)
    looks = {named[called[key]]: style(place) for place, key in enumerate(keys)}
    points = [figure for key in keys for figure in series[key] if figure is not None]
    ends = [100 * end for p in points for end in (p.value, p.low, p.high) if math.isfinite(end)]
    others = [place for place, changes in enumerate(history.changes) if changes]

    def paint(canvas: Canvas) -> None:
        axes = canvas.subplots()
        for place, (key, look) in enumerate(zip(keys, looks.values(), strict=True)):
            for first, end in pairwise([0, *others, len(entries)]):
                points = [(at, figure) for at in range(first, end) if (figure := series[key][at]) is not None]
                marks = [figure for _, figure in points]
                dots(axes, [at for at, _ in points], marks, look, shift=series_shift(place, len(keys), 5))
        for place in others:
            axes.axvline(place - 0.5, color=INK, linewidth=1, linestyle=":")
        axes.set_xlim(-0.5, len(entries) - 0.5)
        axes.set_ylim(min(0, *ends) - 3, max(ends) + 3)
        places = range(0, len(entries), -(-len(entries) // TICKS))
        axes.set_xticks(places, _times([entries[at][1].started for at in places]))
        axes.set_ylabel("%")
        axes.tick_params(length=0)
        legend(canvas, looks, columns=1)

    texts = [
        f"{called[key]}: {', '.join('none' if figure is None else index_text(figure) for figure in series[key])}"
        for key in keys
    ]
    texts += [f"from run {place + 1} on, {', '.join(history.changes[place])}" for place in others]
    alt = f"{history.name} over {len(entries)} runs, the oldest first. {'; '.join(texts)}"
    return Plot(
        *("history", f"{history.name} over {len(entries)} runs", 205 + 16 * len(keys), paint),
        alt=alt[:4000],
        caption=f"{_CAPTION} {_OTHERS}" if others else _CAPTION,
        name="\n".join(path for path, _, _ in entries),
    )


def _times(started: Sequence[str]) -> list[str]:
    """Return when runs began as ticks: the date; where dates coincide the time, and below it each date once."""
    dates = [text[:10] for text in started]
    if len(set(dates)) == len(dates):
        return dates
    end = 16 if len({text[:16] for text in started}) == len(started) else 19
    news = [date if date != before else "" for date, before in zip(dates, ["", *dates], strict=False)]
    return [f"{text[11:end]}\n{date}" for text, date in zip(started, news, strict=True)]


def index_page(folder: Path, listed: Listed, pairs: Pairs, served: bool = False) -> str:
    """Return the page that lists all runs beneath a folder. served: by `serve`, not read from a file."""
    every = [*listed.runs.items()]
    rows = [one for _, run in every for one in run.checkpoints]
    often = Counter(family for one in rows for family in {each.family for each in one.figures if each.chief})
    families = [family for family, count in often.items() if 2 * count >= len(rows)]  # the reports have the others
    first = {"clean": 0, "attacks": 1}
    return _rendered(
        "index.html.j2",
        ["tables.js", "index.js"],
        title=folder.resolve().name or "/",
        folder=str(folder),
        served=served,
        gates=2 * sum(bool(run.gate[0]) for _, run in every) >= len(every),
        families=sorted(families, key=lambda name: first.get(name, len(first))),
        runs=every,
        checkpoints=len(rows),
        names=sorted({one.name for one in rows}),
        cards=sorted({run.card for _, run in every}),
        data=sorted({run.data for _, run in every}),
        unfinished=sum(not run.is_whole for _, run in every),
        unreadable=listed.unreadable,
        links=listed.links,
        histories=histories(listed.runs),
        pairs=pairs,
    )


def _rendered(template: str, scripts: Sequence[str], **values: Any) -> str:
    # What a filter looks for in a run, lower case.
    templates = environment(
        address=lambda path: Markup(quote(os.fsencode(path))),  # a relative URL, which has no character of HTML
        words=lambda run: " ".join((run.card, run.data, run.started)).lower(),
    )
    helpers: dict[str, Any] = {
        "mark": Markup(scan.MARK),
        "figure_name": figure_name,
        "figure_text": index_text,
        "quoted": shlex.quote,
        "at": lambda *names: str(PurePosixPath(*names)),
    }
    return render_page(templates, template, ("style.css", "index.css"), scripts, **helpers, **values)


COMPARED = 8  # New comparisons that an index computes at most; each reads the records of two runs


def write_pairs(folder: Path, listed: Listed, most: int = COMPARED) -> Pairs:
    """Write the missing comparisons, the newest first and `most` of them; delete those out of date."""
    changes = consecutive_runs(listed.runs)
    written, left = Pairs(changes=changes), most
    for pair in changes:
        made_of = json.dumps([scan.VERSION, pair, {name: listed.stamps[name] for name in pair}])
        name = f"{FOLDER}/compare-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.html"
        if scan.is_own_file(folder / name):
            written.pages[pair] = name
        elif left <= 0:
            written.waiting.append(pair)
        else:
            left -= 1
            try:
                page = comparison_page(folder, *pair)
            except Exception as fault:  # records of someone else spoil their own comparison only
                written.failed[pair] = str(fault) or type(fault).__name__
                continue
            scan.write_file(folder, name, page)
            written.pages[pair] = name
    current = set(written.pages.values())
    for path in (folder / FOLDER).glob("compare-*.html"):
        if f"{FOLDER}/{path.name}" not in current and scan.is_own_file(path):
            path.unlink(missing_ok=True)
    return written


def comparison_page(folder: Path, first: str, second: str) -> str:
    """Return the page on the second run's figures less those of the first. Raises RobustkitError."""
    opened = [RunFolder.existing(folder / name) for name in (first, second)]
    comparison, alone = compare_sides(checkpoint_pairs(opened)), unpaired_lines(opened)
    return _rendered("pair.html.j2", [], first=first, second=second, tables=compared_tables(comparison), alone=alone)


@dataclass(frozen=True)
class Index:
    path: Path
    listed: Listed
    pairs: Pairs


def write_index(folder: Path, compared: int = COMPARED) -> Index:
    """Write the index of all runs beneath a folder; return what is on it. compared: new comparisons at most. Raises
    RunError where there is no such folder, it cannot be written, or another program's file is in the place of one."""
    if not folder.is_dir():
        raise RunError(f"{folder}: there is no such folder; give the one that holds your runs, such as runs")
    scan.index_place(folder, PAGE)  # before anything is written
    listed = scan.list_runs(folder)
    scan.write_cache(folder, listed)
    pairs = write_pairs(folder, listed, compared)
    return Index(scan.write_file(folder, PAGE, index_page(folder, listed, pairs)), listed, pairs)


KEPT = 16  # the comparisons that are kept; those that were asked for longest ago go first
_OPENED = ("report.html", "cams/gallery.html")  # the files of a run that are shown: its report, and what that links to
_OWN = "frame-ancestors 'none'"
_OF_OTHERS = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
    "script-src 'unsafe-inline'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""The page of a run may be of someone else: it gets an origin of its own, and nothing to fetch from."""


class Site:
    """What is shown of a folder. Only files of runs that the index lists are opened, and none through a link."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._lock = Lock()
        self._listed: Listed | None = None
        self._compared = OrderedDict[tuple[object, ...], str]()  # the one that was asked for last stands last

    def index(self) -> str:
        with self._lock:
            self._listed = listed = scan.list_runs(self.folder)
            scan.write_cache(self.folder, listed)
            return index_page(self.folder, listed, write_pairs(self.folder, listed, 0), served=True)

    def comparison(self, first: str, second: str) -> str | None:
        """Return the page that compares two runs; None where one of them is not listed. Raises RobustkitError."""
        with self._lock:
            listed = self._known()
            if first == second or not {first, second} <= listed.runs.keys():
                return None
            key = (first, listed.stamps[first], second, listed.stamps[second])
            if key not in self._compared:
                self._compared[key] = comparison_page(self.folder, first, second)
            self._compared.move_to_end(key)
            if len(self._compared) > KEPT:
                self._compared.popitem(last=False)
            return self._compared[key]

    def file(self, path: str) -> bytes | None:
        """Return a page of a listed run, or a comparison that was written; None for any other path. Raises RunError,
        OSError."""
        folder, _, name = path.rpartition("/")
        if folder == FOLDER and name.startswith("compare-") and scan.is_own_file(self.folder / path):
            return RunFolder(self.folder).read_bytes(self.folder / path)
        page = next((page for page in _OPENED if f"/{path}".endswith(f"/{page}")), "")
        run = path.removesuffix(page).removesuffix("/") or "."
        with self._lock:
            if not page or run not in self._known().runs:
                return None
        place = RunFolder(self.folder / run)
        with suppress(FileNotFoundError):
            return place.read_bytes(place.path / page)
        return None

    def _known(self) -> Listed:
        if self._listed is None:
            self._listed = scan.list_runs(self.folder)
        return self._listed


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version = "robustkit", ""

    def __init__(self, site: Site, *arguments: Any) -> None:
        self.site = site
        super().__init__(*arguments)

    def do_GET(self) -> None:
        host = (self.headers.get("Host") or "").lower().partition(":")[0]
        if host not in ("127.0.0.1", "localhost"):  # a page elsewhere may call this address by a name of its own
            self._send(HTTPStatus.FORBIDDEN, "This index is served to this machine only.\n")
            return
        try:
            answer = self._answer()
        except Exception as fault:  # also of what runs of someone else hold
            answer = HTTPStatus.CONFLICT, f"{str(fault) or type(fault).__name__}\n"
        self._send(*answer)

    def _answer(self) -> tuple[Any, ...]:
        parts = urlsplit(self.path)
        path = os.fsdecode(unquote_to_bytes(parts.path)).lstrip("/")
        if path in ("", "index.html"):
            return HTTPStatus.OK, self.site.index(), "text/html"
        if path == "compare":
            query = parse_qs(parts.query, encoding="utf-8", errors="surrogateescape")
            page = self.site.comparison(query.get("first", [""])[0], query.get("second", [""])[0])
            return (HTTPStatus.OK, page, "text/html") if page else (HTTPStatus.NOT_FOUND, "No such run.\n")
        if (data := self.site.file(path)) is not None:
            return HTTPStatus.OK, data, "text/html", _OF_OTHERS
        return HTTPStatus.NOT_FOUND, "There is no such page.\n"

    def _send(self, status: HTTPStatus, body: str | bytes, kind: str = "text/plain", policy: str = _OWN) -> None:
        data = body.encode("utf-8", "replace") if isinstance(body, str) else body
        self.send_response(status)
        for name, value in (
            ("Content-Type", f"{kind}; charset=utf-8"),
            ("Content-Length", str(len(data))),
            ("Content-Security-Policy", policy),
            ("X-Content-Type-Options", "nosniff"),
            ("Referrer-Policy", "no-referrer"),
            ("Cache-Control", "no-store"),
        ):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing: paths may come from anyone on this machine."""


class _Server(ThreadingHTTPServer):
    def __init__(self, *arguments: Any) -> None:
        self._context = copy_context()  # with the plug-ins of the command
        super().__init__(*arguments)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        self._context.copy().run(super().process_request_thread, request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that hung up, and one line of anything else."""
        fault = sys.exc_info()[1]
        if not isinstance(fault, ConnectionError | TimeoutError):
            print(f"error: {type(fault).__name__}: {no_controls(str(fault))[:300]}", file=sys.stderr)


def server_of(folder: Path, port: int) -> ThreadingHTTPServer:
    """Return a server of the index on 127.0.0.1; port 0 takes a free one. Raises OSError where the port is taken."""
    return _Server(("127.0.0.1", port), partial(_Handler, Site(folder)))
