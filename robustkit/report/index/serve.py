"""Show an index on this machine alone: the index, comparisons on request, and the pages of the runs that it lists."""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from contextvars import copy_context
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, unquote_to_bytes, urlsplit

from ...display.text import no_controls
from ...runs.files import RunFiles
from .page import compared, index_page, write_pairs
from .scan import FOLDER, Listed, is_own, keep, list_runs

KEPT = 16
"""The comparisons that are kept; those that were asked for longest ago go first."""
_PAGES = ("report.html", "cams/gallery.html")
"""The files of a run that are shown: its report, and what that links to."""
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
        """Return the index as the folder is now."""
        with self._lock:
            self._listed = listed = list_runs(self.folder)
            keep(self.folder, listed)
            return index_page(self.folder, listed, write_pairs(self.folder, listed, 0), served=True)

    def comparison(self, first: str, second: str) -> str | None:
        """Return the page that compares two runs; None where one of them is not listed. Raises RobustkitError."""
        with self._lock:
            listed = self._known()
            if first == second or not {first, second} <= listed.runs.keys():
                return None
            key = (first, listed.stamps[first], second, listed.stamps[second])
            if key not in self._compared:
                self._compared[key] = compared(self.folder, first, second)
            self._compared.move_to_end(key)
            if len(self._compared) > KEPT:
                self._compared.popitem(last=False)
            return self._compared[key]

    def file(self, path: str) -> bytes | None:
        """Return a page of a listed run, or a comparison that was written; None for any other path.

        Raises:
            RunError: a link is on the way. OSError: the page cannot be read.
        """
        folder, _, name = path.rpartition("/")
        if folder == FOLDER and name.startswith("compare-") and is_own(self.folder / path):
            return RunFiles(self.folder).read_bytes(self.folder / path)
        for page in _PAGES:
            if f"/{path}".endswith(f"/{page}"):
                return self._page(path.removesuffix(page).removesuffix("/") or ".", page)
        return None

    def _page(self, run: str, page: str) -> bytes | None:
        with self._lock:
            if run not in self._known().runs:
                return None
        place = RunFiles(self.folder / run)
        try:
            return place.read_bytes(place.path / page)
        except FileNotFoundError:
            return None

    def _known(self) -> Listed:
        if self._listed is None:
            self._listed = list_runs(self.folder)
        return self._listed


class _Handler(BaseHTTPRequestHandler):
    server_version, sys_version = "robustkit", ""

    def __init__(self, site: Site, *arguments: Any) -> None:
        self.site = site
        super().__init__(*arguments)

    def do_GET(self) -> None:
        host = (self.headers.get("Host") or "").lower().partition(":")[0]
        if host not in ("127.0.0.1", "localhost"):  # a page elsewhere may call this address by a name of its own
            self._send(HTTPStatus.FORBIDDEN, "This index is for this machine alone.\n")
            return
        try:
            answer = self._answer()
        except Exception as fault:  # also of what runs of someone else hold
            answer = HTTPStatus.CONFLICT, f"{fault or type(fault).__name__}\n"
        self._send(*answer)

    def _answer(self) -> tuple[Any, ...]:
        """Return what `_send` sends."""
        parts = urlsplit(self.path)
        path = os.fsdecode(unquote_to_bytes(parts.path)).lstrip("/")
        if path in ("", "index.html"):
            return HTTPStatus.OK, self.site.index(), "text/html"
        if path == "compare":
            asked = parse_qs(parts.query, encoding="utf-8", errors="surrogateescape")
            page = self.site.comparison(asked.get("first", [""])[0], asked.get("second", [""])[0])
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
    daemon_threads = True

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
