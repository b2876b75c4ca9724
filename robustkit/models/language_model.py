"""Causal language models: from a spec to a model that takes tokens and says how likely each is to come next."""

from __future__ import annotations

import hashlib
import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..attention.apply import get_attention
from ..common.preprocessing import Preprocessing
from ..errors import CheckpointError, ModelError
from .identity import Classifier, ModelIdentity, attention_notes, display_name
from .input_config import InputOptions
from .specs import ModelFile, find
from .tokenizers import FolderTokenizer, Tokenizer, WordTokenizer, check_size
from .trainers import formula_in
from .transformers_build import build
from .transformers_config import quiet
from .word_model import WordModel, load_word_model

NOTHING = Preprocessing((1, 1), (0.0,), (1.0,), "none", 1.0, "none")
"""The preprocessing of an input that is no image."""
_LONGEST = 1024
"""The window of a model that names no context, or a longer one."""
_NAMES = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "seq_length")


class OfWords(nn.Module):
    """A model of words: tokens (B, N) to the logits (B, keep, V) of what follows the last `keep` of them."""

    def __init__(self, model: WordModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor, keep: int) -> Tensor:
        return functional.linear(self.model.features(tokens)[:, -keep:], self.model.words.weight)


class OfLibrary(nn.Module):
    """A causal language model of transformers; as `OfWords`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self._keeps = "logits_to_keep" in inspect.signature(model.forward).parameters

    def forward(self, tokens: Tensor, keep: int) -> Tensor:
        few = {"logits_to_keep": keep} if self._keeps else {}
        logits: Tensor = self.model(input_ids=tokens, use_cache=False, **few).logits
        return logits[:, -keep:]


class LanguageModel(Classifier):
    """A causal language model in evaluation mode. Its network takes tokens (B, N), and how many of the last count.

    tokenizer: turns text into tokens. context: tokens that it sees at most.
    """

    def __init__(self, network: nn.Module, identity: ModelIdentity, tokenizer: Tokenizer, context: int) -> None:
        super().__init__(network, identity)
        self.tokenizer, self.context = tokenizer, context

    def forward(self, tokens: Tensor) -> Tensor:
        return self.network(tokens, tokens.shape[1])  # type: ignore[no-any-return]


def load_language_model(spec: str | Path, *, attention: str | None = None) -> LanguageModel:
    """Load a causal language model: `hf:DIR` or `hf-hub:ORG/NAME` with its tokenizer, `zoo:NAME`, or the FILE of a
    model of words.

    attention: a formula; left out, from metadata, else what the architecture has.
    Raises ModelError or CheckpointError, one line with the remedy.
    """
    source = find(str(spec))
    if source.transformers:
        return _of_library(source, str(spec), attention)
    return _of_words(str(spec), attention)


def _of_words(spec: str, attention: str | None) -> LanguageModel:
    loaded = load_word_model(spec, attention)
    network, file = loaded.network, loaded.checkpoint
    formula = get_attention(network)
    if attention not in (None, formula):
        raise ModelError(
            f"--attention {attention} does not go with {spec}, which was trained with {formula} attention; leave it out"
        )
    named = "name" if formula_in(file.path.name) else "default"
    source = "metadata" if "attention" in file.metadata else "option" if attention else named
    identity = ModelIdentity(
        name=display_name(loaded.name),
        spec=spec,
        path=file.path,
        sha256=file.sha256,
        arch=str(file.metadata["arch"]),
        attention=formula,
        attention_source=source,
        num_classes=len(loaded.words),
        preprocessing=NOTHING,
        weights=file.weights,
        notes=file.notes + attention_notes(formula, source, attention, file.metadata),
        metadata={name: value for name, value in file.metadata.items() if name != "vocabulary"},
    )
    return LanguageModel(OfWords(network), identity, WordTokenizer(loaded.words), network.sizes.context)


def _of_library(source: ModelFile, spec: str, attention: str | None) -> LanguageModel:
    wanted = InputOptions(None, attention, None, None, None, None, None, None, None)
    loaded = build(source, spec, wanted, "causal language modelling")
    tokenizer = FolderTokenizer(source.path)
    config: Any = loaded.model.config
    check_size(tokenizer, int(config.vocab_size), str(source.path))
    context = next((said for name in _NAMES if isinstance(said := getattr(config, name, None), int)), _LONGEST)
    more = () if tokenizer.begin is None else ("documents begin with the tokenizer's bos_token",)
    identity = loaded.identity(
        source.name, spec, int(config.vocab_size), preprocessing=NOTHING, notes=loaded.notes + more
    )
    code = hashlib.sha256(f"{identity.code_sha256} {tokenizer.digest}".encode()).hexdigest()
    model = LanguageModel(
        OfLibrary(loaded.model), replace(identity, code_sha256=code), tokenizer, min(context, _LONGEST)
    )
    _runs(model, spec)
    return model


def _runs(model: LanguageModel, spec: str) -> None:
    """Raise CheckpointError where the network gives no finite logit for each token of its vocabulary."""
    with quiet(f"{spec}: two tokens"), torch.no_grad():
        logits = model(torch.zeros((1, 2), dtype=torch.int64))
    if logits.shape != (1, 2, model.identity.num_classes) or not logits.isfinite().all():
        raise CheckpointError(
            f"{spec} returned {tuple(logits.shape)} for two tokens; expected finite logits of "
            f"(1, 2, {model.identity.num_classes}): check config.json and the weights"
        )
