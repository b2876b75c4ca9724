"""Evaluate a model on the images as they are.

This module has its word, and loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from ...errors import ProtocolError
from ...protocol.condition import ConditionPattern
from ..condition import Claims, Named, Place, PublishedNames, Vocabulary

PIXELS, AT_32 = "digest", "digest_at_32"
"""Columns of clean records: digests of an image as the network is shown it, and of its means over 32 x 32 boxes."""


class CleanWords(Vocabulary):
    name = "clean"
    claims = Claims("on clean {many}", "is more accurate", "is less accurate", "on {}")
    in_results = True
    published = PublishedNames(("clean",), "clean".__eq__)

    def label(self, text: str, place: Place = "axis", manifest: Named | None = None) -> str:
        return text if place != "sentence" or manifest is None else f"clean {manifest.protocol.samples.many}"

    def chief(self, values: Mapping[tuple[str, str], float], metric: str) -> Iterator[tuple[str, str, str]]:
        yield from ((text, name, "clean") for text, name, _ in super().chief(values, metric))

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        if pattern.text != "clean":
            raise ProtocolError(f"condition {text!r}: clean takes no parameters")

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        yield from ("--attacks", "none")


VOCABULARY = CleanWords()
