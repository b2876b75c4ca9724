"""A fixture for pytest: `assert_robust(model, data, at_least=0.5)`, decided by the interval of an audit.

`pytest_plugins = ["robustkit.testing"]` in conftest.py, or `pytest -p robustkit.testing`, makes it known. It is not an
entry point, since pytest would then rewrite the assertions of all that robustkit is made of.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

import robustkit

from .display.format import interval, number
from .errors import ProtocolError, unknown
from .evaluations.condition import in_means, words_of
from .protocol.condition import CLEAN, split_list
from .report.run import Run
from .tasks import find_metric, metrics
from .tasks.task import task_of


def assert_robust(
    model: Any,
    data: Any,
    *,
    attack: str = "pgd",
    eps: float | str | None = 1 / 255,
    at_least: float | None = None,
    at_most: float | None = None,
    metric: str = "top1",
    out: str | Path,
    **options: Any,
) -> float:
    """Assert that a figure is on the right side of a bound under all that the call asks for; return the worst figure.

    The assertion holds where the whole 95 % interval is, under every condition and for every network. One that crosses
    the bound fails, too, and says so: more samples would decide. Flags are part of the message. A sample that cannot be
    read fails, too, and so does an attack or a corruption that was not evaluated.

    model, data, options: as `robustkit.audit`; corruptions among them are judged as attacks are. attack: names or
    conditions, with commas; "clean" for none, or besides others. eps: in pixels of [0, 1], or several: "1/255,4/255".
    at_least: for a metric that is better higher. at_most: for one that is better lower, such as nll. metric: of the
    task. out: the folder of the run, which is kept.

    Raises AssertionError, and RobustkitError for what cannot be evaluated, or a bound on the wrong side.
    """
    bound, higher = _bound(metric, at_least, at_most)
    names = split_list(attack)
    attacks = [name for name in names if name.lower() != CLEAN.text]
    asked: dict[str, Any] = {"attacks": ",".join(attacks), "eps": eps} if attacks else {"attacks": "none"}
    run = robustkit.audit(model, data, out=out, **asked, **options)
    judged = [text for text in run.asked if text != CLEAN.text or len(attacks) < len(names)]
    rows = {
        (row.checkpoint, row.condition): row
        for row in run.summary()
        if row.metric == metric and row.condition in judged
    }
    unread = run.manifest.bad_images
    assert not unread, f"{len(unread)} samples could not be read, such as {unread[0]}; see {run.path}"
    lacking = [*_without(run, judged, metric, rows), *run.manifest.corrupted.left_out]
    what = ", ".join(lacking) or attack
    assert rows and not lacking, f"{what} has no {metric}; see the figures of the run in {run.path}"
    faults = []
    beyond, side = ("below", "at least") if higher else ("above", "at most")
    for (name, text), row in rows.items():
        value, low, high, n = row.value, row.low, row.high, row.n
        # without an interval, which is NaN then, neither holds
        holds, fails = (low >= bound, high < bound) if higher else (high <= bound, low > bound)
        if not holds:
            verdict = beyond if fails else f"inconclusive, more samples would decide: expected {side}"
            flags = "".join(f"\n  {each.severity}: {each}" for each in row.findings)
            figure = f"{name}: {metric} {number(value)} {interval(low, high, 1)} under {text}, n = {n}"
            faults.append(f"{figure}; {verdict} {bound:g}{flags}")
    if faults:
        raise AssertionError("\n".join(faults))
    return float((min if higher else max)(row.value for row in rows.values()))


def _bound(metric: str, at_least: float | None, at_most: float | None) -> tuple[float, bool]:
    """Return the bound, and whether figures are to be above it. Raises ProtocolError where it is on the wrong side."""
    definition = find_metric(metric)
    if definition is None:
        raise ProtocolError(unknown("metric", metric, metrics()))
    bounds = [bound for bound in (at_least, at_most) if bound is not None]
    if len(bounds) != 1:
        raise ProtocolError(f"at_least {at_least}, at_most {at_most}: expected one of them")
    higher = at_most is None
    if definition.better == (-1 if higher else 1):
        word, remedy = ("lower", "at_most") if higher else ("higher", "at_least")
        raise ProtocolError(f"{metric} is better {word}: give {remedy}, so that a worse network fails")
    if not math.isfinite(bounds[0]):
        raise ProtocolError(f"the bound of {metric} is {bounds[0]}; expected a finite number")
    return bounds[0], higher


def _without(run: Run, judged: Iterable[str], metric: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    """Return the conditions without a figure, of those whose samples are predicted, where the task has the metric."""
    if metric not in {each.name for each in task_of(run.manifest).metrics}:
        return []
    scored = [text for text in judged if words_of(text).in_results or in_means(text)]
    pairs = itertools.product((entry.name for entry in run.manifest.checkpoints), scored)
    return [f"{name} under {text}" for name, text in pairs if (name, text) not in rows]


@pytest.fixture(name="assert_robust")
def assert_robust_fixture(tmp_path: Path) -> Callable[..., float]:
    """Return `robustkit.testing.assert_robust`; each call has a run of its own in the test's temporary folder, unless
    `out` is given."""
    count = itertools.count(1)

    def asserted(model: Any, data: Any, **options: Any) -> float:
        number = next(count)
        folder = tmp_path / ("robustkit" if number == 1 else f"robustkit-{number}")
        return assert_robust(model, data, **{"out": folder, **options})

    return asserted
