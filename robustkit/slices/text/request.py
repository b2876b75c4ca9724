"""What a run of language models is asked for. `--help` loads this module, so it imports no torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any, ClassVar

from ...common.options import option, option_group
from ...pipeline.request import Request


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
    kept = (
        *("checkpoints", "data_dir", "perturbations", "window", "stride", "windows", "split", "documents"),
        *("limit", "ids", "model"),
    )
    lacks = ("preset", "setup_check", "attacks", "eps", "norm", "corruptions", "variant", "frost_dir")

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
