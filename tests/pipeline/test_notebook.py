"""A notebook as a new user writes it: every cell runs, what was stopped goes on, and objects show themselves."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import timm  # noqa: F401 - what it imports asks which notebook it is in
import torch
from places import ROOT

import robustkit
from robustkit.display.progress import NotebookProgress, progress_shown
from robustkit.errors import RobustkitWarning, RunError

pytestmark = pytest.mark.usefixtures("one_thread", "pageless")


class Shown:
    """What IPython's `display` returns: keeps the HTML that it is given."""

    def __init__(self, html: str) -> None:
        self.every = [html]

    def update(self, html: str) -> None:
        self.every.append(html)


@pytest.fixture
def outputs(monkeypatch: pytest.MonkeyPatch) -> list[Shown]:
    """Pretend that a kernel runs this process; return what cells show while they run."""
    kept = list[Shown]()

    def display(html: str, display_id: bool) -> Shown:
        assert display_id
        kept.append(Shown(html))
        return kept[-1]

    shell = types.ModuleType("IPython")
    vars(shell).update(get_ipython=lambda: types.SimpleNamespace(kernel=object()), version_info=(9, 0))
    theirs = types.ModuleType("IPython.display")
    vars(theirs).update(display=display, HTML=str)
    monkeypatch.setitem(sys.modules, "IPython", shell)
    monkeypatch.setitem(sys.modules, "IPython.display", theirs)
    return kept


def test_the_notebook_of_a_new_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outputs: list[Shown]) -> None:
    notebook = json.loads((ROOT / "docs" / "notebooks" / "your-own-network.ipynb").read_text("utf-8"))
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert sum(bool(line.strip()) for cell in cells for line in cell.splitlines()) <= 25
    smaller = {0: ("samples[:460]", "samples[:160]"), 1: ("pairs[:60], 30", "pairs[:20], 10")}
    for cell, (shown, small) in smaller.items():
        assert shown in cells[cell]
        cells[cell] = cells[cell].replace(shown, small)
    assert "6 * [None]" in cells[1]  # batches before it is stopped, of clean images and the first attacked ones
    cells[1] = cells[1].replace("6 * [None]", "3 * [None]")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    train, stopped, resumed, plot, overlay, table = cells
    torch.manual_seed(0)
    exec(train, names)
    exec(stopped, names)
    assert not outputs  # it listens by itself
    records = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("records/**/*.parquet")}
    assert {path.parent.name.partition("-")[0] for path in records} == {"clean"}
    run = eval(resumed, names)
    assert {path: path.stat().st_mtime_ns for path in records} == records
    assert len(run.manifest.conditions) == 1 + 6 + 3 * 5
    (shown,) = outputs
    assert shown.every[0] == shown.every[-1] == ""
    assert any("<progress" in html and "/20 samples" in html and "Sequential" in html for html in shown.every)
    assert '<th scope="row" class="plain">clean</th>' in run._repr_html_()
    figure = eval(plot, names)
    assert figure._repr_png_().startswith(b"\x89PNG")
    titles = {text.get_text() for part in figure.subfigs for text in part.texts}
    assert titles == {"Accuracy by condition", "Robust accuracy against eps, linf", "Accuracy under corruption"}
    assert eval(overlay, names).size == (64, 64)
    assert r"\toprule" in eval(table.removeprefix("print(").removesuffix(")"), names)
    with pytest.raises(RunError, match="unknown section 'atacks'; did you mean 'attacks'"):
        run.plot("atacks")
    for_paper = run.plot("corruptions", size=85, font="serif")
    assert for_paper.get_size_inches()[0] == pytest.approx(85 / 25.4) and for_paper.dpi == 300
    assert {text.get_text() for part in for_paper.subfigs for text in part.texts} == {""}  # the caption says it
    for size in (19.9, 1000.1):
        with pytest.raises(ValueError, match="expected a width in mm, 20 to 1000"):
            run.plot(size=size)
    assert repr(run).startswith(f"Run('{run.path}'): 1 checkpoint on 20 images of ") and ": clean; " in repr(run)
    assert {"results", "plot", "tabulate", "path", "manifest"} <= set(dir(run)) and "write_shard" not in dir(run)
    with pytest.warns(RobustkitWarning, match="no slice is significantly worse than all others"):
        assert run.slices().empty


def test_examples_are_the_kept_pictures_with_their_predictions(tmp_path: Path) -> None:
    models, asked = ["zoo:shapes-vit-standard", "zoo:shapes-vit-quest"], "fgsm(eps=8/255)"
    options: dict[str, Any] = {"attacks": asked, "cams": "agcam", "faithfulness": "none", "evidence": "none"}
    run = robustkit.audit(models, "embedded:shapes", limit=6, browse=4, out=tmp_path / "run", **options)
    kept = run.manifest.pictures
    every = run.examples("fgsm")
    assert [(each.sample_id, each.checkpoint) for each in every] == [(n, m) for n in kept for m in run.manifest.names]
    names = run.manifest.data.class_names
    for name in run.manifest.names:
        rows = {row["sample_id"]: row for row in run.table(name, asked).to_pylist()}
        for each in (one for one in every if one.checkpoint == name):
            row = rows[each.sample_id]
            assert (each.label, each.prediction) == (names[row["label"]], names[row["prediction"]])
            assert (each.correct, each.confidence) == (row["correct"], row["confidence"])
    wrong = {each.sample_id for each in every if each.correct is False}
    assert wrong and {each.sample_id for each in run.examples(asked, wrong=True)} == wrong
    assert len(run.examples(limit=1)) == 2 * 3  # clean, attacked, and the map over the clean image
    clean, heat = run.examples("clean")[0], run.examples("agcam")[0]
    assert clean.open().size == (64, 64) and heat.open().size == (224, 224)
    html = every._repr_html_()
    assert html.count("<img") == len(every) == len(every.to_frame()) == len(json.loads(every.to_json()))
    assert "<th>FGSM, 8/255</th>" in html and repr(every).startswith(f"{len(every)} examples; ")
    with pytest.raises(RunError, match="kept no pictures under spsa; it kept some under clean, fgsm, agcam"):
        run.examples("spsa")


def test_progress_is_shown_in_a_notebook_or_where_it_is_asked_for(outputs: list[Shown]) -> None:
    with progress_shown(None) as listener:
        assert isinstance(listener, NotebookProgress)
        listener.follow(lambda: "<1 min left>")
        listener.start("net", "pgd(eps=1/255)", 40)
        listener.drawn = 0.0
        listener.advance(10)
        assert outputs[0].every[-1] == (
            '<progress value="10" max="40"></progress> 10/40 samples net · pgd(eps=1/255)<br>&lt;1 min left&gt;'
        )
    assert outputs[0].every[-1] == ""
    with progress_shown(False) as listener:
        assert listener is None
    with progress_shown(listener := NotebookProgress()) as same:
        assert same is listener and len(outputs) == 1
    sys.modules.pop("IPython")
    with progress_shown(None) as listener:
        assert listener is None
