"""The logit ledger of a run: records, results, comparison, page and refusals."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from sealing import put, seal

import robustkit
from robustkit.common.intervals import wilson
from robustkit.errors import DamagedRecord, ProtocolError, RunError
from robustkit.evaluations.condition import check_condition, pattern_of
from robustkit.evaluations.family import family_of
from robustkit.evaluations.records import Pairings
from robustkit.report.run import Run
from robustkit.results.pairing import Side, paired_difference
from robustkit.results.survey import survey
from robustkit.slices.watching.ledger import LISTS, METRICS
from robustkit.slices.watching.ledger.evaluate import SWAPS, LayerLedger, Ledger, columns_of
from robustkit.slices.watching.results import heads_of
from scripts.studies.attention_attacks.page import hidden, ledger, patches, without_folders

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = ("shapes-vit-standard", "shapes-vit-quest")
PGD = "pgd(eps=8/255,steps=3)"
LEDGER = f"ledger({PGD})"
OPTIONS: dict[str, Any] = {
    "data_dir": "embedded:shapes",
    "attacks": "pgd(steps=3)",
    "eps": "8/255",
    "watch_attention": True,
    "limit": 12,
    "batch_size": 12,
    "shard_size": 8,
    "browse": 0,
    "device": "cpu",
    "evidence": "full",
}


@pytest.fixture(scope="module", autouse=True)
def little_evidence() -> Iterator[None]:
    """There is some; on how many samples is not read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("robustkit.slices.evidence.taking.SAMPLES", 4)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return robustkit.audit([f"zoo:{name}" for name in NAMES], out=tmp_path_factory.mktemp("ledger") / "run", **OPTIONS)


def test_books_are_kept_of_attacks_and_not_of_clean_images(run: Run) -> None:
    assert list(run.manifest.conditions) == ["clean", "attention(clean)", PGD, f"attention({PGD})", LEDGER]
    for name in NAMES:
        clean, attacked = (
            {row["sample_id"]: row for row in run.table(name, text).to_pylist()} for text in ("clean", PGD)
        )
        table = run.table(name, LEDGER)
        assert json.loads(table.schema.metadata[b"attention"]) == [[f"blocks.{i}.attn", 3, 65] for i in range(4)]
        for row in table.to_pylist():
            assert row["prediction"] == attacked[row["sample_id"]]["prediction"]
            same = row["prediction"] == clean[row["sample_id"]]["prediction"]
            assert all((row[f"back_with_{swap}"] is None) == same for swap in SWAPS)
            assert row["query_norm_share"] + row["key_norm_share"] + row["angle_share"] == pytest.approx(1, abs=1e-5)
            assert all(len(row[name]) == 12 for name in LISTS)
            assert row["logit_change"] == pytest.approx(np.sqrt(np.mean(np.square(row["logit_changes"]))))
            assert (row["key_norm_share"] == 0) == (name == NAMES[1])


@pytest.mark.usefixtures("pageless")
def test_a_sample_s_figures_do_not_depend_on_its_batch(run: Run, tmp_path: Path) -> None:
    again = robustkit.audit(
        [f"zoo:{NAMES[0]}"], out=tmp_path / "run", **OPTIONS | {"batch_size": 5, "evidence": "none"}
    )
    for one, other in zip(
        run.table(NAMES[0], LEDGER).to_pylist(), again.table(NAMES[0], LEDGER).to_pylist(), strict=True
    ):
        assert one["sample_id"] == other["sample_id"]
        assert one["angle_share"] == pytest.approx(other["angle_share"], rel=1e-3)
        assert one["back_with_norms"] == other["back_with_norms"]


def test_results_are_means_over_the_samples_that_have_a_figure(run: Run) -> None:
    rows = {(row.checkpoint, row.metric): row for row in run.summary() if row.condition == LEDGER}
    for name in NAMES:
        records = run.table(name, LEDGER).to_pylist()
        for metric in METRICS:
            values = [row[metric.name] for row in records if row[metric.name] is not None]
            found = rows[name, metric.name]
            assert found.n == len(values) and found.value == pytest.approx(np.mean(values))
            if metric.name.startswith("back"):
                bounds = wilson(int(sum(values)), len(values))
                assert (found.low, found.high) == pytest.approx(bounds)
    changed = rows[NAMES[0], "back_with_norms"].n
    assert 0 < changed < 12
    table, _ = family_of("ledger").presenter.tables(survey(run))
    (row,) = table.rows
    assert table.title == f"{NAMES[0]}: logit ledger, n = 12" and row[0] == "PGD, 8/255, 3 steps"
    assert row[table.headings.index("changed")] == str(changed)
    books = heads_of(run, NAMES[1], LEDGER, LISTS)
    assert books is not None and books.n == 12
    lists = [row["angle_shares"] for row in run.table(NAMES[1], LEDGER).to_pylist()]
    assert books.values["angle_shares"].tolist() == pytest.approx(np.mean(lists, axis=0).tolist())
    assert [len(values) for values in books.by_layer("logit_changes")] == [3] * 4


def test_shares_are_of_all_heads_together_and_segmenters_count_pixels() -> None:
    layers = [
        LayerLedger("a", 4, torch.tensor([[4.0, 0.0]]), torch.tensor([[[1.0, 1.0, 2.0], [0.0, 0.0, 0.0]]])),
        LayerLedger("b", 4, torch.tensor([[12.0]]), torch.tensor([[[0.0, 3.0, 9.0]]])),
    ]
    clean = torch.tensor([[[[1.0, 1.0, 1.0, 1.0]], [[0.0, 0.0, 0.0, 0.0]]]])  # (1, classes, 1, 4 pixels)
    shown, half = (clean * torch.tensor(signs) for signs in ([-1.0, -1.0, -1.0, 1.0], [1.0, -1.0, 1.0, 1.0]))
    outputs = dict(zip(SWAPS, (clean, shown, half, clean), strict=True))
    columns = columns_of(Ledger(layers, clean, shown, outputs))
    assert columns["logit_change"] == pytest.approx([(16 / 3) ** 0.5])
    assert columns["query_norm_share"] == [1 / 16] and columns["key_norm_share"] == [0.25]
    assert columns["logit_changes"][0] == pytest.approx([2, 0, 12**0.5])
    assert columns["angle_shares"][0][::2] == [0.5, 0.75] and np.isnan(columns["angle_shares"][0][1])
    assert [columns[f"back_with_{swap}"] for swap in SWAPS] == [[1.0], [0.0], [2 / 3], [1.0]]
    alike = columns_of(Ledger(layers, clean, clean, dict.fromkeys(SWAPS, clean)))
    assert alike["back_with_norms"] == [None]


def test_a_comparison_has_the_two_figures_that_answer_and_pairs_samples_that_both_lost(run: Run) -> None:
    sides = [Side(run, name) for name in NAMES]
    compared = Pairings((), (), (), ())
    shown = [*family_of("ledger").aggregator.compared(*sides, [LEDGER], compared)]
    assert shown == [(LEDGER, "key_norm_share"), (LEDGER, "back_with_norms")]
    lost = [
        {row["sample_id"] for row in run.table(name, LEDGER).to_pylist() if row["back_with_norms"] is not None}
        for name in NAMES
    ]
    assert paired_difference(*sides, LEDGER, "back_with_norms").n == len(lost[0] & lost[1])
    with pytest.raises(RunError, match="top1"):
        paired_difference(*sides, LEDGER, "top1")
    page = (run.path / "report.html").read_text("utf-8")
    assert "Causes of logit changes" in page and "What changes logits, layer by layer, under" in page


def test_the_page_of_figures_is_made_from_runs(run: Run) -> None:
    (table,) = ledger(run)
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[4:]]
    summary = {(row.checkpoint, row.metric): row for row in run.summary() if row.condition == LEDGER}
    assert [row[0] for row in rows] == [*NAMES] and rows[0][-1] == "" and ", n = " in rows[1][-1]
    for cells in rows:
        found = summary[cells[0], "key_norm_share"].value, summary[cells[0], "back_with_norms"]
        assert cells[3] == f"{100 * found[0]:.1f}" and cells[1] == str(found[1].n)
        assert cells[7].startswith(f"{100 * found[1].value:.1f} [")
    (evidence,) = hidden(run)
    assert evidence.count("correct samples stay correct under PGD") == 2 and evidence.count("| none |") == 2
    assert not [*patches(run)]
    assert without_folders("audit '/a b/x.pt' --out runs/x /c/d.pth") == "audit x.pt --out runs/x d.pth"


def test_names_of_conditions_and_damage(run: Run, tmp_path: Path) -> None:
    pattern = pattern_of(LEDGER)
    assert pattern.text == LEDGER
    check_condition(LEDGER)
    for wrong in ("ledger(clean)", "ledger", "ledger(cam(agcam))", "ledger(banana)"):
        with pytest.raises(ProtocolError):
            check_condition(wrong)
    shutil.copytree(run.path, tmp_path / "run")
    copy = Run(tmp_path / "run")
    table = pq.read_table(copy.shard_path(NAMES[0], LEDGER, 0))
    put(copy, NAMES[0], LEDGER, table.drop_columns(["angle_shares"]))
    seal(copy)
    with pytest.raises(DamagedRecord, match="a record without angle_shares"):
        heads_of(copy, NAMES[0], LEDGER, LISTS)
