"""Trainings of language models: functions of their seed, interrupted or not; what is shipped; grids and their logs."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from robustkit.data.documents import Words
from robustkit.errors import RunError
from robustkit.models.language_model import Sizes, load_word_model
from scripts.language import grid, keys, stability, train
from scripts.language.corpus import Corpus, batches, windows
from scripts.language.run import Recipe, Run, attention_logits, loss_of

pytestmark = pytest.mark.usefixtures("one_thread")
SMALL = Recipe(
    "small",
    words=6,
    sizes=Sizes(width=12, depth=1, heads=2, context=4, hidden=8),
    steps=12,
    batch=2,
    rate=0.02,
    warm_up=0.25,
    floor=1e-3,
    log_every=4,
    probes=3,
    dropout=0.2,
)


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
