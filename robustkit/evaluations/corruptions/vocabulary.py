"""The words of corruptions: `corruption(fog,severity=3)`, and sets of them such as `in-c`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import ClassVar

from ...errors import ProtocolError
from ...protocol.pattern import ConditionPattern
from ..vocabulary import Vocabulary
from .condition import parse_corrupted
from .sets import SETS

_SEVERAL = re.compile(r"severity=([1-5])(?:\+[1-5])+(?=[,)])")


class CorruptionWords(Vocabulary):
    """Single corruptions, and means over severities and over sets."""

    defaults: ClassVar[Mapping[str, str]] = {"preset": "imagenet", "variant": "hendrycks", "source": "memory"}
    telling = ("severity",)
    in_means = True

    def label(self, text: str) -> str:
        part = parse_corrupted(text)
        return text if part is None else f"{part.name}, severity {part.severity}"

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        if pattern.name not in SETS:
            # A mean over some severities, severity=1+2+3, is a condition of results only.
            parse_corrupted(_SEVERAL.sub(r"severity=\1", pattern.text))
        elif pattern.what:
            raise ProtocolError(f"condition {text!r}: a set has its own corruptions; leave {pattern.what} out")
        else:
            parse_corrupted(_SEVERAL.sub(r"severity=\1", f"corruption({','.join(['fog', *pattern.pairs])})"))

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        given = pattern.given
        yield from ("--attacks", "none", "--corruptions", asked(pattern))
        yield from (word for key in ("preset", "variant") if key in given for word in (f"--{key}", given[key]))


def asked(pattern: ConditionPattern) -> str:
    """Return a corruption, or a set, as `--corruptions` names it."""
    severity, name = pattern.given.get("severity"), pattern.what or pattern.name
    return f"{name}(severity={severity})" if severity else name


VOCABULARY = CorruptionWords()
