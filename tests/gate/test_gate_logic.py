"""No rule and its negation: which verdicts may stand next to each other, for whatever figure."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from places import DELETED
from row_runs import make_run, row

from robustkit.errors import ProtocolError
from robustkit.evaluations.maps import CONTROLLED
from robustkit.gate.policy import SLACK, Change, Policy, Rule, Value, parse_policy, parse_statement
from robustkit.gate.verdicts import (
    FAIL,
    PASS,
    UNDECIDED,
    Figure,
    MeasuredRun,
    Outcome,
    Verdict,
    change_of,
    decide,
    judge,
    judged_figure,
)
from robustkit.report.run import Run
from robustkit.results.pairing import Side
from robustkit.tasks import find_metric, metrics

hypothesis = pytest.importorskip("hypothesis", reason="needs hypothesis, of the extra `test`")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

NEGATION = {">=": "<", "<": ">=", ">": "<=", "<=": ">"}
STRICT = {">": ">=", "<": "<="}
SURE = " with 95 % confidence"
NAME = "vit <b>&"  # of the checkpoint of `make_run`
NAMES = (
    *metrics(),
    "iou(traffic (red) light)",
    "top1_after_apgd-ce",
    *(f"{one.name}_over_control" for one in CONTROLLED),
)
FIGURES = [f"{name} under clean" for name in NAMES]
WORSE = {name: "rise" if one.better < 0 else "drop" for name, one in metrics().items() if one.paired}
FIGURES += [f"{worse} in {name} under clean against baseline" for name, worse in WORSE.items()]
FIGURES += ["drop against baseline", "drop under clean against baseline", "mce", "mean_error of in-c"]

finite = st.one_of(st.floats(-2, 2), st.sampled_from([0.0, 0.3, 1.0, 1 / 3]), st.floats(-1e6, 1e6))
anything = st.one_of(finite, st.sampled_from([math.nan, math.inf, -math.inf, 1e300, -1e300]))


def state(text: str, figure: Figure) -> str:
    head, sign, bound, more = re.fullmatch(r"(.*) ([<>]=?) (\S+)(.*)", text).groups()  # type: ignore[union-attr]
    statement = None
    for possible in ("0.5", "1.5", "7"):  # any bound that is not refused: `decide` is asked about all of them
        try:
            statement = parse_statement(f"{head} {sign} {possible}{more}")
            break
        except ProtocolError:
            continue
    assert isinstance(statement, Value | Change)
    statement = replace(statement, bound=float(bound))
    return decide(statement, figure, statement.metric)[0]


@settings(max_examples=600, deadline=None)
@given(
    what=st.sampled_from(FIGURES),
    compare=st.sampled_from(sorted(NEGATION)),
    value=anything,
    ends=st.tuples(anything, anything),
    bound=st.one_of(st.none(), finite),
    nudge=st.sampled_from([0.0, SLACK / 2, -SLACK / 2, SLACK, -SLACK, 2 * SLACK, -2 * SLACK]),
    n=st.integers(1, 10**6),
)
def test_what_holds_of_a_rule_and_its_negation(
    what: str, compare: str, value: float, ends: tuple[float, float], bound: float | None, nudge: float, n: int
) -> None:
    """Even of an interval that would leave out its estimate, or is the wrong way round. bound: the value if None."""
    place = ((value if abs(value) < 1e6 else 0.0) if bound is None else bound) + nudge
    figure = Figure(value, n, *ends)
    rule, opposite = f"{what} {compare} {place:.15f}", f"{what} {NEGATION[compare]} {place:.15f}"
    point, against = state(rule, figure), state(opposite, figure)
    sure, surely_not = state(rule + SURE, figure), state(opposite + SURE, figure)
    assert not {point, sure} & {PASS} or not {against, surely_not} & {PASS}
    if not math.isfinite(value):
        assert {point, against, sure, surely_not} == {FAIL}
        return
    assert {point, against} == {PASS, FAIL}  # a figure is on one side
    assert (sure, surely_not) in {(PASS, FAIL), (FAIL, PASS), (UNDECIDED, UNDECIDED)}
    assert sure in (point, UNDECIDED) and surely_not in (against, UNDECIDED)  # confidence only takes back
    if not all(map(math.isfinite, ends)):
        assert sure == UNDECIDED
    if compare in STRICT:
        loose = rule.replace(f" {compare} ", f" {STRICT[compare]} ")
        assert PASS not in (point, sure) or state(loose, figure) == PASS
        assert sure != PASS or state(loose + SURE, figure) == PASS
    further = place - 1 if compare.startswith(">") else place + 1  # asks for less
    for kept, suffix in ((point, ""), (sure, SURE)):
        assert kept != PASS or state(f"{what} {compare} {further:.15f}{suffix}", figure) == PASS


@settings(max_examples=100, deadline=None)
@given(compare=st.sampled_from(sorted(NEGATION)), n=st.integers(1, 200), bound=st.integers(0, 200))
def test_a_number_of_samples_is_on_one_side(compare: str, n: int, bound: int) -> None:
    figure = Figure(n, n)
    states = [state(f"n under clean {sign} {bound}", figure) for sign in (compare, NEGATION[compare])]
    assert sorted(states) == sorted([PASS, FAIL])


@pytest.mark.parametrize("undecided", ["fail", "pass"])
def test_a_gate_lets_both_through_only_where_neither_is_decided(undecided: str) -> None:
    """`undecided` changes what stops the gate, never a verdict."""
    for value, low, high in itertools.product((0.2, 0.5, 0.8), (0.1, 0.5, math.nan), (0.5, 0.9, math.nan)):
        figure, made = Figure(value, 50, low, high), []
        for sign in (">=", "<"):
            statement = parse_statement(f"nll under clean {sign} 0.5{SURE}")
            assert isinstance(statement, Value)
            reported = decide(statement, figure, "nll")
            made.append(Verdict(Rule("r", statement), "vit", reported[0], reported[1], figure, "clean", reported[2]))
        outcome = Outcome(Policy("p", (), undecided), tuple(made))
        through = [not outcome.stops(verdict) for verdict in made]
        assert sum(through) == (1 if made[0].state != UNDECIDED else 2 if undecided == "pass" else 0)


def _runs(path: Path, seed: int) -> tuple[Run, Run]:
    """Two checkpoints on the same few images, clean and under fog at all severities."""
    conditions = ["clean", *(f"corruption(fog,severity={severity})" for severity in range(1, 6))]
    runs = []
    for part in range(2):
        stream = np.random.default_rng([seed, part])
        n = (8, 14)[seed]
        rows: dict[str, list[dict[str, Any]]] = {}
        for condition in conditions:
            sure = stream.uniform(0.2, 1, n) ** (0.2 if seed == 1 else 1)
            right = stream.random(n) < (sure if seed else 2)
            rows[condition] = [
                row(i, bool(right[i]), confidence=float(sure[i]), nll=float(stream.exponential() ** 3), top5=i < seed)
                for i in range(n)
            ]
        runs.append(make_run(path / str(part), rows))
    return runs[0], runs[1]


def _can_fail(text: str) -> bool:
    """Whether a rule is not refused as one that every run meets."""
    try:
        parse_statement(text)
    except ProtocolError:
        return False
    return True


def _bounds(figure: Figure) -> list[str]:
    """At a figure, the ends of its interval, and between them."""
    points = sorted({p for p in (figure.value, figure.low, figure.high) if math.isfinite(p)})
    return [f"{point:.15f}" for point in (*points, *((a + b) / 2 for a, b in itertools.pairwise(points)))]


@pytest.mark.parametrize("seed", range(2))
def test_of_runs_neither(tmp_path: Path, seed: int) -> None:
    """From records to verdicts: figures of a run, and changes against another."""
    run, baseline = _runs(tmp_path, seed)
    results = [one for one in MeasuredRun(run).results if "fog,s" not in one.condition]
    assert {"top1", "nll", "ece", "mean_error"} <= {one.metric for one in results}
    wanted: dict[str, Figure] = {}
    for found in results:
        figure = wanted[f"{found.metric} under {found.condition}"] = judged_figure(found)
        assert math.isnan(figure.low) or figure.low <= figure.value <= figure.high, found
    sides = Side(baseline, NAME), Side(run, NAME)
    for what, condition in (
        ("drop in top1", "clean"),
        ("rise in nll", "clean"),
        ("rise in mean_error", "corruption(fog)"),
    ):
        figure = change_of(*sides, condition, what.split()[-1], what.startswith("drop")).figure
        wanted[f"{what} under {condition} against baseline"] = figure
        assert figure.low <= figure.value <= figure.high
    wanted["drop against baseline"] = Figure(0.01, 1, -0.1, 0.1)
    texts = [
        f"{what} {sign} {bound}{sure}"
        for what, figure in wanted.items()
        for bound in _bounds(figure)[: 1 if "against" in what else None]
        if all(_can_fail(f"{what} {sign} {bound}") for sign in (">=", "<"))
        for sure in ("", SURE)
        for sign in (">=", "<")
    ]
    policy = parse_policy("".join(f"[[rule]]\nrequire = '{text}'\n" for text in texts), "p")
    states = [verdict.state for verdict in judge(policy, run, baseline).verdicts]
    assert len(states) == len(texts)
    for text, point, against, sure, surely_not in zip(texts[::4], *(states[k::4] for k in range(4)), strict=True):
        assert PASS not in (point, sure) or PASS not in (against, surely_not), text
        assert sure != PASS or point == PASS, text
        if not text.startswith("drop against"):  # which is of each condition, so that both may fail
            out_of_reach = UNDECIDED in (point, against) and "against" in text  # of any run, given the baseline
            assert {point, against} == {PASS, FAIL} or out_of_reach, text


def test_a_lead_over_controls_is_no_rule_of_a_draft_of_everything() -> None:
    leads = [find_metric(f"{one.name}_over_control") for one in CONTROLLED]
    assert all(lead is not None and not (lead.drafted or lead.paired or lead.hub) for lead in leads)
    assert {one.better for one in leads if one} == {0, 1} and {one.better for one in CONTROLLED} == {-1, 0, 1}
    every = ("text", "perplexity"), ("features", "knn"), ("multilabel", "map")
    of_slices = {name for task, name in every if task not in DELETED}
    drafted = {name for name, one in metrics().items() if one.drafted}
    assert drafted == {"top1", "parity", "mean_error", "mce", "miou", "cam_iou", *of_slices}
