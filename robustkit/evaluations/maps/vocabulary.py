"""The words of maps: `cam(agcam,mode=box)` and `stability(agcam,under=pgd(eps=1/255))`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

from ...errors import ProtocolError, unknown
from ...protocol.pattern import ConditionPattern
from ..vocabulary import Vocabulary, vocabulary_of
from .condition import MODES, parse_explained


class MapWords(Vocabulary):
    """Scores of maps, and how they change under another condition."""

    defaults: ClassVar[Mapping[str, str]] = {"threshold": "0.5", "target": "predicted", "faithfulness": "abpc"}

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        given = pattern.given
        if given.get("mode", "mask") not in MODES:
            raise ProtocolError(f"{text}: " + unknown("mode", given["mode"], MODES))
        kept = [pair for pair in pattern.pairs if not pair.startswith("mode=")]
        parse_explained(f"{pattern.name}({','.join([pattern.what, *kept])})")
        if "under" in given:
            other(given["under"])

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        under = other(pattern.given.get("under", "clean"))
        kept = ",".join(pair for pair in pattern.pairs if not pair.startswith(("mode=", "under=")))
        yield from vocabulary_of(under.name).command(under, other)
        yield from ("--cams", f"{pattern.what}({kept})" if kept else pattern.what)
        yield from ("--stability",) if pattern.name == "stability" else ()


VOCABULARY = MapWords()
