"""Pages of the experiments with language models: what their tables and sentences say about logs made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from scripts.language import grid, keys, stability
from scripts.pages import qana, quack

pytestmark = pytest.mark.usefixtures("whole_figures")

pytest.importorskip("matplotlib")


def log(path: Path, rows: dict[grid.Trial, list[dict[str, Any]]]) -> Path:
    path.write_text("".join(json.dumps({"trial": t.name, "rows": r}) + "\n" for t, r in rows.items()), "utf-8")
    return path


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]


def row(step: int, validation: float, largest: float = 1.0, change: float = 0.1) -> dict[str, Any]:
    return {"step": step, "validation": validation, "largest_logit": [largest, 0.5], "change": [0.0, change]}


def test_the_page_of_quack_says_who_is_near_the_best_and_what_logits_did(tmp_path: Path) -> None:
    plain, norm, quacked = stability.METHODS[:3]
    low, middle, high, _ = stability.RATES
    made = {
        stability.trial("MHA", low, plain): [row(20, 5.0, 7.0, 0.25), row(40, 4.5, 3.0, 0.75)],
        stability.trial("MHA", middle, plain): [row(20, 5.0, 2200.0, 3.0), {"step": 40, "diverged": True}],
        stability.trial("MHA", low, quacked): [row(40, 4.6)],
        stability.trial("MHA", high, quacked): [row(40, 4.25)],
        stability.trial("MHA", high, norm): [row(40, 4.34)],
        stability.trial("MLA", low, plain): [row(40, 4.125)],
        stability.norm_trial("spectral", 3.0): [row(40, 4.75)],
    }
    out = tmp_path / "quack.md"
    assert quack.main(["--logs", str(log(tmp_path / "runs.jsonl", made)), "--out", str(out)]) == 0
    text = out.read_text("utf-8")
    assert "7 of 51 trainings; the others are not over" in text
    assert (
        "- MHA: none 4.50 at 0.001 (near the best at no rate); QK norm 4.34 at 0.03 (near the best up to 0.03); "
        "QuacK 4.25 at 0.03 (near the best up to 0.03).\n- MLA: none 4.12 at 0.001 (near the best up to 0.001)."
    ) in text
    rows = cells(text)
    assert ["none", "4.50", "no number", "–", "–"] in rows and ["QuacK", "4.60", "–", "4.25", "–"] in rows
    assert ["none", "7; 0.5", "2.2e+03; 3", "–", "–"] in rows
    assert ["frobenius", "–", "–", "4.25", "–"] in rows and ["spectral", "–", "–", "–", "4.75"] in rows
    drawn = {path.name: path.read_bytes() for path in (tmp_path / "quack").iterdir()}
    assert set(drawn) == {"losses.svg", "logits.svg", "norms.svg"}
    assert quack.main(["--logs", str(tmp_path / "runs.jsonl"), "--out", str(out)]) == 0
    assert drawn == {path.name: path.read_bytes() for path in (tmp_path / "quack").iterdir()}


def test_the_page_of_qana_pairs_by_seed_and_counts_the_cache(tmp_path: Path) -> None:
    ends: dict[tuple[Any, ...], float] = {
        **{(32, "standard", seed): 4.0 + seed / 10 for seed in (0, 1, 2)},
        **{(8, "qana", seed): 4.25 + seed / 10 + seed / 100 for seed in (0, 1, 2)},
        (16, "standard", 0): 4.5,
        (16, keys.LITERAL, 0): 4.504,
        (8, "qana", 0, keys.LOW): 4.625,
    }
    made = {keys.trial(*which): [row(600, value)] for which, value in ends.items()}
    out = tmp_path / "qana.md"
    assert qana.main(["--logs", str(log(tmp_path / "runs.jsonl", made)), "--out", str(out)]) == 0
    text = out.read_text("utf-8")
    assert "9 of 27 trainings; the others are not over." in text
    rows = cells(text)
    # two layers of two heads: keys of 8, 16, 32 and values of 32 numbers, two bytes each; biases of keys and queries
    assert ["32", "standard", "3", "4.100 (4.000 to 4.200)", "71168", "512"] in rows
    assert ["8", "qana", "3", "4.360 (4.250 to 4.470)", "69348", "320"] in rows
    # differences .25, .26, .27: mean .26, and 4.3027 standard errors of .01 / sqrt(3) to each side
    assert ["standard, d_K 32", "qana, d_K 8", "+0.260 [+0.235, +0.285] over 3 seeds", "62%"] in rows
    assert ["16", "4.500", "4.504", "–"] in rows
    assert "They end apart by up to 0.004 nats" in text
    assert ["8", "–", "4.250", "–", "4.625"] in rows
    assert not [cell for cell in rows if cell[0] == "standard, d_K 16"]  # one seed tells no difference


@pytest.mark.parametrize("page", [quack, qana])
def test_without_a_log_there_is_no_page(page: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert page.main(["--logs", str(tmp_path / "none.jsonl"), "--out", str(tmp_path / "page.md")]) == 2
    assert "no training is over" in capsys.readouterr().err and not (tmp_path / "page.md").exists()
