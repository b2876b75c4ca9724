"""Parts of the training images, learning rates and CrossViT (QUEST, Tables A2 to A4): accuracies from training logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from robustkit.common.differences import of_means
from scripts.zoo.logs import Log
from scripts.zoo.trainings import means

from .writing import markdown

FEW = {"rate": 4}
"""Epochs of the trainings at several rates, as the paper has fewer there, too."""


def variants(logs: Sequence[Log]) -> Iterator[str]:
    """Yield the sections of which there are trainings."""
    small = [log for log in logs if log.family == "shapes-vit"]
    parts = _options(small, "fraction", lambda log: log.option("epochs") is None, 1.0)
    if len(parts) > 1:
        yield "## Table A2: parts of the training images"
        yield (
            "Top-1 % of test images, of as many epochs whatever the part, so of fewer steps; the part of each class is "
            "drawn by the seed. Published: DeiT-Tiny on ImageNet, 10 %: 56.0 and 57.5 with QUEST; 25 %: 68.9 and 70.0; "
            "all: 72.5 and 73.3."
        )
        yield _table("training images", {f"{value:.0%}": found for value, found in parts.items()})
    rates = _options(small, "rate", lambda log: log.option("epochs") == FEW["rate"], 1e-3)
    if len(rates) > 1:
        yield "## Table A3: learning rates"
        yield (
            f"Top-1 % of test images after {FEW['rate']} epochs, by the highest rate of the schedule. Published: "
            "ViT-Small, 50 epochs: standard crashed from 1e-3 on, QUEST had 67.9 at 1e-3 and 67.0 at 2e-3."
        )
        yield _table("rate", {f"{value:g}": found for value, found in rates.items()})
    cross = [log for log in logs if log.family == "shapes-crossvit" and not log.variant]
    if cross:
        yield "## Table A4: CrossViT"
        yield (
            "Top-1 % of test images of a CrossViT with two branches, whose class tokens attend to the other branch. "
            "Published: CrossViT-9-Dagger on ImageNet, 76.4 and 77.0 with QUEST; -Small 80.5 and 80.9; -18-Dagger "
            "crashed, and 82.8."
        )
        yield _table("architecture", {"CrossViT": cross})


def _options(logs: Sequence[Log], option: str, fits: Callable[[Log], bool], usual: float) -> dict[float, list[Log]]:
    """Return the trainings by the value of an option, others as in the preset. usual: what they have without it."""
    found: dict[float, list[Log]] = {}
    for log in logs:
        others = {"fraction", "rate"} - {option}
        if fits(log) and all(log.option(other) is None for other in others) and log.is_of_preset:
            value = log.option(option)
            found.setdefault(usual if value is None else value, []).append(log)
    return dict(sorted(found.items()))


def _table(heading: str, groups: dict[str, list[Log]]) -> str:
    """Return accuracies by formula, how many diverged, and QUEST minus standard, paired by seed."""
    names = [name for name in ("standard", "quest") if any(log.attention == name for g in groups.values() for log in g)]
    rows: list[tuple[str, ...]] = [(heading, *names, "quest minus standard [95 %]", "p")]
    for label, logs in groups.items():
        of = {name: {log.seed: log for log in logs if log.attention == name} for name in names}
        rows.append((label, *(_level(list(found.values())) for found in of.values()), *_difference(of)))
    return markdown(rows)


def _level(logs: Sequence[Log]) -> str:
    """Return `90.1 ± 0.4 (3)`, and how many of the trainings diverged."""
    values = [100 * log.accuracy for log in logs if not log.diverged]
    gone = len(logs) - len(values)
    said = f"{gone} of {len(logs)} diverged" if gone else ""
    if not values:
        return said or "–"
    mean, sd = means(values)
    level = f"{mean:.1f}" + (f" ± {sd:.1f}" if len(values) > 1 else "") + f" ({len(values)})"
    return f"{level}, {said}" if said else level


def _difference(of: dict[str, dict[int, Log]]) -> tuple[str, str]:
    sides = [of.get(name, {}) for name in ("standard", "quest")]
    seeds = [s for s in sides[0] if s in sides[1] and not (sides[0][s].diverged or sides[1][s].diverged)]
    if len(seeds) < 2:
        return "–", "–"
    before, after = (np.array([100 * side[seed].accuracy for seed in seeds]) for side in sides)
    found = of_means(before, after, binary=False)
    return f"{found.value:+.1f} [{found.ci_low:+.1f}, {found.ci_high:+.1f}]", f"{found.p_value:.3f}"
