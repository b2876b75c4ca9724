"""Predict the next token of a text: one record row per document.

Conditions change words: `word-swap(rate=2.5)`, `typo(rate=5)`, `case(rate=5)`. This module loads no torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, ClassVar

from ...common.options import option, option_group
from ...errors import ProtocolError
from ...evaluations.condition import Claims, Named, Place, PublishedNames, Vocabulary
from ...evaluations.family import LazyFamily
from ...pipeline.request import Request
from ...protocol.condition import Condition, ConditionPattern, Value

USUAL = "word-swap(rate=1.5),word-swap(rate=2.5),word-swap(rate=5)"  # the rates of published tables
_CALLED = {"word-swap": "words swapped", "typo": "words mistyped", "case": "words in another case"}


def _is_fixed(name: str) -> bool:
    return name.partition("(")[0] in _CALLED and bool(VOCABULARY.parse(name))


class PerturbationWords(Vocabulary):
    """Conditions of changed words. rate: percent of the words of a document. kinds: of conditions."""

    name = "perturbations"
    claims = Claims("with changed words", "is more robust", "is less robust", "with {}")
    kinds = tuple(_CALLED)

    parameters: ClassVar[dict[str, Value]] = {"rate": Fraction(5)}
    in_results = True
    published = PublishedNames(is_fixed=_is_fixed)

    def parse(self, text: str) -> Condition:
        condition = super().parse(text)
        rate = dict(condition.parameters)["rate"]
        if not 0 < float(rate) <= 100:
            raise ProtocolError(f"{text}: rate {rate}; expected percent of the words, above 0 and at most 100")
        return replace(condition, draws=condition.name)

    def label(self, text: str, place: Place = "axis", manifest: Named | None = None) -> str:
        kind, _, inside = text.partition("(")
        return f"{inside.removeprefix('rate=').removesuffix(')')} % {_CALLED[kind]}"

    def chief(self, values: Mapping[tuple[str, str], float], metric: str) -> Iterator[tuple[str, str, str]]:
        rates = {text: float(dict(self.parse(text).parameters)["rate"]) for text, name in values if name == metric}
        for kind in self.kinds:
            if texts := [text for text in rates if text.startswith(f"{kind}(")]:
                yield max(texts, key=rates.__getitem__), metric, "most words changed"

    def command(self, pattern: ConditionPattern, other: Callable[[str], ConditionPattern]) -> Iterator[str]:
        yield from ("--perturbations", pattern.text)


VOCABULARY = PerturbationWords()
FAMILY = LazyFamily(VOCABULARY)


@dataclass(frozen=True, kw_only=True)
class LanguageModelOptions:
    """What the loader of language models takes."""

    attention: str | None = option("Model", "Attention formula of an hf: model; default: from the metadata.")


@dataclass(frozen=True, kw_only=True)
class TextRequest(Request):
    """The request of `text`. data_dir: the documents. windows: how a text is cut (`Windows` in `subject`)."""

    task = "text"
    usual_attacks = "none"
    usual_batch: ClassVar = {"cpu": 8, "accelerator": 64}
    least_shard = 8  # documents are long
    argument_names = (
        *("checkpoints", "data_dir", "perturbations", "window", "stride", "windows", "split", "documents"),
        *("limit", "ids", "model"),
    )
    lacks = ("preset", "setup_check", "attacks", "eps", "norm", "corruptions", "variant", "frost_dir", "tiles_dir")

    data_dir: str | Path = option(
        "Data", "Text, records (.jsonl, .json, .csv), folder of .txt files, or Brown's .tgz.", MISSING, flag="--data"
    )
    model: Mapping[str, Any] = option_group(LanguageModelOptions)
    limit: int | None = option("Data", "At most N documents, determined by the seed.")
    protocol: str = "text"
    documents: str | None = option("Data", "How to split a file: headings, blank-lines or file; default: detected.")
    split: str = option("Data", "Split of the Brown corpus: train, validation or test.", "test")
    window: int | None = option("Model", "Tokens per window; default: the card's.")
    stride: int | None = option("Model", "Tokens from one window to the next; default: the card's.")
    windows: str | None = option(
        "Model",
        "strided, as in the guide of transformers, or full, each with --window tokens before the last to predict; "
        "default: the card's.",
    )
    perturbations: str | Sequence[str] | None = option(
        "Run", "word-swap(rate=5), typo(rate=5), case(rate=5); none; default: word-swap at 1.5, 2.5 and 5 %."
    )
