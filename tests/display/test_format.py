"""How numbers, intervals, shares and p-values are written, on either side of each limit."""

from __future__ import annotations

import math

import pytest

from robustkit.common.figure import Figure
from robustkit.display.format import (
    about,
    clock_time,
    count,
    figure_cell,
    interval,
    loss_cell,
    number,
    p_equals,
    p_value,
    percent,
    scaled,
    share,
    significant,
    wide_number,
)
from robustkit.display.text import capital

NONE = math.nan


@pytest.mark.parametrize(
    ("value", "sign", "text"),
    [
        *((0.25, "", "0.250"), (-0.25, "", "−0.250"), (0.25, "+", "+0.250"), (-0.0, "", "0.000")),
        *((-0.0004, "", "0.000"), (-0.0006, "", "−0.001"), (NONE, "", "nan"), (math.inf, "+", "nan")),
    ],
)
def test_a_number_has_its_digits_and_its_sign(value, sign, text):
    assert number(value, sign=sign) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        *((999.9, "999.90"), (1000.0, "1,000"), (-12300.4, "−12,300"), (999999.0, "999,999"), (1e6, "1e+06")),
        *((-1.234e7, "−1.23e+07"), (NONE, "nan"), (float("inf"), "nan")),
    ],
)
def test_a_wide_number_loses_its_digits_from_a_thousand_and_a_million_on(value, text):
    assert wide_number(value, 2) == text


def test_significant_digits_keep_the_hyphen_of_an_exponent():
    assert [significant(value) for value in (0.0421149, -0.5, 1.2e-5, -0.0)] == ["0.04211", "−0.5", "1.2e-05", "0"]


def test_a_cell_keeps_its_number():
    cell = figure_cell(Figure(0.9333, 60, 0.841, 0.974)).followed_by(" (1–3)")
    assert (cell, cell.value, cell.figure.n) == ("93.3 [84.1, 97.4] (1–3)", 0.9333, 60)
    assert (scaled(0.25).value, count(1200, ","), count(3).value, p_value(0.0001).value) == (0.25, "1,200", 3, 0.0001)
    assert math.isnan(scaled(None).value) and percent(0.5).value == 0.5


def test_percents_have_one_digit_and_other_figures_three():
    assert (scaled(0.93333), scaled(0.93333, 1), scaled(0.93333, 1, digits=2)) == ("93.3", "0.933", "0.93")
    assert (scaled(-0.0312, sign="+"), scaled(None), scaled(NONE)) == ("−3.1", "–", "nan")
    assert (percent(0.9333), percent(0.9333, 0), percent(1)) == ("93.3 %", "93 %", "100.0 %")


def test_an_interval_has_both_ends_or_is_not_there():
    assert interval(-0.05, 0.1) == "[−5.0, 10.0]" and interval(-0.05, 0.1, 1, "+", 2) == "[−0.05, +0.10]"
    assert interval(NONE, 0.1) == interval(0.1, math.inf) == ""


def test_a_figure_is_its_value_and_its_interval():
    figure, alone, broken = Figure(0.9333, 60, 0.841, 0.974), Figure(0.9333, 60, NONE, NONE), Figure(NONE, 0, 0.1, 0.2)
    assert figure_cell(figure) == "93.3 [84.1, 97.4]" and figure_cell(figure, 1) == "0.933 [0.841, 0.974]"
    assert figure_cell(figure, with_interval=False) == figure_cell(alone) == "93.3"
    assert (figure_cell(None), figure_cell(broken), loss_cell(None), loss_cell(figure)) == ("–", "nan", "–", "0.933")
    assert (share(figure), share(alone)) == ("93.3 % [84.1, 97.4]", "93.3 %")


@pytest.mark.parametrize(
    ("value", "cell", "sentence"),
    [
        (0.0009999, "< 0.001", "p < 0.001"),
        (0.001, "0.001", "p = 0.001"),
        (0.0496, "0.050", "p = 0.050"),
        (1.0, "1.000", "p = 1.000"),
        (NONE, "nan", "p = nan"),
    ],
)
def test_a_p_value(value, cell, sentence):
    assert (p_value(value), p_equals(value)) == (cell, sentence)


def test_a_sentence_begins_with_a_capital_unless_a_name_does_without() -> None:
    cases = {"accuracy": "Accuracy", "mIoU falls": "mIoU falls", "a": "A", "": "", "no figure": "No figure", "AB": "AB"}
    assert {text: capital(text) for text in cases} == cases


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (99.4, "99 s"), (99.5, "2 min"), (60 * 99.5 - 1, "99 min"), (60 * 99.5, "1.7 h"), (3600, "60 min")],
)
def test_times_are_given_in_the_unit_that_has_few_digits(seconds: float, text: str) -> None:
    assert about(seconds) == text


def test_times_are_short() -> None:
    assert [clock_time(s) for s in (-3, 0.4, 62, 3599.4, 3725)] == ["0:00", "0:00", "1:02", "59:59", "1:02:05"]
    assert [about(s) for s in (0.1, 40, 2160, 12600)] == ["1 s", "40 s", "36 min", "3.5 h"]
