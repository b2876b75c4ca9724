"""What a run of classifiers of time series is asked for. `--help` loads this module, so it imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, ClassVar

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
