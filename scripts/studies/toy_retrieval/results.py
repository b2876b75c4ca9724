"""What became of the toy models: outcome classes, success rates with intervals, curves, and their files."""

from __future__ import annotations

import csv
import gzip
import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robustkit.common.files import write_whole
from robustkit.errors import RunError

from .run import MEASURED, TOKENS, Columns, Plan, claim, read

OUTCOMES = ("correct", "biased", "degenerate", "none of these")
CHANCE = 0.15
"""Accuracy up to which a model of ten classes counts as guessing."""
PUBLISHED = {"standard": 25, "qnorm": 49, "quest": 58, "qknorm-hs": 0, "qknorm-ds": 0, "qknorm-ln": 0}
"""Success rates of QUEST, Figures 3 and A1, in percent; those of the QKNorm forms as "about 0 %"."""
KEYS = ("formula", "data", "seed", "rate", "decay")
QUARTILES = ("low", "median", "high")
RESAMPLES = 2000
Floats = NDArray[np.float64]


def outcomes(train: Floats, test: Floats) -> NDArray[Any]:
    """Return the class of each model (§2.2): correct where both accuracies are above 90 %, biased where training is 50
    to 80 % and test 20 to 40 %, degenerate where both are at chance; many models are none of these.
    """
    names = np.full(train.shape, OUTCOMES[3], dtype="<U13")
    names[(train <= CHANCE) & (test <= CHANCE)] = "degenerate"
    names[(train >= 0.5) & (train <= 0.8) & (test >= 0.2) & (test <= 0.4)] = "biased"
    names[(train > 0.9) & (test > 0.9)] = "correct"
    return names


def _shortcut(columns: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """Return which models find the answer in new samples where b marks it, and not where it does not.

    `test_alike` is half of either kind, up to the draw.
    """
    with_b = 2 * columns["test_alike"] - columns["test"]
    shortcut: NDArray[Any] = (with_b > 0.9) & (columns["test"] < 0.5)
    return shortcut


def _correct(columns: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    correct: NDArray[Any] = outcomes(columns["train"], columns["test"]) == "correct"
    return correct


GROUPS = {"shortcut": _shortcut, "correct": _correct}
"""Of models, whose key norms are kept."""


@dataclass(frozen=True)
class Results:
    """A finished plan. columns: one entry a model, `KEYS` and `MEASURED`. curves: (formula, group) to the quartiles
    of the mean key norms of its models, (3, epochs + 1, 3): quartile, epoch, kind of token. seconds: of one processor.
    """

    plan: Plan
    columns: Columns
    curves: Mapping[tuple[str, str], Floats]
    seconds: float

    def __len__(self) -> int:
        return len(self.columns["data"])

    def outcomes(self) -> NDArray[Any]:
        """Return the class of each model."""
        return outcomes(self.columns["train"], self.columns["test"])

    def of(self, formula: str) -> NDArray[Any]:
        """Return which models have this formula."""
        chosen: NDArray[Any] = self.columns["formula"] == formula
        return chosen

    def group(self, formula: str, name: str) -> NDArray[Any]:
        """Return which models have this formula and are in this group of `GROUPS`."""
        chosen: NDArray[Any] = self.of(formula) & GROUPS[name](self.columns)
        return chosen

    def success(self, formula: str) -> tuple[float, float, float]:
        """Return the share of correct models and its 95 % interval.

        Models of a realisation of the data, or of a start of the weights, share it. So both are resampled with
        replacement, and not the models (the pigeonhole bootstrap of Owen, 2007); the rates and decays are as they are.
        """
        return self._interval(self._by_pair(formula))

    def ahead(self, formula: str, other: str) -> tuple[float, float, float]:
        """Return by how much the share of one is above that of another, with its interval; the same draws for both."""
        return self._interval(self._by_pair(formula) - self._by_pair(other))

    def _by_pair(self, formula: str) -> Floats:
        """Return (realisations, starts): the share of correct models of each pair."""
        rows, grid = self.of(formula), self.plan.grid
        correct = np.zeros((grid.data, grid.seeds))
        np.add.at(correct, (self.columns["data"][rows], self.columns["seed"][rows]), self.outcomes()[rows] == "correct")
        return correct / (len(grid.rates) * len(grid.decays))

    def _interval(self, by_pair: Floats) -> tuple[float, float, float]:
        data, seeds = by_pair.shape
        generator = np.random.Generator(np.random.PCG64(0))
        rows = generator.integers(0, data, (RESAMPLES, data, 1))
        columns = generator.integers(0, seeds, (RESAMPLES, 1, seeds))
        low, high = np.percentile(by_pair[rows, columns].mean(axis=(1, 2)), [2.5, 97.5])
        return float(by_pair.mean()), float(low), float(high)

    def map(self, formula: str) -> Floats:
        """Return (decays, rates): the share of correct models in each cell of the grid."""
        rows, grid = self.of(formula), self.plan.grid
        correct = self.outcomes() == "correct"
        shares = np.empty((len(grid.decays), len(grid.rates)))
        for row, decay in enumerate(grid.decays):
            for column, rate in enumerate(grid.rates):
                cell = rows & (self.columns["decay"] == decay) & (self.columns["rate"] == rate)
                shares[row, column] = correct[cell].mean()
        return shares


def gather(work: Path, plan: Plan) -> Results:
    """Gather the results of a folder of units."""
    units, models = read(work, plan), plan.grid.models()
    rates, decays, seeds = (np.array(column) for column in zip(*models, strict=True))
    parts: dict[str, list[NDArray[Any]]] = {name: [] for name in (*KEYS, *MEASURED)}
    for (formula, number), unit in units.items():
        facts = {"formula": np.full(len(models), formula), "data": np.full(len(models), number)}
        facts |= {"seed": seeds, "rate": rates, "decay": decays} | {name: unit[name].round(4) for name in MEASURED}
        for name, values in facts.items():
            parts[name].append(values)
    columns = {name: np.concatenate(values) for name, values in parts.items()}
    norms = np.concatenate([unit["norms"] for unit in units.values()])
    curves = {}
    for formula in plan.grid.formulas:
        for group, belongs in GROUPS.items():
            own_norms = norms[(columns["formula"] == formula) & belongs(columns)]
            if len(own_norms):
                curves[formula, group] = np.nanpercentile(own_norms, (25, 50, 75), axis=0).round(3)
    return Results(plan, columns, curves, float(sum(unit["seconds"] for unit in units.values())))


def save(results: Results, folder: Path) -> None:
    """Write setting.json, results.csv.gz, curves.csv and cost.json. Raises RunError where the folder holds another
    setting.
    """
    claim(folder / "setting.json", results.plan)
    rows = zip(*(results.columns[name].tolist() for name in (*KEYS, *MEASURED)), strict=True)
    _write_csv(folder / "results.csv.gz", [[*KEYS, *MEASURED], *map(list, rows)])
    heading = ["formula", "group", "epoch", *(f"{kind} {quartile}" for quartile in QUARTILES for kind in TOKENS)]
    _write_csv(folder / "curves.csv", [heading, *_curve_rows(results)])
    write_whole(folder / "cost.json", (json.dumps({"processor seconds": round(results.seconds)}) + "\n").encode())


def _curve_rows(results: Results) -> Iterator[list[Any]]:
    for (formula, group), curve in results.curves.items():
        for epoch in range(curve.shape[1]):
            yield [formula, group, epoch, *curve[:, epoch].flatten().tolist()]


def _write_csv(path: Path, rows: list[list[Any]]) -> None:
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    text = buffer.getvalue().encode()
    write_whole(path, gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def load(folder: Path) -> Results:
    """Read what `save` wrote. Raises RunError where it is missing or not whole."""
    try:
        plan = Plan.of(json.loads((folder / "setting.json").read_text("utf-8")))
        with gzip.open(folder / "results.csv.gz", "rt", newline="") as file:
            rows = list(csv.DictReader(file))
        with (folder / "curves.csv").open(newline="") as file:
            _, *curve_rows = csv.reader(file)
        seconds = json.loads((folder / "cost.json").read_text("utf-8"))["processor seconds"]
    except (OSError, EOFError, ValueError, KeyError, TypeError) as error:
        raise RunError(
            f"{folder}: no results that can be read ({error}); train first, without --from-results"
        ) from None
    if len(rows) != len(plan.grid):
        raise RunError(
            f"{folder / 'results.csv.gz'}: {len(rows)} models; expected the {len(plan.grid)} of setting.json"
        )
    kinds: dict[str, Any] = {"formula": str, "data": int, "seed": int}
    columns = {name: np.array([kinds.get(name, float)(row[name]) for row in rows]) for name in (*KEYS, *MEASURED)}
    whole: dict[tuple[str, str], list[list[float]]] = {}
    for formula, group, _, *values in curve_rows:
        whole.setdefault((formula, group), []).append([float(value) for value in values])
    curves = {key: np.array(values).reshape(-1, 3, 3).transpose(1, 0, 2) for key, values in whole.items()}
    return Results(plan, columns, curves, float(seconds))
