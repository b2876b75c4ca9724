"""Run `robustkit view`: write the index of a folder's runs, and show it on this machine if asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..display.console import print_line
from ..errors import RunError
from ..report.index.page import server_of, write_index


def view_runs(folder: Path, compared: int, port: int | None, console: Any) -> None:
    """Write the index and say what is on it; then serve it on 127.0.0.1 where a port is given."""
    index = write_index(folder, compared)
    runs, unreadable = index.listed.runs, index.listed.unreadable
    unfinished = sum(not run.is_whole for run in runs.values())
    parts = [f"{len(runs)} run{'s' * (len(runs) != 1)}"]
    parts += [f"{unfinished} unfinished"] if unfinished else []
    parts += [f"{len(unreadable)} not readable"] if unreadable else []
    print_line(console, f"index: {index.path} ({', '.join(parts)})")
    for name, why in unreadable.items():
        print_line(console, f"⚑ {name}: {why}")
    if port is None:
        return
    try:
        server = server_of(folder, port)
    except OSError as fault:
        raise RunError(f"--port {port}: {fault.strerror or fault}; choose another, or 0 for a free one") from None
    print_line(console, f"http://127.0.0.1:{server.server_port}/ until Ctrl-C")
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            console.print()  # after ^C
