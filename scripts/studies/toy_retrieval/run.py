"""Runs of the toy task: a grid of models into units, each trained at once and written whole or not at all.

WORK/setting.json                what is trained, on what
WORK/units/FORMULA-dataN.npz     all models of one formula on one realisation of the data
"""

from __future__ import annotations

import io
import itertools
import json
import math
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robustkit.attention.formulas import find_formula
from robustkit.common.files import write_whole
from robustkit.errors import RunError

from .model import Realisation, Samples, Shape, class_logits, initial, key_norms


class Batch:
    """M models of one shape and formula, trained by AdamW, each with its own rate and weight decay.

    rates, decays: (M,), whose dtype is the models'. All parameters are one matrix, a row a model, of which `weights`
    are views.
    """

    def __init__(self, shape: Shape, formula_name: str, seeds: list[int], rates: Tensor, decays: Tensor) -> None:
        self.shape, self.formula = shape, find_formula(formula_name)
        started = {seed: initial(shape, self.formula, seed) for seed in dict.fromkeys(seeds)}
        self.flat = torch.stack([torch.cat([value.flatten() for value in started[seed].values()]) for seed in seeds])
        self.flat = self.flat.to(rates.dtype)
        sizes = shape.sizes(self.formula)
        parts = torch.split(self.flat, [math.prod(size) for size in sizes.values()], dim=1)
        self.weights = {
            name: part.detach().view(len(seeds), *size).requires_grad_()
            for (name, size), part in zip(sizes.items(), parts, strict=True)
        }
        self.optimiser = AdamW(self.flat, rates, decays)

    def step(self, tokens: Tensor, labels: Tensor) -> None:
        """Take one step of every model on the same batch: tokens (B, N, 20), labels (B,)."""
        logits = class_logits(self.shape, self.formula, self.weights, tokens)
        chosen = logits.log_softmax(dim=-1).gather(-1, labels.expand(len(logits), -1)[..., None])
        weights = list(self.weights.values())
        gradients = torch.autograd.grad(-chosen.sum() / len(labels), weights, materialize_grads=True)
        self.optimiser.step(torch.cat([gradient.flatten(1) for gradient in gradients], dim=1))


class AdamW:
    """Loshchilov and Hutter (2019), as torch.optim.AdamW computes it, with a rate and a decay for each row.

    flat: (M, P), changed in place.
    """

    def __init__(self, flat: Tensor, rates: Tensor, decays: Tensor) -> None:
        self.flat, self.rates = flat, rates[:, None]
        self.shrink = 1 - self.rates * decays[:, None]
        self.mean, self.square = torch.zeros_like(flat), torch.zeros_like(flat)
        self.steps = 0

    @torch.no_grad()
    def step(self, gradient: Tensor, first: float = 0.9, second: float = 0.999, eps: float = 1e-8) -> None:
        """Take one step. gradient: (M, P)."""
        self.steps += 1
        self.mean.lerp_(gradient, 1 - first)
        self.square.mul_(second).addcmul_(gradient, gradient, value=1 - second)
        scale = math.sqrt(1 - second**self.steps)
        towards = self.mean / self.square.sqrt().div_(scale).add_(eps)
        self.flat.mul_(self.shrink).sub_(towards.mul_(self.rates / (1 - first**self.steps)))


FORMULAS = ("standard", "qnorm", "quest", "qknorm-hs", "qknorm-ds", "qknorm-ln")
SAME_AS = {"qknorm": "qknorm-ds", "elliptical": "standard", "elliptical-quest": "quest"}
"""With one head and one layer, these compute exactly what those do."""
RATES = (0.0005, 0.001, 0.0025, 0.005, 0.0075, 0.01)
DECAYS = (0.0, 0.01, 0.02, 0.05, 0.1)
MEASURED = ("train", "train_biased", "train_unbiased", "test", "test_uniform", "test_alike")
TOKENS = ("biased", "unbiased", "other")
PROBE = 256  # training samples whose keys are measured after every epoch
Columns = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Setting:
    """What a model is trained on, and how. samples, tested: in the training set and in each of the test sets."""

    shape: Shape = field(default_factory=Shape)
    samples: int = 2048
    tested: int = 2048
    epochs: int = 50
    batch: int = 32

    def text(self) -> str:
        """Return the setting in one line, for a page."""
        shape = self.shape
        more = [*(["bias in q, k, v"] if shape.bias else []), *(["final LayerNorm"] if shape.final_norm else [])]
        parts = (f"{shape.reading} reading", f"start {shape.start}", f"N {shape.length}", f"{self.samples} samples")
        return ", ".join((*parts, f"{self.epochs} epochs", *more))


@dataclass(frozen=True)
class Grid:
    """Which models: every rate with every decay, realisation of the data and start of the weights."""

    formulas: tuple[str, ...] = FORMULAS
    rates: tuple[float, ...] = RATES
    decays: tuple[float, ...] = DECAYS
    data: int = 5
    seeds: int = 5

    def units(self) -> list[tuple[str, int]]:
        """Return the (formula, realisation) of each unit."""
        return list(itertools.product(self.formulas, range(self.data)))

    def models(self) -> list[tuple[float, float, int]]:
        """Return the (rate, decay, seed) of a unit's models."""
        return list(itertools.product(self.rates, self.decays, range(self.seeds)))

    def __len__(self) -> int:
        return len(self.units()) * len(self.models())


@dataclass(frozen=True)
class Plan:
    """A setting and its grid."""

    setting: Setting
    grid: Grid

    def facts(self) -> dict[str, Any]:
        """Return the plan as it stands in setting.json."""
        facts: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return facts

    @classmethod
    def of(cls, facts: dict[str, Any]) -> Plan:
        """Return the plan of a setting.json."""
        setting, grid = dict(facts["setting"]), dict(facts["grid"])
        shape = Shape(**setting.pop("shape"))
        lists: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value for name, value in grid.items()
        }
        return cls(Setting(shape=shape, **setting), Grid(**lists))


def claim(path: Path, plan: Plan) -> None:
    """Write down what a folder holds. Raises RunError where it holds something else."""
    if path.exists() and json.loads(path.read_text("utf-8")) != plan.facts():
        raise RunError(
            f"{path}: holds results of another setting than {plan.setting.text()}; expected none or the same; "
            "name another folder"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, (json.dumps(plan.facts(), indent=1) + "\n").encode())


def accuracies(batch: Batch, samples: Samples) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the accuracy of each model, over all samples and over the biased ones; nan where there are none."""
    right = []
    with torch.no_grad():
        for some in torch.split(torch.arange(len(samples)), PROBE):
            logits = class_logits(batch.shape, batch.formula, batch.weights, samples.tokens[some])
            right.append((logits.argmax(-1) == samples.labels[some]) & logits.isfinite().all(-1))
    shares = torch.cat(right, dim=1).double()
    return shares.mean(1).numpy(), shares[:, samples.biased].mean(1).numpy()


def norms(batch: Batch, probe: Samples) -> NDArray[Any]:
    """Return (M, 3): mean norm of the keys at biased answers, unbiased answers, and all other tokens but CLS."""
    with torch.no_grad():
        by_model = key_norms(batch.shape, batch.weights, probe.tokens)
    rows, answers = torch.arange(len(probe)), by_model[probe.places + 1, torch.arange(len(probe))]
    others = torch.ones(by_model.shape[:2], dtype=torch.bool)
    others[0], others[probe.places + 1, rows] = False, False
    means = (answers[probe.biased].mean(0), answers[~probe.biased].mean(0), by_model[others].mean(0))
    return torch.stack(means, dim=1).numpy()


def train(plan: Plan, formula: str, number: int) -> Columns:
    """Train all models of a unit; return the measures at the end, and `norms` before training and after each epoch."""
    setting, models = plan.setting, plan.grid.models()
    data, length = Realisation.draw(number), setting.shape.length
    samples = data.samples(setting.samples, length, purpose=0, biased=0.5)
    probe = Samples(*(part[:PROBE] for part in (samples.tokens, samples.labels, samples.places, samples.biased)))
    rates, decays = (torch.tensor(column, dtype=torch.float32) for column in list(zip(*models, strict=True))[:2])
    began = time.process_time()
    batch = Batch(setting.shape, formula, [seed for _, _, seed in models], rates, decays)
    curves = [norms(batch, probe)]
    for epoch in range(setting.epochs):
        for some in torch.split(data.order(setting.samples, epoch), setting.batch):
            batch.step(samples.tokens[some], samples.labels[some])
        curves.append(norms(batch, probe))
    columns = measure(batch, data, setting, samples)
    columns["norms"] = np.stack(curves, axis=1).astype(np.float32)
    columns["seconds"] = np.array(time.process_time() - began)
    return columns


def measure(batch: Batch, data: Realisation, setting: Setting, samples: Samples) -> Columns:
    """Return accuracies at the end. test: no sample is biased, answers lie where they do in training; test_uniform:
    they lie anywhere; test_alike: half of the samples are biased, as in training.
    """

    def test(purpose: int, biased: float, uniform: bool) -> NDArray[Any]:
        drawn = data.samples(setting.tested, setting.shape.length, purpose=purpose, biased=biased, uniform=uniform)
        return accuracies(batch, drawn)[0]

    whole, on_biased = accuracies(batch, samples)
    share = samples.biased.double().mean().item()
    return {
        "train": whole,
        "train_biased": on_biased,
        "train_unbiased": (whole - share * on_biased) / (1 - share),
        "test": test(1, 0.0, False),
        "test_uniform": test(2, 0.0, True),
        "test_alike": test(3, 0.5, False),
    }


def _unit(work: Path, plan: Plan, formula: str, number: int) -> str:
    """Train a unit and write it; its name."""
    torch.set_num_threads(1)
    path = unit_path(work, formula, number)
    buffer, save = io.BytesIO(), cast(Any, np.savez)  # its types take each array's name for an option
    save(buffer, **train(plan, formula, number))
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, buffer.getvalue())
    return path.stem


def unit_path(work: Path, formula: str, number: int) -> Path:
    """Return the path of a unit."""
    return work / "units" / f"{formula}-data{number}.npz"


def run(work: Path, plan: Plan, workers: int = 1) -> Iterator[str]:
    """Train what is missing in a folder, each worker on one thread; the name of each unit as it is done."""
    claim(work / "setting.json", plan)
    missing = [(work, plan, *unit) for unit in plan.grid.units() if not unit_path(work, *unit).exists()]
    if workers == 1 or len(missing) < 2:
        yield from (_unit(*arguments) for arguments in missing)
        return
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        waiting = [pool.submit(_unit, *arguments) for arguments in missing]
        try:
            yield from (arguments.result() for arguments in waiting)
        except BrokenProcessPool:
            raise RunError(
                f"{work}: a worker was killed, perhaps for lack of memory; run the same command again, or with "
                "fewer --workers"
            ) from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def read(work: Path, plan: Plan) -> dict[tuple[str, int], Columns]:
    """Read the units of a folder. Raises RunError where one is missing."""
    columns = {}
    for unit in plan.grid.units():
        path = unit_path(work, *unit)
        if not path.exists():
            raise RunError(f"{path}: no such file; expected {len(plan.grid.units())} units; run the same command again")
        with np.load(path, allow_pickle=False) as stored:
            columns[unit] = {name: stored[name] for name in stored.files}
    return columns
