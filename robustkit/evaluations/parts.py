"""Divide a run into parts.

A unit is (checkpoint, condition, shard). Parts have a share of each condition's shards that differs by one shard at
most. With four shards or more for each part, all conditions of a shard are of one part, which decodes it once;
otherwise conditions are divided, too. What takes the images that another condition made (watched attention, what is
passed on) is of the same part. What is measured before an attack's units, or before all, goes with one of these units,
so that it is there when that unit is.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ..errors import ProtocolError
from ..runs.folder import RunFolder
from .condition import pattern_of, takes_images

ENOUGH = 4  # shards for each process from which the conditions of a shard stay together


@dataclass(frozen=True)
class RunPart:
    """One of `count` parts of a run; `number` counts from 1."""

    number: int
    count: int

    @classmethod
    def of(cls, text: str) -> RunPart:
        """Return the part that `3/64` means. Raises ProtocolError where it means none."""
        number, _, count = text.strip().partition("/")
        if all(each.isascii() and each.isdecimal() and len(each) < 10 for each in (number, count)):
            part = cls(int(number), int(count))
            if 1 <= part.number <= part.count:
                return part
            if part.count:
                raise ProtocolError(f"--part {text}: expected 1/{part.count} to {part.count}/{part.count}")
        raise ProtocolError(f"--part {text}: expected one part of several, such as 3/64")

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"

    def holds(self, checkpoint: str, condition: str, shard: int, shards: int) -> bool:
        """Whether a unit is of this part. shards: of the run."""
        return unit_part(checkpoint, condition, shard, shards, self.count) == self.number

    def measures(self, checkpoint: str, condition: str, shards: int) -> bool:
        """Whether what is measured besides the units of a condition is of this part."""
        return self.holds(checkpoint, condition, _number(checkpoint, condition) % max(shards, 1), shards)


def unit_part(checkpoint: str, condition: str, shard: int, shards: int, parts: int) -> int:
    """Return the number of the part, from 1 on, that a unit is of. shards: of the run."""
    if takes_images(condition):  # which the same process makes
        parameters = pattern_of(condition).given
        checkpoint, condition = parameters.get("from", checkpoint), parameters.get("under", condition)
    together = shards >= ENOUGH * parts
    return (_number(checkpoint, "" if together else condition) + shard) % parts + 1


def missing_by_part(run: RunFolder, parts: int) -> dict[int, list[str]]:
    """Return the units of a run that have no record, in words, by the part that they are of."""
    missing: dict[int, list[str]] = {}
    for checkpoint, condition in run.manifest.pairs:
        for shard in run.missing_shards(checkpoint, condition):
            number = unit_part(checkpoint, condition, shard, run.shard_count, parts)
            missing.setdefault(number, []).append(f"{checkpoint} under {condition}, shard {shard}")
    return dict(sorted(missing.items()))


def _number(*parts: str) -> int:
    return int.from_bytes(hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).digest()[:8], "big")
