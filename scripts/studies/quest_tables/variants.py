"""Parts of the training images, learning rates and CrossViT (QUEST, Tables A2 to A4): accuracies from training logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from robustkit.common.differences import Difference, holm, of_means
from robustkit.display.format import p_value as p_text
from scripts.pages.writing import listed, markdown, spread
from scripts.zoo.logs import Log

from .differences import seeds_text
from .figures import signed
from .trainings import LEVEL, smallest_gap, spread_of

FEW = {"rate": 4}
"""Epochs of the trainings at several rates, as the paper has fewer there, too."""
FORMULAS = ("standard", "quest")


@dataclass(frozen=True)
class Section:
    """A table: trainings by the value of what it varies."""

    title: str
    note: str
    heading: str
    groups: Mapping[str, Sequence[Log]]

    @property
    def differences(self) -> list[Difference | None]:
        """QUEST minus standard in each group, in points, paired by seed."""
        return [_difference(logs) for logs in self.groups.values()]


def variants(logs: Sequence[Log]) -> Iterator[str]:
    """Yield the sections of which there are trainings. Holm's correction is for all of their differences."""
    sections = list(_sections(logs))
    p_values = [found.p_value for section in sections for found in section.differences if found]
    adjusted = iter(holm(p_values))
    for section in sections:
        yield f"## {section.title}"
        yield section.note
        yield _table(section, adjusted, len(p_values))
    if p_values:
        yield (
            "In brackets: of how many trainings. One failed if its loss was no longer a number (diverged) or its "
            "accuracy at the end is not beyond chance; means are of the others, and differences, paired by seed, of "
            "seeds of which neither failed. p is of Student's t, and Holm's correction for all "
            f"{len(p_values)} differences of trainings by parts, rates and architecture. *80 % power at*: the smallest "
            "difference that so many seeds find four times out of five, where it is the only one that is tested. "
            "*Seeds*, where a difference is not beyond chance: how many would find one of its size four times out of "
            "five at the strictest of Holm's steps."
        )


def in_short(logs: Sequence[Log]) -> str:
    """Return how many differences are beyond chance, and the largest of them or of all; '' without any."""
    reported = [
        (f"{section.heading} {label}", found)
        for section in _sections(logs)
        for label, found in zip(section.groups, section.differences, strict=True)
        if found
    ]
    if not reported:
        return ""
    p_values = holm([found.p_value for _, found in reported])
    every = [(*each, p_value) for each, p_value in zip(reported, p_values, strict=True)]
    beyond = [each for each in every if each[2] < LEVEL]
    where, largest, p_value = max(beyond or every, key=lambda each: abs(each[1].value))
    return (
        "**With fewer images, at other rates, and CrossViT**, on shapes: "
        f"{len(beyond)} of {len(reported)} differences of quest from standard in clean top-1 are beyond chance; the "
        f"largest{' of them' if beyond else ''} is {signed(largest)} points ({where}, p (Holm) {p_text(p_value)})."
    )


def _sections(logs: Sequence[Log]) -> Iterator[Section]:
    small = [log for log in logs if log.family == "shapes-vit"]
    parts = _options(small, "fraction", lambda log: log.option("epochs") is None, 1.0)
    if len(parts) > 1:
        yield Section(
            "Table A2: parts of the training images",
            "Top-1 % of shapes' test images, of as many epochs whatever the part, so of fewer steps; the part of each "
            "class is drawn by the seed. Published: DeiT-Tiny on ImageNet, 10 %: 56.0 and 57.5 with QUEST; 25 %: 68.9 "
            "and 70.0; all: 72.5 and 73.3.",
            "training images",
            {f"{value:.0%}": found for value, found in parts.items()},
        )
    rates = _options(small, "rate", lambda log: log.option("epochs") == FEW["rate"], 1e-3)
    if len(rates) > 1:
        yield Section(
            "Table A3: learning rates",
            f"Top-1 % of shapes' test images after {FEW['rate']} epochs, by the highest rate of the schedule. "
            f"{_failures(rates)} {_later(rates)}"
            "Published: ViT-Small, 50 epochs: standard crashed from 1e-3 on, QUEST had 67.9 at 1e-3 and 67.0 at 2e-3.",
            "rate",
            {f"{value:g}": found for value, found in rates.items()},
        )
    cross = [log for log in logs if log.family == "shapes-crossvit" and not log.variant]
    if cross:
        yield Section(
            "Table A4: CrossViT",
            "Top-1 % of shapes' test images of a CrossViT with two branches, whose class tokens attend to the other "
            "branch. Published: CrossViT-9-Dagger on ImageNet, 76.4 and 77.0 with QUEST; -Small 80.5 and 80.9; "
            "-18-Dagger crashed, and 82.8.",
            "architecture",
            {"CrossViT": cross},
        )


def _options(logs: Sequence[Log], option: str, fits: Callable[[Log], bool], usual: float) -> dict[float, list[Log]]:
    """Return the trainings by the value of an option, others as in the preset. usual: what they have without it."""
    found: dict[float, list[Log]] = {}
    for log in logs:
        others = {"fraction", "rate"} - {option}
        if fits(log) and all(log.option(other) is None for other in others) and log.is_of_preset:
            value = log.option(option)
            found.setdefault(usual if value is None else value, []).append(log)
    return dict(sorted(found.items()))


def _failures(groups: Mapping[float, Sequence[Log]]) -> str:
    """Return how many trainings of each formula failed."""
    logs = [log for found in groups.values() for log in found]
    reported = []
    for name in FORMULAS:
        own = [log for log in logs if log.attention == name]
        reported.append(f"{sum(log.has_failed for log in own)} of {len(own)} with {name}")
    return f"Trainings that failed: {listed(reported)}."


def _later(groups: Mapping[float, Sequence[Log]]) -> str:
    """Return why some rates have more seeds than others; '' where all have as many."""
    counts = {rate: len({log.seed for log in logs}) for rate, logs in groups.items()}
    more = [f"{rate:g}" for rate, count in counts.items() if count > min(counts.values())]
    if not more:
        return ""
    return f"More seeds of {listed(more)} were trained after the first had been seen to spread widely. "


def _by_seed(logs: Sequence[Log], attention: str) -> dict[int, Log]:
    return {log.seed: log for log in logs if log.attention == attention}


def _table(section: Section, adjusted: Iterator[float], tests: int) -> str:
    """Return accuracies by formula, how many failed, and how QUEST differs. adjusted: p-values of the differences, of
    so many tests.
    """
    reported = ("quest minus standard [95 %]", "p", "p (Holm)", "80 % power at", "seeds")
    rows: list[tuple[str, ...]] = [(section.heading, *FORMULAS, *reported)]
    for (label, logs), found in zip(section.groups.items(), section.differences, strict=True):
        cells = [_level(list(_by_seed(logs, name).values())) for name in FORMULAS]
        if found:
            gap, p_value = smallest_gap(spread_of(found), found.n), next(adjusted)
            least = f"{gap:.1f}" if gap < 100 else "–"
            seeds = "" if p_value < LEVEL else seeds_text(found.value, spread_of(found), tests)
            cells += [signed(found), p_text(found.p_value), p_text(p_value), least, seeds]
        else:
            cells += ["–"] * len(reported)
        rows.append((label, *cells))
    return markdown(rows)


def _level(logs: Sequence[Log]) -> str:
    """Return `90.1 ± 0.4 (3)`, and how many of the trainings failed."""
    values = [100 * log.accuracy for log in logs if not log.has_failed]
    fates = [(sum(log.diverged for log in logs), "diverged")]
    fates.append((len(logs) - len(values) - fates[0][0], "at chance"))
    said = [f"{count} of {len(logs)} {fate}" for count, fate in fates if count]
    level = [f"{spread(values, 1)} ({len(values)})"] if values else []
    return ", ".join([*level, *said]) or "–"


def _difference(logs: Sequence[Log]) -> Difference | None:
    """Return QUEST minus standard in points, over the seeds of which neither failed; None for fewer than two."""
    sides = [_by_seed(logs, name) for name in FORMULAS]
    seeds = [s for s in sides[0] if s in sides[1] and not (sides[0][s].has_failed or sides[1][s].has_failed)]
    if len(seeds) < 2:
        return None
    before, after = (np.array([100 * side[seed].accuracy for seed in seeds]) for side in sides)
    return of_means(before, after, binary=False)
