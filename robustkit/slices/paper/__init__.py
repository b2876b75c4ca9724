"""What a paper needs: tables of finished runs, comparisons of methods, and a plan of how much to run.

This module has the commands, and imports what it needs when they run.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from ...cli.options import GROUPS, Place, SliceCommand, common, request_options, setting
from ...cli.terminal import console, usable
from ...display.console import print_as_it_is, print_tables
from ...errors import ProtocolError
from ...pipeline.request import ClassificationRequest


def _complete_axis(context: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from .table import SETS

    return [CompletionItem(name) for name in ("checkpoints", "conditions", *SETS) if name.startswith(incomplete)]


@click.command(
    "table",
    cls=SliceCommand,
    after="compare",
    short_help="print a table for a paper: LaTeX, Markdown, CSV, HTML",
)
@click.argument("runs", nargs=-1, required=True, type=Place(file_okay=False), metavar="RUN...")
@setting("--format", type=click.Choice(["latex", "markdown", "csv", "html"]), default="latex", help="Output format.")
@setting(
    "--rows",
    help="Rows: checkpoints, or names of some; conditions, quest, or a list such as pgd,in-c:mce; default: "
    "checkpoints.",
    shell_complete=_complete_axis,
)
@setting(
    "--columns",
    help="Columns, in the same form; default: the other of checkpoints and conditions.",
    shell_complete=_complete_axis,
)
@setting("--intervals", is_flag=True, help="Show 95 % intervals.")
@setting(
    "--method", "named", multiple=True, help="NAME=CHECKPOINTS, such as quest=quest-s*: rows are means over trainings."
)
@setting("--mark", is_flag=True, help="Bold is the best, and underlined what no test tells from it.")
@setting("--turned", is_flag=True, help="Swap rows and columns.")
@request_options(ClassificationRequest, *GROUPS)
@common
def print_table(runs: tuple[Path, ...], format: str, named: tuple[str, ...], **options: Any) -> None:
    """Print a table for a paper: checkpoints by conditions, from records only.

    Bold is the best of a figure, where paired tests tell it from some other, with Holm's correction over the table. The
    caption has data, n, norm, eps and protocol. `quest` is the table of the QUEST paper: clean, FGSM, PGD, SPSA,
    AutoAttack, error and mCE of ImageNet-C, scores of AG-CAM and its lead over the best control, as far as the runs
    have them. Methods have means ± half of the 95 % interval. Doubts are printed on standard error.

    \b
    robustkit table runs/zoo > zoo.tex
    robustkit table runs/standard runs/quest --columns quest --intervals
    robustkit table runs/zoo --rows clean,pgd,in-c:mce --format markdown
    robustkit table runs/segmenters --columns clean:iou
    robustkit table runs/seeds --method "standard=standard-s*" --method "quest=quest-s*" --intervals
    """
    from ...evaluations.presenting import unfinished_line
    from ...results.methods import read_methods
    from ...runs.folder import RunFolder
    from .table import table as table_of

    with usable(*runs):
        opened = [RunFolder.existing(path) for path in runs]
        made = table_of(*opened, methods=read_methods(named) or None, **options)
        unfinished = [f"{run.path}: {line}" for run in opened if (line := unfinished_line(run))]
    print_as_it_is(console(stderr=True), *(f"⚑ {line}" for line in (*unfinished, *made.flags)))
    print_as_it_is(console(), *made.to(format).splitlines())


@click.command(
    "plan",
    cls=SliceCommand,
    after="compare",
    short_help="say how many images or trainings show a difference",
)
@click.argument("runs", nargs=-1, required=True, type=Place(file_okay=False), metavar="RUN...")
@setting("--difference", type=float, required=True, help="Difference to show, in points: 2 of accuracy or error.")
@setting("--power", type=float, default=80.0, help="How often it is to be shown, in per cent.")
@setting("--method", "named", multiple=True, help="NAME=CHECKPOINTS, twice: plan the trainings of two methods.")
@request_options(ClassificationRequest, *GROUPS)
@common
def print_plan(runs: tuple[Path, ...], named: tuple[str, ...], power: float, **options: Any) -> None:
    """Say how many images, groups or trainings show a difference, and what they cost, from a pilot of two checkpoints.

    The pilot is any run, of 100 images or more, as robustkit compare takes it. For right and wrong the power is that of
    McNemar's exact test.

    \b
    robustkit plan runs/pilot --difference 2
    robustkit plan runs/seeds --difference 1 --method "standard=standard-s*" --method "quest=quest-s*"
    """
    from .plan import plan_named

    if not 5 < power < 100:
        raise ProtocolError(f"--power {power:g}: expected per cent, more than 5 and less than 100, such as 80")
    with usable(*runs):
        print_tables(console(), plan_named(runs, named, power=power / 100, **options).tables, "the notebook")
