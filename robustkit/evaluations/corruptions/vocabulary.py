"""The words of corruptions: `corruption(fog,severity=3)`, and sets of them such as `in-c`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import ClassVar

from ...errors import ProtocolError
from ...protocol.pattern import ConditionPattern
from ..vocabulary import View, Vocabulary
from .condition import parse_corrupted
from .measures import BENCHMARK, METRICS
from .sets import FROST, SETS
from .shares import by_definition, means_of_shares, shares_of

_OWN = "texture=own"
_SEVERAL = re.compile(r"severity=([1-5])(?:\+[1-5])+(?=[,)])")


class CorruptionWords(Vocabulary):
    """Single corruptions, and means over severities and over sets."""

    defaults: ClassVar[Mapping[str, str]] = {
        "preset": "imagenet",
        "variant": "hendrycks",
        "source": "memory",
        "texture": "photographs",
    }
    telling = ("severity",)
    in_means = True
    metrics = METRICS
    benchmark = BENCHMARK
    expected = True
    published_metrics = ("mce_16",)

    def shows(self, kind: str) -> bool:
        return kind not in SETS

    def group(self, text: str) -> str:
        part = parse_corrupted(text)
        return text if part is None else part.mean.text

    def shares(self, text: str) -> dict[str, float]:
        return shares_of(text)

    def means(self, texts: Sequence[str]) -> Iterator[str]:
        every = (means_of_shares(example, members) for example, members in by_definition(texts))
        yield from dict.fromkeys(chain.from_iterable(every))

    def needs(self, text: str, metric: str, conditions: Iterable[str]) -> list[str]:
        return [*shares_of(text), *(["clean"] if metric in ("relative_mce", "retention") else [])]

    def in_short(self, texts: Sequence[str]) -> Sequence[str]:
        """Return the means over sets; where there is none, those over severities; else each alone."""
        sets = [text for text in texts if text.partition("(")[0] in SETS]
        return sets or [text for text in texts if "severity=" not in text] or texts

    def view(self, text: str) -> View:
        part = parse_corrupted(text)
        assert part is not None
        line = part.mean.text.removeprefix("corruption(").removesuffix(")")
        return View(line, str(part.severity or ""), "severity")

    def published_names(self) -> Sequence[str]:
        return tuple(SETS)

    def published_as(self, text: str) -> str:
        """Return the condition with the benchmark's photographs, of which `unlike_published` says that they differ."""
        return re.sub(rf"\({_OWN}\)|,{_OWN}", "", text) if _OWN in text else ""

    def unlike_published(self, text: str) -> str:
        return "frost's own textures stand for the benchmark's photographs" if _OWN in text else ""

    def published_name(self, text: str) -> str:
        return "" if self.shows(text.partition("(")[0]) else super().published_name(text)

    def is_fixed(self, name: str) -> bool:
        return name.partition("(")[0] in SETS or parse_corrupted(name) is not None

    def label(self, text: str) -> str:
        part = parse_corrupted(text)
        return text if part is None else f"{part.label}, severity {part.severity}"

    def check(self, pattern: ConditionPattern, text: str, other: Callable[[str], ConditionPattern]) -> None:
        if pattern.name not in SETS:
            # A mean over some severities, severity=1+2+3, is a condition of results only.
            parse_corrupted(_SEVERAL.sub(r"severity=\1", pattern.text))
        elif pattern.what:
            raise ProtocolError(f"condition {text!r}: a set has its own corruptions; leave {pattern.what} out")
        else:
            of = FROST if FROST in SETS[pattern.name] else "fog"
            parse_corrupted(_SEVERAL.sub(r"severity=\1", f"corruption({','.join([of, *pattern.pairs])})"))

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        given = pattern.given
        yield from ("--attacks", "none", "--corruptions", asked(pattern))
        yield from (word for key in ("preset", "variant") if key in given for word in (f"--{key}", given[key]))


def asked(pattern: ConditionPattern) -> str:
    """Return a corruption, or a set, as `--corruptions` names it."""
    name = pattern.what or pattern.name
    inside = ",".join(f"{key}={pattern.given[key]}" for key in ("severity", "texture") if key in pattern.given)
    return f"{name}({inside})" if inside else name


VOCABULARY = CorruptionWords()
