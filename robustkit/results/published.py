"""Figures that others published, to be shown next to ours; never paired with them.

They come from a TOML file:

    summary = "ViT-Ti/16 trained with DeiT on ImageNet-1k"    # of which models
    source = "QUEST, arXiv 2604.00199, Table 1"
    data = "ImageNet-1k validation"
    protocol = "quest-paper"                                  # the card, by its name or tag

    [quest]                                                   # a formula of attention as run.json names it, or none
    clean = { top1 = 0.7333, nll = 1.160 }                    # a condition and its figures, named as in summary.json
    "pgd(eps=4/255,steps=20)" = { top1 = 0.1 }
    in-c = { mean_error = [0.5, 0.02] }                       # mean and standard deviation over trainings

A condition is `clean`, an attack (`pgd` is the one that the card makes of it), a corruption or a set of them, or a map:
`agcam` for its scores in box mode, `agcam-mask`, `agcam-faithfulness` and `agcam-stability`, as published with a
threshold of 0.5 for the predicted class, or a text such as `cam(agcam,threshold=0.3,mode=box)`. `mce_16` is the mCE
over the 16 corruptions of the QUEST paper, which no run computes.

Or they come from a JSON file in the schema of Every Eval Ever, such as `robustkit export` writes, if a slice reads
these.
"""

from __future__ import annotations

import math
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from ..attention.registry import FORMULAS
from ..common.files import parse_toml, written_text
from ..common.finding import Finding
from ..common.plugins import of_slice, shipped_files
from ..display.text import no_controls
from ..errors import ProtocolError, RobustkitError, RunError, unknown
from ..evaluations.attacks import ABSENT, text_under
from ..evaluations.condition import is_attack, kind_of, pattern_of, vocabularies, with_usual, words_of
from ..protocol.card import Card, card_names, load_card, parse_number
from ..runs.manifest import DataEntry, Manifest
from ..tasks import find_metric, metrics

_FIELDS = ("summary", "source", "data", "protocol")
_NAMES = 5  # figures that a line names
Figures = Mapping[str, Mapping[str, float]]


def _counts(flag: str) -> bool:
    """Whether a flag is a doubt or a limit; of one without a known code nothing is known."""
    finding = Finding.parse(flag)
    return finding is None or finding.counts


class Origin(NamedTuple):
    """Where a figure comes from, as far as its file says. data: the name of the data set. n: samples; 0 if unknown."""

    data: str
    digest: str
    n: int
    flags: tuple[str, ...]

    def doubts(self, condition: str, data: DataEntry, n: int) -> Iterator[str]:
        """Yield how it is of something else than a run's figure of n samples, and its own flags that raise a doubt."""
        if self.digest and self.digest != data.digest:
            yield f"published on {self.data}, digest {self.digest[:8]}, here {data.name}, digest {data.digest[:8]}"
        elif not self.digest and self.data != data.name:
            yield f"published on {self.data}, here {data.name}"
        if self.n and self.n != n and self.digest != data.digest:  # of the same samples n depends on the model alone
            yield f"published for n = {self.n}, here n = {n}"
        yield from (f"published with a flag: {flag}" for flag in self.flags if _counts(flag))


@dataclass(frozen=True)
class Published:
    """Figures by attention, condition as the file names it, and metric. spreads: standard deviations over trainings.
    in_full: whether its conditions are texts that mean one condition whatever the card. origins: where a figure comes
    from, by condition and metric. unmatched: lines on figures that are not among these."""

    name: str
    summary: str
    source: str
    data: str
    protocol: str
    figures: Mapping[str, Figures]
    spreads: Mapping[str, Figures] = field(default_factory=dict)
    in_full: bool = False
    origins: Mapping[str, Mapping[str, Origin]] = field(default_factory=dict)
    unmatched: tuple[str, ...] = ()

    def resolved(self) -> Published:
        """Return the same with texts of conditions as runs have them. RunError where the card leaves one open."""
        if self.in_full:
            return self
        name = self.protocol.partition("@")[0]
        card = load_card(name) if name in card_names() else None

        def with_texts(by_attention: Mapping[str, Figures]) -> dict[str, Figures]:
            tables = by_attention.items()
            return {name: {self._text(text, card): values for text, values in table.items()} for name, table in tables}

        return replace(self, figures=with_texts(self.figures), spreads=with_texts(self.spreads))

    def _text(self, name: str, card: Card | None) -> str:
        if _is_fixed(name):
            return name
        if card is not None:
            try:
                return text_under(name, card) if is_attack(kind_of(name)) else name
            except RobustkitError as fault:
                raise RunError(f"{self.name}: {fault}") from None
        if "(" in name:
            return name
        expected = f"expected it in full, such as {name}(eps=1/255), or one of the cards {', '.join(card_names())}"
        called = self.protocol.partition("@")[0]
        raise RunError(f"{self.name}: what {name} is under card {called!r} is not known; {expected}")

    def named_as(self, conditions: Iterable[str]) -> Published:
        """Return the same with its conditions as a run spells them; a line names those that the run lacks. conditions:
        of the run. Only figures with conditions in full are changed."""
        if not self.in_full:
            return self
        theirs = {meaning_of(text): text for text in conditions}
        names = {text: theirs.get(meaning_of(text), "") for figures in self.figures.values() for text in figures}
        lost = [text for text, name in names.items() if not name]
        line = f"{self.name}: no condition of the run matches {joined(lost)}"

        def renamed(table: Mapping[str, Any]) -> dict[str, Any]:
            return {names[text]: values for text, values in table.items() if names.get(text)}

        return replace(
            self,
            figures={attention: renamed(table) for attention, table in self.figures.items()},
            origins=renamed(self.origins),
            unmatched=(*self.unmatched, *([line] if lost else [])),
        )

    def findings(self, manifest: Manifest, figures: Sequence[tuple[str, str, int]]) -> list[Finding]:
        """Return what makes a comparison with a run's figures mean less: another card, other data, and flags of these.
        figures: condition, metric and n of each that stands next to one of these."""
        tag = manifest.protocol.tag
        here = f"published under {self.protocol}, here {tag.partition('@')[0]}"
        lines: dict[str, dict[str, None]] = {} if self.is_of(tag) else {here: {}}
        for condition, metric, n in figures:
            if (origin := self.origins.get(condition, {}).get(metric)) is not None:
                for line in origin.doubts(condition, manifest.data, n):
                    lines.setdefault(line, {})[condition] = None
        every = {condition for condition, _, _ in figures}
        texts = (f"{line} ({joined(s)})" if s and len(s) < len(every) else line for line, s in lines.items())
        return [Finding.of("compare/published", line=text) for text in texts]

    def is_of(self, tag: str) -> bool:
        """Whether a card with this tag, `quest-paper@1:d34db12c`, is the one that the figures were measured under."""
        return self.protocol in (tag, tag.partition(":")[0], tag.partition("@")[0])

    def figure(self, attention: str, condition: str, metric: str) -> float | None:
        """Return the figure of an attention under a condition of a run, or None. Only after `resolved`."""
        return _of(self.figures, attention, condition, metric)

    def spread(self, attention: str, condition: str, metric: str) -> float | None:
        return _of(self.spreads, attention, condition, metric)


def _of(by_attention: Mapping[str, Figures], attention: str, condition: str, metric: str) -> float | None:
    table = by_attention.get(attention, {})
    return table.get(condition, table.get(words_of(condition).published.as_published(condition), {})).get(metric)


def reference_names() -> list[str]:
    return sorted(shipped_files("robustkit.results", "references"))


def read_published(spec: str) -> Published:
    """Return figures of the package, by name, or of a file. Raises RunError where they are not there or understood."""
    if spec in reference_names():
        return _shipped(spec)
    path = Path(spec)
    if path.suffix == ".toml" and path.is_file():
        return _parsed(written_text(path, spec, RunError), spec)
    if path.suffix == ".json" and path.is_file():
        published: Published = of_slice("read_evaluated", spec)(path, spec)
        return published
    raise RunError(unknown("reference", spec, reference_names(), remedy="or give the path of a TOML or JSON file"))


@cache
def _shipped(name: str) -> Published:
    """Return figures of the package. Each audit looks at all of them, and checks of hundreds of names take time."""
    return _parsed(shipped_files("robustkit.results", "references")[name].read_text("utf-8"), name, ABSENT)


def _parsed(text: str, where: str, absent: Container[str] = ()) -> Published:
    """Return the figures in a text. absent: kinds of conditions that it may have, but that nothing here evaluates."""
    data = parse_toml(text, where, RunError)
    for name in _FIELDS:
        if not isinstance(data.get(name), str):
            raise RunError(f"{where}: {name} is {data.get(name)!r}; expected a text")
    tables = {name: value for name, value in data.items() if name not in _FIELDS}
    attentions = [*FORMULAS, "none", "other"]
    for attention, table in tables.items():
        if attention.partition("(")[0] not in attentions:
            kind, names = ("attention", attentions) if isinstance(table, dict) else ("field", [*_FIELDS])
            raise RunError(f"{where}: {unknown(kind, attention, names, remedy='correct it or leave it out')}")
        if isinstance(table, dict):
            table = tables[attention] = {text: of for text, of in table.items() if kind_of(text) not in absent}
        for condition, figures in _table(table, f"{where} [{attention}]").items():
            _check_figures(condition, figures, f"{where} [{attention}]")
    means: dict[str, dict[str, dict[str, float]]] = {}
    spreads: dict[str, dict[str, dict[str, float]]] = {}
    for attention, table in tables.items():
        means[attention], spreads[attention] = {}, {}
        for condition, values in table.items():
            pairs = {metric: value if isinstance(value, list) else [value] for metric, value in values.items()}
            means[attention][condition] = {metric: value[0] for metric, value in pairs.items()}
            spreads[attention][condition] = {metric: value[1] for metric, value in pairs.items() if value[1:]}
    return Published(where, **{name: data[name] for name in _FIELDS}, figures=means, spreads=spreads)


def _check_figures(condition: str, figures: object, where: str) -> None:
    every = vocabularies()
    names = [name for words in every for name in words.published.names]
    kind = kind_of(condition)
    try:
        understood = _is_fixed(condition) or (is_attack(kind) and kind in words_of(condition).published.names)
    except RobustkitError as fault:
        raise RunError(f"{where}: {fault}") from None
    if not understood:
        remedy = "or a text such as cam(agcam)"
        raise RunError(f"{where}: {unknown('condition', condition, names, remedy=remedy)}")
    metric_names = [*metrics(), *(name for words in every for name in words.published.metrics)]
    for metric, value in _table(figures, f"{where} {condition}").items():
        if metric not in metric_names and find_metric(metric) is None:
            raise RunError(f"{where} {condition}: {unknown('metric', metric, metric_names, remedy='or leave it out')}")
        pair = isinstance(value, list) and len(value) == 2 and all(map(_is_number, value)) and value[1] >= 0
        if not (_is_number(value) or pair):
            expected = "a finite number, or [mean, standard deviation over trainings]"
            raise RunError(f"{where} {condition}: {metric} is {value!r}; expected {expected}")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _table(value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise RunError(f"{where}: {value!r} is not a table; expected one such as {{ top1 = 0.73 }}")
    return value


def _is_fixed(name: str) -> bool:
    """Whether a name means the same condition under every card."""
    return any(words.published.is_fixed(name) for words in vocabularies())


def meaning_of(condition: str) -> Hashable:
    """Return what is the same for all spellings of a condition: its parameters in any order, numbers by their value to
    ten digits, and what a text may leave out."""
    pattern = pattern_of(condition)
    return pattern.name, pattern.what, frozenset((key, _by_value(text)) for key, text in with_usual(pattern).items())


def _by_value(text: str) -> str:
    try:
        return f"{float(parse_number(text)):.9e}"
    except (ProtocolError, OverflowError):
        return text


def bounded_text(text: str) -> str:
    return no_controls(text[:200])


def joined(texts: Iterable[str]) -> str:
    """Return the first few of some texts of a file in one line, each once, and how many more there are."""
    each = list(dict.fromkeys(map(bounded_text, texts)))
    return "; ".join(each[:_NAMES]) + (f" and {len(each) - _NAMES} more" if len(each) > _NAMES else "")
