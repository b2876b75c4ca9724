"""The command that evaluates classifiers of time series, and what it is asked for. Heavy imports happen inside it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, ClassVar

import click

from ...cli.options import CONTEXT, Command, checkpoints_argument, request_of, run_options
from ...cli.terminal import run_to_the_end
from ...common.options import option, option_group, read_numbers
from ...pipeline.request import NetworkOptions, Request


@dataclass(frozen=True, kw_only=True)
class SeriesModelOptions(NetworkOptions):
    """What the loader of classifiers of time series takes."""

    arch: str | None = option("Model", "series-transformer, or code to run: module:function, file.py:function.")
    mean: str | None = option(
        "Model", "Mean of each channel in the training data, separated by spaces or commas.", read=read_numbers
    )
    std: str | None = option(
        "Model", "Standard deviation of each channel in the training data; the unit of --eps.", read=read_numbers
    )


@dataclass(frozen=True, kw_only=True)
class SeriesRequest(Request):
    """The request of `series`. data_dir: the .ts file."""

    task = "series"
    usual_attacks = "fgsm,pgd"
    usual_batch: ClassVar = {"cpu": 64, "accelerator": 256}
    least_shard = 128
    kept = ("checkpoints", "data_dir", "classes", "attacks", "disturbances", "eps", "norm", "limit", "ids", "model")
    lacks = ("preset", "setup_check", "corruptions", "variant", "frost_dir")
    lists = (*Request.lists, "disturbances")

    data_dir: str | Path = option(
        "Data", "File of labelled series, as X_TEST.ts of the UEA archive.", MISSING, flag="--data"
    )
    classes: str | Path | None = option(
        "Data", "File of class names, one per line, in the order of the outputs; default: the checkpoint's.", type=Path
    )
    model: Mapping[str, Any] = option_group(SeriesModelOptions)
    attacks: str | Iterable[str] | None = option(
        "Attacks", "Names or conditions: fgsm, pgd(steps=30), spsa; none; default: fgsm,pgd."
    )
    limit: int | None = option("Data", "At most N series, determined by the seed.")
    protocol: str = "series"
    disturbances: str | Iterable[str] | None = option(
        "Corruptions", "all, or conditions: jitter(sigma=0.5), drop-steps(share=0.2), drop-channels, warp, rescale."
    )


@click.command(
    cls=Command,
    context_settings=CONTEXT,
    after="segment",
    short_help="audit time-series classifiers: clean, attacks, disturbances",
)
@checkpoints_argument
@run_options(SeriesRequest, shared=False)
def series(skip_bad: bool, details: bool, quiet: bool, **options: Any) -> None:
    """Evaluate classifiers of multivariate time series: clean, under attack and disturbed.

    CHECKPOINT is a file, or zoo:NAME, or any file with --arch FILE.py:FUNCTION, which returns a network of standardised
    series (batch, channels, steps) to logits. Radii and disturbances are in units of each channel's standard deviation
    in the training data. Rerun the same command to resume an interrupted run.

    \b
    robustkit series model.safetensors --data JapaneseVowels_TEST.ts --eps 0.05,0.1,0.2 --disturbances all
    robustkit series net.pth --arch net.py:make --mean "0 0 0" --std "1 1 1" --data Handwriting_TEST.ts --attacks none
    """
    run_to_the_end(request_of(SeriesRequest, options), skip_bad, details, quiet)
