"""Hold a condition: what is done to the images before the model sees them, and its canonical text.

`clean`, `pgd(eps=1/255,steps=20)`, `corruption(fog,severity=3)`, `cam(agcam)`, `attention(clean)`: each family of
evaluations parses its own.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

Value = bool | int | float | str | Fraction


@dataclass(frozen=True)
class Condition:
    """One way to treat the images. `parameters` are all of an attack's, card and options resolved; `text` names it.

    payload: what the condition's family made of the text, for the family alone. under: the condition beside which a map
    is laid, or on whose images attention is watched. group: the text of what is counted and shown together, such as
    all severities of a corruption; empty where the condition stands alone. level: its place in the group, such as its
    severity. released: whether the images come, corrupted already, from files of their own. draws: the text that its
    random draws depend on, if not its own. needs_truth: whether it is scored against where the object of a sample is.
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

    @property
    def eps(self) -> float | None:
        """The radius that an attack claims, in the units of its card's space; None where nothing is claimed."""
        eps = dict(self.parameters).get("eps")
        return None if eps is None else float(eps)

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
        """What the records of an attack are held to, as run.json keeps it; empty for all else."""
        if self.eps is None:
            return {}
        return {"norm": self.norm, "eps": self.eps, "early_stop": self.early_stop}


CLEAN = Condition("clean", "clean")
