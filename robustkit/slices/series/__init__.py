"""Classify multivariate time series: one record row per series.

Disturbances are conditions: `jitter(sigma=0.5)`, `drop-steps(share=0.2)`. This module loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

from ...common.names import canonical
from ...common.options import option, option_group, read_numbers
from ...errors import ProtocolError, unknown
from ...evaluations.condition import Claims, Named, Place, Vocabulary
from ...evaluations.family import LazyFamily
from ...pipeline.request import NetworkOptions, Request
from ...protocol.condition import (
    Condition,
    ConditionPattern,
    format_value,
    parse_parameters,
    split_condition,
    split_list,
)

USUAL: Mapping[str, tuple[str, Fraction]] = {
    "jitter": ("sigma", Fraction(1, 2)),
    "drop-steps": ("share", Fraction(1, 5)),
    "drop-channels": ("share", Fraction(1, 5)),
    "warp": ("sigma", Fraction(1, 2)),
    "rescale": ("sigma", Fraction(1, 2)),
}
"""The parameter of each kind, and its usual value."""
_WORDS = {
    "jitter": "noise of {} σ",
    "drop-steps": "{} of the steps dropped",
    "drop-channels": "{} of the channels dropped",
    "warp": "time warped by {}",
    "rescale": "channels rescaled by {}",
}


class DisturbanceWords(Vocabulary):
    """Noise, dropped steps and channels, warped time, rescaled channels."""

    name = "disturbances"
    claims = Claims("under disturbance", "is more robust", "is less robust")
    telling = ("sigma", "share")
    in_results = True

    def label(self, text: str, place: Place = "axis", manifest: Named | None = None) -> str:
        kind, value = _parsed(text)
        percent = f"{100 * float(value):.4g} %"
        return _WORDS[kind].format(percent if USUAL[kind][0] == "share" else f"{float(value):.4g}")

    def parse(self, text: str) -> Condition:
        """Return the condition; its draws are of its kind alone, so that a larger value disturbs more of the same."""
        kind, value = _parsed(text)
        name = USUAL[kind][0]
        if value < 0 or (name == "share" and value > 1):
            expected = "a share from 0 to 1" if name == "share" else "0 or more"
            raise ProtocolError(f"{kind}: {name} {format_value(value)}: expected {expected}")
        return Condition(kind, f"{kind}({name}={format_value(value)})", ((name, value),), draws=kind)

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        yield from ("--attacks", "none", "--disturbances", pattern.text)


def _parsed(text: str) -> tuple[str, Fraction]:
    kind = canonical(split_condition(text)[0], USUAL)
    if kind not in USUAL:
        raise ProtocolError(unknown("disturbance", kind, USUAL))
    parameters = parse_parameters(text, dict([USUAL[kind]]))[1]
    return kind, Fraction(parameters[USUAL[kind][0]])


VOCABULARY = DisturbanceWords()
FAMILY = LazyFamily(VOCABULARY)


def parse_disturbances(asked: str | Iterable[str]) -> tuple[Condition, ...]:
    """Return each condition of a list once; `all`: every kind with its usual value. Raises ProtocolError."""
    names = [name for part in split_list(asked) for name in (USUAL if part == "all" else [part])]
    return tuple(dict.fromkeys(map(VOCABULARY.parse, names)))


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
    argument_names = (
        "checkpoints",
        "data_dir",
        "classes",
        "attacks",
        "disturbances",
        "eps",
        "norm",
        "limit",
        "ids",
        "model",
    )
    lacks = ("preset", "setup_check", "corruptions", "variant", "frost_dir", "tiles_dir")
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
