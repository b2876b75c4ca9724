"""Patches: a small square of each image takes any values.

A condition is `patch(size=16,steps=100,loss=kq)`. This module loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

from ...evaluations.attacks import attack_parts
from ...evaluations.condition import UNDER_ATTACK, Named, Place, Vocabulary
from ...evaluations.family import LazyFamily
from ...protocol.condition import ConditionPattern, Value

_LOSSES = {"ce": "CE", "kq": "CE + Lkq", "kq-cls": "CE + Lkq*"}


class PatchWords(Vocabulary):
    name = "patches"
    claims = UNDER_ATTACK._replace(under="under a {}")
    parameters: ClassVar[Mapping[str, Value]] = {
        "norm": "patch",
        "size": 16,
        "where": "corner",
        "steps": 100,
        "step_size": 0.1,
        "loss": "ce",
        "early_stop": True,
        "engine": "robustkit",
    }
    in_results = True

    def label(self, text: str, place: Place = "axis", manifest: Named | None = None) -> str:
        _, parameters = attack_parts(text)
        where = parameters.get("where", "corner")
        at = "" if where == "corner" else f", {where}"
        return f"patch of {parameters.get('size', '16')} pixels{at} ({_LOSSES.get(parameters.get('loss', 'ce'), '?')})"

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        yield from ("--attacks", pattern.text)


VOCABULARY = PatchWords()
FAMILY = LazyFamily(VOCABULARY)
