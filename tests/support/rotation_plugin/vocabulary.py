"""The words of rotations: `rotation(degrees=30)`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from robustkit.errors import ProtocolError
from robustkit.evaluations.metric import mean_share
from robustkit.evaluations.vocabulary import View, Vocabulary
from robustkit.protocol.pattern import ConditionPattern


class RotationWords(Vocabulary):
    """Images turned by some degrees."""

    in_results = True
    metrics = (mean_share("agreement", "agreement %", drafted=True, hub=("agreement", "agreement with clean")),)

    def label(self, text: str) -> str:
        return f"turned by {degrees_of(text)}°"

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        if not pattern.given.get("degrees", "").isdigit():
            raise ProtocolError(f"condition {text!r}: expected such as rotation(degrees=30)")

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        yield from ("--rotations", pattern.given["degrees"])

    def view(self, text: str) -> View:
        return View("rotation", degrees_of(text), "degrees")


def degrees_of(text: str) -> str:
    return text.partition("=")[2].removesuffix(")")


VOCABULARY = RotationWords()
