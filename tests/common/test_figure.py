"""A figure: what it says about its interval and its records, and that a summary gives it back."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from robustkit.common.figure import COLUMNS, INCOMPLETE, WILSON, Figure
from robustkit.common.finding import Finding

FIGURE = Figure(0.25, 40, 0.125, 0.5, WILSON, "vit", "clean", "mean_error", "standard@1:0")


@pytest.mark.parametrize(
    ("low", "high", "whole", "method"),
    [
        (0.125, 0.5, True, WILSON),
        (0.125, math.nan, False, WILSON),  # as of a distance whose upper end no sample reaches
        (math.nan, 0.5, False, WILSON),
        (math.nan, math.inf, False, ""),
        (math.nan, math.nan, False, ""),
    ],
)
def test_an_interval_has_two_ends_and_its_method_at_least_one(
    low: float, high: float, whole: bool, method: str
) -> None:
    figure = Figure(0.25, 40, low, high, WILSON)
    assert (figure.has_interval, figure.interval) == (whole, method) and figure.is_finite


def test_a_value_that_is_not_finite_is_none() -> None:
    assert math.isnan(Figure(math.inf, 40).value) and not Figure(-math.inf, 40).is_finite


def test_the_complement_turns_the_ends_around() -> None:
    assert FIGURE.complement == replace(FIGURE, value=0.75, low=0.5, high=0.875)
    assert FIGURE.complement.complement == FIGURE


def test_findings_are_added_and_one_says_that_records_are_missing() -> None:
    thin = Finding.of("maps/independent-of-class")
    lacking = FIGURE.having([thin]).having([Finding(INCOMPLETE, "")])
    assert [each.code for each in lacking.findings] == ["maps/independent-of-class", INCOMPLETE]
    assert FIGURE.is_whole and FIGURE.having([thin]).is_whole and not lacking.is_whole
    assert FIGURE.having([]) is FIGURE
    assert lacking.of("fog", "top1") == replace(FIGURE, condition="fog", metric="top1", findings=())
    assert lacking.named("top1") == replace(lacking, metric="top1") and lacking.named("top1").key == ("clean", "top1")


@pytest.mark.parametrize("change", [{}, {"value": math.nan}, {"high": math.nan}, {"low": math.nan, "high": math.nan}])
def test_a_summary_gives_a_figure_back(change: dict[str, Any]) -> None:
    figure = replace(FIGURE, findings=(Finding.of("maps/independent-of-class"),), **change)
    plain = figure.to_plain()
    assert tuple(plain) == COLUMNS and not any(isinstance(end, float) and math.isnan(end) for end in plain.values())
    assert repr(Figure.from_plain(plain)) == repr(figure)  # nan is not equal to itself


@pytest.mark.parametrize("change", [{"n": -1}, {"n": 1 << 53}, {"value": "1"}, {"flags": ["text"]}, {"metric": None}])
def test_a_row_of_anything_is_refused(change: dict[str, object]) -> None:
    Figure.from_plain(FIGURE.to_plain() | {"n": 0}), Figure.from_plain(FIGURE.to_plain() | {"n": (1 << 53) - 1})
    with pytest.raises(msgspec.ValidationError):
        Figure.from_plain(FIGURE.to_plain() | change)
