"""The command that corrupts images: contact sheets, trees, comparisons of trees. Heavy imports happen inside it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...cli.options import (
    AT_LEAST_1,
    Command,
    Place,
    Whole,
    common,
    constants_instead,
    images_option,
    request_options,
    setting,
)
from ...cli.terminal import console
from ...common.files import write_whole
from ...display.console import print_as_it_is, print_tables
from ...display.format import Cell, count, number
from ...display.table import Table
from ...errors import BadImageError, DataError, ProtocolError
from ...pipeline.request import ClassificationRequest

if TYPE_CHECKING:
    from rich.console import Console

_run_option, _model_option = partial(setting, section="Run"), partial(setting, section="Model")
_FORMATS = click.Choice(["jpeg", "png"])


@click.command(
    cls=Command,
    after="inspect",
    short_help="corrupt images, or write a tree of corrupted images",
)
@click.argument("images", nargs=-1, metavar="[IMAGE]...")
@setting("--write", type=Place(writes=True), help="Write a tree of corrupted images to this folder.")
@setting("--drift", "drift_from", type=Place(), help="Compare this tree with corruptions computed here.")
@images_option("Clean images for --write and --drift: folder, zip, or embedded:shapes.", required=False)
@setting("--out", section="Output", type=Place(writes=True), help="Contact sheet to write, or a folder for several.")
@setting(
    "--corruptions",
    section="Corruptions",
    help="Sets or names; default: in-c,in-c-extra, for --write in-c, for --drift the tree's.",
)
@request_options(ClassificationRequest, "constants", "variant", "frost_dir", "tiles_dir")
@click.option("--preset", hidden=True, expose_value=False, callback=constants_instead)
@setting(
    "--format", "image_format", section="Output", type=_FORMATS, help="Format of the files of --write; default: jpeg."
)
@setting(
    "--json", "json_file", section="Output", type=Place(writes=True), help="Write the figures of --drift to this file."
)
@_model_option("--img-size", type=Whole(max=4096), help="Size after the crop; default: 224, or 32 for 32x32 images.")
@_model_option("--crop-pct", type=float, help="Size over resized size; default: 0.875, or 1 for 32x32 images.")
@_model_option(
    "--interpolation",
    default="bilinear",
    help="Resize: bilinear (the benchmark's), bicubic, nearest, lanczos, box, hamming.",
)
@_run_option("--batch-size", type=AT_LEAST_1, default=16, help="Batch size.")
@_run_option("--workers", type=AT_LEAST_1, help="Threads that decode and encode images; default: one per core.")
@request_options(ClassificationRequest, "device", "seed", "data", "limit", "ids")
@common
def corrupt(
    images: tuple[str, ...],
    write: Path | None,
    drift_from: Path | None,
    data_dir: str | None,
    out: Path | None,
    image_format: str | None,
    json_file: Path | None,
    **options: Any,
) -> None:
    """Show a picture under the common corruptions, write a corrupted tree, or compare one.

    With IMAGE: a contact sheet of each, every corruption at severities 1 to 5, as <stem>-corruptions.png. With --write:
    the data set as the benchmark was made; rerun the same command to resume an interrupted run. With --drift:
    how far a released tree is from corrupting the same images here.

    \b
    robustkit corrupt cat.jpg
    robustkit corrupt --write imagenet-c --data-dir imagenet/val --corruptions in-c,in-c-extra --limit 1000
    robustkit corrupt --drift imagenet-c --data-dir imagenet/val --limit 100 --json drift.json
    """
    asked = [bool(images), write is not None, drift_from is not None]
    if sum(asked) != 1:
        problem = "none of them" if not any(asked) else "several of them"
        raise ProtocolError(f"give IMAGE..., --write DIR or --drift TREE, exactly one of them; got {problem}")
    mode = "a contact sheet" if images else "--write" if write is not None else "--drift"
    others = {"data_dir": data_dir, "out": out, "image_format": image_format, "json_file": json_file}
    for name in _UNUSED[mode]:
        if (options | others).get(name) is not None:
            option = _SPELLED.get(name, "--" + name.replace("_", "-"))
            raise ProtocolError(f"{option} does not apply to {mode}; leave it out")
    if images:
        _draw(images, out, options)
    elif not data_dir:
        what = "to corrupt" if write is not None else "that the tree was made of"
        raise DataError(f"{mode} needs --data-dir, the clean images {what}")
    elif write is not None:
        _write(write, data_dir, image_format or "jpeg", options)
    elif drift_from is not None:
        _compare(drift_from, data_dir, json_file, options)


_UNUSED = {
    "a contact sheet": ("data_dir", "json_file", "image_format", "limit", "ids", "labels_csv", "real_labels", "layout"),
    "--write": ("json_file", "out"),
    "--drift": ("image_format", "out"),
}
_SPELLED = {"json_file": "--json", "image_format": "--format", "labels_csv": "--labels"}


def _draw(images: Sequence[str], out: Path | None, options: Mapping[str, Any]) -> None:
    from .sheet import write_sheets

    for target, words, notes in write_sheets(images, out, **options):
        print_as_it_is(console(stderr=True), *notes)
        print_as_it_is(console(), f"{target}: {words}")


def _write(out: Path, data_dir: str, image_format: str, options: Mapping[str, Any]) -> None:
    from .sheet import count_of
    from .tree import corrupt_tree

    watch = partial(_bar, console(stderr=True), f"writing {out}")
    done = corrupt_tree(out, data_dir, image_format=image_format, watch=watch, **options)
    note = f", {done.existing} already existed" if done.existing else ""
    count = count_of(done.corruptions)
    print_as_it_is(console(), f"{out}: {done.made} files written{note}; {count} of {done.images} images")
    if bad := done.unreadable:
        raise BadImageError(
            f"{len(bad)} of {done.images} images could not be read and were skipped, the first: {bad[0]}; fix them, "
            "or exclude them with --ids"
        )


def _compare(root: Path, data_dir: str, json_file: Path | None, options: Mapping[str, Any]) -> None:
    from .drift import DRIFT_RULE, compare_tree

    side = console(stderr=True)
    drift = compare_tree(root, data_dir, watch=partial(_bar, side, f"comparing {root}"), **options)
    rows = drift.rows()
    if json_file is not None:
        report = {**drift.settings, "notes": drift.lines, "rows": rows}
        text = json.dumps(report, indent=2, ensure_ascii=False) + "\n"
        write_whole(json_file, text.encode(), remedy="choose another file with --json")
    print_as_it_is(side, *drift.lines)
    print_tables(console(), [drift_table(rows)], "the --json file")
    print_as_it_is(
        console(), "mean absolute difference in grey levels (0-255), averaged over images and severities.", DRIFT_RULE
    )


def drift_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    lines = [
        (
            row["corruption"],
            "1-5" if len(row["severities"]) == 5 else "+".join(map(str, row["severities"])),
            count(row["images"]),
            number(row["apart"], 2),
            number(row["own"], 2) if row["own"] else Cell("not random"),
            number(row["released"], 2),
            number(row["ours"], 2),
            row["verdict"],
        )
        for row in rows
        if row["severity"] is None and row["images"]
    ]
    means = ("released − ours", "ours, two draws", "released − clean", "ours − clean")
    return Table("", ("corruption", "severities", "images", *means, "verdict"), tuple(lines), spare=("images",))


@contextmanager
def _bar(screen: Console, text: str, notes: Sequence[str], total: int) -> Iterator[Callable[[int], None]]:
    """Print notes, then show a bar; see `tree.Watch`."""
    from ...display.progress import Bars

    print_as_it_is(screen, *notes)
    bars = Bars(screen, "files")
    bars.overall = bars.time_left
    with bars:
        task = bars.begin([text], total)
        yield lambda files: bars.advance(task, files)
