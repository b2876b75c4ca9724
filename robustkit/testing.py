"""A fixture for pytest: `assert_robust(model, data, at_least=0.5)`, decided by the interval of an audit.

`pytest_plugins = ["robustkit.testing"]` in conftest.py, or `pytest -p robustkit.testing`, makes it known. It is not an
entry point, since pytest would then rewrite the assertions of all that robustkit is made of.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import robustkit


def assert_robust(
    model: Any,
    data: Any,
    *,
    attack: str = "pgd",
    eps: float | str = 1 / 255,
    at_least: float,
    metric: str = "top1",
    out: str | Path,
    **options: Any,
) -> float:
    """Assert that a share of samples stays right under an attack; return the share that was measured.

    The assertion holds where the whole 95 % interval is at or above `at_least`. One that reaches below fails, too, and
    says so: more samples would decide. Flags are part of the message. A sample that cannot be read fails, too.

    model, data, options: as `robustkit.audit`. attack: its name or a condition; "clean" for none. eps: in pixels of
    [0, 1]. metric: of the task. out: the folder of the run, which is kept.

    Raises AssertionError, and RobustkitError for what cannot be evaluated.
    """
    clean = attack == "clean"
    run = robustkit.audit(
        model, data, attacks="none" if clean else attack, eps=None if clean else eps, out=out, **options
    )
    wanted = "clean" if clean else next(text for text in run.manifest.conditions if text != "clean")
    rows = [row for row in run.summary() if (row["condition"], row["metric"]) == (wanted, metric)]
    unread = run.manifest.bad_images
    assert rows, f"{wanted} has no {metric}; see the figures of the run in {run.path}"
    assert not unread, f"{len(unread)} samples could not be read, such as {unread[0]}; see {run.path}"
    for row in rows:
        value, low, high = row["value"], row["ci_low"], row["ci_high"]
        flags = "".join(f"\n  flag: {flag}" for flag in row["flags"])
        found = f"{row['checkpoint']}: {metric} {value:.3f} [{low:.3f}, {high:.3f}] under {wanted}, n = {row['n']}"
        if low < at_least:
            verdict = "below" if high < at_least else "inconclusive, more samples would decide: expected at least"
            raise AssertionError(f"{found}; {verdict} {at_least:g}{flags}")
    return min(float(row["value"]) for row in rows)


@pytest.fixture(name="assert_robust")
def assert_robust_fixture(tmp_path: Path) -> Callable[..., float]:
    """Return `robustkit.testing.assert_robust`; its run is in the test's temporary folder, unless `out` is given."""

    def asserted(model: Any, data: Any, **options: Any) -> float:
        return assert_robust(model, data, **{"out": tmp_path / "robustkit", **options})

    return asserted
