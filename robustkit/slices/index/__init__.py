"""Make an index of all runs in a folder: a page that is opened as a file, and a server for this machine alone.

This is the command; heavy imports happen inside it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...cli.options import AT_LEAST_0, Place, SliceCommand, common, setting
from ...cli.terminal import console, usable
from ...display.console import print_line
from ...errors import RunError


@click.command(cls=SliceCommand, after="compare", short_help="write an index of all runs in a folder")
@click.argument("folder", type=Place(file_okay=False), required=False)
@setting(
    "--compare", "compared", type=AT_LEAST_0, default=8, help="Compute at most N new comparisons of consecutive runs."
)
@setting("--serve", is_flag=True, help="Serve the index on this machine only, until Ctrl-C.")
@setting("--port", type=click.IntRange(0, 65535), default=8321, help="With --serve: the port; 0 picks a free one.")
@common
def view(folder: Path | None, compared: int, serve: bool, port: int) -> None:
    """Write an index of all runs in a folder: FOLDER/index.html, to be opened as a file. FOLDER defaults to the first
    of runs, robustkit-runs and the current folder that contains runs.

    It lists what was audited, when, on which data and under which card, with the figures that matter and the flags,
    shows the history of each checkpoint's name, and compares consecutive runs of a name. With --serve any two runs
    are compared on request.

    \b
    robustkit view
    robustkit view runs --serve --port 8000
    """
    folder = folder or folder_of_runs()
    with usable(folder):
        view_runs(folder, compared, port if serve else None, console())


def folder_of_runs() -> Path:
    """Return the usual folder that has runs. Raises RunError where there are none here."""
    for folder in map(Path, ("runs", "robustkit-runs", ".")):
        if next(folder.glob("**/run.json"), None) is not None:
            return folder
    raise RunError("no runs in runs, robustkit-runs or this folder; give the folder that has them")


def view_runs(folder: Path, compared: int, port: int | None, screen: Any) -> None:
    """Write the index and say what is on it; then serve it on 127.0.0.1 where a port is given."""
    from .page import server_of, write_index

    index = write_index(folder, compared)
    runs, unreadable = index.listed.runs, index.listed.unreadable
    unfinished = sum(not run.is_whole for run in runs.values())
    parts = [f"{len(runs)} run{'s' * (len(runs) != 1)}"]
    parts += [f"{unfinished} unfinished"] if unfinished else []
    parts += [f"{len(unreadable)} not readable"] if unreadable else []
    print_line(screen, f"index: {index.path} ({', '.join(parts)})")
    for name, why in unreadable.items():
        print_line(screen, f"⚑ {name}: {why}")
    if port is None:
        return
    try:
        server = server_of(folder, port)
    except OSError as fault:
        raise RunError(f"--port {port}: {fault.strerror or fault}; choose another, or 0 for a free one") from None
    print_line(screen, f"http://127.0.0.1:{server.server_port}/ until Ctrl-C")
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            screen.print()  # after ^C
