"""Plans: the power at the planned number, simulated; costs; what is refused."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from compared_runs import PGD, rows_of, run_of
from scipy.stats import binom, binomtest

import robustkit
from robustkit.cli.app import cli
from robustkit.common.differences import of_means
from robustkit.common.groups import Groups
from robustkit.errors import ProtocolError, RunError
from robustkit.report.run import Run
from robustkit.results.methods import crossed
from robustkit.slices.paper.plan import (
    images_needed,
    mcnemar_power,
    means_needed,
    plan,
    student_power,
    trainings_needed,
)


@pytest.mark.parametrize(("n", "changed", "gap"), [(40, 0.3, 0.2), (1, 0.5, 0.5), (60, 0.1, 0.1), (120, 0.05, 0.0)])
def test_power_is_the_sum_over_all_outcomes(n: int, changed: float, gap: float) -> None:
    gained = (changed + gap) / 2
    total = 0.0
    for m in range(n + 1):
        for up in range(m + 1):
            chance = binom.pmf(m, n, changed) * binom.pmf(up, m, gained / changed)
            total += chance * (m > 0 and binomtest(up, m, 0.5).pvalue < 0.05) if chance > 1e-12 else 0.0
    assert mcnemar_power(n, changed, gap) == pytest.approx(total, abs=1e-8)


@pytest.mark.parametrize(("changed", "gap"), [(0.1, 0.02), (0.2, 0.05), (0.05, 0.05), (0.4, 0.1), (0.6, 0.3)])
def test_at_the_planned_number_of_images_the_power_is_four_fifths(changed: float, gap: float) -> None:
    n = images_needed(changed, gap)
    assert n is not None and 0.79 < mcnemar_power(n, changed, gap) < 0.85
    assert mcnemar_power(math.floor(0.97 * n), changed, gap) < 0.81
    stream, found, rounds = np.random.default_rng(0), 0, 1500
    up, down = stream.multinomial(n, [(changed + gap) / 2, (changed - gap) / 2, 1 - changed], rounds)[:, :2].T
    tests = {(int(a), int(b)) for a, b in zip(up, down, strict=True)}
    p = {}
    for pair in tests - {(0, 0)}:
        p[pair] = of_means(np.repeat([1.0, 0.0], pair), np.repeat([0.0, 1.0], pair), binary=True).p_value
    found = sum(p.get((int(a), int(b)), 1.0) < 0.05 for a, b in zip(up, down, strict=True))
    assert 0.77 <= found / rounds <= 0.85 if n < 100 else 0.77 <= found / rounds <= 0.83


def test_means_and_trainings_have_the_power_of_students_t() -> None:
    stream = np.random.default_rng(1)
    n = means_needed(0.4, 0.1)
    assert n is not None
    found = [of_means(np.zeros(n), stream.normal(0.1, 0.4, n), binary=False).p_value < 0.05 for _ in range(1500)]
    assert 0.77 <= np.mean(found) <= 0.83
    by_image, sd, gap, images = 0.15**2 / 400, 0.02, 0.03, 400
    count = trainings_needed(by_image, sd**2, images - 1.0, gap)
    assert count is not None and 3 < count < 20
    found = []
    for _ in range(1500):
        shift = stream.normal(0, 0.15, (images, 1)) + stream.normal(gap, sd, (1, count))
        found.append(crossed(np.zeros((images, count)), shift, None, paired=True).p_value < 0.05)
    assert 0.77 <= np.mean(found) <= 0.85
    assert trainings_needed(0.05**2, sd**2, 399.0, gap) is None  # images alone leave too much open
    assert student_power(0.1, 0.0, 5.0) == 1.0 and student_power(0.0, 1.0, 50.0) == pytest.approx(0.05, abs=1e-3)


@pytest.mark.parametrize("call", [lambda: images_needed(0.5, 1e-5), lambda: means_needed(1e6, 1e-5)])
def test_what_would_take_too_many_is_none(call: Any) -> None:
    assert call() is None


N = 120


@pytest.fixture(scope="module")
def pilot(tmp_path_factory: pytest.TempPathFactory) -> Run:
    def of_size(manifest: dict[str, Any]) -> None:
        manifest["data"]["n"], manifest["shard_size"] = N, N // 2

    records = {}
    for seed, (name, text) in enumerate(itertools.product(("plain", "other"), ("clean", PGD))):
        rows = rows_of(seed, N, confidence=0.7, linf=0.0, l2=0.0, prediction=0, forwards=20, backwards=19)
        records[name, text] = rows
    run = run_of(tmp_path_factory.mktemp("pilot") / "run", records, of_size)
    robustkit.report(run)
    for path in run.path.glob("timings/*/*/*.json"):
        path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"seconds": 60.0}), "utf-8")
    return run


def test_a_pilot_says_images_groups_passes_and_hours(pilot: Run) -> None:
    found = plan(pilot, difference=5)
    assert [need.key for need in found.needs] == [("clean", "top1"), (PGD, "top1")]
    read = [pilot.table(name, "clean").sort_by("sample_id")["correct"].to_pylist() for name in ("plain", "other")]
    changed = np.mean([one != two for one, two in zip(*read, strict=True)])
    need = found.needs[0]
    assert need.spread == changed and need.needed[0] == images_needed(changed, 0.05)
    assert need.needed[1] is not None and need.needed[1] < need.needed[0] < need.needed[2]  # type: ignore[operator]
    assert need.seconds == pytest.approx(4 * 60 / N) and need.passes == 2 * 39
    row = dict(zip(found.tables[0].headings, found.tables[0].rows[0], strict=True))
    assert "groups" not in row and row["passes"] == f"{need.needed[0] * 78:,}"
    assert row["hours"] == f"{need.needed[0] * 2 / 3600:.2f}"
    grouped = plan(pilot, difference=5, groups_from=r"^(\d\d)").needs[0]
    groups = Groups.of([f"{place:03}"[:2] for place in range(N)])
    assert groups is not None and grouped.groups == 12 and grouped.needed[0] >= need.needed[0]  # type: ignore[operator]
    text = plan(pilot, difference=5, groups_from=r"^(\d\d)").tables[0].rows[0][5]
    assert int(text) == math.ceil(grouped.needed[0] / 10)  # type: ignore[operator]


def test_commands_print_it(pilot: Run) -> None:
    done = CliRunner().invoke(cli, ["plan", str(pilot.path), "--difference", "5", "--power", "90"])
    text = " ".join(done.output.split())
    assert done.exit_code == 0 and "images that show 5.0 points with a power of 90 %" in text
    done = CliRunner().invoke(cli, ["compare", str(pilot.path), "--plan", "5"])
    assert done.exit_code == 0 and "images that show 5.0 points with a power of 80 %" in " ".join(done.output.split())
    assert "images that show" in plan(pilot, difference=5)._repr_html_()


def test_what_makes_no_sense_is_refused_in_a_line(pilot: Run, tmp_path: Path) -> None:
    for values, line in (
        ({"difference": 0.0}, "a difference of 0 points: expected more than 0 and less than 100"),
        ({"difference": 100.0}, "a difference of 100 points: expected"),
        ({"difference": 5, "power": 1.0}, "a power of 1: expected a share of more than 0.05 and less than 1"),
        ({"difference": 5, "power": 0.05}, "a power of 0.05: expected a share of more than"),
        (
            {"difference": 5, "methods": {"a": "plain", "b": "other"}},
            "trainings: a has 1, b has 1; expected two methods",
        ),
    ):
        with pytest.raises(ProtocolError, match=line):
            plan(pilot, **values)  # type: ignore[arg-type]
    alone = run_of(tmp_path, {("plain", "clean"): rows_of(0)})
    with pytest.raises(RunError, match="holds one checkpoint"):
        plan(alone, difference=5)
