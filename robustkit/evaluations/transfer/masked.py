"""Find checkpoints that stand against their own gradients and fall to those of another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..family import Overview
from ..kinds import words_of
from ..right import Right, aligned, chance
from ..rows import Reading
from ..sentence import percent
from .condition import Passed, passed_of
from .summary import right_under

if TYPE_CHECKING:
    import pyarrow as pa

CHANCE = 0.01
"""Probability below which more samples that fall only to another's images are not chance: McNemar's exact test."""
CHECK = "transfer: "


class Masked(Overview):
    """Attacks with a checkpoint's own gradients that do less than what was found with another's."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        every = [passed_of(text) for text in reading.manifest.conditions]
        others = [passed for passed in every if passed is not None and passed.source != reading.checkpoint]
        self.passed = others
        attacks = {passed.attack for passed in others}
        self.wanted = attacks | {words_of(attack).starts_from(attack) for attack in attacks}
        self.rights = dict[str, Right]()

    def take(self, condition: str, read: pa.Table, flags: Sequence[str]) -> None:
        if condition in self.wanted:
            self.rights[condition] = Right.of(read)

    def flags(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for passed in self.passed:
            if flag := self._flag(passed):
                found.setdefault(passed.attack, []).append(flag)
        return found

    def _flag(self, passed: Passed) -> str:
        own = self.rights.get(passed.attack)
        theirs = right_under(self.reading, f"transfer({passed.attack},from={passed.source})")
        if own is None or theirs is None:
            return ""
        start = self.rights.get(words_of(passed.attack).starts_from(passed.attack))
        mine, other, *before = aligned([own, theirs, *([start] if start is not None else [])])
        if not len(mine):
            return ""
        shares = percent(float(mine.mean())), percent(float(other.mean()))
        counted = before[0] if before else mine | other
        more, fewer = int((mine & ~other & counted).sum()), int((other & ~mine & counted).sum())
        if (p := chance(more, fewer)) >= CHANCE:
            return ""
        return (
            f"{CHECK}its own attack leaves {shares[0]}, the images found for {passed.source} leave {shares[1]}; of "
            f"{int(counted.sum())} samples right before, {more} fall to those alone and {fewer} to its own alone "
            f"(p = {p:.1g}): gradients of this model may be masked"
        )
