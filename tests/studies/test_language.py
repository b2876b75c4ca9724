"""Trainings of language models: functions of their seed, interrupted or not; what is shipped; grids, their logs and
their pages.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from robustkit.errors import RunError
from robustkit.slices.text.documents import Words
from robustkit.slices.text.language_model import ModelShape, load_word_model
from scripts.studies.language import grid, train
from scripts.studies.language.run import Corpus, Recipe, Run, attention_logits, batches, loss_of, most_frequent, windows
from scripts.studies.qana import page as qana
from scripts.studies.qana import train as keys
from scripts.studies.quack import page as quack
from scripts.studies.quack import train as stability

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread")]
SMALL = Recipe(
    "small",
    words=6,
    sizes=ModelShape(width=12, depth=1, heads=2, context=4, hidden=8),
    steps=12,
    batch=2,
    rate=0.02,
    warm_up=0.25,
    floor=1e-3,
    log_every=4,
    probes=3,
    dropout=0.2,
)


def test_the_most_frequent_words_come_first_and_ties_by_code_points() -> None:
    documents = [["b", "a", "b", "<unk>", "<unk>"], ["c", "B", "a", "b"]]
    assert most_frequent(documents, 4).words == ("<unk>", "b", "a", "B")
    assert most_frequent(documents, 9).words == ("<unk>", "b", "a", "B", "c")


def corpus() -> Corpus:
    draw = torch.Generator().manual_seed(0)
    splits = {
        split: [torch.randint(6, (20 + 3 * index,), generator=draw) for index in range(count)]
        for split, count in {"train": 4, "validation": 2, "test": 2}.items()
    }
    return Corpus(Words(["<unk>", *"abcde"]), splits, "0" * 64)


def weights(run: Run) -> list[torch.Tensor]:
    return [tensor.clone() for tensor in run.model.state_dict().values()]


def test_windows_meet_in_one_word_and_batches_are_functions_of_seed_and_step() -> None:
    documents = [torch.arange(11), torch.arange(100, 104)]
    assert windows(documents, 4, [1, 0]).tolist() == [[1, 2, 3, 4, 5], [5, 6, 7, 8, 9]]
    train_part = corpus().splits["train"]
    whole = list(batches(train_part, 4, 3, 5, range(40)))
    assert all(part.shape == (3, 5) for part in whole) and len(whole) == 40
    for first in (1, 7, 8, 39):
        rest = list(batches(train_part, 4, 3, 5, range(first, 40)))
        assert all(torch.equal(one, other) for one, other in zip(rest, whole[first:], strict=True))
    assert not torch.equal(torch.stack(whole), torch.stack(list(batches(train_part, 4, 3, 6, range(40)))))
    first_epoch = torch.cat(whole[:5])  # of 20, 23, 26 and 29 words: more than 15 windows, whatever the offsets
    assert len(first_epoch.unique(dim=0)) == 15


@pytest.mark.parametrize("latent", [False, True])
@pytest.mark.parametrize("stabiliser", ["none", "quack(tau=1)", "sigma-reparam"])
def test_a_training_ends_in_the_same_bits_whether_it_was_stopped_or_not(
    stabiliser: str, latent: bool, tmp_path: Path
) -> None:
    recipe = replace(SMALL, latent=latent)

    def run(where: str, seed: int = 0) -> Run:
        return Run(recipe, "standard", corpus(), tmp_path / where, seed=seed, stabiliser=grid.stabiliser(stabiliser))

    whole = run("whole")
    rows = list(whole.train())
    assert [row["step"] for row in rows] == [4, 8, 12] and whole.over
    stopped = run("stopped")
    next(stopped.train())
    again = run("stopped")
    again.resume()
    assert again.step == 4
    assert [{**row, "seconds": 0} for row in [*again.rows, *again.train()]] == [{**row, "seconds": 0} for row in rows]
    pairs = zip(weights(whole), weights(again), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
    other = run("other", seed=1)
    list(other.train())
    assert not all(torch.equal(one, two) for one, two in zip(weights(whole), weights(other), strict=True))


def test_a_row_says_what_a_slow_look_says(tmp_path: Path) -> None:
    run = Run(replace(SMALL, log_every=1, steps=2, dropout=0.0), "standard", corpus(), tmp_path / "run")
    rows = run.train()
    next(rows)
    before = attention_logits(run.model, run.validation[:3])
    assert before[0].shape == (3 * 2 * 10,)  # windows, heads, and pairs of four words in which one sees the other
    row = next(rows)
    after = attention_logits(run.model, run.validation[:3])
    assert row["largest_logit"] == pytest.approx([after[0].abs().max().item()], rel=1e-3)
    assert row["change"] == pytest.approx([(after[0] - before[0]).abs().mean().item()], rel=1e-3)
    total, count = 0.0, 0
    for window in run.validation:
        for place in range(4):
            probabilities = run.model(window[None, : place + 1])[0, -1].softmax(0)
            total, count = total - math.log(probabilities[window[place + 1]].item()), count + 1
    assert loss_of(run.model, run.validation) == pytest.approx(total / count, rel=1e-5)
    assert row["validation"] == pytest.approx(total / count, abs=1e-4)


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    list(Run(SMALL, "standard", corpus(), tmp_path / "run").train())
    with pytest.raises(RunError, match="holds a run with attention standard, not quest; give another --work"):
        Run(SMALL, "quest", corpus(), tmp_path / "run").resume()


def test_what_is_shipped_says_how_it_was_made_and_loads(tmp_path: Path) -> None:
    run = Run(replace(SMALL, probes=0), "qknorm-ds", corpus(), tmp_path / "run")
    list(run.train())
    path, perplexity = train.save(run, tmp_path / "out")
    found = load_word_model(path)
    held = run.corpus.splits["test"]
    assert math.log(perplexity) == pytest.approx(loss_of(found.network, windows(held, 4, [0, 0])), rel=1e-6)
    said = found.checkpoint.metadata
    assert said["perplexity"] == f"{perplexity:.2f}"
    assert said["data"] == "4 documents of Brown, 98 words, of which 10.2% are <unk>"
    assert found.words.words == run.corpus.words.words
    listing = json.loads((tmp_path / "out" / "checkpoints.json").read_text("utf-8"))
    assert listing[path.stem]["sha256"] == found.checkpoint.sha256 and listing[path.stem]["task"] == "text"
    again, _ = train.save(run, tmp_path / "again")
    assert again.read_bytes() == path.read_bytes()


def test_a_grid_goes_on_with_what_is_missing_and_keeps_one_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(grid.Corpus, "read", lambda path, words: corpus())
    small = replace(SMALL, probes=0, dropout=0.0)
    wild = replace(small, rate=1e30, floor=1e30)
    trials = [grid.Trial(small), grid.Trial(wild), grid.Trial(small, "quest"), grid.Trial(small, seed=1)]
    logs = tmp_path / "runs.jsonl"
    grid.finish(trials, Path("brown.tgz"), tmp_path, logs, "seed-1")
    grid.finish(trials, Path("brown.tgz"), tmp_path, logs, "")
    found = grid.read_logs(logs)
    assert list(found) == [trial.name for trial in trials]
    assert found[trials[1].name][-1].get("diverged") and not found[trials[0].name][-1].get("diverged")
    assert capsys.readouterr().out.count("diverged") == 1
    before = logs.read_bytes()
    grid.finish(trials, Path("brown.tgz"), tmp_path / "elsewhere", logs, "")
    assert logs.read_bytes() == before and not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("module", [keys, stability])
def test_no_two_trainings_of_a_grid_have_the_same_name(module: object) -> None:
    trials = list(module.grid())  # type: ignore[attr-defined]
    assert len({trial.name for trial in trials}) == len(trials) > 20
    for one, other in itertools.combinations(trials, 2):
        assert one != other


def log_of(path: Path, rows: dict[grid.Trial, list[dict[str, Any]]]) -> Path:
    path.write_text("".join(json.dumps({"trial": t.name, "rows": r}) + "\n" for t, r in rows.items()), "utf-8")
    return path


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]


def look(step: int, validation: float, largest: float = 1.0, change: float = 0.1) -> dict[str, Any]:
    return {"step": step, "validation": validation, "largest_logit": [largest, 0.5], "change": [0.0, change]}


@pytest.mark.usefixtures("whole_figures")
def test_the_page_of_quack_says_who_is_near_the_best_and_what_logits_did(tmp_path: Path) -> None:
    plain, norm, quacked = stability.METHODS[:3]
    low, middle, high, _ = stability.RATES
    made = {
        stability.trial("MHA", low, plain): [look(20, 5.0, 7.0, 0.25), look(40, 4.5, 3.0, 0.75)],
        stability.trial("MHA", middle, plain): [look(20, 5.0, 2200.0, 3.0), {"step": 40, "diverged": True}],
        stability.trial("MHA", low, quacked): [look(40, 4.6)],
        stability.trial("MHA", high, quacked): [look(40, 4.25)],
        stability.trial("MHA", high, norm): [look(40, 4.34)],
        stability.trial("MLA", low, plain): [look(40, 4.125)],
        stability.norm_trial("spectral", 3.0): [look(40, 4.75)],
    }
    out = tmp_path / "page" / "README.md"
    assert quack.main(["--logs", str(log_of(tmp_path / "runs.jsonl", made)), "--out", str(out)]) == 0
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
    drawn = {path.name: path.read_bytes() for path in (tmp_path / "page").iterdir()}
    assert set(drawn) == {"README.md", "losses.svg", "logits.svg", "norms.svg"}
    assert quack.main(["--logs", str(tmp_path / "runs.jsonl"), "--out", str(out)]) == 0
    assert drawn == {path.name: path.read_bytes() for path in (tmp_path / "page").iterdir()}


@pytest.mark.usefixtures("whole_figures")
def test_the_page_of_qana_pairs_by_seed_and_counts_the_cache(tmp_path: Path) -> None:
    ends: dict[tuple[Any, ...], float] = {
        **{(32, "standard", seed): 4.0 + seed / 10 for seed in (0, 1, 2)},
        **{(8, "qana", seed): 4.25 + seed / 10 + seed / 100 for seed in (0, 1, 2)},
        (16, "standard", 0): 4.5,
        (16, keys.LITERAL, 0): 4.504,
        (8, "qana", 0, keys.LOW): 4.625,
    }
    made = {keys.trial(*which): [look(600, value)] for which, value in ends.items()}
    out = tmp_path / "README.md"
    assert qana.main(["--logs", str(log_of(tmp_path / "runs.jsonl", made)), "--out", str(out)]) == 0
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
