"""The page of stabilisers: which runs count as stuck, what its tables and sentences say, and what is left out."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from scripts.studies.stabilisers import page, train

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("whole_figures")]


@pytest.fixture(scope="module")
def scripts() -> Any:
    return SimpleNamespace(runs=train, page=page)


def write(scripts: Any, work: Path, method: int, seed: int, losses: list[float], diverged: bool = False) -> None:
    rows: list[dict[str, Any]] = [
        {
            "epoch": epoch,
            "step": 50 * epoch,
            "loss": loss,
            "test_accuracy": 0.5 + seed / 10,
            "probe": {"largest_logit": [7.0, 30.0 + seed], "entropy": [2.0, 1.25]},
        }
        for epoch, loss in enumerate(losses, start=1)
    ]
    if diverged:
        rows.append({"epoch": len(losses), "step": 50 * len(losses), "diverged": True})
    folder = work / scripts.runs.METHODS[method].folder(scripts.runs.RATES[0], seed)
    folder.mkdir(parents=True)
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), "utf-8")


def test_the_page_says_who_is_stuck_and_leaves_out_what_is_not_over(scripts: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    work, epochs = tmp_path / "work", scripts.runs.PRESET.epochs
    write(scripts, work, 0, 0, [2.0] * epochs)
    write(scripts, work, 0, 1, [2.0, 1.0], diverged=True)
    write(scripts, work, 1, 0, [2.0] * (epochs - 1) + [1.16])
    write(scripts, work, 1, 1, [2.0] * (epochs - 1) + [1.14])
    for seed in range(3):
        write(scripts, work, 2, seed, [2.0] * (epochs - 1) + [0.5 + seed / 100])
    write(scripts, work, 3, 0, [2.0])  # still at it
    page = tmp_path / "page.md"
    given = ["--work", str(work), "--markdown", str(page)]
    assert scripts.page.main(given) == 0
    text = page.read_text("utf-8")
    assert "7 of 81 runs are in it" in text
    said = "stuck standard (2 of 2), QUEST (1 of 2); in no seed stuck QuacK with tau 1."
    assert f"- Rate {scripts.runs.RATES[0]:g}: {said}" in text
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    assert ["standard", "2", "2 of 2", "no number", "no number", "30", "1.25"] in rows
    assert [
        "QUEST",
        "2",
        "1 of 2",
        "1.15 (1.14 to 1.16)",
        "55 (50 to 60)",
        "30 (30 to 31)",
        "1.25 (1.25 to 1.25)",
    ] in rows
    assert rows[-1][:4] == ["QuacK with tau 1", "3", "0 of 3", "0.51 (0.50 to 0.52)"]
    figure = (tmp_path / "curves.svg").read_bytes()
    assert b"<!-- QuacK with tau 1 -->" in figure
    assert b"tau 0.1" not in figure
    scripts.page.main(given)
    assert (tmp_path / "curves.svg").read_bytes() == figure


def test_without_a_finished_run_it_says_what_to_start(
    scripts: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert scripts.page.main(["--work", str(tmp_path), "--markdown", str(tmp_path / "page.md")]) == 2
    assert "no finished run; start with scripts/studies/stabilisers/train.py --work" in capsys.readouterr().err


def test_runs_differ_in_rate_method_and_seed_alone(scripts: Any, tmp_path: Path) -> None:
    images = SimpleNamespace(digest="d")
    made = list(scripts.runs.tasks(tmp_path, images, images))
    assert len({task.folder for task in made}) == len(made) == 3 * 9 * 3
    assert {task.preset.rate == task.preset.floor for task in made} == {True}  # constant after the warm-up
    assert len({(task.preset.rate, task.attention, task.stabiliser.text, task.seed) for task in made}) == len(made)


def test_the_python_of_the_page_runs() -> None:
    """Next to the text that makes it: the page itself needs logs that are not kept."""
    text = Path(page.__file__).with_name("README.md").read_text("utf-8")
    assert page.PYTHON in text
    scope: dict[str, Any] = {}
    exec(page.PYTHON.removeprefix("```python\n").removesuffix("```"), scope)
    assert isinstance(scope["optimiser"], torch.optim.Optimizer)
    assert len(scope["optimiser"].param_groups) == len(scope["schedule"].get_last_lr())
