"""The command that evaluates classifiers of time series. Heavy imports happen inside it."""

from __future__ import annotations

from typing import Any

import click

from ...errors import ProtocolError
from ..options import (
    AT_LEAST_1,
    CONTEXT,
    Command,
    checkpoints_argument,
    common,
    evaluation_option,
    group,
    ids_option,
    option,
    protocol_option,
    radius_options,
    run_options,
)
from ..terminal import run_to_the_end

_MODEL = ("arch", "attention", "num_classes", "mean", "std", "use_ema", "allow_partial")


@click.command(cls=Command, context_settings=CONTEXT)
@checkpoints_argument
@option(
    "--data",
    "data_dir",
    section="Data",
    required=True,
    help="File of labelled series, as X_TEST.ts of the UEA archive.",
)
@group(
    [
        option("--arch", help="series-transformer, or code to run: module:function, file.py:function."),
        option("--attention", help="Attention formula (robustkit list attentions); default: from the metadata."),
        option("--num-classes", type=AT_LEAST_1, help="Number of classes of the head."),
        option("--mean", help="Mean of each channel in the training data, separated by spaces or commas."),
        option("--std", help="Standard deviation of each channel there, likewise; the unit of --eps."),
        option("--use-ema", is_flag=True, help="Take the EMA weights where the file has them."),
        option("--allow-partial", is_flag=True, help="Go on with missing or unexpected tensors."),
    ],
    "Model",
)
@group(
    [
        option("--limit", section="Data", type=AT_LEAST_1, help="At most N series, a function of the seed."),
        ids_option,
        option("--attacks", help="Names or conditions: fgsm, pgd(steps=30), spsa; none; default: fgsm,pgd."),
        radius_options,
        option(
            "--disturbances",
            section="Corruptions",
            help="all, or conditions: jitter(sigma=0.5), drop-steps(share=0.2), drop-channels, warp, rescale.",
        ),
        evaluation_option,
        protocol_option("series"),
        run_options,
        common,
    ],
    "Attacks",
)
def series(
    checkpoints: tuple[str, ...], data_dir: str, skip_bad: bool, details: bool, quiet: bool, **options: Any
) -> None:
    """Evaluate classifiers of multivariate time series: clean, under attack and disturbed.

    CHECKPOINT is a file, or zoo:NAME, or any file with --arch FILE.py:FUNCTION, which returns a network of standardised
    series (batch, channels, steps) to logits. Radii and disturbances are in units of each channel's standard deviation
    in the training data. The same command continues where an interrupted one stopped.

    \b
    robustkit series model.safetensors --data JapaneseVowels_TEST.ts --eps 0.05,0.1,0.2 --disturbances all
    robustkit series net.pth --arch net.py:make --mean "0 0 0" --std "1 1 1" --data Handwriting_TEST.ts --attacks none
    """
    from ...pipeline.series import SeriesRequest

    chosen = {name: options.pop(name) for name in _MODEL}
    chosen |= {name: _numbers(chosen[name], name) for name in ("mean", "std")}
    model = {name: value for name, value in chosen.items() if value is not None}
    run_to_the_end(
        SeriesRequest(checkpoints=checkpoints, data_dir=data_dir, model=model, **options), skip_bad, details, quiet
    )


def _numbers(text: str | None, name: str) -> list[float] | None:
    """Return the numbers of an option. Raises ProtocolError where there is anything else."""
    if text is None:
        return None
    try:
        return [float(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise ProtocolError(f"--{name} {text[:60]!r}: expected a number for each channel, such as '0.1 2.5'") from None
