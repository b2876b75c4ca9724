"""The toy retrieval experiment: its data, its models beside ordinary ones, and what is made of their results."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from toy_oracles import Transformer

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))

import toy_data
import toy_model
import toy_train

from robustkit.formulas import find_formula

pytestmark = pytest.mark.usefixtures("one_thread")
TRAINED = ("standard", "qnorm", "quest", "qknorm-hs", "qknorm-ds", "qknorm-ln")
SAMPLES = toy_data.Realisation.draw(3).samples(64, 20, purpose=0, biased=0.5)
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


def batched(shape: toy_model.Shape, formula: str, seeds: list[int], steps: int) -> toy_train.Batch:
    batch = toy_train.Batch(shape, formula, seeds, RATES[: len(seeds)], DECAYS[: len(seeds)])
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
