"""No text of a run is a formula for a spreadsheet, or steers what shows it: summary.csv and the report."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import page_runs
import pytest
from msgspec.structs import replace
from sealing import seal

from robustkit.display.text import no_controls, no_formula
from robustkit.report.refresh import refresh

FORMULAS = ("=1+1", '=HYPERLINK("http://x")', "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(1)", "\t=1", "\r=1")


@pytest.mark.parametrize("text", FORMULAS)
def test_what_begins_a_formula_is_text(text: str) -> None:
    assert no_formula(text) == f"'{text}"


@pytest.mark.parametrize(
    "text", ["-0.5", "+1.2 [-0.3, +2.0]", "-", "–", "+3 %", "1e-5", "-1.5e-05", "clean", "", "a=b"]
)
def test_figures_and_words_stay(text: str) -> None:
    assert no_formula(text) == text


def test_controls_are_shown_as_what_they_are() -> None:
    assert no_controls("a\x00b\x1b[31m\nc\u2028é") == "a\ufffdb\ufffd[31m c\u2028é"
    assert no_controls("a\n\tb\x7f\x9b", allowed="\n\t") == "a\n\tb\ufffd\ufffd"


@pytest.mark.parametrize(
    "text",
    [
        *FORMULAS[:2],
        *(pytest.param(each, marks=pytest.mark.slow) for each in FORMULAS[2:]),
        "\x1b[31mred",
        "nul\x00",
        "two\r\nlines",
    ],
)
def test_names_in_a_run_reach_neither_sheet_nor_page_as_they_are(tmp_path: Path, text: str) -> None:
    run = page_runs.make_run(tmp_path / "run", (text, "two"), ("cat", text, "owl"))
    manifest = run.manifest
    run.write_manifest(replace(manifest, protocol=replace(manifest.protocol, tag=text)))
    seal(run)
    refresh(run)
    sheet = (run.path / "summary.csv").read_bytes()
    page = (run.path / "report.html").read_bytes()
    kept = (9, 10)
    assert not any((byte < 32 and byte != 10) or byte == 127 for byte in sheet)
    assert not any((byte < 32 and byte not in kept) or byte == 127 for byte in page)
    rows = list(csv.reader(io.StringIO(sheet.decode())))
    assert len({len(row) for row in rows}) == 1 and {row[0] for row in rows[1:]} == {
        no_controls(no_formula(text)),
        "two",
    }
    assert not any(cell[:1] in tuple("=@\t\r") or cell[:2] in ("+1", "-2") for row in rows for cell in row)
    if text in FORMULAS[:5]:
        found = page_runs.page_of(run)
        cells = [part.strip() for tag in ("td", "th", "bdi") for part in found.said.get(tag, [])]
        assert not any(part == text for part in cells) and any(part.startswith(f"'{text}") for part in cells)
