"""Plan a run of language models: checkpoints, documents, changed words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...data.dataset import Dataset
from ...errors import DataError, ModelError, NothingEvaluated, ProtocolError, unknown
from ...evaluations.condition import kind_of, words_of
from ...models.identity import distinct_names
from ...pipeline.audit import Checkpoints, Say, carried_out, takes_options_of
from ...pipeline.manifest import describe
from ...pipeline.plan import Plan, PlannedCheckpoint, assemble_plan
from ...protocol.card import Card
from ...protocol.condition import CLEAN, Condition, split_list
from ...report.run import Run
from ...runs.progress import Progress
from . import USUAL, VOCABULARY, TextRequest
from .documents import as_text, open_documents
from .language_model import LanguageModel, load_language_model
from .subject import Documents, TextSubject, TokenWindows

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from .keywords import TextOptions

WINDOWS = ("strided", "full")  # how a text is cut


def plan(request: TextRequest) -> Plan:
    """Return all that a run of language models needs. Raises RobustkitError for anything wrong with the request."""
    card = request.card
    conditions = (CLEAN, *_perturbations(request.perturbations), *request.evaluation_conditions())
    dataset = open_documents(request.data_dir, split=request.split, documents=request.documents)
    chosen = None if request.ids is None else Path(request.ids)
    dataset = dataset.select(limit=request.limit, ids=chosen, seed=request.seed)
    if not dataset.samples:
        raise NothingEvaluated(f"{dataset.root}: no document is left to evaluate; relax --limit or --ids")
    models = [load_language_model(spec, **request.model) for spec in request.checkpoints]
    distinct_names(models)
    first = models[0]
    for other in models[1:]:
        if other.tokenizer.digest != first.tokenizer.digest:  # nothing of them can be compared
            raise DataError(
                f"{first.identity.name} and {other.identity.name} have other vocabularies; evaluate them in separate "
                "runs"
            )
    contenders = (_contender(model, card, dataset, request) for model in models)
    return assemble_plan(request, models, contenders, conditions, dataset, dataset.notes)


def _perturbations(asked: str | Sequence[str] | None) -> tuple[Condition, ...]:
    texts = split_list(USUAL if asked is None else asked)
    if texts == ["none"]:
        return ()
    for text in texts:
        if words_of(text.lower()) is not VOCABULARY:
            raise ProtocolError(unknown("perturbation", kind_of(text), VOCABULARY.kinds))
    return tuple(dict.fromkeys(map(VOCABULARY.parse, texts)))


def _windows(model: LanguageModel, card: Card, request: TextRequest) -> TokenWindows:
    """Return how a model reads a text: as the options say, else the card, which leaves 0 to the model."""
    scoring, name = card.scoring, model.identity.name
    size = request.window or scoring.get("window") or model.context
    stride = request.stride or scoring.get("stride") or max(1, size // 2)
    kind = request.windows or scoring.get("windows", "full")
    if kind not in WINDOWS:
        raise ProtocolError(unknown("kind of windows", str(kind), WINDOWS))
    if not 1 <= size <= model.context:
        raise ModelError(f"{name} sees {model.context} tokens at most; expected --window up to that, not {size}")
    most = size if kind == "full" else size - 1
    if not 1 <= stride <= most:
        why = "" if kind == "full" else ", or first tokens of windows would not be predicted; or give --windows full"
        raise ProtocolError(f"--stride {stride} with windows of {size} tokens: expected 1 to {most}{why}")
    return TokenWindows(size, stride, scoring.get("targets") == "changed", kind)


def _contender(model: LanguageModel, card: Card, dataset: Dataset, request: TextRequest) -> PlannedCheckpoint:
    reading = _windows(model, card, request)
    windows = {"tokens": reading.size, "stride": reading.stride, "kind": reading.kind}
    entry = describe(model.identity, model.identity.preprocessing, windows=windows)
    made = partial(TextSubject, model, card, windows=reading)
    return PlannedCheckpoint(entry, made, Documents(dataset), question=partial(_ask, model))


def _ask(model: LanguageModel, raw: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first tokens of a text (1, n), and the logits of what follows each."""
    tokens, _ = model.tokenizer.encode(as_text(raw)[:_ASKED])
    first = torch.tensor([tokens[: model.context]])
    return first, model(first.to(model.mean.device))


_ASKED = 200  # characters


@takes_options_of(TextRequest)
def text(
    checkpoints: Checkpoints,
    data: str | Path,
    *,
    progress: Progress | bool | None = None,
    say: Say = None,
    **options: Unpack[TextOptions],
) -> Run:
    """Evaluate causal language models clean and on changed words, and write records, summary and report.

    A call on a folder that an earlier call left unfinished continues where that one stopped. All else is as in `audit`.

    Args:
        checkpoints: one or several: `hf:DIR` or `hf-hub:ORG/NAME` with its tokenizer, `zoo:NAME`, or the file of a
            model of words.
        data: a text file, records with a field `text` (.jsonl, .json, .csv, .tsv), a folder of .txt files, or Brown's
            .tgz.

    Keyword Args:
        window: tokens that are read at once; left out, as the card says.
        stride: tokens from one window to the next; left out, as the card says.
        model: further arguments for the loader: attention.

    Returns:
        The run, whose results come from its records.

    Raises:
        RobustkitError: anything that is wrong with the arguments, before a file is written.
        NothingEvaluated: no document could be evaluated.

    Example:
        >>> _ = Path("words.txt").write_text("the jury had no more to say about the election . " * 20)
        >>> run = robustkit.text("zoo:brown-lm-quest", "words.txt", perturbations="word-swap(rate=5)", out="runs/text")
        >>> run.results().condition.unique().tolist()
        ['clean', 'word-swap(rate=5)']
    """
    return carried_out(TextRequest, checkpoints, data, options, progress, say)
