"""Write README.md: QuacK's experiment in small, from the log of `train.py`.

    python -m scripts.studies.quack.page

Trainings that the log lacks are left out, and counted.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path

from robustkit.errors import RobustkitError
from scripts.pages.writing import Curve, Panel, draw, markdown, write_page
from scripts.studies.language.grid import Trial, read_logs
from scripts.studies.language.run import Row

from .train import METHODS, NORM_RATE, NORMS, RATES, RECIPE, RECIPES, TAUS, Method, grid, norm_trial, trial

LOGS, PAGE = Path("scripts/studies/quack/runs.jsonl"), Path("scripts/studies/quack/README.md")
WORSE = 0.1
"""Nats by which a training is called worse than the best at any rate."""
Logs = dict[str, list[Row]]


def loss(rows: list[Row]) -> float:
    """Return the validation loss at the end; infinite where the loss was no number."""
    return math.inf if rows[-1].get("diverged") else float(rows[-1]["validation"])


def shown(value: float) -> str:
    """Return a loss as tables have it."""
    return f"{value:.2f}" if math.isfinite(value) else "no number"


def curve(rows: list[Row], name: str) -> Curve:
    """Return a quantity at each look; of layers the largest."""
    there = [row for row in rows if "validation" in row]
    values = [row[name] for row in there]
    return [row["step"] for row in there], [max(value) if isinstance(value, list) else value for value in values]


def methods(kind: str) -> list[Method]:
    """Return the methods that are compared for a kind of attention."""
    return [method for method in METHODS if kind == "MHA" or method.kept]


def rows_of(logs: Logs, made: Trial) -> list[Row] | None:
    """Return the log of a training, None where it is not over."""
    return logs.get(made.name)


def losses(logs: Logs, kind: str) -> str:
    """Return the table of losses after all steps: methods by rates."""
    table = [["method", *(f"rate {rate:g}" for rate in RATES)]]
    for method in methods(kind):
        found = [rows_of(logs, trial(kind, rate, method)) for rate in RATES]
        table.append([method.title, *("–" if rows is None else shown(loss(rows)) for rows in found)])
    return markdown(table)


def logits(logs: Logs, kind: str) -> str:
    """Return the table of logits: the largest at any look, and the mean absolute change in a step over all looks."""
    table = [["method", *(f"rate {rate:g}" for rate in RATES)]]
    for method in methods(kind):
        cells = []
        for rate in RATES:
            rows = rows_of(logs, trial(kind, rate, method))
            largest, change = (curve(rows or [], name)[1] for name in ("largest_logit", "change"))
            cells.append(f"{max(largest):.3g}; {sum(change) / len(change):.2g}" if largest else "–")
        table.append([method.title, *cells])
    return markdown(table)


def norms(logs: Logs) -> str:
    """Return the table of norm and tau."""
    table = [["norm", *(f"τ = {tau:g}" for tau in TAUS)]]
    for norm in NORMS:
        found = [rows_of(logs, norm_trial(norm, tau)) for tau in TAUS]
        table.append([norm, *("–" if rows is None else shown(loss(rows)) for rows in found)])
    return markdown(table)


def in_short(logs: Logs) -> Iterator[str]:
    """Yield a line for each kind of attention: each method's best rate, and the highest at which it is not far off."""
    for kind in RECIPES:
        found = {
            method.title: {
                rate: loss(rows) for rate in RATES if (rows := rows_of(logs, trial(kind, rate, method))) is not None
            }
            for method in methods(kind)
        }
        found = {title: by_rate for title, by_rate in found.items() if by_rate}
        if not found:
            continue
        best = min(value for by_rate in found.values() for value in by_rate.values())
        parts = []
        for title, by_rate in found.items():
            rate = min(by_rate, key=by_rate.__getitem__)
            near = [other for other, value in by_rate.items() if value <= best + WORSE]
            reach = f"up to {max(near):g}" if near else "at no rate"
            parts.append(f"{title} {shown(by_rate[rate])} at {rate:g} (near the best {reach})")
        yield f"- {kind}: " + "; ".join(parts) + "."


def figures(logs: Logs, folder: Path) -> None:
    """Draw the three figures."""

    def curves(kind: str, rate: float, name: str) -> dict[str, Curve]:
        found = {method.title: rows_of(logs, trial(kind, rate, method)) for method in methods(kind)}
        return {title: curve(rows, name) for title, rows in found.items() if rows is not None}

    guess = math.log(RECIPE.words)
    panels = [
        [
            Panel(f"{kind}, rate {rate:g}", "validation loss", curves(kind, rate, "validation"), beyond=guess)
            for rate in RATES
        ]
        for kind in RECIPES
    ]
    draw(folder / "losses.svg", panels, "step")
    names = {"largest_logit": "largest |logit|", "change": "mean |change| in a step"}
    looked = [
        [
            Panel(f"{kind}, rate {rate:g}", side, curves(kind, rate, name), log=True)
            for rate in (RATES[1], NORM_RATE)
            for name, side in names.items()
        ]
        for kind in RECIPES
    ]
    draw(folder / "logits.svg", looked, "step")
    by_norm: dict[str, Curve] = {}
    for norm in NORMS:
        ends = {tau: loss(rows) for tau in TAUS if (rows := rows_of(logs, norm_trial(norm, tau))) is not None}
        by_norm[norm] = list(ends), list(ends.values())
    draw(folder / "norms.svg", [[Panel(f"MHA, rate {NORM_RATE:g}", "validation loss", by_norm)]], "τ", log_below=True)


def setting() -> str:
    """Return what was trained, and how that differs from the paper."""
    sizes = RECIPE.sizes
    return (
        f"A causal Transformer of words with {sizes.depth} blocks of width {sizes.width} and {sizes.heads} heads, on "
        f"the training documents of the Brown corpus ({RECIPE.words} words in its vocabulary), {RECIPE.text()}; other "
        "rates are in the tables. MLA has parts of queries and keys with and without "
        f"position of {sizes.width // sizes.heads} numbers each, a latent of {sizes.width // 2} for queries and of "
        f"{sizes.width // 4} for keys and values. Losses are mean NLL in nats on "
        f"{RECIPE.watched} windows of validation documents; guessing gives {math.log(RECIPE.words):.2f}. The paper "
        "trains models of a billion parameters for 5000 steps with Muon; here AdamW trains ones of about 150 000 for "
        f"{RECIPE.steps}. So this shows the mechanism in small, and says nothing about large models. **One seed "
        "each**: small differences may be chance."
    )


def page(logs: Logs) -> str:
    """Return the page as Markdown."""
    done, asked = len([made for made in grid() if made.name in logs]), len(grid())
    blind = f"All {asked} trainings." if done == asked else f"{done} of {asked} trainings; the others are not over (–)."
    texts = [
        "# QuacK in small",
        "Made by `python -m scripts.studies.quack.page` from the log of `python -m scripts.studies.quack.train`; do "
        "not edit.",
        "*Controlling changes to attention logits* (QuacK) holds that training breaks because logits change too "
        "fast, and lets the learning rates of queries follow the norms of keys, and the other way round. Its "
        "experiments compare that with other methods for multi-head attention (MHA) and multi-head latent attention "
        "(MLA) at several rates. This page does so with a small language model; "
        "[stabilisers](../stabilisers/README.md) does with small ViTs, and says how to use each.",
        setting(),
        blind,
        "## Losses",
        f"Each method's lowest loss, and up to which rate it is within {WORSE:g} nats of the lowest of all:",
        "\n".join(in_short(logs)),
        "![Validation loss over the steps: a row for MHA and one for MLA, a column for each rate, a line for each "
        "method](losses.svg)",
        *(part for kind in RECIPES for part in (f"Validation loss at the end, {kind}:", losses(logs, kind))),
        "QK norm (LayerNorm of queries and keys) is left out for MLA: it needs whole keys at inference, where MLA "
        "keeps latents only. What the paper's Figure 2 leaves out for losses far above the others is a number here.",
        "## Logits, and how fast they change",
        "In each training, before and after every twentieth step, attention logits on the same eight held-out "
        "windows, over all heads, of the layer where they are largest. First the largest absolute logit at any of "
        "these looks, then the mean absolute change of a logit in a step, over the looks (the paper's Figure 3 has "
        "both for one head).",
        *(part for kind in RECIPES for part in (f"{kind}:", logits(logs, kind))),
        "![Largest absolute logit and mean absolute change of a logit in a step, over the steps, at two rates]"
        "(logits.svg)",
        "## Norms and τ",
        f"QuacK with the Frobenius and the spectral norm, at rate {NORM_RATE:g} with MHA (the paper's Figure 4). τ "
        "multiplies the rates of queries and keys at the start. Validation loss at the end:",
        norms(logs),
        "![Validation loss at the end over tau, a line for each norm](norms.svg)",
    ]
    return "\n\n".join(texts) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Read, draw and write. The exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--logs", type=Path, default=LOGS)
    parser.add_argument("--out", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    logs = read_logs(options.logs)
    if not logs:
        print(
            f"scripts.studies.quack.page: {options.logs}: no training is over; expected that of "
            "scripts.studies.quack.train",
            file=sys.stderr,
        )
        return RobustkitError.exit_code
    figures(logs, options.out.parent)
    write_page(options.out, page(logs))
    return 0


if __name__ == "__main__":
    sys.exit(main())
