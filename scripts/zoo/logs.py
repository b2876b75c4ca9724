"""The logs of trainings, by what was trained: family, formula, variant and seed, from the names of their folders."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustkit.attention import FORMULAS
from robustkit.common.intervals import wilson
from robustkit.errors import RobustkitError

from .recipe import PRESETS

Row = dict[str, Any]

_OPTION = r"(?:epochs|rate|fraction)-\d[\d.]*(?:e-?\d+)?"
NAME = re.compile(r"(?P<family>.+?vit)-(?P<what>.+)-seed(?P<seed>\d+)")


@dataclass(frozen=True)
class Log:
    """What a training logged, a row an epoch. variant: how it differs from its preset, `rate-0.003`; '' for the preset
    itself.
    """

    name: str
    family: str
    attention: str
    variant: str
    seed: int
    rows: tuple[Row, ...]

    @property
    def epochs(self) -> list[Row]:
        """The rows of whole epochs."""
        return [row for row in self.rows if "probe" in row]

    @property
    def diverged(self) -> bool:
        return bool(self.rows[-1].get("diverged"))

    @property
    def has_failed(self) -> bool:
        """Whether it diverged, or is not beyond chance on the test images at the end."""
        if self.diverged:
            return True
        preset = next(preset for preset in PRESETS.values() if preset.family.name == self.family)
        n = preset.watched or preset.test_images or 1000
        return wilson(round(self.accuracy * n), n)[0] <= 1 / preset.family.classes

    @property
    def accuracy(self) -> float:
        """Of the averaged weights on test images, at the end; nan where it diverged."""
        return math.nan if self.diverged else float(self.rows[-1]["test_accuracy_ema"])

    def option(self, name: str) -> float | None:
        """Return a number of the variant: 0.003 of `rate` in `epochs-4-rate-0.003`; None where it is the preset's."""
        found = re.search(rf"(?:^|-){name}-(\d[\d.]*(?:e-?\d+)?)", self.variant)
        return float(found[1]) if found else None

    @property
    def is_of_preset(self) -> bool:
        """Whether epochs, rate and fraction alone make it another training than the preset's."""
        return re.fullmatch(rf"(?:{_OPTION}(?:-{_OPTION})*)?", self.variant) is not None

    def largest_logit(self) -> float:
        """Return the largest of all layers and epochs."""
        return max((max(row["probe"]["largest_logit"]) for row in self.epochs), default=math.nan)

    def logit_change(self) -> float:
        """Return how far a layer's largest logit moved at most from one epoch to the next; nan for one epoch."""
        steps = [row["probe"]["largest_logit"] for row in self.epochs]
        moved = [abs(b - a) for one, other in itertools.pairwise(steps) for a, b in zip(one, other, strict=True)]
        return max(moved, default=math.nan)


def read_logs(work: Path) -> list[Log]:
    """Return the logs in a work folder by family, variant, formula in their usual order, and seed."""
    logs = []
    for path in work.glob("*/log.jsonl"):
        found = NAME.fullmatch(path.parent.name)
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
        if found and rows:
            attention, variant = _formula(found["what"])
            logs.append(Log(path.parent.name, found["family"], attention, variant, int(found["seed"]), tuple(rows)))
    order = list(FORMULAS)

    def place(log: Log) -> tuple[str, str, int, int]:
        rank = order.index(log.attention) if log.attention in order else len(order)
        return log.family, log.variant, rank, log.seed

    return sorted(logs, key=place)


def _formula(what: str) -> tuple[str, str]:
    """Return formula and variant: `quest` and `rate-0.003`. What no formula begins is all formula."""
    names = sorted((name for name in FORMULAS if what == name or what.startswith(f"{name}-")), key=len)
    return (names[-1], what[len(names[-1]) + 1 :]) if names else (what, "")


def finished(logs: Sequence[Log]) -> list[Log]:
    """Return the logs. Raises RobustkitError where one that did not diverge has fewer epochs than others of its family
    and variant: its training is not over, and its last accuracy is not a result.
    """
    most: dict[tuple[str, str], int] = {}
    for log in logs:
        key = log.family, log.variant
        most[key] = max(most.get(key, 0), len(log.epochs))
    for log in logs:
        if not log.diverged and len(log.epochs) < (count := most[log.family, log.variant]):
            raise RobustkitError(
                f"{log.name}: {len(log.epochs)} epochs, and others of its kind have {count}; train it to its end, or "
                "move its folder away"
            )
    return list(logs)


def plain(logs: Sequence[Log]) -> dict[str, dict[str, list[Log]]]:
    """Return the trainings by a preset itself, by family and formula."""
    found: dict[str, dict[str, list[Log]]] = {}
    for log in logs:
        if not log.variant:
            found.setdefault(log.family, {}).setdefault(log.attention, []).append(log)
    return found
