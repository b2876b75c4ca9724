"""Inspect checkpoints: what is in a file, and which set-up fits its weights.

This module has the command, and imports what it needs when it runs.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import click

from ...cli.completion import checkpoints as known_checkpoints
from ...cli.options import (
    AT_LEAST_1,
    Command,
    common,
    images_option,
    loading,
    option_names,
    refuse_idle,
    request_options,
    setting,
    take_entries,
)
from ...cli.terminal import console
from ...common.options import read_labels
from ...display.console import print_as_it_is, print_line, print_tables
from ...errors import RobustkitWarning
from ...pipeline.request import ClassificationRequest, LabelOptions, SegmentationRequest

_run_option = partial(setting, section="Run")
_SAMPLES = ("data", "limit", "ids")
_SCENES = ("masks", "ignore", "reduce_zero_label")  # of a segmenter's images; --classes is also of a zero-shot model


@click.command(
    cls=Command,
    short_help="show a checkpoint's contents and detect its attention formula",
)
@click.argument("checkpoint", shell_complete=known_checkpoints)
@images_option("Labelled images on which to detect the attention formula and the preprocessing.", required=False)
@setting(
    "--stability",
    section="Maps",
    is_flag=True,
    help="With --data-dir: show logits, norms and entropy of the attention, layer by layer.",
)
@_run_option("--batch-size", type=AT_LEAST_1, default=16, help="Batch size.")
@request_options(ClassificationRequest, "device")
@_run_option("--seed", type=int, default=0, help="Seed of --limit.")
@request_options(SegmentationRequest, *_SCENES)
@request_options(ClassificationRequest, "model", *_SAMPLES)
@common
def inspect(checkpoint: str, data_dir: str | None, **options: Any) -> None:
    """Show what is in a checkpoint, whether it is safe, and with --data-dir which formula and preprocessing fit.

    \b
    robustkit inspect model.pth
    robustkit inspect model.safetensors --data-dir imagenet/val --limit 200 --stability
    robustkit inspect segmenter.pth --data-dir images --masks labels --classes names.txt --limit 50
    """
    with loading():
        from ...display.progress import Bars
        from .inspection import Ranked, Stated, look_into

    if data_dir is None:
        refuse_idle(
            (*option_names(LabelOptions), *_SCENES, "limit", "ids"),
            "only for images, and --data-dir is missing; give a folder of them, or leave it out",
        )
    model, data = (take_entries(ClassificationRequest, name, options) for name in ("model", "data"))
    scenes = {name: options.pop(name) for name in _SCENES}
    scenes["ignore"] = read_labels(scenes["ignore"])
    screen, side = console(), console(stderr=True)
    options |= {"check": _refuse_other, "bars": lambda: Bars(side, "passes")}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RobustkitWarning)  # of what is assumed, which has lines of its own
        for item in look_into(checkpoint, data_dir, model=model, data=data, scenes=scenes, **options):
            if isinstance(item, Ranked):
                print_tables(screen, [item.table])
            elif isinstance(item, Stated):
                screen.print(item.heading, markup=False, highlight=False)
                print_as_it_is(screen, item.command)
            elif isinstance(item, tuple):
                print_line(screen, f"{item[0]:>14}  {item[1]}", indent=16)
            else:
                print_line(screen, item)


def _refuse_other(segments: bool) -> None:
    """Raise ProtocolError for options of the other kind's images."""
    if segments:
        refuse_idle(option_names(LabelOptions), "only for a classifier's images, and this is a segmenter; leave it out")
    else:
        refuse_idle(_SCENES, "only for a segmenter's images, and this is a classifier; leave it out")
