"""A condition: what is done to the images before the model sees them, and its canonical text.

`clean`, `pgd(eps=1/255,steps=20)`, `corruption(fog,severity=3)`, `cam(agcam)`, `attention(clean)`: each family of
evaluations parses its own.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

ON = "on"
"""The parameter that says on how many samples a condition is evaluated, drawn at random."""
_ON = re.compile(rf"[(,]{ON}=(\d+)[,)]")
Value = bool | int | float | str | Fraction


def part_of(text: str) -> int:
    """Return on how many samples a condition is evaluated, by its text; 0 for all. What is made of the images of such a
    condition, and names it, is evaluated on the same samples.
    """
    found = _ON.search(text.partition(",from=")[0] + ")")
    return int(found[1]) if found else 0


@dataclass(frozen=True)
class Condition:
    """One way to treat the images. `parameters` are all of an attack's, card and options resolved; `text` names it.

    payload: what the condition's family parsed from the text, for the family alone. under: the condition whose images a
    map is compared on, on whose images attention is watched, around whose images an attack looks, or the attack whose
    adversarial images are passed on. group: the text of the conditions counted and shown together, such as all
    severities of a corruption; empty if there are no others. level: its place in the group, such as its severity.
    released: whether the images come already corrupted, from other files. draws: the text that its random draws depend
    on, if not its own. needs_truth: whether it is scored against the place of a sample's object. source: the checkpoint
    that the adversarial images of `under` were found for, where that is not the one that is evaluated. after: the
    condition whose records, of all samples, tell which of them this one takes.
    """

    name: str
    text: str
    parameters: tuple[tuple[str, Value], ...] = ()
    payload: Hashable = None
    under: Condition | None = None
    group: str = ""
    level: int = 0
    released: bool = False
    draws: str = ""
    needs_truth: bool = False
    source: str = ""
    after: Condition | None = None

    @property
    def waits(self) -> bool:
        """Whether it needs what other conditions found, so that they are computed before it."""
        return bool(self.source) or self.after is not None

    @property
    def eps(self) -> float | None:
        """The radius that an attack claims, in the units of its card's space; None where nothing is claimed."""
        eps = dict(self.parameters).get("eps")
        return None if eps is None else float(eps)

    @property
    def on(self) -> int:
        """How many samples it is evaluated on, drawn at random; 0 for all."""
        return part_of(self.text)

    @property
    def norm(self) -> str:
        return str(dict(self.parameters).get("norm", "linf"))

    @property
    def engine(self) -> str:
        """The library that makes the attack."""
        return str(dict(self.parameters).get("engine", "robustkit"))

    @property
    def early_stop(self) -> bool:
        """Whether samples leave at their first wrong prediction, so that their losses mean nothing."""
        return bool(dict(self.parameters).get("early_stop", False))

    @property
    def claim(self) -> dict[str, Any]:
        """The claim that the records of an attack are checked against, as in run.json; empty for other conditions."""
        if self.eps is None:
            return {}
        return {"norm": self.norm, "eps": self.eps, "early_stop": self.early_stop}


CLEAN = Condition("clean", "clean")
