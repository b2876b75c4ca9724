"""Whether an attack that looks for the smallest change, and those of a fixed radius, found what the other did not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...common.intervals import Floats
from ...display.text import amount
from ...errors import RunError
from ...protocol.condition import CLEAN
from ..family import Overview
from ..kinds import words_of
from ..rows import EXCEEDS, Reading, column_of, readable
from .vocabulary import norm_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

Places = np.ndarray[tuple[int], np.dtype[np.int64]]
_LEAST = 0.02
"""The share of the samples that may be missed without a flag, and one sample always: random starts differ."""


def beside_flags(reading: Reading, condition: str, read: pa.Table) -> list[str]:
    """Return a flag for each attack of a fixed radius that broke samples nearer than this one found.

    read: of the attack that looks for the smallest change, with `distance`.
    """
    flags = []
    for other, eps in _same_norm(reading, condition):
        try:
            table = readable(reading.run.table(reading.checkpoint, other, ["sample_id", "error", "correct"]))
        except RunError:
            continue  # not evaluated yet
        distances, right = _paired(read, table)
        missed = int((~right & (distances > eps * (1 + 1e-4) + EXCEEDS)).sum())
        if missed > max(1.0, _LEAST * len(right)):
            radius = amount(eps, norm_of(condition), reading.manifest.protocol.space)
            flags.append(
                f"too weak: {other} broke {missed} of {len(right)} samples within {radius}, "
                "where this attack found nothing; give it more steps"
            )
    return flags


class LeftStanding(Overview):
    """Attacks of a fixed radius that left standing what a nearer wrong point was found for."""

    def __init__(self, reading: Reading, minimal: Sequence[str]) -> None:
        self.reading, self.minimal = reading, minimal
        self.seen: dict[str, pa.Table] = {}

    def take(self, condition: str, read: pa.Table, flags: Sequence[str]) -> None:
        if condition in self.reading.manifest.claims:
            self.seen[condition] = read.select(["sample_id", "correct"])

    def flags(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for condition in self.minimal:
            try:
                names = ["sample_id", "error", "distance"]
                table = readable(self.reading.run.table(self.reading.checkpoint, condition, names))
            except RunError:
                continue
            for other, eps in _same_norm(self.reading, condition):
                if other not in self.seen:
                    continue
                distances, right = _paired(table, self.seen[other])
                left = int((right & (distances <= eps)).sum())
                if left > max(1.0, _LEAST * len(right)):
                    found.setdefault(other, []).append(
                        f"it left {left} of {len(right)} samples standing for which {condition} found a wrong point "
                        "in the same ball: the accuracy is lower than it says"
                    )
        return found


def _same_norm(reading: Reading, condition: str) -> list[tuple[str, float]]:
    """Return the attacks of a fixed radius above 0 in the norm of a condition, each with its radius in the units of
    records; those on clean samples.
    """
    if reading.manifest.protocol.space == "normalised":
        return []
    claims = reading.manifest.claims
    norm = norm_of(condition)
    alike = {text: claim for text, claim in claims.items() if words_of(text).starts_from(text) == CLEAN.text}
    return [(text, claim.eps) for text, claim in alike.items() if claim.norm == norm and claim.eps > 0]


def _paired(first: pa.Table, second: pa.Table) -> tuple[Floats, np.ndarray[tuple[int], np.dtype[np.bool_]]]:
    """Return the distances of the first and whether the second is right, of the samples that both have."""
    mine, theirs = shared(first["sample_id"].to_pylist(), second["sample_id"].to_pylist())
    distances = column_of(first, "distance")
    distances = np.where(np.isnan(distances), np.inf, distances)
    right = second["correct"].fill_null(False).to_numpy().astype(bool)
    return distances[mine], right[theirs]


def shared(first: Sequence[str], second: Sequence[str]) -> tuple[Places, Places]:
    """Return the places of the samples that both have, in the order of the first: in the first, and in the second."""
    places = {name: place for place, name in enumerate(second)}
    common = [(place, places[name]) for place, name in enumerate(first) if name in places]
    both = np.array(common, dtype=np.int64).reshape(-1, 2)
    return both[:, 0], both[:, 1]
