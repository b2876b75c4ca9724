"""The toy retrieval experiment: its data, its models compared with ordinary ones, and what is made of their results."""

from __future__ import annotations

import multiprocessing
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from toy_oracles import Transformer

from robustkit.attention.formulas import find_formula
from robustkit.errors import RunError
from scripts.studies.toy_retrieval import choices as toy_choices
from scripts.studies.toy_retrieval import model as toy_model
from scripts.studies.toy_retrieval import results as toy_results
from scripts.studies.toy_retrieval import run as toy_run
from scripts.studies.toy_retrieval import train as toy_retrieval

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_thread", "whole_figures")]
TRAINED = toy_run.FORMULAS
SAMPLES = toy_model.Realisation.draw(3).samples(64, 20, purpose=0, biased=0.5)
TOKENS = SAMPLES.tokens.double()
RATES, DECAYS = (torch.tensor(row, dtype=torch.float64) for row in ([0.002, 0.01, 0.005], [0.1, 0.0, 0.05]))


def shapes(reading: str) -> list[toy_model.Shape]:
    """Every choice at least once."""
    return [
        toy_model.Shape(reading=reading, start="torch"),
        toy_model.Shape(reading=reading, start="mixed", bias=True, final_norm=True),
        toy_model.Shape(reading=reading, start="timm"),
    ]


def one_by_one(shape: toy_model.Shape, formula: str, seeds: list[int], steps: int) -> list[Transformer]:
    """Ordinary modules, each trained by torch.optim.AdamW."""
    models = []
    for seed, rate, decay in zip(seeds, RATES, DECAYS, strict=True):
        weights = toy_model.initial(shape, find_formula("qknorm-ds" if formula == "qknorm" else formula), seed)
        weights = {n: w[None] if formula == "qknorm" and n in ("q_scale", "k_scale") else w for n, w in weights.items()}
        model = Transformer(weights, formula, shape.reading == "literal").double()
        optimiser = torch.optim.AdamW(model.parameters(), lr=rate.item(), weight_decay=decay.item())
        for step in range(steps):
            some = slice(16 * step, 16 * step + 16)
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(TOKENS[some]), SAMPLES.labels[some]).backward()
            optimiser.step()
        models.append(model)
    return models


def batched(shape: toy_model.Shape, formula: str, seeds: list[int], steps: int) -> toy_run.Batch:
    batch = toy_run.Batch(shape, formula, seeds, RATES[: len(seeds)], DECAYS[: len(seeds)])
    for step in range(steps):
        some = slice(16 * step, 16 * step + 16)
        batch.step(TOKENS[some], SAMPLES.labels[some])
    return batch


@pytest.mark.parametrize("reading", toy_model.READINGS)
@pytest.mark.parametrize("formula", TRAINED)
def test_a_batch_of_models_is_trained_as_each_would_be_alone(formula: str, reading: str) -> None:
    for shape in shapes(reading):
        models, batch = one_by_one(shape, formula, [0, 1, 2], 4), batched(shape, formula, [0, 1, 2], 4)
        logits = toy_model.class_logits(shape, batch.formula, batch.weights, TOKENS)
        norms = toy_model.key_norms(shape, batch.weights, TOKENS)
        for place, model in enumerate(models):
            for name, value in model.named_parameters():
                torch.testing.assert_close(batch.weights[name][place], value, rtol=0, atol=1e-7, msg=name)
            torch.testing.assert_close(logits[place], model(TOKENS), rtol=1e-6, atol=1e-6)
            theirs = model.keys(TOKENS).norm(dim=-1)
            torch.testing.assert_close(norms[..., place].T, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("formula", toy_run.SAME_AS)
def test_three_formulas_are_others_with_one_head_and_one_layer(formula: str) -> None:
    shape = toy_model.Shape()
    batch = batched(shape, toy_run.SAME_AS[formula], [0, 1, 2], 4)
    for place, model in enumerate(one_by_one(shape, formula, [0, 1, 2], 4)):
        for name, value in model.named_parameters():
            torch.testing.assert_close(batch.weights[name][place].view_as(value), value, rtol=0, atol=1e-7, msg=name)


@pytest.mark.parametrize("formula", TRAINED)
def test_logits_are_those_of_the_package(formula: str) -> None:
    shape, generator = toy_model.Shape(start="torch", bias=True), torch.Generator().manual_seed(0)
    each = [toy_model.initial(shape, find_formula(formula), seed) for seed in range(3)]
    each = [{name: w + 0.3 * torch.randn(w.shape, generator=generator) for name, w in own.items()} for own in each]
    weights = {name: torch.stack([own[name] for own in each]).double() for name in each[0]}
    places = torch.cat([weights["positions"][:, :1] + weights["cls"][:, None], weights["positions"][:, 1:]], dim=1)
    keys = toy_model.Keys(shape, weights, toy_model.Tokens.of(TOKENS, shape.reading), places)
    found = toy_model.attention_logits(find_formula(formula), _queries(each, formula), keys, weights).clone()
    for place, own in enumerate(each):
        model = Transformer(own, formula, literal=False).double()
        y = model.norm1(model.embed(TOKENS))
        expected = model.scores(y, model.v(y))[:, 0, 0].T
        if formula == "qknorm-ln":  # without what is the same for all tokens
            expected = expected - expected.mean(0)
            found[..., place] -= found[..., place].mean(0)
        torch.testing.assert_close(found[..., place], expected, rtol=1e-6, atol=1e-6)


def _queries(each: list[dict[str, torch.Tensor]], formula: str) -> torch.Tensor:
    """The CLS query of each model, (M, 1, 20)."""
    models = [Transformer(own, formula, literal=False).double() for own in each]
    return torch.stack([model.q(model.norm1(model.embed(TOKENS[:1])))[0, :1] for model in models]).detach()


def test_a_model_does_not_depend_on_its_company() -> None:
    rates, decays = torch.tensor([0.01, 0.002, 0.005]), torch.tensor([0.0, 0.1, 0.05])
    together = toy_run.Batch(toy_model.Shape(), "quest", [4, 1, 2], rates, decays)
    alone = toy_run.Batch(toy_model.Shape(), "quest", [1], rates[1:2], decays[1:2])
    for batch in (together, alone):
        for step in range(3):
            batch.step(SAMPLES.tokens[16 * step : 16 * step + 16], SAMPLES.labels[16 * step : 16 * step + 16])
    torch.testing.assert_close(together.flat[1], alone.flat[0], rtol=0, atol=2e-5)
    with torch.no_grad():
        together.weights["q.weight"][0] = torch.nan
    together.step(SAMPLES.tokens[:16], SAMPLES.labels[:16])
    assert together.flat[0].isnan().any()
    assert together.flat[1:].isfinite().all()


def test_standard_logits_of_the_literal_reading_are_linear_in_a_token_and_those_of_quest_are_not() -> None:
    def bend(formula: str, reading: str) -> float:
        """How far the logit half-way between two tokens is from the mean of theirs."""
        batch = toy_run.Batch(toy_model.Shape(reading=reading), formula, [0], RATES[:1], DECAYS[:1])
        tokens = torch.stack([TOKENS[0], TOKENS[1], (TOKENS[0] + TOKENS[1]) / 2])
        shape, p = batch.shape, batch.weights
        places = torch.cat([p["positions"][:, :1] + p["cls"][:, None], p["positions"][:, 1:]], dim=1)
        keys = toy_model.Keys(shape, p, toy_model.Tokens.of(tokens, reading), places)
        query = (places[:, :1] @ p["q.weight"].transpose(1, 2)).detach()
        logits = toy_model.attention_logits(batch.formula, query, keys, p)[..., 0]
        scale = (logits[1:, 0] - logits[1:, 1]).abs().max()
        return ((logits[1:, 2] - logits[1:, :2].mean(1)).abs().max() / scale).item()

    assert bend("standard", "literal") < 1e-12
    assert bend("qnorm", "literal") < 1e-12
    assert bend("quest", "literal") > 0.01
    assert bend("standard", "pre-norm") > 0.01


# data


def test_samples_are_drawn_as_described() -> None:
    data = toy_model.Realisation.draw(0)
    samples = data.samples(20_000, 20, purpose=5, biased=0.5)
    rows, answers = torch.arange(len(samples)), samples.tokens[torch.arange(len(samples)), samples.places].double()
    free, bound = answers[~samples.biased, :10], answers[samples.biased, :10]
    covariance = data.mixing @ data.mixing.T
    assert free.T.cov().numpy() == pytest.approx(covariance, abs=0.07 * np.abs(covariance).max())
    assert free.mean(0).numpy() == pytest.approx(np.zeros(10), abs=0.2)
    assert bound.mean(0).numpy() == pytest.approx(data.bias, abs=0.01)
    assert bound.T.cov().numpy() == pytest.approx(0.1 * np.eye(10), abs=0.005)
    others = torch.ones(samples.tokens.shape[:2], dtype=torch.bool)
    others[rows, samples.places] = False
    rest = samples.tokens[others][:, :10].double()
    assert rest.T.cov().numpy() == pytest.approx(np.eye(10), abs=0.01)
    assert samples.biased.double().mean() == pytest.approx(0.5, abs=0.015)
    shares = torch.bincount(samples.places, minlength=20).double() / len(samples)
    assert shares[[8, 9, 10, 11, 12]].tolist() == pytest.approx([0.1499, 0.1915, 0.1915, 0.1499, 0.0918], abs=0.011)
    assert torch.equal(answers[:, 10:].argmax(1), samples.labels)
    assert torch.equal(samples.tokens[..., 10:].sum(-1), torch.ones(20_000, 20))
    assert samples.tokens[..., 10:].mean((0, 1)).numpy() == pytest.approx(np.full(10, 0.1), abs=0.002)


def test_draws_are_a_function_of_realisation_and_purpose() -> None:
    def draw(number: int, purpose: int, **options: Any) -> toy_model.Samples:
        settings = {"biased": 0.5} | options
        return toy_model.Realisation.draw(number).samples(300, 20, purpose=purpose, **settings)

    assert torch.equal(draw(1, 0).tokens, draw(1, 0).tokens)
    assert not torch.equal(draw(1, 0).tokens, draw(1, 1).tokens)
    assert not torch.equal(draw(1, 0).tokens, draw(2, 0).tokens)
    assert not draw(1, 1, biased=0.0).biased.any()
    assert set(draw(1, 1, uniform=True).places.tolist()) == set(range(20))
    assert draw(1, 0).places.min() >= 2
    data = toy_model.Realisation.draw(1)
    assert sorted(data.order(300, 0).tolist()) == list(range(300))
    assert not torch.equal(data.order(300, 0), data.order(300, 1))


def test_starts_are_shared_by_formulas() -> None:
    for start in toy_model.STARTS:
        shape = toy_model.Shape(start=start)
        one, other = (toy_model.initial(shape, find_formula(name), 3) for name in ("standard", "qknorm-ln"))
        assert all(torch.equal(one[name], other[name]) for name in one)
        assert set(other) - set(one) == {"q_norm.weight", "q_norm.bias", "k_norm.weight", "k_norm.bias"}
        assert not torch.equal(one["q.weight"], toy_model.initial(shape, find_formula("standard"), 4)["q.weight"])
        assert one["positions"].std() == pytest.approx(1 if start == "torch" else 0.02, rel=0.1)
        assert one["fc1.weight"].std() == pytest.approx(0.02 if start == "timm" else (1 / 60) ** 0.5, rel=0.1)


# runs


@pytest.fixture(scope="module")
def plan() -> toy_run.Plan:
    """Twelve models that learn something, of two formulas."""
    grid = toy_run.Grid(("standard", "quest"), rates=(0.002, 0.01), decays=(0.0,), data=2, seeds=2)
    return toy_run.Plan(toy_run.Setting(samples=96, tested=128, epochs=2), grid)


def test_a_unit_measures_what_ordinary_models_do(plan: toy_run.Plan) -> None:
    unit = toy_run.train(plan, "quest", 1)
    data, place = toy_model.Realisation.draw(1), 3  # rate 0.01, seed 1
    assert plan.grid.models()[place] == (0.01, 0.0, 1)
    samples = data.samples(96, 20, purpose=0, biased=0.5)
    model = Transformer(toy_model.initial(plan.setting.shape, find_formula("quest"), 1), "quest", literal=False)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.0)

    def norms() -> list[float]:
        lengths = model.keys(samples.tokens).norm(dim=-1)[:, 1:]
        kinds = torch.full(lengths.shape, 2)
        kinds[torch.arange(96), samples.places] = torch.where(samples.biased, 0, 1)
        return [lengths[kinds == kind].mean().item() for kind in range(3)]

    curve = [norms()]
    for epoch in range(2):
        for some in data.order(96, epoch).split(32):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(model(samples.tokens[some]), samples.labels[some]).backward()
            optimiser.step()
        curve.append(norms())
    assert unit["norms"][place] == pytest.approx(np.array(curve), rel=2e-3)
    right = (model(samples.tokens).argmax(1) == samples.labels).double()
    near = 2.1 / 96  # two samples whose classes are as likely
    assert unit["train"][place] == pytest.approx(right.mean().item(), abs=near)
    test = data.samples(128, 20, purpose=1, biased=0.0)
    accuracy = (model(test.tokens).argmax(1) == test.labels).double().mean().item()
    assert unit["test"][place] == pytest.approx(accuracy, abs=near)


def test_accuracies_tell_biased_samples_from_others(plan: toy_run.Plan) -> None:
    batch = toy_run.Batch(plan.setting.shape, "quest", [0], RATES[:1].float(), DECAYS[:1].float())
    predicted = toy_model.class_logits(batch.shape, batch.formula, batch.weights, SAMPLES.tokens)[0].argmax(-1)
    right = torch.arange(64) % 3 < 1 + SAMPLES.biased.long()
    samples = toy_model.Samples(
        SAMPLES.tokens, torch.where(right, predicted, 9 - predicted), SAMPLES.places, SAMPLES.biased
    )
    with torch.no_grad():
        found = toy_run.measure(batch, toy_model.Realisation.draw(3), plan.setting, samples)
    for name, some in (("train", slice(None)), ("train_biased", samples.biased), ("train_unbiased", ~samples.biased)):
        assert found[name] == pytest.approx(right[some].double().mean().item())


def test_a_run_that_was_killed_goes_on_and_ends_the_same(
    plan: toy_run.Plan, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(list(toy_run.run(tmp_path / "whole", plan))) == 4
    train, calls = toy_run.train, []

    def dies(*arguments: Any) -> toy_run.Columns:
        calls.append(arguments)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return train(*arguments)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(toy_run, "train", dies)
        list(toy_run.run(tmp_path / "broken", plan))
    with pytest.raises(RunError, match=r"quest-data0\.npz: no such file; expected 4 units; run the same command again"):
        toy_run.read(tmp_path / "broken", plan)
    assert len(list((tmp_path / "broken" / "units").iterdir())) == 2
    assert list(toy_run.run(tmp_path / "broken", plan)) == ["quest-data0", "quest-data1"]
    whole, resumed = (toy_run.read(tmp_path / name, plan) for name in ("whole", "broken"))
    for unit, columns in whole.items():
        for name in set(columns) - {"seconds"}:
            assert np.array_equal(columns[name], resumed[unit][name])


@pytest.mark.slow
def test_workers_make_what_one_process_makes_and_a_killed_one_is_told(plan: toy_run.Plan, tmp_path: Path) -> None:
    list(toy_run.run(tmp_path / "one", plan))
    assert len(list(toy_run.run(tmp_path / "two", plan, workers=2))) == 4
    one, two = (toy_run.read(tmp_path / name, plan) for name in ("one", "two"))
    assert all(np.array_equal(one[unit]["norms"], two[unit]["norms"]) for unit in one)
    longer = replace(plan, setting=replace(plan.setting, epochs=100_000))
    running = toy_run.run(tmp_path / "killed", longer, workers=2)
    killer = threading.Timer(20, lambda: multiprocessing.active_children()[0].kill())
    killer.start()
    with pytest.raises(RunError, match="a worker was killed, perhaps for lack of memory; run the same command again"):
        next(running)
    killer.join()


def test_a_folder_keeps_one_setting(plan: toy_run.Plan, tmp_path: Path) -> None:
    assert toy_run.Plan.of(plan.facts()) == plan
    toy_run.claim(tmp_path / "setting.json", plan)
    toy_run.claim(tmp_path / "setting.json", plan)
    other = replace(plan, setting=replace(plan.setting, samples=97))
    with pytest.raises(RunError, match=r"holds results of another setting than pre-norm .* 97 samples.*another folder"):
        toy_run.claim(tmp_path / "setting.json", other)


# results


def test_outcomes_are_those_of_the_paper() -> None:
    cases = [
        (0.91, 0.91, "correct"),
        (0.9, 0.95, "none of these"),
        (0.99, 0.9, "none of these"),
        (0.5, 0.2, "biased"),
        (0.8, 0.4, "biased"),
        (0.81, 0.3, "none of these"),
        (0.6, 0.19, "none of these"),
        (0.6, 0.41, "none of these"),
        (0.15, 0.1, "degenerate"),
        (0.16, 0.1, "none of these"),
    ]
    train, test, expected = zip(*cases, strict=True)
    assert toy_results.outcomes(np.array(train), np.array(test)).tolist() == list(expected)


def made_up(correct: Any) -> toy_results.Results:
    """The full grid of one formula, correct where the function of (data, seed, rate, decay) says so."""
    grid = toy_run.Grid(("quest",))
    rows = [(data, *model) for data in range(5) for model in grid.models()]
    data, rate, decay, seed = (np.array(column) for column in zip(*rows, strict=True))
    score = np.where(correct(data, seed, rate, decay), 0.95, 0.3)
    columns = {"formula": np.full(750, "quest"), "data": data, "seed": seed, "rate": rate, "decay": decay}
    columns |= dict.fromkeys(toy_run.MEASURED, score)
    return toy_results.Results(toy_run.Plan(toy_run.Setting(), grid), columns, {}, 1.0)


def test_intervals_know_that_models_share_data_and_starts() -> None:
    # One of five succeeds: of five drawn again it is up to three, in 97.5 % of binomial draws, or none.
    for results in (
        made_up(lambda data, seed, rate, decay: data == 2),
        made_up(lambda data, seed, rate, decay: seed == 4),
    ):
        assert results.success("quest") == pytest.approx((0.2, 0.0, 0.6))
    share, low, high = made_up(lambda data, seed, rate, decay: rate == 0.005).success("quest")
    assert (share, low, high) == pytest.approx((1 / 6, 1 / 6, 1 / 6))  # the same for all pairs


def test_a_difference_is_of_the_same_draws() -> None:
    one, other = (made_up(lambda data, seed, rate, decay, r=r: (data < 3) & (rate < r)) for r in (0.001, 0.004))
    other.columns["formula"][:] = "qnorm"
    columns = {name: np.concatenate([one.columns[name], other.columns[name]]) for name in one.columns}
    both = replace(one, columns=columns)
    assert both.success("quest")[0] == pytest.approx(0.1)
    share, low, high = both.ahead("qnorm", "quest")
    assert share == pytest.approx(0.2)  # where they succeed they differ by two of six rates
    assert (low, high) == pytest.approx((1 / 15, 1 / 3))  # one to five of five realisations, in 95 % of the draws


def test_the_map_has_a_cell_for_each_rate_and_decay() -> None:
    results = made_up(lambda data, seed, rate, decay: (rate == 0.001) & (seed < 2) & (decay > 0.03))
    expected = np.zeros((5, 6))
    expected[3:, 1] = 0.4
    assert results.map("quest") == pytest.approx(expected)


def test_looking_for_b_is_success_with_it_and_none_without() -> None:
    columns = {"test_alike": np.array([0.6, 0.6, 0.95, 0.5]), "test": np.array([0.25, 0.35, 0.95, 0.12])}
    assert toy_results.GROUPS["shortcut"](columns).tolist() == [True, False, False, False]


# the command


@pytest.fixture(scope="module")
def docs(plan: toy_run.Plan, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder that the command has filled, with choices next to it."""
    pytest.importorskip("matplotlib")
    folder = tmp_path_factory.mktemp("docs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(toy_retrieval.GRIDS, "quick", plan.grid)
        patch.setattr(toy_choices, "SETTINGS", (replace(plan.setting, samples=32, epochs=1),))
        patch.setattr(toy_choices.explore, "__defaults__", (replace(plan.grid, data=1),))
        patch.setattr(toy_choices.save, "__defaults__", (replace(plan.grid, data=1),))
        work = ["--work", str(folder / "choices"), "--out", str(folder)]
        assert toy_retrieval.main(["--preset", "choices", *work]) == 0
        few = ["--samples", "64", "--epochs", "1", "--out", str(folder)]
        assert toy_retrieval.main(["--formulas", "elliptical-quest", *few]) == 0
        yield folder


def test_the_page_says_what_the_results_say(docs: Path) -> None:
    page, results = (docs / "README.md").read_text("utf-8"), toy_results.load(docs)
    assert results.plan.grid.formulas == ("quest",)
    assert len(results) == 8
    for formula, published in (("quest", "58"),):
        counts = [(results.outcomes()[results.of(formula)] == name).sum() for name in toy_results.OUTCOMES]
        assert sum(counts) == 8
        row = re.search(rf"^\| {formula} +\| {published} .*$", page, re.MULTILINE)
        assert row is not None
        assert [int(cell) for cell in row[0].split("|")[4:8]] == counts
    pictures = re.findall(r"!\[([^]]+)\]\(([^)]+)\)", page)
    assert {path for _, path in pictures} <= {path.name for path in docs.glob("*.svg")}
    assert all(len(words) > 40 and "\n" not in words for words, _ in pictures)
    assert max(len(line) for line in page.splitlines() if not line.startswith(("|", "!", "Made by"))) <= 120
    assert "32 samples, 1 epochs" in page
    assert "`python -m scripts.studies.toy_retrieval.train --preset quick --out " in page
    assert "--samples 64 --epochs 1 --formulas quest`" in page


def test_results_come_back_as_they_were_written_and_make_the_same_page(docs: Path, tmp_path: Path) -> None:
    results = toy_results.load(docs)
    toy_results.save(results, tmp_path)
    for name in ("setting.json", "results.csv.gz", "curves.csv", "cost.json"):
        assert (tmp_path / name).read_bytes() == (docs / name).read_bytes()
    before = {path: path.read_bytes() for path in (docs / "README.md", *docs.glob("*.svg"))}
    assert toy_retrieval.main(["--from-results", "--out", str(docs)]) == 0
    assert {path: path.read_bytes() for path in before} == before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--formulas", "quezt"], "unknown attention 'quezt'; did you mean 'quest'? known: "),
        (["--samples", "0"], "--samples 0: expected 1 or more"),
        (["--workers", "0"], "--workers 0: expected 1 or more"),
        (["--from-results"], "no results that can be read"),
    ],
)
def test_what_is_not_understood_is_one_line(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert toy_retrieval.main([*options, "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("scripts.studies.toy_retrieval.train: ")
    assert message in error
    assert error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_results_of_another_setting_are_not_overwritten(docs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (docs / "results.csv.gz").read_bytes()
    same = ["--formulas", "quest", "--epochs", "1"]
    assert toy_retrieval.main([*same, "--samples", "65", "--out", str(docs)]) == 2
    assert "holds results of another setting" in capsys.readouterr().err
    assert (docs / "results.csv.gz").read_bytes() == before
