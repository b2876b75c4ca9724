"""A figure has one name, unit, value and p-value on the page, in the terminal, in compare and in the CSV."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from compared_runs import FOG, PGD, Rows, rows_of, run_of

import robustkit
from robustkit.evaluations.aggregate import Results
from robustkit.report.front import front_of
from robustkit.results.survey import looks_of, survey, write_summary
from robustkit.results.tables import short_tables
from robustkit.tasks import metric_of

STRONG = PGD.replace("1/255", "4/255")


TEXTS = {"clean": "clean", "PGD, 1/255, 20 steps": PGD, "PGD, 4/255, 20 steps": STRONG, "fog": "corruption(fog)"}


def right(n: int) -> Rows:
    more = {"confidence": 0.5, "linf": 0.0, "l2": 0.0, "nll": 1.0}
    return [row | more | {"correct": i < n} for i, row in enumerate(rows_of(0))]


@pytest.mark.parametrize("names", [("plain", "other"), ("plain", "other", "third")])
def test_page_terminal_compare_and_csv_agree(names: tuple[str, ...], tmp_path: Path) -> None:
    numbers = {"clean": (38, 36, 37), PGD: (30, 25, 31), STRONG: (20, 4, 19), **dict.fromkeys(FOG, (33, 12, 30))}
    records = {(name, text): right(n[at]) for text, n in numbers.items() for at, name in enumerate(names)}
    run = run_of(tmp_path, records)
    write_summary(run, survey(run))
    results = Results.of(run, run.summary())
    with (run.path / "summary.csv").open(encoding="utf-8", newline="") as file:
        written = {(row["checkpoint"], row["condition"], row["metric"]): row for row in csv.DictReader(file)}
    page = front_of(results, looks_of(run))
    (terminal,) = short_tables(results)
    sections = dict(terminal.heads)
    shown, section = dict[tuple[str, str], tuple[str, ...]](), ""
    for place, row in enumerate(terminal.rows):
        section = sections.get(place, section)
        shown[section, row[0]] = row[1:]
    compared = robustkit.compare(run)
    figures = {(row.condition, row.metric, row.second.checkpoint): row for row in compared.comparison.rows}
    printed = {
        (table.checkpoint, row[0], row[1]): dict(zip(table.headings, row, strict=True))
        for table in compared.tables
        for row in table.rows
    }
    seen = 0
    for line in (line for group in page.groups for line in group):
        condition = {
            "clean": "clean",
            "PGD, 1/255, 20 steps": PGD,
            "PGD, 4/255, 20 steps": STRONG,
            "fog": "corruption(fog)",
        }
        text, metric = condition[line.title], "mean_error" if line.title == "fog" else "top1"
        unit, is_error = metric_of(metric).shown.label, metric == "mean_error"
        assert line.unit == unit == "top-1 %"
        (row,) = [cells for (section, label), cells in shown.items() if label == line.title and unit in section]
        for at, name in enumerate(names):
            number = float(written[name, text, metric]["value"])
            value = f"{100 * (1 - number if is_error else number):.1f}"  # an error is shown as accuracy
            assert line.cells[at].value == value and row[at].startswith(f"{value} [{line.cells[at].interval[1:-1]}")
            if at:
                found = figures[text, metric, name]
                cells = printed[name, line.title, unit]
                assert cells["value"] == value and cells["baseline"] == line.cells[0].value
                assert found.difference.second == number
                difference = f"{100 * found.difference.value * (-1 if is_error else 1):+.1f}".replace("-", "−")
                if len(names) == 2:
                    p = f"{found.p_value:.3f}"
                    expected = (
                        ("p < 0.001" if found.p_value < 0.001 else f"p = {p}") if found.significant else "inconclusive"
                    )
                    assert line.verdict == expected and bool(cells["at 0.05"]) == found.significant
                    assert line.detail.startswith(difference)
                    assert cells["difference [95 %]"].startswith(f"{difference} [")
                seen += found.significant
    assert seen >= 2
