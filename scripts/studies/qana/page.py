"""Write README.md: keys of several sizes under standard attention and QANA, from the log of `train.py`.

    python -m scripts.studies.qana.page

Trainings that the log lacks are left out, and counted.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np

from robustkit.common.differences import of_means
from robustkit.errors import RobustkitError
from scripts.pages.writing import Panel, draw, markdown, write_page
from scripts.studies.language.grid import read_logs
from scripts.studies.language.run import Row, build
from scripts.studies.stabilisers.page import span

from .train import FORMULAS, KEYS, LITERAL, LOW, RECIPE, SEEDS, grid, trial

LOGS, PAGE = Path("scripts/studies/qana/runs.jsonl"), Path("scripts/studies/qana/README.md")
Logs = dict[str, list[Row]]
_BYTES = 2  # of a number in half precision


def losses(logs: Logs, key: int, attention: str, rate: float = RECIPE.rate) -> dict[int, float]:
    """Return the validation loss at the end by seed."""
    found = {seed: logs.get(trial(key, attention, seed, rate).name) for seed in SEEDS}
    return {seed: float(rows[-1]["validation"]) for seed, rows in found.items() if rows and "validation" in rows[-1]}


def cached(key: int) -> int:
    """Return bytes of keys and values a token, of all layers and heads: queries are not cached, nor are networks."""
    sizes = RECIPE.sizes
    return sizes.depth * sizes.heads * (key + sizes.width // sizes.heads) * _BYTES


def parameters(key: int, attention: str) -> int:
    """Return the parameters of a model, its embedding left out."""
    sizes = replace(RECIPE.sizes, key=key)
    model = build(replace(RECIPE, sizes=sizes), 1, attention, 0)
    return sum(parameter.numel() for parameter in model.parameters()) - sizes.width


def table(logs: Logs) -> str:
    """Return a row for each size and formula."""
    rows = [["d_K", "attention", "seeds", "validation loss", "parameters", "cache, bytes a token"]]
    for key in KEYS:
        for attention in FORMULAS:
            if not (found := losses(logs, key, attention)):
                continue
            rows.append(
                [
                    str(key),
                    attention,
                    str(len(found)),
                    span(list(found.values()), ".3f"),
                    str(parameters(key, attention)),
                    str(cached(key)),
                ]
            )
    return markdown(rows)


def difference(logs: Logs, first: tuple[int, str], second: tuple[int, str]) -> str | None:
    """Return by how much the second's loss is above the first's, paired by seed; None for fewer than two seeds."""
    one, two = losses(logs, *first), losses(logs, *second)
    both = sorted(one.keys() & two.keys())
    if len(both) < 2:
        return None
    found = of_means(np.array([one[seed] for seed in both]), np.array([two[seed] for seed in both]), binary=False)
    return f"{found.value:+.3f} [{found.ci_low:+.3f}, {found.ci_high:+.3f}] over {found.n} seeds"


def differences(logs: Logs) -> str:
    """Return the differences that the hypothesis is about, paired by seed."""
    wide = KEYS[-1]
    pairs = [((key, "standard"), (key, "qana")) for key in KEYS]
    pairs += [((wide, "standard"), (key, "qana")) for key in KEYS[:-1]]
    pairs += [((wide, "standard"), (key, "standard")) for key in KEYS[:-1]]
    rows = [["compared with", "", "loss more, nats [95 %]", "cache"]]
    for first, second in pairs:
        if said := difference(logs, first, second):
            share = f"{cached(second[0]) / cached(first[0]):.0%}"
            rows.append([f"{first[1]}, d_K {first[0]}", f"{second[1]}, d_K {second[0]}", said, share])
    return markdown(rows) if len(rows) > 1 else "Fewer than two seeds are over."


def first_seed(logs: Logs, kinds: dict[str, tuple[str, float]]) -> str:
    """Return a table of losses with the first seed: a row for each size, a column for each formula and rate."""
    rows = [["d_K", *kinds]]
    for key in KEYS:
        found = [losses(logs, key, *kind).get(SEEDS[0]) for kind in kinds.values()]
        rows.append([str(key), *("–" if value is None else f"{value:.3f}" for value in found)])
    return markdown(rows)


def apart(logs: Logs) -> str:
    """Return how far the document's start ends from standard attention, which it is up to rounding."""
    pairs = [[losses(logs, key, attention).get(SEEDS[0]) for attention in ("standard", LITERAL)] for key in KEYS]
    gaps = [abs(one - other) for one, other in pairs if one is not None and other is not None]
    return f"by up to {max(gaps):.3f} nats" if gaps else "by an amount that is not measured yet"


def page(logs: Logs) -> str:
    """Return the page as Markdown."""
    sizes, trials = RECIPE.sizes, list(grid())
    done = len([made for made in trials if made.name in logs])
    blind = (
        f"All {done} trainings."
        if done == len(trials)
        else f"{done} of {len(trials)} trainings; the others are not over."
    )
    value = sizes.width // sizes.heads
    texts = [
        "# QANA: smaller keys?",
        "Made by `python -m scripts.studies.qana.page` from the log of `python -m scripts.studies.qana.train`; do not "
        "edit.",
        "Query-As-Network Attention makes each query a small network that scores keys "
        "([attention](../../../docs/concepts/attention.md#qana)). Its document has a hypothesis and no results: with "
        "more expressive queries, keys might be smaller without loss, and so would the cache of keys and values in "
        "generation. Here small language models are trained from scratch with keys of several sizes.",
        f"A causal Transformer of words with {sizes.depth} blocks of width {sizes.width} and {sizes.heads} heads, "
        f"on the training documents of the Brown corpus ({RECIPE.words} words in its vocabulary), {RECIPE.text()}. "
        f"Values have {value} numbers a head, whatever the keys have; qana has 4 hidden units and no gate. "
        "Losses are mean NLL in nats of the next word on validation documents.",
        blind,
        "![Validation loss at the end over the size of keys](keys.svg)",
        "Of several seeds the median, the lowest and the highest. Parameters are without the embedding of words. "
        f"The cache is keys and values of all layers at {_BYTES} bytes a number; qana's networks belong to queries, "
        "which are not cached.",
        table(logs),
        "Differences of the second from the first, paired by seed, with Student's t; below 0 the second is better. "
        "The last column is the second's cache as a share of the first's.",
        differences(logs),
        "What that says: the hypothesis needs qana with smaller keys to be as good as standard attention with "
        "larger ones, *and* standard attention to lose by smaller keys. Where an interval holds 0, these "
        "trainings do not tell. They are far smaller and shorter than those that the document has in mind.",
        "## At a lower rate",
        f"The rate above is that of the shipped models, and was tuned for neither formula. At a quarter of "
        f"it, with seed {SEEDS[0]}:",
        first_seed(
            logs,
            {f"{name}, rate {rate:g}": (name, rate) for rate in (RECIPE.rate, LOW) for name in FORMULAS},
        ),
        "## The document's own start",
        "The document sets all weights of the networks to zero. Then no gradient reaches them, and they stay zero: "
        f"the model is standard attention throughout. With seed {SEEDS[0]}:",
        first_seed(logs, {name: (name, RECIPE.rate) for name in ("standard", LITERAL, "qana")}),
        "The first two columns are the same training up to rounding, which the longer way to the same logits does "
        f"otherwise; a difference in the last bits grows while it is trained. They end apart {apart(logs)}: "
        "differences of that size between any two trainings on this page mean nothing. `--attention "
        "'qana(start=zero)'` says in a warning that it does not learn.",
    ]
    return "\n\n".join(texts) + "\n"


def figure(logs: Logs, path: Path) -> None:
    """Draw the losses of all seeds over the size of keys."""
    curves = {}
    for attention in FORMULAS:
        for seed in SEEDS:
            ends = {key: losses(logs, key, attention).get(seed) for key in KEYS}
            there = {key: value for key, value in ends.items() if value is not None}
            if there:
                curves[f"{attention}, seed {seed}"] = (list(there), list(there.values()))
    draw(path, [[Panel("", "validation loss", curves)]], "d_K", log_below=True)


def main(arguments: list[str] | None = None) -> int:
    """Read, draw and write. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path, default=LOGS)
    parser.add_argument("--out", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    logs = read_logs(options.logs)
    if not logs:
        print(
            f"scripts.studies.qana.page: {options.logs}: no training is over; expected that of "
            "scripts.studies.qana.train",
            file=sys.stderr,
        )
        return RobustkitError.exit_code
    figure(logs, options.out.parent / "keys.svg")
    write_page(options.out, page(logs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
