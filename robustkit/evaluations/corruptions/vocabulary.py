"""The words of corruptions: `corruption(fog,severity=3)`, and sets of them such as `in-c`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from typing import ClassVar

from ...errors import ProtocolError
from ...protocol.condition import Condition, ConditionPattern
from ..vocabulary import View, Vocabulary
from .condition import corruption_condition, parse_corrupted
from .measures import BENCHMARK, METRICS, TERMS
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
    terms = TERMS
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
        """Return the means over sets, those over severities that no set holds, and what neither holds."""
        sets = [text for text in texts if text.partition("(")[0] in SETS]
        means = [text for text in texts if "severity=" not in text]
        short, covered = list[str](), set[str]()
        for text in dict.fromkeys((*sets, *means, *texts)):
            if not (parts := set(self.shares(text))) <= covered:
                short.append(text)
                covered |= parts if "severity=" not in text or text in sets else set()
        return short

    def chief(self, values: Mapping[tuple[str, str], float], metric: str) -> Iterator[tuple[str, str, str]]:
        """Yield the errors of the benchmark's set; without it those of the three worst sets or corruptions."""
        short = self.in_short(list(dict.fromkeys(text for text, _ in values)))
        texts = [text for text in short if text.partition("(")[0] == BENCHMARK] or short
        errors = [(text, "mean_error") for text in texts if (text, "mean_error") in values]
        scores = [(text, metric) for text in texts if (text, metric) in values]
        figures = sorted(errors, key=lambda key: -values[key]) or sorted(scores, key=lambda key: values[key])
        which = f", one of the three worst of {len(figures)}" if len(figures) > 3 else ""
        for text, name in figures[:3]:
            over = "severities" if self.shows(text.partition("(")[0]) else "corruptions and severities"
            yield text, name, f"mean over {over}{which}" if len(self.shares(text)) > 1 else f"one severity{which}"
        yield from ((text, "mce", "the benchmark's figure") for text in texts if (text, "mce") in values)

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
        if part is None or not part.severity:
            return text if part is None else part.label
        return f"{part.label}, severity {part.severity}"

    def parse(self, text: str) -> Condition:
        """Return the condition of a corruption at a severity. Raises ProtocolError where the text is of none."""
        part = parse_corrupted(text)
        if part is None or not part.severity:
            raise ProtocolError(f"condition {text!r}: expected a severity from 1 to 5, such as severity=3")
        return corruption_condition(part)

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
        options = {"preset": "--constants", "variant": "--variant"}
        yield from (word for key, name in options.items() if key in given for word in (name, given[key]))


def asked(pattern: ConditionPattern) -> str:
    """Return a corruption, or a set, as `--corruptions` names it."""
    name = pattern.what or pattern.name
    inside = ",".join(f"{key}={pattern.given[key]}" for key in ("severity", "texture") if key in pattern.given)
    return f"{name}({inside})" if inside else name


VOCABULARY = CorruptionWords()
