"""The command that evaluates classifiers of time series. Heavy imports happen inside it."""

from __future__ import annotations

from ...cli.terminal import evaluation
from . import SeriesRequest


@evaluation(
    SeriesRequest,
    after="segment",
    short_help="audit time-series classifiers: clean, attacks, disturbances",
    shared=False,
)
def series() -> None:
    """Evaluate classifiers of multivariate time series: clean, under attack and disturbed.

    CHECKPOINT is a file, or zoo:NAME, or any file with --arch FILE.py:FUNCTION, which returns a network of standardised
    series (batch, channels, steps) to logits. Radii and disturbances are in units of each channel's standard deviation
    in the training data. Rerun the same command to resume an interrupted run.

    \b
    robustkit series model.safetensors --data JapaneseVowels_TEST.ts --eps 0.05,0.1,0.2 --disturbances all
    robustkit series net.pth --arch net.py:make --mean "0 0 0" --std "1 1 1" --data Handwriting_TEST.ts --attacks none
    """
