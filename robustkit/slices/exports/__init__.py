"""Write results in the forms that others read: a model card with its badge, Every Eval Ever, the Hub's, CSV, a tracker.
These are the commands; what they do is imported inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ...cli.options import Place, SliceCommand, common, setting
from ...cli.terminal import console, say_unfinished, usable
from ...display.console import print_as_it_is

_FORMATS = ("every-eval-ever", "hf-eval-results", "model-index", "csv", "tensorboard", "mlflow", "wandb")
"""As `formats` has them, which is loaded late."""


@click.command(
    "card",
    cls=SliceCommand,
    after="check",
    short_help="write a model card, results as JSON, and a badge",
)
@click.argument("run", type=Place(file_okay=False))
@setting("--checkpoint", help="Checkpoint of the run; required if it has several.")
@setting("--out", type=Place(writes=True), help="Output folder; default: RUN/card.")
@setting("--crosswalk", is_flag=True, help="Also say for which clauses of standards figures are evidence.")
@common
def write_card(run: Path, **options: Any) -> None:
    """Write files for a released checkpoint: a section and metadata of its model card, a JSON, a badge.

    \b
    robustkit card runs/vit --out release
    """
    from .card import write_cards

    with usable(run):
        paths = write_cards(run, **options)
    print_as_it_is(console(), *map(str, paths))


@click.command(
    cls=SliceCommand,
    after="card",
    short_help="write results for Every Eval Ever, the Hub, CSV, a tracker",
)
@click.argument("run", type=Place(file_okay=False))
@setting("--format", type=click.Choice(_FORMATS), required=True, help="Form of the results.")
@setting("--out", type=Place(writes=True), help="Output folder of files; default: RUN/export.")
@setting("--checkpoint", help="Checkpoint of the run; required by the formats of one if it has several.")
@setting("--model-id", help="For every-eval-ever: whose model it is, as ORG/NAME; default: by what was audited.")
@setting("--to", help="For a tracker: log folder, URI or project; default: as with report --log.")
@setting("--dataset-id", help="For hf-eval-results: the benchmark's data set on the Hub, as ORG/NAME.")
@setting(
    "--task-id",
    "task_ids",
    multiple=True,
    help="For hf-eval-results: ID of the benchmark's task, as CONDITION=ID, or ID for clean; may be repeated; default: "
    "one made from each condition.",
)
@common
def export(run: Path, format: str, **options: Any) -> None:
    """Write a run's results in a form that others read, from its records only.

    every-eval-ever writes a JSON file for each checkpoint, in schema 0.3.0 of Every Eval Ever; robustkit compare
    --reference reads it. hf-eval-results and model-index are for one checkpoint's page on the Hugging Face Hub. csv is
    the table of summary.csv. tensorboard, mlflow and wandb log the results, as robustkit report --log does.

    \b
    robustkit export runs/vit --format every-eval-ever --out shared
    robustkit export runs/vit --format hf-eval-results --dataset-id ORG/BENCHMARK --task-id clean=accuracy
    robustkit export runs/vit --format mlflow --to http://localhost:5000
    """
    from ...runs.folder import RunFolder
    from .every_eval_ever import before_submission
    from .formats import export_run

    existing = RunFolder.existing(run)
    with usable(run):
        paths = export_run(existing, format, **options)
        say_unfinished([existing])
    print_as_it_is(console(), *(map(str, paths) if paths else [f"logged: {format}"]))
    if lacking := before_submission(paths):
        click.echo(lacking, err=True)
