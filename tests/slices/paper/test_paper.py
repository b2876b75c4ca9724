"""Tables for a paper: marks by hand, texts that LaTeX would obey, what the axes take, runs that cannot be paired."""

from __future__ import annotations

import csv
import io
import json
import math
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from compared_runs import PGD, Change, N, Rows, change_of, rows_of, run_of
from figures import figure, noted
from markupsafe import escape
from scipy import stats

import robustkit
from robustkit.cli.app import cli
from robustkit.display.table import escape_latex
from robustkit.errors import ProtocolError
from robustkit.report.run import Run
from robustkit.slices.paper.table import SETS

NAMES = ("vit_b & 50%", "other", "third")
RIGHT = {"clean": (36, 35, 10), PGD: (20, 20, 19)}
"""Of 40 samples; the first so many are right, so that pairs differ on those between two counts."""


def rows_with(right: int) -> Rows:
    return [row | {"correct": place < right} for place, row in enumerate(rows_of(0))]


def made(folder: Path, flags: Any = (), change: Change = lambda manifest: None, names: Any = NAMES) -> Run:
    """A run with these counts and the summary that is of them."""
    counted = {(name, text): some[place] for text, some in RIGHT.items() for place, name in enumerate(names)}
    run = run_of(folder, {key: rows_with(right) for key, right in counted.items()}, change)
    rows = [
        {"checkpoint": name, "condition": text, "metric": "top1", "value": right / N, "n": N, "ci_low": 0.25}
        | {"ci_high": 0.75, "protocol": run.manifest.protocol.tag, "flags": list(flags) if text == PGD else []}
        for (name, text), right in counted.items()
    ]
    run.write_summary(map(figure, rows))
    return run


CAPTION = (
    r"Top-1 accuracy (\%) unless stated otherwise. set, n = 40 images, $\ell_\infty$, $\varepsilon$ = 1/255; protocol "
    r"standard@1:96fe6f4a. Best in bold; underlined: not significantly different from the best (paired tests, "
    r"Holm-corrected over 6 pairs)."
)
PLAIN = r" Bold: the best, where significantly better than another (paired tests, Holm-corrected over 6 pairs)."
LATEX = r"""% \usepackage{booktabs}
\begin{table}[t]
\centering
\caption{CAPTION}
\label{tab:robustness}
\begin{tabular}{lrr}
\toprule
checkpoint & clean & PGD-20 \\
\midrule
vit\_b \& 50\% & \textbf{90.0} & \textbf{50.0} \\
other & \underline{87.5} & \textbf{50.0} \\
third & 25.0 & \underline{47.5} \\
\bottomrule
\end{tabular}
\end{table}
""".replace("CAPTION", CAPTION)


def test_the_table_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = made(tmp_path)
    plain = run.tabulate()  # under PGD no test tells the best from another
    assert [[cell.mark for cell in row] for row in plain.cells] == [["best", ""], ["", ""], ["", ""]]
    assert plain.caption.endswith(PLAIN) and "underlined" not in plain.caption
    table = run.tabulate(mark=True)
    assert table.to_latex() == LATEX
    frame = table.to_frame().set_index(["checkpoint", "condition"])
    assert frame.loc[("third", "clean"), "p_holm"] == pytest.approx(6 * stats.binomtest(0, 26).pvalue)
    assert frame.loc[("other", "clean"), "p_holm"] == 1.0
    assert list(frame["mark"]) == ["best", "best", "close", "best", "", "close"]
    assert table.to_markdown().splitlines()[:3] == [
        "| checkpoint | clean | PGD-20 |",
        "| --- | ---: | ---: |",
        r"| vit_b &#38; 50% | **90.0** | **50.0** |",
    ]
    row = '<th scope="row" class="plain">vit_b &amp; 50%</th><td class="num"><b>90.0</b></td>'
    assert row in table._repr_html_() and f"<caption>{escape(table.caption)}</caption>" in table._repr_html_()
    bounded = run.tabulate(intervals=True, turned=True, mark=True)
    assert list(csv.reader(io.StringIO(bounded.to_csv())))[:2] == [
        ["", *(f"{name}{end}" for name in NAMES for end in ("", " low", " high"))],
        ["clean", *(text for value in ("90.0", "87.5", "25.0") for text in (value, "25.0", "75.0"))],
    ]
    assert r"\underline{87.5} {\scriptsize [25.0, 75.0]}" in bounded.to_latex()
    assert json.loads(table.to_json())["figures"][0]["p_holm"] is None and "Holm-corrected" in table.to_json()
    p_value = table.cells[2][0].p_value
    for level, mark in ((p_value, "close"), (math.nextafter(p_value, 1), "")):
        monkeypatch.setattr("robustkit.slices.paper.table.LEVEL", level)
        assert run.tabulate(mark=True).cells[2][0].mark == mark
        assert run.tabulate().cells[0][0].mark == ("" if mark else "best")


def has_latex() -> bool:
    if not all(map(shutil.which, ("pdflatex", "kpsewhich"))):
        return False
    return not subprocess.run(["kpsewhich", "booktabs.sty"], capture_output=True).returncode


@pytest.mark.skipif(not has_latex(), reason="pdflatex or booktabs is not installed")
def test_latex_compiles_whatever_the_names(tmp_path: Path) -> None:
    odd = ("[2pt] *--^~\\", '{$#_|<>"–…−±×σδ', "\u202eüß\n\\input{x}")
    table = made(tmp_path / "run", names=odd, flags=["\\input{y}\n\\input{z}"]).tabulate(intervals=True)
    page = r"\documentclass{article}\usepackage{booktabs}\usepackage[T1]{fontenc}\begin{document}"
    (tmp_path / "page.tex").write_text(f"{page}\n{table.to_latex()}\\end{{document}}\n", "utf-8")
    words = ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "page.tex"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, errors="replace")
    assert done.returncode == 0, done.stdout[-2000:]


def test_two_hyphens_and_brackets_are_shown_as_they_are() -> None:
    assert escape_latex("a--b [c]*\n–") == r"a-{}-b {[}c{]}{*} \textendash{}"
    assert escape_latex("-a---b-") == "-a-{}-{}-b-"


def test_the_command_is_found_after_the_module_of_its_name() -> None:
    code = "import robustkit, sys; robustkit.table; from robustkit.cli.app import cli; assert 'table' in cli.commands"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_rows_and_columns_are_checkpoints_or_figures(tmp_path: Path) -> None:
    run = made(tmp_path)
    assert (run.tabulate(rows="pgd").names, run.tabulate(rows="pgd").headings) == (("PGD-20",), NAMES)
    some = run.tabulate(rows=["third", "other"], columns="quest")
    assert (some.names, some.headings) == (("third", "other"), ("clean", "PGD-20"))
    assert run.tabulate(columns="checkpoints", turned=True).headings == ("clean", "PGD-20")
    for axes, message in (
        ({"rows": "pgd", "columns": "clean"}, "rows and columns are both conditions; expected checkpoints"),
        ({"rows": "third", "columns": "other"}, "rows and columns are both checkpoints"),
        ({"rows": "pdg"}, "--rows: unknown checkpoint or condition 'pdg'; did you mean 'pgd'"),
        ({"columns": "clean:nll"}, "--columns: unknown checkpoint or condition 'clean:nll'"),
        ({"columns": " ,"}, "--columns is empty; name checkpoints or conditions, or leave it out"),
    ):
        with pytest.raises(ProtocolError, match=message):
            run.tabulate(**axes)
    assert SETS["quest"].startswith("clean,fgsm,pgd,spsa,autoattack,in-c")
    with pytest.raises(ProtocolError, match="unknown format 'tex'"):
        run.tabulate().to("tex")


def test_doubts_are_told_and_runs_that_cannot_be_paired_are_not_tested(tmp_path: Path) -> None:
    first, flagged = made(tmp_path / "a"), made(tmp_path / "b", ["exceeds eps"], change_of("seed", to=1))
    table = robustkit.table(first, flagged)
    assert table.names == (*(f"{name} (a)" for name in NAMES), *(f"{name} (b)" for name in NAMES))
    assert [cell.flagged for cell in table.cells[3]] == [False, True]
    assert table.caption.endswith("†: flagged; see the report.")
    assert any("exceeds eps" in line for line in table.flags) and "Holm-corrected over 30 pairs" in table.caption
    other = made(tmp_path / "c", change=change_of("data", "classes", to=5))
    assert "Bold" not in robustkit.table(first, other).caption
    apart = robustkit.table(first, other, mark=True)
    assert any(line.startswith("not tested: ") and "5 classes" in line for line in apart.flags)
    assert {cell.mark for row in apart.cells for cell in row} == {"best", ""}
    assert apart.caption.endswith(" Best in bold.")


def test_two_checkpoints_are_one_pair_and_the_caption_says_of_how_many_samples(tmp_path: Path) -> None:
    run = made(tmp_path / "a", names=("one", "two"))
    table = run.tabulate(mark=True)
    assert [[cell.mark for cell in row] for row in table.cells] == [["best", "best"], ["close", "best"]]
    assert ", n = 40 images, " in table.caption and "Holm-corrected over 1 pair)" in table.caption
    rows = run.summary()
    more = [replace(rows[0], metric="nll", value=0.5, n=7)]
    run.write_summary([*(replace(row, n=30) if row.condition == PGD else row for row in rows), *more])
    table = run.tabulate(columns="clean,pgd,clean:nll")
    assert ", n = 30–40 images, " in table.caption and table.headings == ("clean", "PGD-20", "clean NLL ↓")
    run.write_summary(replace(row, metric="linf_max") for row in rows)  # neither better nor worse
    table = run.tabulate(columns="clean:linf_max")
    assert [cell.mark for (cell,) in table.cells] == ["", ""] and "Best" not in table.caption


def summarised(folder: Path, conditions: Sequence[str], metrics: Sequence[str], claims: Any = None) -> Run:
    """A run of one checkpoint with all of these figures, in this order."""
    change = change_of("claims", to=claims or {})
    run = run_of(folder, {("one", text): rows_with(20) for text in conditions}, change)
    row: dict[str, Any] = {"checkpoint": "one", "value": 0.5, "n": N, "ci_low": 0.25, "ci_high": 0.75, "flags": []}
    row["protocol"] = run.manifest.protocol.tag
    run.write_summary(figure(row | {"condition": text, "metric": name}) for text in conditions for name in metrics)
    return run


def test_radii_stand_in_headings_where_there_are_several(tmp_path: Path) -> None:
    other = PGD.replace("1/255", "2/255")
    claims = {text: {"norm": "linf", "eps": eps / 255} for text, eps in ((PGD, 1), (other, 2))}
    run = summarised(tmp_path, ("clean", PGD, other), ("top1",), claims)
    assert run.tabulate().headings == ("clean", "PGD-20 2/255", "PGD-20 1/255")
    assert run.tabulate(columns=["clean", PGD]).headings == ("clean", "PGD-20")


def test_figures_are_named_by_conditions_of_any_kind(tmp_path: Path) -> None:
    """Also by one that the first page does not show, by an attack on some of the samples, and by one of both sides."""
    fog, some = "corruption(fog,severity=3)", "pgd(eps=1/255,on=30,steps=20)"
    run = summarised(tmp_path / "some", ("clean", fog, some), ("linf_max", "top1", "parity"))
    (heading,) = run.tabulate(columns=[fog]).headings
    assert heading.startswith("fog") and "linf" not in heading
    for asked in ("pgd", some, PGD):
        assert len(run.tabulate(columns=["clean", asked]).headings) == 2, asked
    assert run.tabulate(columns=["clean:linf_max", "clean:parity"]).headings == (  # neither better nor worse
        *("clean largest linf |δ|", "clean parity"),
    )
    away = summarised(tmp_path / "away", ("clean",), ("linf_max", "l2_max"))  # the first of what no first page shows
    assert away.tabulate(columns="clean").headings == ("clean largest linf |δ|",)
    with pytest.raises(ProtocolError, match=r"--rows quest: the runs have none of clean,fgsm,.*; audit one of these"):
        summarised(tmp_path / "fog", (fog,), ("top1",)).tabulate(rows="quest")


def test_sets_may_stand_among_other_figures_and_classes_are_named(tmp_path: Path) -> None:
    metrics = ("mean_error", "mce", "top1", "iou(car)", "iou(pole)")
    run = summarised(tmp_path, ("clean", "in-c", PGD), metrics, {PGD: {"norm": "linf", "eps": 1 / 255}})
    usual = ("clean", "PGD-20", "IN-C error ↓", "IN-C mCE ↓")
    assert run.tabulate(columns="quest").headings == usual
    assert run.tabulate(columns="quest,clean:iou(pole)").headings == (*usual, "IoU pole")
    assert run.tabulate(columns="clean:iou,pgd:iou").headings == (
        *("IoU car", "IoU pole"),
        *("PGD-20 IoU car", "PGD-20 IoU pole"),
    )
    with pytest.raises(ProtocolError, match="unknown checkpoint or condition 'pdg'"):
        run.tabulate(columns="quest,pdg")


@pytest.mark.parametrize(("count", "is_wide"), [(4, False), (5, True)])
def test_a_wide_table_is_scaled_to_the_line(tmp_path: Path, count: int, is_wide: bool) -> None:
    texts = [f"corruption(fog,severity={k})" for k in (1, 2, 3, 4, 5)] + ["clean", PGD, "fgsm(eps=1/255)"]
    latex = summarised(tmp_path, texts[:count][::-1], ("top1",)).tabulate(columns=texts[:count]).to_latex()
    assert (r"\resizebox{\linewidth}{!}{%" in latex) == is_wide == (r"\end{tabular}}" in latex) == ("graphicx" in latex)


def test_an_attack_leads_to_its_estimate_of_two_phases(tmp_path: Path) -> None:
    texts = [f"two-phase(autoattack(eps={k}/255,version=standard),first=apgd-ce,m=20)" for k in (1, 2)]
    claims = {text: {"norm": "linf", "eps": eps / 255} for eps, text in enumerate(texts, 1)}
    run = summarised(tmp_path, ("clean", *texts), ("kept_in_second", "estimated_top1"), claims)
    assert run.tabulate(columns="autoattack").headings == tuple(f"AutoAttack, {k}/255, estimated" for k in (1, 2))
    assert run.tabulate(columns="autoattack(eps=1/255)").headings == ("AutoAttack, estimated",)


def test_a_checkpoint_that_is_called_as_a_set_of_figures_is_not_meant_by_it(tmp_path: Path) -> None:
    run = made(tmp_path, names=("quest", "other"))
    assert run.tabulate(columns="quest").headings == ("clean", "PGD-20")
    assert run.tabulate(rows="other").names == ("other",)


def test_a_flag_of_all_figures_of_a_checkpoint_marks_none_and_is_told_once(tmp_path: Path) -> None:
    run = made(tmp_path)
    rows = [row.having(noted("of all")) for row in run.summary()]
    run.write_summary(rows)
    table = run.tabulate()
    assert not any(cell.flagged for row in table.cells for cell in row) and "†" not in table.caption
    assert [line for line in table.flags if "of all" in line] == [
        "all 3 checkpoints, clean; PGD, 1/255, 20 steps: of all [run/note]"
    ]
    rows[0] = rows[0].having(noted("of one"))  # of the first checkpoint under one condition
    run.write_summary(rows)
    table = run.tabulate()
    assert [[cell.flagged for cell in row] for row in table.cells] == [[True, False], [False] * 2, [False] * 2]
    assert table.caption.endswith("†: flagged; see the report.")


def test_the_command_prints_the_table_alone_and_doubts_elsewhere(tmp_path: Path) -> None:
    run = made(tmp_path, ["exceeds eps [attack/exceeds-eps]"])
    done = CliRunner().invoke(cli, ["table", str(run.path), "--format", "csv", "--columns", "pgd"])
    assert done.exit_code == 0, done.output
    assert done.stdout == run.tabulate(columns="pgd").to_csv()
    assert "⚑" in done.stderr and "exceeds eps [attack/exceeds-eps]" in done.stderr
