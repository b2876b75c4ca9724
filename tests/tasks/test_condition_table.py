"""The table of a task's results is listed from its metrics: a new one is in every place, though nothing names it."""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from gate_runs import verdict
from page_runs import PGD, make_run, page_of
from rich.console import Console
from sealing import seal

from robustkit import tasks
from robustkit.common.figure import Figure
from robustkit.display.console import print_tables
from robustkit.errors import ProtocolError
from robustkit.evaluations.corruptions import tables as corruptions
from robustkit.evaluations.metrics import mean_share
from robustkit.gate.policy import parse_policy
from robustkit.report.refresh import refresh
from robustkit.report.run import Run
from robustkit.slices.regions.results import RegionsPresenter
from robustkit.tasks.labelled import Labelled, metrics
from robustkit.tasks.task import ConditionTable, task_of

TOY = replace(mean_share("boldness", "boldness %"), meaning="The share of bold answers among all samples.")
COLUMNS = ("top-1 % [95 %]", "top-5 %", "NLL", "ECE %")
RULE = f"boldness under {PGD} >= 0.3"


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return seal(make_run(tmp_path / "run"))


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The measures of classification with one more metric, and its values in the results."""

    def with_toy(read: Any, *asked: Any) -> Iterator[Any]:
        yield from _classification(read, *asked)
        yield Figure(0.25, len(read), 0.125, 0.5, metric=TOY.name)

    _classification = metrics._classification
    monkeypatch.setattr(metrics, "_classification", with_toy)
    monkeypatch.setattr(Labelled, "metrics", (*metrics.METRICS, TOY))
    tasks._of_tasks.cache_clear()
    yield
    tasks._of_tasks.cache_clear()


def shown(run: Run, rows: Any) -> str:
    console = Console(width=250, record=True, file=io.StringIO())
    print_tables(console, task_of(run.manifest).terminal(rows))
    return console.export_text()


@pytest.mark.usefixtures("toy")
def test_a_new_metric_is_in_every_place(run: Run) -> None:
    rows = refresh(run)
    text, page = shown(run, rows), page_of(run).text()
    assert "one,clean,boldness,0.25,3,0.125,0.5," in (run.path / "summary.csv").read_text("utf-8")
    for place in (text, page):
        assert "boldness % [95 %]" in place and place.count("25.0 [12.5, 50.0]") >= 4  # clean and PGD, two checkpoints
    table = ConditionTable.of(task_of(run.manifest), rows, run.manifest)
    assert [*table.rows[0]][4:] == [*COLUMNS, "boldness % [95 %]", "largest |δ|"]
    (part,) = (part for part in task_of(run.manifest).card_parts("one", rows) if part.title.startswith("Clean"))
    assert "boldness % [95 %]" in part.tables[0].headings
    assert "The share of bold answers among all samples." in page
    assert verdict(run, RULE, more="checkpoint = 'one'").state == "FAIL"  # 0.25 with certainty is below 0.3
    assert verdict(run, "boldness under clean >= 0.2", more="checkpoint = 'one'").state == "pass"


def test_without_it_nobody_knows_it(run: Run) -> None:
    rows = refresh(run)
    table = ConditionTable.of(task_of(run.manifest), rows, run.manifest)
    assert [*table.rows[0]][4:] == [*COLUMNS, "largest |δ|"] and "boldness" not in shown(run, rows)
    with pytest.raises(ProtocolError, match="boldness"):
        parse_policy(f'[[rule]]\nrequire = "{RULE}"', "policy.toml")


def test_a_new_metric_of_a_family_is_a_column_of_its_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(condition: str, *names: str) -> list[Figure]:
        share = Figure(0.25, 9, 0.125, 0.5, checkpoint="one")
        return [share.of(condition, name) for name in (*names, TOY.name)]

    words = RegionsPresenter.words
    monkeypatch.setattr(type(words), "metrics", (*words.metrics, TOY))
    (table,) = RegionsPresenter().tables(rows("region-noise(region=object,severity=5)", "region_top1"))
    assert dict(zip(table.headings, table.rows[0], strict=True))[TOY.label] == "25.0 [12.5, 50.0]"
    monkeypatch.setattr(corruptions, "METRICS", (*corruptions.METRICS, TOY))
    foggy = rows("corruption(fog,severity=3)", "top1")
    (means,) = corruptions.corruption_tables([*foggy, *rows("in-c(severity=3)", "mean_error")])
    assert dict(zip(means.means.headings, means.means.rows[0], strict=True))["boldness % [95 %]"] == "25.0 [12.5, 50.0]"
